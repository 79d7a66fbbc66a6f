"""The training loop's side of the other workers of a training.

`Peers` itself is for one replica in one process. `OtherWorkers` (other_workers.py) is for several
workers, and for several replicas in one process. What one call returns, the next ones take:

    peers.found_checkpoint()              --> found
    peers.agree(training)                 --> decision: loss, metrics, hooks, fetches of a step
    peers.make_scaffold(scaffold, found)  --> scaffold
    peers.open_session(...)               --> session, with the same model on all workers
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import tensorflow.compat.v1 as v1

from tfdist.estimator.checkpoints.scaffold import checked
from tfdist.estimator.graph import sessions
from tfdist.estimator.graph.global_step import StepLimit
from tfdist.estimator.graph.step import Training, describe_host_call
from tfdist.estimator.inputs.batches import Input
from tfdist.estimator.loop.decision import Decision, Model
from tfdist.estimator.loop.snapshots import adopt_snapshot, own_snapshots, with_snapshot
from tfdist.estimator.loop.train_call import FoundCheckpoint, Hooks, TrainCall
from tfdist.strategies.placement import Placement
from tfdist.strategies.stop_signals import StopSignals


class Peers:
    """The other workers of a training; here there are none.

    The methods are in the order in which the loop calls them.

    Attributes:
      num_workers: The number of workers that train.
      worker_index: The index of this worker.
      is_chief: Whether this worker writes checkpoints and summaries.
    """

    num_workers, worker_index = 1, 0

    def __init__(self, call: TrainCall, placement: Placement, signals: StopSignals) -> None:
        self._call = call
        self._placement = placement
        self._signals = signals
        self.is_chief = bool(call.config.is_chief)  # A subclass of RunConfig may return False.

    def found_checkpoint(self) -> FoundCheckpoint:
        """Returns the checkpoint from which all workers resume."""
        found, snapshot = with_snapshot(self._call.found, [own_snapshots(self._call)])
        if snapshot is None:
            return found
        return replace(found, path=adopt_snapshot(self._call, found, snapshot))

    def input_rules(self) -> dict[str, Any]:
        """Returns the arguments of `make_input` with the requirements for an input."""
        return {"many_per_call": self._call.iterations > 1}

    def begin_model(self) -> None:
        """Prepares for the model; its ops are added next."""

    def agree(self, training: Training) -> Decision:
        """Adds the agreement to the graph. Must be called in cross-replica context."""
        return Decision(training.loss, training.metrics, self._signals)

    def log_places(self, model: Model) -> None:
        """Logs where gradients are computed and how they are reduced."""
        spec, num_buckets = model.training.spec, model.decision.num_gradient_buckets
        if spec.host_call is not None:
            line = describe_host_call(spec, self._placement, self.num_workers, num_buckets)
            v1.logging.info(line)

    def make_scaffold(
        self, scaffold: v1.train.Scaffold, found: FoundCheckpoint
    ) -> v1.train.Scaffold:
        """Returns the scaffold that initialises the variables, made from the model's scaffold."""
        return scaffold

    def hooks_of_input(self, inputs: Input) -> Hooks:
        """Returns the hooks that prepare the input."""
        return inputs.hooks

    def last_hooks(self, model: Model) -> Hooks:
        """Returns the hooks that come after all others."""
        return []

    def watched(self) -> AbstractContextManager[None]:
        """Watches the other workers in the `with` block; raises an error that names a lost one."""
        return nullcontext()

    def open_session(
        self,
        model: Model,
        hooks: Sequence[v1.train.SessionRunHook],
        scaffold: v1.train.Scaffold,
        found: FoundCheckpoint,
        limits: Sequence[StepLimit],
    ) -> v1.train.SingularMonitoredSession:
        """Opens the session, once all workers have built the same model with the same limits."""
        config = sessions.with_defaults(self._call.config.session_config)
        return sessions.training_session(
            hooks,
            checked(scaffold, found.path),
            master=self._call.config.master,
            config=self._placement.configure(config),
            checkpoint_dir=self._call.model_dir if found.path is not None else None,
        )
