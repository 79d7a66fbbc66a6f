"""Programs of TensorFlow 2 with the original's names: each instance reads its own shard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

RATE, START, EXAMPLES = 0.5, 2.0, 16


def run_all(library: str, folder: str) -> dict[str, Any]:
    """Runs every case in this instance, and returns what came of it."""
    cases = _Cases(library)
    return {
        "library": library,
        "replicas": cases.strategy.num_replicas_in_sync,
        "initial": cases.initial(),
        "loop": cases.loop(),
        "numpy": cases.numpy(),
        "two_ways": [cases.own_loop(), cases.fit()],
        "training": cases.program(folder),
        "uneven": cases.uneven(),
        "steps": cases.steps_differ(),
        "collectives": cases.collectives(),
        "accumulation": cases.refused(),
    }


class _Cases:
    def __init__(self, library: str) -> None:
        import tensorflow as tf
        from keras_training import import_library

        from tfdist import ipu
        from tfdist.ipu import popdist
        from tfdist.ipu.distributed.popdist_strategy import PopDistStrategy

        self.tf, self.keras, self.popdist = tf, import_library(library), popdist
        config = ipu.config.IPUConfig()
        popdist.tensorflow.set_ipu_config(config, ipus_per_replica=1)
        config.configure_ipu_system()
        popdist.init()
        self.strategy = PopDistStrategy()
        self.strategy.update_ipu_config(config)
        distribution = config.experimental.multi_replica_distribution
        assert distribution.process_index == popdist.getInstanceIndex()

    def initial(self) -> list[float]:
        """Each instance's initializer gives another value."""
        with self.strategy.scope():
            variable = self.tf.Variable(float(self.popdist.getInstanceIndex()))
            model = self.keras.Sequential(
                [self.keras.layers.Dense(1, kernel_initializer=self._constant())]
            )
            model.build((None, 1))
        return [float(variable), float(model.get_weights()[0].item())]

    def loop(self) -> list[tuple[float, float]]:
        """Returns (reduced loss, w) of each step, for x = 0 to 9 on every replica."""
        tf, strategy = self.tf, self.strategy
        with strategy.scope():
            w = tf.Variable(START)
            optimizer = self.keras.optimizers.SGD(RATE)

        def step(x: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = w * x
            optimizer.apply_gradients([(tape.gradient(loss, w), w)])
            return loss

        @tf.function(autograph=False)
        def train(x: Any) -> Any:
            return strategy.reduce("SUM", strategy.run(step, args=[x]), axis=None)

        return [(float(train(tf.constant(float(x)))), float(w)) for x in range(10)]

    def numpy(self) -> dict[str, Any]:
        """Evaluates and predicts arrays, of which every instance has its own rows."""
        x, y = self._shard_of(*_data())
        model = self._linear()
        model.set_weights([np.ones([3, 1], np.float32)])
        loss = model.evaluate(x, y, batch_size=2, verbose=0)
        predicted = model.predict(x, batch_size=2, verbose=0)
        return {
            "loss": float(loss),
            "is_own": bool(np.allclose(predicted[:, 0], x.sum(1), atol=1e-5)),
        }

    def own_loop(self) -> tuple[list[float], list[float]]:
        """Returns the losses and the last weights of a loop in raw TensorFlow."""
        tf, strategy = self.tf, self.strategy
        total = self.popdist.getNumTotalReplicas()
        with strategy.scope():
            w = tf.Variable(tf.ones([3, 1]))
            optimizer = self.keras.optimizers.SGD(0.1)

        def step(iterator: Any) -> Any:
            x, y = next(iterator)
            with tf.GradientTape() as tape:
                each = tf.reduce_sum((x @ w - y) ** 2, axis=1)  # [batch]
                loss = tf.nn.compute_average_loss(each, global_batch_size=total)
            optimizer.apply_gradients([(tape.gradient(loss, w), w)])
            return loss

        @tf.function(autograph=False)
        def train(iterator: Any) -> Any:
            losses = strategy.experimental_run_v2(step, args=[iterator])
            return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

        iterator = iter(self._dataset(1))
        losses = [float(train(iterator)) for _ in range(EXAMPLES // total)]
        return losses, w.numpy()[:, 0].tolist()

    def fit(self) -> tuple[list[float], list[float]]:
        """The same with `fit` and arrays: the losses of its steps are means so far."""
        model = self._linear()
        model.set_weights([np.ones([3, 1], np.float32)])
        means: list[float] = []
        report = self.keras.callbacks.LambdaCallback(
            on_batch_end=lambda batch, logs: means.append(float(logs["loss"]))
        )
        x, y = self._shard_of(*_data())
        model.fit(x, y, batch_size=1, shuffle=False, verbose=0, callbacks=[report])
        sums = np.multiply(means, np.arange(1, len(means) + 1))
        return np.diff(sums, prepend=0).tolist(), model.get_weights()[0][:, 0].tolist()

    def program(self, folder: str) -> dict[str, Any]:
        """Trains, saves, loads in the scope and evaluates, as a program with two files does."""
        keras, popdist = self.keras, self.popdist
        dataset = self._dataset(2)
        steps = len(dataset) // popdist.getNumLocalReplicas()
        with self.strategy.scope():
            model = self._linear(metrics=["mae"], steps_per_execution=steps)
            history = model.fit(dataset, epochs=3, verbose=0)
            path = Path(folder, "model.keras")
            if popdist.getInstanceIndex() == 0:
                model.save(path)
            popdist.synchronize()
            loaded = keras.models.load_model(path)
            loaded.compile(metrics=["mae"])
            found = loaded.evaluate(dataset, verbose=0, return_dict=True)
        all_x, all_y = _data()
        (w,) = loaded.get_weights()
        return {
            "history": {name: list(map(float, v)) for name, v in history.history.items()},
            "weights": w.tobytes().hex(),
            "mae": float(found["mae"]),
            "expected": float(np.abs(all_x @ w - all_y).mean()),
        }

    def uneven(self) -> dict[str, Any]:
        """Instance 0 has more examples than the others, and a last batch is not full."""
        rows = 7 if self.popdist.getInstanceIndex() == 0 else 4
        x, y = (values[:rows] for values in _data())
        dataset = self.tf.data.Dataset.from_tensor_slices((x, y)).batch(2)
        model = self._linear()
        history = model.fit(dataset, epochs=2, verbose=0)
        predicted = model.predict(dataset, verbose=0)
        return {"losses": history.history["loss"], "predicted": len(predicted) - rows}

    def steps_differ(self) -> str:
        """Keras 3 refuses it; tf_keras takes instance 0's number, as a variable's value."""
        at_a_time = 1 + self.popdist.getInstanceIndex()
        model = self._linear(steps_per_execution=at_a_time)
        try:
            model.fit(self._dataset(1), verbose=0)
        except ValueError as error:
            return str(error)
        return ""

    def collectives(self) -> list[Any]:
        from tfdist.ipu.distributed import host_collective_ops as host

        tf, index = self.tf, self.popdist.getInstanceIndex()
        found: list[Any] = []
        for dtype in (tf.float16, tf.float32, tf.int8, tf.int16, tf.int32, tf.int64):
            value = tf.constant(2 * index, dtype)
            results = [
                host.allgather(value),
                host.allreduce(value, tf.distribute.ReduceOp.SUM, tensor_name="sum"),
                host.allreduce(value, tf.distribute.ReduceOp.MEAN),
                host.broadcast(value + 1),
            ]
            assert {result.dtype for result in results} == {dtype}
            found.append([result.numpy().tolist() for result in results])
        last = self.popdist.getNumInstances() - 1
        found.append(host.broadcast(tf.constant([index, 5]), root_rank=last).numpy().tolist())
        return found

    def refused(self) -> str:
        model = self._linear()
        model.set_asynchronous_callbacks(asynchronous=True)
        try:
            model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=4)
        except NotImplementedError as error:
            return str(error)
        return ""

    def _constant(self) -> Any:
        return self.keras.initializers.Constant(START + self.popdist.getInstanceIndex())

    def _shard_of(self, *arrays: Any) -> list[Any]:
        instances, index = self.popdist.getNumInstances(), self.popdist.getInstanceIndex()
        return [array[index::instances] for array in arrays]

    def _dataset(self, batch: int) -> Any:
        dataset = self.tf.data.Dataset.from_tensor_slices(_data())
        dataset = dataset.shard(
            num_shards=self.popdist.getNumInstances(), index=self.popdist.getInstanceIndex()
        )
        return dataset.batch(batch, drop_remainder=True)

    def _linear(self, **compile_options: Any) -> Any:
        with self.strategy.scope():
            model = self.keras.Sequential(
                [self.keras.Input([3]), self.keras.layers.Dense(1, use_bias=False)]
            )
            model.compile(self.keras.optimizers.SGD(0.1), "mse", **compile_options)
        return model


def _data() -> tuple[Any, Any]:
    rng = np.random.RandomState(0)
    x = rng.rand(EXAMPLES, 3).astype(np.float32)
    return x, x @ np.float32([[1], [-2], [3]])
