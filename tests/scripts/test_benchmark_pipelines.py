from typing import Any

import peers
import pipeline_peer_figures as figures
import pipeline_peers
import pipeline_work
import pytest
from contender import CONTENDERS
from pipeline_peer_figures import GPIPE, ONE_F_ONE_B, OURS, OURS_4, PLAIN, TORCH_PLAIN, Found
from results import Options, Part, Ratio
from rounds import Race
from turn_taking import ContenderError, Turn, running

# With m = 4 two stages can be 1.6 times as fast. The second round was twice as slow for all.
TIMES = {
    PLAIN: [0.160, 0.320],
    OURS: [0.110, 0.220],
    TORCH_PLAIN: [0.200, 0.400],
    ONE_F_ONE_B: [0.150, 0.300],
    GPIPE: [0.125, 0.250],
}
BYTES = {OURS: 30_000_000, ONE_F_ONE_B: 40_000_000, GPIPE: 20_000_000}


def part(**changes: Any) -> Part:
    values = {"title": "MLP", "step_seconds": {4: TIMES}, "step_bytes": BYTES} | changes
    return figures.make_part([Found(**values)], ["torchgpipe: not here."])


def ratio(of: Part, name: str) -> Ratio:
    (found,) = (one for one in of.ratios if one.name == f"MLP, m = {name}")
    return found


def test_a_share_divides_by_the_same_library_on_one_core_and_by_the_ideal() -> None:
    assert figures.ideal_speedup(4) == 1.6
    shares = figures.shares(TIMES, 4)
    assert shares[OURS] == pytest.approx([160 / 110 / 1.6] * 2)
    assert shares[ONE_F_ONE_B] == pytest.approx([200 / 150 / 1.6] * 2)
    assert shares[GPIPE] == pytest.approx([1.0] * 2)


def test_tfdist_is_asked_for_a_higher_share_than_each_peer() -> None:
    own = ratio(part(), "4: share of the ideal")
    assert own.value == pytest.approx(0.909, abs=1e-3) and own.target is None
    assert own.note == "1.45 of 1.60 times as fast"
    against = ratio(part(), f"4: share of the ideal against {ONE_F_ONE_B}")
    assert against.value == pytest.approx(12 / 11) and against.is_reached() is True
    assert ratio(part(), f"4: share of the ideal against {GPIPE}").is_reached() is False


def test_four_stages_are_asked_to_be_as_fast_as_two_and_have_an_ideal_of_their_own() -> None:
    of_eight = part(step_seconds={8: TIMES | {OURS_4: [0.104, 0.208]}})
    found = ratio(of_eight, "8: 4 stages on 4 devices, times as fast as 2 stages")
    assert found.value == pytest.approx(110 / 104) and found.is_reached() is True
    assert found.note == "at best 1.09"  # (8 + 1) / (8 + 1/4)
    [row] = [row for row in of_eight.tables[0].rows if row[1] == OURS_4]
    assert row[4:6] == ("1.54", f"{100 * 160 / 104 * 8.25 / 16:.1f} %")


def test_tfdist_is_asked_for_no_more_memory_than_each_peer() -> None:
    assert ratio(part(), f"16: memory of a step against {ONE_F_ONE_B}").value == 0.75
    assert ratio(part(), f"16: memory of a step against {GPIPE}").is_reached() is False


def test_a_row_has_time_speed_up_share_and_memory_of_the_most_micro_batches() -> None:
    (table,) = part(step_seconds={4: TIMES, 16: TIMES}).tables
    rows = {row[:2]: row[2:] for row in table.rows}
    assert rows["4", OURS] == ("165.0", "137.5 - 192.5", "1.45", "90.9 %", "")
    assert rows["16", OURS][-1] == "30"
    assert rows["16", PLAIN] == ("240.0", "200.0 - 280.0", "", "", "")


def test_without_pytorch_its_rows_and_ratios_are_left_out() -> None:
    few = {name: TIMES[name] for name in (PLAIN, OURS)}
    alone = part(step_seconds={4: few}, step_bytes={OURS: 30_000_000})
    assert [one.name for one in alone.ratios] == ["MLP, m = 4: share of the ideal"]
    assert [row[1] for row in alone.tables[0].rows] == [PLAIN, OURS]
    assert alone.missing == ("torchgpipe: not here.",)


@pytest.mark.parametrize("name", pipeline_work.TITLES)
def test_both_libraries_cut_the_same_network_into_equal_stages(name: str) -> None:
    for num_stages in (2, 4):
        stages = pipeline_work.cut(name, num_stages)
        assert len(stages) == num_stages and len({len(stage) for stage in stages}) == 1
        assert [n for stage in stages for n in stage] == list(range(pipeline_work.NUM_BLOCKS[name]))
    contenders = list(pipeline_peers.make_contenders(name, 8))
    assert {one.name: one.num_workers for one in contenders} == {
        PLAIN: 1,
        OURS: 1,
        OURS_4: 1,
        TORCH_PLAIN: 1,
        ONE_F_ONE_B: 2,
        GPIPE: 2,
    }
    for contender in contenders:
        assert len(contender.commands) == contender.num_workers
        for command in contender.commands:
            assert (CONTENDERS / command[1]).is_file() and command[2:4] == [name, "8"]
    # An update of four stages needs seven micro-batches.
    assert OURS_4 not in {one.name for one in pipeline_peers.make_contenders(name, 4)}


def test_turns_have_as_many_micro_batches_and_what_is_missing_is_said_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[str, int]] = []
    turn = Turn(seconds=0.1, cpu_seconds=0.1, peak_bytes=0)

    def take_rounds(race: Race, options: Options) -> Any:
        asked.append((race.label, race.steps))
        reason = race.why_missing(ONE_F_ONE_B)
        return type("Rounds", (), {"turns": {PLAIN: [turn], OURS: [turn]}, "missing": [reason]})

    def fail(*_: Any) -> Any:
        raise ContenderError("exit code 1.")

    monkeypatch.setattr(peers, "version_in", lambda python, package: None)
    monkeypatch.setattr(pipeline_peers, "take_rounds", take_rounds)
    monkeypatch.setattr(pipeline_peers, "running", fail)
    options = Options(rounds=1, models=(), cores=(0, 1), say=lambda line: None)
    measured = pipeline_peers.measure(options)
    steps = [steps for label, steps in asked if label.startswith("MLP")]
    assert steps == [8, 4, 2] and len(asked) == 6
    torchgpipe, torch, *failed = measured.missing
    assert torchgpipe.startswith("torchgpipe: ") and 'pip install ".[benchmark]"' in torch
    assert failed == [f"{title}, memory: exit code 1." for title in pipeline_work.TITLES.values()]


@pytest.mark.processes
def test_plain_tensorflow_takes_turns_and_says_how_many_values_it_trains() -> None:
    contender = next(pipeline_peers.make_contenders(pipeline_work.DENSE, 4))
    with running(contender, (0, 0)) as run:
        assert run.num_parameters == 2_335_754
        assert run.take_turn(1).seconds > 0
        assert run.take_turn(1, watches_memory=True).step_bytes >= 0
