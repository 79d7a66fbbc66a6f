"""EstimatorSpec refuses what the Estimator could not run, when it is made."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1
import tf_keras

import tfdist.estimator as tfe
from tfdist.estimator import EstimatorSpec, ModeKeys

pytestmark = pytest.mark.usefixtures("graph")

TRAIN, EVAL, PREDICT = ModeKeys.TRAIN, ModeKeys.EVAL, ModeKeys.PREDICT


def _loss() -> tf.Tensor:
    return tf.constant(1.0)


def _update(*tensors: Any) -> tf.Operation:
    return tf.no_op()


def _elsewhere() -> tf.Tensor:
    with tf.Graph().as_default():
        return tf.constant(1.0)


def _mean_of_keras_3() -> Any:
    import keras

    return keras.metrics.Mean()


def test_the_modes_are_tf_estimators_strings() -> None:
    assert (TRAIN, EVAL, PREDICT) == ("train", "eval", "infer")


def test_absent_fields_get_empty_values() -> None:
    spec = EstimatorSpec(EVAL, loss=_loss())
    assert spec.predictions == {}
    assert spec.eval_metric_ops == {}
    assert spec.train_op is None and spec.host_call is None and spec.eval_metrics is None
    assert isinstance(spec.scaffold, v1.train.Scaffold)
    for name in ("training", "training_chief", "evaluation", "prediction"):
        assert getattr(spec, f"{name}_hooks") == ()


def test_the_first_fields_are_tf_estimators_in_order() -> None:
    # Those are the constructor's arguments, which test_names_table.py compares.
    assert list(EstimatorSpec._fields) == [*inspect.signature(EstimatorSpec).parameters]


# What is refused, and what is taken. The tensors are made in the test's graph.


@pytest.mark.parametrize(
    ("mode", "make_fields", "error", "message"),
    [
        ("training", lambda: {"loss": _loss()}, ValueError, "Unknown mode: 'training'"),
        (TRAIN, lambda: {"train_op": tf.no_op()}, ValueError, "Missing loss"),
        (TRAIN, lambda: {"loss": _loss()}, ValueError, "Missing train_op.*host_call"),
        (EVAL, lambda: {"predictions": _loss()}, ValueError, "Missing loss"),
        (PREDICT, lambda: {"loss": _loss()}, ValueError, "Missing predictions"),
        (EVAL, lambda: {"loss": tf.ones([2])}, ValueError, "Loss must be scalar.*Reduce it"),
        (EVAL, lambda: {"loss": 1.0}, TypeError, r"loss must be Tensor, given: 1\.0"),
        (
            EVAL,
            lambda: {"loss": tf.sparse.from_dense(tf.ones([1]))},
            TypeError,
            "loss must be Tensor",
        ),
        (
            TRAIN,
            lambda: {"loss": _loss(), "train_op": "minimize"},
            TypeError,
            "train_op must be Operation or Tensor, given: 'minimize'",
        ),
        (PREDICT, lambda: {"predictions": [1.0]}, TypeError, "predictions must be Tensor"),
        (
            PREDICT,
            lambda: {"predictions": {"first": _loss(), "second": 3}},
            TypeError,
            r"predictions\[second\] must be Tensor, given: 3",
        ),
        (
            EVAL,
            lambda: {"loss": _loss(), "scaffold": "mine"},
            TypeError,
            r"scaffold must be tf\.train\.Scaffold",
        ),
    ],
)
def test_fields_that_are_missing_or_of_another_kind_are_refused(
    mode: str, make_fields: Callable[[], dict[str, Any]], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        EstimatorSpec(mode, **make_fields())


def test_training_takes_a_train_op_or_a_host_call_and_a_variable_stands_for_its_op() -> None:
    EstimatorSpec(TRAIN, loss=_loss(), host_call=(_update, [_loss()]))
    variable = v1.get_variable("v", [])
    assert EstimatorSpec(TRAIN, loss=_loss(), train_op=variable).train_op is variable.op


def test_fields_that_a_mode_does_not_need_are_kept() -> None:
    op = tf.no_op()
    spec = EstimatorSpec(PREDICT, predictions=_loss(), train_op=op, host_call=(_update, [_loss()]))
    assert spec.train_op is op
    assert spec.host_call is not None


def test_a_loss_of_one_element_or_of_unknown_shape_becomes_a_scalar() -> None:
    for loss in (tf.ones([1]), tf.ones([1, 1]), v1.placeholder(tf.float32, shape=None)):
        assert EstimatorSpec(EVAL, loss=loss).loss.shape.rank == 0


@pytest.mark.parametrize(
    ("field", "make"),
    [
        ("loss", lambda foreign: foreign),
        ("train_op", lambda foreign: foreign.op),
        ("predictions", lambda foreign: {"a": foreign}),
        ("eval_metric_ops", lambda foreign: {"a": (foreign, foreign)}),
        ("host_call", lambda foreign: (_update, [foreign])),
        ("eval_metrics", lambda foreign: (_update, {"a": foreign})),
    ],
)
def test_tensors_of_another_graph_are_refused(field: str, make: Callable[[Any], Any]) -> None:
    fields = {"loss": _loss(), "train_op": tf.no_op(), field: make(_elsewhere())}
    name = "prediction values" if field == "predictions" else field
    phrase = rf'{name}.* with "Const.*" must be from the default graph.*Build it inside model_fn'
    with pytest.raises(ValueError, match=phrase):
        EstimatorSpec(TRAIN, **fields)


# host_call and eval_metrics.


@pytest.fixture(params=["host_call", "eval_metrics"])
def field(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def _spec_with(field: str, value: Any) -> EstimatorSpec:
    mode = TRAIN if field == "host_call" else EVAL
    return EstimatorSpec(mode, loss=_loss(), **{field: value})


def test_a_pair_of_function_and_list_is_accepted(field: str) -> None:
    tensors = [_loss(), v1.get_variable("v", []), tf.IndexedSlices(tf.ones([1]), tf.constant([0]))]
    assert getattr(_spec_with(field, (_update, tensors)), field) == (_update, tensors)


@pytest.mark.parametrize(
    ("make_value", "error", "message"),
    [
        (lambda: _update, TypeError, r"^{} must be a tuple.*got a function\. Write {}="),
        (lambda: [_update, [_loss()]], TypeError, "^{} must be a tuple.*got a list"),
        (lambda: (_update, [_loss()], 1), ValueError, "^{} must have two elements, got 3"),
        (
            lambda: ([_loss()], _update),
            TypeError,
            "first element of {} must be callable, got a list",
        ),
        (lambda: (_update, _loss()), TypeError, "second element of {} must be a list"),
        (
            lambda: (_update, [_loss(), None]),
            TypeError,
            "`{}` argument 1 .*None.*loss does not depend",
        ),
        (lambda: (_update, [3.0]), TypeError, r"`{}` argument 0 must be a tensor, got 3\.0"),
    ],
)
def test_what_is_no_pair_of_function_and_tensors_is_refused(
    field: str, make_value: Callable[[], Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message.format(field, field)):
        _spec_with(field, make_value())


def test_only_eval_metrics_takes_a_dict_of_tensors() -> None:
    value = (_update, {"a": _loss()})
    assert _spec_with("eval_metrics", value).eval_metrics == value
    with pytest.raises(TypeError, match="must be a list, got a dict"):
        _spec_with("host_call", value)


@pytest.mark.parametrize("empty", [[], ()])
def test_only_host_call_may_have_no_tensors(empty: Any) -> None:
    assert _spec_with("host_call", (_update, empty)).host_call == (_update, empty)
    with pytest.raises(ValueError, match="second element of eval_metrics has no tensors"):
        _spec_with("eval_metrics", (_update, empty))


# Metrics.


@pytest.mark.parametrize(
    ("make_metrics", "error", "message"),
    [
        (lambda: [v1.metrics.mean(_loss())], TypeError, "eval_metric_ops must be a dict"),
        (lambda: {"wrong": 1.0}, TypeError, "for key: wrong"),
        (lambda: {"wrong": (1.0,)}, TypeError, "for key: wrong"),
        (lambda: {"wrong": (1.0, 2.0, 3.0)}, TypeError, "for key: wrong"),
        (lambda: {"wrong": (_loss(), None)}, TypeError, r"ops\['wrong'\] must have tensors or ops"),
        (lambda: {"wrong": (_loss(), 1.0)}, TypeError, r"ops\['wrong'\] must have tensors or ops"),
        (
            lambda: {"mean": _mean_of_keras_3()},
            TypeError,
            r"'mean' is a keras.* object, which has no update ops",
        ),
        (
            lambda: {"accuracy": tf_keras.metrics.BinaryAccuracy()},
            ValueError,
            r'call update_state\(...\) on the "binary_accuracy" metric',
        ),
    ],
)
def test_metrics_of_another_kind_are_refused_by_name(
    make_metrics: Callable[[], Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        EstimatorSpec(EVAL, loss=_loss(), eval_metric_ops=make_metrics())


def test_a_metrics_value_may_be_nested() -> None:
    nested = ({"a": _loss(), "b": [_loss(), _loss()]}, tf.no_op())
    spec = EstimatorSpec(EVAL, loss=_loss(), eval_metric_ops={"nested": nested})
    assert spec.eval_metric_ops["nested"] == nested


def test_a_keras_metric_becomes_a_pair_in_the_users_dict() -> None:
    metric = tf_keras.metrics.Mean()
    metric.update_state(tf.constant([1.0, 3.0]))
    metrics = {"mean": metric}
    EstimatorSpec(EVAL, loss=_loss(), eval_metric_ops=metrics)
    value, update = metrics["mean"]
    for collection in (v1.GraphKeys.LOCAL_VARIABLES, v1.GraphKeys.METRIC_VARIABLES):
        assert {v.name for v in metric.variables} <= {v.name for v in v1.get_collection(collection)}
    with v1.Session() as session:
        session.run(v1.local_variables_initializer())
        session.run(update)
        assert session.run(value) == 2.0


# Hooks and exports.

HOOK_FIELDS = ["training_hooks", "training_chief_hooks", "evaluation_hooks", "prediction_hooks"]


@pytest.mark.parametrize("name", HOOK_FIELDS)
def test_hooks_are_kept_as_a_tuple(name: str) -> None:
    hook = v1.train.SessionRunHook()
    spec = EstimatorSpec(EVAL, loss=_loss(), **{name: iter([hook])})
    assert getattr(spec, name) == (hook,)


@pytest.mark.parametrize("name", HOOK_FIELDS)
@pytest.mark.parametrize("value", [v1.train.SessionRunHook(), ["print"], 3])
def test_what_is_no_list_of_hooks_is_refused(name: str, value: Any) -> None:
    with pytest.raises(TypeError, match=f"All hooks must be SessionRunHook instances in {name}"):
        EstimatorSpec(EVAL, loss=_loss(), **{name: value})


def test_export_outputs_are_looked_at_in_predict_only() -> None:
    assert EstimatorSpec(EVAL, loss=_loss(), export_outputs=[1]).export_outputs == [1]
    assert EstimatorSpec(EVAL, loss=_loss()).export_outputs is None
    with pytest.raises(TypeError, match="`export_outputs` must be dict"):
        EstimatorSpec(PREDICT, predictions=_loss(), export_outputs=[1])
    with pytest.raises(TypeError, match="Values in `export_outputs` must be ExportOutput objects"):
        EstimatorSpec(PREDICT, predictions=_loss(), export_outputs={"mine": _loss()})


# _replace.


def test_replace_changes_a_field_and_keeps_the_rest() -> None:
    spec = EstimatorSpec(TRAIN, loss=_loss(), host_call=(_update, [_loss()]))
    op = tf.no_op()
    changed = spec._replace(train_op=op)
    assert isinstance(changed, EstimatorSpec)
    assert changed.train_op is op
    assert changed.host_call == spec.host_call
    assert spec.train_op is None


def test_replace_checks_as_the_constructor_does() -> None:
    spec = EstimatorSpec(TRAIN, loss=_loss(), train_op=tf.no_op())
    with pytest.raises(ValueError, match="Missing loss"):
        spec._replace(loss=None)
    with pytest.raises(TypeError, match="host_call must be a tuple"):
        spec._replace(host_call=_update)


def test_replace_cannot_change_the_mode() -> None:
    spec = EstimatorSpec(EVAL, loss=_loss())
    assert spec._replace(mode=EVAL).mode == EVAL
    with pytest.raises(ValueError, match="mode of EstimatorSpec cannot be changed"):
        spec._replace(mode=PREDICT)


def test_a_spec_cannot_be_assigned_to() -> None:
    with pytest.raises(AttributeError):
        tfe.EstimatorSpec(EVAL, loss=_loss()).loss = None  # type: ignore[misc]
