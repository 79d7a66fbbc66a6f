"""Stages as a user writes them, the plan made of them, and what the plan asks for."""

from typing import Any

import pytest

from tfdist.pipeline.stage_plan import (
    FoundBlock,
    PlannedStage,
    check_plan,
    devices_per_replica,
    plan_stages,
    replica_devices,
)
from tfdist.pipeline.stages import AutoStage, PipelinedExecution, ShardedExecution, Stage

SAME, INCREMENT = AutoStage.SAME_AS_DEVICE, AutoStage.AUTO_INCREMENT
STRATEGIES = [PipelinedExecution, ShardedExecution]


def found(*blocks: Any) -> list[FoundBlock]:
    """Blocks from names, or from pairs of a name and a device."""
    pairs = [(block, None) if isinstance(block, str) else block for block in blocks]
    return [FoundBlock(name, device) for name, device in pairs]


def planned(*stages: tuple[str, int]) -> tuple[PlannedStage, ...]:
    """Stages from pairs such as ("B1+B2", 0)."""
    return tuple(PlannedStage(tuple(names.split("+")), device) for names, device in stages)


FOUR = found("B1", "B2", "B3", "B4")
IN_FOUR = planned(("B1", 0), ("B2", 1), ("B3", 2), ("B4", 3))


# Stage


def test_a_stage_shows_itself_as_one_writes_it() -> None:
    assert repr(Stage("B1", "B2").device(0)) == 'Stage("B1", "B2").device(0)'
    assert repr(Stage("B1")) == 'Stage("B1")'


def test_a_device_makes_another_stage_and_leaves_the_first() -> None:
    stage = Stage("B1")
    assert stage.device(1) == Stage("B1").device(1) != stage
    assert stage.device_index is None
    assert stage.device(1).device(2) == stage.device(2)


@pytest.mark.parametrize(
    ("names", "error", "words"),
    [
        ((), ValueError, "at least one block, got none"),
        ((1,), TypeError, r"named by strings, got 1 \(int\)"),
        ((["B1", "B2"],), TypeError, r'got .* \(list\). Write Stage\("B1", "B2"\)'),
        (("B1", "B2", "B1"), ValueError, 'block "B1" comes 2 times'),
    ],
)
def test_a_stage_without_good_names_is_refused(
    names: tuple[Any, ...], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        Stage(*names)


@pytest.mark.parametrize("index", [True, "0", 1.0, None])
def test_a_device_that_is_no_integer_is_refused(index: Any) -> None:
    with pytest.raises(TypeError, match=r"is an integer, got .* Write device\(0\)"):
        Stage("B1").device(index)


def test_a_device_below_0_is_refused() -> None:
    with pytest.raises(ValueError, match="0 or above, got -1"):
        Stage("B1").device(-1)


# Execution strategies


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_names_and_lists_of_names_are_stages_too(strategy: Any) -> None:
    written_long = strategy(Stage("B1"), Stage("B2", "B3"), Stage("B4").device(0))
    assert strategy("B1", ["B2", "B3"], Stage("B4").device(0)) == written_long
    assert strategy("B1", ("B2", "B3"), Stage("B4").device(0)) == written_long


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_without_arguments_the_stages_follow_the_blocks_devices(strategy: Any) -> None:
    assert strategy() == strategy(SAME) != strategy(INCREMENT)


def test_strategies_are_equal_only_in_kind_stages_and_schedule() -> None:
    assert PipelinedExecution("B1") != ShardedExecution("B1")
    assert PipelinedExecution("B1") != PipelinedExecution("B2")
    assert PipelinedExecution("B1") != PipelinedExecution("B1", schedule="grouped")
    assert len({PipelinedExecution("B1"), PipelinedExecution("B1")}) == 1


def test_schedules_are_interleaved_by_default_and_sequential_when_sharded() -> None:
    assert PipelinedExecution().schedule == "interleaved"
    assert ShardedExecution().schedule == "sequential"


@pytest.mark.parametrize(
    "shown",
    [
        "PipelinedExecution(AutoStage.SAME_AS_DEVICE)",
        'PipelinedExecution(Stage("B1"), Stage("B2", "B3").device(1))',
        'PipelinedExecution(Stage("B1"), schedule="grouped")',
        'ShardedExecution(Stage("B1").device(0))',
        "PipelinedExecution(\n"
        '    Stage("B1").device(0),\n'
        '    Stage("B2").device(1),\n'
        '    Stage("B3").device(2),\n'
        '    schedule="sequential",\n'
        ")",
    ],
)
def test_a_strategy_shows_itself_as_one_writes_it(shown: str) -> None:
    assert repr(eval(shown)) == shown


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("B1", "B1"), r'"B1" is in two stages, Stage\("B1"\) and Stage\("B1"\)'),
        ((["B1", "B2"], "B2"), r'"B2" is in two stages, Stage\("B1", "B2"\) and'),
        ((SAME, "B1"), "stands alone, got AutoStage.SAME_AS_DEVICE and 'B1'"),
        (("B1", INCREMENT), "stands alone"),
        ((SAME, SAME), "stands alone"),
        (([],), "at least one block, got none"),
    ],
)
def test_stages_that_do_not_go_together_are_refused(
    strategy: Any, args: tuple[Any, ...], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        strategy(*args)


@pytest.mark.parametrize("arg", [1, None, {"B1"}, [Stage("B1")], Stage, AutoStage])
def test_what_is_no_stage_is_refused(arg: Any) -> None:
    with pytest.raises(TypeError, match=r"takes stages, names of blocks.*got .* Write Pipelined"):
        PipelinedExecution(arg)


def test_an_unknown_schedule_is_refused() -> None:
    words = '\'1f1b\' is not known. Write "grouped", "interleaved" or "sequential"'
    with pytest.raises(ValueError, match=words):
        PipelinedExecution("B1", schedule="1f1b")  # type: ignore[arg-type]


# The plan


def test_a_name_is_a_stage_on_the_device_with_its_number() -> None:
    assert plan_stages(PipelinedExecution("B1", "B2", "B3", "B4"), FOUR) == IN_FOUR
    assert plan_stages(ShardedExecution("B1", "B2", "B3", "B4"), FOUR) == IN_FOUR


def test_a_planned_stage_is_named_by_its_blocks_in_the_models_order() -> None:
    stages = plan_stages(PipelinedExecution(["B2", "B1"], ["B3", "B4"]), FOUR)
    assert [stage.name for stage in stages] == ["B1+B2", "B3+B4"]


@pytest.mark.parametrize(
    ("strategy", "blocks", "stages"),
    [
        pytest.param(
            PipelinedExecution(Stage("B1").device(4), "B2", "B3"),
            found(("B1", 5), ("B2", 6), "B3"),
            planned(("B1", 4), ("B2", 6), ("B3", 2)),
            id="a stage's own device goes before its blocks', and these before its number",
        ),
        pytest.param(
            PipelinedExecution(["B1", "B2"], "B3"),
            found("B1", ("B2", 3), ("B3", 0)),
            planned(("B1+B2", 3), ("B3", 0)),
            id="a block without a device follows the others of its stage",
        ),
        pytest.param(
            PipelinedExecution(Stage("B1").device(0), Stage("B2").device(0), ["B3", "B4"]),
            FOUR,
            planned(("B1+B2", 0), ("B3+B4", 2)),
            id="neighbours on one device become one stage",
        ),
        pytest.param(
            PipelinedExecution(Stage("B4", "B1").device(0), Stage("B3", "B2").device(0)),
            FOUR,
            planned(("B1+B2+B3+B4", 0)),
            id="on one device the order of stages does not matter",
        ),
        pytest.param(
            PipelinedExecution(*(Stage(f"B{n}").device(n % 2) for n in range(1, 5))),
            FOUR,
            planned(("B1", 1), ("B2", 0), ("B3", 1), ("B4", 0)),
            id="a device may come again later",
        ),
        pytest.param(
            PipelinedExecution(),
            found(("B1", 1), ("B2", 1), ("B3", 0)),
            planned(("B1+B2", 1), ("B3", 0)),
            id="blocks with the same device form a stage",
        ),
    ],
)
def test_the_plan_has_the_stages_in_the_order_of_the_forward_pass(
    strategy: PipelinedExecution, blocks: list[FoundBlock], stages: tuple[PlannedStage, ...]
) -> None:
    assert plan_stages(strategy, blocks) == stages


def test_by_auto_increment_each_block_is_a_stage_unless_it_names_the_device_of_the_one_before() -> (
    None
):
    blocks = found("embedding", "encoder 0", "encoder 1", ("pooler", 0), ("classifier", 0))
    assert plan_stages(PipelinedExecution(INCREMENT), blocks) == planned(
        ("embedding", 0), ("encoder 0", 1), ("encoder 1", 2), ("pooler+classifier", 0)
    )


_IN_PIECES = (
    'is in pieces: the forward pass meets "B1", "B2" and "B3".*Make "B3" a stage of its own'
)


@pytest.mark.parametrize(
    ("strategy", "blocks", "words"),
    [
        (
            PipelinedExecution("B1", "B2", "B3"),
            FOUR,
            'block "B4" of the model is in no stage; the stages have "B1", "B2" and "B3"',
        ),
        (PipelinedExecution("b1", "B2", "B3", "B4"), FOUR, r'"B1" of the model.*Did you mean "b1"'),
        (
            PipelinedExecution("B1", "B2", "B3", ["B4", "B5"]),
            FOUR,
            'block "B5" of the stages is not in the model, whose forward pass enters "B1"',
        ),
        (PipelinedExecution(INCREMENT), [], r'has no block.*Write `with Block\("B1"\):`'),
        (
            PipelinedExecution(),
            found(("B1", 0), "B2"),
            r'block "B2" names no device.*SAME_AS_DEVICE.*Write Block\("B2", device=0\), or '
            r'.*PipelinedExecution\("B1", "B2"\)',
        ),
        (
            PipelinedExecution(["B1", "B2"]),
            found(("B1", 0), ("B2", 1)),
            r'"B1" on 0 and "B2" on 1. Write Stage\("B1", "B2"\).device\(0\), or make two',
        ),
        (
            PipelinedExecution("B2", "B1"),
            found("B1", "B2"),
            r'Stage\("B2"\) is listed before Stage\("B1"\), but the forward pass meets "B1" and',
        ),
        (PipelinedExecution(["B1", "B3"], "B2"), found("B1", "B2", "B3"), _IN_PIECES),
        (PipelinedExecution(SAME), found(("B1", 0), ("B2", 1), ("B3", 0)), _IN_PIECES),
    ],
)
def test_stages_that_do_not_fit_the_models_blocks_are_refused(
    strategy: PipelinedExecution, blocks: list[FoundBlock], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        plan_stages(strategy, blocks)


def test_replicas_have_devices_one_after_the_other() -> None:
    stages = planned(("B1", 0), ("B2", 2), ("B3", 0))
    assert devices_per_replica(stages) == 3
    assert [replica_devices(stages, r) for r in range(3)] == [(0, 2, 0), (3, 5, 3), (6, 8, 6)]


# Its limits


def check(stages: tuple[PlannedStage, ...], schedule: Any = "interleaved", **changes: Any) -> None:
    """Checks a plan for training with plenty of everything, but for the changes."""
    plenty: dict[str, Any] = {
        "training": True,
        "gradient_accumulation": 100,
        "device_iterations": 1,
        "replication_factor": 1,
        "num_devices": 100,
    }
    check_plan(stages, schedule, **{**plenty, **changes})


INFERENCE = {"training": False, "gradient_accumulation": 1}


@pytest.mark.parametrize("schedule", ["interleaved", "grouped"])
def test_training_needs_micro_batches_for_all_stages_forward_and_back(schedule: str) -> None:
    check(IN_FOUR, schedule, gradient_accumulation=7)
    words = r"is 6, and pipelined training with 4 stages needs at least 7.*accumulation\(7\)"
    with pytest.raises(ValueError, match=words):
        check(IN_FOUR, schedule, gradient_accumulation=6, device_iterations=100)


@pytest.mark.parametrize("schedule", ["interleaved", "grouped"])
def test_inference_needs_a_micro_batch_for_each_stage(schedule: str) -> None:
    check(IN_FOUR, schedule, **INFERENCE, device_iterations=4)
    words = r"is 3, and pipelined inference with 4 stages needs at least 4.*iterations\(4\)"
    with pytest.raises(ValueError, match=words):
        check(IN_FOUR, schedule, **INFERENCE, device_iterations=3)


@pytest.mark.parametrize(
    "strategy", [ShardedExecution(), PipelinedExecution(schedule="sequential")]
)
def test_one_stage_and_one_at_a_time_are_content_with_one_micro_batch(strategy: Any) -> None:
    check(IN_FOUR, strategy.schedule, gradient_accumulation=1)
    check(IN_FOUR, strategy.schedule, **INFERENCE)
    check(planned(("B1", 0)), gradient_accumulation=1)
    check(planned(("B1", 0)), **INFERENCE)


def test_interleaved_training_refuses_two_stages_on_one_device() -> None:
    stages = planned(("B1", 0), ("B2", 1), ("B3+B4", 0))
    check(stages, "grouped")
    check(stages, "sequential")
    check(stages, **INFERENCE, device_iterations=3)
    words = r'2 stages are on device 0 \("B1" and "B3\+B4"\).*schedule="grouped" or "sequential"'
    with pytest.raises(ValueError, match=words):
        check(stages)


def test_more_devices_than_there_are_are_refused() -> None:
    check(IN_FOUR, num_devices=4)
    words = (
        r'"B4" is on device 3, so that 4 devices are needed \(0 to 3\), but there are 2. '
        r"Run on a machine with 4 GPUs, or, .* call tfdist.pipeline.set_cpu_devices\(4\)"
    )
    with pytest.raises(ValueError, match=words):
        check(IN_FOUR, num_devices=2)


def test_every_replica_needs_devices_of_its_own() -> None:
    check(IN_FOUR, replication_factor=2, num_devices=8)
    words = r"so that 8 devices .* for each of 2 replicas\), but there are 7.*set_cpu_devices\(8\)"
    with pytest.raises(ValueError, match=words):
        check(IN_FOUR, replication_factor=2, num_devices=7)
