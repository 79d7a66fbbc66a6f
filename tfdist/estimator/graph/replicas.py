"""Replicas of the model in this worker: their number, calls of model_fn, and batch sizes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, TypeVar

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.cluster import ClusterError
from tfdist.cluster.arguments import is_whole
from tfdist.estimator.config.arguments import InputFn, argument_names, nearest_multiples
from tfdist.estimator.config.run_config import RunConfig
from tfdist.estimator.config.settings import is_default
from tfdist.estimator.private_keras import mixed_float16_allowed
from tfdist.estimator.spec import ModeKeys
from tfdist.strategies import LocalStrategy
from tfdist.strategies.base import is_tfdist_strategy
from tfdist.strategies.placement import Placement
from tfdist.strategies.worker_strategy import WorkerStrategy

Result = TypeVar("Result")
EachReplica = Callable[[Callable[[int], Any]], list[Any]]


def training_strategy(config: RunConfig) -> WorkerStrategy | None:
    """Returns the strategy that trains; None for one replica in one process.

    A stock strategy for the devices of one machine (`tf.distribute.MirroredStrategy`) becomes a
    `LocalStrategy` with the same number of replicas, which share their variables.
    """
    given = config.train_distribute
    if given is None or is_default(given):
        return _local_strategy(config.device.num_replicas, config)
    if not is_tfdist_strategy(given):
        return _from_stock(given, config)
    requested, has = config.device.num_replicas, len(given.extended.worker_devices)
    if requested not in (1, has):
        raise ValueError(
            f"DeviceConfig has num_replicas={requested}, but {type(given).__name__} has {has}. "
            f"Give the number to the strategy: {type(given).__name__}(num_replicas={requested})."
        )
    return given


def evaluation_strategy(config: RunConfig) -> WorkerStrategy | None:
    """Returns the strategy that evaluates, in this process alone; None for one replica."""
    given = config.eval_distribute
    if given is not None and not is_tfdist_strategy(given) and not is_default(given):
        return _from_stock(given, config)
    return _local_strategy(num_local_replicas(config, given), config)


def num_local_replicas(config: RunConfig, strategy: tf.distribute.Strategy | None) -> int:
    """Returns the number of replicas of this worker; None takes the config's strategy."""
    if strategy is None:
        strategy = config.train_distribute
    if strategy is None or is_default(strategy):
        return int(config.device.num_replicas)
    return len(strategy.extended.worker_devices)


def _local_strategy(num_replicas: int, config: RunConfig) -> LocalStrategy | None:
    if num_replicas == 1:
        return None
    device = config.device
    return LocalStrategy(num_replicas, device.device, device.variables_on_host)


def _from_stock(strategy: tf.distribute.Strategy, config: RunConfig) -> LocalStrategy:
    if config.num_worker_replicas > 1:
        raise ClusterError(
            f"{type(strategy).__name__} is for one machine, and the cluster has "
            f"{config.num_worker_replicas} workers. Use tfdist.strategies.MultiWorkerStrategy("
            f"num_replicas={len(strategy.extended.worker_devices)})."
        )
    names = [tf.DeviceSpec.from_string(name) for name in strategy.extended.worker_devices]
    kind, first = names[0].device_type, names[0].device_index
    expected = [(kind, first + i) for i in range(len(names))]
    if [(name.device_type, name.device_index) for name in names] != expected:
        raise ValueError(
            f"{type(strategy).__name__} has the devices {[n.to_string() for n in names]}: they "
            "must be of one kind and follow one another, such as GPU:0, GPU:1."
        )
    # Stock strategies compute on CPU:0 where there is no GPU; the device here is the one after it.
    device = f"/device:{kind}:{first}" if kind != "CPU" else f"/device:CPU:{first + 1}"
    if kind == "GPU" and not tf.config.list_physical_devices("GPU"):
        v1.logging.warning(
            "%s names %s, and this machine has no GPU: the CPU computes.",
            type(strategy).__name__,
            device,
        )
        device = f"/device:CPU:{first + 1}"
    own = LocalStrategy(len(names), device, config.device.variables_on_host)
    v1.logging.info(
        "%s runs as LocalStrategy: %d replica(s) on %s, which share their variables.",
        type(strategy).__name__,
        len(own.extended.worker_devices),
        ", ".join(own.extended.worker_devices),
    )
    return own


def each_replica(strategy: WorkerStrategy | None, placement: Placement) -> EachReplica:
    """Returns a function that calls a given function in each replica of this worker.

    The given function gets the replica's number in this worker, from 0, and runs on the replica's
    device in replica context. Only the summaries of the first replica are kept. In the LOSSES
    collection each replica finds its own losses and those made before. Without a strategy there is
    one replica, on the device of the placement.
    """

    def each(function: Callable[[int], Result]) -> list[Result]:
        if strategy is None:
            with placement.on_device():
                return [function(0)]
        extended = strategy.extended
        graph = v1.get_default_graph()
        losses = graph.get_collection_ref(v1.GraphKeys.LOSSES)
        before, hidden = list(losses), []

        results: dict[int, Result] = {}

        def in_replica() -> None:
            replica = extended.replica_in_worker()
            if replica > 0:
                hidden.extend(losses[len(before) :])
                losses[:] = before
            results[replica] = function(replica)

        with mixed_float16_allowed():
            extended.call_for_each_replica(in_replica)
        losses[:] = [*before, *hidden, *losses[len(before) :]]
        _keep_summaries_of_the_first(graph, placement.num_replicas)
        return [results[replica] for replica in sorted(results)]

    return each


def in_first_replica(
    strategy: WorkerStrategy | None, placement: Placement, function: Callable[[], Result]
) -> Result:
    """Calls a function once, in the context and on the device of this worker's first replica.

    A merge_call in it does not wait for the other replicas. The arguments are as in
    `each_replica`.
    """
    with ExitStack() as scopes:
        if strategy is not None:
            first = strategy.extended.first_replica_in_sync
            context = v1.distribute.ReplicaContext(strategy, replica_id_in_sync_group=first)
            scopes.enter_context(context)
            scopes.enter_context(mixed_float16_allowed())
        scopes.enter_context(placement.on_device())
        return function()


def _keep_summaries_of_the_first(graph: tf.Graph, num_replicas: int) -> None:
    scope = graph.get_name_scope()
    others = tuple(f"{scope}/replica_{r}/".lstrip("/") for r in range(1, num_replicas))
    summaries = graph.get_collection_ref(v1.GraphKeys.SUMMARIES)
    summaries[:] = [s for s in summaries if not s.name.startswith(others)]


class BatchSizes:
    """The Estimator's train_batch_size, eval_batch_size and predict_batch_size.

    In one step all replicas of all workers together read a global batch; a replica reads
    `size / (num_workers * num_replicas)`, in training in `gradient_accumulation` micro-batches.
    Prediction counts one worker. Evaluation counts one worker unless an eval_distribute has more.

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
        accumulation = (config.device.gradient_accumulation, 1, 1)
        self._of_replica = {
            mode: replica_batch_size(
                name, size, num_workers(strategy), num_local_replicas(config, strategy), count
            )
            for mode, name, size, strategy, count in zip(
                modes, names, (train, evaluate, predict), strategies, accumulation, strict=True
            )
            if size is not None
        }
        if self._of_replica:
            _check_params(params)

    def add_to(self, params: Any, mode: str, input_fn: InputFn | None = None) -> Any:
        """Returns params with the replica's batch size as "batch_size", if the mode has one.

        Raises:
          ValueError: If an input_fn is given that cannot receive it.
        """
        if mode not in self._of_replica:
            return params
        if input_fn is not None and "params" not in argument_names(input_fn):
            raise ValueError(
                f"input_fn must have params argument to receive params['batch_size'], and "
                f"{input_fn} has none. Write def input_fn(params)."
            )
        return {**params, "batch_size": self._of_replica[mode]}


def replica_batch_size(
    name: str, size: int, num_workers: int, num_replicas: int, accumulation: int = 1
) -> int:
    """Splits a global batch size over all replicas; ValueError if it does not split evenly."""
    if not is_whole(size) or size < 1:
        raise ValueError(f"{name} (got {size!r}) must be positive and a whole number.")
    shares = num_workers * num_replicas * accumulation
    if size % shares:
        nearest = nearest_multiples(size, shares)
        names, counts = "num_workers * num_replicas", f"{num_workers} * {num_replicas}"
        if accumulation > 1:
            names, counts = f"{names} * gradient_accumulation", f"{counts} * {accumulation}"
        raise ValueError(
            f"{name} (got {size}) must be divisible by {names} ({counts}). Nearest: {nearest}."
        )
    return int(size) // shares


def num_workers(strategy: WorkerStrategy | None) -> int:
    """Returns the number of workers of a strategy; 1 without one or with one for one machine."""
    return int(strategy.extended.collectives.num_workers) if is_tfdist_strategy(strategy) else 1


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
