"""The table of the restart rule, without a process."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from tfdist.launch.failures.failure import Failure
from tfdist.launch.failures.restart_rule import (
    End,
    Grow,
    History,
    Limits,
    LookForHosts,
    NextStart,
    Restart,
    Shrink,
    Stop,
    next_start,
)
from tfdist.process.exit_codes import NO_SPACE

Failed = Callable[..., Failure]

ANY_SIZE = {"max_restarts": 3, "min_instances": 2}
OTHER_PORTS = Restart(with_other_ports=True)
PLACES = ("a", "b", "c", "a")


def used(restarts: int, of: int = 3) -> Stop:
    return Stop(reason=f"{restarts} of {of} restarts are used")


def left(places: str, why: str) -> Shrink:
    return Shrink(hosts=list(places), reason=why)


TOO_FEW = Stop(reason="a and b cannot be reached, and fewer than --min-instances 2 would be left")
AGAIN = "worker 3 has failed twice in a row"


# Each row: the history ("earlier" is the worker that failed before), the end ("worker" failed, of
# four on PLACES), the limits, what follows.
@pytest.mark.parametrize(
    ("history", "end", "limits", "expected"),
    [
        # No worker has failed, or the run was asked to stop.
        ({}, {"exit_code": 0}, {}, Stop()),
        ({}, {"exit_code": 143}, {}, Stop()),
        ({}, {"worker": 3, "must_stop": True}, {}, Stop()),
        ({}, {"worker": 3, "must_stop": True, "exit_code": 201}, {}, Stop()),
        ({}, {"exit_code": 138, "is_for_joining": True, "must_stop": True}, ANY_SIZE, Stop()),
        ({}, {"exit_code": 0, "is_for_joining": True}, ANY_SIZE, Stop()),
        # A failure, as often as restarts are left. Slurm's srun may fail without a worker's record.
        ({}, {"worker": 3}, {}, Restart()),
        ({"restarts": 2}, {"worker": 3}, {}, Restart()),
        ({"restarts": 3}, {"worker": 3}, {}, used(3)),
        ({}, {"worker": 3}, {"max_restarts": 0}, used(0, of=0)),
        ({}, {"worker": 3, "kind": "silent"}, {}, Restart()),
        ({}, {"exit_code": 1}, {}, Restart()),
        # A port was taken: three times with other ports, if the launcher has chosen them.
        ({"restarts": 3, "new_ports": 2}, {"worker": 3, "code": 201}, {}, OTHER_PORTS),
        ({"new_ports": 3}, {"worker": 3, "code": 201}, {}, Restart()),
        ({"restarts": 3, "new_ports": 3}, {"worker": 3, "code": 201}, {}, used(3)),
        ({}, {"worker": 3, "code": 201}, {"can_change_ports": False}, Restart()),
        ({}, {"worker": 3, "code": 200}, {}, Restart()),
        # Hosts that do not answer are left out, if enough are left.
        ({}, {"worker": 3, "lost_hosts": None}, ANY_SIZE, LookForHosts()),
        ({"restarts": 3}, {"worker": 3, "lost_hosts": None}, ANY_SIZE, used(3)),
        ({}, {"worker": 3, "lost_hosts": "c"}, ANY_SIZE, left("aba", "c cannot be reached")),
        # Another host has worker 0 then.
        ({}, {"worker": 3, "lost_hosts": "a"}, ANY_SIZE, left("bc", "a cannot be reached")),
        ({}, {"worker": 3, "lost_hosts": "ab"}, ANY_SIZE, TOO_FEW),
        ({}, {"worker": 3, "lost_hosts": ""}, ANY_SIZE, Restart()),
        # An instance is left out on the host of a worker that fails twice in a row, and no other.
        ({}, {"worker": 3}, ANY_SIZE, Restart()),
        ({"earlier": 0}, {"worker": 3}, ANY_SIZE, Restart()),
        ({"earlier": 3}, {"worker": 3}, ANY_SIZE, left("abc", AGAIN)),
        ({"earlier": 3}, {"worker": 3}, {}, Restart()),
        ({"earlier": 3}, {"worker": 3}, ANY_SIZE | {"min_instances": 4}, Restart()),
        ({"earlier": 3}, {"worker": 3}, ANY_SIZE | {"can_leave_out_one": False}, Restart()),
        ({"earlier": 3}, {"worker": 3, "is_for_joining": True}, ANY_SIZE, Restart()),
        ({"earlier": 4}, {"worker": 4}, ANY_SIZE, Restart()),  # An evaluator is no instance.
        # The workers have left so that hosts can join, or one has failed meanwhile.
        ({"restarts": 3}, {"exit_code": 138, "is_for_joining": True}, ANY_SIZE, Grow()),
        ({}, {"worker": 3, "exit_code": 138, "is_for_joining": True}, ANY_SIZE, Grow()),
        ({}, {"worker": 3, "is_for_joining": True}, ANY_SIZE, Restart()),
        # The workers could not be started.
        ({}, {"start_error": "no"}, {}, Stop()),
        ({}, {"start_error": "no", "lost_hosts": None}, ANY_SIZE, LookForHosts()),
        ({}, {"start_error": "no", "lost_hosts": None, "must_stop": True}, ANY_SIZE, Stop()),
        ({"restarts": 3}, {"start_error": "no", "lost_hosts": None}, ANY_SIZE, Stop()),
        (
            {},
            {"start_error": "no", "lost_hosts": "c"},
            ANY_SIZE,
            left("aba", "c cannot be reached"),
        ),
        ({}, {"start_error": "no", "lost_hosts": "ab"}, ANY_SIZE, TOO_FEW),
        # A restart that fails although all hosts answer is tried once more.
        ({}, {"start_error": "no"}, ANY_SIZE, Stop()),
        ({"joins": 1}, {"start_error": "no"}, ANY_SIZE, Restart()),
        ({"restarts": 1, "has_failed_to_start": True}, {"start_error": "no"}, ANY_SIZE, Stop()),
    ],
)
def test_the_end_of_a_start_decides_what_follows(
    failed: Failed,
    history: dict[str, Any],
    end: dict[str, Any],
    limits: dict[str, Any],
    expected: NextStart,
) -> None:
    end = dict(end)
    code, kind = end.pop("code", 3), end.pop("kind", "exited")
    if "worker" in end:
        worker = end.pop("worker")
        end["failure"] = failed(name=f"worker {worker}", index=worker, code=code, kind=kind, step=7)
        end = {"exit_code": code} | end
    if "earlier" in history:
        history = history | {"earlier": failed(index=history["earlier"], step=3)}
    found = next_start(
        History(**history), End(hosts=PLACES, **end), Limits(**{"max_restarts": 3} | limits)
    )
    assert found == expected


@pytest.mark.parametrize("code", [2, NO_SPACE, 126, 127])
def test_a_permanent_failure_does_not_start_again(failed: Failed, code: int) -> None:
    end = End(exit_code=code, failure=failed(code=code))
    decision = next_start(History(), end, Limits(max_restarts=2))
    assert isinstance(decision, Stop)
    assert "a restart would fail again" in decision.reason


def test_the_history_counts_each_kind_of_start(failed: Failed) -> None:
    failure = End(exit_code=3, failure=failed())
    one = History().after(failure, Restart())
    assert one == History(restarts=1, earlier=failure.failure)
    assert one.after(failure, OTHER_PORTS) == History(
        restarts=1, new_ports=1, earlier=failure.failure
    )
    assert one.after(failure, left("ab", "why")) == History(restarts=2)
    joining = End(exit_code=138, is_for_joining=True)
    assert one.after(joining, Grow()) == History(restarts=1, joins=1)
    assert one.after(joining, Grow()).starts == 2
    not_started = End(start_error="no")
    twice = one.after(not_started, Restart())
    assert twice == History(restarts=2, earlier=failure.failure, has_failed_to_start=True)
    assert not twice.after(failure, Restart()).has_failed_to_start
    assert one.after(failure, Stop()) == one


REPEATS = "ERROR:tensorflow:A restart from the last checkpoint would end in the same way: its ..."
NAN = "tensorflow...NanLossDuringTrainingError: NaN loss during training."


@pytest.mark.parametrize(
    ("facts", "earlier", "expected"),
    [
        ({"exception": NAN, "step": 12}, {"exception": NAN, "step": 12}, "twice.* at step 12,"),
        ({"step": 12}, {"step": 12}, "twice.* at step 12,"),
        ({"exception": NAN}, {"exception": NAN}, "twice in the same way, so"),
        ({"exception": NAN, "step": 13}, {"exception": NAN, "step": 12}, None),
        ({"exception": "OSError: no", "step": 12}, {"exception": NAN, "step": 12}, None),
        ({"exception": NAN, "step": 12}, None, None),
        ({}, {}, None),  # Another program, of which nothing is known.
        ({"code": 200, "step": 12}, {"code": 200, "step": 12}, None),
        (
            {"kind": "signal", "code": 9, "step": 12},
            {"kind": "signal", "code": 9, "step": 12},
            None,
        ),
        ({"exception": "KeyError: 1", "has_trained": False}, None, "before the first step"),
        ({"exception": "SyntaxError: invalid syntax"}, None, "an error in the program's text"),
        ({"exception": "KeyError: 1", "has_trained": True, "step": 3}, None, None),
        ({"exception": NAN, "step": 12, "log_tail": (REPEATS,)}, None, "in the same way"),
        ({"has_trained": False}, None, None),
    ],
)
def test_what_would_fail_again_is_not_started_again(
    failed: Failed, facts: dict[str, Any], earlier: dict[str, Any] | None, expected: str | None
) -> None:
    last = failed(**{"code": 1, "step": None, **facts})
    before = None if earlier is None else failed(**{"code": 1, "step": None, **earlier})
    history, limits = History(restarts=1, earlier=before), Limits(max_restarts=9)
    decision = next_start(history, End(exit_code=1, failure=last), limits)
    if expected is None:
        assert decision == Restart()
    else:
        assert isinstance(decision, Stop)
        assert re.search(expected, decision.reason)
