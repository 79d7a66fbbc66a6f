"""`ipu.config`: the device options of this process, as attributes of one object.

As in the original a process has one configuration: that of the last `configure_ipu_system`, or of
the last `IPURunConfig` with `ipu_options`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, ClassVar

import tensorflow as tf

from tfdist.cluster.tasks import checked_count
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
        """Returns ON for True and OFF for False."""
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


class _Group:
    """A group of options. A name that the original does not have, or another type, is refused."""

    _prefix: ClassVar[str] = ""
    # Functions of (name, value) that return the value to keep.
    _checks: ClassVar[Mapping[str, Callable[[str, Any], Any]]] = {}
    _without_effect: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, **defaults: Any) -> None:
        vars(self).update(defaults, _unused=set())

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._checks:
            near = difflib.get_close_matches(name, self._checks, 1)
            known = f"Did you mean {near[0]}?" if near else f"It has {', '.join(self._checks)}."
            raise AttributeError(f"IPUConfig has no option {self._prefix}{name}. {known}")
        vars(self)[name] = self._checks[name](self._prefix + name, value)
        if name in self._without_effect:
            vars(self)["_unused"].add(self._prefix + name)


class _UnusedGroup:
    """A group of options of which none has an effect: it takes and keeps any."""

    def __init__(self, name: str) -> None:
        vars(self).update(_name=name, _unused=set())

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return vars(self).setdefault(name, _UnusedGroup(f"{self._name}.{name}"))

    def __setattr__(self, name: str, value: Any) -> None:
        vars(self)[name] = value
        vars(self)["_unused"].add(f"{self._name}.{name}")

    def __setitem__(self, key: str, value: Any) -> None:
        vars(self)["_unused"].add(self._name)

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Takes `poplar_options.update(...)`."""
        vars(self)["_unused"].add(self._name)


def _unused_in(group: _Group | _UnusedGroup) -> set[str]:
    """Returns the names of the options that were assigned and have no effect."""
    inner = (one for one in vars(group).values() if isinstance(one, (_Group, _UnusedGroup)))
    return set(vars(group)["_unused"]).union(*map(_unused_in, inner))


class _FloatingPointBehaviour(_Group):
    """`floating_point_behaviour`.

    Attributes:
      esr: Whether the optimizers of `tfdist.training` round weights in float16 and bfloat16
        stochastically; True is ON, False is OFF. None, the default, is their own argument.
    """

    esr: StochasticRoundingBehaviour | None
    inv: bool
    div0: bool
    oflo: bool
    nanoo: bool
    set_all: bool
    _prefix = "floating_point_behaviour."
    _checks: ClassVar = {
        "esr": _rounding,
        **dict.fromkeys(("inv", "div0", "oflo", "nanoo", "set_all"), _flag),
    }
    _without_effect = frozenset({"inv", "div0", "oflo", "nanoo"})

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "set_all" and value:
            for one in ("inv", "div0", "oflo", "nanoo", "esr"):
                setattr(self, one, True)


class _ExperimentalNorms(_Group):
    """`norms.experimental`.

    Attributes:
      distributed_batch_norm_replica_group_size: The replicas that share a batch norm's statistics,
        in `tf.keras.layers.BatchNormalization` and `tf.layers.batch_normalization` of
        `tfdist.ipu.tensorflow` that are made from then on. 1 is each replica's own.
    """

    distributed_batch_norm_replica_group_size: int
    _prefix = "norms.experimental."
    _checks: ClassVar = {"distributed_batch_norm_replica_group_size": checked_count}


class _Norms(_Group):
    """`norms`. Statistics are always computed in the stable way."""

    use_stable_statistics: bool
    experimental: _ExperimentalNorms
    _prefix = "norms."
    _checks: ClassVar = {"use_stable_statistics": _flag}
    _without_effect = frozenset({"use_stable_statistics"})


def _any_value(name: str, value: Any) -> Any:
    return value


# The original's groups of options for an IPU and its compiler.
_UNUSED_GROUPS = (
    "compilation_options",
    "convolutions",
    "device_connection",
    "experimental",
    "gcl_poplar_options",
    "io_tiles",
    "ipu_model",
    "matmuls",
    "optimizations",
    "pooling",
    "scheduling",
    "slices",
    "verified_transfers",
)
_UNUSED_OPTIONS = ("select_ipus", "selection_order", "serialization_output_folder")


class IPUConfig(_Group):
    """The original's device options.

    The attributes below have an effect, once `configure_ipu_system` is called or `IPURunConfig`
    gets the options. The original's others are taken, and one line in the log says that they have
    none. A name that it does not have is an AttributeError, another type a TypeError or ValueError.

    Attributes:
      auto_select_ipus: The number of devices: one for each replica.
      allow_recompute: Whether the stages of an `IPUPipelineEstimatorSpec` are recomputed for the
        backward pass. In other models wrap layers in `tfdist.training.recompute`.
      floating_point_behaviour: `esr`: stochastic rounding of weights in half precision.
      norms: `experimental.distributed_batch_norm_replica_group_size`: the replicas that share
        statistics.
    """

    auto_select_ipus: int
    allow_recompute: bool
    floating_point_behaviour: _FloatingPointBehaviour
    norms: _Norms
    experimental: _UnusedGroup
    _checks: ClassVar = {
        "auto_select_ipus": lambda name, value: checked_count(f"IPUConfig: {name}", value),
        "allow_recompute": _flag,
        **dict.fromkeys((*_UNUSED_OPTIONS, *_UNUSED_GROUPS), _any_value),
    }
    _without_effect = frozenset({*_UNUSED_OPTIONS, *_UNUSED_GROUPS})

    def __init__(self) -> None:
        super().__init__(
            auto_select_ipus=1,
            allow_recompute=False,
            floating_point_behaviour=_FloatingPointBehaviour(esr=None),
            norms=_Norms(
                experimental=_ExperimentalNorms(distributed_batch_norm_replica_group_size=1)
            ),
            **{name: _UnusedGroup(name) for name in _UNUSED_GROUPS},
        )

    @property
    def num_ipus(self) -> int:
        """The number of devices, which `auto_select_ipus` sets."""
        return self.auto_select_ipus

    def configure_ipu_system(self) -> None:
        """Makes these the options of this process, and logs what has no effect in one line."""
        global _configured
        _configured = self
        unused = sorted(_unused_in(self))
        if unused:
            tf.compat.v1.logging.warning(
                "IPUConfig: no effect without an IPU: %s.", ", ".join(unused)
            )
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
