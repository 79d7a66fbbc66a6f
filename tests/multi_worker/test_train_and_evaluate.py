"""The part of each task of a cluster in train_and_evaluate."""

import json
import re
import textwrap
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tfdist.testing import ReservedPorts

PROGRAM = textwrap.dedent(
    """
    import sys

    import numpy as np
    import tensorflow as tf

    import tfdist.estimator as tfe
    from tfdist.strategies import MultiWorkerStrategy

    tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.INFO)

    def input_fn(mode, input_context=None):
        values = np.arange(8, dtype=np.float32).reshape(8, 1)
        dataset = tf.data.Dataset.from_tensor_slices((values, 2 * values)).batch(4)
        if mode == tfe.ModeKeys.TRAIN:
            assert input_context.num_input_pipelines == 2, input_context
            print("input", input_context.input_pipeline_id, flush=True)
            dataset = dataset.repeat()
        return dataset

    def receiver_fn():
        values = tf.compat.v1.placeholder(tf.float32, [None, 1])
        return tfe.export.TensorServingInputReceiver(values, values)

    def model_fn(features, labels, mode):
        weight = tf.compat.v1.get_variable("weight", [1, 1])
        if mode == tfe.ModeKeys.PREDICT:
            return tfe.EstimatorSpec(mode, predictions=features @ weight)
        loss = tf.reduce_mean(tf.square(features @ weight - labels))
        if mode == tfe.ModeKeys.EVAL:
            return tfe.EstimatorSpec(mode, loss=loss)
        optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.01)
        [(gradient, _)] = optimizer.compute_gradients(loss)
        apply = lambda g: optimizer.apply_gradients([(g, weight)])
        return tfe.EstimatorSpec(mode, loss=loss, host_call=(apply, [gradient]))

    strategy = MultiWorkerStrategy()
    config = tfe.RunConfig(train_distribute=strategy, save_checkpoints_steps=10)
    estimator = tfe.Estimator(model_fn, sys.argv[1], config)
    stop = tfe.experimental.stop_if_lower_hook(estimator, "loss", -1.0)
    results = tfe.train_and_evaluate(
        estimator,
        tfe.TrainSpec(input_fn, max_steps=30, hooks=[stop]),
        tfe.EvalSpec(
            input_fn,
            steps=None,
            exporters=[
                tfe.LatestExporter("latest", receiver_fn, exports_to_keep=1),
                tfe.FinalExporter("final", receiver_fn),
                tfe.BestExporter("best", receiver_fn),
            ],
            start_delay_secs=0,
            throttle_secs=0,
        ),
    )
    print("metrics", *results, flush=True)
    """
)


@pytest.fixture
def program(tmp_path: Path) -> list[str]:
    """A script and its model_dir."""
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    return [str(script), str(tmp_path / "model")]


def _exported(program: list[str], exporter: str) -> list[str]:
    """Lists the files of the only export of an exporter."""
    [folder] = Path(program[1], "export", exporter).iterdir()
    return sorted(file.name for file in folder.iterdir())


def test_without_an_evaluator_worker_0_evaluates_once_and_the_others_wait_for_its_metrics(
    fake_cluster: Any, program: list[str]
) -> None:
    workers = fake_cluster.run_script(program, forked=True)
    assert "worker 0 evaluates once, after the last step" in workers[0].stderr
    assert workers[0].stderr.count("Saving dict for global step") == 1
    assert "Saving dict for global step" not in workers[1].stderr
    assert "Waiting for worker 0's evaluation" in workers[1].stderr
    for index, worker in enumerate(workers):
        assert f"input {index}" in worker.stdout
        assert "'global_step': np.int64(30)" in worker.stdout
    metrics = [re.findall("^metrics .*$", worker.stdout, re.MULTILINE) for worker in workers]
    assert len(metrics[0]) == 1 and metrics[0] == metrics[1]  # Types and paths as well.
    assert workers[0].stderr.count("early stopping and BestExporter will see no evaluation") == 1
    assert "will see no evaluation" not in workers[1].stderr
    for exporter in ("latest", "final"):
        assert _exported(program, exporter) == ["saved_model.pb", "variables"]


@pytest.fixture
def run_tasks(fake_cluster: Any, program: list[str]) -> Callable[..., list[Any]]:
    """Runs the program as one task of each type, of which the last may be an evaluator."""

    def run_tasks(*types: str) -> list[Any]:
        with ReservedPorts(2) as reserved, ExitStack() as stack:
            # The evaluator is listed so that the chief knows of it; no task calls it.
            ports = (*reserved.ports, 1)
            cluster = {
                kind: [f"localhost:{port}"] for kind, port in zip(types, ports, strict=False)
            }
            runs = []
            for kind in types:
                tf_config = {"cluster": cluster, "task": {"type": kind, "index": 0}}
                options = {"engine": "none", "env": {"TF_CONFIG": json.dumps(tf_config)}}
                run = fake_cluster.start_script(program, forked=True, **options)
                runs.append(stack.enter_context(run))
            return [run.wait(120)[0] for run in runs]

    return run_tasks


def test_chief_worker_and_evaluator_each_do_their_part(
    run_tasks: Any, program: list[str], tmp_path: Path
) -> None:
    of_chief, of_worker, of_evaluator = run_tasks("chief", "worker", "evaluator")
    assert "input 0" in of_chief.stdout
    assert "input 1" in of_worker.stdout
    assert "Saving dict" not in of_chief.stderr + of_worker.stderr
    assert "Saving checkpoints for 30" in of_chief.stderr
    assert "Saving checkpoints" not in of_worker.stderr
    assert "Saving dict for global step 30" in of_evaluator.stderr
    assert "metrics {" in of_evaluator.stdout
    assert list((tmp_path / "model" / "eval").iterdir())
    for exporter in ("latest", "final"):
        assert _exported(program, exporter) == ["saved_model.pb", "variables"]


def test_a_master_evaluates_after_its_checkpoints_and_the_workers_get_its_last_metrics(
    run_tasks: Any,
) -> None:
    of_master, of_worker = run_tasks("master", "worker")
    for step in (10, 20, 30):
        assert of_master.stderr.count(f"Saving dict for global step {step}:") == 1
    assert "Saving dict" not in of_worker.stderr
    for worker_output in (of_master, of_worker):
        assert "'global_step'" in worker_output.stdout
