"""The facts that all workers share before they build their graphs, read from their texts."""

import json
from dataclasses import asdict

import pytest

from tfdist.estimator.inputs.position import InputPosition
from tfdist.estimator.loop.checkpoint_sharing import Start, read_starts
from tfdist.estimator.loop.model_check import LimitMismatchError
from tfdist.estimator.loop.train_call import FoundCheckpoint


def _text(path: str | None, step: int, *, threads: int = 1, max_steps: int = 9) -> str:
    position = InputPosition(batches=step, seed=3)
    found = asdict(FoundCheckpoint(path=path, step=step, input=position if step else None))
    return json.dumps({"found": found, "limit": (None, max_steps), "threads": threads})


def test_all_workers_resume_from_the_checkpoint_of_worker_0() -> None:
    texts = [_text("/model/model.ckpt-7", 7), _text(None, 0, threads=4), _text("/old", 3)]
    position = InputPosition(batches=7, seed=3)
    found = FoundCheckpoint(path="/model/model.ckpt-7", step=7, input=position)
    assert read_starts(texts) == Start(found=found, most_threads=4)
    assert read_starts(texts[1:]).found == FoundCheckpoint(path=None, step=0)


def test_workers_with_other_limits_do_not_start() -> None:
    with pytest.raises(LimitMismatchError, match="max_steps is 9 on worker 0 and 8 on worker 1"):
        read_starts([_text(None, 0), _text(None, 0, max_steps=8)])
