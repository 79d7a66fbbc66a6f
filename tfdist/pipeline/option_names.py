"""What to write in place of an option name that `Options` does not have.

The names on the left are PopTorch's, which people bring along.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping

_OURS: Mapping[str, str] = {
    "deviceIterations": "device_iterations(10)",
    "replicationFactor": "replication_factor(2)",
    "outputMode": 'output_mode("all")',
    "setExecutionStrategy": "execution_strategy(strategy)",
    "randomSeed": "random_seed(0)",
    "enableProfiling": "enable_profiling(directory)",
    "anchorMode": 'output_mode("all")',
    "showCompilationProgressBar": "show_progress_bar(True)",
}

_GROUPS: Mapping[str, str] = {
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
}

_ELSEWHERE: Mapping[str, str] = {
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

_NOTHING_TO_SET: frozenset[str] = frozenset(
    {
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
    }
)


def advise(name: str, setters: Collection[str]) -> str:
    """Returns what to do instead, in a sentence or two.

    Args:
      name: The name that `Options` does not have.
      setters: The names that it has.
    """
    if name in _OURS:
        return f"Write options.{_OURS[name]}."
    if name in _GROUPS:
        return _GROUPS[name]
    if name in _ELSEWHERE:
        return _ELSEWHERE[name]
    if name in _NOTHING_TO_SET:
        return "There is nothing to set: it has no meaning on GPUs and CPUs."
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    near = difflib.get_close_matches(words.removeprefix("set_"), setters, n=1)
    if near:
        return f"Did you mean options.{near[0]}?"
    return f"It has {', '.join(sorted(setters))}."
