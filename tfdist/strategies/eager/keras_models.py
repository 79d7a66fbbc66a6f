"""Extensions of Keras, with which its models train on several workers.

Keras calls a strategy for variables, datasets and `run`. Five things have no such call, so its
classes are extended, once, when a strategy's scope is entered. Models without a strategy of tfdist
are not affected.

    Model.make_..._function     logs are combined over all replicas, predictions are gathered
    CallbackList                statistics are made equal; only the chief writes files and a bar
    losses                      a replica counts by its share of the rows (`keras_step`)
    Optimizer.apply (Keras 3)   gradients are reduced before they are clipped and checked

Private names: the modules of `scale_loss_for_distribution`; of Keras 3
`Optimizer._all_reduce_sum_gradients` and `_trainable_variables`, and `Model._initial_epoch`.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import tensorflow as tf

from tfdist.strategies.eager.datasets import renewed
from tfdist.strategies.eager.keras_callbacks import own_callbacks, send_files_elsewhere
from tfdist.strategies.eager.keras_step import keras_step, own_share
from tfdist.strategies.eager.replica_variable import reads_combined
from tfdist.strategies.lost_workers import lost_workers_named

_LIBRARIES = ("keras", "tf_keras")
_adapted: set[str] = set()


def adapt_keras() -> None:
    """Extends the classes of the Keras libraries that the program has imported.

    A second call changes nothing.
    """
    for name in _LIBRARIES:
        library = sys.modules.get(name)
        if library is None or name in _adapted or not hasattr(library, "Model"):
            continue
        _adapted.add(name)
        _adapt_model(library.Model)
        _adapt_callbacks(library)
        is_keras_3 = not hasattr(library, "__internal__")
        _adapt_losses(f"{name}.src.losses.loss" if is_keras_3 else f"{name}.src.utils.losses_utils")
        if is_keras_3:
            _adapt_optimizers(library.optimizers)


def strategy_of(model: Any) -> Any:
    """Returns the strategy of tfdist in whose scope a model was made; None without one."""
    strategy = getattr(model, "distribute_strategy", None)
    return strategy if hasattr(getattr(strategy, "extended", None), "reducer") else None


def _adapt_model(model_class: Any) -> None:
    kinds = {"train": _train_function, "test": _test_function, "predict": _predict_function}
    for kind, wrap in kinds.items():
        name = f"make_{kind}_function"
        setattr(model_class, name, _wrapping(getattr(model_class, name), f"{kind}_function", wrap))

    predict = model_class.predict

    @functools.wraps(predict)
    def predict_renewed(self: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
        # tf_keras sets options of the dataset before it calls the strategy.
        return predict(self, x if strategy_of(self) is None else renewed(x), *args, **kwargs)

    model_class.predict = predict_renewed


def _wrapping(make: Callable[..., Any], attribute: str, wrap: Callable[..., Any]) -> Any:
    """Returns a method that makes a function of a model and wraps it."""

    @functools.wraps(make)
    def make_wrapped(model: Any, force: bool = False) -> Any:
        make(model, force)
        function = getattr(model, attribute)
        strategy = strategy_of(model)
        is_alone = strategy is None or strategy.num_replicas_in_sync == 1
        if not is_alone and not hasattr(function, "is_of_tfdist"):
            wrapped = wrap(model, strategy, function)
            wrapped.is_of_tfdist = True
            setattr(model, attribute, wrapped)
        return getattr(model, attribute)

    return make_wrapped


def _train_function(model: Any, strategy: Any, function: Callable[..., Any]) -> Any:
    return _with_combined_logs(model, strategy, function, is_training=True)


def _test_function(model: Any, strategy: Any, function: Callable[..., Any]) -> Any:
    return _with_combined_logs(model, strategy, function, is_training=False)


def _with_combined_logs(
    model: Any, strategy: Any, function: Callable[..., Any], *, is_training: bool
) -> Any:
    """Returns a train or test function whose logs are those of all replicas."""
    combine = _Logs(model, strategy)

    def step(iterator: Any) -> Any:
        with lost_workers_named(strategy):
            with keras_step(is_training=is_training):
                logs = function(iterator)
            return combine(logs)

    return step


class _Logs:
    """Combines the logs of a step over all replicas. A collective: every worker calls it."""

    def __init__(self, model: Any, strategy: Any) -> None:
        self._model = model
        self._strategy = strategy
        self._num_variables = -1
        self._results: Any = None

    def __call__(self, logs: Any) -> Any:
        names = set(logs) if isinstance(logs, dict) else None
        variables = [v for metric in self._model.metrics for v in metric.variables]
        if len(variables) != self._num_variables:  # Keras makes metrics in the first step.
            self._num_variables = len(variables)
            self._results = tf.function(self._metrics)
            self._names = set(self._model.get_metrics_result())
            self._means = tf.function(self._mean)
        return self._results() if names == self._names else self._means(logs)

    def _metrics(self) -> Any:
        variables = [
            getattr(v, "value", v) if not isinstance(v, tf.Variable) else v
            for metric in self._model.metrics
            for v in metric.variables
        ]
        with self._strategy.scope(), reads_combined(variables):
            return self._model.get_metrics_result()

    def _mean(self, logs: Any) -> Any:
        flat = [tf.convert_to_tensor(value) for value in tf.nest.flatten(logs)]
        means = self._strategy.extended.reducer.reduce(
            [[value] for value in flat], mean=True, name="logs"
        )
        return tf.nest.pack_sequence_as(logs, means)


def _predict_function(model: Any, strategy: Any, function: Callable[..., Any]) -> Any:
    """Returns a predict function that returns the rows of all workers, in the batch's order."""
    reducer = strategy.extended.reducer

    def predict(data: Any) -> Any:
        with keras_step(is_training=False), lost_workers_named(strategy):
            return tf.nest.map_structure(lambda rows: reducer.gather([rows], 0), function(data))

    return predict


def _adapt_callbacks(library: ModuleType) -> None:
    """Makes Keras' lists of callbacks begin and end with callbacks of tfdist."""
    kind = library.callbacks.CallbackList
    original = kind.__init__

    @functools.wraps(original)
    def init(
        self: Any,
        callbacks: Any = None,
        add_history: bool = False,
        add_progbar: bool = False,
        model: Any = None,
        **params: Any,
    ) -> None:
        strategy = strategy_of(model)
        if strategy is None or strategy.num_replicas_in_sync == 1:
            original(self, callbacks, add_history, add_progbar, model, **params)
            return
        given = tf.nest.flatten(callbacks) if callbacks else []
        if not strategy.extended.should_checkpoint:
            add_progbar = False
            given = send_files_elsewhere(library, given)
        first, last = own_callbacks(library.callbacks.Callback, strategy)
        original(self, [first, *given, last], add_history, add_progbar, model, **params)

    kind.__init__ = init


def _adapt_losses(module_name: str) -> None:
    """Makes a replica's loss count by its share of the rows, where rows may differ."""
    module: Any = importlib.import_module(module_name)
    scale = module.scale_loss_for_distribution

    @functools.wraps(scale)
    def scaled(value: Any) -> Any:
        share = own_share()
        return scale(value) if share is None else value * tf.cast(share, value.dtype)

    module.scale_loss_for_distribution = scaled
    unscale = getattr(module, "unscale_loss_for_distribution", None)
    if unscale is None:  # tf_keras, and the first versions of Keras 3
        return

    @functools.wraps(unscale)
    def unscaled(value: Any) -> Any:
        share = own_share()
        if share is None:
            return unscale(value)
        return tf.math.divide_no_nan(value, tf.cast(share, value.dtype))

    module.unscale_loss_for_distribution = unscaled


# How many replicas are inside an optimizer that has got reduced gradients.
_num_reduced = 0


def _adapt_optimizers(optimizers: ModuleType) -> None:
    """Makes Keras 3's optimizers reduce gradients first.

    Keras 3 clips gradients, accumulates them and looks for NaN before it reduces them: N workers
    would not be one, and one worker could skip a step that the others make.
    """
    for kind in (optimizers.Optimizer, optimizers.LossScaleOptimizer):
        kind.apply = _reducing_first(kind.apply)
    reduce = optimizers.Optimizer._all_reduce_sum_gradients  # noqa: SLF001

    @functools.wraps(reduce)
    def reduce_once(self: Any, grads_and_vars: Any) -> Any:
        return list(grads_and_vars) if _num_reduced else reduce(self, grads_and_vars)

    optimizers.Optimizer._all_reduce_sum_gradients = reduce_once  # noqa: SLF001


def _reducing_first(apply: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(apply)
    def apply_reduced(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        global _num_reduced
        context = tf.distribute.get_replica_context()
        strategy = None if context is None else context.strategy
        is_own = hasattr(getattr(strategy, "extended", None), "reducer")
        if not is_own or _num_reduced or context.num_replicas_in_sync == 1:
            return apply(self, grads, trainable_variables)
        grads = list(grads)
        given = trainable_variables or self._trainable_variables
        reduced = _reduce(context, grads, [_tf_variable(v) for v in given])
        _num_reduced += 1
        try:
            return apply(self, reduced, trainable_variables)
        finally:
            _num_reduced -= 1

    return apply_reduced


def _reduce(context: Any, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
    """Returns the sums of gradients over all replicas; None where there is no gradient."""
    pairs = [(g, v) for g, v in zip(grads, variables, strict=True) if g is not None]
    targets = [v for _, v in pairs]

    def merge(strategy: Any, values: Any) -> Any:
        return strategy.extended.batch_reduce_to("SUM", list(zip(values, targets, strict=True)))

    reduced = iter(context.merge_call(merge, args=([g for g, _ in pairs],)))
    return [None if g is None else next(reduced) for g in grads]


def _tf_variable(variable: Any) -> tf.Variable:
    return variable if isinstance(variable, tf.Variable) else variable.value
