"""`ipu.utils`: functions that return changed device options, as programs before `IPUConfig` use."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.ipu.config import IPUConfig
from tfdist.ipu.without_effect import log_without_effect

__all__ = [
    "IPUConfig",
    "auto_select_ipus",
    "configure_ipu_system",
    "create_ipu_config",
    "move_variable_initialization_to_cpu",
    "reset_ipu_seed",
    "select_ipus",
    "set_floating_point_behaviour_options",
    "set_norm_options",
    "set_recomputation_options",
]


def create_ipu_config(**options: Any) -> IPUConfig:
    """Returns device options; `options` of the original have no effect, which is logged once."""
    log_without_effect("create_ipu_config", sorted(options))
    return IPUConfig()


def auto_select_ipus(opts: IPUConfig, num_ipus: int) -> IPUConfig:
    """Returns a copy of `opts` with so many devices, `num_ipus`: one for each replica.

    Raises:
      ValueError: If it is not an integer of at least 1.
    """
    if isinstance(num_ipus, bool) or not isinstance(num_ipus, int) or num_ipus < 1:
        raise ValueError(
            f"auto_select_ipus got num_ipus={num_ipus!r}: give an integer of at least 1, one for "
            "each replica."
        )
    opts = copy.deepcopy(opts)
    opts.auto_select_ipus = num_ipus
    return opts


def set_floating_point_behaviour_options(
    opts: IPUConfig,
    inv: bool = True,
    div0: bool = True,
    oflo: bool = True,
    esr: bool = True,
    nanoo: bool = True,
) -> IPUConfig:
    """Returns a copy of `opts` with another `floating_point_behaviour`.

    `esr` says whether weights are rounded stochastically. `inv`, `div0`, `oflo` and `nanoo` have no
    effect.
    """
    opts = copy.deepcopy(opts)
    for name, value in dict(inv=inv, div0=div0, oflo=oflo, esr=esr, nanoo=nanoo).items():
        setattr(opts.floating_point_behaviour, name, value)
    return opts


def set_recomputation_options(opts: IPUConfig, allow_recompute: bool = True) -> IPUConfig:
    """Returns a copy of `opts` that recomputes the stages of pipelines if `allow_recompute`."""
    opts = copy.deepcopy(opts)
    opts.allow_recompute = allow_recompute
    return opts


def set_norm_options(
    opts: IPUConfig,
    use_stable_statistics: bool = False,
    experimental_distributed_batch_norm_replica_group_size: int = 1,
) -> IPUConfig:
    """Returns a copy of `opts` with other `norms`.

    `experimental_distributed_batch_norm_replica_group_size` replicas share the statistics of a
    batch norm. They are always stable: `use_stable_statistics` has no effect, and if it is True,
    that is logged when the options are configured.
    """
    opts = copy.deepcopy(opts)
    if use_stable_statistics:
        opts.norms.use_stable_statistics = use_stable_statistics
    opts.norms.experimental.distributed_batch_norm_replica_group_size = (
        experimental_distributed_batch_norm_replica_group_size
    )
    return opts


def select_ipus(opts: IPUConfig, indices: Sequence[int]) -> IPUConfig:
    """Returns a copy of `opts` with as many devices as there are `indices`.

    Which ones has no effect, which is logged when the options are configured.

    Raises:
      ValueError: If there is no index.
    """
    opts = auto_select_ipus(opts, len(indices))
    opts.select_ipus = list(indices)
    return opts


def reset_ipu_seed(seed: int) -> None:
    """Sets the `seed` from which this program's random operations are made."""
    tf.random.set_seed(seed)


def move_variable_initialization_to_cpu(graph: Any = None) -> None:
    """Does nothing with the `graph`: initial values are always made on the host."""


def _without_effect(name: str) -> Callable[..., IPUConfig]:
    def change(opts: IPUConfig, *args: Any, **options: Any) -> IPUConfig:
        log_without_effect(name, sorted(options) or ["its options"])
        return copy.deepcopy(opts)

    return change


# The original's functions that set options of an IPU, of its compiler or of its links.
_SETTERS = (
    "set_compilation_options",
    "set_convolution_options",
    "set_experimental_multi_replica_distribution_options",
    "set_gcl_options",
    "set_io_tile_options",
    "set_ipu_connection_type",
    "set_ipu_model_options",
    "set_matmul_options",
    "set_optimization_options",
    "set_pooling_options",
    "set_report_options",
    "set_serialization_options",
    "set_transfer_options",
    "set_verification_options",
)
_REPORTS = "write hooks=[tfdist.monitoring.StepProfileHook(...)] for where a step's time goes"
_REFUSED = {
    "extract_all_events": _REPORTS,
    "extract_all_strings_from_event_trace": _REPORTS,
    "extract_compile_reports": _REPORTS,
    "extract_execute_reports": _REPORTS,
    "set_ipu_config": "write popdist.tensorflow.set_ipu_config(config)",
}


def __getattr__(name: str) -> Any:
    """Returns a function with options that have no effect.

    Raises:
      AttributeError: For a name that is not supported; the message says what to write.
    """
    if name in _SETTERS:
        return _without_effect(name)
    if name in _REFUSED:
        raise AttributeError(f"ipu.utils.{name} is not supported: {_REFUSED[name]}.")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def configure_ipu_system(opts: IPUConfig) -> None:
    """Makes `opts` the options of this process; each session creates its devices."""
    opts.configure_ipu_system()
