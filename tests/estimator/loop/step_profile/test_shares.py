"""The shares of a step, the joined clocks, and the advice."""

import json
from pathlib import Path

import pytest

from tfdist.estimator.loop.step_profile.files import text_of, trace_of, write_profile
from tfdist.estimator.loop.step_profile.records import Kind, Op, Span
from tfdist.estimator.loop.step_profile.shares import (
    SHARES,
    Profile,
    Step,
    Worker,
    advice,
    joined,
)


def _op(name: str, kind: Kind, start: float, end: float) -> Op:
    return Op(name=name, type="Type", kind=kind, span=(start, end), is_on_host=True)


def _worker(
    *,
    input: Span = (0, 10),
    forward: Span = (10, 30),
    backward: Span = (30, 60),
    reduction: Span = (50, 80),
    update: Span = (80, 90),
    hooks: float = 10,
    shift: float = 0,
) -> Worker:
    """A worker with one step, whose times are given in microseconds."""
    kinds: dict[Kind, Span] = {
        "input": input,
        "forward": forward,
        "backward": backward,
        "reduction": reduction,
        "update": update,
    }
    ops = [_op(f"the {kind}", kind, *span) for kind, span in kinds.items()]
    ops.sort(key=lambda op: op.span)
    return Worker(steps=[Step(ops=ops, hooks_s=hooks / 1e6).shifted(shift)], memory={"host": 2**30})


def test_each_moment_of_a_step_has_one_share() -> None:
    profile = joined([_worker()], 5)
    assert profile.shares[0] == pytest.approx(
        {
            "backward": 0.3,
            "forward": 0.2,
            "update": 0.1,
            "waiting": 0.0,
            "reductions": 0.2,
            "input": 0.1,
            "other": 0.0,
            "hooks": 0.1,
        }
    )
    assert profile.hidden == pytest.approx([0.1])
    assert profile.step_s == pytest.approx(100e-6)


def test_a_worker_waits_until_the_last_one_joins_a_reduction() -> None:
    slow = _worker(forward=(10, 45), backward=(45, 75), reduction=(75, 80))
    profile = joined([_worker(), slow], 5)
    assert profile.shares[0]["waiting"] == pytest.approx(0.15)  # 60 to 75
    assert profile.shares[0]["reductions"] == pytest.approx(0.05)
    assert profile.shares[1]["waiting"] == 0
    assert profile.slowest == 1
    for shares in profile.shares:
        assert list(shares) == list(SHARES)
        assert sum(shares.values()) == pytest.approx(1)


@pytest.mark.parametrize("shift", [-1e9, -29, 0, 29, 1e9])
def test_clocks_are_joined_by_the_reductions(shift: float) -> None:
    moved = joined([_worker(), _worker(shift=shift)], 5).workers[1].steps[0]
    start, end = moved.reductions()["the reduction", 0]
    # Within what the messages tell: one has begun on both before it ends on either.
    assert start <= 80 and end >= 50
    if abs(shift) > 30:
        assert (start, end) == (50, 80)


def test_the_same_reduction_in_a_loop_is_numbered() -> None:
    ops = [_op("sum", "reduction", start, start + 5) for start in (0, 10)]
    assert Step(ops=ops, hooks_s=0).reductions() == {("sum", 0): (0, 5), ("sum", 1): (10, 15)}


@pytest.mark.parametrize(
    ("workers", "line"),
    [
        (
            [_worker(), _worker(hooks=300)],
            "Worker 1 is the slowest: others wait for it 74% of a step. It is in hooks and other "
            "Python 77% of a step.",
        ),
        ([_worker(hooks=300)], "Worker 0 spends 77% of a step in hooks and other Python: "),
        (
            [_worker(input=(0, 45), forward=(45, 50), reduction=(50, 61), update=(61, 71))],
            "Worker 0 waits for input 37% of a step: ",
        ),
        (
            [_worker(reduction=(50, 150), update=(150, 160))],
            "Reductions that no computation hides take 53% of a step on worker 0: ",
        ),
        (
            [_worker(input=(9, 10), hooks=1, reduction=(50, 60), update=(60, 70))],
            "Computation takes 97% of a step: ",
        ),
        (
            [
                _worker(),
                _worker(input=(0, 45), forward=(45, 50), backward=(50, 75), reduction=(75, 80)),
            ],
            "Worker 1 is the slowest: others wait for it 15% of a step. It waits for input 45% of "
            "a step.",
        ),
    ],
)
def test_the_last_line_says_what_costs_most(workers: list[Worker], line: str) -> None:
    assert advice(joined(workers, 5)).startswith(line)


def test_the_files_say_the_same(tmp_path: Path) -> None:
    profile = Profile([_worker(), _worker(hooks=300)], 5)
    paths = write_profile(profile, tmp_path / "new")
    assert [path.name for path in paths] == ["profile.txt", "trace.json", "profile.png"]
    text = paths[0].read_text()
    assert text == text_of(profile)
    assert text.startswith("2 workers, step 5, 0.4 ms a step (while traced)\n")
    assert text.endswith(f"{advice(profile)}\n")
    assert f"peak memory, host{'1,024 MiB':>22}{'1,024 MiB':>13}\n" in text
    assert "0.03 ms  the backward (Type)" in text
    trace = json.loads(paths[1].read_text())
    assert trace == trace_of(profile)
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert len(events) == 10
    assert {(e["pid"], e["tid"]) for e in events} == {
        (w, lane) for w in (0, 1) for lane in range(3)
    }
    assert paths[2].read_bytes().startswith(b"\x89PNG")
