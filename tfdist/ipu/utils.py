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
    """Returns device options; the options given have no effect, which is logged once.

    Args:
      **options: Options of the original.
    """
    log_without_effect("create_ipu_config", sorted(options))
    return IPUConfig()


def auto_select_ipus(opts: IPUConfig, num_ipus: int) -> IPUConfig:
    """Selects a number of devices: one for each replica.

    Args:
      opts: The options, which are left as they are.
      num_ipus: The number of devices.

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
    """Sets `floating_point_behaviour`: `esr` is stochastic rounding; the others have no effect.

    Args:
      opts: The options, which are left as they are.
      inv: Has no effect.
      div0: Has no effect.
      oflo: Has no effect.
      esr: Whether weights are rounded stochastically.
      nanoo: Has no effect.
    """
    opts = copy.deepcopy(opts)
    for name, value in dict(inv=inv, div0=div0, oflo=oflo, esr=esr, nanoo=nanoo).items():
        setattr(opts.floating_point_behaviour, name, value)
    return opts


def set_recomputation_options(opts: IPUConfig, allow_recompute: bool = True) -> IPUConfig:
    """Sets `allow_recompute`: whether the stages of pipelines are recomputed.

    Args:
      opts: The options, which are left as they are.
      allow_recompute: Whether they are.
    """
    opts = copy.deepcopy(opts)
    opts.allow_recompute = allow_recompute
    return opts


def set_norm_options(
    opts: IPUConfig,
    use_stable_statistics: bool = False,
    experimental_distributed_batch_norm_replica_group_size: int = 1,
) -> IPUConfig:
    """Sets `norms`: the replicas that share the statistics of a batch norm.

    Statistics are always stable: `use_stable_statistics` has no effect, and if it is True, that is
    logged when the options are configured.

    Args:
      opts: The options, which are left as they are.
      use_stable_statistics: Has no effect.
      experimental_distributed_batch_norm_replica_group_size: The number of replicas in a
        group.
    """
    opts = copy.deepcopy(opts)
    if use_stable_statistics:
        opts.norms.use_stable_statistics = use_stable_statistics
    opts.norms.experimental.distributed_batch_norm_replica_group_size = (
        experimental_distributed_batch_norm_replica_group_size
    )
    return opts


def select_ipus(opts: IPUConfig, indices: Sequence[int]) -> IPUConfig:
    """Selects as many devices as there are indices; which ones has no effect, which is logged.

    Args:
      opts: The options, which are left as they are.
      indices: One index for each device.

    Raises:
      ValueError: If there is no index.
    """
    opts = auto_select_ipus(opts, len(indices))
    opts.select_ipus = list(indices)
    return opts


def reset_ipu_seed(seed: int) -> None:
    """Sets the seed from which this program's random operations are made, as TensorFlow's does.

    Args:
      seed: An integer.
    """
    tf.random.set_seed(seed)


def move_variable_initialization_to_cpu(graph: Any = None) -> None:
    """Does nothing: initial values are always made on the host.

    Args:
      graph: Has no effect.
    """


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
    """Returns a function whose options have no effect.

    Raises:
      AttributeError: For a name that is not supported; the message says what to write.
    """
    if name in _SETTERS:
        return _without_effect(name)
    if name in _REFUSED:
        raise AttributeError(f"ipu.utils.{name} is not supported: {_REFUSED[name]}.")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def configure_ipu_system(opts: IPUConfig) -> None:
    """Makes the options those of this process; each session creates its devices.

    Args:
      opts: The options.
    """
    opts.configure_ipu_system()
