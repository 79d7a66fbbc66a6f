"""The last step of a training whose session calls make several steps."""

from typing import Any

import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.estimator.graph.global_step import is_last_call
from tfdist.strategies.private_tensorflow import set_steps_per_call


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
