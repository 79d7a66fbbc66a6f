"""Gradients in half precision, between real workers over both engines."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

ROUNDING = {"fp16": 2.0**-11, "bf16": 2.0**-8}


def _step_with_known_gradients(kind: str) -> dict[str, Any]:
    """Makes one step of gradient descent from 0: each weight is the sum of its gradients then."""
    import numpy as np
    import tensorflow.compat.v1 as v1

    from tfdist.strategies import strategy_for_run

    strategy = strategy_for_run(compression=kind)
    extended = strategy.extended
    random = np.random.RandomState(extended.collectives.worker_index)
    shapes = {"large": [700, 200], "small": [3], "matrix": [11, 7]}
    own = {name: random.randn(*shape).astype(np.float32) for name, shape in shapes.items()}
    own["rows"] = random.randn(2 + extended.collectives.worker_index, 4).astype(np.float32)
    loss = random.randn()
    with tf.Graph().as_default(), strategy.scope():
        weights = {
            name: v1.get_variable(name, initializer=tf.zeros(s)) for name, s in shapes.items()
        }
        weights["rows"] = v1.get_variable("rows", initializer=tf.zeros([9, 4]))
        count = v1.get_variable("count", initializer=0, trainable=False)

        def step() -> Any:
            gradients = {name: tf.constant(value) for name, value in own.items()}
            places = tf.range(len(own["rows"]))
            gradients["rows"] = tf.IndexedSlices(gradients["rows"], places, tf.constant([9, 4]))
            pairs = [(gradients[name], weight) for name, weight in weights.items()]
            descent = v1.train.GradientDescentOptimizer(-1.0).apply_gradients(pairs)
            context = tf.distribute.get_replica_context()
            return descent, context.all_reduce("SUM", tf.constant(loss, tf.float32))

        descent, sum_in_replica = strategy.run(step)
        fetches = {
            "sum_in_replica": sum_in_replica,
            "sum": strategy.reduce("SUM", tf.constant(loss, tf.float32), axis=None),
            "to_variable": extended.reduce_to(
                "SUM", tf.constant(loss, tf.float32), weights["small"]
            ),
            "empty": extended.batch_reduce_to("SUM", [(tf.zeros([0]), weights["small"])])[0],
            "integers": extended.batch_reduce_to("SUM", [(tf.constant(4097), count)])[0],
        }
        config = strategy.update_config_proto(v1.ConfigProto())
        with v1.Session(strategy.master, config=config) as session:
            session.run(v1.global_variables_initializer())
            _, exact = session.run([descent, fetches])
            after = session.run(weights)
    return {"own": own, "loss": loss, "exact": exact, "after": after}


# In a plain session gRPC gathers around the ring, and 4 ranks of Horovod add in shares.
@pytest.mark.parametrize(
    ("engine", "number", "roundings", "kind"), [("grpc", 3, 1, "fp16"), ("horovod", 4, 2, "bf16")]
)
def test_one_step_is_off_by_no_more_than_is_stated(
    fake_cluster: Any, engine: str, number: int, roundings: int, kind: str
) -> None:
    workers = fake_cluster.run(_step_with_known_gradients, kind, engine=engine, num_workers=number)
    own = [dict(worker["own"]) for worker in workers]
    for one in own:
        one["rows"] = np.concatenate([one["rows"], np.zeros([9 - len(one["rows"]), 4])])
    for name, weight in workers[0]["after"].items():
        for other in workers[1:]:
            assert np.array_equal(weight, other["after"][name]), name
        times = 1 if name == "rows" else roundings
        u = (1 + ROUNDING[kind]) ** times - 1
        gradients = np.array([one[name] for one in own], np.float64)
        # Tiny values are off by 2^-25 in fp16; float32 itself rounds, too.
        bound = u * np.abs(gradients).sum(axis=0) * (1 + 1e-3) + number * 2.0**-25
        errors = np.abs(weight - gradients.sum(axis=0))
        assert np.all(errors <= bound), name
        assert np.max(errors) > ROUNDING[kind] / 100, name
    loss = np.sum([worker["loss"] for worker in workers])
    for worker in workers:
        assert worker["exact"].pop("integers") == number * 4097
        assert worker["exact"].pop("empty").shape == (0,)
        np.testing.assert_allclose(list(worker["exact"].values()), loss, rtol=1e-6, atol=1e-6)


# The Estimator's workers exchange directly over gRPC.
def test_twenty_steps_end_near_those_in_float32_with_bit_equal_weights(
    train_once: Any, train_alone: Any, read_events: Any
) -> None:
    options = {"has_embedding": True, "steps": 20}
    together = train_once("grpc", local_batch=8, compression="bf16", **options)
    alone = train_alone(local_batch=16, **options)
    differences = []
    for name, value in together[0]["values"].items():
        assert np.array_equal(value, together[1]["values"][name]), name
        differences.append(np.max(np.abs(value - alone["values"][name])))
    assert 0 < max(differences) < ROUNDING["bf16"]
    # The loss that is reported is exact.
    own = np.mean([worker["losses"][0] for worker in together])
    written = [value for _, value in read_events(together[0]["model_dir"])["loss"]]
    np.testing.assert_allclose(written[0], own, rtol=1e-6)
