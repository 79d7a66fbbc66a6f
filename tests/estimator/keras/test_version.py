"""The Keras of `tf.keras`, by every way to import it, whatever was imported first."""

import os
import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.processes

# By each way a program finds the class Dense. The order is that of programs that mix them.
_WAYS = """
import importlib
import tensorflow as tf

def every_way():
    found = {"tf.keras": tf.keras.layers.Dense}
    from tensorflow.keras.layers import Dense
    from tensorflow.keras import layers
    found.update({"from tensorflow.keras.layers": Dense, "from tensorflow.keras": layers.Dense})
    found["tf.keras again"] = tf.keras.layers.Dense
    for version in ("v1", "v2"):
        name = f"tensorflow.compat.{version}.keras"
        found[name] = importlib.import_module(name).layers.Dense
        found[f"tf.compat.{version}.keras"] = getattr(tf.compat, version).keras.layers.Dense
    from tensorflow.compat.v1.keras.layers import Dense as of_v1
    from tensorflow.compat.v2.keras.layers import Dense as of_v2
    found.update({"from v1": of_v1, "from v2": of_v2})
    return {way: dense.__module__.split(".")[0] for way, dense in found.items()}
"""
# What comes before `import tfdist.estimator`, each in a process that has TensorFlow already.
_BEFORE = {
    "tensorflow": "",
    "its versions": "import tensorflow.compat.v1, tensorflow.compat.v2",
    "keras": "import keras; keras.layers.Dense(1)",
    "the variable": "os.environ['TF_USE_LEGACY_KERAS'] = '1'",
    "keras 3 by its path": "from tensorflow.keras.layers import Dense; Dense(1)",
    "keras 3 by an alias": "tf.initializers.Zeros",
    "keras 3 by the variable": "os.environ['TF_USE_LEGACY_KERAS'] = '0'",
}


def _run(code: str) -> list[str]:
    """Runs a program without TF_USE_LEGACY_KERAS; returns the lines that it prints."""
    environ = {name: x for name, x in os.environ.items() if name != "TF_USE_LEGACY_KERAS"}
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


def test_after_tfdist_every_way_leads_to_keras_2() -> None:
    [line] = _run(f"import tfdist.estimator\n{_WAYS}\nprint(set(every_way().values()))")
    assert line == "{'tf_keras'}"


@pytest.fixture(scope="module")
def after_tensorflow() -> dict[str, str]:
    """The packages that a program finds which imports TensorFlow first, and its warnings."""
    program = f"""
import json, os, warnings
{_WAYS}
for name, before in {_BEFORE!r}.items():
    if os.fork():
        os.wait()
        continue
    exec(before)
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always")
        import tfdist.estimator
    import keras
    warned = [str(one.message) for one in noted if "tfdist" in str(one.message)]
    try:
        found = sorted(set(every_way().values()))
    except (AttributeError, ImportError):  # Keras 3 has nothing for TensorFlow 1.
        found = sorted({{tf.keras.layers.Dense.__module__.split(".")[0]}})
    print(json.dumps([name, found, keras.__version__[0], warned]), flush=True)
    os._exit(0)
"""
    import json

    return {name: rest for name, *rest in map(json.loads, _run(program))}


@pytest.mark.parametrize("first", ["tensorflow", "its versions", "keras", "the variable"])
def test_after_tensorflow_every_way_leads_to_keras_2(
    after_tensorflow: dict[str, str], first: str
) -> None:
    found, version_of_keras, warned = after_tensorflow[first]
    assert found == ["tf_keras"]
    assert version_of_keras == "3", "import keras is Keras 3 either way"
    assert warned == []


@pytest.mark.parametrize("first", ["keras 3 by its path", "keras 3 by an alias"])
def test_keras_3_that_is_in_use_stays_and_one_line_says_so(
    after_tensorflow: dict[str, str], first: str
) -> None:
    found, _, warned = after_tensorflow[first]
    assert found == ["keras"]
    [line] = warned
    assert "Set TF_USE_LEGACY_KERAS=1, or import tfdist.estimator first" in line


def test_keras_3_that_the_program_chose_stays(after_tensorflow: dict[str, str]) -> None:
    assert after_tensorflow["keras 3 by the variable"] == [["keras"], "3", []]
