from types import SimpleNamespace
from typing import Any

import applications
import pytest
import rounds
from applications import ALONE, ONE_WORKER, PEERS
from contender import CONTENDERS
from peers import HOROVOD_FIT, IDEAL, OURS, TORCH_DDP
from results import Options
from rounds import Found, Race
from turn_taking import ContenderError, Turn

MODEL = "resnet-20"


def turns(*milliseconds: float) -> list[Turn]:
    return [
        Turn(seconds=1e-3 * one, peak_bytes=700_000_000 + round(1e6 * one)) for one in milliseconds
    ]


# The second round was twice as slow for all.
FIRST = {
    ALONE: turns(100, 200, 100),
    IDEAL: turns(104, 208, 104),
    OURS["Horovod"]: turns(105, 210, 110),
    OURS["gRPC"]: turns(125, 250, 125),
    HOROVOD_FIT + ONE_WORKER: turns(110, 220, 110),
    HOROVOD_FIT: turns(120, 240, 120),
}
# Later the machine was slower, for tfdist too.
FURTHER = {OURS["Horovod"]: turns(210, 210, 210), TORCH_DDP: turns(160, 160, 160)}


def test_both_models_are_measured_in_two_races_and_compared_within_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    requested: list[int] = []

    def take_rounds(race: Race, options: Options) -> Found:
        requested.append(options.rounds)
        of_race = FIRST if race.needed == IDEAL else FURTHER
        return Found(turns=dict(of_race), missing=["PyTorch: not installed."])

    monkeypatch.setattr(rounds, "take_rounds", take_rounds)
    part = applications.measure(Options(rounds=20, models=(), cores=(0, 1), say=lambda line: None))
    assert requested == [applications.MAX_ROUNDS] * 4  # Two races of two models.
    assert list(part.groups) == ["ResNet-20", "BERT mini"]
    assert part.missing == ("PyTorch: not installed.",)
    # Of 0.952, 0.952 and 0.909: the times of the same round.
    efficiency = part.ratios["ResNet-20: efficiency of two workers, tfdist, Horovod"]
    assert efficiency[1] == pytest.approx(100 / 105)
    horovod = part.ratios[f"ResNet-20: efficiency of two workers, {HOROVOD_FIT}"]
    assert horovod[1] == pytest.approx(110 / 120)
    # Of the race that had both.
    torch = part.ratios[f"ResNet-20, Horovod: times as fast as {TORCH_DDP}"]
    assert torch[1] == pytest.approx(160 / 210)
    assert f"ResNet-20, gRPC: times as fast as {TORCH_DDP}" not in part.ratios
    rows = part.groups["ResNet-20"]
    assert rows[OURS["Horovod"]].over[1] == pytest.approx(105 / 104)
    assert rows[TORCH_DDP].over[1] == pytest.approx(160 / 104)
    assert rows[ALONE].peak_mb == 900


def test_each_library_has_one_and_two_workers_and_its_program() -> None:
    first, further = applications.first_contenders(MODEL), applications.further_contenders(MODEL)
    contenders = [*first, *further]
    alone = {ALONE, *(peer + ONE_WORKER for peer in PEERS)}
    assert {one.name for one in contenders if one.num_workers == 1} == alone
    assert {one.name for one in contenders} == alone | {IDEAL, *OURS.values(), *PEERS}
    for contender in contenders:
        for command in contender.commands:
            (script,) = (one for one in command if one.endswith(".py"))
            assert (CONTENDERS / script).is_file() and MODEL in command


def test_another_number_of_parameters_is_refused() -> None:
    run: Any = SimpleNamespace(contender=SimpleNamespace(name="A peer"), num_parameters=269_723)
    with pytest.raises(ContenderError, match="A peer trains 269,723 values, and the example 269,7"):
        applications.check_parameters(MODEL, run)
    run.num_parameters = 269_722
    applications.check_parameters(MODEL, run)
