"""Pipelined execution of one model over several devices: blocks, stages, schedules.

A model that is too large for one device is cut into blocks. Blocks form stages, and each stage has
a device. Micro-batches pass through the stages, so that all devices work at the same time.

Names are imported at their first use: an Estimator imports this package and starts faster this way.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfdist.pipeline.blocks import Block, begin_block, remove_blocks
    from tfdist.pipeline.data_loader import DataLoader
    from tfdist.pipeline.devices import compute_devices, set_cpu_devices
    from tfdist.pipeline.models import (
        InferenceModel,
        TrainingModel,
        inference_model,
        training_model,
    )
    from tfdist.pipeline.options import Options
    from tfdist.pipeline.settings import Settings
    from tfdist.pipeline.stages import AutoStage, PipelinedExecution, ShardedExecution, Stage

__all__ = [
    "AutoStage",
    "Block",
    "DataLoader",
    "InferenceModel",
    "Options",
    "PipelinedExecution",
    "Settings",
    "ShardedExecution",
    "Stage",
    "TrainingModel",
    "begin_block",
    "compute_devices",
    "inference_model",
    "remove_blocks",
    "set_cpu_devices",
    "training_model",
]

_MODULES = {
    "blocks": ("Block", "begin_block", "remove_blocks"),
    "data_loader": ("DataLoader",),
    "devices": ("compute_devices", "set_cpu_devices"),
    "models": ("InferenceModel", "TrainingModel", "inference_model", "training_model"),
    "options": ("Options",),
    "settings": ("Settings",),
    "stages": ("AutoStage", "PipelinedExecution", "ShardedExecution", "Stage"),
}
_HOMES = {name: f"{__name__}.{module}" for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*__all__]
