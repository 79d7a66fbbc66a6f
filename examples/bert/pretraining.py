"""The Estimator of a pretraining: one device or a pipeline, with the same weights either way."""

import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1
from arguments import Settings
from data import Dataset
from log import MICRO_BATCHES, PREDICTIONS, RULE, Log, SavedNotes, StepLog
from masked_text import NUM_GUESSES, MaskedTexts
from modeling import Bert, State, evaluation_metrics, pretraining_losses
from options import PRECISIONS, UsageError
from plan import Plan, weight_shapes

import tfdist.estimator as tfe
from tfdist import training
from tfdist.monitoring import CsvMetricsHook, StepProfileHook
from tfdist.strategies import strategy_for_run

MEANS = ("mlm_loss", "nsp_loss", "mlm_acc", "nsp_acc")
HELD_OUT_BATCH = 32


def train(
    plan: Plan, dataset: Dataset, held_out: Dataset | None, texts: MaskedTexts | None, log: Log
) -> dict[str, Any]:
    """Trains, then evaluates, predicts and exports if asked; returns the figures."""
    settings = plan.settings
    v1.logging.set_verbosity(v1.logging.ERROR if settings.compile_only else v1.logging.WARN)
    strategy = strategy_for_run(num_replicas=plan.layout.replicas)
    with tempfile.TemporaryDirectory(prefix="bert-") as temporary:
        folder = settings.checkpoint_output_dir or temporary
        figures = train_in(folder, plan, strategy, dataset, log)
        if settings.compile_only or not log.is_shown:
            return figures
        return {**figures, **use_weights(plan, folder, held_out, texts, log)}


def train_in(folder: str, plan: Plan, strategy: Any, dataset: Dataset, log: Log) -> dict[str, Any]:
    """Trains with checkpoints in a folder, and returns the figures."""
    settings = plan.settings
    estimator = make_estimator(plan, strategy, folder)
    first = estimator.latest_checkpoint()
    first_step = int(first.rpartition("-")[2]) if first else 0
    if first:
        step = first_step // settings.device_iterations
        log(f"---- Forwarding Data Loader until Checkpoint Step {step} ----")
    elif settings.resume_training_from_checkpoint:
        log(f"There is no checkpoint in {folder}: the training begins with step 0.")
    steps = StepLog(plan, log, learning_rate(settings), device_names(plan, strategy))
    notes = SavedNotes(log, folder, settings.device_iterations)
    if first_step < settings.num_updates:
        steps.show_allocation()
        estimator.train(
            dataset.input_fn(plan.layout, first_step),
            hooks=[steps, *monitors(settings, first_step)],
            max_steps=settings.num_updates,
            saving_listeners=[notes] if keeps_checkpoints(settings) else None,
        )
    elif settings.training_steps:
        log(f"All {settings.training_steps} training steps are done: nothing is left to train.")
    return {"global_step": max(first_step, settings.num_updates), **steps.figures()}


def use_weights(
    plan: Plan, folder: str, held_out: Dataset | None, texts: MaskedTexts | None, log: Log
) -> dict[str, Any]:
    """Evaluates, predicts and exports if asked, with the newest checkpoint; returns the figures."""
    settings = plan.settings
    encoder = make_single_device_estimator(plan, folder)
    figures: dict[str, Any] = {}
    if held_out is not None:
        metrics = encoder.evaluate(held_out.evaluation_input_fn(HELD_OUT_BATCH))
        figures.update({f"held_out_{name}": round(float(x), 6) for name, x in metrics.items()})
    if texts is not None:
        guesses = texts.guesses(list(encoder.predict(texts.batches)))
        log(PREDICTIONS, *texts.describe(guesses), RULE)
        figures["predicted"] = [[of_word[0][0] for of_word in of_text] for of_text in guesses]
    if settings.export_dir:
        exported = encoder.export_saved_model(settings.export_dir, serving_inputs(settings))
        figures["exported"] = exported.decode()
    return figures


def make_estimator(plan: Plan, strategy: Any, folder: str) -> tfe.Estimator:
    """Returns the Estimator that trains."""
    settings = plan.settings
    is_pipeline = plan.num_stages > 1
    every = settings.checkpoint_steps or settings.training_steps
    keeps = keeps_checkpoints(settings)
    config = tfe.RunConfig(
        model_dir=folder,
        tf_random_seed=settings.random_seed,
        train_distribute=strategy,
        save_checkpoints_steps=max(1, every * settings.device_iterations) if keeps else None,
        save_checkpoints_secs=None,
        save_input=False,  # The input_fn begins at the step by itself.
        keep_checkpoint_max=None,
        log_step_count_steps=None,
        device=device_config(
            settings,
            gradient_accumulation=1 if is_pipeline else settings.gradient_accumulation,
            num_replicas=plan.layout.replicas,
        ),
    )
    make = pipelined_model_fn if is_pipeline else single_device_model_fn
    return tfe.Estimator(make(settings), config=config, warm_start_from=warm_start(settings))


def device_config(settings: Settings, **others: Any) -> tfe.DeviceConfig:
    """Returns the settings of the device: the precision, and others."""
    if settings.precision.endswith(".16"):
        others["stochastic_rounding"] = settings.stochastic_rounding
    return tfe.DeviceConfig(precision=PRECISIONS[settings.precision], **others)


def keeps_checkpoints(settings: Settings) -> bool:
    uses_weights = settings.evaluate or settings.predict or settings.export_dir
    return bool(settings.checkpoint_output_dir or uses_weights)


def make_single_device_estimator(plan: Plan, folder: str) -> tfe.Estimator:
    """Returns an Estimator that evaluates, predicts and exports with checkpoints of any layout."""
    settings = plan.settings
    config = tfe.RunConfig(
        model_dir=folder,
        tf_random_seed=settings.random_seed,
        device=device_config(settings),
    )
    model_fn = single_device_model_fn(settings)
    return tfe.Estimator(model_fn, config=config, warm_start_from=warm_start(settings))


def single_device_model_fn(settings: Settings) -> Callable[..., tfe.EstimatorSpec]:
    """Returns a model_fn with `host_call`: gradients on the device, updates on the host."""

    def model_fn(features: State, mode: str) -> tfe.EstimatorSpec:
        bert = Bert(settings=settings, is_training=mode == tfe.ModeKeys.TRAIN)
        state = bert.encoder_layers(0, settings.num_hidden_layers)(bert.embedding(features))
        if mode == tfe.ModeKeys.PREDICT and "masked_lm_positions" not in features:  # An export.
            hidden = state["hidden"]  # [batch, sequence, hidden]
            outputs = {"sequence_output": hidden, "pooled_output": bert.pooled(hidden)}
            return tfe.EstimatorSpec(mode, predictions=outputs)
        state = bert.heads(state)
        if mode == tfe.ModeKeys.PREDICT:
            shares = tf.nn.softmax(tf.cast(state["word_logits"], tf.float32))
            top = tf.math.top_k(shares, NUM_GUESSES)  # [batch, masks, guesses] each
            outputs = {"words": top.indices, "probabilities": top.values}
            return tfe.EstimatorSpec(mode, predictions=outputs)
        losses = pretraining_losses(state)
        if mode == tfe.ModeKeys.EVAL:
            metrics = evaluation_metrics(state)
            return tfe.EstimatorSpec(mode, loss=losses["loss"], eval_metric_ops=metrics)
        count_micro_batch(losses["loss"], with_updates=True)
        optimizer = make_optimizer(settings)
        gradients, variables = zip(*optimizer.compute_gradients(losses["loss"]), strict=True)

        def update(*on_host: tf.Tensor) -> tf.Operation:
            return optimizer.apply_gradients(zip(on_host, variables, strict=True))

        return tfe.EstimatorSpec(
            mode,
            loss=losses["loss"],
            loss_weight=losses["num_masked"],
            host_call=(update, gradients),
            training_metrics={name: losses[name] for name in MEANS},
        )

    return model_fn


def pipelined_model_fn(settings: Settings) -> Callable[..., tfe.PipelineEstimatorSpec]:
    """Returns a model_fn whose stages are the parts of the model, each on its device."""

    def model_fn(mode: str) -> tfe.PipelineEstimatorSpec:
        bert = Bert(settings=settings, is_training=mode == tfe.ModeKeys.TRAIN)
        stages, devices = stages_of(bert)

        def optimizer_function(state: State) -> tfe.OptimizerFunctionOutput:
            losses = pretraining_losses(state)
            count_micro_batch(losses["loss"], with_updates=False)
            return tfe.OptimizerFunctionOutput(
                make_optimizer(settings),
                losses["loss"],
                loss_weight=losses["num_masked"],
                metrics={name: losses[name] for name in MEANS},
            )

        return tfe.PipelineEstimatorSpec(
            mode=mode,
            computational_stages=stages,
            device_mapping=devices,
            gradient_accumulation_count=settings.gradient_accumulation,
            optimizer_function=optimizer_function,
            pipeline_schedule=settings.pipeline_schedule,
        )

    return model_fn


def stages_of(bert: Bert) -> tuple[list[Callable[[State], State]], list[int]]:
    """Returns the stages of a pipeline and the device of each.

    The embedding is on device 0, with the first layers if that device has some. The heads are back
    on device 0, since the decoder is the embedding.
    """
    first, *others = bert.settings.layers_per_device or ()
    stages = [lambda features: bert.encoder_layers(0, first)(bert.embedding(features))]
    devices = [0]
    end = first
    for device, number in enumerate(others, start=1):
        if number:
            stages.append(bert.encoder_layers(end, end + number))
            devices.append(device)
            end += number
    return [*stages, bert.heads], [*devices, 0]


def count_micro_batch(loss: tf.Tensor, *, with_updates: bool) -> None:
    """Adds the ops that count a micro-batch whose loss is known, for the log.

    `with_updates` puts the op into UPDATE_OPS, which run with each micro-batch. A pipeline finds it
    by itself.
    """
    with v1.variable_scope("", reuse=v1.AUTO_REUSE):
        counter = v1.get_variable(
            MICRO_BATCHES, [], tf.int64, initializer=v1.zeros_initializer(), trainable=False
        )
    with tf.control_dependencies([loss]):
        counted = counter.assign_add(1, read_value=False)
    if with_updates:
        v1.add_to_collection(v1.GraphKeys.UPDATE_OPS, counted)


def make_optimizer(settings: Settings) -> Any:
    """Returns the optimizer, with the original's groups of weights.

    Biases and the weights of norms do not decay. With LAMB biases have no trust ratio either.
    """
    rate = learning_rate(settings)
    biases = ["bias$", "beta$"]
    no_decay = [*biases, "gamma$"]
    corrects_bias = not settings.optimizer.endswith("NoBiasCorrection")
    if settings.optimizer.startswith("AdamW"):
        optimizer: Any = training.AdamW(
            rate,
            weight_decay=settings.weight_decay,
            bias_correction=corrects_bias,
            exclude_from_weight_decay=no_decay,
        )
    else:
        optimizer = training.LAMB(
            rate,
            weight_decay=settings.weight_decay,
            bias_correction=corrects_bias,
            exclude_from_weight_decay=no_decay,
            exclude_from_layer_adaptation=biases,
        )
    if settings.auto_loss_scaling:
        return training.LossScaleOptimizer(
            optimizer, training.HistogramLossScale(initial_scale=settings.loss_scaling)
        )
    if settings.loss_scaling != 1.0:
        return training.LossScaleOptimizer(
            optimizer, training.FixedLossScale(settings.loss_scaling)
        )
    return optimizer


def learning_rate(settings: Settings) -> Callable[..., Any]:
    """Returns the schedule: up to the learning rate, then constant, or linearly down to 0."""
    share = settings.lr_warmup * settings.num_updates
    warm_up = max(1, int(share)) if share else 0  # The first update of a warm-up has rate 0.
    after: Any = settings.learning_rate
    if settings.lr_schedule == "linear" and settings.num_updates > warm_up:
        after = training.linear_decay(after, settings.num_updates, first_step=warm_up)
    return training.warmup(after, warm_up)


def warm_start(settings: Settings) -> tfe.WarmStartSettings | None:
    """Returns the checkpoint with the first weights: weights only, of any program's BERT.

    Raises:
      UsageError: If they are those of another model.
    """
    given = settings.checkpoint_input_dir
    if not given:
        return None
    path = Path(given)
    if path.is_dir():  # By number: step 10 comes after step 9.
        path = max(path.glob("*.index"), key=_step_of).with_suffix("")
    saved = dict(tf.train.list_variables(str(path)))
    for name, shape in weight_shapes(settings).items():
        if saved.get(name) != shape:
            found = f"has shape {saved[name]}" if name in saved else "is missing"
            raise UsageError(
                f"checkpoint {path} is of another model: {name} {found} there, and has shape "
                f"{shape} in this one.\nGive the sizes of the model in the checkpoint."
            )
    return tfe.WarmStartSettings(str(path), vars_to_warm_start="^(bert|cls)/")


def _step_of(path: Path) -> int:
    number = re.search(r"-(\d+)\.index$", path.name)
    return int(number[1]) if number else -1


def device_names(plan: Plan, strategy: Any) -> list[str]:
    """Returns TensorFlow's name of each device of the first replica."""
    first = tf.DeviceSpec.from_string(strategy.extended.worker_devices[0])
    return [
        f"/device:{first.device_type}:{first.device_index + i}"
        for i in range(len(plan.layers_per_device))
    ]


def monitors(settings: Settings, first_step: int) -> list[v1.train.SessionRunHook]:
    """Returns the hooks that record the losses, and a profile."""
    names = ["loss", *MEANS]
    hooks: list[Any] = []
    if settings.checkpoint_output_dir:
        path = Path(settings.checkpoint_output_dir) / "training.csv"
        hooks.append(CsvMetricsHook(path, names, every_n_steps=1))
    if settings.profile_dir:  # The first two steps are not like the others.
        last = min(first_step + 4, settings.num_updates)
        hooks.append(StepProfileHook(settings.profile_dir, min(first_step + 3, last), last))
    return hooks


def serving_inputs(settings: Settings) -> Callable[[], Any]:
    """Returns a function that makes the inputs of an export: int32 [batch, sequence] each."""

    def inputs() -> Any:
        shape = [None, settings.sequence_length]
        names = ("input_ids", "input_mask", "segment_ids")
        tensors = {name: v1.placeholder(tf.int32, shape, name) for name in names}
        return tfe.export.ServingInputReceiver(tensors, tensors)

    return inputs
