"""Options of a pipelined model, written as a chain of calls.

PopTorch has more options. `ADVICE` has the replacements.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from tfdist.pipeline.settings import OptimizerState, OutputMode, Reduction, Settings
from tfdist.pipeline.stages import REPR_WIDTH, ExecutionStrategy, quoted

# Setters with another name than their setting.
_SETTER_OF = {"profile_dir": "enable_profiling"}

# PopTorch's names, and two of `Settings` that are no setters -> what to write instead.
ADVICE: Mapping[str, str] = {
    "deviceIterations": "Write options.device_iterations(10).",
    "replicationFactor": "Write options.replication_factor(2).",
    "outputMode": 'Write options.output_mode("all").',
    "setExecutionStrategy": "Write options.execution_strategy(strategy).",
    "randomSeed": "Write options.random_seed(0).",
    "enableProfiling": "Write options.enable_profiling(directory).",
    "anchorMode": 'Write options.output_mode("all").',
    "showCompilationProgressBar": "Write options.show_progress_bar(True).",
    # Groups of options.
    "Training": (
        "Write options.gradient_accumulation(10) for gradientAccumulation and "
        'options.accumulation_reduction("mean") for accumulationAndReplicationReductionType. '
        "The rest of the group has nothing to set here."
    ),
    "TensorLocations": (
        'Write options.optimizer_state("host") for setOptimizerLocation. Weights, activations and '
        "accumulated gradients are always on the device."
    ),
    "Precision": "There is nothing to set: the model's own dtypes and mixed precision hold.",
    "Distributed": (
        "There is nothing to set: several workers are `tfdist run` and a strategy of "
        "tfdist.strategies."
    ),
    "Jit": "There is nothing to set: TensorFlow traces the model.",
    "_Popart": "Write options.recomputation(True) for autoRecomputation; the rest is nothing here.",
    # What is elsewhere.
    "anchorTensor": "Return the tensor from the model's forward pass instead.",
    "inputReplicaGrouping": "There is nothing to set: every replica has micro-batches of its own.",
    "broadcastBuffers": "There is nothing to set: the replicas share the variables.",
    "useIpuId": "Name the devices in the stages: Stage(...).device(0).",
    "useIpuModel": "Call tfdist.pipeline.set_cpu_devices(4) to compute on CPUs.",
    "useOfflineIpuTarget": "Call tfdist.pipeline.set_cpu_devices(4) to compute on CPUs.",
    "enableSyntheticData": "Give the model a dataset of random numbers instead.",
    "loadFromFile": "Write the options in the program, say in a function that makes them.",
    "toDict": "Read options.settings instead.",
    "profile_dir": "Write options.enable_profiling(directory). To read: settings.profile_dir.",
    "every": 'Write options.output_mode("every_n", every=2). To read: settings.every.',
}

_MEANINGLESS = [
    "autoRoundNumIPUs",
    "connectionType",
    "enableExecutableCaching",
    "enableStableNorm",
    "logCycleCount",
    "logDir",
    "maxRepeatLogs",
    "modelName",
    "relaxOptimizerAttributesChecks",
    "setAvailableMemoryProportion",
    "syncPattern",
]


class Options:
    """Options of a model's run: `Options().device_iterations(10).gradient_accumulation(10)`.

    Every setter checks its value at once and returns the options. The first model or DataLoader
    that uses the options freezes them; `clone` returns a copy that can be changed.

    Attributes:
      settings: The current values.
    """

    _settings: Settings
    _frozen_by: str | None

    def __init__(self) -> None:
        vars(self).update(_settings=Settings(), _frozen_by=None)

    @property
    def settings(self) -> Settings:
        return self._settings

    def device_iterations(self, number: int) -> Options:
        """Sets the `number` of weight updates in one call, or in inference of micro-batches."""
        return self._set(device_iterations=number)

    def gradient_accumulation(self, number: int) -> Options:
        """Sets the `number` of micro-batches in one weight update; must be 1 in inference."""
        return self._set(gradient_accumulation=number)

    def accumulation_reduction(self, reduction: Reduction) -> Options:
        """Sets the `reduction` of micro-batches' and replicas' gradients: "mean" or "sum"."""
        return self._set(accumulation_reduction=reduction)

    def output_mode(self, mode: OutputMode | None, *, every: int | None = None) -> Options:
        """Sets the micro-batches with outputs that a call returns.

        Args:
          mode: The last one ("final"), "all", each n-th one ("every_n"), or the "sum" of all
            outputs; None is "final" in training and "all" in inference.
          every: For "every_n" only: 3 selects a replica's third micro-batch, its sixth, and so on.
            Must divide device_iterations x gradient_accumulation.
        """
        return self._set(output_mode=mode, every=every)

    def replication_factor(self, number: int) -> Options:
        """Sets the `number` of copies of the model in this process, each on separate devices."""
        return self._set(replication_factor=number)

    def optimizer_state(self, place: OptimizerState) -> Options:
        """Sets the `place` of the optimizer's slots: "device" or "host"."""
        return self._set(optimizer_state=place)

    def recomputation(self, enabled: bool) -> Options:
        """Drops activations and computes them again for the backward pass, if `enabled`."""
        return self._set(recomputation=enabled)

    def random_seed(self, seed: int | None) -> Options:
        """Sets the `seed` of the model's random numbers; None leaves it to TensorFlow."""
        return self._set(random_seed=seed)

    def enable_profiling(self, directory: str | os.PathLike[str]) -> Options:
        """Sets the `directory` into which calls write profiles."""
        return self._set(profile_dir=directory)

    def show_progress_bar(self, shown: bool) -> Options:
        """Sets whether the progress of building the graph is `shown` in the first call."""
        return self._set(show_progress_bar=shown)

    def execution_strategy(self, strategy: ExecutionStrategy) -> Options:
        """Sets the stages and their schedule: the `strategy`, pipelined or sharded."""
        return self._set(execution_strategy=strategy)

    def clone(self) -> Options:
        """Returns a copy that can be changed."""
        copy = Options()
        vars(copy)["_settings"] = self._settings
        return copy

    def freeze(self, user: str) -> Settings:
        """Checks the settings together, refuses all later changes, and returns the settings.

        The message of a later change names the `user` of the options, such as "a DataLoader".

        Raises:
          ValueError: If settings contradict each other.
        """
        self._settings.check_together()
        if self._frozen_by is None:
            vars(self)["_frozen_by"] = user
        return self._settings

    def _set(self, **changes: Any) -> Options:
        if self._frozen_by is not None:
            call = ".".join(_calls(changes))
            raise AttributeError(
                f"these options are in use by {self._frozen_by} and cannot change. "
                f"Write options.clone().{call}."
            )
        vars(self)["_settings"] = dataclasses.replace(self._settings, **changes)
        return self

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _SETTERS:
            raise AttributeError(f"options are set by calls. Write options.{name}({value!r}).")
        raise AttributeError(f"Options has no {quoted(name)}. {_advise(name)}")

    if not TYPE_CHECKING:  # A type checker reports unknown names itself.

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(f"Options has no {quoted(name)}. {_advise(name)}")

    def __eq__(self, other: object) -> bool:
        return self._settings == other._settings if isinstance(other, Options) else NotImplemented

    def __repr__(self) -> str:
        calls = _calls(self._settings.changes())
        line = ".".join(["Options()", *calls])
        if len(line) <= REPR_WIDTH and "\n" not in line:
            return line
        lines = "\n".join(["Options()", *(f".{call}" for call in calls)])
        return f"(\n{textwrap.indent(lines, '    ')}\n)"


_SETTERS = frozenset(
    _SETTER_OF.get(field.name, field.name)
    for field in dataclasses.fields(Settings)
    if field.name != "every"
)


def _calls(changes: dict[str, Any]) -> list[str]:
    """Returns the calls that make these changes, as they are written in a program."""
    calls = []
    for name, value in changes.items():
        shown = quoted(value) if isinstance(value, str) else repr(value)
        if name == "output_mode" and changes.get("every") is not None:
            shown += f", every={changes['every']}"
        if name != "every":
            calls.append(f"{_SETTER_OF.get(name, name)}({shown})")
    return calls


def _advise(name: str) -> str:
    """Returns advice on an unknown name, one or two sentences long."""
    if name in ADVICE:
        return ADVICE[name]
    if name in _MEANINGLESS:
        return "There is nothing to set: it has no meaning on GPUs and CPUs."
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    near = difflib.get_close_matches(words.removeprefix("set_"), _SETTERS, n=1)
    if near:
        return f"Did you mean options.{near[0]}?"
    return f"It has {', '.join(sorted(_SETTERS))}."
