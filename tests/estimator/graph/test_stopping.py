"""Stopping at a step where a session call makes several."""

from typing import Any

import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.estimator.graph.global_step import StopAtStep, told_of_the_loop


def _last_step(hook: Any, steps_per_call: int, resumed_at: int = 0) -> int:
    """Counts in calls of several steps until the hook stops; at most to 30."""
    with tf.Graph().as_default():
        step = v1.train.create_global_step()
        count = v1.assign_add(step, steps_per_call)
        start = step.assign(resumed_at).op
        scaffold = v1.train.Scaffold(init_fn=lambda _, session: session.run(start))
        with v1.train.SingularMonitoredSession(hooks=[hook], scaffold=scaffold) as session:
            done = resumed_at
            while not session.should_stop() and done < 30:
                done = int(session.run(count))
    return done


@pytest.mark.parametrize(
    ("hook", "expected"),
    [
        ({"last_step": 6}, 6),
        ({"last_step": 7}, 9),
        ({"num_steps": 6}, 6),
        ({"num_steps": 1}, 3),
    ],
)
def test_a_users_stop_hook_stops_at_the_first_call_that_reaches_its_step(
    hook: dict[str, int], expected: int
) -> None:
    own = told_of_the_loop(v1.train.StopAtStepHook(**hook), 3)
    assert isinstance(own, StopAtStep)
    assert _last_step(own, 3) == expected


def test_steps_are_counted_from_where_the_session_starts() -> None:
    assert _last_step(StopAtStep(6, None, 3), 3, resumed_at=12) == 18
    assert _last_step(StopAtStep(None, 15, 3), 3, resumed_at=12) == 15


def test_without_a_loop_hooks_stay_as_they_are() -> None:
    hook = v1.train.StopAtStepHook(last_step=3)
    assert told_of_the_loop(hook, 1) is hook
    assert _last_step(hook, 1) == 3


def test_other_hooks_are_told_or_left_alone() -> None:
    class Own(v1.train.StopAtStepHook):  # type: ignore[misc]
        pass

    own, nan = Own(last_step=3), v1.train.NanTensorHook(None)
    assert told_of_the_loop(own, 3) is own
    assert told_of_the_loop(nan, 3) is nan
    counter = v1.train.StepCounterHook(every_n_steps=3)
    assert told_of_the_loop(counter, 3) is counter
    assert counter._steps_per_run == 3
