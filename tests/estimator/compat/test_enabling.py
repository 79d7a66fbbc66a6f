"""`tf.estimator` back in its place, and its v1 flavour."""

import json
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

import tfdist.estimator as tfe
from tfdist.estimator import v1 as older
from tfdist.estimator.compat.enabling import reason_to_refuse

Make = Callable[..., Any]


@pytest.fixture
def run(fake_cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Runs a program in a process of its own and returns what it wrote to result.json."""
    monkeypatch.delenv("TF_USE_LEGACY_KERAS", raising=False)
    monkeypatch.chdir(tmp_path)

    def run(text: str) -> Any:
        program = tmp_path / "program.py"
        program.write_text(textwrap.dedent(text))
        fake_cluster.run_script([str(program)], engine="none", forked=True)
        return json.loads((tmp_path / "result.json").read_text())

    return run


@pytest.mark.processes
def test_a_v2_program_runs_with_its_own_imports(run: Make, tmp_path: Path) -> None:
    program = """
        from tfdist.estimator import enable_compat
        enable_compat()
        enable_compat()

        import json
        import numpy as np
        import tensorflow as tf
        import tensorflow.estimator
        from tensorflow import estimator
        from tensorflow.estimator.experimental import stop_if_no_decrease_hook
        from tensorflow.estimator.export import PredictOutput
        import tfdist.estimator as tfe

        assert tf.estimator is estimator and tf.compat.v2.estimator is estimator
        assert tf.estimator.export.PredictOutput is PredictOutput
        assert estimator.Estimator is tfe.Estimator

        model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(2,))])
        model.compile("sgd", "mse")
        est = tf.keras.estimator.model_to_estimator(model, model_dir="model")
        assert type(est) is tf.estimator.Estimator

        def input_fn():
            pair = np.ones((4, 2), np.float32), np.ones((4, 1), np.float32)
            return tf.data.Dataset.from_tensors(pair).repeat(3)

        hook = stop_if_no_decrease_hook(est, "loss", 10, run_every_secs=None, run_every_steps=1)
        results, _ = tf.estimator.train_and_evaluate(
            est,
            tf.estimator.TrainSpec(input_fn, max_steps=2, hooks=[hook]),
            tf.estimator.EvalSpec(input_fn),
        )
        json.dump({"step": int(results["global_step"])}, open("result.json", "w"))
    """
    assert run(program) == {"step": 2}
    assert (tmp_path / "model" / "checkpoint").exists()


_V1_PROGRAM = """
    import tensorflow.compat.v1 as tf
    import tfdist.estimator
    tfdist.estimator.enable_compat()
    tf.disable_v2_behavior()

    import json
    import numpy as np
    import tensorflow
    import tensorflow.compat.v1.estimator as imported
    from tensorflow.compat.v1 import estimator
    from tensorflow.compat.v1.estimator.inputs import numpy_input_fn
    from tensorflow_estimator import estimator as tf_estimator
    from tensorflow_estimator.python.estimator.canned.prediction_keys import PredictionKeys
    import tensorflow.compat.v1.estimator.tpu as tpu

    assert tf.estimator.tpu is tpu and PredictionKeys.LOGITS == "logits"
    assert tf.estimator is estimator is imported is tf_estimator
    assert tensorflow.compat.v1.estimator is estimator
    assert tensorflow.estimator is tfdist.estimator
    assert tf.estimator.RunConfig is tensorflow.estimator.RunConfig

    def model_fn(features, labels, mode):
        out = tf.layers.dense(features["x"], 1, kernel_initializer=tf.zeros_initializer())
        if mode == tf.estimator.ModeKeys.PREDICT:
            return tf.estimator.EstimatorSpec(mode, predictions={"out": out})
        loss = tf.losses.mean_squared_error(labels, out)
        step = tf.train.get_global_step()
        train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss, step)
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

    x, y = np.ones((4, 2), np.float32), np.ones((4, 1), np.float32)
    data = numpy_input_fn({"x": x}, y, batch_size=4, num_epochs=None, shuffle=False)
    est = tf.estimator.Estimator(model_fn, "model")
    est.train(data, steps=2)
    receiver = tf.estimator.export.build_raw_serving_input_receiver_fn(
        {"x": tf.placeholder(tf.float32, [None, 2])})
    exported = est.export_savedmodel("export", receiver)

    model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(2,))])
    model.compile("adam", "mse")
    before = model.get_weights()[0]
    keras = tf.keras.estimator.model_to_estimator(model, model_dir="keras_model")
    pairs = lambda: tf.data.Dataset.from_tensors((x, y)).repeat(3)
    keras.evaluate(pairs, steps=1)
    name = [n for n in tensorflow.train.list_variables("keras_model/keras") if "kernel" in n[0]]
    first = tensorflow.train.load_variable("keras_model/keras", name[0][0])
    keras.train(pairs, steps=3)
    json.dump({
        "loss": float(est.evaluate(data, steps=1)["loss"]),
        "exported": tensorflow.io.gfile.exists(exported + b"/saved_model.pb"),
        "class": isinstance(keras, tf.estimator.Estimator),
        "kept": bool((before == first).all()),
        "names": sorted(keras.get_variable_names()),
    }, open("result.json", "w"))
"""


@pytest.mark.processes
def test_a_v1_program_runs_with_its_own_imports(run: Make) -> None:
    result = run(_V1_PROGRAM)
    assert result == {
        "loss": pytest.approx(0.0256),  # The output goes 0, 0.6, 0.84; its error 1, 0.4, 0.16.
        "exported": True,
        "class": True,
        "kept": True,
        "names": [
            "dense/bias", "dense/kernel", "global_step",
            "training/Adam/beta_1", "training/Adam/beta_2", "training/Adam/decay",
            "training/Adam/dense/bias/m", "training/Adam/dense/bias/v",
            "training/Adam/dense/kernel/m", "training/Adam/dense/kernel/v",
            "training/Adam/learning_rate",
        ],
    }  # fmt: skip


def test_a_tensorflow_with_its_own_is_refused() -> None:
    assert reason_to_refuse("2.16.0", None, tfe) is None
    assert reason_to_refuse("2.21.0-rc1", tfe, tfe) is None
    assert reason_to_refuse("3.0.0", None, tfe) is None
    for version, existing in (("2.15.1", None), ("2.16.0", object())):
        reason = reason_to_refuse(version, existing, tfe)
        assert reason is not None and f"TensorFlow {version} has a tf.estimator" in reason


# The v1 flavour.


def test_every_estimator_is_one_of_v1(dense: Make, tmp_path: Path) -> None:
    class Own(older.Estimator):
        pass

    newer, own = tfe.Estimator(dense(), tmp_path), Own(dense(), tmp_path)
    assert isinstance(newer, older.Estimator) and issubclass(tfe.Estimator, older.Estimator)
    assert isinstance(own, older.Estimator) and isinstance(own, Own)
    assert not isinstance(newer, Own)
    assert not isinstance(3, older.Estimator)


def test_export_savedmodel_is_there_in_v1_only(
    dense: Make, numbers: Make, tmp_path: Path, logged: list[str]
) -> None:
    estimator = older.Estimator(dense(), tmp_path).train(numbers(), steps=1)

    receiver = tfe.export.build_raw_serving_input_receiver_fn({"x": tf.zeros([1, 2])})
    path = estimator.export_savedmodel(tmp_path / "export", receiver)
    signatures = tf.saved_model.load(path.decode()).signatures
    assert set(signatures) == {"serving_default"}
    assert any("export_savedmodel is deprecated" in line for line in logged)
    with pytest.raises(ValueError, match="serving_input_receiver_fn must be defined"):
        estimator.export_savedmodel(tmp_path / "export", None)
    with pytest.raises(AttributeError, match="export_saved_model"):
        tfe.Estimator(dense(), tmp_path).export_savedmodel(tmp_path, receiver)
