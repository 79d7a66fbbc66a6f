"""Instances of a run: what the launcher tells them, functions on some of them, meeting points."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

# Which strategy.


@pytest.mark.parametrize(
    ("engine", "num_workers", "expected"),
    [
        ("none", 1, ("LocalStrategy", 1)),
        ("grpc", 1, ("MultiWorkerStrategy", 1)),
        ("grpc", 2, ("MultiWorkerStrategy", 2)),
        ("horovod", 1, ("LocalStrategy", 1)),
        ("horovod", 2, ("HorovodStrategy", 2)),
    ],
)
def test_the_strategy_is_the_one_that_the_process_was_started_for(
    fake_cluster: Any, engine: str, num_workers: int, expected: tuple[str, int]
) -> None:
    def make() -> tuple[str, int]:
        from tfdist.strategies import join_run, strategy_for_run

        join_run()
        strategy = strategy_for_run()
        return type(strategy).__name__, strategy.num_replicas_in_sync

    results = fake_cluster.run(make, engine=engine, num_workers=num_workers)
    assert results == [expected] * num_workers


# Replicas that the launcher asks for.


def _train_four_replicas() -> dict[str, Any]:
    """Trains; returns what each replica has got in its first step, and the weight at the end."""
    import os

    import tensorflow as tf
    import tensorflow.compat.v1 as v1
    from brief_training import Fetch, Watch

    import tfdist.estimator as tfe
    from tfdist.cluster import instances
    from tfdist.strategies import strategy_for_run

    os.environ |= instances.instance_environment(
        index=instances.instance_index(),
        num_instances=2,
        local_index=instances.instance_index(),
        num_total_replicas=4,
        devices_per_replica=2,
    )

    def input_fn() -> tf.data.Dataset:
        numbers = tf.range(16, dtype=tf.float32) ** 2
        return tf.data.Dataset.from_tensor_slices(numbers).shard(*instances.shard()).batch(2)

    def model_fn(features: Any, mode: str) -> tfe.EstimatorSpec:
        weight = v1.get_variable("weight", [], initializer=v1.zeros_initializer())
        slices.append(tf.identity(features))
        loss = tf.reduce_mean(features) * weight
        optimizer = v1.train.GradientDescentOptimizer(1.0)
        train_op = optimizer.minimize(loss, v1.train.get_global_step())
        return tfe.EstimatorSpec(mode, loss=loss, train_op=train_op)

    slices: list[Any] = []
    seen, watch = Fetch(lambda _: slices), Watch()
    config = tfe.RunConfig(train_distribute=strategy_for_run())
    tfe.Estimator(model_fn, None, config).train(input_fn, hooks=[seen, watch], steps=2)
    parts = {t.device[-5:]: v.tolist() for t, v in zip(slices, seen.values[0], strict=True)}
    return {**parts, "weight": float(watch.values["weight"])}


def test_the_launchers_replicas_train_as_one_with_all_their_batches(fake_cluster: Any) -> None:
    first, second = fake_cluster.run(_train_four_replicas, engine="horovod")
    squares = np.arange(16) ** 2
    # Each instance has every second number, each replica its own two of them.
    assert first == {"CPU:1": [0, 4], "CPU:3": [16, 36], "weight": -float(2 * squares.mean())}
    assert second == {"CPU:1": [1, 9], "CPU:3": [25, 49], "weight": first["weight"]}


def test_one_instance_says_that_the_launcher_decides_how_many_replicas(fake_cluster: Any) -> None:
    def make() -> int:
        from tfdist.strategies import strategy_for_run

        return int(strategy_for_run(num_replicas=1).num_replicas_in_sync)

    env = {"TFDIST_NUM_LOCAL_REPLICAS": "3"}
    assert fake_cluster.run(make, env=env) == [6, 6]
    line = "The number of replicas is overridden by tfdist run. The new value is 3."
    assert line in fake_cluster.outputs[0]
    assert "overridden" not in fake_cluster.outputs[1]


# Functions on some of the instances.


def _reduce_on_several() -> list[Any]:
    import tensorflow as tf
    import tensorflow.compat.v1 as v1

    from tfdist.cluster import instances
    from tfdist.strategies import execute_on_instances, strategy_for_run, synchronize

    own = instances.instance_index()
    strategy = strategy_for_run()

    def reduce(power: int) -> dict[str, Any]:
        with tf.Graph().as_default(), strategy.scope():
            context = strategy.extended.input_context()
            values = {
                "sum": strategy.reduce("SUM", tf.constant(float(10**own)), axis=None),
                "gathered": strategy.extended.collectives.gather(tf.constant([own]), "own"),
                "from the first": v1.get_variable("first", initializer=float(own**power)),
            }
            config = strategy.update_config_proto(v1.ConfigProto())
            with v1.Session(strategy.master, config=config) as session:
                session.run(v1.global_variables_initializer())
                found = {name: session.run(value).tolist() for name, value in values.items()}
        found["place"] = (context.input_pipeline_id, context.num_input_pipelines)
        found["is chief"] = strategy.extended.should_checkpoint
        return found

    results = [
        execute_on_instances({1, 2}, reduce, 2),
        execute_on_instances([2, 0], reduce, power=2),
        execute_on_instances((2,), reduce, 2),
        reduce(2),
        execute_on_instances(range(3), reduce, 2),
    ]
    synchronize()
    results.append(execute_on_instances({1, 2}, lambda: (synchronize(), reduce(3))[1]))
    synchronize()
    return results


@pytest.mark.parametrize("engine", ["grpc", "horovod"])
def test_named_instances_have_collectives_of_their_own(fake_cluster: Any, engine: str) -> None:
    def expected(names: list[int], own: int, power: int = 2) -> dict[str, Any] | None:
        if own not in names:
            return None
        place = names.index(own)
        return {
            "sum": float(sum(10**name for name in names)),
            "gathered": names,
            "from the first": float(names[0] ** power),
            "place": (place, len(names)),
            "is chief": place == 0,
        }

    for own, results in enumerate(
        fake_cluster.run(_reduce_on_several, engine=engine, num_workers=3)
    ):
        everybody = expected([0, 1, 2], own)
        assert results == [
            expected([1, 2], own),
            expected([0, 2], own),
            expected([2], own),
            everybody,
            everybody,
            expected([1, 2], own, power=3),
        ]


def test_all_train_after_some_have_trained(fake_cluster: Any, train_briefly: Any) -> None:
    def train() -> list[Any]:
        from tfdist.strategies import execute_on_instances, strategy_for_run

        strategy = strategy_for_run()
        ends = [execute_on_instances({0, 1}, train_briefly, "grpc"), train_briefly("grpc")]
        assert strategy.num_replicas_in_sync == 3
        return [end and (end["error"], end["step"]) for end in ends]

    assert fake_cluster.run(train, num_workers=3) == [[(None, 20)] * 2] * 2 + [[None, (None, 20)]]


def test_an_error_on_a_named_instance_is_its_own_and_ends_the_restriction(
    fake_cluster: Any,
) -> None:
    def call() -> list[Any]:
        from tfdist.strategies import execute_on_instances, strategy_for_run

        strategy = strategy_for_run()
        counts: list[Any] = []

        def fail() -> None:
            counts.append(strategy.num_replicas_in_sync)
            raise OSError("no space")

        try:
            counts.append(execute_on_instances({1}, fail))
        except OSError as error:
            counts.append(str(error))
        return [*counts, strategy.num_replicas_in_sync]

    assert fake_cluster.run(call) == [[None, 2], [1, "no space", 2]]


@pytest.mark.parametrize("engine", ["none", "grpc"])
def test_what_cannot_be_executed_is_refused(fake_cluster: Any, engine: str) -> None:
    def call() -> list[str]:
        from tfdist.strategies import execute_on_instances

        def nested() -> Any:
            return execute_on_instances({0}, lambda: None)

        answers = []
        for instances in ([], {2}, {-1, 0}, {"0"}, {0, 1}, {0}):
            try:
                execute_on_instances(instances, nested)
            except (ValueError, RuntimeError) as error:
                answers.append(f"{type(error).__name__}: {error}")
        return answers

    answers, *_ = fake_cluster.run(call, engine=engine)
    has = "this run has 0." if engine == "none" else "this run has 0 and 1."
    assert answers[:4] == [
        f"ValueError: execute_on_instances got {what}, and {has} Name one or more of these."
        for what in ("no instance", "instance 2", "instance -1", "instance '0'")
    ]
    if engine == "grpc":
        assert answers[4].startswith("RuntimeError: this run has no MultiWorkerStrategy yet")
    assert answers[5].startswith("RuntimeError: execute_on_instances was called by a function")


# Meeting.


@pytest.mark.parametrize(
    ("engine", "trains_before"), [("grpc", False), ("grpc", True), ("horovod", True)]
)
def test_nobody_goes_on_before_everybody_has_come(
    fake_cluster: Any, engine: str, trains_before: bool
) -> None:
    def meet() -> list[tuple[float, float]]:
        import time

        from tfdist.cluster import instances
        from tfdist.strategies import strategy_for_run, synchronize

        strategy = strategy_for_run()
        if trains_before:
            _ = strategy.master
        times = []
        for number in range(3):
            if number == instances.instance_index():
                time.sleep(0.2)  # A different one is late each time.
            came = time.monotonic()
            synchronize()
            times.append((came, time.monotonic()))
        return times

    results = fake_cluster.run(meet, engine=engine, num_workers=3)
    for round_ in zip(*results, strict=True):
        last_came = max(came for came, _ in round_)
        assert all(left >= last_came for _, left in round_)


@pytest.mark.parametrize(
    ("engine", "who"), [("grpc", "worker 1 (127.0.0.1:"), ("horovod", "some of the 2 instances")]
)
def test_one_that_does_not_come_in_time_is_named(fake_cluster: Any, engine: str, who: str) -> None:
    def wait() -> tuple[str, float]:
        import time

        from tfdist.cluster import RendezvousError, instances
        from tfdist.strategies import strategy_for_run, synchronize

        strategy = strategy_for_run()
        _ = strategy.master
        synchronize()
        if instances.instance_index() == 1:
            return "", 0.0
        start_s = time.monotonic()
        try:
            synchronize(timeout_s=1.0)
        except RendezvousError as error:
            return str(error), time.monotonic() - start_s
        return "met", time.monotonic() - start_s

    (said, waited_s), _ = fake_cluster.run(wait, engine=engine)
    assert said.startswith(who)
    assert "did not call synchronize() within 1 s. Every instance must call it as often" in said
    assert waited_s >= 1.0


@pytest.mark.parametrize(
    ("engine", "said"),
    [("grpc", "Lost worker 1 (127.0.0.1:"), ("horovod", "Lost another instance in synchronize()")],
)
def test_one_that_has_ended_is_not_waited_for(
    fake_cluster: Any, tmp_path: Path, engine: str, said: str
) -> None:
    script = tmp_path / "program.py"
    script.write_text(
        "from tfdist.cluster import instances\n"
        "from tfdist.strategies import strategy_for_run, synchronize\n"
        "_ = strategy_for_run().master\n"
        "synchronize()\n"
        "if instances.instance_index() == 1:\n"
        "    raise SystemExit(0)\n"
        "synchronize()\n"
    )
    waiting, ended = fake_cluster.run_script(
        [str(script)], engine=engine, check=False, timeout_s=120, forked=True
    )
    assert ended.returncode == 0
    assert waiting.returncode not in (0, None)
    assert f"WorkerLostError: {said}" in waiting.stderr
