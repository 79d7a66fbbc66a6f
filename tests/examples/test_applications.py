"""The applications `bert` and `cnn` without a training: options, presets, plans, and refusals."""

import argparse
import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from application_runs import SCRIPTS, load, modules_of, run_application
from bert_program import TINY, write_records

from tfdist.cluster.instances import instance_environment

ROOT = Path(__file__).parents[2]
# micro-batch x accumulation x replicas of the originals' presets.
GLOBAL_BATCHES = {
    ("bert", 16): ["demo_tiny_128", "unit_test", "tiny_128", "mini_128", "small_128"],
    ("bert", 64): ["sample_tiny"],
    ("bert", 1_024): ["pretrain_base_3L_128_single"],
    ("bert", 16_384): [
        *("pretrain_base_512", "pretrain_base_512_pod4"),
        *("pretrain_large_512", "pretrain_large_512_pod4", "pretrain_large_512_POD64"),
    ],
    ("bert", 65_536): [
        *("pretrain_base_128", "pretrain_base_128_pod4"),
        *("pretrain_large_128", "pretrain_large_128_pod4", "pretrain_large_128_ALS"),
        *("pretrain_large_128_POD64", "pretrain_large_128_POD64_ALS"),
    ],
    ("cnn", 32): ["mk2_resnet8_test"],
    ("cnn", 64): ["digits_resnet8", "photos_resnet8", "photos_resnet20"],
    ("cnn", 1_024): ["mk2_resnet50_gn_16ipus"],
    ("cnn", 1_920): ["mk2_resnet50_mlperf_pod16_bs20"],
    ("cnn", 2_560): ["mk2_resnet50_mlperf_pod64_bs20"],
    ("cnn", 16_384): ["mk2_resnet50_bn_16ipus"],
}

# Program, options => words of the one or two lines. What concerns any option is here once.
REFUSED = """
bert --config pretrain_base_128_pod5 => Did you mean pretrain_base_128_pod4?
bert --learnig-rate 1 => Did you mean --learning-rate?
bert --batch-size=32 => Did you mean --micro-batch-size?
bert --epochs 3 => unknown option --epochs.
bert --optimizer Lamp => Did you mean LAMB?
bert --dataset wikipedia => is not one of generated, sample, pretraining
bert --lr-schedule cosine => is not one of constant, linear
bert --pipeline-schedule gropued => Did you mean grouped?
bert --training-steps many => 'many' is not an integer of at least 0
bert --hidden-dropout-prob 1 => '1' is not a number from 0 to below 1
bert --auto-loss-scaling maybe => 'maybe' is not true or false
bert --layers-per-device 1 1 2 => has 4 layers, and the model has 3
bert --layers-per-device 5 => layers_per_device 5 has 5 layers, and the model has 3
bert --devices-per-replica 2 => is 2, and layers_per_device 0 1 1 1 is for 4 device(s)
bert --gradient-accumulation 8 => fill a pipeline of 5 stages, which needs at least 9 (2 x 5 - 1)
bert --pipeline-schedule interleaved => Use grouped or sequential
bert --precision 32.16 => is not one of 32.32, 16.32, 16.16, bf16.32, bf16.16
bert --stochastic-rounding false => Leave it out, or set --precision 16.16 or bf16.16
bert --num-attention-heads 7 => do not divide the hidden size 64. The nearest number that does: 8
bert --sequence-length 513 => sequence_length is 513, and the position table has 512 rows
bert --mask-tokens 129 => mask_tokens is 129, more than the 128 words of a sequence
bert --resume-training-from-checkpoint => Give --checkpoint-output-dir
bert --checkpoint-steps 5 => Give --checkpoint-output-dir
bert --compile-only --evaluate => --evaluate is for what was trained. Leave one of them out
bert --predict [MASK] => --predict needs the vocabulary of the model. Give it as --vocab-file
bert --checkpoint-input-dir /nowhere => there is no .index file
bert --checkpoint-output-dir /dev/null/x => is not a writable folder. Choose another
bert --auto-loss-scaling --loss-scaling 65536 => Set --loss-scaling 1
bert --dataset pretraining --input-files /nowhere/* => /nowhere/*
bert --replication-factor 1000000 => and this machine has
cnn --config digits_resnet => Did you mean digits_resnet8?
cnn --model-size 9 => '9' is not one of 8, 14, 20, 32, 44, 56, 18, 34, 50
cnn --mixup-alpha 0.2 => unknown option --mixup-alpha.
cnn --momentum 1 => '1' is not a number from 0 to 0.9999
cnn --epochs 2 --iterations 3 => --epochs and --iterations contradict
cnn --base-learning-rate -9 --abs-learning-rate 1 => and --abs-learning-rate contradict
cnn --batch-norm --group-norm => --batch-norm and --group-norm contradict
cnn --group-norm --groups 5 => not divide the 16 filters of the first convolution: 1, 2, 4, 8, 16 do
cnn --groups 8 => --groups is for --group-norm
cnn --BN-span 3 --replicas 4 => --BN-span 3 does not divide the 4 replicas of the run: 1, 2, 4 do
cnn --BN-span 2 --replicas 2 --gradient-accumulation-count 3 --pipeline --shards 2 => used together
cnn --BN-span 2 --replicas 2 --enable-recomputation => cannot be used together
cnn --gradient-accumulation-count 2 --pipeline --shards 2 => of 2 stages, which needs at least 3
cnn --pipeline => --pipeline needs at least 2 devices, and --shards is 1
cnn --pipeline --shards 9 => more than the 5 segments
cnn --shards 2 => --shards is for a pipeline: add --pipeline
cnn --pipeline --shards 2 --pipeline-splits b1/1/relu => point of ResNet-8. Did you mean b1/0/relu?
cnn --pipeline --shards 2 --pipeline-splits b1/0/relu b2/0/relu => make 3 stages, and --shards is 2
cnn --pipeline --shards 3 --pipeline-splits b2/0/relu b1/0/relu => must be in order
cnn --batch-size 1001 --replicas 4 => 4,004 images (micro-batch 1001 x accumulation 1 x 4 replica(s)
cnn --warmup-epochs 5 => --warmup-epochs 5 are 625 steps
cnn --lr-schedule stepped --learning-rate-decay 0.1 => 3 points and --learning-rate-decay 1 factors
cnn --optimiser RMSprop --precision bf16.16 => RMSprop does not keep small updates of half weights
cnn --evaluator => this run has none: start it with tfdist run --evaluator
cnn --evaluator --no-validation => --no-validation and --evaluator contradict each other
cnn --dataset cifar-10 => --data-dir
cnn --dataset cifar-10 --data-dir none => none
cnn --restore-path none => --restore-path none has no checkpoint
cnn --init-path none => --init-path none has no checkpoint
cnn --log-dir /dev/null/logs => /dev/null is not a writable folder. Choose another --log-dir
"""


@pytest.mark.parametrize("case", REFUSED.strip().splitlines())
def test_bad_options_end_with_code_2_and_one_or_two_lines(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given, words = case.split(" => ")
    ended = run_application(*given.split())
    assert (ended.code, ended.out) == (2, "")
    lines = ended.err.splitlines()
    said = [line for line in lines if not line.startswith(("Using config", "---"))]
    assert words in said[0]
    assert said[0].startswith(f"{Path(SCRIPTS[given.split()[0]]).name}: error: ")
    assert len(said) <= 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", SCRIPTS)
def test_each_preset_has_the_global_batch_of_the_original(name: str) -> None:
    with modules_of(name):
        left = set(load("options").load_presets(load("arguments").PRESETS))
    for program, batch in GLOBAL_BATCHES:
        for preset in GLOBAL_BATCHES[program, batch] if program == name else ():
            ended = run_application(name, "--config", preset, "--dry-run")
            assert (ended.code, ended.err) == (0, "")
            [shown] = re.findall(r"^global.batch(?:_size)?: ([\d,]+) = ", ended.out, re.M)
            assert int(shown.replace(",", "")) == batch, preset
            left.remove(preset)
    assert left == set()


def test_an_unknown_key_of_a_preset_is_refused_with_the_nearest(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "presets.yml").write_text("own:\n  learning_rates: 1\n")
    with modules_of("bert"):
        arguments, options = load("arguments"), load("options")
        monkeypatch.setattr(arguments, "PRESETS", tmp_path / "presets.yml")
        with pytest.raises(options.UsageError, match=r"'learning_rates'\. Did you mean learn"):
            arguments.parse(["--config", "own"])


def test_the_command_line_wins_over_a_preset_also_where_it_gives_an_alternative() -> None:
    with modules_of("cnn"):
        parse = load("arguments").parse
        preset, _ = parse(["--config", "digits_resnet8"])
        own, _ = parse(["--config", "digits_resnet8", "--iterations", "7", "--batch-size", "8"])
        group, _ = parse(["--config", "mk2_resnet8_test", "--batch-norm"])
    assert (preset.epochs, preset.iterations, preset.batch_size) == (5, None, 64)
    assert (own.epochs, own.iterations, own.batch_size) == (None, 7, 8)
    assert group.norm == "batch"


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("False", False), ("yes", True), ("0", False), (None, True)]
)
def test_booleans_take_the_originals_words(text: str | None, value: bool) -> None:
    given = ["--auto-loss-scaling", *([] if text is None else [text])]
    with modules_of("bert"):
        assert load("arguments").parse(given)[0].auto_loss_scaling is value


def test_original_names_work() -> None:
    names = ["--ipus-per-replica", "3", "--layers-per-ipu", "1", "--learning-rate", "0.5"]
    with modules_of("bert"):
        parse = load("arguments").parse
        settings, _ = parse(["--config", "demo_tiny_128", *names])
        alone, _ = parse(["--devices-per-replica", "1"])
    assert (settings.layers_per_device, settings.learning_rate) == ((1, 1, 1), 0.5)
    assert alone.layers_per_device == (3,)


def test_options_of_other_devices_are_accepted_with_a_line_each() -> None:
    given = ["--select-ipu", "3", "--available-memory-proportion", "0.2", "0.3"]
    ended = run_application("cnn", "--dry-run", *given)
    assert ended.code == 0
    assert ended.err.splitlines() == [
        "--available-memory-proportion has no effect here: memory is allocated as it is needed.",
        "--select-ipu has no effect here: devices are numbered from the first one.",
    ]
    ended = run_application("bert", "--dry-run", "--custom-ops", "false", "--packed-data")
    assert "--custom-ops has no effect here: it is for IPUs.\n" in ended.out
    assert "--packed-data has no effect here: each row has one pair of segments.\n" in ended.out


@pytest.mark.parametrize(
    ("package", "extra", "given"),
    [("tqdm", "bert", ()), ("matplotlib", "pipeline", ("--profile-dir", "profile"))],
)
def test_a_missing_package_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, package: str, extra: str, given: tuple[str, ...]
) -> None:
    options = load("options")
    monkeypatch.setattr(options, "find_spec", lambda name: None if name == package else True)
    with modules_of("bert"), pytest.raises(options.UsageError) as caught:
        load("arguments").parse(given)
    assert str(caught.value) == f"{package} is not installed. Run: pip install 'tfdist[{extra}]'"


@pytest.mark.parametrize("name", SCRIPTS)
def test_neither_a_plan_nor_a_refusal_imports_tensorflow(name: str) -> None:
    for options in (["--dry-run"], ["--precision", "9"]):
        command = [sys.executable, "-X", "importtime", SCRIPTS[name], *options]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert ended.returncode == (0 if options == ["--dry-run"] else 2)
        assert re.search(r"\| *arguments$", ended.stderr, re.MULTILINE)
        assert not re.search(r"\| *tensorflow$", ended.stderr, re.MULTILINE)


@pytest.mark.parametrize("given", ["bert --replication-factor 3", "cnn --replicas 3"])
def test_the_launchers_replicas_and_workers_are_in_the_plan(
    monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    reported = {"index": 0, "num_instances": 2, "local_index": 0, "num_total_replicas": 8}
    for variable, value in instance_environment(**reported, devices_per_replica=1).items():
        monkeypatch.setenv(variable, value)
    ended = run_application(*given.split(), "--dry-run")
    assert " x 4 replica(s) x 2 worker(s)" in ended.out


# BERT's plan.


def _settings(*arguments: str) -> Any:
    return load("arguments").parse(arguments)[0]


def test_bert_has_the_parameters_and_operations_of_the_literature() -> None:
    with modules_of("bert"):
        base, large = (_settings("--config", f"pretrain_{size}_128") for size in ("base", "large"))
        plan = load("plan")
        assert plan.num_parameters(base) / 1e6 == pytest.approx(110, abs=1)
        assert plan.num_parameters(large) / 1e6 == pytest.approx(336, abs=1)
        assert plan.flops_of_sequence(base) / 1e9 == pytest.approx(71, abs=1.5)


# The two trainings of the original's tutorial, with `tfdist run` for `poprun`.
GENERATED = ["--dataset", "generated", "--training-steps", "1"]
ONE_POD = ["--config", "pretrain_base_128_pod4", *GENERATED]
LARGE = ["--config", "pretrain_large_128_POD64", *GENERATED]
LAUNCHER = [
    *("--allow-run-as-root", "1", "--vv", "--num-instances", "1", "--num-replicas", "16"),
    *("--mpi-global-args=--tag-output", "--ipus-per-replica", "4", "python3", "run_pretraining.py"),
]


def test_the_tutorials_first_command_shows_its_plan() -> None:
    out = run_application("bert", *ONE_POD, "--dry-run").out
    assert "parameters: 110,106,428" in out
    assert "global_batch_size: 65536 = micro-batch 32 x accumulation 2048 x 1" in out
    shown = [line[2:] for line in out.splitlines() if line.startswith("  ")]
    places = [line.split(" --> Device ") for line in shown]
    assert [device for _, device in places] == list("0111122223333" + "00")
    assert [part.strip() for part, _ in places][-2:] == ["Pooler", "Classifier"]
    assert "graph: 20,480 calls of stages, about 41 s to build" in out
    assert "memory: about" in out


def test_the_tutorials_second_command_shows_its_plan() -> None:
    command = [sys.executable, "-m", "tfdist", "run", *LAUNCHER, *LARGE, "--dry-run"]
    folder = Path(SCRIPTS["bert"]).parent
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    assert "[0] parameters: 336,226,108" in ran.stdout
    assert "[0] global_batch_size: 65536 = micro-batch 8 x accumulation 512 x 16" in ran.stdout
    assert "[0] stages: 5 on 4 device(s) of each replica" in ran.stdout
    assert "[0]   Encoder 10 --> Device 2" in ran.stdout


@pytest.mark.parametrize("command", [ONE_POD, LARGE])
def test_what_a_machine_cannot_hold_is_said_with_both_numbers_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    with modules_of("bert"):
        plan = load("plan")
        monkeypatch.setattr(plan, "memory_of_machine", lambda: 2.5e9)
        needed = plan.memory_bytes(plan.make_plan(_settings(*command))) / 1e9
        # Whatever is not refused would be refused later: there are no files.
        ended = run_application("bert", *command, "--dataset", "pretraining")
    assert ended.code == 2
    said = f"this training needs about {needed:.1f} GB, and this machine has 2.5 GB."
    assert ended.err.splitlines()[0] == f"run_pretraining.py: error: {said}"
    assert ended.err.count("\n") == 2


@pytest.mark.parametrize(
    ("hosts", "of_machine"), [(["a:1", "a:2", "a:3", "a:4"], 4), (["a:1", "b:1", "c:1", "d:1"], 1)]
)
def test_memory_is_that_of_the_workers_of_one_machine(
    monkeypatch: pytest.MonkeyPatch, hosts: list[str], of_machine: int
) -> None:
    with modules_of("bert"):
        plan = load("plan")
        monkeypatch.setattr(plan, "measured_flops_per_s", lambda: 1e9)
        alone = plan.memory_bytes(plan.make_plan(_settings()))
        task = {"type": "worker", "index": 1}
        monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": {"worker": hosts}, "task": task}))
        together = plan.make_plan(_settings())
        assert together.layout.workers == 4
        assert plan.memory_bytes(together) == of_machine * alone
        text = plan.describe(together)
    assert (f"GB for its {of_machine} workers;" in text) is (of_machine > 1)


def test_records_that_are_too_few_for_a_step_are_refused(tmp_path: Path) -> None:
    write_records(tmp_path / "few.tfrecord", 15)
    data = ["--dataset", "pretraining", "--input-files", str(tmp_path / "few.tfrecord")]
    ended = run_application("bert", *TINY, *data)
    assert ended.code == 2
    assert "15 samples, a step takes 16" in ended.err.splitlines()[-1]


# ResNet's plan.


def _as_task(monkeypatch: pytest.MonkeyPatch, task: str, num_workers: int) -> None:
    cluster = {"worker": [f"localhost:{port}" for port in range(1, num_workers + 1)]}
    config = {"cluster": cluster, "task": {"type": task, "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))


def test_an_evaluator_without_its_option_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    _as_task(monkeypatch, "evaluator", 1)
    ended = run_application("cnn")
    assert ended.code == 2
    assert "nothing to do without the option --evaluator" in ended.err


def test_the_evaluator_and_the_workers_have_the_same_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    plans = []
    for task in ("worker", "evaluator"):
        _as_task(monkeypatch, task, 2)
        plans.append(run_application("cnn", "--dry-run", "--replicas", "2", "--evaluator"))
    assert plans[0] == plans[1]
    assert plans[0].code == 0
    assert "2 replica(s) x 2 worker(s)" in plans[0].out


def test_with_an_evaluator_the_launchers_replicas_must_be_given_as_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reported = {"index": 0, "num_instances": 2, "local_index": 0, "num_total_replicas": 8}
    launched = instance_environment(**reported, devices_per_replica=1, has_evaluator=True)
    for name, value in launched.items():
        monkeypatch.setenv(name, value)
    ended = run_application("cnn", "--dry-run", "--evaluator")
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert "give --replicas 4 as well" in ended.err
    assert run_application("cnn", "--dry-run", "--evaluator", "--replicas", "4").code == 0


def test_an_evaluator_validates_checkpoints_as_they_come_and_each_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def save(step: int) -> None:
        (tmp_path / f"model.ckpt-{step}.index").touch()

    def validate(validator: Any, checkpoint: str) -> None:
        step = int(checkpoint.rpartition("-")[2])
        validated.append(step)
        if step < 12:  # The training goes on meanwhile.
            save(step + 4)

    validated: list[int] = []
    for step in (0, 4, 8):
        save(step)
    # An evaluator before this one has validated the checkpoint of step 4.
    (tmp_path / "validation.csv").write_text("iteration,checkpoint\n4,model.ckpt-4\n")
    with modules_of("cnn"):
        validation = load("validation")
        monkeypatch.setattr(validation.Validator, "validate", validate)
        monkeypatch.setattr(validation, "LOOK_EVERY_S", 0.0)
        settings, plan = load("arguments").Settings(), argparse.Namespace(num_steps=12)
        given = {"settings": settings, "plan": plan, "estimator": None, "dataset": None}
        validation.Validator(**given, log=None).validate_beside(tmp_path)
    assert validated == [8, 12]


@pytest.mark.parametrize(
    ("size", "classes", "millions"),
    [(20, 10, 0.27), (32, 10, 0.46), (44, 10, 0.66), (56, 10, 0.85), (18, 1000, 11.69),
     (34, 1000, 21.80), (50, 1000, 25.56)],
)  # fmt: skip
def test_a_resnet_has_the_layers_of_its_name_and_the_parameters_of_the_literature(
    size: int, classes: int, millions: float
) -> None:
    with modules_of("cnn"):
        architecture = load("architecture")
        segments = architecture.make_segments(size, 3, classes)
        assert architecture.count_parameters(segments) / 1e6 == pytest.approx(millions, abs=0.005)
    assert sum(len(segment.convolutions) for segment in segments) + 1 == size


def test_a_pipeline_is_cut_behind_the_named_points() -> None:
    splits = ["--pipeline-splits", "init/relu", "b2/0/relu"]
    count = ["--gradient-accumulation-count", "5"]
    out = run_application("cnn", "--dry-run", "--pipeline", "--shards", "3", *splits, *count).out
    assert [line.partition(",")[0].split(maxsplit=2)[2] for line in out.splitlines()[-3:]] == [
        "init/relu",
        "b1/0/relu to b2/0/relu",
        "b3/0/relu to head",
    ]


def test_checkpoints_of_another_run_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "resnet8_digits_batch32_32.32"
    folder.mkdir()
    (folder / "model.ckpt-7.index").touch()
    (folder / "arguments.json").write_text(json.dumps({"model_size": 20}))
    for command, words in (
        ("bert --checkpoint-output-dir", "Found previously saved checkpoint(s)"),
        ("bert --checkpoint-output-dir", "--resume-training-from-checkpoint to go on"),
        ("cnn --log-dir", f"Go on with it by --restore-path {folder}"),
        ("cnn --restore-path", "has model size 20, and this one 8"),
    ):
        of_run = folder if command.startswith("bert") or "restore" in command else tmp_path
        ended = run_application(*command.split(), str(of_run))
        assert ended.code == 2
        assert words in ended.err


def test_means_of_checkpoints_weigh_them_as_the_recursion_does() -> None:
    with modules_of("cnn"):
        checkpoints = load("checkpoints")
    assert checkpoints.mean_of_last(2, 4) == [0, 0, 0.5, 0.5]
    assert checkpoints.mean_of_last(9, 2) == [0.5, 0.5]
    values, mean = [3.0, 5.0, 11.0], 3.0
    for value in values[1:]:
        mean = 0.9 * mean + 0.1 * value
    weights = checkpoints.exponential_mean(0.9, 3)
    assert sum(w * v for w, v in zip(weights, values, strict=True)) == pytest.approx(mean)


# What docs/resnet.md says about the originals.


@pytest.mark.parametrize("options", [[], ["--BN-span", "all"], ["--group-norm"]])
def test_every_norm_begins_with_scale_1_and_adds_a_thousandth_to_the_variance(
    options: list[str],
) -> None:
    import tensorflow as tf
    import tensorflow.compat.v1 as v1

    values = np.random.default_rng(0).normal(0.0, 0.01, [8, 6, 6, 16])  # Of variance 1e-4.
    with modules_of("cnn"), tf.Graph().as_default(), v1.Session() as session:
        settings = load("arguments").parse(["--model-size", "8", *options])[0]
        segments = load("architecture").make_segments(8, 1, 10)
        network = load("model").make_network(settings, segments, is_training=True)
        network(tf.zeros([2, 28, 28, 1]))
        with v1.variable_scope("alone"):
            normal = network._normalize(tf.constant(values, tf.float32))
        session.run(v1.global_variables_initializer())
        scales = {one.op.name: session.run(one) for one in v1.global_variables("b.*gamma")}
        deviation = session.run(normal).std()
    assert len(scales) == 6  # Also the last norm of each of the three blocks.
    assert all((scale == 1).all() for scale in scales.values())
    assert deviation == pytest.approx(0.01 / (1e-4 + 1e-3) ** 0.5, rel=0.02)


def test_no_preset_has_lars_which_the_option_selects() -> None:
    from tfdist.training import LARS

    with modules_of("cnn"):
        arguments, optimization = load("arguments"), load("optimization")
        presets = load("options").load_presets(arguments.PRESETS)
        assert {one.get("optimiser", "momentum") for one in presets.values()} == {"momentum"}
        chosen = ["--config", "mk2_resnet50_bn_16ipus", "--optimiser", "LARS"]
        settings = dataclasses.replace(arguments.parse(chosen)[0], loss_scaling=None)
        assert isinstance(optimization.make_optimizer(settings, 0.1), LARS)
