"""SavedModels: exports of a checkpoint and its model to a folder named by the time."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.estimator.checkpoints.fit import CheckpointMismatchError, mismatch
from tfdist.estimator.config.run_config import RunConfig
from tfdist.estimator.evaluation.evaluate import metrics_of
from tfdist.estimator.export.outputs import EvalOutput, ExportOutput, TrainOutput
from tfdist.estimator.export.signatures import build_signatures
from tfdist.estimator.graph import sessions
from tfdist.estimator.graph.precision import ModelPrecision
from tfdist.estimator.graph.step import train_op_of
from tfdist.estimator.spec import EstimatorSpec, ModeKeys
from tfdist.strategies.placement import HOST, place
from tfdist.strategies.private_tensorflow import saver_of_checkpoint
from tfdist.strategies.saving.checkpoint_files import damage_named
from tfdist.training.precision import find_precision

ReceiverFn = Callable[[], Any]

# Training comes first: the first graph saves the variables, and its variables are all in the
# checkpoint.
_TAGS = {ModeKeys.TRAIN: "train", ModeKeys.EVAL: "eval", ModeKeys.PREDICT: "serve"}

# The key by which TensorFlow's loader finds the train op; it has no public name.
_TRAIN_OP_KEY = "saved_model_train_op"

_ATTEMPTS = 10
_TIMESTAMP = re.compile(r"[0-9]{10}")


def export(
    *,
    model_fn: Callable[[Any, Any, str], EstimatorSpec],
    create_global_step: Callable[[tf.Graph], tf.Variable],
    config: RunConfig,
    export_dir_base: str | os.PathLike[str],
    receiver_fns: Mapping[str, ReceiverFn | None],
    checkpoint_path: str,
    assets_extra: Mapping[str, str] | None,
    as_text: bool,
    strip_default_attrs: bool,
) -> bytes:
    """Writes a SavedModel with one graph for each mode, in this process alone.

    Only ops that model_fn binds to a device are bound to one, so that the SavedModel loads on any
    machine. The ops of `host_call` and `eval_metrics` are on the first CPU, which every machine
    has.

    `receiver_fns` maps each mode to a function; modes with None are skipped. With
    `strip_default_attrs` ops drop attributes that have their default value. The other arguments are
    as in `Estimator.export_saved_model`.

    Returns:
      The path of a new folder in `export_dir_base`. The folder appears once it is complete.

    Raises:
      ValueError: If no known mode is requested, or the checkpoint lacks variables.
    """
    wanted = {mode: fn for mode in _TAGS if (fn := receiver_fns.get(mode))}
    if not wanted:
        raise ValueError(
            f"No valid modes for exporting found. Got {list(receiver_fns)}. Use ModeKeys.TRAIN, "
            "EVAL or PREDICT."
        )
    folder = timestamped_folder(export_dir_base)
    base, name = os.path.split(folder)
    temporary = os.path.join(base, f"temp-{name}")  # TensorFlow Serving ignores it.
    builder = v1.saved_model.Builder(temporary)
    with _removed_on_error(temporary):
        saves_variables = True
        for mode, receiver_fn in wanted.items():
            with tf.Graph().as_default() as graph:
                v1.set_random_seed(config.tf_random_seed)
                global_step = create_global_step(graph)
                receiver = receiver_fn()
                precision = ModelPrecision(find_precision(config.device.precision), device=None)
                labels = getattr(receiver, "labels", None)
                with precision.around_model():
                    spec = precision.call(model_fn, receiver.features, labels, mode)
                parts = _parts(spec, receiver, global_step)
                parts["strip_default_attrs"] = strip_default_attrs
                with v1.Session(config=sessions.with_defaults(config.session_config)) as session:
                    saver = parts["saver"]
                    if spec.scaffold.saver is None and _lacks(checkpoint_path, global_step):
                        saver = _saver_without(global_step)  # Weights alone, as of another program.
                        session.run(global_step.initializer)
                    _restore(saver, session, checkpoint_path, mode)
                    if saves_variables:
                        builder.add_meta_graph_and_variables(session, [_TAGS[mode]], **parts)
                    else:
                        builder.add_meta_graph([_TAGS[mode]], **parts)
            saves_variables = False
        builder.save(as_text)
        _copy_assets(assets_extra or {}, os.path.join(temporary, "assets.extra"))
        tf.io.gfile.rename(temporary, folder)
    return folder.encode()


@contextmanager
def _removed_on_error(folder: str) -> Iterator[None]:
    """Removes a folder if the `with` block raises an error, such as a full disk."""
    try:
        yield
    except BaseException:
        with suppress(tf.errors.OpError):
            tf.io.gfile.rmtree(folder)
        raise


def _parts(spec: EstimatorSpec, receiver: Any, global_step: tf.Variable) -> dict[str, Any]:
    """Collects the builder's arguments for the current graph."""
    train_op = _train_op(spec, global_step)
    if train_op is not None:
        v1.add_to_collection(_TRAIN_OP_KEY, train_op)
    signatures = build_signatures(
        receiver.receiver_tensors,
        _outputs(spec),
        getattr(receiver, "receiver_tensors_alternatives", None),
        serving_only=spec.mode == ModeKeys.PREDICT,
    )
    local_init_op = spec.scaffold.local_init_op
    if local_init_op is None:
        local_init_op = v1.train.Scaffold.default_local_init_op()
    return {
        "signature_def_map": signatures,
        "assets_collection": v1.get_collection(v1.GraphKeys.ASSET_FILEPATHS),
        "main_op": local_init_op,
        "saver": _saver(spec.scaffold),
    }


def _outputs(spec: EstimatorSpec) -> Mapping[str, ExportOutput]:
    if spec.mode == ModeKeys.TRAIN:
        return {"train": TrainOutput(spec.loss, spec.predictions, spec.eval_metric_ops)}
    if spec.mode == ModeKeys.EVAL:
        return {"eval": EvalOutput(spec.loss, spec.predictions, metrics_of(spec))}
    outputs: Mapping[str, ExportOutput] = spec.export_outputs
    return outputs


def _train_op(spec: EstimatorSpec, global_step: tf.Variable) -> Any:
    """Returns the op of one training step, None in other modes.

    With host_call it is the op that a worker alone would run.
    """
    if spec.mode != ModeKeys.TRAIN or spec.host_call is None:
        return spec.train_op
    return train_op_of(spec, global_step, place(HOST))


def _saver(scaffold: v1.train.Scaffold) -> v1.train.Saver:
    """Returns the saver that restores the checkpoint now, and the export when it is loaded."""
    if isinstance(scaffold.saver, tf.train.Checkpoint):
        return saver_of_checkpoint(scaffold.saver)
    return scaffold.saver or v1.train.Saver(sharded=True)


def _lacks(checkpoint_path: str, variable: tf.Variable) -> bool:
    with damage_named(checkpoint_path):
        return not tf.train.load_checkpoint(checkpoint_path).has_tensor(variable.op.name)


def _saver_without(variable: tf.Variable) -> v1.train.Saver:
    saved = [*v1.global_variables(), *v1.get_collection(v1.GraphKeys.SAVEABLE_OBJECTS)]
    return v1.train.Saver([other for other in saved if other is not variable], sharded=True)


def _restore(saver: v1.train.Saver, session: v1.Session, checkpoint_path: str, mode: str) -> None:
    text = mismatch(saver, checkpoint_path)
    if text is not None:
        raise CheckpointMismatchError(
            f"Could not load all requested variables from checkpoint in mode `{mode}`: {text}"
        )
    with damage_named(checkpoint_path):
        saver.restore(session, checkpoint_path)


def _copy_assets(sources: Mapping[str, str], folder: str) -> None:
    for name, source in sources.items():
        destination = os.path.join(folder, tf.compat.as_str(name))
        tf.io.gfile.makedirs(os.path.dirname(destination))
        tf.io.gfile.copy(source, destination)


def timestamped_folder(base: Any) -> str:
    """Returns the path of a new folder in `base`, named by the seconds since 1970.

    If the folder exists, another process has just exported. Then it waits for the next second.

    Raises:
      RuntimeError: If ten attempts failed.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        folder = os.path.join(tf.compat.as_str(os.fspath(base)), str(int(time.time())))
        if not tf.io.gfile.exists(folder):
            return folder
        time.sleep(1)
        v1.logging.warning(
            "Directory %s already exists; retrying (attempt %d/%d)", folder, attempt, _ATTEMPTS
        )
    raise RuntimeError(
        f"Failed to obtain a unique export directory name in {base!r} after {_ATTEMPTS} attempts."
    )


def exports_in(base: str) -> list[str]:
    """Returns the names of the exports in `base`, oldest first: the seconds at which they began."""
    if not tf.io.gfile.isdir(base):
        return []
    names = [name.rstrip("/") for name in tf.io.gfile.listdir(base)]
    return sorted(name for name in names if _TIMESTAMP.fullmatch(name))


def delete_all_but_newest(base: str, number: int | None) -> None:
    """Deletes the oldest exports in `base` until `number` are left; None keeps all.

    Only folders with a name of ten digits are counted and deleted.
    """
    if number is None:
        return
    for name in exports_in(base)[:-number]:
        folder = os.path.join(base, name)
        try:
            tf.io.gfile.rmtree(folder)
        except tf.errors.NotFoundError as error:
            v1.logging.warning("Can not delete %s recursively: %s", folder, error)
