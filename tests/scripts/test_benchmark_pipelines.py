import pipeline_work
import pipelines
import pytest
from contender import CONTENDERS
from pipelines import GPIPE, ONE_F_ONE_B, OURS, OURS_4, PLAIN, TORCH_PLAIN
from turn_taking import Turn, running


def turns(*milliseconds: float) -> list[Turn]:
    return [Turn(seconds=1e-3 * one, peak_bytes=0) for one in milliseconds]


# With m = 4 two stages can be 1.6 times as fast. The second round was twice as slow for all.
TURNS = {
    PLAIN: turns(160, 320),
    OURS: turns(110, 220),
    TORCH_PLAIN: turns(200, 400),
    ONE_F_ONE_B: turns(150, 300),
    GPIPE: turns(125, 250),
}


def test_a_pipeline_is_over_the_ideal_of_the_same_library() -> None:
    rows = pipelines.rows(TURNS, 4, {OURS: 30_000_000})
    assert rows[OURS].over[1] == pytest.approx(110 / (160 / 1.6))
    assert rows[ONE_F_ONE_B].over[1] == pytest.approx(150 / (200 / 1.6))
    assert rows.keys() == {OURS, ONE_F_ONE_B, GPIPE}
    assert (rows[OURS].peak_mb, rows[GPIPE].peak_mb) == (30, None)


def test_shares_are_compared_with_each_peer() -> None:
    ratios = pipelines.ratios_of("MLP", TURNS, 4)
    assert ratios["MLP: share of the ideal"][1] == pytest.approx(160 / 110 / 1.6)
    against = ratios[f"MLP: share of the ideal over that of {ONE_F_ONE_B}"][1]
    assert against == pytest.approx(12 / 11)
    assert pipelines.ratios_of("MLP", {PLAIN: TURNS[PLAIN]}, 4) == {}


def test_four_stages_have_an_ideal_of_their_own() -> None:
    times = pipelines.ideal_seconds(TURNS, OURS_4, 8)
    assert times == pytest.approx([0.160 * 8.25 / 16, 0.320 * 8.25 / 16])


@pytest.mark.parametrize("name", pipeline_work.TITLES)
def test_both_libraries_cut_the_same_network_into_equal_stages(name: str) -> None:
    for num_stages in (2, 4):
        stages = pipeline_work.cut(name, num_stages)
        assert len(stages) == num_stages and len({len(stage) for stage in stages}) == 1
        assert [n for stage in stages for n in stage] == list(range(pipeline_work.NUM_BLOCKS[name]))
    contenders = list(pipelines.make_contenders(name, 8))
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
    assert OURS_4 not in {one.name for one in pipelines.make_contenders(name, 4)}


@pytest.mark.processes
def test_plain_tensorflow_takes_turns_and_says_how_many_values_it_trains() -> None:
    contender = next(pipelines.make_contenders(pipeline_work.DENSE, 4))
    with running(contender, (0, 0)) as run:
        assert run.num_parameters == 2_335_754
        assert run.take_turn(1).seconds > 0
        assert run.take_turn(1, watches_memory=True).step_bytes >= 0
