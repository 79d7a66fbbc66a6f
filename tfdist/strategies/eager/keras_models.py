"""Extensions of Keras, with which its models train on several workers.

Keras calls a strategy for variables, datasets and `run`. Six things have no such call, so its
classes are extended, once, when a strategy's scope is entered. Models without a strategy of tfdist
are not affected.

    Model.fit                   progress, stop signals, other workers that fail (`fit`)
    Model.make_..._function     logs are combined over all replicas, predictions are gathered
    CallbackList                statistics are made equal; only the chief writes files and a bar
    losses                      a replica counts by its share of the rows (`keras_step`)
    Optimizer.apply (Keras 3)   gradients are reduced before they are clipped and checked

Private names: those of `keras_losses`; of tf_keras
`strategy_supports_loss_scaling`, `RandomGenerator`; of Keras 3
`Optimizer._all_reduce_sum_gradients` and `_trainable_variables`, `Model._initial_epoch` and
`saving_lib.get_attr_skipset`; of tf_keras what is below.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from types import ModuleType
from typing import Any

import tensorflow as tf

from tfdist.process.endings import OneLineError
from tfdist.strategies.eager.datasets import renewed
from tfdist.strategies.eager.fit import NUM_OF_STEP, current_fit, fit_run
from tfdist.strategies.eager.keras_callbacks import (
    own_callbacks,
    send_files_elsewhere,
    share_numbers,
    support_backups,
)
from tfdist.strategies.eager.keras_losses import adapt_losses
from tfdist.strategies.eager.keras_own_data import adapt_number_of_steps
from tfdist.strategies.eager.keras_saving import adapt_saving
from tfdist.strategies.eager.keras_step import building_model, keras_step
from tfdist.strategies.eager.replica_variable import SEED_STEP, tf_variable
from tfdist.strategies.eager.run import needs_all_workers
from tfdist.strategies.eager.step_results import CombinedLogs, all_rows
from tfdist.strategies.values.replica_context import (
    are_updates_equal,
    equal_updates,
    replica_in_sync,
)

_LIBRARIES = ("keras", "tf_keras")
_adapted: set[str] = set()
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
        if library is None or name in _adapted or not hasattr(library, "Model"):
            continue
        _adapted.add(name)
        is_keras_3 = not hasattr(library, "__internal__")
        if is_keras_3:
            _adapt_optimizers(library.optimizers)
            # Before Keras 3.10 metrics count the rows of one replica, and before 3.8 losses too.
            if not hasattr(library.Variable, "synchronization"):
                _refuse_models(library)
                continue
        _adapt_model(library.Model)
        _adapt_callbacks(library)
        adapt_number_of_steps(name)
        adapt_losses(library, is_keras_3=is_keras_3)
        adapt_saving(importlib.import_module(f"{name}.src.saving.saving_lib"), is_keras_3)
        if not is_keras_3:
            _allow_loss_scales(f"{name}.src.mixed_precision.loss_scale_optimizer")
            optimizer = library.optimizers.Optimizer
            optimizer.apply_gradients = _with_equal_updates(optimizer.apply_gradients)
            optimizer.aggregate_gradients = _aggregating(optimizer.aggregate_gradients)
            _vary_seeds(importlib.import_module(f"{name}.src.backend").RandomGenerator)


def _refuse_models(library: ModuleType) -> None:
    """Makes models of a Keras 3 that is too old refuse a strategy of tfdist; optimizers work."""

    def refusing(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            if strategy_of(self) is None:
                return method(self, *args, **kwargs)
            raise KerasModelError(
                f"this is Keras {library.__version__}, and models on several workers need 3.10 or "
                f"newer, which works with TensorFlow {tf.__version__} too: "
                'pip install "keras>=3.10"'
            )

        return call

    for name in ("compile", "predict"):
        setattr(library.Model, name, refusing(getattr(library.Model, name)))


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
        if strategy_of(self) is None:
            return predict(self, x, *args, **kwargs)
        _check_input(self, x)
        # tf_keras sets options of the dataset before it calls the strategy.
        return predict(self, renewed(x), *args, **kwargs)

    model_class.predict = predict_renewed
    if hasattr(model_class, _BUILD):  # Keras 3
        setattr(model_class, _BUILD, building_model()(getattr(model_class, _BUILD)))
    fit = model_class.fit

    @functools.wraps(fit)
    def fit_with_others(self: Any, *args: Any, **kwargs: Any) -> Any:
        strategy = strategy_of(self)
        if strategy is None:
            return fit(self, *args, **kwargs)
        _check_input(self, args[0] if args else kwargs.get("x"))
        try:
            with fit_run(self, strategy):
                return fit(self, *args, **kwargs)
        except RuntimeError as error:
            if isinstance(error.__context__, OneLineError):
                raise error.__context__ from None  # Keras 3 hides it: the model cannot be built.
            raise

    model_class.fit = fit_with_others
    if hasattr(model_class, _INITIAL_COUNTERS):
        load = getattr(model_class, _INITIAL_COUNTERS)

        @functools.wraps(load)
        def load_and_share(self: Any, *args: Any, **kwargs: Any) -> Any:
            counters, strategy = load(self, *args, **kwargs), strategy_of(self)
            if strategy is None:
                return counters
            return tuple(share_numbers(counters, strategy.extended.reducer))

        setattr(model_class, _INITIAL_COUNTERS, load_and_share)


def _wrapping(make: Callable[..., Any], attribute: str, wrap: Callable[..., Any]) -> Any:
    """Returns a method that makes a function of a model and wraps it."""

    @functools.wraps(make)
    def make_wrapped(model: Any, force: bool = False) -> Any:
        make(model, force)
        function = getattr(model, attribute)
        strategy = strategy_of(model)
        if strategy is not None and not hasattr(function, "is_of_tfdist"):
            _check(model, strategy)
            wrapped = wrap(model, strategy, function)
            wrapped.is_of_tfdist = True
            setattr(model, attribute, wrapped)
        return getattr(model, attribute)

    return make_wrapped


def _check(model: Any, strategy: Any) -> None:
    """Refuses what cannot train on several replicas."""
    if strategy.num_replicas_in_sync == 1:
        return
    if getattr(model, "jit_compile", None) is True:
        raise KerasModelError(
            "this model is compiled with jit_compile=True, and XLA's code cannot send messages "
            "between replicas. Leave jit_compile out."
        )
    if hasattr(getattr(model, "optimizer", None), "_allreduce_grads"):
        raise KerasModelError(
            "this model's optimizer is Horovod's DistributedOptimizer, and the strategy reduces "
            "gradients itself. Give compile the optimizer without it."
        )


def _check_input(model: Any, x: Any) -> None:
    """Refuses input of which Keras 3 would lose batches."""
    is_keras_3 = hasattr(model, "_symbolic_build")
    if is_keras_3 and inspect.isgenerator(x) and strategy_of(model).num_replicas_in_sync > 1:
        raise KerasModelError(
            "x is a generator, and Keras reads batches of it to build the model, which are lost. "
            "Give a dataset: tf.data.Dataset.from_generator(function, output_signature=...)"
        )


def _train_function(model: Any, strategy: Any, function: Callable[..., Any]) -> Any:
    """Returns a train function whose logs are those of all replicas, a step of `fit`."""
    is_alone = strategy.num_replicas_in_sync == 1
    logs_of_all = None if is_alone else CombinedLogs(model, strategy, NUM_OF_STEP)

    def train(iterator: Any) -> Any:
        run = current_fit()
        if run is None:  # train_on_batch
            if inspect.isgenerator(iterator) and strategy.extended.placement.num_replicas > 1:
                raise KerasModelError(
                    "train_on_batch would give all replicas of a worker the same rows. Call fit, "
                    "or make the strategy with one replica."
                )
            if logs_of_all is not None:
                logs_of_all.set_combines(True)
            with needs_all_workers(), keras_step(is_training=True, combine=logs_of_all):
                return function(iterator)
        num_steps = _steps_per_call(model)
        requests = run.own_requests(num_steps)
        if logs_of_all is not None:
            run.combines |= logs_of_all.combines_always
            logs_of_all.set_requests(requests)
            logs_of_all.set_combines(run.combines)
        with run.step(), keras_step(is_training=True, combine=logs_of_all):
            logs = run.note_logs(function(iterator))
            loss = _loss_in(logs)
        if logs_of_all is None:
            sums = [*requests[:-1], 1.0, math.isnan(loss)]
        else:
            sums = logs_of_all.sums()
        run.end_step(num_steps, loss, sums)
        return logs

    return train


def _loss_in(logs: Any) -> float:
    loss = logs.get("loss") if isinstance(logs, dict) else None
    return float("nan") if loss is None else float(loss)


def _steps_per_call(model: Any) -> int:
    if hasattr(model, "steps_per_execution"):
        return int(model.steps_per_execution or 1)
    return int(model._steps_per_execution or 1)  # noqa: SLF001


def _test_function(model: Any, strategy: Any, function: Callable[..., Any]) -> Any:
    """Returns a test function whose logs are those of all replicas."""
    is_alone = strategy.num_replicas_in_sync == 1
    logs_of_all = None if is_alone else CombinedLogs(model, strategy)

    def test(iterator: Any) -> Any:
        with needs_all_workers(), keras_step(combine=logs_of_all):
            return function(iterator)

    return test


def _predict_function(model: Any, strategy: Any, function: Callable[..., Any]) -> Any:
    """Returns a predict function that returns the rows of all workers, in the batch's order."""
    rows_of_all = functools.partial(all_rows, strategy=strategy)

    def predict(data: Any) -> Any:
        with needs_all_workers(), keras_step(has_loss=False, combine=rows_of_all):
            return function(data)

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
        if strategy is None:
            original(self, callbacks, add_history, add_progbar, model, **params)
            return
        given = tf.nest.flatten(callbacks) if callbacks else []
        support_backups(library, given, strategy)
        if not strategy.extended.should_checkpoint:
            add_progbar = False
            send_files_elsewhere(library, given)
        first, last = own_callbacks(library.callbacks, strategy, given)
        original(self, [first, *given, last], add_history, add_progbar, model, **params)

    kind.__init__ = init


def _allow_loss_scales(module_name: str) -> None:
    """Makes tf_keras' LossScaleOptimizer accept the strategies of tfdist beside TensorFlow's."""
    module: Any = importlib.import_module(module_name)
    is_supported = module.strategy_supports_loss_scaling

    @functools.wraps(is_supported)
    def is_supported_here() -> bool:
        return is_supported() or hasattr(tf.distribute.get_strategy().extended, "reducer")

    module.strategy_supports_loss_scaling = is_supported_here


def _vary_seeds(generators: Any) -> None:
    """Gives the layers of tf_keras that draw numbers another seed on each worker."""
    make = generators.make_legacy_seed

    @functools.wraps(make)
    def make_own(self: Any) -> int | None:
        seed, number = make(self), replica_in_sync()
        if number and seed is None:  # The program's seed, and the place in the function.
            program_seed, seed = tf.compat.v1.random.get_seed(None)
            seed = None if program_seed is None else int(seed)
        return seed if seed is None else (seed + number * SEED_STEP) % 2**31

    generators.make_legacy_seed = make_own


def _with_equal_updates(apply: Callable[..., Any]) -> Callable[..., Any]:
    """Returns tf_keras' `apply_gradients`, in which replicas assign constrained weights.

    Outside a replica's code gradients are reduced already: they are applied as they are.
    """

    @functools.wraps(apply)
    def apply_equal(*args: Any, **kwargs: Any) -> Any:
        extended = tf.distribute.get_strategy().extended
        if hasattr(extended, "reducer") and tf.distribute.in_cross_replica_context():
            with _as_one_replica(tf.distribute.get_strategy()):
                return apply(*args, **{**kwargs, "skip_gradients_aggregation": True})
        is_one = hasattr(extended, "reducer") and extended.placement.num_replicas == 1
        with equal_updates() if is_one else nullcontext():
            return apply(*args, **kwargs)

    return apply_equal


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
        return list(grads_and_vars) if are_updates_equal() else reduce(self, grads_and_vars)

    optimizers.Optimizer._all_reduce_sum_gradients = reduce_once  # noqa: SLF001


def _reducing_first(apply: Callable[..., Any]) -> Callable[..., Any]:
    """Returns Keras 3's `apply`, which reduces gradients first.

    Outside a replica's code gradients are reduced already: they are applied as they are.
    """

    @functools.wraps(apply)
    def apply_reduced(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        context, strategy = tf.distribute.get_replica_context(), tf.distribute.get_strategy()
        is_own = hasattr(strategy.extended, "reducer")
        if is_own and context is None:
            with _as_one_replica(strategy):
                return apply(self, grads, trainable_variables)
        if not is_own or are_updates_equal() or context.num_replicas_in_sync == 1:
            return apply(self, grads, trainable_variables)
        targets = map(tf_variable, trainable_variables or self._trainable_variables)

        def update(strategy: Any, reduced: Sequence[Any]) -> None:
            with _as_one_replica(strategy):
                apply(self, reduced, trainable_variables)

        return _with_sums(context, list(zip(grads, targets, strict=True)), update)

    return apply_reduced


def _aggregating(aggregate: Callable[..., Any]) -> Callable[..., Any]:
    """Returns tf_keras' `aggregate_gradients`, which reduces gradients."""

    @functools.wraps(aggregate)
    def aggregate_here(self: Any, grads_and_vars: Any) -> Any:
        context, strategy = tf.distribute.get_replica_context(), tf.distribute.get_strategy()
        if context is None or not hasattr(strategy.extended, "reducer"):
            return aggregate(self, grads_and_vars)
        pairs = list(grads_and_vars)
        sums = _with_sums(context, pairs, lambda _, sums: sums)
        return [(g, v) for g, (_, v) in zip(sums, pairs, strict=True)]

    return aggregate_here


def _with_sums(
    context: Any, pairs: Sequence[tuple[Any, Any]], function: Callable[[Any, list[Any]], Any]
) -> Any:
    """Calls a function with the strategy and the gradients, added over all replicas.

    Rows of slices stay apart, as in one process: Keras adds rows of equal index where its rule
    demands it, and `SharedVariable` where it adds them to the weights.

    Args:
      context: The context of the replica whose code is running.
      pairs: Gradients, of which some may be None, and their variables.
      function: Called once for all replicas of this worker; what it returns is returned.
    """
    targets = [v for g, v in pairs if g is not None]

    def merge(strategy: Any, values: Any) -> Any:
        sums = iter(strategy.extended.sums_of_gradients(values, targets))
        return function(strategy, [None if g is None else next(sums) for g, _ in pairs])

    return context.merge_call(merge, args=([g for g, _ in pairs if g is not None],))


@contextmanager
def _as_one_replica(strategy: Any) -> Iterator[None]:
    """Makes the `with` block update as one replica would, so once for all of this worker."""
    first = strategy.extended.first_replica_in_sync
    with tf.distribute.ReplicaContext(strategy, replica_id_in_sync_group=first), equal_updates():
        yield
