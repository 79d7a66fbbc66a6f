"""Options, presets, plans and refusals of examples/bert, without TensorFlow."""

import contextlib
import io
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bert_program import FOLDER, SCRIPT, TINY, bert_modules, load, run_bert, write_records

# micro-batch x accumulation x replicas of the original's presets.
GLOBAL_BATCHES = {
    "demo_tiny_128": 16,
    "unit_test": 16,
    "pretrain_base_128": 65536,
    "pretrain_base_128_pod4": 65536,
    "pretrain_base_512": 16384,
    "pretrain_base_512_pod4": 16384,
    "pretrain_base_3L_128_single": 1024,
    "pretrain_large_128": 65536,
    "pretrain_large_128_pod4": 65536,
    "pretrain_large_128_ALS": 65536,
    "pretrain_large_128_POD64": 65536,
    "pretrain_large_128_POD64_ALS": 65536,
    "pretrain_large_512": 16384,
    "pretrain_large_512_pod4": 16384,
    "pretrain_large_512_POD64": 16384,
    "sample_tiny": 64,
    "tiny_128": 16,
    "mini_128": 16,
    "small_128": 16,
}


@pytest.fixture(autouse=True)
def modules() -> Iterator[None]:
    with bert_modules():
        yield


def _settings(*arguments: str) -> Any:
    return load("arguments").parse(arguments)[0]


@pytest.mark.parametrize("name", GLOBAL_BATCHES)
def test_each_preset_loads_and_has_the_originals_global_batch(name: str) -> None:
    plan = load("plan").make_plan(_settings("--config", name))
    assert plan.global_batch_size == GLOBAL_BATCHES[name]
    assert sum(plan.layers_per_device) == plan.settings.num_hidden_layers


def test_no_preset_is_untested() -> None:
    assert set(load("arguments").load_presets()) == set(GLOBAL_BATCHES)


def test_the_number_of_parameters_is_that_of_the_literature() -> None:
    base, large = (
        _settings("--config", "pretrain_base_128"),
        _settings("--config", "pretrain_large_128"),
    )
    assert load("plan").num_parameters(base) / 1e6 == pytest.approx(110, abs=1)
    assert load("plan").num_parameters(large) / 1e6 == pytest.approx(336, abs=1)


def test_a_step_of_the_base_model_is_71_gflop_a_sequence() -> None:
    flops = load("plan").flops_of_sequence(_settings("--config", "pretrain_base_128"))
    assert flops / 1e9 == pytest.approx(71, abs=1.5)


def test_the_command_line_has_precedence_and_original_names_work() -> None:
    names = ["--ipus-per-replica", "3", "--layers-per-ipu", "1", "--learning-rate", "0.5"]
    settings = _settings("--config", "demo_tiny_128", *names)
    assert (settings.layers_per_device, settings.learning_rate) == ((1, 1, 1), 0.5)
    assert _settings("--devices-per-replica", "1").layers_per_device == (3,)


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("False", False), ("yes", True), ("0", False), (None, True)]
)
def test_booleans_take_the_originals_words(text: str | None, value: bool) -> None:
    given = ["--auto-loss-scaling", *([] if text is None else [text])]
    assert _settings(*given).auto_loss_scaling is value


def test_options_of_ipus_are_accepted_with_one_line_each() -> None:
    parse = load("arguments").parse
    _, notes = parse(["--matmul-proportion", "0.2", "0.3", "--custom-ops", "false"])
    assert notes == [
        "--matmul-proportion has no effect here: it is for IPUs.",
        "--custom-ops has no effect here: it is for IPUs.",
    ]


def test_an_unknown_key_of_a_preset_is_refused_with_the_nearest(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    arguments = load("arguments")
    presets = tmp_path / "presets.yml"
    presets.write_text("own:\n  learning_rates: 1\n")
    monkeypatch.setattr(arguments, "PRESETS", presets)
    with pytest.raises(arguments.UsageError, match="Did you mean learning_rate"):
        arguments.parse(["--config", "own"])


BAD = {
    "--config pretrain_base_128_pod5": "Did you mean pretrain_base_128_pod4?",
    "--learnig-rate 1": "Did you mean --learning-rate?",
    "--batch-size=32": "Did you mean --micro-batch-size?",
    "--epochs 3": "unknown argument '--epochs'. --help lists all options.",
    "--optimizer Lamb": "Did you mean LAMB?",
    "--dataset wikipedia": "is not one of generated, sample, pretraining",
    "--lr-schedule cosine": "is not one of constant, linear",
    "--pipeline-schedule gropued": "Did you mean grouped?",
    "--training-steps many": "'many' is not an integer of at least 0",
    "--hidden-dropout-prob 1": "'1' is not a number from 0 to below 1",
    "--auto-loss-scaling maybe": "'maybe' is not true or false",
    "--layers-per-device 1 1 2": "has 4 layers, and the model has 3",
    "--layers-per-device 5": "layers_per_device 5 has 5 layers, and the model has 3",
    "--devices-per-replica 2": "is 2, and layers_per_device 0 1 1 1 is for 4 device(s)",
    "--gradient-accumulation 8": "is 8, and a pipeline of 5 stages needs at least 9 (2 x 5 - 1)",
    "--pipeline-schedule interleaved": "Use grouped or sequential",
    "--precision 32.16": "is not one of 32.32, 16.32, 16.16, bf16.32, bf16.16",
    "--stochastic-rounding false": "Leave it out, or set --precision 16.16 or bf16.16",
    "--num-attention-heads 7": "do not divide the hidden size 64. The nearest number that does: 8",
    "--sequence-length 513": "sequence_length is 513, and the position table has 512 rows",
    "--mask-tokens 129": "mask_tokens is 129, more than the 128 words of a sequence",
    "--resume-training-from-checkpoint": "Give --checkpoint-output-dir",
    "--checkpoint-steps 5": "Give --checkpoint-output-dir",
    "--compile-only --evaluate": "--evaluate is for what was trained. Leave one of them out",
    "--predict [MASK]": "--predict needs the vocabulary of the model. Give it as --vocab-file",
    "--checkpoint-input-dir /nowhere": "there is no .index file",
    f"--checkpoint-output-dir {SCRIPT}/x": "run_pretraining.py is not a writable folder",
    "--auto-loss-scaling --loss-scaling 65536": "Set --loss-scaling 1",
    "--dataset pretraining --input-files /nowhere/*": "/nowhere/*",
    "--replication-factor 1000000": "and this machine has",
}


@pytest.mark.parametrize("given", BAD)
def test_bad_input_ends_with_code_2_and_one_or_two_lines(given: str) -> None:
    run = run_bert(*given.split(), trains=False)
    assert run.code == 2
    said = [line for line in run.lines if not line.startswith(("Using config", "---"))]
    assert BAD[given] in said[0]
    assert len(said) <= 2
    assert said[0].startswith("run_pretraining.py: error: ")


def test_records_that_are_too_few_for_a_step_are_refused(tmp_path: Path) -> None:
    write_records(tmp_path / "few.tfrecord", 15)
    data = ["--dataset", "pretraining", "--input-files", str(tmp_path / "few.tfrecord")]
    run = run_bert(*TINY, *data, trains=False)
    assert run.code == 2
    assert "15 samples, a step takes 16" in run.lines[-1]


def test_checkpoints_of_another_training_are_refused(tmp_path: Path) -> None:
    (tmp_path / "model.ckpt-7.index").touch()
    run = run_bert("--checkpoint-output-dir", str(tmp_path), trains=False)
    assert run.code == 2
    assert "Found previously saved checkpoint(s)" in run.lines[0]
    assert "--resume-training-from-checkpoint" in run.lines[1]


@pytest.mark.parametrize(
    ("package", "extra", "given"),
    [("tqdm", "bert", ()), ("wandb", "wandb", ("--wandb",)),
     ("matplotlib", "pipeline", ("--profile-dir", "profile"))],
)  # fmt: skip
def test_a_missing_package_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, package: str, extra: str, given: tuple[str, ...]
) -> None:
    arguments = load("arguments")
    monkeypatch.setattr(arguments, "find_spec", lambda name: None if name == package else True)
    with pytest.raises(arguments.UsageError) as caught:
        arguments.parse(given)
    said = f"{package} is not installed. Run: pip install 'tfdist[{extra}]'"
    assert str(caught.value) == said


def test_the_launchers_replicas_have_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, number in (("NUM_LOCAL_REPLICAS", 4), ("DEVICES_PER_REPLICA", 4)):
        monkeypatch.setenv(f"TFDIST_{name}", str(number))
    plan = load("plan").make_plan(_settings("--config", "pretrain_base_128_pod4"))
    assert (plan.local_replicas, plan.is_overridden) == (4, True)


# The two trainings of the original's tutorial, with `tfdist run` for `poprun`.
GENERATED = ["--dataset", "generated", "--training-steps", "1"]
ONE_POD = ["--config", "pretrain_base_128_pod4", *GENERATED]
LARGE = ["--config", "pretrain_large_128_POD64", *GENERATED]
LAUNCHER = [
    *("--allow-run-as-root", "1", "--vv", "--num-instances", "1", "--num-replicas", "16"),
    *("--mpi-global-args=--tag-output", "--ipus-per-replica", "4", "python3", "run_pretraining.py"),
]


def test_the_tutorials_first_command_shows_its_plan_and_imports_no_tensorflow() -> None:
    command = [sys.executable, "-X", "importtime", "run_pretraining.py", *ONE_POD, "--dry-run"]
    ran = _run(command)
    assert ran.returncode == 0, ran.stderr
    assert not re.search(r"\| *tensorflow$", ran.stderr, re.MULTILINE)
    assert "parameters: 110,106,428" in ran.stdout
    assert "global_batch_size: 65536 = micro-batch 32 x accumulation 2048 x 1" in ran.stdout
    shown = [line[2:] for line in ran.stdout.splitlines() if line.startswith("  ")]
    places = [line.split(" --> Device ") for line in shown]
    assert [device for _, device in places] == list("0111122223333" + "00")
    assert [part.strip() for part, _ in places][-2:] == ["Pooler", "Classifier"]
    assert "memory: about" in ran.stdout


def test_the_tutorials_second_command_shows_its_plan() -> None:
    launcher = [sys.executable, "-m", "tfdist", "run", *LAUNCHER]
    ran = _run([*launcher, *LARGE, "--dry-run"])
    assert ran.returncode == 0, ran.stderr
    assert "[0] parameters: 336,226,108" in ran.stdout
    assert "[0] global_batch_size: 65536 = micro-batch 8 x accumulation 512 x 16" in ran.stdout
    assert "[0] stages: 5 on 4 device(s) of each replica" in ran.stdout
    assert "[0]   Encoder 10 --> Device 2" in ran.stdout


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("command", [ONE_POD, LARGE])
def test_what_a_machine_cannot_hold_is_said_with_both_numbers_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    plan = load("plan")
    monkeypatch.setattr(plan, "memory_of_machine", lambda: 2.5e9)
    needed = plan.memory_bytes(plan.make_plan(_settings(*command))) / 1e9
    without_data = ["--dataset", "pretraining"]  # Whatever is not refused would be refused later.
    run = run_bert(*command, *without_data, trains=False)
    assert run.code == 2
    said = f"this training needs about {needed:.1f} GB, and this machine has 2.5 GB."
    assert run.lines[0] == f"run_pretraining.py: error: {said}"
    assert len(run.lines) == 2


@pytest.mark.parametrize(
    ("hosts", "of_machine"), [(["a:1", "a:2", "a:3", "a:4"], 4), (["a:1", "b:1", "c:1", "d:1"], 1)]
)
def test_memory_is_that_of_the_workers_of_one_machine(
    monkeypatch: pytest.MonkeyPatch, hosts: list[str], of_machine: int
) -> None:
    plan = load("plan")
    alone = plan.memory_bytes(plan.make_plan(_settings()))
    task = {"type": "worker", "index": 1}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": {"worker": hosts}, "task": task}))
    together = plan.make_plan(_settings())
    assert together.num_workers == 4
    assert plan.memory_bytes(together) == of_machine * alone
    text = plan.describe(together)
    assert (f"GB for its {of_machine} workers;" in text) is (of_machine > 1)


def test_help_lists_every_option() -> None:
    with contextlib.redirect_stdout(io.StringIO()) as printed, pytest.raises(SystemExit):
        load("arguments").parse(["--help"])
    for name in ("--layers-per-device", "--layers-per-ipu", "--dry-run", "--checkpoint-input-dir"):
        assert name in printed.getvalue()
