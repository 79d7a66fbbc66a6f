"""One small training program, run by every strategy."""

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture
def train() -> Callable[..., dict[str, Any]]:
    """A function that trains a small network in whatever process calls it, and tells what came out.

    It is nested so that it goes to the workers by value.
    """

    def train(
        engine: str,
        model_dir: str,
        *,
        optimizer: str = "sgd",
        steps: int = 6,
        local_batch: int = 8,
        iterations: int = 1,
        variables_on_host: bool = True,
        has_embedding: bool = False,
        uses_host_call: bool = True,
        seed: int | None = None,
        num_replicas: int = 1,
        compression: str | None = None,
    ) -> dict[str, Any]:
        import numpy as np
        import tensorflow as tf
        import tensorflow.compat.v1 as v1

        import tfdist.estimator as tfe
        from tfdist.strategies import HorovodStrategy, MultiWorkerStrategy

        kinds = {"grpc": MultiWorkerStrategy, "horovod": HorovodStrategy}
        kind = kinds.get(engine)
        strategy = kind and kind(
            variables_on_host=variables_on_host, num_replicas=num_replicas, compression=compression
        )
        random = np.random.RandomState(0)
        words = random.randint(0, 20, (steps * 64, 3)).astype(np.int32)
        numbers = random.randn(steps * 64, 5).astype(np.float32)
        targets = random.randn(steps * 64, 2).astype(np.float32)

        def input_fn(input_context: Any = None) -> tf.data.Dataset:
            dataset = tf.data.Dataset.from_tensor_slices(
                ({"words": words, "numbers": numbers}, targets)
            )
            if input_context is None:
                return dataset.batch(local_batch)
            # Worker i reads the i-th part of each global batch.
            workers = input_context.num_input_pipelines
            parts = dataset.batch(local_batch)
            return parts.shard(workers, input_context.input_pipeline_id)

        def model_fn(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
            def variable(name: str, shape: list[int]) -> tf.Variable:
                values = np.random.RandomState(len(name)).randn(*shape).astype(np.float32)
                start = values if seed is None else None
                initializer = (
                    v1.constant_initializer(start)
                    if start is not None
                    else v1.random_normal_initializer(seed=seed)
                )
                return v1.get_variable(name, shape, initializer=initializer)

            hidden = tf.matmul(features["numbers"], variable("first", [5, 4]))
            if has_embedding:
                table = variable("table_of_words", [20, 4])
                hidden += tf.reduce_mean(tf.nn.embedding_lookup(table, features["words"]), axis=1)
            hidden = tf.nn.relu(hidden + variable("bias_of_first", [4]))
            output = tf.matmul(hidden, variable("second_", [4, 2]))
            loss = tf.reduce_mean(tf.square(output - labels))
            chosen = {
                "sgd": lambda: v1.train.GradientDescentOptimizer(0.1),
                "momentum": lambda: v1.train.MomentumOptimizer(0.1, 0.9),
                "adam": lambda: v1.train.AdamOptimizer(0.01),
                "keras": lambda: tf.keras.optimizers.legacy.SGD(0.1, momentum=0.9),
            }[optimizer]()
            if not uses_host_call:
                step = v1.train.get_global_step()
                return tfe.EstimatorSpec(
                    mode, loss=loss, train_op=chosen.minimize(loss, global_step=step)
                )
            if optimizer == "keras":
                # A Keras optimizer does not divide the loss by the number of workers.
                whole = loss / tf.distribute.get_strategy().num_replicas_in_sync
                weights = v1.trainable_variables()
                pairs = list(zip(tf.gradients(whole, weights), weights, strict=True))
            else:
                pairs = chosen.compute_gradients(loss)

            def apply_on_host(*gradients: Any) -> tf.Operation:
                return chosen.apply_gradients(zip(gradients, [v for _, v in pairs], strict=True))

            return tfe.EstimatorSpec(
                mode, loss=loss, host_call=(apply_on_host, [g for g, _ in pairs])
            )

        class Watch(v1.train.SessionRunHook):  # type: ignore[misc,name-defined]
            def __init__(self) -> None:
                self.losses: list[float] = []
                self.values: dict[str, Any] = {}
                self.placed: dict[str, tuple[str, str]] = {}

            def begin(self) -> None:
                self.loss = v1.get_default_graph().get_collection(v1.GraphKeys.LOSSES)[-1]
                self.variables = {v.op.name: v for v in v1.global_variables()}

            def before_run(self, run_context: Any) -> Any:
                options = v1.RunOptions(output_partition_graphs=True)
                return v1.train.SessionRunArgs(self.loss, options=options)

            def after_run(self, run_context: Any, run_values: Any) -> None:
                self.losses.append(float(run_values.results))
                for graph in run_values.run_metadata.partition_graphs:
                    for node in graph.node:
                        self.placed[node.name] = (node.op, node.device)

            def end(self, session: Any) -> None:
                self.values.update(session.run(self.variables))

        config = tfe.RunConfig(
            tf_random_seed=seed,
            train_distribute=strategy,
            save_checkpoints_steps=1000,
            device=tfe.DeviceConfig(
                iterations_per_loop=iterations,
                variables_on_host=variables_on_host,
                num_replicas=num_replicas if strategy is None else 1,
            ),
        )
        watch = Watch()
        tfe.Estimator(model_fn, model_dir, config).train(input_fn, hooks=[watch], max_steps=steps)
        return {"losses": watch.losses, "values": watch.values, "placed": watch.placed}

    return train


@pytest.fixture(scope="session")
def trained_before() -> dict[Any, Any]:
    """What `train_once` and `train_alone` have trained so far."""
    return {}


@pytest.fixture
def train_once(
    fake_cluster: Any,
    train: Callable[..., dict[str, Any]],
    tmp_path_factory: pytest.TempPathFactory,
    trained_before: dict[Any, Any],
) -> Callable[..., list[dict[str, Any]]]:
    """Trains on workers; what comes out of the same options again is what came out before.

    Each worker also tells its `model_dir`.
    """

    def train_once(engine: str, num_workers: int = 2, **options: Any) -> list[dict[str, Any]]:
        key = (engine, num_workers, *sorted(options.items()))
        if key not in trained_before:
            folder = str(tmp_path_factory.mktemp("trained"))
            workers = fake_cluster.run(
                train, engine, folder, engine=engine, num_workers=num_workers, **options
            )
            trained_before[key] = [{**worker, "model_dir": folder} for worker in workers]
        return trained_before[key]

    return train_once


@pytest.fixture
def train_alone(train_once: Callable[..., list[dict[str, Any]]]) -> Callable[..., dict[str, Any]]:
    """Trains in one process that is part of nothing."""

    def train_alone(**options: Any) -> dict[str, Any]:
        return train_once("none", 1, **options)[0]

    return train_alone
