"""All private names of Keras that tfdist uses, and the reasons.

A tf_keras model that is converted to an Estimator is rebuilt in a v1 graph. There tf_keras makes a
model of its older kind (`tf_keras.src.engine.training_v1`). This kind has no public interface to
some of its parts. No other module of tfdist uses them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Protocol

import tensorflow as tf
import tf_keras

from tfdist.process.tried_versions import missing_names_explained, versions_with

with missing_names_explained(versions_with(tf.__version__)):
    # A float32 variable that its layer reads in half precision: one tensor per read, cast there.
    from tf_keras.src.mixed_precision import autocast_variable

    _AutoCastVariable: Any = autocast_variable.AutoCastVariable


@dataclass(frozen=True, kw_only=True)
class CompiledWith:
    """The arguments that a model is compiled with, read once outside the Estimator's graphs.

    Attributes:
      own_optimizer: The optimizer of the user's model.
      optimizer: An optimizer of the older kind, or a v1 optimizer wrapped by Keras.
      optimizer_config: Its settings as plain values, from which another one can be made; None if
        it has no readable settings.
      arguments: The other arguments of `compile`.
    """

    own_optimizer: Any
    optimizer: Any
    optimizer_config: Any
    arguments: dict[str, Any]


def compile_arguments(model: Any) -> dict[str, Any]:
    """Returns the arguments that the user gave to `compile`; the public API has only their JSON."""
    return dict(model._get_compile_args())


def clone_and_build(
    model: Any,
    inputs: Any,
    targets: Sequence[tf.Tensor] | None,
    *,
    compiled: CompiledWith,
    custom_objects: dict[str, Any] | None,
    iterations: tf.Variable | None,
) -> Any:
    """Rebuilds a user's model in the current graph on these inputs; the model is not changed.

    `tf_keras.models.clone_model` is public, but it does not compile and does not support subclassed
    models. Without `inputs` and `targets`, tensors in the model's order, it makes placeholders.
    `iterations` is the variable in which the optimizer counts its steps; without it nothing is
    compiled.
    """
    with _compiled_as(model, compiled):
        return tf_keras.__internal__.models.clone_and_build_model(
            model,
            inputs,
            targets,
            custom_objects,
            compile_clone=iterations is not None,
            optimizer_iterations=iterations,
            optimizer_config=compiled.optimizer_config,
        )


@contextmanager
def _compiled_as(model: Any, compiled: CompiledWith) -> Iterator[None]:
    """Sets on a model, in the `with` block, the arguments that Keras compiles its clone with.

    Keras reads them before it builds the clone: another replica may set and restore them meanwhile.
    """
    borrows = compiled.optimizer is not compiled.own_optimizer
    if borrows:
        model.optimizer = compiled.optimizer
    model._get_compile_args = lambda: dict(compiled.arguments)
    try:
        yield
    finally:
        vars(model).pop("_get_compile_args", None)
        if borrows:
            model.optimizer = compiled.own_optimizer


def make_eager_again(model: Any) -> None:
    """Restores the classes of a model after a model of these classes was built in a graph.

    tf_keras changes the parent of a class whenever it makes an object: to the older one in a v1
    graph, else to the newer one. Objects made earlier do not work with the other parent.
    """
    if tf.executing_eagerly():
        for part in (model, *model.submodules):
            if isinstance(part, tf_keras.layers.Layer):
                kind: Any = type(part)
                kind.__new__(kind)


def newer_options(optimizer: Any) -> list[str]:
    """Returns the options in use that only the newer optimizers have."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)  # That of a loss scale.
    names = ("weight_decay", "use_ema", "adaptive_epsilon")
    return [name for name in names if getattr(inner, name, None)]


def to_legacy(optimizer: Any) -> Any:
    """Makes the older optimizer with the settings of a newer one; tf_keras defines the pairs.

    Raises:
      AttributeError: If there is no older optimizer of this kind.
    """
    return tf_keras.__internal__.optimizers.convert_to_legacy_optimizer(optimizer)


def learning_rate_as_given(optimizer: Any) -> Any:
    """Returns the learning rate of an optimizer: a variable, or the schedule it was made with.

    The public property returns the schedule's value at this step instead of the schedule.
    """
    return optimizer._learning_rate


def has_known_graph(model: Any) -> bool:
    """Returns whether the layers are already connected: functional, or sequential with a shape.

    No public name distinguishes a functional model from a subclassed one.
    """
    return bool(model._is_graph_network)


def has_weights_to_keep(model: Any) -> bool:
    """Returns whether the weights have values: always, except for models of a v1 graph.

    In a v1 graph Keras marks the weights that it has initialised.
    """
    if tf.compat.v1.executing_eagerly_outside_functions():
        return True
    return any(hasattr(w, "_keras_initialized") for layer in model.layers for w in layer.weights)


def compiled_metrics(model: Any) -> list[Any]:
    """Returns the metrics given to `compile`; `model.metrics` also has those of `add_metric`."""
    if not getattr(model, "_compile_metrics", None):
        return []
    return list(model._compile_metric_functions)


def weight_the_losses(model: Any, weights: list[Any]) -> None:
    """Weights each output's loss by a tensor per example; only `fit` has a public argument."""
    model._compile_weights_loss_and_weighted_metrics(weights)


def name_layers_from_the_start() -> None:
    """Restarts the numbering of unnamed layers in Keras 3: "dense" again, not "dense_7".

    Keras 3 counts layers for the whole process; tf_keras counts them for each graph. Without the
    restart the variables of a model_fn would have other names at each call. The public API can
    only reset all of Keras' state.
    """
    naming = sys.modules.get("keras.src.utils.naming")
    if naming is not None:  # Keras 3 is in use.
        naming.reset_uids()


@contextmanager
def mixed_float16_allowed() -> Iterator[None]:
    """Lets tf_keras' layers have the policy "mixed_float16" under tfdist's strategies.

    tf_keras knows only TensorFlow's strategies, because its own LossScaleOptimizer divides the
    gradients once for each replica. tfdist's divides the reduced gradient once.
    """
    # Where its two kinds of layers check the policy; imported only with a strategy.
    from tf_keras.src.engine import base_layer_v1
    from tf_keras.src.mixed_precision import policy

    modules = (policy, base_layer_v1)
    known = policy.loss_scale_optimizer
    for module in modules:
        module.loss_scale_optimizer = SimpleNamespace(strategy_supports_loss_scaling=lambda: True)
    try:
        yield
    finally:
        for module in modules:
            module.loss_scale_optimizer = known


class WeightReads(Protocol):
    """Reads of float32 weights in half precision.

    Attributes:
      dtype: The half in which the model's own weights are read.
      are_on: Whether the model is being built.
    """

    dtype: tf.DType
    are_on: bool

    def dense(self, variable: tf.Variable, dtype: tf.DType) -> tf.Tensor: ...

    def rows(self, rows: tf.Tensor, dtype: tf.DType) -> tf.Tensor: ...


class _LayerWeight(_AutoCastVariable):  # type: ignore[misc]
    """A float32 weight of a layer that computes in half; `reads` casts it in place of Keras."""

    def __init__(self, variable: tf.Variable, reads: WeightReads) -> None:
        super().__init__(variable)
        self._reads = reads

    def value(self) -> tf.Tensor:
        if not self._should_cast():
            return self._variable.value()
        return self._reads.dense(self._variable, self._cast_dtype)

    def read_value(self) -> tf.Tensor:
        return self.value() if self._should_cast() else self._variable.read_value()

    def sparse_read(self, indices: Any, name: str | None = None) -> tf.Tensor:
        rows = self._variable.sparse_read(indices, name=name)
        return self._reads.rows(rows, self._cast_dtype) if self._should_cast() else rows

    def gather_nd(self, indices: Any, name: str | None = None) -> tf.Tensor:
        rows = self._variable.gather_nd(indices, name=name)
        return self._reads.rows(rows, self._cast_dtype) if self._should_cast() else rows

    def _dense_var_to_tensor(
        self, dtype: Any = None, name: str | None = None, as_ref: bool = False
    ) -> tf.Tensor:
        if as_ref or not self._should_cast():
            return super()._dense_var_to_tensor(dtype, name, as_ref)
        return tf.convert_to_tensor(self.value(), dtype)  # A TypeError or ValueError for another.


class _ModelWeight(_LayerWeight):
    """A weight of `get_variable`: model_fn reads it in half precision, all others in float32.

    Its own dtype is float32, in which optimizers make slots; so is `read_value()`.
    """

    @property
    def _cast_dtype(self) -> tf.DType:
        # An update is built in cross-replica context.
        is_read = self._reads.are_on and not tf.distribute.in_cross_replica_context()
        return self._reads.dtype if is_read else self._variable.dtype

    @property
    def dtype(self) -> tf.DType:
        return self._variable.dtype

    def _should_cast(self) -> bool:
        return bool(self._cast_dtype != self._variable.dtype)

    def read_value(self) -> tf.Tensor:
        return self._variable.read_value()


def _operator_of_value(name: str) -> Any:
    return lambda weight, *operands: getattr(weight.value(), name)(*operands)


# Keras' class has operators that take `read_value()`.
for _name in tf.Tensor.OVERLOADABLE_OPERATORS - {"__eq__", "__ne__"}:
    setattr(_ModelWeight, _name, _operator_of_value(_name))


def read_in_half(variable: tf.Variable, reads: WeightReads) -> Any:
    """Returns a weight of `get_variable` that a model_fn reads in half precision.

    Keras' class is the only one that optimizers and both kinds of layers take for a variable.
    """
    return _ModelWeight(variable, reads)


@contextmanager
def layers_compute_in(policy: str, reads: WeightReads) -> Iterator[None]:
    """Makes layers of tf_keras that have no dtype of their own compute with a policy.

    Their weights are cast by `reads`; Keras would cast them on the device, where float32 arrives.
    The public function sets the policy, but what was set before cannot be read without a change.
    """
    from tf_keras.src.engine.base_layer_utils import v2_dtype_behavior_enabled
    from tf_keras.src.mixed_precision.policy import policy_scope

    known = autocast_variable.create_autocast_variable

    def create(variable: Any) -> Any:
        is_plain = isinstance(variable, tf.Variable) and variable.dtype == tf.float32
        return _LayerWeight(variable, reads) if is_plain and variable.trainable else known(variable)

    autocast_variable.create_autocast_variable = create
    try:
        # Without v2 behaviour layers have no policy; those of tf.compat.v1.layers need none.
        with policy_scope(policy) if v2_dtype_behavior_enabled() else nullcontext():
            yield
    finally:
        autocast_variable.create_autocast_variable = known


def is_in_layer() -> bool:
    """Returns whether a layer of tf_keras is being called, which makes its own weights."""
    from tf_keras.src.engine.base_layer_utils import call_context

    return bool(call_context().in_call)


def policy_of_keras_3() -> str | None:
    """Returns the name of the policy of Keras 3; None where Keras 3 is not in use."""
    naming, keras = (sys.modules.get(name) for name in ("keras.src.utils.naming", "keras"))
    return None if naming is None or keras is None else str(keras.config.dtype_policy().name)


def track(variable: tf.Variable) -> None:
    """Registers a variable that Keras did not make, so that Keras' session does not change it."""
    tf_keras.__internal__.backend.track_variable(variable)
