"""SharedCheckpoint: all workers resume from worker 0's checkpoint."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.cluster.environment import read_num_threads
from tfdist.estimator.checkpoints.fit import CheckpointMismatchError, mismatch
from tfdist.estimator.inputs.position import InputPosition
from tfdist.estimator.loop.model_check import check_limits
from tfdist.estimator.loop.snapshots import own_snapshots, with_snapshot
from tfdist.estimator.loop.train_call import FoundCheckpoint, TrainCall
from tfdist.strategies.saving.snapshots import Snapshot
from tfdist.strategies.values.gather_text import TextExchange
from tfdist.strategies.worker_strategy import WorkerStrategy


@dataclass(frozen=True, kw_only=True)
class Start:
    """The facts that all workers share before they build their graphs.

    Attributes:
      found: Worker 0's checkpoint; with a snapshot, as it is once that is taken over.
      most_threads: The most threads that an operation may use on one of the workers.
      snapshot: The worker that has a newer snapshot, and the snapshot; None without one.
    """

    found: FoundCheckpoint
    most_threads: int
    snapshot: tuple[int, Snapshot] | None = None


class SharedCheckpoint:
    """The messages about worker 0's checkpoint. Every worker makes one before its graph."""

    def __init__(self, strategy: WorkerStrategy) -> None:
        self._collectives = strategy.extended.collectives
        self._share_start = TextExchange(strategy)
        self._share_mismatch = TextExchange(strategy)

    def share(self, call: TrainCall) -> Start:
        """Sends this worker's start to the others, and returns what all of them use.

        A collective; to be called once. The errors are as in `read_starts`.
        """
        own = {
            "found": asdict(call.found),
            "limit": (call.steps, call.max_steps),
            "snapshots": {name: asdict(one) for name, one in own_snapshots(call).items()},
            "threads": _num_threads(call.config.session_config),
            "training": self._collectives.newest_training,
        }
        texts = self._share_start(json.dumps(own))
        self._collectives.begin_training(1 + max(json.loads(text)["training"] for text in texts))
        return read_starts(texts)

    def check_fit(self, saver: v1.train.Saver, found: FoundCheckpoint, *, is_chief: bool) -> None:
        """Raises CheckpointMismatchError on every worker if worker 0's graph has other variables.

        A collective; to be called once.
        """
        if found.path is None:
            return
        own = mismatch(saver, found.path) if is_chief else None
        of_chief = json.loads(self._share_mismatch(json.dumps(own))[0])
        if of_chief is not None:
            raise CheckpointMismatchError(of_chief)


def read_starts(texts: list[str]) -> Start:
    """Returns the start that all workers share, from their texts in worker order.

    Raises:
      LimitMismatchError: If the workers were given different steps or max_steps.
    """
    shared = [json.loads(text) for text in texts]
    check_limits([facts["limit"] for facts in shared])
    found = shared[0]["found"]
    if found["input"] is not None:
        found["input"] = InputPosition(**found["input"])
    snapshots = [
        {name: Snapshot(**values) for name, values in facts["snapshots"].items()}
        for facts in shared
    ]
    going_on_from, snapshot = with_snapshot(FoundCheckpoint(**found), snapshots)
    return Start(
        found=going_on_from,
        snapshot=snapshot,
        most_threads=max(facts["threads"] for facts in shared),
    )


def _num_threads(config: v1.ConfigProto | None) -> int:
    """Returns how many threads may compute inside an operation of this process, at most."""
    of_session = 0 if config is None else config.intra_op_parallelism_threads
    of_process = tf.config.threading.get_intra_op_parallelism_threads()
    return max(of_session, of_process, read_num_threads())
