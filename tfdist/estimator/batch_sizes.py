"""Global batch sizes: what each replica reads, handed to input_fn and model_fn in params."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tfdist.estimator.calls import argument_names
from tfdist.estimator.replicas import num_local_replicas
from tfdist.estimator.run_config import RunConfig
from tfdist.estimator.spec import ModeKeys


class BatchSizes:
    """The Estimator's train_batch_size, eval_batch_size and predict_batch_size.

    A global batch is what all replicas of all workers read in one step; a replica reads
    `size / (num_workers * num_replicas)`. Predicting counts one worker, and so does evaluating
    unless an eval_distribute has more.

    Args:
      train: Global batch size of training, or None.
      evaluate: Of evaluating.
      predict: Of predicting.
      config: The Estimator's.
      params: What the Estimator got, or None.

    Raises:
      ValueError: If a size is not positive or does not split, or params already has one.
    """

    def __init__(
        self,
        train: int | None,
        evaluate: int | None,
        predict: int | None,
        config: RunConfig,
        params: Any,
    ) -> None:
        strategies = (config.train_distribute, config.eval_distribute, None)
        modes = (ModeKeys.TRAIN, ModeKeys.EVAL, ModeKeys.PREDICT)
        names = ("train_batch_size", "eval_batch_size", "predict_batch_size")
        self._of_replica = {
            mode: replica_batch_size(
                name, size, num_workers(strategy), num_local_replicas(config, strategy)
            )
            for mode, name, size, strategy in zip(
                modes, names, (train, evaluate, predict), strategies, strict=True
            )
            if size is not None
        }
        if self._of_replica:
            _check_params(params)

    def add_to(self, params: Any, mode: str, input_fn: Callable[..., Any] | None = None) -> Any:
        """Returns params with the replica's batch size as "batch_size", if the mode has one.

        Args:
          params: A copy of the Estimator's params.
          mode: One of `ModeKeys`.
          input_fn: Must take params then; None is not checked.

        Raises:
          ValueError: If the input_fn cannot receive it.
        """
        if mode not in self._of_replica:
            return params
        if input_fn is not None and "params" not in argument_names(input_fn):
            raise ValueError(
                f"input_fn must have params argument to receive params['batch_size'], and "
                f"{input_fn} has none. Write def input_fn(params)."
            )
        return {**params, "batch_size": self._of_replica[mode]}


def replica_batch_size(name: str, size: int, num_workers: int, num_replicas: int) -> int:
    """Splits a global batch size over all replicas; ValueError if it does not split evenly.

    Args:
      name: What messages call it.
      size: The global batch size.
      num_workers: How many workers share it.
      num_replicas: Replicas in each worker.
    """
    if size < 1:
        raise ValueError(f"{name} (got {size}) must be positive.")
    shares = num_workers * num_replicas
    if size % shares:
        below = size - size % shares
        nearest = f"{below} and {below + shares}" if below else f"{shares}"
        raise ValueError(
            f"{name} (got {size}) must be divisible by num_workers * num_replicas "
            f"({num_workers} * {num_replicas}). Nearest: {nearest}."
        )
    return size // shares


def num_workers(strategy: Any) -> int:
    """Returns how many workers a strategy has; one without, and for one machine's."""
    collectives = getattr(getattr(strategy, "extended", None), "collectives", None)
    return 1 if collectives is None else int(collectives.num_workers)


def _check_params(params: Any) -> None:
    if params is None:
        return
    if not isinstance(params, dict):
        raise ValueError(
            f"`params` is expected to be of type `dict` with a batch size argument, got {params!r}."
        )
    if "batch_size" in params:
        raise ValueError(
            "batch_size cannot be passed in params when a batch size argument is passed. "
            f"Remove params['batch_size'], which is {params['batch_size']!r}."
        )
