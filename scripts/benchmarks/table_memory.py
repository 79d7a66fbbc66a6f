"""Measures the memory of a worker that trains a large table with Keras 3's fit and Adam.

    tfdist run --num-instances 2 -- scripts/benchmarks/table_memory.py divided|whole
        [--rows 4194304] [--width 64] [--steps 20] [--limit-mib 2048]

Each worker prints a JSON line: its most memory (MiB) before the table is made, once it is made, and
at the end. Adam holds three times the table, which has 1 GiB by default. --limit-mib puts each
worker into a control group of its own with so much memory, which needs root.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
from pathlib import Path
from typing import Any

BATCH_SIZE, IDS = 512, 16  # rows of all workers a step, and the ids in each
GROUPS = Path("/sys/fs/cgroup")


def main() -> None:
    """Reads the arguments, trains, and prints."""
    parser = argparse.ArgumentParser(description="Measure the memory that a large table takes.")
    parser.add_argument("table", choices=("divided", "whole"))
    parser.add_argument("--rows", type=int, default=4 << 20, help="rows of the table")
    parser.add_argument("--width", type=int, default=64, help="floats of a row")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--limit-mib", type=int, help="memory of a worker's control group")
    arguments = parser.parse_args()
    if arguments.limit_mib:
        run_in_group(arguments.limit_mib << 20)  # Before TensorFlow is imported.
    print(json.dumps(train(arguments)), flush=True)


def train(arguments: argparse.Namespace) -> dict[str, Any]:
    """Trains random labels of random ids; returns the memory, and the last loss."""
    import keras
    import numpy as np
    import tensorflow as tf

    from tfdist.strategies import strategy_for_run

    def divide(shape: Any, dtype: Any) -> list[int]:
        is_table = arguments.table == "divided" and shape[0] == arguments.rows
        return [1 + is_table, *[1] * (len(shape) - 1)]

    strategy = strategy_for_run(variable_partitioner=divide)
    started = peak_mib()
    keras.utils.set_random_seed(1)
    with strategy.scope():
        embedding = keras.layers.Embedding(arguments.rows, arguments.width)
        layers = [embedding, keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input([IDS], dtype="int64"), *layers])
        model.compile("adam", "mse")
    made = peak_mib()
    rng = np.random.RandomState(0)
    count = BATCH_SIZE * arguments.steps
    ids = rng.randint(0, arguments.rows, (count, IDS))
    labels = rng.rand(count, 1).astype(np.float32)
    dataset = tf.data.Dataset.from_tensor_slices((ids, labels)).batch(BATCH_SIZE)
    history = model.fit(dataset, verbose=0)
    return {
        "worker": int(strategy.extended.collectives.worker_index),
        "before_mib": started,
        "made_mib": made,
        "end_mib": peak_mib(),
        "loss": round(history.history["loss"][-1], 6),
    }


def peak_mib() -> int:
    """Returns the most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def run_in_group(limit_bytes: int) -> None:
    """Goes on in a child, in a control group with a limit; the parent ends as the child does."""
    is_v1 = (GROUPS / "memory").is_dir()
    group = GROUPS / ("memory" if is_v1 else "") / f"table-memory-{os.getpid()}"
    group.mkdir()
    name = "memory.limit_in_bytes" if is_v1 else "memory.max"
    (group / name).write_text(str(limit_bytes))
    child = os.fork()
    if child == 0:
        (group / "cgroup.procs").write_text(str(os.getpid()))
        return
    signal.signal(signal.SIGTERM, lambda number, frame: os.kill(child, number))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    group.rmdir()
    if code == -signal.SIGKILL:
        print(f"The worker was ended: it needs more than {limit_bytes >> 20} MiB.", flush=True)
    os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
