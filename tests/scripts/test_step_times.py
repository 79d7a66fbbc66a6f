import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import applications
import fit_times
import machine
import peers
import pytest
import rounds
import step_times
from contender import CONTENDERS, Contender
from peers import HOROVOD_TAPE, IDEAL, OURS, TORCH_DDP, why_missing
from results import Options, Part
from rounds import Found, Race
from turn_taking import ContenderError, Turn, running

GRPC, HOROVOD = OURS["gRPC"], OURS["Horovod"]


def options(*models: str, rounds: int = 2) -> Options:
    return Options(rounds=rounds, models=models, cores=(0,), say=lambda line: None)


def measured(*milliseconds: float) -> list[Turn]:
    return [Turn(seconds=1e-3 * one, peak_bytes=700_000_000) for one in milliseconds]


def test_steps_are_compared_with_the_ideal_and_peers_with_tfdist(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The second round was twice as slow for all; the ideal's third one was disturbed.
    turns = {IDEAL: measured(4, 8, 5), GRPC: measured(6, 12, 6), TORCH_DDP: measured(4.8, 9.6, 4.8)}
    found = Found(turns=turns, missing=["MPI: not here."])
    monkeypatch.setattr(rounds, "take_rounds", lambda race, options: found)
    part = step_times.measure(options("cnn"))
    # Of 1.5, 1.5 and 1.2: the medians' ratio would be 1.2.
    low, median, high = part.ratios["CNN, gRPC: step over ideal"]
    assert (low, median, high) == pytest.approx((1.35, 1.5, 1.5))
    assert part.ratios[f"CNN, gRPC: times as fast as {TORCH_DDP}"][1] == pytest.approx(0.8)
    assert len(part.ratios) == 2  # Who did not take part is not in it.
    assert part.groups["CNN, 1.4 MB"][GRPC].peak_mb == 700
    assert part.missing == ("MPI: not here.",)


@pytest.mark.parametrize(
    ("part", "model", "said"),
    [
        (step_times, "resnet-20", r"resnet-20 is no model of this part.* --only applicat"),
        (fit_times, "embedding", "embedding is no model of this part. Choose from cnn, mlp, resne"),
    ],
)
def test_a_model_of_another_part_is_refused(part: object, model: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        part.measure(options(model))  # type: ignore[attr-defined]


def all_contenders() -> Iterator[tuple[Contender, ...]]:
    yield tuple(step_times.make_contenders("cnn"))
    for race in (fit_times.over_horovod, fit_times.over_tensorflow, fit_times.others):
        for model in fit_times.MODELS:
            yield tuple(race(model))


def test_every_contender_has_a_program_and_two_workers() -> None:
    for contenders in all_contenders():
        assert contenders[0].name == IDEAL  # what all others are divided by
        for one in contenders:
            assert one.num_workers == 2 and len(one.commands) in (1, 2)
            scripts = {part for line in one.commands for part in line if part.endswith(".py")}
            assert len(scripts) == 1 and all(Path(script).is_file() for script in scripts)


def test_a_quick_run_has_the_contenders_of_the_picture() -> None:
    names = {one.name for one in step_times.make_contenders("cnn", step_times.DRAWN)}
    assert names == set(step_times.DRAWN)


def test_fit_is_compared_with_loops_and_peers_that_took_turns_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:

    def take_rounds(race: Race, options: Options) -> Found:
        names = [one.name for one in race.contenders]
        return Found(turns={name: measured(4 + place) for place, name in enumerate(names)})

    monkeypatch.setattr(rounds, "take_rounds", take_rounds)
    part = fit_times.measure(options("cnn", "bert-mini", rounds=1))
    names = {name for name, _, _ in fit_times.pairs("CNN")}
    assert names | {name for name, _, _ in fit_times.pairs("BERT mini")} == set(part.ratios)
    contenders = part.groups["BERT mini"]
    assert {*fit_times.FITS.values(), *fit_times.LOOPS.values()} < contenders.keys()
    assert {*fit_times.ESTIMATORS.values(), TORCH_DDP} < contenders.keys()
    assert part.ratios["CNN, Horovod, Keras 3: fit over ideal"][1] == pytest.approx(6 / 4)
    assert part.ratios["CNN, Horovod, Keras 3: fit over plain fit"][1] == pytest.approx(6 / 5)


def test_a_peer_that_is_not_installed_is_named_with_the_fix(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(peers, "version_in", lambda python, package: None)
    monkeypatch.setattr(peers, "OLD_PYTHON", tmp_path / "python")
    assert why_missing(IDEAL) is None and why_missing(GRPC) is None
    assert "tfdist horovod install" in (why_missing(HOROVOD_TAPE) or "")
    assert 'pip install ".[benchmark]"' in (why_missing(TORCH_DDP) or "")
    assert "scripts/old_tensorflow.py" in (why_missing(peers.OLD_ESTIMATOR) or "")
    alone = peers.OLD_ESTIMATOR + applications.ONE_WORKER
    assert why_missing(alone) == why_missing(peers.OLD_ESTIMATOR)


@pytest.mark.processes
def test_pytorch_may_be_in_another_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = tmp_path / "python"
    other.write_text('#!/bin/sh\n[ "$3" = torch ] && echo 9.8.7\n')
    other.chmod(0o755)
    monkeypatch.setenv(peers.TORCH_VARIABLE, str(other))
    assert why_missing(TORCH_DDP) is None
    assert machine.describe()["PyTorch"] == "9.8.7"
    (ddp,) = (one for one in step_times.make_contenders("cnn") if one.name == TORCH_DDP)
    assert {command[0] for command in ddp.commands} == {str(other)}
    monkeypatch.setenv(peers.TORCH_VARIABLE, str(tmp_path / "nowhere"))
    assert f"PyTorch is not installed for {tmp_path / 'nowhere'}" in (why_missing(TORCH_DDP) or "")


WORKER = f"""
import sys
sys.path.append({str(CONTENDERS)!r})
import turns
my_turns, steps = turns.Turns(0), 0
while my_turns.goes_on():
    steps += 1
    if steps > int(sys.argv[1]):
        sys.exit("OSError: the network is down")
"""


def contender(name: str, max_steps: int = 10**9) -> Contender:
    """One process that does nothing in a step, and ends itself after so many."""
    command = [sys.executable, "-c", WORKER, str(max_steps)]
    return Contender(name=name, commands=[command], num_workers=1)


@pytest.fixture
def measure(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Part]:
    """Measures some contenders in two rounds."""

    def measure(*contenders: Contender) -> Part:
        monkeypatch.setattr(step_times, "make_contenders", lambda *requested: contenders)
        monkeypatch.setattr(rounds, "why_missing", lambda name: None)
        return step_times.measure(options("cnn"))

    return measure


@pytest.mark.processes
def test_who_fails_at_the_start_or_later_is_named_and_left_out(
    measure: Callable[..., Part],
) -> None:
    part = measure(
        contender(IDEAL),
        contender(GRPC),
        contender(HOROVOD_TAPE, max_steps=0),
        contender(TORCH_DDP, max_steps=150),  # The warm-up takes 100 of them.
    )
    assert part.groups["CNN, 1.4 MB"].keys() == {IDEAL, GRPC}
    assert part.missing == tuple(
        f"cnn: {name}: a worker ended. OSError: the network is down"
        for name in (HOROVOD_TAPE, TORCH_DDP)
    )


@pytest.mark.processes
def test_workers_are_killed_where_the_benchmark_is_interrupted() -> None:
    with pytest.raises(KeyboardInterrupt), running(contender(GRPC), (0,)) as run:
        run.take_turn(1)
        raise KeyboardInterrupt
    assert [one.returncode for one in run.processes] == [-signal.SIGKILL]


@pytest.mark.processes
def test_a_worker_that_ended_between_two_turns_is_named() -> None:
    with running(contender(GRPC, max_steps=1), (0,)) as run:
        run.take_turn(1)
        run.kill()
        run.processes[0].wait()
        with pytest.raises(ContenderError, match=f"{GRPC}: a worker ended"):
            run.take_turn(1)


@pytest.mark.processes
def test_without_the_ideal_nothing_is_measured(measure: Callable[..., Part]) -> None:
    with pytest.raises(ContenderError, match=r"ideal: a worker ended.* network is down"):
        measure(contender(IDEAL, max_steps=0), contender(GRPC))


@pytest.mark.processes
def test_a_contender_in_tensorflow_2_takes_turns_and_builds_its_model() -> None:
    name = fit_times.FITS["gRPC", "Keras 3"]
    (found,) = (one for one in fit_times.over_tensorflow("cnn") if one.name == name)
    with running(found, (0, 1)) as run:
        assert run.num_parameters == 347_146
        assert run.take_turn(1).seconds > 0
