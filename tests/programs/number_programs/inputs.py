"""The forms in which `fit` takes its data, and how its epochs and steps are counted."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import tensorflow as tf

from number_programs.bench import BATCH, ROWS, Bench, batches, labels, numbers, row_weights, sizes
from number_programs.table import KERAS_3, TF_KERAS, Found, program

_READ_AHEAD_LIMIT_S = 0.5


def _model(bench: Bench, *first: Any) -> Any:
    return bench.sequential(numbers(), [*first, bench.layers.Dense(1)])


def _classifier(bench: Bench) -> Any:
    return bench.sequential(numbers(), [bench.layers.Dense(3)])


def _train(bench: Bench, data: Any, **options: Any) -> Found:
    return bench.train(lambda: _model(bench), data, **options)


# Arrays.


def _with_arrays(bench: Bench, x: Any, y: Any, **fit: Any) -> Found:
    bench.keras.utils.set_random_seed(11)
    fit = {"batch_size": BATCH, **fit}
    return _train(bench, x, fit={"y": y, **fit})


@program()
def arrays_in_order(bench: Bench) -> Found:
    return _with_arrays(bench, numbers(), sizes(), shuffle=False)


@program()
def arrays_shuffled(bench: Bench) -> Found:
    return _with_arrays(bench, numbers(), sizes())


@program()
def arrays_with_a_validation_split(bench: Bench) -> Found:
    return _with_arrays(bench, numbers(), sizes(), shuffle=False, validation_split=0.3)


@program()
def arrays_with_validation_data(bench: Bench) -> Found:
    held_out = (numbers()[:9], sizes()[:9], row_weights()[:9])
    return _with_arrays(bench, numbers(), sizes(), shuffle=False, validation_data=held_out)


@program()
def arrays_with_weights_of_rows(bench: Bench) -> Found:
    return _with_arrays(bench, numbers(), sizes(), shuffle=False, sample_weight=row_weights())


@program()
def arrays_of_more_rows_a_batch_than_there_are(bench: Bench) -> Found:
    return _with_arrays(bench, numbers(), sizes(), batch_size=64)


@program()
def tensors(bench: Bench) -> Found:
    x, y = tf.constant(numbers()), tf.constant(sizes())
    return _with_arrays(bench, x, y, shuffle=False)


@program()
def weights_of_classes(bench: Bench) -> Found:
    bench.keras.utils.set_random_seed(11)
    return bench.train(
        lambda: _classifier(bench),
        numbers(),
        loss=bench.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        fit={
            "y": labels(),
            "batch_size": BATCH,
            "class_weight": {0: 0.2, 1: 1.0, 2: 5.0},
            "shuffle": False,
        },
    )


@program()
def weights_of_classes_of_a_dataset(bench: Bench) -> Found:
    return bench.train(
        lambda: _classifier(bench),
        (numbers(), labels()),
        loss=bench.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        fit={"class_weight": {0: 0.2, 1: 1.0, 2: 5.0}},
    )


@program()
def predict_of_arrays(bench: Bench) -> Found:
    model = bench.compiled(lambda: _model(bench))
    predicted = model.predict(numbers(), batch_size=BATCH, verbose=0)
    return {"predicted": predicted}


@program()
def evaluate_of_arrays_with_weights(bench: Bench) -> Found:
    model = bench.compiled(lambda: _model(bench), metrics=["mae"], weighted_metrics=["mse"])
    weighted = {"sample_weight": row_weights(), "batch_size": BATCH, "verbose": 0}
    return model.evaluate(numbers(), sizes(), return_dict=True, **weighted)


# A PyDataset, or a Sequence, and generators.


class _Reads:
    """Counts the batches that were read, and waits for more of them."""

    def __init__(self) -> None:
        self._number = 0
        self._condition = threading.Condition()

    def note(self) -> None:
        with self._condition:
            self._number += 1
            self._condition.notify_all()

    def wait_for(self, number: int) -> None:
        """Waits until so many were read, within a limit."""
        end_s = time.monotonic() + _READ_AHEAD_LIMIT_S
        with self._condition:
            while self._number < number and time.monotonic() < end_s:
                self._condition.wait(end_s - time.monotonic())


def _batches_class(bench: Bench, reads: _Reads | None = None, last: int = 1) -> Any:
    base = bench.keras.utils.PyDataset if bench.is_keras_3 else bench.keras.utils.Sequence
    x, y = numbers(), sizes()

    class Batches(base):
        def __len__(self) -> int:
            return 3 + last

        def __getitem__(self, index: int) -> Any:
            if reads is not None:
                reads.note()
            rows = slice(index * BATCH, (index + 1) * BATCH)
            return x[rows], y[rows]

    return Batches


def _waiting_layer(bench: Bench, reads: _Reads, number: int) -> Any:
    """Returns a layer: while a function is traced, it waits until so many batches were read."""

    class Waiting(bench.layers.Layer):
        def call(self, x: Any) -> Any:
            if not tf.executing_eagerly():
                reads.wait_for(number)
            return x

        def compute_output_shape(self, shape: Any) -> Any:
            return shape

    return Waiting()


@program()
def py_dataset(bench: Bench) -> Found:
    data = _batches_class(bench)()
    return _train(bench, data, fit={"shuffle": False, "epochs": 3})


@program()
def py_dataset_read_ahead_while_the_step_is_traced(bench: Bench) -> Found:
    """Tracing takes so long that the whole epoch is read, and what would follow."""
    reads = _Reads()
    data = _batches_class(bench, reads)()
    return bench.train(
        lambda: _model(bench, _waiting_layer(bench, reads, 12)),
        data,
        fit={"shuffle": False, "epochs": 3},
    )


@program()
def py_dataset_shuffled(bench: Bench) -> Found:
    bench.keras.utils.set_random_seed(11)
    return _train(bench, _batches_class(bench)(), fit={"epochs": 3})


@program()
def py_dataset_of_two_threads(bench: Bench) -> Found:
    kind = _batches_class(bench)
    if bench.is_keras_3:
        return _train(bench, kind(workers=2), fit={"shuffle": False})
    more = {"workers": 2, "max_queue_size": 3}
    return _train(bench, kind(), fit={"shuffle": False, **more})


@program()
def py_dataset_whose_rows_change_at_the_end_of_an_epoch(bench: Bench) -> Found:
    base = bench.keras.utils.PyDataset if bench.is_keras_3 else bench.keras.utils.Sequence
    x, y = numbers(), sizes()

    class Batches(base):
        def __init__(self) -> None:
            super().__init__()
            self.order = np.arange(ROWS)

        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> Any:
            rows = self.order[index * BATCH : (index + 1) * BATCH]
            return x[rows], y[rows]

        def on_epoch_end(self) -> None:
            self.order = np.roll(self.order, 5)

    return _train(bench, Batches(), fit={"shuffle": False, "epochs": 3})


@program()
def py_dataset_to_validate_with(bench: Bench) -> Found:
    held_out = _batches_class(bench, last=0)()
    return _train(bench, (numbers(), sizes()), fit={"validation_data": held_out})


@program()
def py_dataset_with_weights_of_classes(bench: Bench) -> Found:
    base = bench.keras.utils.PyDataset if bench.is_keras_3 else bench.keras.utils.Sequence

    class Batches(base):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> Any:
            rows = slice(index * BATCH, (index + 1) * BATCH)
            return numbers()[rows], labels()[rows]

    return bench.train(
        lambda: _classifier(bench),
        Batches(),
        loss=bench.losses.SparseCategoricalCrossentropy(from_logits=True),
        fit={"class_weight": {0: 0.2, 1: 1.0, 2: 5.0}, "shuffle": False},
    )


def _from_generator(reads: _Reads | None = None) -> tf.data.Dataset:
    def rows() -> Any:
        for x, y in zip(numbers(), sizes(), strict=True):
            if reads is not None:
                reads.note()
            yield x, y

    specs = (tf.TensorSpec([4]), tf.TensorSpec([1]))
    return tf.data.Dataset.from_generator(rows, output_signature=specs).batch(BATCH)


@program()
def from_generator(bench: Bench) -> Found:
    return _train(bench, _from_generator(), fit={"epochs": 3})


@program()
def from_generator_read_ahead_while_the_step_is_traced(bench: Bench) -> Found:
    reads = _Reads()
    return bench.train(
        lambda: _model(bench, _waiting_layer(bench, reads, 2 * ROWS)),
        _from_generator(reads).prefetch(8),
        fit={"epochs": 3},
    )


@program()
def generator_of_python(bench: Bench) -> Found:
    """No batch is lost: those that Keras looks at first are trained on."""

    def forever() -> Any:
        while True:
            for start in range(0, ROWS, BATCH):
                yield numbers()[start : start + BATCH], sizes()[start : start + BATCH]

    return _train(bench, forever(), fit={"epochs": 2, "steps_per_epoch": 3})


@program()
def generator_of_python_that_ends(bench: Bench) -> Found:
    def batches_of(*arrays: Any) -> Any:
        for start in range(0, ROWS, BATCH):
            yield tuple(array[start : start + BATCH] for array in arrays)

    with bench.scope():
        model = bench.compiled(lambda: _model(bench), metrics=["mae"])
    found = bench.trained(
        model,
        batches_of(numbers(), sizes(), row_weights()),
        validation_data=batches_of(numbers(), sizes()),
    )
    found["evaluated"] = model.evaluate(batches_of(numbers(), sizes()), verbose=0)
    found["predicted"] = model.predict(batches_of(numbers()), verbose=0)
    return found


# Datasets.


@program()
def dataset_of_unknown_length(bench: Bench) -> Found:
    data = batches((numbers(), sizes())).filter(lambda x, y: tf.reduce_sum(x) < 1e9)
    return _train(bench, data, fit={"epochs": 3})


@program()
def dataset_with_steps_per_epoch(bench: Bench) -> Found:
    data = batches((numbers(), sizes())).repeat()
    return _train(bench, data, fit={"steps_per_epoch": 3, "epochs": 3})


@program()
def dataset_with_validation_steps(bench: Bench) -> Found:
    data = batches((numbers(), sizes()))
    held_out = {"validation_data": data.repeat(), "validation_steps": 2}
    return _train(bench, data, fit={**held_out, "validation_freq": 2, "epochs": 4})


@program()
def dataset_shuffled_with_a_seed(bench: Bench) -> Found:
    data = tf.data.Dataset.from_tensor_slices((numbers(), sizes()))
    data = data.shuffle(50, seed=3).batch(BATCH)
    return _train(bench, data, fit={"epochs": 3})


@program()
def dataset_shuffled_after_a_cache(bench: Bench) -> Found:
    data = tf.data.Dataset.from_tensor_slices((numbers(), sizes())).cache()
    data = data.shuffle(50, seed=3).repeat().batch(BATCH)
    return _train(bench, data, fit={"epochs": 3, "steps_per_epoch": 4})


@program()
def dataset_with_a_batch_of_known_size(bench: Bench) -> Found:
    data = tf.data.Dataset.from_tensor_slices((numbers(), sizes()))
    return _train(bench, data.batch(BATCH, drop_remainder=True))


@program()
def dataset_of_rows_of_its_own_batches(bench: Bench) -> Found:
    """Batches of other sizes in one dataset: 7, 3, 7 and 5 rows."""
    lengths = [7, 3, 7, 5]
    ends = np.cumsum(lengths)
    x, y = numbers(), sizes()
    parts = [
        tf.data.Dataset.from_tensors((x[end - length : end], y[end - length : end]))
        for length, end in zip(lengths, ends, strict=True)
    ]
    data = parts[0]
    for part in parts[1:]:
        data = data.concatenate(part)
    return _train(bench, data)


@program()
def dataset_of_dicts(bench: Bench) -> Found:
    def make() -> Any:
        first = bench.keras.Input([4], name="first")
        second = bench.keras.Input([2], name="second")
        both = bench.layers.Concatenate()([first, second])
        return bench.keras.Model({"first": first, "second": second}, bench.layers.Dense(1)(both))

    data = ({"first": numbers(), "second": numbers(2)}, sizes())
    return bench.train(make, data, predicts=True)


@program()
def several_steps_per_execution(bench: Bench) -> Found:
    return _train(bench, (numbers(), sizes()), steps_per_execution=3, metrics=["mae"])


@program()
def run_eagerly(bench: Bench) -> Found:
    return _train(bench, (numbers(), sizes()), run_eagerly=True, metrics=["mae"], predicts=True)


# Datasets that each worker makes itself.


def _own_dataset(bench: Bench, lengths: list[int]) -> Any:
    """Gives replica r of step s the batch s of length r; plain Keras gets them as one batch.

    Each step has `lengths` rows, one number for each replica of all workers.
    """
    x, y = numbers(), sizes()
    ends = np.cumsum(lengths)
    per_step, steps = int(ends[-1]), ROWS // int(ends[-1])
    if bench.strategy is None:
        return batches((x[: steps * per_step], y[: steps * per_step]), per_step)

    def own(context: Any) -> tf.data.Dataset:
        data = None
        for step in range(steps):
            for replica in range(bench.num_replicas):
                place = context.input_pipeline_id * bench.num_replicas + replica
                end = step * per_step + int(ends[place])
                rows = slice(end - lengths[place], end)
                size = lengths[place]
                part = tf.data.Dataset.from_tensor_slices((x[rows], y[rows]))
                part = part.batch(size, drop_remainder=True)
                data = part if data is None else data.concatenate(part)
        return data

    return bench.strategy.distribute_datasets_from_function(own)


@program(is_of_layout=True)
def own_datasets_of_workers(bench: Bench) -> Found:
    fit = {"steps_per_epoch": ROWS // (3 * bench.in_sync)}  # tf_keras asks for them.
    return _train(bench, _own_dataset(bench, [3] * bench.in_sync), fit=fit)


@program(KERAS_3, is_of_layout=True)
def own_datasets_of_workers_without_a_number_of_steps(bench: Bench) -> Found:
    return _train(bench, _own_dataset(bench, [3] * bench.in_sync))


@program(is_of_layout=True, layouts=("grpc2", "horovod2", "grpc3"))
def own_datasets_whose_known_batch_sizes_differ(bench: Bench) -> Found:
    lengths = [1, 4, 2][: bench.in_sync]
    fit = {"steps_per_epoch": ROWS // sum(lengths)}
    return _train(bench, _own_dataset(bench, lengths), metrics=["mae"], fit=fit)


# A batch at a time.


@program(KERAS_3, refuses="train_on_batch", layouts=("1x2", "2x2"))
def train_on_batch_of_replicas(bench: Bench) -> Found:
    model = bench.compiled(lambda: _model(bench))
    return {"loss": model.train_on_batch(numbers(), sizes())}


@program(TF_KERAS)
def train_on_batch_of_tf_keras(bench: Bench) -> Found:
    """Each worker gives the same rows, of which it takes its part."""
    model = bench.compiled(lambda: _model(bench))
    for start in range(0, ROWS, BATCH):
        rows = slice(start, start + BATCH)
        model.train_on_batch(numbers()[rows], sizes()[rows])
    return {f"weight {number}": value for number, value in enumerate(model.get_weights())}


@program(KERAS_3, is_of_layout=True, layouts=("grpc2", "horovod2", "grpc3"))
def train_on_batch_of_a_workers_own_rows(bench: Bench) -> Found:
    """Each worker gives its part of the rows; plain Keras gets all of them."""
    model = bench.compiled(lambda: _model(bench))
    rows, size = slice(None), 3 * bench.num_workers
    if bench.strategy is not None:
        index = bench.strategy.extended.collectives.worker_index
        rows = slice(3 * index, 3 * index + 3)
    for _ in range(3):
        model.train_on_batch(numbers()[:size][rows], sizes()[:size][rows])
    return {f"weight {number}": value for number, value in enumerate(model.get_weights())}


# More of Keras' own ways to data.


@program()
def windows_of_a_series(bench: Bench) -> Found:
    """The rows of timeseries_dataset_from_array, in order; the last batch is smaller."""
    make = bench.keras.utils.timeseries_dataset_from_array
    options = {"sequence_length": 3, "batch_size": BATCH, "shuffle": False}
    data = make(numbers(), sizes()[2:], **options)
    return bench.train(
        lambda: bench.sequential(
            np.zeros([1, 3, 4], "float32"), [bench.layers.LSTM(3), bench.layers.Dense(1)]
        ),
        data,
        evaluates=True,
    )


@program()
def rows_without_a_target(bench: Bench) -> Found:
    """The only loss is one that a layer adds."""

    class Adding(bench.layers.Dense):
        def call(self, x: Any) -> Any:
            made = super().call(x)
            self.add_loss(tf.reduce_mean(tf.square(made - x[:, :1])))
            return made

    def make() -> Any:
        x = bench.keras.Input([4])
        return bench.keras.Model(x, Adding(1)(x))

    data = tf.data.Dataset.from_tensor_slices(numbers()).batch(BATCH)
    return bench.train(make, data, loss=None)


@program()
def outputs_without_a_column(bench: Bench) -> Found:
    """Each row has a number, and no column for it."""

    def make() -> Any:
        x = bench.keras.Input([4])
        return bench.keras.Model(x, bench.layers.Reshape(())(bench.layers.Dense(1)(x)))

    data = (numbers(), sizes()[:, 0])
    return bench.train(make, data, metrics=["mae"], predicts=True)


@program()
def evaluate_and_predict_for_some_steps(bench: Bench) -> Found:
    model = bench.compiled(lambda: _model(bench), metrics=["mae"])
    data = batches((numbers(), sizes())).repeat()
    found = model.evaluate(data, steps=3, verbose=0, return_dict=True)
    rows = batches(numbers()).repeat()
    return {**found, "predicted": model.predict(rows, steps=2, verbose=0)}


@program()
def evaluate_with_several_steps_per_execution(bench: Bench) -> Found:
    model = bench.compiled(lambda: _model(bench), metrics=["mae"], steps_per_execution=2)
    found = model.evaluate(batches((numbers(), sizes())), verbose=0, return_dict=True)
    return {**found, "predicted": model.predict(batches(numbers()), verbose=0)}


@program()
def dataset_without_rows_for_the_last_replica(bench: Bench) -> Found:
    """Each batch has one row."""
    return _train(bench, batches((numbers()[:6], sizes()[:6]), 1), metrics=["mae"])


@program()
def dataset_of_batches_of_numpy_weights(bench: Bench) -> Found:
    """Weights of classes whose targets are one-hot."""
    return bench.train(
        lambda: _classifier(bench),
        (numbers(), np.eye(3, dtype="float32")[labels()]),
        loss=bench.losses.CategoricalCrossentropy(from_logits=True),
        weighted_metrics=["accuracy"],
        fit={"class_weight": {0: 0.2, 1: 1.0, 2: 5.0}},
    )


@program()
def images_from_a_folder_in_order(bench: Bench) -> Found:
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        for number in range(11):
            path = Path(folder) / f"kind{int(number > 6)}" / f"{number:02}.png"
            path.parent.mkdir(exist_ok=True)
            picture = np.full([5, 5, 3], 20 * number, "uint8")
            path.write_bytes(tf.io.encode_png(picture).numpy())
        data = bench.keras.utils.image_dataset_from_directory(
            folder, image_size=(4, 4), batch_size=5, shuffle=False
        )
        return bench.train(
            lambda: bench.sequential(
                np.zeros([1, 4, 4, 3], "float32"),
                [
                    bench.layers.Rescaling(1 / 255),
                    bench.layers.Flatten(),
                    bench.layers.Dense(1, "sigmoid"),
                ],
            ),
            data,
            loss="binary_crossentropy",
            metrics=["accuracy"],
        )
