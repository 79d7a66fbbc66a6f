"""Losses of Keras under a strategy: N replicas give the loss, and the gradient, of one process.

A loss of all rows is a sum over the rows, divided by a number: of rows, of words that no mask
hides, of weights. Each replica contributes the sum over its own rows, divided by the number of all:

    contribution of a replica = its sum / (rows, words or weights of all replicas)
    loss of one process       = the sum of the contributions; so for gradients

Keras' own steps take contributions. A program's own code takes what it would see alone, a loss of
its own rows: a contribution divided by the replica's share of the rows. It may add terms, such as
the mean of something over the rows; the whole counts by the share again:

    Model.train_step, test_step of Keras          contributions     metrics of losses: their sum
      compute_loss of the program                 losses of rows    times the share when it returns
        super().compute_loss, a Loss              / share
    train_step of the program                     losses of rows    tape.gradient: times the share
      compute_loss, compiled_loss, a Loss         / share           metrics, logs: times the share

A gradient of the program for which Keras has computed no loss stays as it is, and a line says that
the gradients of the replicas are added.

Private names: of Keras 3 the module `losses.loss` (`reduce_values`,
`reduce_weighted_values`, `apply_mask`, `unscale_loss_for_distribution`), `CompileLoss` and
`Model._aggregate_additional_loss`, and `backend.tensorflow.nn.ctc_loss`; of tf_keras the module
`utils.losses_utils` (`reduce_weighted_loss`, `compute_weighted_loss`, `apply_valid_mask`),
`LossesContainer`, and `Loss._get_reduction`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.strategies.eager.replica_data import is_mean_of_rows, is_sum_of_rows
from tfdist.strategies.eager.step import (
    NOW,
    KerasStep,
    LossCall,
    counted,
    loss_step,
    own_losses,
    own_rows,
    own_share,
    sum_over_replicas,
)
from tfdist.strategies.keras.extension import extends, is_of_keras
from tfdist.strategies.private_tensorflow import converted

_MEANS = ("sum_over_batch_size", "mean", "mean_with_sample_weight", "auto")


def adapt_losses(library: ModuleType, *, is_keras_3: bool) -> None:
    """Makes the losses of a library those of one process."""
    _adapt_steps(library.Model)
    if is_keras_3:
        module = importlib.import_module(f"{library.__name__}.src.losses.loss")
        _adapt_keras_3(library, module)
    else:
        module = importlib.import_module(f"{library.__name__}.src.utils.losses_utils")
        _adapt_tf_keras(library, module)


@contextmanager
def _calling(**call: Any) -> Iterator[None]:
    """Marks the `with` block as a `LossCall`."""
    calls = own_losses().calls
    calls.append(LossCall(**call))
    try:
        yield
    finally:
        calls.pop()


def _caller_takes_contribution() -> bool:
    calls = own_losses().calls
    return bool(calls) and calls[-1].takes_contribution


def _returned(contribution: Any) -> Any:
    """Returns what the caller takes of a contribution; a loss for each row is the same for all."""
    is_number = contribution is not None and contribution.shape.rank == 0
    if not is_number or _caller_takes_contribution():
        return contribution
    return tf.math.divide_no_nan(contribution, tf.cast(own_share(), contribution.dtype))


def _adapt_steps(model_class: Any) -> None:
    """Marks the code of Keras that computes and takes contributions."""

    @extends(model_class, "train_step")
    @extends(model_class, "test_step")
    def step_of_keras(step: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        if loss_step() is None:
            return step(self, *args, **kwargs)
        with _calling(takes_contribution=True):
            return converted(step)(self, *args, **kwargs)

    @extends(model_class, "compute_loss")
    def compute_loss_of_keras(compute: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        if loss_step() is None:
            return compute(self, *args, **kwargs)
        with _calling(takes_contribution=True):
            loss = compute(self, *args, **kwargs)
        return _returned(loss)


def adapt_compute_loss(model_class: Any) -> None:
    """Makes a compute_loss of the program's own count by the replica's share."""
    compute = model_class.compute_loss
    if is_of_keras(compute) or hasattr(compute, "is_of_tfdist"):
        return

    @extends(model_class, "compute_loss")
    def compute_own_loss(compute: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        if loss_step() is None:
            return compute(self, *args, **kwargs)
        with _calling(takes_contribution=False):
            loss = converted(compute)(self, *args, **kwargs)
        if loss is None or not _caller_takes_contribution():
            return loss
        loss = tf.convert_to_tensor(loss)
        own_losses().has_scaled = True
        return counted(loss) if loss.shape.rank == 0 else loss

    model_class.compute_loss.is_of_tfdist = True


def adapt_tapes() -> None:
    """Makes a gradient that a train_step of the program takes count by the replica's share."""
    if hasattr(tf.GradientTape.gradient, "is_of_tfdist"):
        return

    @extends(tf.GradientTape, "gradient")
    def gradient_of_share(
        gradient: Any,
        self: Any,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        if loss_step() is None or own_losses().calls or not _has_variables(sources):
            return gradient(self, target, sources, output_gradients, *args, **kwargs)
        if not own_losses().has_scaled:
            own_losses().targets.extend(tf.nest.flatten(target))
        elif output_gradients is None:
            output_gradients = tf.nest.map_structure(
                lambda one: tf.cast(own_share(), one.dtype) * tf.ones_like(one), target
            )
        else:
            output_gradients = tf.nest.map_structure(
                lambda one: tf.cast(own_share(), one.dtype) * one, output_gradients
            )
        return gradient(self, target, sources, output_gradients, *args, **kwargs)

    tf.GradientTape.gradient.is_of_tfdist = True


def _has_variables(sources: Any) -> bool:
    """Returns whether a gradient is one of variables; other gradients are parts of a model."""
    return any(hasattr(one, "assign") for one in tf.nest.flatten(sources))  # tf's or Keras 3's.


def _counts_rows(loss: Any) -> bool:
    """Returns whether a loss is known to have as many values for each row: Keras' own have."""
    return loss is not None and is_of_keras(getattr(loss, "fn", None) or type(loss).call)


def _number_of_all(values: tf.Tensor, step: KerasStep) -> tf.Tensor:
    """Returns the number of elements that the values of all replicas have: [], float32.

    It is a message where neither the shape nor the number of rows tells.
    """
    if step.shares is None and values.shape.is_fully_defined():
        return tf.constant(float(values.shape.num_elements() * step.num_replicas))
    calls = own_losses().calls
    is_of_model = len(calls) > 1 and calls[-2].takes_contribution  # Its values are the batch's.
    if step.total_rows is not None and is_of_model and _counts_rows(calls[-1].loss):
        each = tf.reduce_prod(tf.shape(values)[1:])  # Of a row; the shape of no row has it, too.
        return step.total_rows * tf.cast(each, tf.float32)
    return sum_over_replicas(tf.cast(tf.size(values), tf.float32))


def _mean_weight(weights: Any) -> tf.Tensor:
    """Returns the mean of the weights of all replicas' rows: [], a message."""
    total = tf.reduce_sum(tf.cast(weights, tf.float32))
    numbers = sum_over_replicas(tf.stack([total, tf.cast(tf.size(weights), tf.float32)]))  # [2]
    return tf.math.divide_no_nan(numbers[0], numbers[1])


def _has_rank(values: Any) -> bool:
    return tf.convert_to_tensor(values).shape.rank != 0


def _is_one_number(values: tf.Tensor) -> bool:
    """Returns whether a loss is one number for a replica's rows: of shape [], or [1] for any rows.

    Models of transformers return the second.
    """
    if values.shape.rank == 0:
        return True
    rows = own_rows()
    is_of_any = rows is not None and tf.get_static_value(rows) is None
    return is_of_any and values.shape.is_fully_defined() and values.shape.num_elements() == 1


def _of_one_number(value: tf.Tensor) -> tf.Tensor:
    """Returns the contribution of a loss function that returns one number for a replica's rows."""
    value = tf.reshape(value, [])
    if not is_mean_of_rows(value):
        _note_loss("gives one number for the rows of a replica")
    return counted(value)


def _note_loss(finding: str) -> None:
    calls = own_losses().calls
    loss = calls[-1].loss if calls else None
    name = type(loss).__name__
    if name == "LossFunctionWrapper":  # Of a function of the program.
        name = getattr(getattr(loss, "fn", None), "__name__", name)
    note = (
        f"The loss {name} {finding}, which sees those alone; the replicas' numbers are averaged by "
        "their rows. A loss of pairs of rows, or of the whole batch, is another one than in one "
        "process: gather the rows of all replicas in it, or train with one replica."
    )
    if NOW.step is not None:
        NOW.step.notes[note] = None


def _operations_before(arguments: Any) -> int | None:
    """Returns the operations of the graph before a loss; None if it is not looked for pairs."""
    given = [one for one in tf.nest.flatten(arguments) if tf.is_tensor(one)]
    num_unknown = max([_num_unknown(one) for one in given], default=2)
    if tf.executing_eagerly() or num_unknown > 1:
        return None
    return len(v1.get_default_graph().get_operations())


def _note_pairs() -> None:
    """Notes a loss with a value for each pair of rows: two axes of unknown length, [rows, rows].

    It is called before the loss is reduced: the code of another replica may run then.
    """
    before = own_losses().calls[-1].num_operations
    if before is None:
        return
    made = v1.get_default_graph().get_operations()[before:]
    if any(map(_makes_pairs, made)):
        _note_loss("is one of pairs of a replica's rows")


def _makes_pairs(op: tf.Operation) -> bool:
    """Returns whether an operation has two unknown axes of inputs with one; shapes are no rows."""
    if op.type == "Reshape" or all(_num_unknown(output) < 2 for output in op.outputs):
        return False
    return all(_num_unknown(one) < 2 for one in op.inputs)


def _num_unknown(tensor: Any) -> int:
    """Returns how many axes of a tensor have an unknown length; 2 if the rank is unknown."""
    return 2 if tensor.shape.rank is None else list(tensor.shape).count(None)


def _contribution(values: tf.Tensor, divisor: tf.Tensor) -> tf.Tensor:
    return tf.math.divide_no_nan(tf.reduce_sum(values), tf.cast(divisor, values.dtype))


def _numbers_of_valid(mask: Any) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the elements, and the valid ones, of the masks of all replicas; a message."""
    valid = tf.reduce_sum(tf.cast(mask, tf.float32))
    numbers = sum_over_replicas(tf.stack([tf.cast(tf.size(mask), tf.float32), valid]))  # [2]
    return numbers[0], numbers[1]


def _added(loss: Any) -> Any:
    """Returns a replica's contribution of what `add_loss` has got, or of a regularizer."""
    loss = loss if loss.dtype.is_floating else tf.cast(loss, tf.float32)
    if loss.shape.rank:  # A number for each row.
        return tf.reduce_sum(loss)
    return loss if is_sum_of_rows(loss) else counted(loss)


def _adapt_keras_3(library: ModuleType, module: Any) -> None:
    @extends(library.losses.Loss, "__call__")
    def call_of_loss(call: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        if loss_step() is None:
            return call(self, *args, **kwargs)
        before = _operations_before((args, kwargs))
        with _calling(takes_contribution=False, loss=self, num_operations=before):
            loss = call(self, *args, **kwargs)
        return _returned(loss)

    @extends(module, "reduce_values")
    def reduce_over_all(
        reduce: Any, values: Any, sample_weight: Any = None, reduction: Any = _MEANS[0]
    ) -> Any:
        step = loss_step()
        if step is None or reduction in (None, "none"):
            return reduce(values, sample_weight, reduction)
        own_losses().has_scaled = True
        if reduction not in _MEANS:
            return reduce(values, sample_weight, reduction)
        if _is_one_number(values):
            return _of_one_number(values)
        if reduction == "mean_with_sample_weight" and sample_weight is not None:
            weights = tf.reduce_sum(tf.cast(sample_weight, tf.float32))
            return _contribution(values, sum_over_replicas(weights))
        return _contribution(values, _number_of_all(values, step))

    @extends(module, "reduce_weighted_values")
    def weigh_over_all(
        reduce: Any, values: Any, sample_weight: Any = None, mask: Any = None, **options: Any
    ) -> Any:
        is_mean = options.get("reduction") in _MEANS
        if loss_step() is not None and own_losses().calls:
            _note_pairs()
        if loss_step() is None or sample_weight is None or not is_mean or _has_rank(values):
            return reduce(values, sample_weight, mask, **options)
        loss = reduce(values, None, None, **options)  # The weights are those of the rows.
        return loss * tf.cast(_mean_weight(sample_weight), loss.dtype)

    @extends(module, "apply_mask")
    def mask_over_all(apply: Any, sample_weight: Any, mask: Any, dtype: Any, reduction: Any) -> Any:
        if loss_step() is None or mask is None or reduction not in ("mean", "sum_over_batch_size"):
            return apply(sample_weight, mask, dtype=dtype, reduction=reduction)
        weights = apply(sample_weight, mask, dtype=dtype, reduction="sum")
        elements, valid = _numbers_of_valid(mask)
        return weights * tf.cast(tf.math.divide_no_nan(elements, valid), weights.dtype)

    @extends(module, "unscale_loss_for_distribution")
    def unscale_contribution(unscale: Any, value: Any) -> Any:
        if loss_step() is None:
            return unscale(value)
        if value.shape.rank:  # Losses of rows.
            return value
        own_losses().contributions.append(unscaled := unscale(value))
        return unscaled

    kind = importlib.import_module(f"{library.__name__}.src.trainers.compile_utils").CompileLoss

    @extends(kind, "__call__")
    def call_of_losses(call: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        if loss_step() is None:
            return call(self, *args, **kwargs)
        with _calling(takes_contribution=True):
            loss = call(self, *args, **kwargs)
        return _returned(loss)

    _pad_without_rows(importlib.import_module(f"{library.__name__}.src.backend.tensorflow.nn"))

    @extends(library.Model, "_aggregate_additional_loss")
    def count_added_loss(aggregate: Any, self: Any, loss: Any) -> Any:
        if loss_step() is None:
            return aggregate(self, loss)
        return _added(loss)


def _pad_without_rows(functions: Any) -> None:
    """Gives Keras' `ctc_loss` a row where a replica has none, which TensorFlow's op refuses."""

    @extends(functions, "ctc_loss")
    def loss_of_rows(
        loss: Any,
        target: Any,
        output: Any,
        target_length: Any,
        output_length: Any,
        *args: Any,
        **options: Any,
    ) -> Any:
        if loss_step() is None:
            return loss(target, output, target_length, output_length, *args, **options)
        rows = tf.shape(output)[0]
        one = tf.cast(rows == 0, tf.int32)
        padded = [
            tf.pad(each, [[0, one], *([[0, 0]] * (each.shape.rank - 1))], constant_values=1)
            for each in map(tf.convert_to_tensor, (target, output, target_length, output_length))
        ]
        return loss(*padded, *args, **options)[:rows]


def _adapt_tf_keras(library: ModuleType, module: Any) -> None:
    """Here a loss is a contribution times the replicas: `LossesContainer` divides by them."""

    @extends(library.losses.Loss, "__call__")
    def call_of_loss(call: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        step = loss_step()
        if step is None:
            return call(self, *args, **kwargs)
        before = _operations_before((args, kwargs))
        with _calling(takes_contribution=False, loss=self, num_operations=before):
            loss = call(self, *args, **kwargs)
        if _caller_takes_contribution() or loss.shape.rank:
            return loss
        is_mean = self.reduction in _MEANS
        return _returned(loss / step.num_replicas if is_mean else loss)

    @extends(library.losses.Loss, "_get_reduction")
    def allow_means(get: Any, self: Any) -> Any:
        if loss_step() is None:
            return get(self)
        _note_pairs()
        return _MEANS[0] if self.reduction in _MEANS else get(self)

    @extends(module, "reduce_weighted_loss")
    def reduce_over_all(reduce: Any, weighted_losses: Any, reduction: Any = _MEANS[0]) -> Any:
        step = loss_step()
        if step is None or reduction == "none":
            return reduce(weighted_losses, reduction)
        own_losses().has_scaled = True
        if reduction not in _MEANS:
            return reduce(weighted_losses, reduction)
        if _is_one_number(weighted_losses):
            return _of_one_number(weighted_losses) * step.num_replicas
        number = _number_of_all(weighted_losses, step)
        return _contribution(weighted_losses, number / step.num_replicas)

    @extends(module, "compute_weighted_loss")
    def weigh_over_all(
        compute: Any, losses: Any, sample_weight: Any = None, *args: Any, **options: Any
    ) -> Any:
        is_mean = options.get("reduction") in _MEANS
        if loss_step() is None or sample_weight is None or not is_mean or _has_rank(losses):
            return compute(losses, sample_weight, *args, **options)
        loss = compute(losses, None, *args, **options)  # The weights are those of the rows.
        return loss * tf.cast(_mean_weight(sample_weight), loss.dtype)

    @extends(module, "apply_valid_mask")
    def mask_over_all(apply: Any, losses: Any, sw: Any, mask: Any, reduction: Any) -> Any:
        if loss_step() is None or mask is None or reduction not in _MEANS:
            return apply(losses, sw, mask, reduction)
        weights = apply(losses, sw, mask, "sum")
        elements, valid = _numbers_of_valid(mask)
        return weights * tf.cast(elements / valid, weights.dtype)  # NaN without one, as there.

    kind = importlib.import_module(f"{library.__name__}.src.engine.compile_utils").LossesContainer

    @extends(kind, "__call__")
    def call_of_losses(
        call: Any,
        self: Any,
        y_true: Any,
        y_pred: Any,
        sample_weight: Any = None,
        regularization_losses: Sequence[Any] | None = None,
    ) -> Any:
        step = loss_step()
        if step is None:
            return call(self, y_true, y_pred, sample_weight, regularization_losses)
        added = [_added(loss) * step.num_replicas for loss in regularization_losses or ()]
        with _calling(takes_contribution=True, is_container=True):
            loss = call(self, y_true, y_pred, sample_weight, added)
        return _returned(loss)
