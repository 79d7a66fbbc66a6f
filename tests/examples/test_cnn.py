"""The example `cnn`: its options, plans and messages, without a training."""

import argparse
import importlib
import json
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "cnn"
TRAIN = str(EXAMPLE / "train.py")

GLOBAL_BATCHES = {
    "digits_resnet8": 64,
    "photos_resnet8": 64,
    "photos_resnet20": 64,
    "mk2_resnet8_test": 32,
    "mk2_resnet50_mlperf_pod16_bs20": 1_920,
    "mk2_resnet50_mlperf_pod64_bs20": 2_560,
    "mk2_resnet50_gn_16ipus": 1_024,
    "mk2_resnet50_bn_16ipus": 16_384,
}

PIPELINE = ["--pipeline", "--shards", "2"]
REFUSED = {
    "a preset": (["--config", "digits_resnet"], "Did you mean digits_resnet8?"),
    "an option": (["--model-sise", "8"], "unknown option --model-sise. Did you mean --model-size?"),
    "a size": (["--model-size", "9"], "'9' is unknown. Known: 8, 14, 20, 32, 44, 56, 18, 34, 50"),
    "a data set": (["--dataset", "photo"], "'photo' is unknown. Did you mean photos?"),
    "a schedule": (["--lr-schedule", "cosin"], "'cosin' is unknown. Did you mean cosine?"),
    "an optimizer": (["--optimiser", "Adam"], "Known: SGD, momentum, RMSprop, LARS, LAMB"),
    "a precision": (["--precision", "32.16"], "'32.16' is unknown"),
    "a word for a number": (["--batch-size", "many"], "'many' is not an integer"),
    "a number out of range": (["--momentum", "1"], "1 must be at least 0 and at most 0.9999"),
    "two lengths": (["--epochs", "2", "--iterations", "3"], "--epochs and --iterations contradict"),
    "two rates": (
        ["--base-learning-rate", "-9", "--abs-learning-rate", "1"],
        "--base-learning-rate and --abs-learning-rate contradict",
    ),
    "two norms": (["--batch-norm", "--group-norm"], "--batch-norm and --group-norm contradict"),
    "groups that don't divide": (
        ["--group-norm", "--groups", "5"],
        "--groups 5 does not divide the 16 filters of the first convolution: 1, 2, 4, 8, 16 do",
    ),
    "groups of a batch norm": (["--groups", "8"], "--groups is for --group-norm"),
    "a span that doesn't divide": (
        ["--BN-span", "3", "--replicas", "4"],
        "--BN-span 3 does not divide the 4 replicas of the run: 1, 2, 4 do",
    ),
    "a span in a pipeline": (
        ["--BN-span", "2", "--replicas", "2", "--gradient-accumulation-count", "3", *PIPELINE],
        "--BN-span 2 and --pipeline cannot be used together",
    ),
    "a span that is recomputed": (
        ["--BN-span", "2", "--replicas", "2", "--enable-recomputation"],
        "--BN-span 2 and --enable-recomputation cannot be used together",
    ),
    "too few micro-batches": (
        ["--gradient-accumulation-count", "2", *PIPELINE],
        "--gradient-accumulation-count 2 does not fill a pipeline of 2 stages: 3 (2 x 2 - 1) does",
    ),
    "one device": (["--pipeline"], "--pipeline needs at least 2 devices, and --shards is 1"),
    "more devices than segments": (["--pipeline", "--shards", "9"], "more than the 5 segments"),
    "devices without a pipeline": (["--shards", "2"], "--shards is for a pipeline: add --pipeline"),
    "an unknown point": (
        [*PIPELINE, "--pipeline-splits", "b1/1/relu"],
        "--pipeline-splits b1/1/relu is no point of ResNet-8. Did you mean b1/0/relu?",
    ),
    "points that don't fit the devices": (
        [*PIPELINE, "--pipeline-splits", "b1/0/relu", "b2/0/relu"],
        "--pipeline-splits has 2 points, which make 3 stages, and --shards is 2",
    ),
    "points in disorder": (
        ["--pipeline", "--shards", "3", "--pipeline-splits", "b2/0/relu", "b1/0/relu"],
        "must be in order",
    ),
    "a step of more images than there are": (
        ["--batch-size", "1001", "--replicas", "4"],
        "a step takes 4,004 images (micro-batch 1001 x accumulation 1 x 4 replicas x 1 workers), "
        "and digits has 4,000 to train",
    ),
    "a warm-up that is too long": (["--warmup-epochs", "5"], "--warmup-epochs 5 are 625 steps"),
    "unequal lists": (
        ["--lr-schedule", "stepped", "--learning-rate-decay", "0.1"],
        "--learning-rate-schedule has 3 points and --learning-rate-decay 1 factors",
    ),
    "an optimizer for half weights": (
        ["--optimiser", "RMSprop", "--precision", "bf16.16"],
        "--optimiser RMSprop does not keep small updates of half weights",
    ),
    "an evaluator that is not there": (
        ["--evaluator"],
        "--evaluator needs a process that evaluates, and this run has none: start it with tfdist "
        "run --evaluator",
    ),
    "an evaluator and no validation": (
        ["--evaluator", "--no-validation"],
        "--no-validation and --evaluator contradict each other",
    ),
    "no folder of data": (["--dataset", "cifar-10"], "--data-dir"),
    "a folder without data": (["--dataset", "cifar-10", "--data-dir", "none"], "none"),
    "nothing to restore": (["--restore-path", "none"], "--restore-path none has no checkpoint"),
    "no first weights": (["--init-path", "none"], "--init-path none has no checkpoint"),
    "a folder that cannot be made": (["--log-dir", "/dev/null/logs"], "choose another --log-dir"),
}


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """Imports modules of the example, and forgets them afterwards."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(EXAMPLE)):
            del sys.modules[name]


@pytest.fixture
def run(
    modules: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Runs train.py in this process: exit code, standard output and standard error."""

    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "2")  # The program sets it for good.

    def run(*options: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", [TRAIN, *options])
        code = 0
        try:
            runpy.run_path(TRAIN, run_name="__main__")
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        return code, *capsys.readouterr()

    return run


@pytest.mark.parametrize("preset", GLOBAL_BATCHES)
def test_a_preset_has_the_global_batch_of_the_original(run: Any, preset: str) -> None:
    code, out, err = run("--config", preset, "--dry-run")
    assert (code, err) == (0, "")
    assert f"global batch: {GLOBAL_BATCHES[preset]:,} = " in out


def test_all_presets_are_tested(modules: Any) -> None:
    arguments = modules("arguments")
    presets = arguments.yaml.safe_load(arguments.PRESETS.read_text())
    assert presets.keys() == GLOBAL_BATCHES.keys()


@pytest.mark.parametrize("what", REFUSED)
def test_is_refused_in_one_line(
    run: Any, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options, words = REFUSED[what]
    code, out, err = run(*options)
    assert code == 2
    assert words in err
    assert (out, err.count("\n")) == ("", 1)
    assert list(tmp_path.iterdir()) == []


def test_a_refusal_does_not_import_tensorflow() -> None:
    command = [sys.executable, "-X", "importtime", TRAIN, "--model-size", "9"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    assert "| arguments" in ended.stderr
    assert "| tensorflow" not in ended.stderr


def test_an_unknown_key_of_a_preset_is_refused_with_the_nearest(
    modules: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    arguments = modules("arguments")
    presets = tmp_path / "configs.yml"
    presets.write_text("own: {model-sice: 8}\n")
    monkeypatch.setattr(arguments, "PRESETS", presets)
    with pytest.raises(SystemExit):
        arguments.parse_arguments(["--config", "own"])
    assert "unknown key 'model-sice'. Did you mean model-size?" in capsys.readouterr().err


def test_the_command_line_wins_over_a_preset_also_where_it_gives_an_alternative(
    modules: Any,
) -> None:
    parse = modules("arguments").parse_arguments
    preset = parse(["--config", "digits_resnet8"])
    assert (preset.epochs, preset.iterations, preset.batch_size) == (5, None, 64)
    own = parse(["--config", "digits_resnet8", "--iterations", "7", "--batch-size", "8"])
    assert (own.epochs, own.iterations, own.batch_size) == (None, 7, 8)


def test_options_of_other_devices_are_accepted_with_a_line(run: Any) -> None:
    code, _, err = run("--dry-run", "--select-ipu", "3", "--available-memory-proportion", "0.2")
    assert code == 0
    assert err.splitlines() == [
        "--available-memory-proportion has no effect: memory is allocated as it is needed.",
        "--select-ipu has no effect: devices are numbered from the first one.",
    ]


def test_the_launchers_replicas_and_workers_are_in_the_plan(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tfdist.cluster.instances import instance_environment

    told = {"index": 0, "num_instances": 2, "local_index": 0, "num_total_replicas": 8}
    for name, value in instance_environment(**told, devices_per_replica=1).items():
        monkeypatch.setenv(name, value)
    _, out, _ = run("--dry-run", "--batch-size", "4", "--replicas", "3")
    assert "global batch: 32 = micro-batch 4 x accumulation 1 x 4 replica(s) x 2 worker(s)" in out


def test_an_evaluator_without_its_option_is_refused(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = {"cluster": {"worker": ["localhost:1"]}, "task": {"type": "evaluator", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))
    code, _, err = run()
    assert code == 2
    assert "nothing to do without the option --evaluator" in err


def test_the_evaluator_and_the_workers_have_the_same_plan(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = {"worker": ["localhost:1", "localhost:2"]}
    plans = {}
    for task in ("worker", "evaluator"):
        config = {"cluster": cluster, "task": {"type": task, "index": 0}}
        monkeypatch.setenv("TF_CONFIG", json.dumps(config))
        code, plans[task], err = run("--dry-run", "--replicas", "2", "--evaluator")
        assert (code, err) == (0, "")
    assert plans["worker"] == plans["evaluator"]
    assert "2 replica(s) x 2 worker(s)" in plans["worker"]


def test_with_an_evaluator_the_launchers_replicas_must_be_given_as_well(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tfdist.cluster.instances import instance_environment

    told = {"index": 0, "num_instances": 2, "local_index": 0, "num_total_replicas": 8}
    launched = instance_environment(**told, devices_per_replica=1, has_evaluator=True)
    for name, value in launched.items():
        monkeypatch.setenv(name, value)
    code, _, err = run("--dry-run", "--evaluator")
    assert (code, err.count("\n")) == (2, 1)
    assert "give --replicas 4 as well" in err
    assert run("--dry-run", "--evaluator", "--replicas", "4")[0] == 0


def test_an_evaluator_validates_checkpoints_as_they_come_and_each_once(
    modules: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def save(step: int) -> None:
        (tmp_path / f"model.ckpt-{step}.index").touch()

    def validate(estimator: Any, checkpoint: str, *others: Any) -> None:
        step = checkpoints.step_of(checkpoint)
        validated.append(step)
        if step < 12:  # The training goes on meanwhile.
            save(step + 4)

    validation, checkpoints = modules("validation"), modules("checkpoints")
    monkeypatch.setattr(validation, "validate", validate)
    monkeypatch.setattr(validation, "LOOK_EVERY_S", 0.0)
    validated: list[int] = []
    for step in (0, 4, 8):
        save(step)
    # An evaluator before this one has validated the checkpoint of step 4.
    (tmp_path / "validation.csv").write_text("iteration,checkpoint\n4,model.ckpt-4\n")
    arguments = argparse.Namespace(weight_avg_N=(), weight_avg_exp=())
    plan = argparse.Namespace(num_steps=12)
    validation.validate_beside(None, tmp_path, arguments, plan, None, None)
    assert validated == [8, 12]


@pytest.mark.parametrize(
    ("size", "classes", "millions"),
    [(20, 10, 0.27), (32, 10, 0.46), (44, 10, 0.66), (56, 10, 0.85), (18, 1000, 11.69),
     (34, 1000, 21.80), (50, 1000, 25.56)],
)  # fmt: skip
def test_a_network_has_the_parameters_of_the_literature(
    modules: Any, size: int, classes: int, millions: float
) -> None:
    architecture = modules("architecture")
    segments = architecture.make_segments(size, 3, classes)
    assert architecture.count_parameters(segments) / 1e6 == pytest.approx(millions, abs=0.005)


def test_the_weighted_layers_are_as_many_as_the_name_says(modules: Any) -> None:
    architecture = modules("architecture")
    for size in architecture.SIZES:
        segments = architecture.make_segments(size, 3, 10)
        assert sum(len(segment.convolutions) for segment in segments) + 1 == size


def test_a_pipeline_is_cut_behind_the_named_points(run: Any) -> None:
    splits = ["--pipeline-splits", "init/relu", "b2/0/relu"]
    count = ["--gradient-accumulation-count", "5"]
    _, out, _ = run("--dry-run", "--pipeline", "--shards", "3", *splits, *count)
    assert [line.partition(",")[0].split(maxsplit=2)[2] for line in out.splitlines()[-3:]] == [
        "init/relu",
        "b1/0/relu to b2/0/relu",
        "b3/0/relu to head",
    ]


def test_a_run_does_not_take_the_folder_of_another(run: Any, tmp_path: Path) -> None:
    folder = tmp_path / "resnet8_digits_batch32_32.32"
    folder.mkdir()
    (folder / "model.ckpt-10.index").touch()
    code, _, err = run("--log-dir", str(tmp_path))
    assert code == 2
    assert f"Go on with it by --restore-path {folder}" in err


def test_a_run_goes_on_with_the_same_model_only(run: Any, tmp_path: Path) -> None:
    (tmp_path / "model.ckpt-10.index").touch()
    (tmp_path / "arguments.json").write_text(json.dumps({"model_size": 20}))
    code, _, err = run("--restore-path", str(tmp_path))
    assert code == 2
    assert "has model size 20, and this one 8" in err


def test_means_of_checkpoints_weigh_them_as_the_recursion_does(modules: Any) -> None:
    checkpoints = modules("checkpoints")
    assert checkpoints.mean_of_last(2, 4) == [0, 0, 0.5, 0.5]
    assert checkpoints.mean_of_last(9, 2) == [0.5, 0.5]
    values, mean = [3.0, 5.0, 11.0], 3.0
    for value in values[1:]:
        mean = 0.9 * mean + 0.1 * value
    weights = checkpoints.exponential_mean(0.9, 3)
    assert sum(w * v for w, v in zip(weights, values, strict=True)) == pytest.approx(mean)
