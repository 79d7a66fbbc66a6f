"""LossScaleOptimizer keeps small gradients, skips what is not finite, and adapts its scale."""

import inspect
import re
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1
import tf_keras

from tfdist.strategies import LocalStrategy
from tfdist.training import (
    LAMB,
    SGD,
    ClippedOptimizer,
    DistributedOptimizer,
    DynamicLossScale,
    FixedLossScale,
    HistogramLossScale,
    LossScaleOptimizer,
    ScheduledLossScale,
)

INF, NAN = np.inf, np.nan


def _steps(optimizer: Any, gradients: Sequence[Any]) -> list[dict[str, Any]]:
    """Takes steps on a weight of zeros with given gradients; returns all variables after each."""
    with tf.Graph().as_default(), v1.Session() as session:
        step = v1.train.create_global_step()
        weight = v1.get_variable("w", initializer=tf.zeros([2]), use_resource=True)
        fed = v1.placeholder(tf.float32, [2])
        update = optimizer.minimize(tf.reduce_sum(weight * fed), global_step=step)
        session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
        values = []
        for gradient in gradients:
            session.run(update, {fed: gradient})
            values.append(session.run({v.op.name: v for v in v1.global_variables()}))
        return values


def test_large_values_whose_sum_overflows_are_finite_and_infinities_never_cancel() -> None:
    optimizer = LossScaleOptimizer(SGD(1e-37), DynamicLossScale(initial_scale=1.0))
    steps = _steps(optimizer, [[3e38, 3e38], [INF, -INF], [1e38, 1e38]])
    assert [int(values["loss_scale/skipped_steps"]) for values in steps] == [0, 1, 1]
    np.testing.assert_allclose(steps[-1]["w"], [-40.0, -40.0], rtol=1e-5)


def test_the_scale_falls_after_a_bad_step_and_rises_after_good_ones() -> None:
    rule = DynamicLossScale(
        initial_scale=1024,
        growth_steps=3,
        growth_factor=4.0,
        backoff_factor=0.5,
        min_scale=300,
        max_scale=10_000,
    )
    random = np.random.default_rng(0)
    state, scale, good_steps = rule.first_state(), 1024.0, 0
    for is_finite in [*(random.random(60) < 0.7), *[True] * 15, *[False] * 8]:
        state = rule.next_state(state, is_finite, [])
        good_steps = good_steps + 1 if is_finite else 0
        if not is_finite:
            scale = max(scale * 0.5, 300)
        elif good_steps == 3:
            scale, good_steps = min(scale * 4, 10_000), 0
        assert (float(state["scale"]), int(state["good_steps"])) == (scale, good_steps)
    assert rule.is_lowest(state)


@pytest.mark.parametrize("accumulates", [True, False])
def test_the_histogram_rule_counts_saturated_values(accumulates: bool) -> None:
    rule = HistogramLossScale(
        initial_scale=4,
        update_steps=2,
        increase_factor=2.0,
        decrease_factor=0.5,
        min_scale=1,
        max_scale=16,
        ratio_threshold=0.3,
        accumulates=accumulates,
    )
    small, large = tf.constant([1.0, -2.0]), tf.constant([-70000.0, 1.0])
    bad = tf.constant([NAN, INF])
    steps = [small, small, small, small, bad, small, small, large, bad, bad, bad, bad, bad, bad]
    # Of 2 + 2 values two are saturated in steps 5 and 6, one in 7 and 8.
    expected = [4, 8, 8, 8, 8, 4, 4, 8, 8, 4, 4, 2, 2, 1]
    if not accumulates:
        expected = [4, 8, 8, 8, 8, 8, 8, 4, 4, 2, 2, 1, 1, 1]
    state, scales = rule.first_state(), []
    for gradient in steps:
        state = rule.next_state(state, True, [gradient])
        scales.append(int(state["scale"]))
    assert scales == expected


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_in_a_session_the_histogram_rule_halves_the_scale_of_bad_steps(bad: float) -> None:
    """A session rewrites comparisons, which functions that run eagerly keep."""
    optimizer = LossScaleOptimizer(SGD(1.0), HistogramLossScale(initial_scale=1024, update_steps=1))
    steps = _steps(optimizer, [[1.0, 2.0], [bad, 1.0], [bad, bad], [1.0, bad], [1.0, 2.0]])
    scales = [float(values["loss_scale/scale"]) for values in steps]
    assert scales == [2048, 1024, 512, 256, 512]
    assert steps[-1]["loss_scale/skipped_steps"] == 3


def _inner(kind: str) -> Any:
    return {
        "v1": lambda: v1.train.AdamOptimizer(0.5),
        "tfdist": lambda: LAMB(0.5),
        "clipped": lambda: ClippedOptimizer(LAMB(0.5), 0.1),
        "keras": lambda: tf_keras.optimizers.legacy.SGD(0.5, momentum=0.9),
    }[kind]()


def _unscaled(kind: str) -> Any:
    # A wrapper, since the optimizers of Keras take other arguments.
    return _inner(kind) if kind == "clipped" else DistributedOptimizer(_inner(kind))


@pytest.mark.parametrize(
    ("kind", "bad"), [("v1", INF), ("tfdist", NAN), ("clipped", INF), ("keras", NAN)]
)
def test_a_skipped_step_is_counted_and_changes_no_weight_or_slot(kind: str, bad: float) -> None:
    before, after = _steps(LossScaleOptimizer(_inner(kind)), [[1.0, 3.0], [bad, 1.0]])
    assert (before.pop("global_step"), after.pop("global_step")) == (1, 2)
    scales = [values.pop("loss_scale/scale") for values in (before, after)]
    assert scales == [32768, 16384]
    assert after.pop("loss_scale/skipped_steps") == 1
    assert after.pop("loss_scale/skipped_in_a_row") == after.pop("loss_scale/good_steps") == 0
    assert before["w"].any()
    for name, value in after.items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)


@pytest.mark.parametrize("kind", ["v1", "tfdist", "clipped", "keras"])
def test_all_scales_give_the_same_bits(kind: str) -> None:
    gradients = np.random.default_rng(0).normal(size=(5, 2))
    plain = _steps(_unscaled(kind), gradients)[-1]
    for rule in (FixedLossScale(32768), DynamicLossScale(), ScheduledLossScale({0: 4096, 3: 256})):
        scaled = _steps(LossScaleOptimizer(_inner(kind), rule), gradients)[-1]
        for name, value in plain.items():
            np.testing.assert_array_equal(value, scaled[name], err_msg=f"{name}, {rule}")


def test_a_small_gradient_in_float16_is_lost_without_a_scale_and_kept_with_one() -> None:
    def weight_after(optimizer: Any) -> Any:
        with tf.Graph().as_default(), v1.Session() as session:
            weight = v1.get_variable("w", initializer=tf.constant(1.0))
            half = tf.cast(weight, tf.float16) * tf.constant(1e-4, tf.float16)
            loss = tf.cast(half * tf.constant(1e-4, tf.float16), tf.float32)
            update = optimizer.minimize(loss)
            session.run(v1.global_variables_initializer())
            session.run(update)
            return session.run(weight)

    assert weight_after(SGD(1e6)) == 1.0
    # The gradient is 1e-8, and the smallest number of float16 6e-8.
    assert weight_after(LossScaleOptimizer(SGD(1e6), FixedLossScale(1024))) == pytest.approx(
        0.99, rel=1e-4
    )


def test_a_schedule_gives_each_step_its_scale() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        step = v1.train.create_global_step()
        weight = v1.get_variable("w", initializer=tf.zeros([]))
        optimizer = LossScaleOptimizer(SGD(1.0), ScheduledLossScale({0: 8, 2: 4}))
        [(gradient, _)] = pairs = optimizer.compute_gradients(3.0 * weight)
        update = optimizer.apply_gradients(pairs, step)
        session.run(v1.global_variables_initializer())
        seen = [float(session.run([gradient, update])[0]) for _ in range(4)]
        assert seen == [24, 24, 12, 12]
        assert session.run(weight) == -12


def test_gradients_unscaled_by_the_user_are_not_divided_again() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        weight = v1.get_variable("w", initializer=tf.zeros([2]))
        optimizer = LossScaleOptimizer(SGD(1.0), FixedLossScale(1024))
        loss = optimizer.get_scaled_loss(tf.reduce_sum(weight * [3.0, 4.0]))
        scaled = tf.gradients(loss, [weight])
        assert [g.dtype for g in optimizer.get_unscaled_gradients([tf.zeros([], tf.float16)])] == [
            tf.float32
        ]
        clipped, _ = tf.clip_by_global_norm(optimizer.get_unscaled_gradients(scaled), 1.0)
        update = optimizer.apply_gradients([(clipped[0], weight)])
        session.run(v1.global_variables_initializer())
        session.run(update)
        np.testing.assert_allclose(session.run(weight), [-0.6, -0.8], rtol=1e-6)


@pytest.mark.parametrize("own_optimizers", [True, False])
def test_replicas_skip_together_and_share_the_scale(own_optimizers: bool) -> None:
    strategy = LocalStrategy(num_replicas=2)
    with tf.Graph().as_default(), strategy.scope():
        weight = v1.get_variable("w", initializer=tf.zeros([2]))
        step = v1.train.create_global_step()
        shared = LossScaleOptimizer(SGD(1.0))
        fed = v1.placeholder(tf.float32, [2, 2])

        def replica() -> Any:
            optimizer = LossScaleOptimizer(SGD(1.0)) if own_optimizers else shared
            loss = tf.reduce_sum(weight * fed[strategy.extended.replica_in_worker()])
            return optimizer.minimize(loss, step)

        update = strategy.experimental_local_results(strategy.run(replica))
        config = strategy.update_config_proto(v1.ConfigProto())
        with v1.Session(config=config) as session:
            session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
            for gradient in ([[1, 2], [3, 4]], [[1, 2], [INF, 4]]):
                session.run(update, {fed: gradient})
                np.testing.assert_array_equal(session.run(weight), [-4, -6])
            counts = {v.op.name: v for v in v1.global_variables() if "loss_scale" in v.op.name}
            assert session.run([step, counts["loss_scale/scale"]]) == [2, 16384]
            assert len(counts) == 4


def test_rows_of_a_table_are_unscaled_and_tested() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        table = v1.get_variable("table", initializer=tf.zeros([3, 1]))
        factor = v1.placeholder(tf.float32, [])
        loss = tf.reduce_sum(tf.gather(table, [2, 0, 2])) * factor
        update = LossScaleOptimizer(SGD(1.0)).minimize(loss)
        session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
        for value in (1.0, INF):
            session.run(update, {factor: value})
            np.testing.assert_array_equal(session.run(table), [[-1], [0], [-2]])


def test_a_float16_loss_is_scaled_in_float32_with_a_warning(logged: list[str]) -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        scaled = LossScaleOptimizer(SGD(1.0), FixedLossScale(2**20)).get_scaled_loss(
            tf.constant(3.0, tf.float16)
        )
        assert session.run(scaled) == 3 * 2**20
    assert [line for line in logged if line.startswith("The loss is float16, in which a scaled")]


def test_slots_and_variables_are_those_of_the_wrapped_optimizer_and_the_scale() -> None:
    with tf.Graph().as_default():
        weight = v1.get_variable("w", initializer=tf.zeros([2]))
        optimizer = LossScaleOptimizer(SGD(0.1, momentum=0.9))
        optimizer.minimize(tf.reduce_sum(weight), var_list=[weight])
        names = {variable.op.name for variable in optimizer.variables()}
        counts = {"scale", "good_steps", "skipped_steps", "skipped_in_a_row"}
        assert names == {"w/SGD/momentum", *(f"loss_scale/{name}" for name in counts)}


def test_a_custom_loop_trains_with_a_scale_and_converts_no_code_of_the_optimizer() -> None:
    weight = tf.Variable([0.0, 0.0])
    optimizer = LossScaleOptimizer(v1.train.MomentumOptimizer(1.0, 0.9))

    @tf.function
    def step(gradient: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = optimizer.get_scaled_loss(tf.reduce_sum(weight * gradient))
        optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])
        return optimizer.loss_scale

    before = set(sys.modules)
    assert step(tf.constant([1.0, 2.0])) == 32768
    made = [name for name in sys.modules.keys() - before if "autograph_generated" in name]
    converted = "".join(inspect.getsource(sys.modules[name]) for name in made)
    assert "def tf__step" in converted
    assert "apply_gradients" not in re.findall(r"def tf__(\w+)", converted)
    assert step(tf.constant([1.0, NAN])) == 16384
    np.testing.assert_array_equal(weight, [-1, -2])
    assert optimizer.skipped_steps == 1
