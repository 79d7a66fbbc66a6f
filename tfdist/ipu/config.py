"""`ipu.config`: the device options of this process, as attributes of one object.

As in the original a process has one configuration: that of the last `configure_ipu_system`, or of
the last `IPURunConfig` with `ipu_options`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from enum import Enum
from typing import Any

import tensorflow as tf

from tfdist.cluster.tasks import checked_count
from tfdist.ipu.without_effect import log_without_effect
from tfdist.training.stochastic_rounding import enable_stochastic_rounding

__all__ = ["IPUConfig", "StochasticRoundingBehaviour", "configured"]


class StochasticRoundingBehaviour(Enum):
    """Behaviours of the rounding of weights in half precision.

    Replicas share their weights, so ON and REPLICA_IDENTICAL_ONLY are the same here.
    """

    OFF = 0
    ON = 1
    REPLICA_IDENTICAL_ONLY = 2

    @staticmethod
    def from_bool(value: bool) -> StochasticRoundingBehaviour:
        """Returns ON for a `value` of True and OFF for False."""
        return StochasticRoundingBehaviour.ON if value else StochasticRoundingBehaviour.OFF


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"IPUConfig: {name} must be True or False, got {value!r}.")
    return value


def _rounding(name: str, value: Any) -> StochasticRoundingBehaviour:
    if isinstance(value, bool):
        return StochasticRoundingBehaviour.from_bool(value)
    if not isinstance(value, StochasticRoundingBehaviour):
        raise TypeError(
            f"IPUConfig: {name} must be a StochasticRoundingBehaviour (OFF, ON or "
            f"REPLICA_IDENTICAL_ONLY), got {value!r}."
        )
    return value


def _any_value(name: str, value: Any) -> Any:
    return value


# The original's groups of options for an IPU and its compiler: any option in them is taken.
_UNUSED_GROUPS = (
    "compilation_options", "convolutions", "device_connection", "experimental",
    "gcl_poplar_options", "io_tiles", "ipu_model", "matmuls", "optimizations", "pooling",
    "scheduling", "slices", "verified_transfers",
)  # fmt: skip
# The options that have an effect, and their values at the start.
_DEFAULTS = {
    "auto_select_ipus": 1,
    "allow_recompute": False,
    "floating_point_behaviour.esr": None,
    "norms.experimental.distributed_batch_norm_replica_group_size": 1,
}
_EXCEPTIONS = ("inv", "div0", "oflo", "nanoo")
_SET_ALL = "floating_point_behaviour.set_all"
# Functions of (name, value) that return the value to keep.
_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "auto_select_ipus": lambda name, value: checked_count(f"IPUConfig: {name}", value),
    "allow_recompute": _flag,
    "floating_point_behaviour.esr": _rounding,
    **{f"floating_point_behaviour.{name}": _flag for name in _EXCEPTIONS},
    _SET_ALL: _flag,
    "norms.use_stable_statistics": _flag,
    "norms.experimental.distributed_batch_norm_replica_group_size": checked_count,
    **dict.fromkeys(("select_ipus", "selection_order", "serialization_output_folder"), _any_value),
    **dict.fromkeys(_UNUSED_GROUPS, _any_value),
}


class _Options:
    """The options whose names start with a path.

    A name that the original does not have, or another type, is refused.

    Args:
      path: "" or the name of a group and a dot.
      values: All options that are set, by their full names.
      unused: The full names of those without an effect.
    """

    def __init__(self, path: str, values: dict[str, Any], unused: set[str]) -> None:
        vars(self).update(_path=path, _values=values, _unused=unused)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        full = self._path + name
        if full in self._values:
            return self._values[full]
        if self._takes_any(full) or any(known.startswith(f"{full}.") for known in _CHECKS):
            return _Options(f"{full}.", self._values, self._unused)
        raise AttributeError(f"IPUConfig: {full} has not been set.")

    def __setattr__(self, name: str, value: Any) -> None:
        full = self._path + name
        if full in _CHECKS or self._takes_any(full):
            self._values[full] = _CHECKS.get(full, _any_value)(full, value)
        else:
            length = len(self._path)
            options = [check[length:] for check in _CHECKS if check.startswith(self._path)]
            options = [option for option in options if "." not in option]
            near = difflib.get_close_matches(name, options, 1)
            known = f"Did you mean {near[0]}?" if near else f"It has {', '.join(options)}."
            raise AttributeError(f"IPUConfig has no option {full}. {known}")
        if full == _SET_ALL:
            for exception in (*_EXCEPTIONS, "esr") if value else ():
                setattr(self, exception, True)
        elif full not in _DEFAULTS:
            self._unused.add(full)

    def __setitem__(self, key: str, value: Any) -> None:
        self._unused.add(self._path[:-1])

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Takes `poplar_options.update(...)`."""
        self._unused.add(self._path[:-1])

    @staticmethod
    def _takes_any(full: str) -> bool:
        return full.partition(".")[0] in _UNUSED_GROUPS


class IPUConfig(_Options):
    """The original's device options.

    The attributes below have an effect, once `configure_ipu_system` is called or `IPURunConfig`
    gets the options. The original's others are taken, and one line in the log says that they have
    none. A name that it does not have is an AttributeError, another type a TypeError or ValueError.

    Attributes:
      auto_select_ipus: The number of devices: one for each replica.
      allow_recompute: Whether the stages of an `IPUPipelineEstimatorSpec` are recomputed for the
        backward pass. In other models wrap layers in `tfdist.training.recompute`.
      floating_point_behaviour: `esr`: whether the optimizers of `tfdist.training` round weights in
        float16 and bfloat16 stochastically; True is ON, False is OFF. None, the default, is their
        own argument.
      norms: `experimental.distributed_batch_norm_replica_group_size`: the replicas that share a
        batch norm's statistics, in `tf.keras.layers.BatchNormalization` and
        `tf.layers.batch_normalization` of `tfdist.ipu.tensorflow` that are made from then on. 1 is
        each replica's own. Statistics are always computed in the stable way.
    """

    def __init__(self) -> None:
        super().__init__("", dict(_DEFAULTS), set())

    @property
    def num_ipus(self) -> int:
        """The number of devices, which `auto_select_ipus` sets."""
        return int(self.auto_select_ipus)

    def note_instance(self, count: int, index: int) -> None:
        """Keeps the `count` of instances and this one's `index`; no line says so."""
        group = "experimental.multi_replica_distribution"
        self._values.update({f"{group}.process_count": count, f"{group}.process_index": index})

    def configure_ipu_system(self) -> None:
        """Makes these the options of this process, and logs what has no effect in one line."""
        global _configured
        _configured = self
        log_without_effect("IPUConfig", sorted(self._unused))
        if self.allow_recompute:
            tf.compat.v1.logging.info(
                "IPUConfig: allow_recompute recomputes the stages of pipelines. In other models "
                "wrap layers in tfdist.training.recompute."
            )
        esr = self.floating_point_behaviour.esr
        enable_stochastic_rounding(esr is not StochasticRoundingBehaviour.OFF)


_configured: IPUConfig | None = None


def configured() -> IPUConfig:
    """Returns the options of this process; the defaults before any are configured."""
    return IPUConfig() if _configured is None else _configured
