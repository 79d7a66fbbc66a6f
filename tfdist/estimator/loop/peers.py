"""The training loop's side of the other workers of a training.

`Peers` is for one replica in one process, which has no others. `OtherWorkers` (other_workers.py)
overrides it for several workers, and for several replicas in one process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.estimator.checkpoints.fit import checked
from tfdist.estimator.graph import sessions
from tfdist.estimator.graph.global_step import StepLimit
from tfdist.estimator.graph.step import Training, describe_host_call
from tfdist.estimator.inputs.batches import Input
from tfdist.estimator.loop.train_call import FoundCheckpoint, Hooks, TrainCall
from tfdist.strategies.placement import Placement
from tfdist.strategies.stop_signals import StopSignals


class Peers:
    """The other workers of a training; none here.

    The methods are in the order in which the loop calls them.

    Attributes:
      num_workers: The number of workers that train.
      worker_index: The index of this worker.
      is_chief: Whether this worker writes checkpoints and summaries.
      fetches: The tensors that each session call fetches; `receive` gets their values.
    """

    num_workers, worker_index = 1, 0
    _num_gradient_buckets = 0

    def __init__(self, call: TrainCall, placement: Placement, signals: StopSignals) -> None:
        self._call = call
        self._placement = placement
        self._signals = signals
        self.is_chief = bool(call.config.is_chief)  # A subclass of RunConfig may return False.
        self.fetches: list[tf.Tensor] = []

    # While the graph is built.

    def found_checkpoint(self) -> FoundCheckpoint:
        """Returns the checkpoint from which all workers resume."""
        return self._call.found

    def input_rules(self) -> dict[str, Any]:
        """Returns the arguments of `make_input` with the requirements for an input."""
        return {"many_per_call": self._call.iterations > 1}

    def begin_model(self) -> None:
        """Prepares for the model; its ops are added next."""

    def agree(self, training: Training) -> tuple[tf.Tensor, Mapping[str, tf.Tensor]]:
        """Adds the agreement to the graph. Must be called in cross-replica context.

        Returns:
          The loss and the training metrics to report, the same on all workers.
        """
        return training.loss, training.metrics

    def log_places(self, training: Training) -> None:
        """Logs where gradients are computed and how they are reduced."""
        if training.spec.host_call is not None:
            line = describe_host_call(
                training.spec, self._placement, self.num_workers, self._num_gradient_buckets
            )
            v1.logging.info(line)

    def make_scaffold(self, scaffold: v1.train.Scaffold) -> v1.train.Scaffold:
        """Returns the scaffold that initialises the variables, made from the model's scaffold."""
        return scaffold

    # The hooks.

    def hooks_of_input(self, inputs: Input) -> Hooks:
        """Returns the hooks that prepare the input."""
        return inputs.hooks

    def hooks_of_user(self, hooks: Iterable[v1.train.SessionRunHook]) -> Hooks:
        """Returns the user's hooks as they run on this worker."""
        return list(hooks)

    def hooks_that_save(
        self, make_hooks: Callable[[], Hooks], make_saver: Callable[..., Any]
    ) -> Hooks:
        """Returns the hooks that save checkpoints.

        Args:
          make_hooks: Makes tf.estimator's saver, unless the user has one.
          make_saver: Makes a `CheckpointSaverHook` with the user's listeners, given its timing.
        """
        return make_hooks()

    def hooks_against_nan(self, loss: tf.Tensor) -> Hooks:
        """Returns the hooks that end the training if `loss`, the reported one, is NaN."""
        return [v1.train.NanTensorHook(loss)]

    def last_hooks(self) -> Hooks:
        """Returns the hooks that come after all others."""
        return []

    # While the session runs.

    def watched(self) -> AbstractContextManager[None]:
        """Watches the other workers in the `with` block; raises an error that names a lost one."""
        return nullcontext()

    def open_session(
        self,
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

    def feeds(self) -> dict[tf.Tensor, Any]:
        """Returns this worker's feeds for the coming session call: its message to the others."""
        return {}

    def receive(self, values: Sequence[Any]) -> None:
        """Takes the values of `fetches`, right after the call."""

    def agreed_to_stop(self) -> bool:
        """Returns whether the training ends now, on all workers."""
        return self._signals.own is not None
