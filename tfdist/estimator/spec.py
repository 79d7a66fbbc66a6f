"""ModeKeys and EstimatorSpec: the mode and the return value of a model_fn."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.estimator.export.outputs import with_serving_default

HostCall = tuple[Callable[..., Any], Sequence[Any]]
_METRIC_NAME = re.compile(r"[A-Za-z0-9.][A-Za-z0-9_./-]*")
EvalMetrics = tuple[Callable[..., Any], "Sequence[Any] | Mapping[str, Any]"]


class ModeKeys:
    """The modes in which a model_fn is called."""

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "infer"


class _SpecFields(NamedTuple):
    mode: str | None
    predictions: Any
    loss: tf.Tensor | None
    train_op: tf.Operation | None
    eval_metric_ops: dict[str, Any]
    export_outputs: Any
    training_chief_hooks: tuple[v1.train.SessionRunHook, ...]
    training_hooks: tuple[v1.train.SessionRunHook, ...]
    scaffold: v1.train.Scaffold
    evaluation_hooks: tuple[v1.train.SessionRunHook, ...]
    prediction_hooks: tuple[v1.train.SessionRunHook, ...]
    host_call: HostCall | None
    eval_metrics: EvalMetrics | None
    loss_weight: Any
    training_metrics: dict[str, tf.Tensor]


class EstimatorSpec(_SpecFields):
    """The ops and objects that a model_fn returns to the Estimator; checked when made.

    Args:
      mode: One of `ModeKeys`.
      predictions: A tensor or a dict of tensors; needed in PREDICT.
      loss: A tensor of one element; needed in TRAIN and EVAL.
      train_op: The op of one training step. Needed in TRAIN unless `host_call` is given. If both
        are given, a step runs both.
      eval_metric_ops: Dict of name to (value, update_op) or to a Keras metric object.
      export_outputs: Dict of signature name to `ExportOutput`, for exports; used in PREDICT only.
        None exports the predictions as "serving_default".
      training_chief_hooks: Hooks that run on worker 0 only, while training.
      training_hooks: Hooks that run on every worker while training.
      scaffold: A `tf.compat.v1.train.Scaffold`.
      evaluation_hooks: Hooks that run while evaluating.
      prediction_hooks: Hooks that run while predicting.
      host_call: A pair (function, list of tensors), for TRAIN. The tensors, usually gradients, are
        computed on the device. Each is copied to the host as soon as it exists.
        `function(*tensors)` builds ops on the host and returns an op or tensor, which every step
        runs. `optimizer.apply_gradients` in it reduces over the workers. The Estimator then
        increments the global step itself. The list may be empty.
      eval_metrics: A pair (function, list or dict of tensors), for EVAL. The tensors are copied to
        the host. There the function gets them as positional or keyword arguments, and returns a
        dict as in `eval_metric_ops`. Give only one of the two.
      loss_weight: How much `loss` is a mean over, such as the number of masked tokens: a scalar
        tensor, not negative, for TRAIN with `host_call`. Micro-batches, replicas and workers count
        by it, in the gradients and in the reported loss. Where it is 0 in all of a step, weights
        and slots stay as they are. Needs `accumulation_reduction="mean"`.
      training_metrics: Dict of name to scalar tensor, each a mean over the batch, for TRAIN. Of
        each step the mean over micro-batches, replicas and workers, by `loss_weight` as the loss,
        is a summary and a tensor of that name, for hooks such as a `LoggingTensorHook`.

    Raises:
      ValueError: If something needed in this mode is missing, or has a wrong shape or length.
      TypeError: If something has a wrong type.
    """

    __slots__ = ()

    def __new__(
        cls,
        mode: str | None,
        predictions: Any = None,
        loss: tf.Tensor | None = None,
        train_op: tf.Operation | tf.Tensor | None = None,
        eval_metric_ops: dict[str, Any] | None = None,
        export_outputs: dict[str, Any] | None = None,
        training_chief_hooks: Iterable[v1.train.SessionRunHook] | None = None,
        training_hooks: Iterable[v1.train.SessionRunHook] | None = None,
        scaffold: v1.train.Scaffold | None = None,
        evaluation_hooks: Iterable[v1.train.SessionRunHook] | None = None,
        prediction_hooks: Iterable[v1.train.SessionRunHook] | None = None,
        host_call: HostCall | None = None,
        eval_metrics: EvalMetrics | None = None,
        loss_weight: Any = None,
        training_metrics: Mapping[str, Any] | None = None,
    ) -> EstimatorSpec:
        if mode not in (None, ModeKeys.TRAIN, ModeKeys.EVAL, ModeKeys.PREDICT):
            raise ValueError(f"Unknown mode: {mode!r}. Use ModeKeys.TRAIN, EVAL or PREDICT.")
        _check_function_and_tensors(host_call, "host_call", (list, tuple))
        _check_function_and_tensors(eval_metrics, "eval_metrics", (list, tuple, dict))
        if loss_weight is not None and mode == ModeKeys.TRAIN and host_call is None:
            raise ValueError(
                "loss_weight needs a host_call, whose gradients it weights. Return "
                "host_call=(function, gradients) in place of train_op."
            )
        predictions = _checked_predictions(predictions, mode)
        if mode == ModeKeys.PREDICT:
            export_outputs = with_serving_default(export_outputs, predictions)
        return super().__new__(
            cls,
            mode=mode,
            predictions=predictions,
            loss=_checked_loss(loss, mode),
            train_op=_checked_train_op(train_op, mode, host_call),
            eval_metric_ops=_checked_metrics(eval_metric_ops),
            export_outputs=export_outputs,
            training_chief_hooks=_checked_hooks(training_chief_hooks, "training_chief_hooks"),
            training_hooks=_checked_hooks(training_hooks, "training_hooks"),
            scaffold=_checked_scaffold(scaffold),
            evaluation_hooks=_checked_hooks(evaluation_hooks, "evaluation_hooks"),
            prediction_hooks=_checked_hooks(prediction_hooks, "prediction_hooks"),
            host_call=host_call,
            eval_metrics=eval_metrics,
            loss_weight=checked_weight(loss_weight),
            training_metrics=checked_training_metrics(training_metrics),
        )

    def _replace(self, **kwargs: Any) -> EstimatorSpec:
        """Returns a checked copy with some fields replaced; the mode must stay."""
        if kwargs.get("mode", self.mode) != self.mode:
            raise ValueError("mode of EstimatorSpec cannot be changed.")
        return EstimatorSpec(**{**self._asdict(), **kwargs})


def _check_function_and_tensors(value: object, name: str, containers: tuple[Any, ...]) -> None:
    if value is None:
        return
    tensors = "list or dict of tensors" if dict in containers else "list of tensors"
    fix = f"Write {name}=(function, {tensors})."
    if not isinstance(value, tuple):
        kind = "a function" if callable(value) else f"a {type(value).__name__}"
        raise TypeError(f"{name} must be a tuple (function, {tensors}), got {kind}. {fix}")
    if len(value) != 2:
        raise ValueError(f"{name} must have two elements, got {len(value)}. {fix}")
    function: Any = value[0]
    arguments: Any = value[1]
    if not callable(function):
        raise TypeError(
            f"first element of {name} must be callable, got a {type(function).__name__}. {fix}"
        )
    if not isinstance(arguments, containers):
        kind = "list or dict" if dict in containers else "list"
        raise TypeError(
            f"second element of {name} must be a {kind}, got a {type(arguments).__name__}. {fix}"
        )
    if not arguments and name != "host_call":  # The function of a host_call may need none.
        raise ValueError(f"second element of {name} has no tensors. {fix}")
    named = arguments.items() if isinstance(arguments, dict) else enumerate(arguments)
    for key, argument in named:
        if not isinstance(argument, (tf.Tensor, tf.IndexedSlices, tf.SparseTensor, tf.Variable)):
            hint = (
                "The loss does not depend on that variable: leave it out of var_list."
                if argument is None
                else fix
            )
            raise TypeError(f"`{name}` argument {key!r} must be a tensor, got {argument!r}. {hint}")
        _check_graph(argument, f"`{name}` argument {key!r}")


def _checked_predictions(predictions: Any, mode: str | None) -> Any:
    if predictions is None:
        if mode == ModeKeys.PREDICT:
            raise ValueError("Missing predictions. EstimatorSpec needs them in PREDICT.")
        return {}
    if isinstance(predictions, dict):
        return {
            k: _tensor(v, f"predictions[{k}]", f"prediction values at {k!r}")
            for k, v in predictions.items()
        }
    return _tensor(predictions, "predictions", "prediction values")


def _checked_loss(loss: Any, mode: str | None) -> tf.Tensor | None:
    if loss is None:
        if mode in (ModeKeys.TRAIN, ModeKeys.EVAL):
            raise ValueError("Missing loss. EstimatorSpec needs it in TRAIN and EVAL.")
        return None
    loss = _tensor(loss, "loss")
    if loss.shape.num_elements() not in (None, 1):
        raise ValueError(f"Loss must be scalar, given: {loss}. Reduce it over the batch first.")
    return loss if loss.shape.rank == 0 else tf.reshape(loss, [])


def checked_weight(weight: Any) -> Any:
    """Returns a loss weight as a tensor; raises an error unless it is a scalar, not negative."""
    if weight is None:
        return None
    if isinstance(weight, (int, float)):
        weight = tf.constant(weight, tf.float32)
    weight = _tensor(weight, "loss_weight")
    known = tf.get_static_value(weight)
    if known is not None and known.ndim == 0 and not known >= 0:
        raise ValueError(f"loss_weight must not be negative, got {known}. Give a sum of weights.")
    if weight.shape.rank not in (None, 0) or weight.dtype in (tf.bool, tf.string):
        raise ValueError(
            f"loss_weight must be a scalar number, got shape {weight.shape} of "
            f"{weight.dtype.name}. Give the sum of the weights, tf.reduce_sum(weights)."
        )
    return weight


def checked_training_metrics(metrics: object) -> dict[str, tf.Tensor]:
    """Returns training metrics as scalar tensors; raises an error for anything else."""
    if metrics is None:
        return {}
    if not isinstance(metrics, Mapping):
        raise TypeError(f"training metrics must be a dict of name to tensor, got {metrics!r}.")
    checked = {}
    for name, value in metrics.items():
        if not isinstance(name, str) or not _METRIC_NAME.fullmatch(name) or name == "loss":
            raise ValueError(
                f"{name!r} is no name for a training metric: use letters, digits, '_', '.', '/' "
                "and '-'. The loss is reported by itself."
            )
        tensor = _tensor(value, f"training metric {name!r}")
        if tensor.shape.rank not in (None, 0) or not tensor.dtype.is_floating:
            raise ValueError(
                f"training metric {name!r} must be a scalar of floating type, got shape "
                f"{tensor.shape} of {tensor.dtype.name}. Give its mean over the batch, "
                "tf.reduce_mean(...)."
            )
        checked[name] = tensor
    return checked


def _checked_train_op(train_op: Any, mode: str | None, host_call: object) -> Any:
    if train_op is None:
        if mode == ModeKeys.TRAIN and host_call is None:
            raise ValueError("Missing train_op. EstimatorSpec needs it, or a host_call, in TRAIN.")
        return None
    if isinstance(train_op, tf.Variable):
        train_op = train_op.op
    if not isinstance(train_op, (tf.Operation, tf.Tensor)):
        raise TypeError(f"train_op must be Operation or Tensor, given: {train_op!r}")
    _check_graph(train_op, "train_op")
    return train_op


def _checked_metrics(metrics: object) -> dict[str, Any]:
    """Replaces Keras metric objects with (value, update_op), in the user's dict itself."""
    if metrics is None:
        return {}
    if not isinstance(metrics, dict):
        raise TypeError(f"eval_metric_ops must be a dict, given: {metrics!r}")
    for name, metric in metrics.items():
        if is_keras_metric(metric):
            metrics[name] = _value_and_update(metric, name)
        elif not (isinstance(metric, tuple) and len(metric) == 2):
            raise TypeError(
                "Values of eval_metric_ops must be (metric_value, update_op) tuples or Keras "
                f"metric objects, given: {metric!r} for key: {name}"
            )
        else:
            for part in tf.nest.flatten(metric):
                if part is None or isinstance(part, (bool, int, float, str)):
                    raise TypeError(
                        f"eval_metric_ops[{name!r}] must have tensors or ops only, given: {metric}"
                    )
                if isinstance(part, (tf.Tensor, tf.Operation)):
                    _check_graph(part, f"eval_metric_ops[{name!r}]")
    return metrics


def is_keras_metric(metric: object) -> bool:
    """Returns whether an object is a metric of any Keras version, judged by its methods."""
    return all(hasattr(metric, name) for name in ("update_state", "result", "variables"))


def _value_and_update(metric: Any, name: str) -> tuple[Any, Any]:
    if not hasattr(metric, "updates"):
        raise TypeError(
            f"The metric {name!r} is a {type(metric).__module__} object, which has no update ops "
            "in a graph. Use tf.compat.v1.metrics, or a metric of tf_keras."
        )
    updates = metric.updates
    if not updates:
        raise ValueError(
            f'Please call update_state(...) on the "{metric.name}" metric before giving it to '
            f"EstimatorSpec as eval_metric_ops[{name!r}]."
        )
    _check_graph(updates[0], f"eval_metric_ops[{name!r}]")
    graph = v1.get_default_graph()
    for variable in metric.variables:
        for key in (v1.GraphKeys.LOCAL_VARIABLES, v1.GraphKeys.METRIC_VARIABLES):
            if not any(variable is known for known in graph.get_collection(key)):
                graph.add_to_collection(key, variable)
    return metric.result(), updates[0]


def _checked_hooks(hooks: Any, name: str) -> tuple[v1.train.SessionRunHook, ...]:
    return checked_hooks(hooks, f"All hooks must be SessionRunHook instances in {name}")


def checked_hooks(hooks: Any, rule: str) -> tuple[v1.train.SessionRunHook, ...]:
    """Returns a tuple of hooks; raises TypeError with `rule` for anything else."""
    if hooks is None:
        return ()
    if isinstance(hooks, v1.train.SessionRunHook) or not isinstance(hooks, Iterable):
        raise TypeError(f"{rule} in a list, given: {hooks!r}")
    hooks = tuple(hooks)
    for hook in hooks:
        if not isinstance(hook, v1.train.SessionRunHook):
            raise TypeError(f"{rule}, given: {hook!r}")
    return hooks


def _checked_scaffold(scaffold: v1.train.Scaffold | None) -> v1.train.Scaffold:
    if scaffold is None:
        return v1.train.Scaffold()
    if not isinstance(scaffold, v1.train.Scaffold):
        raise TypeError(f"scaffold must be tf.train.Scaffold. Given: {scaffold!r}")
    return scaffold


def _tensor(value: object, name: str, plural: str | None = None) -> tf.Tensor:
    """Returns a tensor of this graph, and a variable's value; raises an error for anything else."""
    if isinstance(value, tf.Variable):
        value = tf.convert_to_tensor(value)
    if not isinstance(value, tf.Tensor):
        raise TypeError(f"{name} must be Tensor, given: {value!r}")
    _check_graph(value, plural or name)
    return value


def _check_graph(value: object, name: str) -> None:
    if tf.executing_eagerly():
        return
    part = value.values if isinstance(value, (tf.IndexedSlices, tf.SparseTensor)) else value
    graph = getattr(part, "graph", None)
    if graph is not None and graph is not v1.get_default_graph():
        raise ValueError(
            f'{name} with "{getattr(part, "name", part)}" must be from the default graph, and is '
            "from a different graph. Build it inside model_fn."
        )
