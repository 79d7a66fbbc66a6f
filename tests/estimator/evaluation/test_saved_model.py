"""SavedModels that an Estimator writes, read with TensorFlow's own readers."""

import re
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

import tfdist.estimator as tfe
from tfdist.estimator.evaluation import saved_model
from tfdist.estimator.experimental import build_raw_supervised_input_receiver_fn

SPEC = {"x": tf.io.FixedLenFeature([2], tf.float32)}
parsing = tfe.export.build_parsing_serving_input_receiver_fn(SPEC)
X = np.array([[1.0, 2.0], [3.0, -1.0], [0.5, 0.0]], np.float32)


def raw() -> Any:
    with tf.Graph().as_default():
        x = v1.placeholder(tf.float32, [None, 2], "x")
    return tfe.export.build_raw_serving_input_receiver_fn({"x": x})()


def supervised() -> Any:
    with tf.Graph().as_default():
        x = v1.placeholder(tf.float32, [None, 2], "x")
        y = v1.placeholder(tf.float32, [None, 3], "y")
    return build_raw_supervised_input_receiver_fn({"x": x}, y)()


def examples(rows: Any) -> list[bytes]:
    made = []
    for row in rows:
        example = tf.train.Example()
        example.features.feature["x"].float_list.value[:] = row
        made.append(example.SerializeToString())
    return made


@contextmanager
def loaded(path: bytes, tag: str) -> Iterator[tuple[v1.Session, Any]]:
    """Loads one graph of an export into a plain session: no soft placement, one CPU."""
    with tf.Graph().as_default(), v1.Session() as session:
        yield session, v1.saved_model.load(session, [tag], path.decode())


def run(session: v1.Session, signature: Any, inputs: dict[str, Any], *outputs: str) -> Any:
    fetches = [signature.outputs[name].name for name in outputs]
    feed = {signature.inputs[name].name: value for name, value in inputs.items()}
    return session.run(fetches, feed)


def served(path: bytes, **more: Any) -> Any:
    """Returns what the default signature makes of X."""
    model = tf.saved_model.load(path.decode(), **more)
    return model.signatures["serving_default"](x=tf.constant(X))


def predicted(estimator: tfe.Estimator) -> Any:
    rows = estimator.predict(lambda: tf.data.Dataset.from_tensors({"x": X}))
    return np.array([row["output"] for row in rows])


KERNEL = np.array([[0.5, -1.0, 2.0], [1.5, 0.25, -0.5]], np.float32)
BIAS = np.array([0.1, -0.2, 0.3], np.float32)
OUTPUT = X @ KERNEL + BIAS


@pytest.fixture
def trained(tmp_path: Path) -> Callable[..., tfe.Estimator]:
    """Makes an Estimator for a `dense` model whose newest checkpoint, of step 2, has OUTPUT for X.

    It is written here rather than trained, which is faster.
    """

    def trained(model_fn: Any, **arguments: Any) -> tfe.Estimator:
        path = tmp_path / "model" / "model.ckpt-2"
        path.parent.mkdir()
        with tf.Graph().as_default(), v1.Session() as session:
            v1.train.create_global_step()
            v1.get_variable("kernel", initializer=KERNEL)
            v1.get_variable("bias", initializer=BIAS)
            session.run(v1.global_variables_initializer())
            session.run(v1.train.get_global_step().assign(2))
            v1.train.Saver().save(session, str(path), write_meta_graph=False)
        return tfe.Estimator(model_fn, path.parent, **arguments)

    return trained


@pytest.fixture
def export(tmp_path: Path, trained: Any) -> Callable[..., bytes]:
    """Exports the Estimator that `trained` makes."""

    def export(model_fn: Any, receiver: Any = raw, config: Any = None, **arguments: Any) -> bytes:
        estimator = trained(model_fn, config=config)
        return estimator.export_saved_model(tmp_path / "exports", receiver, **arguments)

    return export


@pytest.fixture
def predicting(dense: Any) -> Callable[..., Any]:
    """Makes a `dense` model_fn whose spec in PREDICT is what `change(spec, features)` returns."""

    def predicting(change: Callable[..., tfe.EstimatorSpec]) -> Any:
        def model_fn(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
            spec = dense()(features, labels, mode)
            return change(spec, features) if mode == tfe.ModeKeys.PREDICT else spec

        return model_fn

    return predicting


# Serving.


def test_an_export_is_a_folder_named_by_the_time(tmp_path: Path, dense: Any, export: Any) -> None:
    path = export(dense(), parsing)
    assert isinstance(path, bytes)
    (folder,) = (tmp_path / "exports").iterdir()  # Nothing temporary is left.
    assert str(folder) == path.decode()
    assert re.fullmatch("[0-9]{10}", folder.name)
    assert sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()) == [
        "saved_model.pb",
        "variables/variables.data-00000-of-00001",
        "variables/variables.index",
    ]


def test_a_text_export_can_be_read(tmp_path: Path, dense: Any, trained: Any) -> None:
    path = trained(dense()).export_saved_model(str(tmp_path / "e").encode(), parsing, as_text=True)
    text = Path(path.decode(), "saved_model.pbtxt").read_text()
    assert "input_example_tensor" in text
    assert "stripped_default_attrs: true" in text
    assert not Path(path.decode(), "saved_model.pb").exists()
    with loaded(path, "serve") as (_, graph):
        assert list(graph.signature_def) == ["serving_default"]


def test_a_loaded_model_predicts_what_the_estimator_does(
    tmp_path: Path, dense: Any, numbers: Any
) -> None:
    estimator = tfe.Estimator(dense("adam"), tmp_path / "model").train(numbers(), steps=5)
    expected = predicted(estimator)
    path = estimator.export_saved_model(tmp_path / "exports", parsing)
    model = tf.saved_model.load(path.decode())
    found = model.signatures["serving_default"](examples=tf.constant(examples(X)))
    np.testing.assert_array_equal(found["output"], expected)
    np.testing.assert_array_equal(found["x"], X)
    with loaded(path, "serve") as (session, graph):
        signature = graph.signature_def["serving_default"]
        (output,) = run(session, signature, {"examples": examples(X)}, "output")
        np.testing.assert_array_equal(output, expected)


def test_nothing_is_bound_to_a_device_but_the_first_cpu(
    tmp_path: Path, dense: Any, trained: Any
) -> None:
    estimator = trained(dense())
    receivers = {"train": supervised, "eval": supervised, "infer": raw}
    path = estimator.experimental_export_all_saved_models(tmp_path / "exports", receivers)
    for tag in ("train", "eval", "serve"):
        with loaded(path, tag) as (session, _):
            devices = {node.device for node in session.graph.as_graph_def().node}
            assert devices <= {"", "/device:CPU:0", "/device:CPU:*"}


def test_each_output_and_each_way_to_feed_it_is_a_signature(
    export: Any, predicting: Any, logged: list[str]
) -> None:
    def change(spec: tfe.EstimatorSpec, features: Any) -> tfe.EstimatorSpec:
        output = spec.predictions["output"]
        return tfe.EstimatorSpec(
            spec.mode,
            predictions=output,
            export_outputs={
                "serving_default": tfe.export.PredictOutput({"all": output}),
                "classes": tfe.export.ClassificationOutput(tf.nn.softmax(output)),
                "first": tfe.export.RegressionOutput(output[:, 0]),
            },
        )

    def receiver() -> Any:
        parsed = parsing()
        unrelated = v1.placeholder(tf.float32, [])
        return tfe.export.ServingInputReceiver(
            parsed.features,
            parsed.receiver_tensors,
            {"raw": parsed.features, "unrelated": unrelated},
        )

    path = export(predicting(change), receiver)
    with loaded(path, "serve") as (session, graph):
        signatures = graph.signature_def
        assert set(signatures) == {"serving_default", "classes", "first", "raw:serving_default"}
        (first,) = run(session, signatures["first"], {"inputs": examples(X)}, "outputs")
        (output,) = run(session, signatures["raw:serving_default"], {"x": X}, "all")
    np.testing.assert_allclose(first, OUTPUT[:, 0], rtol=1e-6)
    np.testing.assert_allclose(output, OUTPUT, rtol=1e-6)
    for line in (
        "Signatures INCLUDED in export for Classify: ['classes']",
        "Signatures INCLUDED in export for Regress: ['first']",
        "Signatures INCLUDED in export for Predict: ['serving_default', 'raw:serving_default']",
        "Signatures INCLUDED in export for Train: None",
        "Signatures INCLUDED in export for Eval: None",
    ):
        assert line in logged
    assert any("'raw:classes' : Classification signatures can only" in line for line in logged)
    unfed = [line for line in logged if line.startswith("'unrelated:serving_default'")]
    assert "'input_example_tensor:0'" in unfed[0]
    assert any(line.startswith("SavedModel written to: ") for line in logged)


def test_an_export_without_usable_signatures_is_said_so(
    export: Any, predicting: Any, logged: list[str]
) -> None:
    def change(spec: tfe.EstimatorSpec, features: Any) -> tfe.EstimatorSpec:
        output = tfe.export.RegressionOutput(spec.predictions["output"])
        return spec._replace(export_outputs={"serving_default": output})

    export(predicting(change))
    assert "Export includes no signatures!" in logged


def test_a_model_fn_whose_features_are_a_tensor_can_be_served(dense: Any, export: Any) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
        return dense()({"x": features}, labels, mode)

    def receiver() -> Any:
        x = v1.placeholder(tf.float32, [None, 2])
        return tfe.export.TensorServingInputReceiver(x, x)

    path = export(model_fn, receiver)
    with loaded(path, "serve") as (session, graph):
        signature = graph.signature_def["serving_default"]
        (output,) = run(session, signature, {"input": X}, "output")
    np.testing.assert_allclose(output, OUTPUT, rtol=1e-6)


def test_tables_and_their_files_come_along(tmp_path: Path, predicting: Any, export: Any) -> None:
    vocabulary = tmp_path / "words.txt"
    vocabulary.write_text("zero\none\ntwo\n")

    def change(spec: tfe.EstimatorSpec, features: Any) -> tfe.EstimatorSpec:
        table = tf.lookup.StaticHashTable(
            tf.lookup.TextFileInitializer(
                str(vocabulary),
                tf.int64,
                tf.lookup.TextFileIndex.LINE_NUMBER,
                tf.string,
                tf.lookup.TextFileIndex.WHOLE_LINE,
            ),
            default_value="unknown",
        )
        word = table.lookup(tf.argmax(features["x"], axis=1))
        return tfe.EstimatorSpec(spec.mode, predictions={"word": word})

    path = export(predicting(change))
    assert Path(path.decode(), "assets", "words.txt").read_text() == "zero\none\ntwo\n"
    vocabulary.unlink()  # The export has its own.
    assert served(path)["word"].numpy().tolist() == [b"one", b"zero", b"zero"]
    with loaded(path, "serve") as (session, graph):
        signature = graph.signature_def["serving_default"]
        assert run(session, signature, {"x": X[:1]}, "word")[0].tolist() == [b"one"]


def test_extra_files_are_copied(tmp_path: Path, dense: Any, export: Any) -> None:
    source = tmp_path / "source.txt"
    source.write_text("hello")
    extra = {"a.txt": str(source), "deep/er/b.txt": str(source)}
    path = export(dense(), assets_extra=extra)
    for name in extra:
        assert Path(path.decode(), "assets.extra", name).read_text() == "hello"


# Other modes.


@pytest.mark.parametrize("way", ["host_call", "counted"])
def test_an_exported_train_op_does_the_next_step(
    tmp_path: Path, dense: Any, numbers: Any, weights: Any, way: str
) -> None:
    model_fn = dense("adam", way)
    estimator = tfe.Estimator(model_fn, tmp_path / "model").train(numbers(), steps=3)
    path = estimator.export_saved_model(tmp_path / "exports", supervised, experimental_mode="train")
    with loaded(path, "train") as (session, graph):
        signature = graph.signature_def["train"]
        assert signature.method_name == "tensorflow/supervised/training"
        assert set(signature.inputs) == {"x", "label"}
        feed = first_batch(numbers)
        (train_op,) = v1.get_collection("saved_model_train_op")
        (loss,) = run(session, signature, feed, "loss")
        session.run(train_op, {signature.inputs[name].name: feed[name] for name in feed})
        found = {v.op.name: session.run(v) for v in v1.global_variables()}
    estimator.train(numbers(), steps=1)  # Its input starts again: the same first batch.
    expected = weights(estimator)
    assert loss > 0
    assert found["global_step"] == 4
    assert set(found) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-6, err_msg=name)


def first_batch(numbers: Any) -> dict[str, Any]:
    with tf.Graph().as_default(), v1.Session() as session:
        features, labels = session.run(v1.data.make_one_shot_iterator(numbers()()).get_next())
    return {"x": features["x"], "label": labels}


@pytest.mark.parametrize("field", ["eval_metric_ops", "eval_metrics"])
def test_an_exported_evaluation_has_metrics(
    tmp_path: Path, dense: Any, numbers: Any, trained: Any, field: str
) -> None:
    def metrics(x: tf.Tensor) -> dict[str, Any]:
        return {"mean": v1.metrics.mean(x)}

    def model_fn(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
        loss, x = dense()(features, labels, mode).loss, features["x"]
        own = metrics(x) if field == "eval_metric_ops" else (metrics, {"x": x})
        return tfe.EstimatorSpec(mode, loss=loss, predictions=x, **{field: own})

    estimator = trained(model_fn)
    path = estimator.export_saved_model(tmp_path / "exports", supervised, experimental_mode="eval")
    feed = first_batch(numbers)
    with loaded(path, "eval") as (session, graph):
        signature = graph.signature_def["eval"]
        assert set(graph.signature_def) == {"eval"}
        of_metric = {"metrics/mean/value", "metrics/mean/update_op"}
        assert set(signature.outputs) == {"loss", "predictions", *of_metric}
        run(session, signature, feed, "metrics/mean/update_op")
        mean, loss = run(session, signature, feed, "metrics/mean/value", "loss")
    expected = estimator.evaluate(numbers(), steps=1)
    assert (mean, loss) == pytest.approx((expected["mean"], expected["loss"]))


def test_all_modes_share_the_variables_of_training(
    tmp_path: Path, dense: Any, numbers: Any
) -> None:
    estimator = tfe.Estimator(dense("momentum"), tmp_path / "model").train(numbers(), steps=2)
    receivers = {"infer": raw, "eval": supervised, "train": supervised}
    path = estimator.experimental_export_all_saved_models(tmp_path / "exports", receivers)
    variables = tf.train.list_variables(f"{path.decode()}/variables/variables")
    assert dict(variables).keys() == set(estimator.get_variable_names())
    expected = predicted(estimator)
    np.testing.assert_array_equal(served(path, tags=["serve"])["output"], expected)
    feed = {"x": X, "label": np.zeros([3, 3], np.float32)}
    losses = []
    for mode in ("train", "eval"):
        with loaded(path, mode) as (session, graph):
            losses += run(session, graph.signature_def[mode], feed, "loss")
    np.testing.assert_allclose(losses, [np.mean(expected**2)] * 2, rtol=1e-6)


def test_steps_in_a_loop_are_exported_as_one_step(dense: Any, export: Any) -> None:
    config = tfe.RunConfig(device=tfe.DeviceConfig(iterations_per_loop=5))
    path = export(dense(), supervised, config, experimental_mode="train")
    with loaded(path, "train") as (session, graph):
        inputs = graph.signature_def["train"].inputs
        (train_op,) = v1.get_collection("saved_model_train_op")
        session.run(train_op, {inputs["x"].name: X, inputs["label"].name: OUTPUT})
        assert session.run(v1.train.get_global_step()) == 3


# Which checkpoint.


def test_an_older_checkpoint_can_be_exported(tmp_path: Path, dense: Any, numbers: Any) -> None:
    config = tfe.RunConfig(save_checkpoints_steps=1)
    estimator = tfe.Estimator(dense(), tmp_path / "model", config).train(numbers(), steps=3)
    for step, path in ((3, None), (2, f"{estimator.model_dir}/model.ckpt-2")):
        exported = estimator.export_saved_model(
            tmp_path / f"exports{step}", raw, checkpoint_path=path
        )
        saved = f"{exported.decode()}/variables/variables"
        assert tf.train.load_variable(saved, "global_step") == step


@pytest.mark.parametrize("what", ["folder", "checkpoint"])
def test_untrained_but_warm_started_exports_what_it_starts_from(
    tmp_path: Path, dense: Any, trained: Any, what: str
) -> None:
    old = trained(dense())
    source = old.model_dir if what == "folder" else old.latest_checkpoint()
    new = tfe.Estimator(dense(), tmp_path / "new", warm_start_from=source)
    path = new.export_saved_model(tmp_path / "exports", raw)
    np.testing.assert_allclose(served(path)["output"], OUTPUT, rtol=1e-6)


def test_a_checkpoint_of_weights_alone_is_exported_with_step_0(tmp_path: Path, dense: Any) -> None:
    """Released weights have no global step; evaluate and predict take them as well."""
    with tf.Graph().as_default(), v1.Session() as session:
        kernel = v1.get_variable("kernel", initializer=KERNEL)
        bias = v1.get_variable("bias", initializer=BIAS)
        session.run(v1.global_variables_initializer())
        path = v1.train.Saver([kernel, bias]).save(session, str(tmp_path / "weights"))
    estimator = tfe.Estimator(dense(), tmp_path / "model", warm_start_from=path)
    exported = estimator.export_saved_model(tmp_path / "exports", raw)
    np.testing.assert_allclose(served(exported)["output"], OUTPUT, rtol=1e-6)
    assert tf.train.load_variable(f"{exported.decode()}/variables/variables", "global_step") == 0


def test_without_a_checkpoint_there_is_nothing_to_export(tmp_path: Path, dense: Any) -> None:
    estimator = tfe.Estimator(dense(), tmp_path / "model")
    with pytest.raises(ValueError, match="Couldn't find trained model at"):
        estimator.export_saved_model(tmp_path / "exports", raw)
    (tmp_path / "empty").mkdir()
    cold = tfe.Estimator(dense(), tmp_path / "model", warm_start_from=str(tmp_path / "empty"))
    with pytest.raises(ValueError, match="Couldn't find trained model at"):
        cold.export_saved_model(tmp_path / "exports", raw)


def test_variables_that_the_checkpoint_lacks_are_an_error_that_names_the_mode(
    tmp_path: Path, dense: Any, trained: Any
) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
        if mode == tfe.ModeKeys.PREDICT:
            v1.get_variable("later", [])
        return dense()(features, labels, mode)

    estimator = trained(model_fn)
    for receivers in ({"infer": raw}, {"infer": raw, "eval": supervised}):
        with pytest.raises(ValueError, match=r"Could not load all requested[\w\W]*`infer`"):
            estimator.experimental_export_all_saved_models(tmp_path / "exports", receivers)
    assert list((tmp_path / "exports").iterdir()) == []  # Not even a part of it.
    estimator.export_saved_model(tmp_path / "good", supervised, experimental_mode="eval")


@pytest.mark.parametrize("receivers", [{}, {"infer": None}, {"predict": raw}])
def test_without_a_known_mode_nothing_is_written(
    tmp_path: Path, dense: Any, trained: Any, receivers: dict[str, Any]
) -> None:
    estimator = trained(dense())
    with pytest.raises(ValueError, match="No valid modes for exporting found"):
        estimator.experimental_export_all_saved_models(tmp_path / "exports", receivers)
    with pytest.raises(ValueError, match="input_receiver_fn must be defined"):
        estimator.export_saved_model(tmp_path / "exports", None)
    assert not (tmp_path / "exports").exists()


# What the model brings.


def test_the_receiver_and_the_model_find_a_seeded_graph_with_a_global_step(
    dense: Any, export: Any
) -> None:
    seen = []

    def look() -> None:
        seen.append((v1.get_default_graph().seed, v1.train.get_global_step().dtype.base_dtype))

    def receiver() -> Any:
        look()
        return raw()

    def model_fn(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
        look()
        assert labels is None
        return dense()(features, labels, mode)

    export(model_fn, receiver, tfe.RunConfig(tf_random_seed=7))
    assert seen == [(7, tf.int64)] * 2


def test_the_scaffolds_saver_restores_and_saves(tmp_path: Path, dense: Any, trained: Any) -> None:
    estimator = trained(dense())
    savers = []

    class Watched(v1.train.Saver):
        def restore(self, *arguments: Any) -> None:
            self.done.append("restore")
            super().restore(*arguments)

        def save(self, *arguments: Any, **more: Any) -> Any:
            self.done.append("save")
            return super().save(*arguments, **more)

    def model_fn(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
        spec = dense()(features, labels, mode)
        saver = Watched()
        saver.done = []
        savers.append(saver)
        return spec._replace(scaffold=v1.train.Scaffold(saver=saver))

    other = tfe.Estimator(model_fn, estimator.model_dir)
    other.experimental_export_all_saved_models(
        tmp_path / "exports", {"infer": raw, "eval": supervised}
    )
    assert [saver.done for saver in savers] == [["restore", "save"], ["restore"]]


def test_an_object_based_checkpoint_can_be_exported(
    tmp_path: Path, dense: Any, numbers: Any
) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
        spec = dense(way="counted")(features, labels, mode)
        kernel, bias = v1.trainable_variables()
        step = v1.train.get_global_step()
        checkpoint = tf.train.Checkpoint(kernel=kernel, bias=bias, step=step)
        return spec._replace(scaffold=v1.train.Scaffold(saver=checkpoint))

    estimator = tfe.Estimator(model_fn, tmp_path / "model").train(numbers(), steps=2)
    assert "kernel/.ATTRIBUTES/VARIABLE_VALUE" in estimator.get_variable_names()
    path = estimator.export_saved_model(tmp_path / "exports", raw)
    np.testing.assert_array_equal(served(path)["output"], predicted(estimator))


def test_the_scaffolds_local_init_op_runs_when_loaded(dense: Any, export: Any) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
        spec = dense()(features, labels, mode)
        keys = [v1.GraphKeys.LOCAL_VARIABLES]
        own = v1.get_variable("own", [], initializer=v1.zeros_initializer(), collections=keys)
        scaffold = v1.train.Scaffold(local_init_op=v1.assign(own, 12345.0).op)
        return spec._replace(scaffold=scaffold)

    with loaded(export(model_fn), "serve") as (session, _):
        assert session.run(v1.local_variables()) == [12345.0]


def test_an_operation_on_a_gpu_falls_back_to_the_cpu(dense: Any, export: Any) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
        with tf.device("/device:GPU:0"):
            return dense()(features, labels, mode)

    assert tf.saved_model.contains_saved_model(export(model_fn).decode())


def test_an_export_inside_another_graph_knows_nothing_of_it(
    tmp_path: Path, dense: Any, trained: Any
) -> None:
    estimator = trained(dense())
    with tf.Graph().as_default() as outer, tf.name_scope("outer"), tf.device("/device:CPU:1"):
        path = estimator.export_saved_model(tmp_path / "exports", raw)
        assert outer.get_operations() == []
    with loaded(path, "serve") as (session, _):
        assert {v.name for v in v1.global_variables()} == {"global_step:0", "kernel:0", "bias:0"}
        assert all("CPU:1" not in n.device for n in session.graph.as_graph_def().node)


# The rest.


def test_a_subclass_may_put_something_around_an_export_and_make_the_global_step(
    tmp_path: Path, dense: Any, trained: Any
) -> None:
    calls, graphs = [], []

    class Mine(tfe.Estimator):
        def _create_and_assert_global_step(self, graph: tf.Graph) -> Any:
            graphs.append(graph)
            return v1.train.create_global_step(graph)

        def _export_all_saved_models(self, *arguments: Any, **more: Any) -> Any:
            calls.append((arguments[1], sorted(more)))
            return super()._export_all_saved_models(*arguments, **more)

    mine = Mine(dense(), trained(dense()).model_dir)
    mine.export_saved_model(tmp_path / "a", raw)
    mine.experimental_export_all_saved_models(tmp_path / "b", {"eval": supervised})
    names = ["as_text", "assets_extra", "checkpoint_path", "strip_default_attrs"]
    assert calls == [({"infer": raw}, names), ({"eval": supervised}, names)]
    assert len(graphs) == 2


def test_two_exports_in_a_second_are_a_second_apart(
    tmp_path: Path, dense: Any, trained: Any, monkeypatch: pytest.MonkeyPatch, logged: list[str]
) -> None:
    now = [1700000000.5]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    clock = types.SimpleNamespace(time=lambda: now[0], sleep=sleep)
    monkeypatch.setattr(saved_model, "time", clock)
    estimator = trained(dense())
    paths = [estimator.export_saved_model(tmp_path / "exports", raw) for _ in range(2)]
    assert [Path(path.decode()).name for path in paths] == ["1700000000", "1700000001"]
    assert any("already exists; retrying (attempt 1/10)" in line for line in logged)


def test_ten_attempts_are_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = types.SimpleNamespace(time=lambda: 1700000000.0, sleep=lambda seconds: None)
    monkeypatch.setattr(saved_model, "time", clock)
    (tmp_path / "1700000000").mkdir()
    with pytest.raises(RuntimeError, match="Failed to obtain a unique export directory name"):
        saved_model.timestamped_folder(tmp_path)
