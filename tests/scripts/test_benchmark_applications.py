from types import SimpleNamespace
from typing import Any

import application_figures as figures
import applications
import peers
import pytest
from application_figures import IDEAL, contender_name
from contender import CONTENDERS
from peers import HOROVOD_FIT, MIRRORED_STEP, OLD_ESTIMATOR, OURS, TORCH_DDP
from results import Options, Part, Ratio
from rounds import Found, Race
from turn_taking import ContenderError, Turn

MODEL, TITLE = "resnet-20", "ResNet-20"


def turns(*milliseconds: float) -> list[Turn]:
    return [
        Turn(seconds=1e-3 * one, cpu_seconds=0.0, peak_bytes=700_000_000 + round(1e6 * one))
        for one in milliseconds
    ]


# The second round was twice as slow for all.
FOUND = {
    contender_name(IDEAL, 1): turns(100, 200, 100),
    IDEAL: turns(104, 208, 104),
    OURS["Horovod"]: turns(105, 210, 110),
    OURS["gRPC"]: turns(125, 250, 125),
    contender_name(HOROVOD_FIT, 1): turns(110, 220, 110),
    HOROVOD_FIT: turns(120, 240, 120),
}
# Later the machine was slower, for tfdist too.
FURTHER = {OURS["Horovod"]: turns(210, 210, 210), TORCH_DDP: turns(160, 160, 160)}


def part(**changes: Any) -> Part:
    groups = [FOUND | changes, FURTHER]
    return figures.make_part({MODEL: groups}, {MODEL: 64}, {MODEL: TITLE}, ["A peer: not here."])


def ratio(of: Part, name: str) -> Ratio:
    (found,) = (one for one in of.ratios if one.name == f"{TITLE}, {name}")
    return found


def test_efficiency_divides_one_worker_by_two_of_the_same_round() -> None:
    horovod = ratio(part(), "Horovod: efficiency of two workers")
    assert horovod.value == pytest.approx(100 / 105)  # of 0.952, 0.952, 0.909
    assert (horovod.target, horovod.is_reached()) == (0.93, True)
    assert horovod.note == "without a reduction 0.96"
    grpc = ratio(part(), "gRPC: efficiency of two workers")
    assert grpc.value == pytest.approx(0.8) and grpc.is_reached() is False


def test_a_target_that_the_machine_leaves_no_room_for_is_not_asked() -> None:
    crowded = part(**{IDEAL: turns(110, 220, 110)})
    horovod = ratio(crowded, "Horovod: efficiency of two workers")
    assert horovod.target is None
    assert horovod.note == "without a reduction 0.91: the machine leaves no room for 0.93"
    assert ratio(crowded, "gRPC: efficiency of two workers").target == 0.9


def test_no_peer_on_tensorflow_may_be_faster_and_pytorch_is_told() -> None:
    fit = ratio(part(), f"gRPC: times as fast as {HOROVOD_FIT}")
    assert fit.value == pytest.approx(0.96) and fit.is_reached() is False
    assert ratio(part(), f"Horovod: times as fast as {HOROVOD_FIT}").is_reached() is True
    torch = ratio(part(), f"Horovod: times as fast as {TORCH_DDP}")
    assert torch.value == pytest.approx(160 / 210)  # Of the group that had both.
    assert torch.is_reached() is None
    assert not any("gRPC: times as fast as PyTorch" in one.name for one in part().ratios)


def test_a_row_has_throughput_efficiency_and_memory_of_one_and_two_workers() -> None:
    (table,) = part().tables
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows[HOROVOD_FIT] == ("581.8", "1066.7", "0.917", "920", "940")
    # One worker of tfdist is the same over both engines.
    assert rows[OURS["gRPC"]] == ("640.0", "1024.0", "0.800", "900", "950")
    assert rows[TORCH_DDP] == ("", "800.0", "", "", "860")  # One worker did not take part.
    assert set(rows) == {IDEAL, *OURS.values(), HOROVOD_FIT, TORCH_DDP}
    assert part().missing == ("A peer: not here.",)


def test_each_library_has_one_and_two_workers_and_its_program() -> None:
    first, further = applications.first_contenders(MODEL), applications.further_contenders(MODEL)
    contenders = [*first, *further]
    alone = {contender_name(name, 1) for name in figures.LIBRARIES}
    assert [one.name for one in contenders if one.num_workers == 1] == [
        name for name in dict.fromkeys(one.name for one in contenders) if name in alone
    ]
    assert {one.name for one in contenders} == alone | set(figures.LIBRARIES)
    for contender in contenders:
        for command in contender.commands:
            (script,) = (one for one in command if one.endswith(".py"))
            assert (CONTENDERS / script).is_file() and MODEL in command


def test_a_peer_that_is_not_installed_is_named_with_the_fix(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setattr(peers, "version_in", lambda python, package: None)
    monkeypatch.setattr(peers, "OLD_PYTHON", tmp_path / "python")
    for library, fix in {
        HOROVOD_FIT: "tfdist horovod install",
        TORCH_DDP: 'pip install ".[benchmark]"',
        OLD_ESTIMATOR: "scripts/old_tensorflow.py",
    }.items():
        reason = applications.why_missing(contender_name(library, 1))
        assert reason == applications.why_missing(library)
        assert reason is not None and reason.startswith(f"{library}: ") and fix in reason
    assert applications.why_missing(MIRRORED_STEP) is None


def test_another_number_of_parameters_is_refused() -> None:
    run: Any = SimpleNamespace(contender=SimpleNamespace(name="A peer"), num_parameters=269_723)
    with pytest.raises(ContenderError, match="A peer trains 269,723 values, and the example 269,7"):
        applications.check_parameters(MODEL, run)
    run.num_parameters = 269_722
    applications.check_parameters(MODEL, run)


def test_both_models_are_measured_and_what_is_missing_is_said_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rounds: list[int] = []

    def take_rounds(race: Race, options: Options) -> Found:
        rounds.append(options.rounds)
        return Found(turns=dict(FOUND), missing=["PyTorch: not installed."])

    monkeypatch.setattr(applications, "take_rounds", take_rounds)
    options = Options(rounds=20, models=(), cores=(0, 1), say=lambda line: None)
    measured = applications.measure(options)
    assert [table.title for table in measured.tables] == [TITLE, "BERT mini"]
    assert measured.missing == ("PyTorch: not installed.",)
    assert rounds == [applications.MAX_ROUNDS] * 4  # Two groups of two models.
    assert measured.data["batch_sizes"] == {MODEL: 64, "bert-mini": 8}
