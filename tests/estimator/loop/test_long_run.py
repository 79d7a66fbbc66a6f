"""A long training takes as much memory, as many files and as much time a step as a short one."""

import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.processes

STEPS = 10_000
EVERY = 250  # Steps between checkpoints, summaries and log lines.


def _train(model_dir: str) -> dict[str, Any]:
    """Trains, and returns what a hook has measured ten times."""
    import gc
    import time

    import psutil
    import tensorflow as tf
    import tensorflow.compat.v1 as v1

    import tfdist.estimator as tfe

    def input_fn() -> tf.data.Dataset:
        return tf.data.Dataset.from_tensors((tf.ones([4, 2]), tf.ones([4, 1]))).repeat()

    def model_fn(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
        weight = v1.get_variable("weight", [2, 1])
        loss = tf.reduce_mean(tf.square(tf.matmul(features, weight) - labels))
        optimizer = v1.train.AdamOptimizer(0.01)
        step = v1.train.get_global_step()
        return tfe.EstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss, step))

    measured: dict[str, Any] = {"memory": [], "time": [], "ops": [], "objects": []}

    class Measure(v1.train.SessionRunHook):  # type: ignore[misc]
        def __init__(self) -> None:
            self.runs = 0

        def after_run(self, run_context: Any, run_values: Any) -> None:
            self.runs += 1
            if self.runs % (STEPS // 10) == 0:
                gc.collect()
                graph = run_context.session.graph
                measured["memory"].append(psutil.Process().memory_info().rss)
                measured["time"].append(time.monotonic())
                measured["ops"].append((len(graph.get_operations()), graph.finalized))
                measured["objects"].append(len(gc.get_objects()))

    config = tfe.RunConfig(
        model_dir,
        save_checkpoints_steps=EVERY,
        save_summary_steps=EVERY,
        log_step_count_steps=EVERY,
        keep_checkpoint_max=3,
        # A thread's pools of memory grow in the first hundred saves, and then no more.
        save_checkpoints_async=False,
    )
    estimator = tfe.Estimator(model_fn, config=config)
    estimator.train(input_fn, hooks=[Measure()], max_steps=STEPS)
    return measured


@pytest.fixture(scope="module")
def long_run(
    fake_cluster_server: Any, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], Path]:
    """The measurements of a hook during the run, in a process of its own, and the model_dir."""
    from tfdist.testing import FakeCluster

    model_dir = tmp_path_factory.mktemp("long")

    cluster = FakeCluster(fake_cluster_server)
    try:
        [measured] = cluster.run(_train, str(model_dir), engine="none", timeout_s=240)
    finally:
        cluster.close()
    return measured, model_dir


def test_memory_does_not_grow(long_run: tuple[dict[str, Any], Path]) -> None:
    measured, _ = long_run
    memory, objects = measured["memory"], measured["objects"]
    # Bytes over the 4,000 steps between the middle and the end: a leak of 500 a step would show.
    # Before, the system's pools of memory may still grow, and how far depends on other programs.
    assert min(memory[-2:]) - max(memory[3:5]) < 2e6, memory
    assert objects[-1] - objects[0] < 500


def test_the_graph_does_not_grow(long_run: tuple[dict[str, Any], Path]) -> None:
    measured, _ = long_run
    assert len(set(measured["ops"])) == 1
    assert measured["ops"][0][1]  # finalized


def test_steps_do_not_get_slower(long_run: tuple[dict[str, Any], Path]) -> None:
    times = long_run[0]["time"]
    durations = [later - earlier for earlier, later in pairwise(times)]
    # Loose: other programs may run on this machine.
    assert min(durations[-3:]) < 3 * min(durations[:3])


def test_only_the_kept_checkpoints_and_one_event_file_remain(
    long_run: tuple[dict[str, Any], Path],
) -> None:
    _, model_dir = long_run
    files = sorted(file for file in os.listdir(model_dir) if not file.endswith(".input"))
    kept = [STEPS - 2 * EVERY, STEPS - EVERY, STEPS]
    endings = ("data-00000-of-00001", "index", "meta")
    checkpoints = sorted(f"model.ckpt-{step}.{ending}" for step in kept for ending in endings)
    events = [file for file in files if file.startswith("events.out.tfevents.")]
    assert files == ["checkpoint", *events, "graph.pbtxt", *checkpoints]
    assert len(events) == 1
    # The graph once, then a few short lines every EVERY steps.
    graph = (model_dir / checkpoints[-1]).stat().st_size
    assert (model_dir / events[0]).stat().st_size < 5 * graph + 500 * STEPS // EVERY
