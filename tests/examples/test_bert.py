"""The program `examples/bert/run_pretraining.py`: layouts, log, resume, checkpoints."""

import json
import re
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1
from application_runs import SCRIPTS, load, modules_of
from bert_program import (
    LENGTH,
    ONE_DEVICE,
    TINY,
    WORDS,
    BertRun,
    run_bert,
    write_records,
)

TWO_PIPELINES = [
    *("--replication-factor", "2", "--pipeline-schedule", "sequential"),
    *("--micro-batch-size", "4", "--gradient-accumulation", "2"),
]
LONG = ["--training-steps", "100000"]
ENDLESS = ["--generated-data", "--iterations", "100000", "--log-freq", "1", "--batch-size", "2"]
RESUME = "--resume-training-from-checkpoint"
HALF = ["--gradient-accumulation", "4"]
NUMBER = r"\d+\.\d+"
STEP = (
    r"Step: \d+ / 9 - LR: 1\.00e-02 - total loss: N - mlm_loss: N - nsp_loss: N - "
    r"mlm_acc: N % - nsp_acc: N %: throughput: N samples/sec"
)
# The log of the original, block by block.
TEMPLATE = [
    "Using config: unit_test",
    "-{19} Data Loading Started -{18}",
    "Data loaded in N(e-05)? secs",
    "-{59}",
    "-{20} Device Allocation -{20}",
    r"Embedding  --> Device 0 \(/device:CPU:1\)",
    r"Encoder 0  --> Device 1 \(/device:CPU:2\)",
    r"Pooler     --> Device 0 \(/device:CPU:1\)",
    r"Classifier --> Device 0 \(/device:CPU:1\)",
    "-{59}",
    "-{10} Compilation/Loading from Cache Started -{9}",
    "Compiled/Loaded model in N secs",
    "-{59}",
    "-{21} Training Started -{20}",
    *[STEP] * 10,
    "-{59}",
    "-{20} Training Metrics -{21}",
    "global_batch_size: 16",
    "device_iterations: 1",
    "training_steps: 10",
    "Training time: N secs",
    "-{59}",
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Options for records that differ in their number of masked words."""
    path = tmp_path_factory.mktemp("records") / "part-0.tfrecord"
    write_records(path, 64)
    return ["--dataset", "pretraining", "--input-files", str(path)]


@pytest.fixture(scope="module")
def alone(data: list[str]) -> BertRun:
    """A run of 10 steps on one device."""
    return run_bert(*TINY, *data, *ONE_DEVICE)


def _assert_equal(steps: list[dict[str, float]], others: list[dict[str, float]]) -> None:
    assert [one["step"] for one in steps] == [one["step"] for one in others]
    for one, other in zip(steps, others, strict=True):
        assert one == pytest.approx(other, abs=5e-6, rel=5e-6)


def test_the_first_losses_are_those_of_guessing(alone: BertRun) -> None:
    assert alone.steps[0]["mlm_loss"] == pytest.approx(np.log(WORDS), abs=0.15)
    assert alone.steps[0]["nsp_loss"] == pytest.approx(np.log(2), abs=0.15)


def test_two_replicas_of_a_pipeline_log_the_losses_of_one_device(
    alone: BertRun, data: list[str]
) -> None:
    run = run_bert(*TINY, *data, *TWO_PIPELINES)
    assert run.code == 0
    assert len(run.steps) == 10
    _assert_equal(run.steps, alone.steps)
    for line, pattern in zip(run.lines, TEMPLATE, strict=True):
        assert re.fullmatch(pattern.replace("N", NUMBER), line)


@pytest.mark.parametrize(
    ("width", "fitting"),
    [
        (
            999,
            "Step: 3 / 9 - LR: 1.00e-02 - total loss: 0.500 - nsp_loss: 0.500 - mlm_acc: 7.000 %",
        ),
        (64, "total loss: 0.500 - nsp_loss: 0.500 - mlm_acc: 7.000 %"),
        (40, "total loss: 0.500 - mlm_acc: 7.000 %"),
        (-5, "total loss: 0.500"),
    ],
)
def test_on_a_narrow_screen_the_line_of_a_step_keeps_the_loss(width: int, fitting: str) -> None:
    with modules_of("bert"):
        log = load("log")
    values = {"loss": 0.5, "nsp_loss": 0.5, "mlm_acc": 7.0}
    assert log.what_fits(log.describe_step(3, 10, 0.01, values), width) == fitting


def _log(lines: Sequence[str]) -> list[str]:
    """Returns the program's log without its times, which differ from run to run."""
    return [re.sub(r"(in|time:|throughput:) \d\S*", r"\1 N", line) for line in lines]


def test_in_two_terminals_two_workers_log_once_what_one_logs(
    alone: BertRun, data: list[str], fake_cluster: Any
) -> None:
    command = [SCRIPTS["bert"], *TINY, *data, *ONE_DEVICE, *HALF]
    workers = fake_cluster.run_script(command, num_workers=2, forked=True)
    assert [worker.returncode for worker in workers] == [0, 0]
    expected = _log(alone.lines)
    assert "global_batch_size: 16" in expected
    shown = [_log(worker.stderr.splitlines()) for worker in workers]
    assert [line for line in shown[0] if line in expected] == expected
    assert [line for line in shown[1] if line in expected] == []
    assert workers[1].stdout == ""
    figures = json.loads(workers[0].stdout.splitlines()[-1])
    assert figures["loss"] == pytest.approx(alone.figures["loss"], abs=5e-6)


@pytest.mark.parametrize("program", ["bert", "bert that keeps nothing", "cnn"])
def test_ctrl_c_finishes_the_step_and_saves_or_says_that_nothing_is_kept(
    fake_cluster: Any, tmp_path: Path, program: str
) -> None:
    commands = {
        "bert": [*TINY, *ONE_DEVICE, *LONG, "--checkpoint-output-dir", str(tmp_path)],
        "bert that keeps nothing": [*TINY, *ONE_DEVICE, *LONG],
        "cnn": [*ENDLESS, "--log-dir", str(tmp_path)],
    }
    command = [SCRIPTS[program.split()[0]], *commands[program]]
    with fake_cluster.start_script(command, engine="none", forked=True) as script:
        script.workers[0].wait_for_text(r"^[Ss]tep: +1\D", timeout_s=60)
        script.workers[0].send_signal(signal.SIGINT)
        [ended] = script.wait(60, check=False)
    assert ended.returncode == 143
    lines = ended.stderr.splitlines() + ended.stdout.splitlines()
    [said] = [line for line in lines if line.startswith("Ctrl-C: ")]
    assert said.endswith("nothing is kept.") is (program == "bert that keeps nothing")
    if program != "bert that keeps nothing":
        steps = [re.search(r"^[Ss]tep: +(\d+)", line) for line in lines]
        last = max(int(found[1]) for found in steps if found) + (program == "bert")  # From 0.
        assert list(tmp_path.glob(f"**/model.ckpt-{last}.index"))


def test_a_run_resumed_as_a_pipeline_logs_the_losses_of_an_undisturbed_one(
    alone: BertRun, data: list[str], tmp_path: Path
) -> None:
    options = ["--checkpoint-output-dir", str(tmp_path), "--checkpoint-steps", "3"]
    first = run_bert(*TINY, *data, *options, *ONE_DEVICE, "--training-steps", "5")
    assert f"Saving checkpoint for step 3 to: {tmp_path}/model.ckpt-3" in first.lines
    last = run_bert(*TINY, *data, *options, RESUME, "--evaluate", "--export-dir", str(tmp_path))
    _assert_equal([*first.steps, *last.steps], alone.steps)
    assert "---- Forwarding Data Loader until Checkpoint Step 5 ----" in last.lines
    table = (tmp_path / "training.csv").read_text().splitlines()
    assert [row.partition(",")[0] for row in table[1:]] == [str(step) for step in range(1, 11)]
    _check_evaluation(last.figures)
    _check_export(last.figures["exported"])
    _check_other_programs_checkpoint(str(tmp_path / "model.ckpt-10"), data)


def _check_evaluation(figures: dict[str, Any]) -> None:
    assert figures["held_out_global_step"] == 10
    assert 0 < figures["held_out_mlm_loss"] < figures["held_out_loss"] + 1
    assert 0 <= figures["held_out_nsp_acc"] <= 100


def _check_export(path: str) -> None:
    encoder = tf.saved_model.load(path).signatures["serving_default"]
    names = ("input_ids", "input_mask", "segment_ids")
    given = {name: tf.ones([3, LENGTH], tf.int32) for name in names}
    outputs = encoder(**given)
    assert outputs["sequence_output"].shape == [3, LENGTH, 16]
    assert outputs["pooled_output"].shape == [3, 16]


def _check_other_programs_checkpoint(path: str, data: list[str]) -> None:
    """Loads the weights of a checkpoint alone, and refuses those of another model."""
    saved = dict(tf.train.list_variables(path))
    with modules_of("bert"):
        wanted = load("plan").weight_shapes(load("arguments").parse(TINY)[0])
    assert {name: saved.get(name) for name in wanted} == wanted
    assert "bert/encoder/layer_0/attention/self/query/kernel" in wanted
    one_step = [*ONE_DEVICE, "--training-steps", "1"]
    started = run_bert(*TINY, *data, *one_step, "--checkpoint-input-dir", path)
    assert started.figures["global_step"] == 1
    assert started.steps[0]["mlm_loss"] < np.log(WORDS) - 0.1
    wider = ["--hidden-size", "32", "--checkpoint-input-dir", path]
    refused = run_bert(*TINY, *data, *one_step, *wider)
    assert refused.code == 2
    said = "bert/embeddings/word_embeddings has shape [100, 16] there, and has shape [100, 32]"
    assert said in refused.lines[-2]


def test_compile_only_ends_before_the_first_step() -> None:
    run = run_bert(*TINY, *ONE_DEVICE, "--compile-only")
    assert run.lines[-1].endswith("Exiting now as '--compile-only' argument was passed.")
    assert run.steps == []


def test_the_smallest_preset_trains_two_steps() -> None:
    # Smaller graphs: on one device, and without recomputation.
    smallest = ["--gradient-accumulation", "1", "--layers-per-device", "3"]
    smallest += ["--recompute-checkpoint-every-layer", "false"]
    data = ["--dataset", "generated", "--vocab-size", "1000"]
    # Without a warm-up, in which the first of two steps has the learning rate 0.
    few = ["--training-steps", "2", "--lr-warmup", "0", "--disable-progress-bar"]
    run = run_bert("--config", "demo_tiny_128", *smallest, *data, *few)
    assert run.code == 0
    first, second = (step["mlm_loss"] for step in run.steps)
    assert second < first


@pytest.mark.parametrize("corrects", [True, False])
@pytest.mark.parametrize("kind", ["AdamW", "LAMB"])
def test_an_optimizer_may_leave_out_the_correction_of_the_bias(kind: str, corrects: bool) -> None:
    """Of one gradient of ones Adam's direction is 1; without the correction it is 3.2."""
    name = kind if corrects else f"{kind}NoBiasCorrection"
    with modules_of("bert"):
        options = ["--optimizer", name, "--learning-rate", "0.5"]
        settings = load("arguments").parse([*TINY, *options])[0]
        optimizer = load("pretraining").make_optimizer(settings)
        with tf.Graph().as_default(), v1.Session() as session:
            v1.train.create_global_step()
            bias = v1.get_variable("bias", initializer=tf.zeros([3]))
            update = optimizer.apply_gradients([(tf.ones([3]), bias)])
            session.run(v1.global_variables_initializer())
            session.run(update)
            expected = -0.5 * (1.0 if corrects else 0.1 / np.sqrt(0.001))
            np.testing.assert_allclose(session.run(bias), [expected] * 3, rtol=1e-3)


def test_the_first_update_of_a_warm_up_has_rate_0_in_a_short_run_too() -> None:
    with modules_of("bert"):
        options = ["--lr-schedule", "linear", "--lr-warmup", "0.28", "--learning-rate", "0.006"]
        for steps, expected in (("1", 0.0), ("20", 0.0)):
            settings = load("arguments").parse([*TINY, *options, "--training-steps", steps])[0]
            assert float(load("pretraining").learning_rate(settings)(0)) == expected
        settings = load("arguments").parse([*TINY, "--lr-warmup", "0"])[0]
        assert float(load("pretraining").learning_rate(settings)(0)) > 0
