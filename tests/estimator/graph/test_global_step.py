"""The last step of a training whose session calls make several steps."""

from typing import Any

import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.estimator.graph.global_step import (
    StepLimit,
    is_last_call,
    last_step_of,
    limit_in_place_of,
)
from tfdist.strategies.private_tensorflow import set_steps_per_call


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ([(6, None)], 18),
        ([(None, 15)], 15),
        ([(None, None)], None),
        ([(None, None), (3, None), (None, 20)], 15),
        ([], None),
    ],
)
def test_the_lowest_limit_counts_and_steps_count_from_where_the_session_starts(
    limits: list[StepLimit], expected: int | None
) -> None:
    assert last_step_of(limits, first_step=12) == expected


@pytest.mark.parametrize("hook", [{"last_step": 6}, {"num_steps": 6}])
def test_a_limit_takes_the_place_of_a_users_stop_hook(hook: dict[str, int]) -> None:
    limit = limit_in_place_of(v1.train.StopAtStepHook(**hook), 3)
    assert limit is not None
    assert last_step_of([limit], first_step=0) == 6


def test_other_hooks_and_calls_of_one_step_need_no_limit() -> None:
    class Own(v1.train.StopAtStepHook):  # type: ignore[misc]
        pass

    assert limit_in_place_of(v1.train.StopAtStepHook(last_step=3), 1) is None
    assert limit_in_place_of(Own(last_step=3), 3) is None
    assert limit_in_place_of(v1.train.NanTensorHook(None), 3) is None


@pytest.mark.parametrize(("last_step", "expected"), [(6, 6), (7, 9), (1, 3)])
@pytest.mark.parametrize("sees_own_steps", [True, False])
def test_the_first_call_that_reaches_the_last_step_is_the_last(
    last_step: int, expected: int, sees_own_steps: bool
) -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        step = v1.train.create_global_step()
        count = v1.assign_add(step, 3)
        session.run(step.initializer)
        is_last, fetched = False, 0
        while not is_last:
            before = fetched
            fetched = int(session.run(count))
            seen = fetched if sees_own_steps else before
            is_last = is_last_call(session, step, seen, 3, last_step)
    assert fetched == expected


def test_hooks_that_count_steps_are_told_how_many_a_call_makes() -> None:
    nan: Any = v1.train.NanTensorHook(None)
    set_steps_per_call(nan, 3)  # Nothing to set.
    counter = v1.train.StepCounterHook(every_n_steps=3)
    set_steps_per_call(counter, 3)
    assert counter._steps_per_run == 3
