"""What the Estimator's methods are given: checked, before anything is built."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import tensorflow.compat.v1 as v1

from tfdist.estimator.run_config import RunConfig


def decide_model_dir(model_dir: Any, config: RunConfig) -> str:
    """Takes the argument, else the config's folder, else a fresh one; ValueError if they differ."""
    given = os.fspath(model_dir) if model_dir else None
    if given and config.model_dir and given != config.model_dir:
        raise ValueError(
            "`model_dir` are set both in constructor and `RunConfig`, but with different values. "
            f"In constructor: '{given}', in `RunConfig`: '{config.model_dir}'. Give one of them."
        )
    chosen = given or config.model_dir
    if not chosen:
        chosen = tempfile.mkdtemp()
        v1.logging.warning("Using temporary folder as model directory: %s", chosen)
    return str(chosen)


def check_positive(name: str, value: int | None) -> None:
    """Refuses a number of steps below 1; ValueError."""
    if value is not None and value <= 0:
        raise ValueError(f"Must specify {name} > 0, given: {value}.")


def check_multiple(steps: int | None, loops: int) -> None:
    """Refuses a number of steps that does not fill its last loop; ValueError."""
    if steps is not None and steps % loops:
        below = steps - steps % loops
        nearest = f"{below} and {below + loops}" if below else f"{loops}"
        raise ValueError(
            f"steps ({steps}) must be a multiple of iterations_per_loop ({loops}). Nearest: "
            f"{nearest}."
        )


def checked_listeners(listeners: Any) -> tuple[v1.train.CheckpointSaverListener, ...]:
    """Makes a tuple of checkpoint listeners; TypeError for anything else."""
    listeners = tuple(listeners or ())
    for listener in listeners:
        if not isinstance(listener, v1.train.CheckpointSaverListener):
            raise TypeError(
                f"saving_listeners must be a list of CheckpointSaverListener, given: {listener!r}"
            )
    return listeners
