import signal
import sys
from collections.abc import Callable
from pathlib import Path

import machine
import peers
import pytest
import step_figures as figures
import step_times
from contender import CONTENDERS, Contender
from peers import why_missing
from results import Options, Part, Ratio
from step_times import make_contenders
from turn_taking import ContenderError, Turn, running

TAPE, DDP = peers.HOROVOD_TAPE, peers.TORCH_DDP
GRPC, HOROVOD = peers.OURS["gRPC"], peers.OURS["Horovod"]
BARE_GRPC, BARE_HOROVOD = figures.BARE["gRPC"], figures.BARE["Horovod"]


def turns(*milliseconds: float) -> list[Turn]:
    return [
        Turn(seconds=1e-3 * one, cpu_seconds=0.5e-3 * one, peak_bytes=700_000_000 + round(one))
        for one in milliseconds
    ]


# The second round was twice as slow for all; the ideal's third one was disturbed.
FOUND = {
    figures.IDEAL: turns(4, 8, 5),
    BARE_GRPC: turns(3, 6, 3),
    BARE_HOROVOD: turns(1, 2, 1),
    GRPC: turns(6, 12, 6),
    HOROVOD: turns(4.4, 8.8, 4.4),
    TAPE: turns(6.6, 13.2, 6.6),
    DDP: turns(4.8, 9.6, 4.8),
}


@pytest.fixture
def part() -> Part:
    return figures.make_part({"cnn": FOUND}, {"cnn": "CNN, 1.4 MB"}, ["MPI: not here."])


def ratio(part: Part, name: str) -> Ratio:
    (found,) = (one for one in part.ratios if one.name == name)
    return found


def test_ratios_are_taken_round_by_round(part: Part) -> None:
    found = ratio(part, "CNN, gRPC: step time against ideal")
    assert found.value == pytest.approx(1.5)  # of 1.5, 1.5, 1.2: the medians' ratio would be 1.2
    assert found.low == pytest.approx(1.35) and found.high == pytest.approx(1.5)
    assert (found.target, found.aim, found.is_reached()) == (1.55, 1.3, True)


def test_the_sum_is_the_ideal_and_the_bare_reduction_of_the_same_round(part: Part) -> None:
    assert part.data["step_seconds"]["cnn"]["sum, gRPC"] == pytest.approx([0.007, 0.014, 0.008])
    found = ratio(part, "CNN, Horovod: step time against sum")
    assert found.value == pytest.approx(0.88) and found.target == 1.03
    assert found.note == "the sum itself is 1.25 x ideal"


def test_a_peer_stands_beside_what_the_ideal_itself_would_have(part: Part) -> None:
    tape = ratio(part, f"CNN, Horovod: times as fast as {TAPE}")
    assert tape.value == pytest.approx(1.5) and tape.target == 1.3 and tape.is_reached()
    assert tape.note == "the ideal itself would be 1.65 times as fast"
    ddp = ratio(part, f"CNN, Horovod: times as fast as {DDP}")
    assert ddp.value == pytest.approx(4.8 / 4.4) and not ddp.is_reached()
    assert ddp.note.endswith("1.20 times as fast, so no library can reach the target")
    over_grpc = ratio(part, f"CNN, gRPC: times as fast as {TAPE}")
    assert over_grpc.value == pytest.approx(1.1) and over_grpc.target == 1.1


def test_who_did_not_take_part_is_in_no_table_and_no_ratio() -> None:
    few = {name: FOUND[name] for name in (figures.IDEAL, GRPC, DDP)}
    part = figures.make_part({"mlp": few}, {"mlp": "MLP, 33 MB"}, [])
    assert [one.name for one in part.ratios] == [
        "MLP, gRPC: step time against ideal",
        f"MLP, gRPC: times as fast as {DDP}",
    ]
    (table,) = part.tables
    assert [row[0] for row in table.rows] == [figures.IDEAL, GRPC, DDP]


def test_the_table_has_times_ratios_processor_time_and_memory(part: Part) -> None:
    rows = {row[0]: row[1:] for row in part.tables[0].rows}
    assert rows[GRPC] == ("6.00", "6.00 - 9.00", "6.00", "1.50", "3.00", "700")
    assert rows["sum, Horovod"] == ("6.00", "5.50 - 8.00", "5.00", "1.25", "", "")
    assert rows[BARE_GRPC][0] == "3.00" and rows[BARE_GRPC][3] == ""
    assert part.missing == ("MPI: not here.",)


def test_a_model_without_targets_has_them_for_peers_only() -> None:
    part = figures.make_part({"embedding": FOUND}, {"embedding": "sparse embedding, 51 MB"}, [])
    asked = {one.name for one in part.ratios if one.target is not None}
    assert asked == {
        f"sparse embedding, {engine}: times as fast as {peer}"
        for engine in ("gRPC", "Horovod")
        for peer in (TAPE, DDP)
    }


def test_a_real_model_is_refused_with_the_part_that_has_it() -> None:
    options = Options(rounds=1, models=("resnet-20",), cores=(0,), say=lambda line: None)
    with pytest.raises(ValueError, match=r"resnet-20 is no model of this part.* --only applicat"):
        step_times.measure(options)


def test_every_contender_has_a_program_and_two_workers() -> None:
    contenders = list(make_contenders("cnn"))
    assert contenders[0].name == figures.IDEAL  # what all others are divided by
    assert {one.name for one in contenders} == {
        figures.IDEAL,
        *figures.BARE.values(),
        *peers.OURS.values(),
        *figures.PEERS,
    }
    for one in contenders:
        assert one.num_workers == 2 and len(one.commands) in (1, 2)
        scripts = {part for line in one.commands for part in line if part.endswith(".py")}
        assert len(scripts) == 1 and all(Path(script).is_file() for script in scripts)


def test_a_quick_run_has_the_contenders_of_the_picture() -> None:
    assert {one.name for one in make_contenders("cnn", figures.DRAWN)} == set(figures.DRAWN)
    assert figures.DRAWN[0] == figures.IDEAL  # What the picture divides by.


def test_a_peer_that_is_not_installed_is_named_with_the_mend(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(peers, "version_in", lambda python, package: None)
    monkeypatch.setattr(peers, "OLD_PYTHON", tmp_path / "python")
    assert why_missing(figures.IDEAL) is None and why_missing(GRPC) is None
    assert "tfdist horovod install" in (why_missing(TAPE) or "")
    assert 'pip install ".[benchmark]"' in (why_missing(DDP) or "")
    assert "scripts/old_tensorflow.py" in (why_missing(peers.OLD_ESTIMATOR) or "")


@pytest.mark.processes
def test_pytorch_may_be_in_another_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = tmp_path / "python"
    other.write_text('#!/bin/sh\n[ "$3" = torch ] && echo 9.8.7\n')
    other.chmod(0o755)
    monkeypatch.setenv(peers.TORCH_VARIABLE, str(other))
    assert why_missing(DDP) is None
    assert machine.describe()["PyTorch"] == "9.8.7"
    (ddp,) = (one for one in make_contenders("cnn") if one.name == DDP)
    assert {command[0] for command in ddp.commands} == {str(other)}
    monkeypatch.setenv(peers.TORCH_VARIABLE, str(tmp_path / "nowhere"))
    assert f"PyTorch is not installed for {tmp_path / 'nowhere'}" in (why_missing(DDP) or "")


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
        monkeypatch.setattr(step_times, "make_contenders", lambda *asked: contenders)
        monkeypatch.setattr(step_times, "why_missing", lambda name: None)
        options = Options(rounds=2, models=("cnn",), cores=(0,), say=lambda line: None)
        return step_times.measure(options)

    return measure


@pytest.mark.processes
def test_who_fails_at_the_start_or_later_is_named_and_left_out(
    measure: Callable[..., Part],
) -> None:
    part = measure(
        contender(figures.IDEAL),
        contender(GRPC),
        contender(TAPE, max_steps=0),
        contender(DDP, max_steps=150),  # The warm-up takes 100 of them.
    )
    assert {name: len(own) for name, own in part.data["step_seconds"]["cnn"].items()} == {
        figures.IDEAL: 2,
        GRPC: 2,
    }
    assert part.missing == tuple(
        f"cnn: {name}: a worker ended. OSError: the network is down" for name in (TAPE, DDP)
    )


@pytest.mark.processes
def test_workers_are_killed_where_the_benchmark_is_interrupted() -> None:
    with pytest.raises(KeyboardInterrupt), running(contender(GRPC), (0,)) as run:
        run.take_turn(1)
        raise KeyboardInterrupt
    assert [one.returncode for one in run.processes] == [-signal.SIGKILL]


@pytest.mark.processes
def test_without_the_ideal_nothing_is_measured(measure: Callable[..., Part]) -> None:
    with pytest.raises(ContenderError, match=r"ideal: a worker ended.* network is down"):
        measure(contender(figures.IDEAL, max_steps=0), contender(GRPC))
