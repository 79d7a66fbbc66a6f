"""A worker's part in the agreement with others: here two replicas of one process."""

import signal
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.estimator.loop.agreement import Agreement, NanTogether
from tfdist.estimator.loop.decision import Decision, SharedDecision
from tfdist.strategies import LocalStrategy
from tfdist.strategies.stop_signals import StopSignals


class StopsAtOnce(v1.train.SessionRunHook):  # type: ignore[misc]
    def after_run(self, run_context: Any, run_values: Any) -> None:
        run_context.request_stop()


@pytest.fixture(autouse=True)
def graph() -> Iterator[None]:
    with tf.Graph().as_default():
        yield


@pytest.fixture
def strategy() -> LocalStrategy:
    return LocalStrategy(num_replicas=2)


def _shared(
    strategy: Any, signals: StopSignals, weight: float | None = None, **extended: Any
) -> SharedDecision:
    """The decision of a worker; `extended` replaces facts of the strategy."""
    with strategy.scope():
        agreement = Agreement(
            strategy,
            tf.constant(3.0),
            tf.constant(1.0),
            None if weight is None else tf.constant(weight, tf.float32),
            {"accuracy": tf.constant(0.5)},
        )
    facts = {"should_checkpoint": True, "collectives": strategy.extended.collectives, **extended}
    known: Any = SimpleNamespace(extended=SimpleNamespace(**facts))
    call: Any = None  # Only savers need it.
    return SharedDecision(call, known, signals, agreement)


def _step(decision: Decision, hooks: list[v1.train.SessionRunHook]) -> tuple[bool, bool]:
    """One session call; returns whether its context, and whether the decision, ends training."""
    with v1.Session() as session:
        context = v1.train.SessionRunContext(v1.train.SessionRunArgs(None), session)
        for hook in hooks:
            hook.before_run(context)
        values = session.run(list(decision.fetches), decision.feeds())
        decision.receive(values)
        for hook in hooks:
            hook.after_run(context, v1.train.SessionRunValues(None, None, None))
    return context.stop_requested, decision.ends_training()


def test_a_hook_of_a_lone_worker_ends_the_training_at_once() -> None:
    decision = Decision(tf.constant(3.0), {}, StopSignals())
    assert _step(decision, decision.hooks_of_user([StopsAtOnce()])) == (True, False)


def test_a_hook_with_others_beside_it_ends_the_training_of_all_one_step_later(
    strategy: LocalStrategy,
) -> None:
    decision = _shared(strategy, StopSignals())
    hooks = decision.hooks_of_user([StopsAtOnce()])
    assert _step(decision, hooks) == (False, False)
    assert _step(decision, hooks) == (False, True)


def test_a_lone_worker_follows_its_signal_and_with_others_the_one_that_all_agree_on(
    strategy: LocalStrategy,
) -> None:
    signals = StopSignals()
    own, shared = Decision(tf.constant(3.0), {}, signals), _shared(strategy, signals)
    assert not own.ends_training()
    signals.own = signal.SIGTERM
    assert own.ends_training()
    assert not shared.ends_training()
    assert signals.order is None
    assert _step(shared, []) == (False, True)
    assert signals.order is not None
    assert signals.order.number == signal.SIGTERM


def test_a_step_without_a_request_has_no_feeds(strategy: LocalStrategy) -> None:
    assert _shared(strategy, StopSignals()).feeds() == {}


@pytest.mark.parametrize(("weight", "expected"), [(None, [3, 0.5]), (4, [3, 0.5]), (0, [0, 0])])
def test_the_loss_and_the_metrics_are_means_by_weight(
    strategy: LocalStrategy, weight: float | None, expected: list[float]
) -> None:
    decision = _shared(strategy, StopSignals(), weight)
    with v1.Session() as session:
        values = session.run([decision.loss, decision.metrics["accuracy"]])
    np.testing.assert_array_equal(values, expected)


def test_only_the_chief_gets_hooks_that_save(strategy: LocalStrategy, tmp_path: Any) -> None:
    saver = v1.train.CheckpointSaverHook(str(tmp_path), save_steps=1, saver=v1.train.Saver)
    limit = v1.train.StopAtStepHook(last_step=3)
    for is_chief in (True, False):
        decision = _shared(strategy, StopSignals(), should_checkpoint=is_chief)
        hooks = decision.hooks_of_user([saver, limit])
        assert len(hooks) == 1 + is_chief
        assert hooks[-1] is limit  # It stops every worker after the same step by itself.


def test_with_other_workers_a_nan_is_reported_with_its_worker(strategy: LocalStrategy) -> None:
    workers = SimpleNamespace(num_workers=2, worker_index=1)
    (together,) = _shared(strategy, StopSignals(), collectives=workers).hooks_against_nan()
    (alone,) = _shared(strategy, StopSignals()).hooks_against_nan()
    assert isinstance(together, NanTogether)
    assert isinstance(alone, v1.train.NanTensorHook)
