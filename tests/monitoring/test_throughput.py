"""ThroughputHook: speed, and what a step's time goes to."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import tensorflow.compat.v1 as v1

from tfdist.monitoring import ThroughputHook
from tfdist.monitoring.throughput import StepShares, Throughput, describe, shares_of, tags

Train = Callable[..., Any]


# What a trace says.


def test_shares_are_of_the_time_from_the_first_op_to_the_last() -> None:
    metadata = v1.RunMetadata()
    for label, start, length in [
        ("IteratorGetNext = IteratorGetNext(Iterator)", 100, 30),
        ("MatMul = MatMul(a, b)", 130, 20),
        ("all_reduce/bucket = CollectiveReduceV2(g)", 140, 40),
        ("h = HorovodGroupedAllreduce(g)", 170, 20),
        ("update = ResourceApplyGradientDescent(w)", 190, 10),
    ]:
        nodes = metadata.step_stats.dev_stats.add().node_stats
        nodes.add(timeline_label=label, all_start_micros=start, all_end_rel_micros=length)
    assert shares_of(metadata.step_stats) == StepShares(input=0.3, reductions=0.5)
    assert shares_of(v1.RunMetadata().step_stats) is None


# What is said.

MEASURED = Throughput(
    steps_per_s=12.5,
    examples_per_s=800.0,
    share_outside_steps=0.04,
    traced=StepShares(input=0.1, reductions=0.25),
)


def test_one_line_says_everything() -> None:
    assert describe(MEASURED) == (
        "throughput: 800 examples/sec, 12.5 steps/sec; 4% of the time outside of steps; in a "
        "traced step 10% waiting for input, 25% in reductions with other workers"
    )


def test_what_is_not_known_is_left_out() -> None:
    measured = Throughput(
        steps_per_s=2.0, examples_per_s=None, share_outside_steps=0.0, traced=None
    )
    assert describe(measured) == "throughput: 2 steps/sec; 0% of the time outside of steps"
    assert sorted(tags(measured)) == ["throughput/share_outside_steps", "throughput/steps_per_sec"]


# A training.


def test_each_interval_is_reported_and_written(
    train: Train, tmp_path: Path, logged: list[str], read_events: Any
) -> None:
    hook = ThroughputHook(every_n_steps=3, global_batch=8, output_dir=tmp_path / "speed")
    train([hook], steps=7)
    lines = [line for line in logged if line.startswith("throughput: ")]
    assert len(lines) == 2
    assert all("examples/sec" in line and "in a traced step" in line for line in lines)
    events = read_events(tmp_path / "speed")
    assert {tag: [step for step, _ in found] for tag, found in events.items()} == {
        tag: [3, 6] for tag in tags(MEASURED)
    }
    values = {tag: found[-1][1] for tag, found in events.items()}
    assert values["throughput/examples_per_sec"] == pytest.approx(
        8 * values["throughput/steps_per_sec"], rel=1e-5
    )
    assert all(0 <= values[tag] <= 1 for tag in values if "share" in tag)
    assert hook.last is not None and hook.last.traced is not None
    assert hook.last.traced.input > 0
    assert hook.last.traced.reductions == 0


def test_tracing_and_summaries_can_be_left_out(train: Train, logged: list[str]) -> None:
    hook = ThroughputHook(every_n_steps=2, traces=False)
    train([hook], steps=4, iterations=2)
    assert hook.last is not None and hook.last.traced is None
    (line,) = (line for line in logged if line.startswith("throughput: "))
    assert "examples" not in line and "traced" not in line


def test_a_slow_hook_is_time_outside_of_steps(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0

    def clock() -> float:
        return now

    class Pass(v1.train.SessionRunHook):  # type: ignore[misc]
        """Lets 1 s pass in each call, and 3 s after it."""

        def before_run(self, run_context: Any) -> None:
            nonlocal now
            now += 1.0

        def after_run(self, run_context: Any, run_values: Any) -> None:
            nonlocal now
            now += 3.0

    monkeypatch.setattr("tfdist.monitoring.throughput.time.perf_counter", clock)
    hook = ThroughputHook(every_n_steps=4, global_batch=2)
    train([hook, Pass()], steps=4)
    assert hook.last is not None
    # From the end of call 1 to that of call 4: three pauses and three calls.
    assert hook.last.steps_per_s == pytest.approx(3 / 12)
    assert hook.last.examples_per_s == pytest.approx(6 / 12)
    assert hook.last.share_outside_steps == pytest.approx(0.75)


def test_other_workers_write_into_folders_of_their_own(
    as_second_worker: AbstractContextManager[None],
) -> None:
    with as_second_worker:
        assert ThroughputHook(output_dir="/runs/a")._output_dir == "/runs/a/worker_1"


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="every_n_steps must be an integer of at least 1, got 0"):
        ThroughputHook(every_n_steps=0)
    with pytest.raises(ValueError, match="global_batch must be an integer of at least 1, got 0"):
        ThroughputHook(global_batch=0)
