"""The replicas of the model in this worker: how many, and running a model_fn in each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.cluster import ClusterError
from tfdist.estimator.run_config import RunConfig
from tfdist.estimator.stock_strategies import is_default, is_own
from tfdist.strategies import LocalStrategy
from tfdist.strategies.placement import Placement

Result = TypeVar("Result")
EachReplica = Callable[[Callable[[int], Any]], list[Any]]


def training_strategy(config: RunConfig) -> Any:
    """Returns the strategy that trains; None for one replica in one process.

    A stock strategy for the devices of one machine (`tf.distribute.MirroredStrategy`) becomes a
    `LocalStrategy` with as many replicas: those share their variables.
    """
    given = config.train_distribute
    if given is None or is_default(given):
        return _local_strategy(config.device.num_replicas, config)
    if not is_own(given):
        return _from_stock(given, config)
    asked, has = config.device.num_replicas, len(given.extended.worker_devices)
    if asked not in (1, has):
        raise ValueError(
            f"DeviceConfig has num_replicas={asked}, but {type(given).__name__} has {has}. Give "
            f"the number to the strategy: {type(given).__name__}(num_replicas={asked})."
        )
    return given


def evaluation_strategy(config: RunConfig) -> Any:
    """Returns the strategy that evaluates, in this process alone; None for one replica."""
    given = config.eval_distribute
    if given is not None and not is_own(given) and not is_default(given):
        return _from_stock(given, config)
    return _local_strategy(num_local_replicas(config, given), config)


def num_local_replicas(config: RunConfig, strategy: Any) -> int:
    """Returns how many replicas this worker has under a strategy of the config, or without."""
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


def _from_stock(strategy: Any, config: RunConfig) -> LocalStrategy:
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
    own = LocalStrategy(len(names), device, config.device.variables_on_host)
    v1.logging.info(
        "%s runs as LocalStrategy: %d replica(s) on %s, which share their variables.",
        type(strategy).__name__,
        len(own.extended.worker_devices),
        ", ".join(own.extended.worker_devices),
    )
    return own


def each_replica(strategy: Any, placement: Placement) -> EachReplica:
    """Returns a function that calls another one in each replica of this worker.

    The other one gets the replica's number in this worker, from 0, and runs on its device in
    replica context. Of the summaries that it makes, those of the first replica are kept; each
    replica finds its own losses, and those made before, in the LOSSES collection.

    Args:
      strategy: A tfdist strategy; None is one replica without any.
      placement: Where the device is, without a strategy.
    """

    def without_strategy(function: Callable[[int], Result]) -> list[Result]:
        with placement.on_device():
            return [function(0)]

    def with_strategy(function: Callable[[int], Result]) -> list[Result]:
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

        extended.call_for_each_replica(in_replica)
        losses[:] = [*before, *hidden, *losses[len(before) :]]
        _keep_summaries_of_the_first(graph, placement.num_replicas)
        return [results[replica] for replica in sorted(results)]

    return without_strategy if strategy is None else with_strategy


def _keep_summaries_of_the_first(graph: tf.Graph, num_replicas: int) -> None:
    scope = graph.get_name_scope()
    others = tuple(f"{scope}/replica_{r}/".lstrip("/") for r in range(1, num_replicas))
    summaries = graph.get_collection_ref(v1.GraphKeys.SUMMARIES)
    summaries[:] = [s for s in summaries if not s.name.startswith(others)]
