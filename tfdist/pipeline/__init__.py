"""One model over several devices: blocks, stages, pipelined execution.

A model that is too large for one device is cut into blocks, blocks form stages, each stage has a
device, and micro-batches flow through the stages so that all devices work at once.
"""

from tfdist.pipeline.blocks import Block, begin_block, remove_blocks
from tfdist.pipeline.data_loader import DataLoader
from tfdist.pipeline.devices import compute_devices, set_cpu_devices
from tfdist.pipeline.inference_model import InferenceModel, inference_model
from tfdist.pipeline.options import Options
from tfdist.pipeline.settings import Settings
from tfdist.pipeline.stages import AutoStage, PipelinedExecution, ShardedExecution, Stage
from tfdist.pipeline.training_model import TrainingModel, training_model

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
