"""The delay of a training by a save of 1 GiB: beside the training, waiting for it, in memory.

    python scripts/benchmarks/saves.py                        tfdist, and a copy by NumPy
    SAVES_TORCH=... SAVES_ORBAX=... (Pythons with PyTorch, and with JAX and Orbax)

Each training has 16 values of 64 MiB and saves once, in its middle; tfdist also before the first
step, and that checkpoint is written by then, as a save waits for the one before. The delay of the
step is what the longest step from the save on takes longer than the median one; "save" is that of
the step which saves. The delay of the training is what all steps until the file is there take
longer together: a write also takes processor time. The copy is one of as many bytes by NumPy, in
the same process after the training: how long new memory takes differs between processes and over
time.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

NUM_VALUES, NUM_ELEMENTS = 16, 16 << 20
STEPS, SAVE_AFTER = 150, 75  # The next save is the last one.
ROUNDS = 3


def delays(times_s: list[float], first: int, last: int) -> dict[str, float]:
    """Returns the delays in seconds by a save that steps `first` to `last` ran beside."""
    usual_s = statistics.median(times_s[5:first])
    during = times_s[first : last + 1]
    return {
        "save": during[0] - usual_s,
        "step": max(during) - usual_s,
        "training": sum(during) - usual_s * len(during),
        "usual": usual_s,
    }


def copy_s() -> float:
    """Returns the median time of a copy of all values in memory by NumPy."""
    import numpy as np

    values = [np.full(NUM_ELEMENTS, i, np.float32) for i in range(NUM_VALUES)]
    times_s = []
    for _ in range(5):
        start_s = time.perf_counter()
        copied = [value.copy() for value in values]
        times_s.append(time.perf_counter() - start_s)
        del copied
    return statistics.median(times_s)


def tfdist(folder: str, *, in_background: bool = True, in_memory: bool = False) -> dict[str, float]:
    """Trains with the Estimator; a step changes all values. `in_memory` keeps snapshots only."""
    import tensorflow as tf
    import tensorflow.compat.v1 as v1

    import tfdist.estimator as tfe
    from tfdist.process import snapshot_folders

    written_to = Path(folder)
    if in_memory:
        run = os.environ["TFDIST_RUN"] = snapshot_folders.new_run()
        written_to = snapshot_folders.folder_of_host(run) / snapshot_folders.name_for(folder)

    class Times(tfe.SessionRunHook):  # type: ignore[misc]
        ends_s: list[float]
        copy_s = 0.0
        written = 0

        def after_create_session(self, session: Any, coord: Any) -> None:
            self.ends_s = [time.perf_counter()]

        def before_run(self, run_context: Any) -> None:
            if len(self.ends_s) == SAVE_AFTER // 2:
                for thread in threading.enumerate():
                    if thread.name == "save":
                        thread.join()
            if not self.written and (written_to / f"model.ckpt-{SAVE_AFTER}.index").exists():
                self.written = len(self.ends_s)
            self.ends_s.append(time.perf_counter())

        def end(self, session: Any) -> None:  # After the last save.
            self.copy_s = copy_s()

    def model_fn(features: Any, mode: str) -> tfe.EstimatorSpec:
        values = [
            v1.get_variable(f"value_{i}", [NUM_ELEMENTS], initializer=v1.zeros_initializer())
            for i in range(NUM_VALUES)
        ]
        loss = tf.add_n([tf.reduce_mean(value) for value in values]) * features
        step = v1.train.GradientDescentOptimizer(0.1).minimize(loss, v1.train.get_global_step())
        return tfe.EstimatorSpec(mode, loss=loss, train_op=step)

    times = Times()
    config = tfe.RunConfig(
        save_checkpoints_steps=None if in_memory else SAVE_AFTER,
        save_snapshot_steps=SAVE_AFTER if in_memory else 0,
        save_checkpoints_async=in_background,
        keep_checkpoint_max=1,
    )
    tfe.Estimator(model_fn, folder, config).train(
        lambda: tf.data.Dataset.from_tensors(1.0).repeat(), steps=STEPS, hooks=[times]
    )
    steps_s = [b - a for a, b in zip(times.ends_s, times.ends_s[1:], strict=False)]
    return {**delays(steps_s, SAVE_AFTER, times.written), "copy": times.copy_s}


def loop(step: Callable[[], Any], save: Callable[[], Callable[[], bool]]) -> dict[str, float]:
    """Runs steps and one save, which returns a function that says whether it is written."""
    times_s: list[float] = []
    is_written: Callable[[], bool] = lambda: False  # noqa: E731
    last = 0
    for number in range(STEPS):
        start_s = time.perf_counter()
        if number == SAVE_AFTER:
            is_written = save()
        step()
        times_s.append(time.perf_counter() - start_s)
        if not last and is_written():
            last = number
    return delays(times_s, SAVE_AFTER, last or STEPS - 1)


def torch(folder: str) -> dict[str, float]:
    """Changes all values in each step; `torch.distributed.checkpoint.async_save`."""
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511")
    dist.init_process_group("gloo", rank=0, world_size=1)
    values = {str(i): torch.zeros(NUM_ELEMENTS) for i in range(NUM_VALUES)}

    def step() -> None:
        for value in values.values():
            value.add_(0.1)

    def save() -> Callable[[], bool]:
        return dcp.async_save(values, checkpoint_id=os.path.join(folder, "torch")).done

    return {**loop(step, save), "copy": copy_s()}


def orbax(folder: str) -> dict[str, float]:
    """Changes all values in each step; `orbax.checkpoint.AsyncCheckpointer`."""
    import jax
    import orbax.checkpoint as ocp

    values = {str(i): jax.numpy.zeros(NUM_ELEMENTS) for i in range(NUM_VALUES)}
    change = jax.jit(lambda old: {name: value + 0.1 for name, value in old.items()})
    checkpointer = ocp.AsyncCheckpointer(ocp.StandardCheckpointHandler())
    path = os.path.join(folder, "orbax")

    def step() -> None:
        nonlocal values
        values = jax.block_until_ready(change(values))

    def save() -> Callable[[], bool]:
        checkpointer.save(path, args=ocp.args.StandardSave(values))
        return lambda: os.path.exists(path)

    measured = loop(step, save)
    checkpointer.wait_until_finished()
    return {**measured, "copy": copy_s()}


WAYS: dict[str, Callable[[str], dict[str, float]]] = {
    "tfdist": tfdist,
    "tfdist, save_checkpoints_async=False": partial(tfdist, in_background=False),
    "tfdist, a snapshot in memory": partial(tfdist, in_memory=True),
    "PyTorch, async_save": torch,
    "Orbax, AsyncCheckpointer": orbax,
}


def main() -> None:
    """Prints a table: medians and extremes over the rounds, each in a process of its own."""
    if len(sys.argv) > 1:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(WAYS[sys.argv[1]](folder)))
        return
    pythons = {"PyTorch": os.environ.get("SAVES_TORCH"), "Orbax": os.environ.get("SAVES_ORBAX")}
    results: dict[str, list[dict[str, float]]] = {}
    for _ in range(ROUNDS):
        for way in WAYS:
            python = pythons.get(way.split(",")[0], sys.executable)
            if python is not None:
                command = [python, str(Path(__file__).resolve()), way]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                results.setdefault(way, []).append(json.loads(done.stdout.splitlines()[-1]))
    for way, measured in results.items():
        for name in ("save", "step", "training", "usual", "copy"):
            values = sorted(one[name] for one in measured)
            middle = statistics.median(values)
            print(f"{way}: {name} {middle:.2f} s ({values[0]:.2f} to {values[-1]:.2f})")
        ratios = sorted(one["step"] / one["copy"] for one in measured)
        print(
            f"{way}: {statistics.median(ratios):.2f} copies ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        )


if __name__ == "__main__":
    main()
