"""The facts that all workers share before they build their graphs, read from their texts."""

import json
from dataclasses import asdict, replace

import pytest

from tfdist.estimator.inputs.position import InputPosition
from tfdist.estimator.loop.checkpoint_sharing import Start, read_starts
from tfdist.estimator.loop.model_check import LimitMismatchError
from tfdist.estimator.loop.snapshots import with_snapshot
from tfdist.estimator.loop.train_call import FoundCheckpoint
from tfdist.strategies.saving.snapshots import Snapshot


def _text(
    path: str | None, step: int, *, threads: int = 1, max_steps: int = 9, **snapshots: int
) -> str:
    """Returns a worker's text; `snapshots` has the step of each snapshot of its host by name."""
    position = InputPosition(batches=step, seed=3)
    found = FoundCheckpoint(
        path=path, step=step, input=position if step else None, snapshots="own" if snapshots else ""
    )
    text = {"found": asdict(found), "limit": (None, max_steps), "threads": threads}
    of_host = {name: asdict(_snapshot(step)) for name, step in snapshots.items()}
    return json.dumps({**text, "snapshots": of_host})


def _snapshot(step: int) -> Snapshot:
    position = asdict(InputPosition(batches=step, seed=3))
    return Snapshot(step=step, files={f"model.ckpt-{step}.index": 20}, input=position)


def test_all_workers_resume_from_the_checkpoint_of_worker_0() -> None:
    texts = [_text("/model/model.ckpt-7", 7), _text(None, 0, threads=4), _text("/old", 3)]
    position = InputPosition(batches=7, seed=3)
    found = FoundCheckpoint(path="/model/model.ckpt-7", step=7, input=position)
    assert read_starts(texts) == Start(found=found, most_threads=4)
    assert read_starts(texts[1:]).found == FoundCheckpoint(path=None, step=0)


def test_workers_with_other_limits_do_not_start() -> None:
    with pytest.raises(LimitMismatchError, match="max_steps is 9 on worker 0 and 8 on worker 1"):
        read_starts([_text(None, 0), _text(None, 0, max_steps=8)])


@pytest.mark.parametrize(
    ("of_workers", "chosen"),
    [
        ([9, 9], (0, 9)),
        ([8, 9], (1, 9)),
        ([None, 9, 9], (1, 9)),
        ([8, None], (0, 8)),
        ([7, 7], None),  # That of the checkpoint.
        ([None, 6], None),
    ],
)
def test_all_workers_go_on_from_the_newest_snapshot_that_is_newer_than_the_checkpoint(
    of_workers: list[int | None], chosen: tuple[int, int] | None
) -> None:
    texts = [
        _text("/model/model.ckpt-7", 7, other=12, **({} if step is None else {"own": step}))
        for step in of_workers
    ]
    start = read_starts(texts)
    if chosen is None:
        assert (start.snapshot, start.found.step) == (None, 7)
        assert start.found.path == "/model/model.ckpt-7"
        return
    worker, step = chosen
    assert start.snapshot == (worker, _snapshot(step))
    assert (start.found.path, start.found.step) == (f"model.ckpt-{step}", step)
    assert start.found.input == InputPosition(batches=step, seed=3)


def test_a_snapshot_is_used_where_there_is_no_checkpoint() -> None:
    position = InputPosition(seed=3)
    found = FoundCheckpoint(path=None, step=0, input=position, snapshots="own")
    assert with_snapshot(found, [{"own": _snapshot(2)}])[1] == (0, _snapshot(2))
    damaged = replace(found, problem="all are damaged")
    assert with_snapshot(damaged, [{"own": _snapshot(2)}]) == (damaged, None)


def test_a_snapshot_without_the_position_of_the_input_does_not_count_where_that_is_saved() -> None:
    found = FoundCheckpoint(path=None, step=0, input=InputPosition(seed=3), snapshots="own")
    without = replace(_snapshot(2), input=None)
    assert with_snapshot(found, [{"own": without}])[1] is None
    assert with_snapshot(replace(found, input=None), [{"own": without}])[1] == (0, without)
