"""Settings: the values of `Options`, with checks of each value and of all values together."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from tfdist.cluster.instance_variables import nearest_multiples
from tfdist.pipeline.stages import (
    ExecutionStrategy,
    PipelinedExecution,
    ShardedExecution,
    quoted,
    value_and_type,
)
from tfdist.process.text import listed

Reduction = Literal["mean", "sum"]
OutputMode = Literal["final", "all", "sum", "every_n"]
OptimizerState = Literal["device", "host"]

_MAX_SEED = 2**63 - 1  # TensorFlow keeps a seed in 64 bits.


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a model's run, as set with `Options`.

    `device_iterations`, `gradient_accumulation`, `accumulation_reduction`, `output_mode`,
    `replication_factor`, `optimizer_state`, `recomputation`, `random_seed`, `show_progress_bar` and
    `execution_strategy` are described by its methods of these names.

    Attributes:
      every: The n of the output mode "every_n", in micro-batches of a replica.
      profile_dir: Folder for profiles of the calls; None writes no profiles.

    Raises:
      TypeError: If a value has the wrong type.
      ValueError: If it is not allowed.
    """

    device_iterations: int = 1
    gradient_accumulation: int = 1
    accumulation_reduction: Reduction = "mean"
    output_mode: OutputMode | None = None
    every: int | None = None
    replication_factor: int = 1
    optimizer_state: OptimizerState = "device"
    recomputation: bool = False
    random_seed: int | None = None
    profile_dir: str | None = None
    show_progress_bar: bool = True
    execution_strategy: ExecutionStrategy = field(default_factory=PipelinedExecution)

    def __post_init__(self) -> None:
        for name in ("device_iterations", "gradient_accumulation", "replication_factor"):
            check_count(name, getattr(self, name))
        _check_word("accumulation_reduction", self.accumulation_reduction, get_args(Reduction))
        _check_word("optimizer_state", self.optimizer_state, get_args(OptimizerState))
        if self.output_mode is not None:
            _check_word("output_mode", self.output_mode, get_args(OutputMode))
        _check_every(self.output_mode, self.every)
        for name in ("recomputation", "show_progress_bar"):
            check_bool(name, getattr(self, name))
        _check_seed(self.random_seed)
        if self.profile_dir is not None:
            object.__setattr__(self, "profile_dir", _directory(self.profile_dir))
        if not isinstance(self.execution_strategy, (PipelinedExecution, ShardedExecution)):
            raise TypeError(
                "execution_strategy must be a PipelinedExecution or a ShardedExecution, got "
                f'{value_and_type(self.execution_strategy)}. Write PipelinedExecution("B1", "B2").'
            )

    @property
    def micro_batches_per_replica(self) -> int:
        """Number of micro-batches that a replica computes in one call."""
        return self.device_iterations * self.gradient_accumulation

    @property
    def micro_batches_per_call(self) -> int:
        """Number of micro-batches of all replicas in one call."""
        return self.micro_batches_per_replica * self.replication_factor

    def output_mode_for(self, training: bool) -> OutputMode:
        """Returns the output mode; in place of None the default of `training`, or of inference."""
        return self.output_mode or ("final" if training else "all")

    def check_together(self) -> None:
        """Refuses values that contradict each other. Must be called when all values are set.

        Raises:
          ValueError: If the micro-batches do not split into groups of `every`.
        """
        count = self.micro_batches_per_replica
        if self.every is not None and count % self.every:
            fix = listed(nearest_multiples(count, self.every), "or")
            raise ValueError(
                f'output_mode("every_n", every={self.every}) does not divide the {count} '
                f"micro-batches of a call (device_iterations {self.device_iterations} x "
                f"gradient_accumulation {self.gradient_accumulation}). Make them {fix}, or "
                "write another every."
            )

    def changes(self) -> dict[str, Any]:
        """Returns the values that differ from the defaults, by name, in the order above."""
        default = Settings()
        values = {setting.name: getattr(self, setting.name) for setting in fields(self)}
        return {name: value for name, value in values.items() if value != getattr(default, name)}


def check_count(name: str, value: Any) -> None:
    """Refuses a value that is not an integer (TypeError) or is below 1 (ValueError)."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an integer, got {value_and_type(value)}.")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}.")


def _check_word(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        words = listed(map(quoted, allowed), "or")
        raise ValueError(f"{name} must be {words}, got {value!r}.")


def check_bool(name: str, value: Any) -> None:
    """Refuses a value that is neither True nor False (TypeError)."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value_and_type(value)}.")


def _check_every(mode: OutputMode | None, every: Any) -> None:
    if mode == "every_n" and every is None:
        raise ValueError(
            'output_mode "every_n" needs a number. Write output_mode("every_n", every=2).'
        )
    if mode != "every_n" and every is not None:
        raise ValueError(
            f'every={every!r} means something in the output mode "every_n" only, got {mode!r}. '
            f'Write output_mode("every_n", every={every!r}), or leave it out.'
        )
    if every is not None:
        check_count("every", every)


def _check_seed(seed: Any) -> None:
    if seed is None:
        return
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise TypeError(
            f"random_seed must be an integer, got {value_and_type(seed)}. Write random_seed(0)."
        )
    if not 0 <= seed <= _MAX_SEED:
        raise ValueError(f"random_seed must be from 0 to 2**63 - 1, got {seed}.")


def _directory(path: Any) -> str:
    written = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(written, str):
        raise TypeError(
            f"the profile's folder must be a str or a path, got {value_and_type(path)}."
        )
    if not written:
        raise ValueError('the profile needs a folder, got "". Write enable_profiling("profile").')
    return written
