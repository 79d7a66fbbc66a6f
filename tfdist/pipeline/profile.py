"""Profiles a call of a pipelined model: TensorBoard's profile, and a timeline of its last step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.pipeline.program import Program
from tfdist.pipeline.settings import Settings
from tfdist.pipeline.timeline import TimedBox, Timeline
from tfdist.pipeline.timeline_files import write_timeline


def profiled_call(program: Program, arguments: Sequence[Any], settings: Settings) -> list[Any]:
    """Runs a call and writes its profile into the folder that the settings name.

    Returns:
      The call's outputs, flat.
    """
    assert settings.profile_dir is not None
    with tf.profiler.experimental.Profile(settings.profile_dir):
        outputs, times = program(arguments)
    assert times is not None
    timeline = timeline_of(program, times[-1], type(settings.execution_strategy).__name__)
    paths = write_timeline(timeline, settings.profile_dir)
    v1.logging.info("Profile of a call written: %s", ", ".join(str(path) for path in paths))
    return outputs


def timeline_of(program: Program, times: np.ndarray, title: str) -> Timeline:
    """Makes a timeline of the times of one iteration, [replicas, boxes, 2] in seconds."""
    boxes = [
        TimedBox(
            box=box,
            device=program.devices[replica][box.stage].removeprefix("/device:"),
            replica=replica,
            start_s=float(start),
            end_s=float(end),
        )
        for replica, of_replica in enumerate(times)
        for box, (start, end) in zip(program.boxes, of_replica, strict=True)
    ]
    return Timeline(boxes, [stage.name for stage in program.traced.stages], title)
