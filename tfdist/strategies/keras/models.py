"""Extensions of Keras, with which its models train on several workers.

Keras calls a strategy for variables, datasets and `run`. Seven things have no such call, so its
classes are extended, once, when a strategy's scope is entered. Models without a strategy of tfdist
are not affected.

    Model.fit                   progress, stop signals, other workers that fail (`fit`)
    Model.make_..._function     logs are combined over all replicas, predictions are gathered
    CallbackList                statistics are made equal; only the chief writes files and a bar
    losses                      a replica counts by its share of the rows (`eager.step`)
    optimizers                  gradients are reduced first, in Keras 3 before they are clipped and
                                checked (`optimizers`), and variables updated in one pass
    look-ups, clipping          of tables that are divided between the workers (`tables`)

Private names: of both `Model._flatten_layers`; of Keras 3 `_initial_epoch`, `_symbolic_build`,
the method of `_BUILD`, and `_moments` of its batch norm; of tf_keras `RandomGenerator`, and
`_support_zero_size_input` of its batch norm; the two below; and what the modules named above list.
"""

from __future__ import annotations

import importlib
import inspect
import math
import re
import sys
from collections.abc import Callable
from contextlib import nullcontext
from types import ModuleType
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.process.endings import OneLineError
from tfdist.strategies.eager.datasets import renewed
from tfdist.strategies.eager.own_loop import LOOP
from tfdist.strategies.eager.replica_variable import SEED_STEP, reads_own
from tfdist.strategies.eager.run import needs_all_workers
from tfdist.strategies.eager.step import KerasStep, keras_step, sum_over_replicas
from tfdist.strategies.keras.backups import adapt_backups
from tfdist.strategies.keras.callbacks import (
    send_files_elsewhere,
    share_numbers,
    support_backups,
    tfdist_callbacks,
)
from tfdist.strategies.keras.extension import extends, is_of_keras, strategy_of, strategy_of_scope
from tfdist.strategies.keras.fit import NUM_OF_STEP, current_fit, fit_run
from tfdist.strategies.keras.fused_updates import fuse_updates
from tfdist.strategies.keras.input import adapt_input, batch_spec
from tfdist.strategies.keras.losses import adapt_compute_loss, adapt_losses, adapt_tapes
from tfdist.strategies.keras.metrics import adapt_metrics
from tfdist.strategies.keras.optimizers import adapt_optimizers
from tfdist.strategies.keras.saving import adapt_saving
from tfdist.strategies.keras.step_results import CombinedLogs, OwnResults, PredictedRows
from tfdist.strategies.keras.table_files import adapt_table_files
from tfdist.strategies.keras.tables import adapt_tables
from tfdist.strategies.private_runtime import plain_iterator
from tfdist.strategies.reductions.division import division_of
from tfdist.strategies.values.replica_context import is_in_replica, replica_in_sync

_PREDICT = "tfdist_predict_on_batch"  # The function of a model that predicts one batch.
_LIBRARIES = ("keras", "tf_keras")
# The message of TensorFlow where it divides a batch with a sparse tensor.
_NO_SPARSE_ROW = "Serialized sparse should have at least 1 serialized tensor"
# Messages where variables were made outside of a scope; over gRPC before the server had started.
_OUTSIDE = re.compile(
    "^Mixing different tf.distribute.Strategy objects|device:[A-Z]+:[0-9]+ unknown device"
)
_STAMP = "is_extended_by_tfdist"  # Of a library.
# The method of Keras 3 that builds a model with a batch.
_BUILD = "_maybe_symbolic_build"
# The method of tf_keras that reads the epoch and the step to go on from.
_INITIAL_COUNTERS = "_maybe_load_initial_counters_from_ckpt"


class KerasModelError(OneLineError, ValueError):
    """A model is compiled with what does not train on several replicas."""


def adapt_keras() -> None:
    """Extends the classes of the Keras libraries that the program has imported.

    A second call changes nothing.
    """
    for name in _LIBRARIES:
        library = sys.modules.get(name)
        if library is None or not hasattr(library, "Model") or hasattr(library, _STAMP):
            continue
        setattr(library, _STAMP, True)
        is_keras_3 = not hasattr(library, "__internal__")
        adapt_optimizers(library, is_keras_3=is_keras_3)
        adapt_tables(library, is_keras_3=is_keras_3)
        # Before Keras 3.10 metrics count the rows of one replica, and before 3.8 losses too.
        if is_keras_3 and not hasattr(library.Variable, "synchronization"):
            _refuse_models(library)
            continue
        fuse_updates(library, is_keras_3=is_keras_3)
        _adapt_model(library.Model)
        _adapt_callbacks(library)
        adapt_backups(library, is_keras_3)
        adapt_input(library, is_keras_3)
        adapt_losses(library, is_keras_3=is_keras_3)
        adapt_metrics(library, is_keras_3=is_keras_3)
        adapt_tapes()
        if is_keras_3:
            adapt_table_files(library, importlib.import_module("keras.src.saving.saving_lib"))
        adapt_saving(importlib.import_module(f"{name}.src.saving.saving_lib"), is_keras_3)
        if not is_keras_3:
            _vary_seeds(importlib.import_module(f"{name}.src.backend").RandomGenerator)
            _update_statistics_of_all(library)
        else:
            _synchronize_masked_moments(library)


def _refuse_models(library: ModuleType) -> None:
    """Makes models of a Keras 3 that is too old refuse a strategy of tfdist; optimizers work."""

    @extends(library.Model, "compile")
    @extends(library.Model, "predict")
    def refuse(method: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
        if strategy_of(self) is None:
            return method(self, *args, **kwargs)
        raise KerasModelError(
            f"this is Keras {library.__version__}, and models on several workers need 3.10 or "
            f"newer, which works with TensorFlow {tf.__version__} too: "
            'pip install "keras>=3.10"'
        )


def _adapt_model(model_class: Any) -> None:
    _wrap_made(model_class, "train", _train_function)
    _wrap_made(model_class, "test", _test_function)
    _wrap_made(model_class, "predict", _predict_function)

    @extends(model_class, "predict")
    def predict_renewed(predict: Any, self: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
        if strategy_of(self) is None:
            return predict(self, x, *args, **kwargs)
        # tf_keras sets options of the dataset before it calls the strategy.
        return predict(self, renewed(x), *args, **kwargs)

    @extends(model_class, "evaluate")
    def evaluate_and_forget(evaluate: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return evaluate(self, *args, **kwargs)
        finally:
            logs_of_all = getattr(getattr(self, "test_function", None), "logs_of_all", None)
            if logs_of_all is not None:  # A later test_on_batch has no callbacks.
                logs_of_all.is_read = True

    if hasattr(model_class, _BUILD):  # Keras 3; tf_keras divides the batch between the replicas.

        @extends(model_class, "predict_on_batch")
        def predict_own(predict: Any, self: Any, x: Any) -> Any:
            strategy = strategy_of(self)
            if strategy is None or strategy.num_replicas_in_sync == 1:
                return predict(self, x)
            if _PREDICT not in vars(self):  # Past Keras, which follows what is set by a name.
                vars(self)[_PREDICT] = tf.function(self.predict_step)
            step = self.predict_step if self.run_eagerly else vars(self)[_PREDICT]
            has_tables = any(division_of(variable) is not None for variable in self.variables)
            waits = needs_all_workers("predict_on_batch") if has_tables else nullcontext()
            with reads_own(), waits:
                return tf.nest.map_structure(lambda rows: rows.numpy(), step((x,)))

        @extends(model_class, _BUILD)
        def build_from_shapes(
            build: Any, self: Any, iterator: Any = None, data_batch: Any = None
        ) -> None:
            strategy = strategy_of(self)
            if strategy is None:
                build(self, iterator, data_batch)
                return
            # Keras would read a batch, which a generator has lost then and a shuffle has drawn.
            batch = data_batch if iterator is None else batch_spec(iterator)
            with strategy.scope():
                self._symbolic_build(data_batch=batch)

    @extends(model_class, "fit")
    def fit_with_others(fit: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        strategy = strategy_of(self)
        if strategy is None:
            return fit(self, *args, **kwargs)
        arguments = inspect.signature(fit).bind(self, *args, **kwargs).arguments
        try:
            with fit_run(self, strategy, arguments.get("initial_epoch") or 0):
                return fit(self, *args, **kwargs)
        except (RuntimeError, tf.errors.InvalidArgumentError) as error:
            if isinstance(error.__context__, OneLineError):
                raise error.__context__ from None  # Keras 3 hides it: the model cannot be built.
            if _NO_SPARSE_ROW in str(error):
                raise KerasModelError(
                    "a replica has no row of a batch with sparse features, which TensorFlow cannot "
                    f"divide: {strategy.num_replicas_in_sync} replicas need as many rows at least. "
                    "Batch them with drop_remainder=True."
                ) from None
            if _OUTSIDE.search(str(error)):
                raise KerasModelError(
                    "the optimizer, or a variable of the model, was made outside of the strategy's "
                    "scope. Make the model and its optimizer in `with strategy.scope():`."
                ) from error
            raise

    if hasattr(model_class, _INITIAL_COUNTERS):

        @extends(model_class, _INITIAL_COUNTERS)
        def load_and_share(load: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
            run, strategy = current_fit(), strategy_of(self)
            if strategy is not None and run is not None and run.resumed is not None:
                return run.resumed
            counters = load(self, *args, **kwargs)
            if strategy is None:
                return counters
            return tuple(share_numbers(counters, strategy.extended.reducer))


def _wrap_made(model_class: Any, kind: str, wrap: Callable[..., Any]) -> None:
    """Wraps the functions that a class makes of a model: "train", "test" or "predict"."""

    @extends(model_class, f"make_{kind}_function")
    def make_wrapped(make: Any, model: Any, force: bool = False) -> Any:
        make(model, force)
        function = getattr(model, f"{kind}_function")
        strategy = strategy_of(model)
        if strategy is not None and not hasattr(function, "is_of_tfdist"):
            _check(model, strategy)
            adapt_compute_loss(type(model))
            function = wrap(model, strategy, function)
            function.is_of_tfdist = True
            setattr(model, f"{kind}_function", function)
        return function


def _check(model: Any, strategy: Any) -> None:
    if strategy.num_replicas_in_sync == 1:
        return
    if getattr(model, "jit_compile", None) is True:
        raise KerasModelError(
            "this model is compiled with jit_compile=True, and XLA's code cannot send messages "
            "between replicas. Leave jit_compile out."
        )
    for layer in model._flatten_layers():  # noqa: SLF001
        if getattr(layer, "stateful", False) and hasattr(layer, "states"):
            raise KerasModelError(
                f"the layer {layer.name} has stateful=True: its states belong to the rows of a "
                f"batch, which {strategy.num_replicas_in_sync} replicas divide. Train it with one "
                "worker and one replica, or make it with stateful=False."
            )
    if hasattr(getattr(model, "optimizer", None), "_allreduce_grads"):
        raise KerasModelError(
            "this model's optimizer is Horovod's DistributedOptimizer, and the strategy reduces "
            "gradients itself. Give compile the optimizer without it."
        )


def _train_function(model: Any, strategy: Any, function: Callable[..., Any]) -> Any:
    """Returns a train function whose logs are those of all replicas, a step of `fit`."""
    is_alone = strategy.num_replicas_in_sync == 1
    logs_of_all = None if is_alone else CombinedLogs(model, strategy, NUM_OF_STEP)
    results = logs_of_all or OwnResults()
    looks_at_loss = not is_alone and not is_of_keras(type(model).train_step)

    # tf_keras changes the number for an epoch's last steps, and where it looks for the best one.
    makes_one_step = (
        _steps_per_call(model) == 1
        and getattr(model, "autotune_steps_per_execution", False) is False
    )
    notes = _Notes()

    def train(iterator: Any) -> Any:
        nonlocal looks_at_loss
        run = current_fit()
        if run is None:  # train_on_batch
            if inspect.isgenerator(iterator) and strategy.extended.placement.num_replicas > 1:
                raise KerasModelError(
                    "train_on_batch would give all replicas of a worker the same rows. Call fit, "
                    "or make the strategy with one replica."
                )
            if logs_of_all is not None:
                logs_of_all.set_combines(True)
            with (
                LOOP.step("train_on_batch"),
                keras_step(
                    is_training=True, results=results, rows_may_differ=inspect.isgenerator(iterator)
                ),
            ):
                return results.take(function(plain_iterator(iterator)))
        results.begin_run(run)
        num_steps = 1 if makes_one_step else _steps_per_call(model)
        requests = run.own_requests(num_steps)
        if logs_of_all is not None:
            run.combines |= logs_of_all.combines_always
            logs_of_all.set_requests(requests)
            logs_of_all.set_combines(run.combines)
        with run.step(num_steps), keras_step(is_training=True, results=results) as step:
            logs = run.note_logs(results.take(function(plain_iterator(iterator))))
            if looks_at_loss and any(losses.targets for losses in step.losses):
                _warn_of_own_loss(model, strategy.num_replicas_in_sync)
            notes.log(step)
            looks_at_loss = False
        is_nan = run.loss is not None and math.isnan(run.loss)
        sums = [*requests[:-1], 1.0, is_nan] if logs_of_all is None else logs_of_all.sums
        run.end_step(num_steps, sums, results.examples)
        return logs

    return train


class _Notes:
    """The notes of a function's steps; each is logged once."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def log(self, step: KerasStep) -> None:
        for note in step.notes:
            if note not in self._logged:
                self._logged.add(note)
                v1.logging.warning("%s", note)


def _warn_of_own_loss(model: Any, num_replicas: int) -> None:
    v1.logging.warning(
        "%s.train_step has a loss that Keras does not divide by the %d replicas, whose gradients "
        "are added. Use self.compute_loss or a loss of Keras, if it does not divide by "
        "strategy.num_replicas_in_sync itself.",
        type(model).__name__,
        num_replicas,
    )


def _steps_per_call(model: Any) -> int:
    if hasattr(model, "steps_per_execution"):
        return int(model.steps_per_execution or 1)
    return int(model._steps_per_execution or 1)  # noqa: SLF001


def _test_function(model: Any, strategy: Any, function: Callable[..., Any]) -> Any:
    is_alone = strategy.num_replicas_in_sync == 1
    logs_of_all = None if is_alone else CombinedLogs(model, strategy)

    def test(iterator: Any) -> Any:
        may_differ = inspect.isgenerator(iterator)  # Of test_on_batch.
        if logs_of_all is not None:
            logs_of_all.set_combines(logs_of_all.is_read)
        with (
            needs_all_workers("evaluate"),
            keras_step(results=logs_of_all, rows_may_differ=may_differ),
        ):
            return function(plain_iterator(iterator))

    test.logs_of_all = logs_of_all  # type: ignore[attr-defined]
    return test


def _predict_function(model: Any, strategy: Any, function: Callable[..., Any]) -> Any:
    """Returns a predict function that returns the rows of all workers, in the batch's order."""
    rows_of_all = PredictedRows(strategy)

    def predict(data: Any) -> Any:
        with needs_all_workers("predict"), keras_step(has_loss=False, results=rows_of_all):
            return function(plain_iterator(data))

    return predict


def _adapt_callbacks(library: ModuleType) -> None:
    """Makes Keras' lists of callbacks begin and end with callbacks of tfdist."""

    @extends(library.callbacks.CallbackList, "__init__")
    def init(
        original: Any,
        self: Any,
        callbacks: Any = None,
        add_history: bool = False,
        add_progbar: bool = False,
        model: Any = None,
        **params: Any,
    ) -> None:
        strategy = strategy_of(model)
        if strategy is None:
            original(self, callbacks, add_history, add_progbar, model, **params)
            return
        given = tf.nest.flatten(callbacks) if callbacks else []
        support_backups(library, given, strategy)
        if not strategy.extended.should_checkpoint:
            add_progbar = False
            send_files_elsewhere(library, given)
        first, last = tfdist_callbacks(library.callbacks, strategy, given)
        original(self, [first, *given, last], add_history, add_progbar, model, **params)


def _update_statistics_of_all(library: ModuleType) -> None:
    """Makes tf_keras' batch norm over all replicas update its averages where a replica has no row.

    Its statistics are those of all rows there, too.
    """
    name = f"{library.__name__}.src.layers.normalization.batch_normalization"
    kind = importlib.import_module(name).BatchNormalizationBase

    @extends(kind, "_support_zero_size_input")
    def has_statistics(is_supported: Any, self: Any) -> bool:
        is_of_all = self.synchronized and strategy_of_scope() is not None
        return not is_of_all and is_supported(self)


def _synchronize_masked_moments(library: ModuleType) -> None:
    """Makes Keras 3's batch norm over all replicas have the moments of all words under a mask.

    Keras' own are then those of a replica. The formula is Keras', with its epsilon.
    """

    @extends(library.layers.BatchNormalization, "_moments")
    def moments_of_all(moments: Any, self: Any, inputs: Any, mask: Any) -> Any:
        if mask is None or not self.synchronized or not is_in_replica():
            return moments(self, inputs, mask)
        axes, epsilon = list(self._reduction_axes), library.backend.epsilon()
        is_valid = tf.cast(tf.broadcast_to(mask[..., None], tf.shape(inputs)), inputs.dtype)
        own = [tf.reduce_sum(one, axes, keepdims=True) for one in (inputs * is_valid, is_valid)]
        total, weights = map(sum_over_replicas, own)  # [1, ..., channels] each
        mean = total / (weights + epsilon)
        distances = tf.square(inputs - mean) * is_valid
        variance = sum_over_replicas(tf.reduce_sum(distances, axes, keepdims=True))
        return tf.squeeze(mean), tf.squeeze(variance / (weights + epsilon))


def _vary_seeds(generators: Any) -> None:
    """Gives the layers of tf_keras that draw numbers another seed on each worker."""

    @extends(generators, "make_legacy_seed")
    def make_own(make: Any, self: Any) -> int | None:
        seed, number = make(self), replica_in_sync()
        if number and seed is None:  # The program's seed, and the place in the function.
            program_seed, seed = tf.compat.v1.random.get_seed(None)
            seed = None if program_seed is None else int(seed)
        return seed if seed is None else (seed + number * SEED_STEP) % 2**31
