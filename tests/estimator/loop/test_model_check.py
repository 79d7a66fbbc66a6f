"""The comparison of the workers' models and limits; test_bad_input.py has it in real runs."""

import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.estimator.loop.model_check import (
    LimitMismatchError,
    ModelMismatchError,
    check_limits,
    check_models,
    describe_model,
)


def model(*variables: tuple[str, list[int], tf.DType]) -> str:
    """A worker's description of these variables."""
    with tf.Graph().as_default():
        made = [v1.get_variable(name, shape, dtype) for name, shape, dtype in variables]
        return describe_model(made, [], {}, {"iterations_per_loop": 1})


FIRST = ("first", [2], tf.float32)
MORE = ("more", [3], tf.float32)


@pytest.mark.parametrize(
    ("models", "difference"),
    [
        (
            [model(FIRST), model(FIRST), model(FIRST, MORE)],
            "variable more (float32 (3,)) exists on worker 2 but not on worker 0",
        ),
        (
            [model(FIRST, MORE), model(FIRST)],
            "variable more (float32 (3,)) exists on worker 0 but not on worker 1",
        ),
        (
            [model(("a", [3], tf.float32)), model(("b", [3], tf.float32))],
            "variable a (float32 (3,)) exists on worker 0 but not on worker 1",
        ),
        (
            [model(MORE), model(("more", [3], tf.float64))],
            "variable more is float32 (3,) on worker 0 and float64 (3,) on worker 1",
        ),
    ],
)
def test_the_first_difference_is_named_with_its_worker(models: list[str], difference: str) -> None:
    with pytest.raises(ModelMismatchError) as caught:
        check_models(models)
    assert str(caught.value).startswith(f"The workers' models differ: {difference}. Start all")


def test_equal_models_pass() -> None:
    check_models([model(FIRST, MORE)] * 3)


@pytest.mark.parametrize(
    ("limits", "difference"),
    [
        ([(4, None), (4, None), (5, None)], "steps is 4 on worker 0 and 5 on worker 2."),
        ([(None, 4), (None, None)], "max_steps is 4 on worker 0 and None on worker 1."),
    ],
)
def test_different_limits_are_named(
    limits: list[tuple[int | None, int | None]], difference: str
) -> None:
    with pytest.raises(LimitMismatchError) as caught:
        check_limits(limits)
    assert str(caught.value).startswith(difference)
