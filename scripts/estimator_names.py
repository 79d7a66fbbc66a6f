"""Every public name of tf.estimator and its state in tfdist.estimator: the table for movers.

    estimator_names.py record   (with TensorFlow 2.15) writes names and signatures to the data file
    estimator_names.py table    writes the table into docs/moving-from-tf-estimator.md

The names and the signatures come from the data file, the differences from this one. The tests
hold the code and the table against both.
"""

from __future__ import annotations

import enum
import inspect
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

DATA = Path(__file__).with_name("estimator_2_15.json")
DOCUMENT = Path(__file__).parents[1] / "docs" / "moving-from-tf-estimator.md"
BEGIN, END = "<!-- names: begin -->\n", "<!-- names: end -->\n"

Signature = str  # "name, name=default, *name"

# Not exported, but programs import them; and where tfdist.estimator has them.
UNEXPORTED = {
    "TaskType": "config.run_config.TaskType",
    "read_eval_metrics": "train.early_stopping.read_eval_metrics",
    "SupervisedInputReceiver": "export.SupervisedInputReceiver",
    "UnsupervisedInputReceiver": "export.UnsupervisedInputReceiver",
    "build_supervised_input_receiver_fn_from_input_fn": (
        "export.build_supervised_input_receiver_fn_from_input_fn"
    ),
    "TrainOutput": "export.TrainOutput",
    "tf.keras.estimator.model_to_estimator": "model_to_estimator",
    "tf.compat.v1.keras.estimator.model_to_estimator": "v1.model_to_estimator",
}

# There, but not quite the same.
DIFFERENCES = {
    "Estimator": "also takes train_batch_size, eval_batch_size and predict_batch_size",
    "EstimatorSpec": "also has host_call and eval_metrics",
    "RunConfig": "also has `device`, `parameter_servers`, `save_input`, `save_checkpoints_async` "
    "and `save_snapshot_steps`; several workers need train_distribute",
    "train_and_evaluate": "without an evaluator task worker 0 evaluates; a ps task ends",
    "tpu.TPUEstimator": "for use_tpu=False",
    "tpu.TPUConfig": "its settings have no effect",
    "tpu.InputPipelineConfig": "its settings have no effect",
    "tf.keras.estimator.model_to_estimator": "models of tf_keras only; all weights are kept, not "
    "only the trainable ones",
    "tf.compat.v1.keras.estimator.model_to_estimator": "the same",
}


def out() -> dict[str, str]:
    """Returns the names that are out, and what to take instead."""
    from tfdist.estimator.missing import INSTEAD  # Not importable where `record` runs.

    return INSTEAD


# The data file.


def record() -> None:
    """Writes the public names of this TensorFlow's tf.estimator with their signatures."""
    import tensorflow as tf

    v2, v1 = dict(_walk(tf.estimator)), dict(_walk(tf.compat.v1.estimator))
    keras = {
        "tf.keras.estimator.model_to_estimator": tf.keras.estimator.model_to_estimator,
        "tf.compat.v1.keras.estimator.model_to_estimator": (
            tf.compat.v1.keras.estimator.model_to_estimator
        ),
    }
    older = {name: value for name, value in v1.items() if v2.get(name) is not value}
    data = {
        "v2": {n: signatures(x, v2["Estimator"]) for n, x in sorted(v2.items())},
        "v1": {n: signatures(x, v1["Estimator"]) for n, x in sorted(older.items())},
        "keras": {name: signatures(value) for name, value in keras.items()},
    }
    write(data)


def write(data: dict[str, dict[str, dict[str, Signature]]]) -> None:
    """Writes the data file, a line for each name."""
    parts = [
        f"{json.dumps(part)}: {{\n"
        + ",\n".join(f" {json.dumps(name)}: {json.dumps(found)}" for name, found in names.items())
        + "\n}"
        for part, names in data.items()
    ]
    DATA.write_text("{" + ",\n".join(parts) + "}\n")


def _walk(module: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name in sorted(dir(module)):
        value = getattr(module, name)
        if name.startswith("_"):
            continue
        if isinstance(value, ModuleType) or type(value).__name__ == "TFModuleWrapper":
            if "estimator" in value.__name__:
                yield from _walk(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def signatures(value: Any, estimator: Any = None) -> dict[str, Signature]:
    """Lists arguments and defaults of a function, or of a class ("") and its public methods.

    The methods of `estimator` are not listed again for its subclasses.
    """
    found = {}
    if not inspect.isclass(value) or _is_made_with_arguments(value):
        found[""] = _signature(value)
    if inspect.isclass(value):
        known = estimator and value is not estimator and issubclass(value, estimator)
        for name, method in inspect.getmembers(value, inspect.isfunction):
            if not (name.startswith("_") or (known and hasattr(estimator, name))) and (
                "estimator" in method.__module__
            ):
                found[name] = _signature(method)
    return found


def _is_made_with_arguments(kind: type) -> bool:
    return any({"__init__", "__new__"} & set(vars(parent)) for parent in kind.__mro__[:-1])


def _signature(function: Callable[..., Any]) -> Signature:
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # A built-in exception.
        return "*args, **kwargs"
    shown = []
    for parameter in parameters:
        star = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}.get(parameter.kind.name, "")
        has_default = parameter.default is not parameter.empty
        default = f"={_shown(parameter.default)}" if has_default else ""
        shown.append(star + parameter.name + default)
    return ", ".join(shown)


def _shown(default: Any) -> str:
    """Shows a default so that it is the same text in every process and TensorFlow."""
    if isinstance(default, enum.Enum):
        default = default.value
    if default is None or isinstance(default, (bool, int, float, str)):
        return repr(default)
    if hasattr(default, "as_numpy_dtype"):
        return str(default.name)
    return "<function>" if callable(default) else "<unset>"


def data() -> dict[str, dict[str, dict[str, Signature]]]:
    """Reads the data file: "v2", "v1" (v1 only, or other than in v2) and "keras"."""
    read: dict[str, dict[str, dict[str, Signature]]] = json.loads(DATA.read_text())
    return read


# The table.


def place(name: str, version: str) -> str:
    """Returns the dotted name below tfdist.estimator where a name is."""
    return UNEXPORTED.get(name, f"v1.{name}" if version == "v1" else name)


def rows() -> list[tuple[str, str, str]]:
    """Lists (name, API version, state) in the order of the table."""
    read = data()
    listed = []
    for version, names in (("v2", read["v2"]), ("v1", read["v1"])):
        listed += [(name, version, _state(name, version)) for name in names]
    for name in UNEXPORTED:
        listed.append((name, "Keras" if "keras" in name else "not exported", _state(name, "v2")))
    return listed


def _state(name: str, version: str) -> str:
    if name in out():
        return f"out: {out()[name]}"
    state = "there"
    if place(name, version) != name:
        state += f", as `tfdist.estimator.{place(name, version)}`"
    return f"{state}; {DIFFERENCES[name]}" if name in DIFFERENCES else state


def table() -> str:
    """Returns the table as Markdown."""
    versions = {"v2": "tf.estimator", "v1": "tf.compat.v1.estimator"}
    lines = ["| name | of | here |", "| --- | --- | --- |"]
    lines += [f"| `{name}` | {versions.get(of, of)} | {state} |" for name, of, state in rows()]
    return "\n".join(lines) + "\n"


def write_table() -> None:
    """Replaces the table in the document."""
    text = DOCUMENT.read_text()
    head, rest = text.split(BEGIN)
    DOCUMENT.write_text(head + BEGIN + table() + END + rest.split(END)[1])


if __name__ == "__main__":
    {"record": record, "table": write_table}[sys.argv[1]]()
