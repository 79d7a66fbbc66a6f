"""One program with most of what an Estimator offers, equal over every engine and over replicas."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

WORKERS = {"grpc": 2, "horovod": 2, "none": 1}


@pytest.fixture
def program() -> Any:
    """A function that runs the program in whatever process calls it; worker 0 tells what came out.

    Warm start, batch sizes, training with decay of the learning rate, early stopping, evaluation
    on the host, prediction and export.
    """

    def program(engine: str, folder: str, warm_start_from: str, num_replicas: int) -> Any:
        import tensorflow as tf
        import tensorflow.compat.v1 as v1

        import tfdist.estimator as tfe
        from tfdist.strategies import HorovodStrategy, LocalStrategy, MultiWorkerStrategy

        kinds = {"grpc": MultiWorkerStrategy, "horovod": HorovodStrategy, "none": LocalStrategy}
        random = np.random.RandomState(0)
        words = random.randint(0, 10, (96, 3))
        labels = (words.sum(axis=1) % 2).astype(np.float32)[:, None]

        def input_fn(params: Any, mode: str, input_context: Any = None) -> Any:
            data = tf.data.Dataset.from_tensor_slices(({"words": words}, labels))
            data = data.batch(params["batch_size"], drop_remainder=True)
            if mode == tfe.ModeKeys.TRAIN:
                data = data.shard(
                    input_context.num_input_pipelines, input_context.input_pipeline_id
                )
            return data

        def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
            table = v1.get_variable("table", [10, 4], initializer=v1.zeros_initializer())
            bias = v1.get_variable("bias", [1], initializer=v1.zeros_initializer())
            embedded = tf.reduce_mean(tf.nn.embedding_lookup(table, features["words"]), axis=1)
            logits = tf.reduce_sum(embedded, axis=1, keepdims=True) + bias
            score = tf.sigmoid(logits)
            if mode == tfe.ModeKeys.PREDICT:
                return tfe.EstimatorSpec(mode, predictions={"score": score})
            loss = tf.reduce_mean(
                tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)
            )
            if mode == tfe.ModeKeys.EVAL:

                def metrics(labels: Any, score: Any) -> Any:
                    return {
                        "auc": v1.metrics.auc(labels, score),
                        "rmse": v1.metrics.root_mean_squared_error(labels, score),
                    }

                return tfe.EstimatorSpec(mode, loss=loss, eval_metrics=(metrics, [labels, score]))
            step = v1.train.get_global_step()
            rate = v1.train.exponential_decay(0.5, step, 2, 0.9)
            optimizer = v1.train.AdamOptimizer(rate)
            return tfe.EstimatorSpec(
                mode, loss=loss, train_op=optimizer.minimize(loss, global_step=step)
            )

        config = tfe.RunConfig(train_distribute=kinds[engine](num_replicas=num_replicas))
        estimator = tfe.Estimator(
            model_fn,
            folder,
            config,
            warm_start_from=warm_start_from,
            train_batch_size=24,
            eval_batch_size=6,
            predict_batch_size=12,
        )
        estimator.train(input_fn, max_steps=3)
        if not config.is_chief:
            return None

        def receiver() -> Any:
            return tfe.export.ServingInputReceiver(
                {"words": v1.placeholder(tf.int64, [None, 3], name="words")},
                v1.get_default_graph().get_tensor_by_name("words:0"),
            )

        exported = estimator.export_saved_model(folder + "/export", receiver)
        serve = tf.saved_model.load(exported.decode()).signatures["serving_default"]
        served = serve(tf.constant(words))["score"]
        return {
            "values": {n: estimator.get_variable_value(n) for n in estimator.get_variable_names()},
            "metrics": estimator.evaluate(input_fn),
            "predicted": np.array([p["score"] for p in estimator.predict(input_fn)]),
            "served": served.numpy(),
        }

    return program


@pytest.fixture
def old_checkpoint(tmp_path: Path) -> str:
    import tensorflow as tf
    import tensorflow.compat.v1 as v1

    with tf.Graph().as_default(), v1.Session() as session:
        v1.get_variable("table", initializer=np.linspace(-1, 1, 40).reshape(10, 4).astype("f"))
        v1.get_variable("bias", initializer=np.array([0.25], np.float32))
        session.run(v1.global_variables_initializer())
        return str(v1.train.Saver().save(session, str(tmp_path / "old" / "model.ckpt")))


def test_it_computes_the_same_over_every_engine_and_over_replicas(
    fake_cluster: Any, program: Any, old_checkpoint: str, tmp_path: Path
) -> None:
    found = {}
    for engine, replicas in (("none", 1), ("none", 2), ("grpc", 1), ("horovod", 1), ("grpc", 2)):
        folder = str(tmp_path / f"{engine}-{replicas}")
        found[engine, replicas] = fake_cluster.run(
            program,
            engine,
            folder,
            old_checkpoint,
            replicas,
            engine=engine,
            num_workers=WORKERS[engine],
        )[0]
    alone = found["none", 1]
    assert alone["values"]["global_step"] == 3
    # From zeros all columns would be equal: their difference comes from the old checkpoint.
    np.testing.assert_allclose(np.ptp(alone["values"]["table"], axis=1), 0.15385, atol=0.05)
    np.testing.assert_allclose(alone["served"], alone["predicted"], atol=1e-6)
    for way, other in found.items():
        for name, value in alone["values"].items():
            np.testing.assert_allclose(
                other["values"][name], value, atol=2e-6, err_msg=f"{way} {name}"
            )
        assert other["metrics"] == pytest.approx(alone["metrics"], abs=1e-5), way
        np.testing.assert_allclose(other["predicted"], alone["predicted"], atol=1e-5)
        np.testing.assert_allclose(other["served"], alone["served"], atol=1e-5)
