"""`model_to_estimator`: an Estimator that trains a compiled Keras model."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import weakref
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1
import tf_keras

from tfdist.estimator import private_keras
from tfdist.estimator.checkpoints import listing
from tfdist.estimator.checkpoints.recovery import set_aside
from tfdist.estimator.checkpoints.warm_start import WarmStartSettings
from tfdist.estimator.checkpoints.writer import CheckpointWriter
from tfdist.estimator.config.run_config import RunConfig, decide_model_dir
from tfdist.estimator.estimator import Estimator
from tfdist.estimator.graph import sessions
from tfdist.estimator.keras.model_fn import KerasModelFn, add_training
from tfdist.estimator.spec import ModeKeys
from tfdist.strategies.saving.checkpoint_files import damage

_FOLDER = "keras"
_NAME = "keras_model.ckpt"


def model_to_estimator(
    keras_model: Any = None,
    keras_model_path: Any = None,
    custom_objects: dict[str, Any] | None = None,
    model_dir: str | os.PathLike[str] | None = None,
    config: RunConfig | None = None,
    checkpoint_format: str | None = "checkpoint",
    metric_names_map: dict[str, str] | None = None,
    export_outputs: dict[str, Any] | None = None,
) -> Estimator:
    """Makes an Estimator from a compiled Keras model of tf_keras (Keras 2).

    The model is rebuilt in the Estimator's graphs, and is not changed. Its present weights are
    written to model_dir/keras, unless that folder has a checkpoint. The first training or
    evaluation starts from them. Features are a tensor, a list in the order of the model's inputs,
    or a dict by the inputs' names. {"features": ..., "sample_weights": ...} weights the loss.
    Labels have the same forms. Predictions are a dict by the outputs' names.

    Args:
      keras_model: A compiled model: sequential, functional, or subclassed with `get_config` and
        `from_config`. From a subclassed model only the structure is taken, not the weights.
      keras_model_path: The path of a saved compiled model; give only one of the two.
      custom_objects: Classes and functions by name, for layers that are not Keras' own.
      model_dir: As in `Estimator`.
      config: As in `Estimator`.
      checkpoint_format: "checkpoint" (also None) saves objects, as `tf.train.Checkpoint` does;
        "saver" saves variables by name and is the only one for subclassed models.
      metric_names_map: A dict from the name of each of the model's metrics to its name in
        `evaluate`.
      export_outputs: A dict of an output's name to a class of ExportOutput. Each is exported under
        that name, in addition to all predictions under "serving_default".

    Raises:
      ValueError: If not exactly one model is given. Also if the model is not compiled, belongs to
        Keras 3, or is of a kind that cannot be rebuilt.
    """
    return convert(Estimator, **locals())


def convert(
    estimator_class: type[Estimator],
    keras_model: Any,
    keras_model_path: Any,
    custom_objects: dict[str, Any] | None,
    model_dir: str | os.PathLike[str] | None,
    config: RunConfig | None,
    checkpoint_format: str | None,
    metric_names_map: dict[str, str] | None,
    export_outputs: dict[str, Any] | None,
) -> Estimator:
    """Converts a model as `model_to_estimator` does, with this class of Estimator."""
    if keras_model is None and not keras_model_path:
        raise ValueError("Either `keras_model` or `keras_model_path` needs to be provided.")
    if keras_model is not None and keras_model_path:
        raise ValueError("Give either `keras_model` or `keras_model_path`, but not both.")
    config = _with_model_dir(config, model_dir)
    model = _load(keras_model_path, custom_objects) if keras_model is None else keras_model
    if keras_model is not None:
        v1.logging.info("Using the Keras model provided.")
    _check_model(model, custom_objects)
    private_keras.make_eager_again(model)
    saves_objects = _saves_objects(checkpoint_format, model)
    model_fn = KerasModelFn(
        model=model,
        compiled=_compiled_with(model),
        custom_objects=custom_objects,
        saves_objects=saves_objects,
        metric_names=metric_names_map,
        export_outputs=export_outputs,
    )
    warm_start = None
    if private_keras.has_known_graph(model):
        warm_start = _first_weights(model_fn, config)
        private_keras.make_eager_again(model)
    elif model.built:
        v1.logging.warning(
            "%s has weights already, but is not functional or sequential: they are not taken over. "
            "The Estimator starts from freshly initialised ones; the model itself keeps its own.",
            model,
        )

    # The Estimator reads the names of a function's arguments.
    def keras_model_fn(features: Any, labels: Any, mode: str) -> Any:
        return model_fn(features, labels, mode)

    return estimator_class(keras_model_fn, config=config, warm_start_from=warm_start)


# Checks of the arguments.


def _with_model_dir(
    config: RunConfig | None, model_dir: str | os.PathLike[str] | None
) -> RunConfig:
    if config is not None and not isinstance(config, RunConfig):
        raise ValueError(f"config must be an instance of RunConfig, but provided {config!r}.")
    config = config if config is not None else RunConfig()
    return config.replace(model_dir=decide_model_dir(model_dir, config))


def _load(path: Any, custom_objects: dict[str, Any] | None) -> Any:
    path = os.fspath(path)
    if path.startswith("gs://") or "storage.googleapis.com" in path:
        raise ValueError(
            f"keras_model_path {path!r} is in Google's storage. Copy the file here and give its "
            "path, or load the model and give it as keras_model."
        )
    v1.logging.info("Loading models from %s", path)
    return tf_keras.models.load_model(path, custom_objects=custom_objects)


def _check_model(model: Any, custom_objects: dict[str, Any] | None) -> None:
    """Raises an error for a model that cannot be rebuilt in another graph."""
    if not isinstance(model, tf_keras.Model):
        what = "a model of Keras 3" if _is_keras_3(type(model)) else repr(model)
        raise ValueError(
            f"keras_model must be a compiled model of tf_keras (Keras 2), got {what}. Build it "
            "with tf_keras, or with tf.keras where TF_USE_LEGACY_KERAS=1."
        )
    if not getattr(model, "optimizer", None):
        raise ValueError(
            "The given keras model has not been compiled yet. Please compile the model with "
            "`model.compile()` before calling `model_to_estimator()`."
        )
    if not _is_subclassed(model):
        return
    try:
        with tf_keras.utils.custom_object_scope(custom_objects or {}):
            type(model).from_config(model.get_config())
    except NotImplementedError:
        raise ValueError(
            "Subclassed `Model`s passed to `model_to_estimator` must implement "
            "`Model.get_config` and `Model.from_config`."
        ) from None


def _is_subclassed(model: Any) -> bool:
    return not (private_keras.has_known_graph(model) or isinstance(model, tf_keras.Sequential))


def _is_keras_3(kind: type) -> bool:
    return any(parent.__module__.split(".")[0] == "keras" for parent in kind.__mro__)


def _saves_objects(checkpoint_format: str | None, model: Any) -> bool:
    if checkpoint_format == "saver":
        return False
    if checkpoint_format not in (None, "checkpoint"):
        raise ValueError(
            f'Checkpoint format must be one of "checkpoint" or "saver". Got {checkpoint_format}'
        )
    if _is_subclassed(model):
        raise ValueError(
            "Object-based checkpoints are currently not supported with subclassed models. Give "
            'checkpoint_format="saver".'
        )
    return True


def _legacy_optimizer(model: Any) -> Any:
    """Returns the model's optimizer, or its older version: the newer kind needs eager execution."""
    optimizer = model.optimizer
    if isinstance(optimizer, (list, tuple)):
        raise ValueError(
            f"the model is compiled with a list of {len(optimizer)} optimizers, and Keras trains "
            "with one. Write model.compile(optimizer=...) with one of them."
        )
    if not isinstance(optimizer, tf_keras.optimizers.Optimizer):
        return optimizer
    fix = (
        "Please set your optimizer as an instance of `tf.keras.optimizers.legacy.Optimizer`, e.g., "
        "`tf.keras.optimizers.legacy.Adam`."
    )
    if not tf.executing_eagerly():
        raise ValueError(f"{fix} Received optimizer type: {type(optimizer)}.")
    name, options = type(optimizer).__name__, ", ".join(private_keras.newer_options(optimizer))
    try:
        if options:
            raise ValueError(options)  # Keras would leave them out without a word.
        legacy = private_keras.to_legacy(optimizer)
    except (AttributeError, TypeError, ValueError):
        raise ValueError(
            f"{f'{name} with {options}' if options else name} has no counterpart among "
            f"tf_keras.optimizers.legacy, which graphs need. {fix}"
        ) from None
    v1.logging.warning(
        "The model's optimizer %s works with eager execution only: the Estimator uses %s with the "
        "same settings.", name, f"{type(legacy).__name__} of "
        "tf_keras.optimizers.legacy",
    )  # fmt: skip
    return legacy


def _compiled_with(model: Any) -> private_keras.CompiledWith:
    """Reads the optimizer's settings. A graph cannot read the variables of another graph later."""
    optimizer = _legacy_optimizer(model)
    try:
        config = optimizer.get_config()
    except (NotImplementedError, AttributeError):
        config = None  # A v1 optimizer, which Keras wraps.
    arguments = private_keras.compile_arguments(model)
    return private_keras.CompiledWith(
        own_optimizer=model.optimizer,
        optimizer=optimizer,
        optimizer_config=config,
        arguments=arguments,
    )


# Initial weights.


def _first_weights(model_fn: KerasModelFn, config: RunConfig) -> WarmStartSettings | None:
    """Writes the model's weights; returns settings by which all variables start from them.

    Workers must build the same graph. So a worker that is not the chief starts from a temporary
    copy, and then all workers get worker 0's values. A task that does not train needs no weights.
    """
    if config.is_chief:
        return _save_weights(model_fn, config, os.path.join(config.model_dir, _FOLDER))
    if config.num_worker_replicas < 2:
        return None
    folder = tempfile.mkdtemp()
    weakref.finalize(model_fn, shutil.rmtree, folder, ignore_errors=True)
    return _save_weights(model_fn, config, folder)


def _save_weights(model_fn: KerasModelFn, config: RunConfig, folder: str) -> WarmStartSettings:
    """Writes a checkpoint of the weights, or uses the existing one."""
    has_values = private_keras.has_weights_to_keep(model_fn.model)
    path = listing.latest(folder)
    what = None if path is None else damage(path)
    if path is not None and what is not None:
        set_aside(path, what)
        path = None
    values = model_fn.model.get_weights() if has_values and not path else None
    with tf.Graph().as_default():
        v1.set_random_seed(config.tf_random_seed)
        v1.train.create_global_step()
        clone = model_fn.build(None, None, ModeKeys.TRAIN)
        names = [weight.name for weight in clone.weights]
        if not path:
            add_training(clone)  # Makes the optimizer's variables.
            path = _write(clone, values, model_fn, os.path.join(folder, _NAME), config)
    return WarmStartSettings(path, [f"{re.escape(name)}$" for name in names])


def _write(clone: Any, values: Any, model_fn: KerasModelFn, path: str, config: RunConfig) -> str:
    """Writes one checkpoint of the current graph, with these weights or fresh ones."""
    scaffold = model_fn.scaffold(clone)
    saver = v1.train.Saver() if scaffold is None else scaffold.saver
    initialize = [v1.global_variables_initializer(), v1.tables_initializer()]
    tf.io.gfile.makedirs(os.path.dirname(path))
    with v1.Session(config=sessions.with_defaults(config.session_config)) as session:
        session.run(initialize)
        for variable, value in zip(clone.weights, values or [], strict=bool(values)):
            # Instead of the initial value.
            session.run(variable.initializer, {variable.initializer.inputs[1]: value})
        writer = CheckpointWriter(lambda: saver)
        saved = writer.save(session, path, write_meta_graph=not model_fn.saves_objects)
    assert saved is not None
    return saved
