"""Settings of run_pretraining.py: options, presets, and the checks that need no TensorFlow.

defaults below  <  preset of configs_pretraining.yml  <  command line
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import options
from layout import check_fills_pipeline
from options import (
    COUNT,
    COUNT_OR_0,
    DROPOUT,
    NOT_NEGATIVE,
    POSITIVE,
    PRECISIONS,
    SHARE,
    UsageError,
    boolean,
    check_folder,
    check_package,
    one_of,
    option,
)

PRESETS = Path(__file__).with_name("configs_pretraining.yml")
SCHEDULES = ("grouped", "interleaved", "sequential")
OPTIMIZERS = ("AdamW", "AdamWNoBiasCorrection", "LAMB", "LAMBNoBiasCorrection")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All options with their values."""

    config: str = option("demo_tiny_128", str, "preset")

    # Execution.
    training_steps: int = option(150, COUNT_OR_0, "steps, each of --device-iterations updates")
    micro_batch_size: int = option(1, COUNT, "sequences of one forward pass")
    gradient_accumulation: int = option(1, COUNT, "micro-batches of a replica in an update")
    replication_factor: int = option(1, COUNT, "copies of the model in a worker; a launcher wins")
    device_iterations: int = option(1, COUNT, "weight updates in a step of the log")
    devices_per_replica: int | None = option(
        None, COUNT, "devices of one copy of the model", "ipus-per-replica"
    )
    layers_per_device: tuple[int, ...] | None = option(
        None, COUNT_OR_0, "layers on each device; n puts n on each", "layers-per-ipu", nargs="+"
    )
    pipeline_schedule: str = option("grouped", one_of(*SCHEDULES), "order of a pipeline's stages")
    recompute_checkpoint_every_layer: bool = option(
        True, boolean, "compute a layer again for its gradient, rather than keep its activations"
    )
    precision: str = option("32.32", one_of(*PRECISIONS), "bits of computation and of weights")
    stochastic_rounding: bool = option(True, boolean, "round weights of 16 bits by chance")
    random_seed: int = option(5, COUNT_OR_0, "seed of weights, data and dropout")

    # Data.
    dataset: str = option("generated", one_of("generated", "sample", "pretraining"), "data")
    input_files: tuple[str, ...] = option((), str, "TFRecord files or patterns")
    vocab_file: str | None = option(None, str, "vocabulary, one WordPiece in each line")
    sequence_length: int = option(128, COUNT, "words in a sequence")
    mask_tokens: int = option(20, COUNT, "most masked words in a sequence")

    # Model.
    vocab_size: int = option(30522, COUNT, "words in the vocabulary")
    hidden_size: int = option(768, COUNT, "width of the encoder")
    num_hidden_layers: int = option(12, COUNT, "layers of the encoder")
    num_attention_heads: int = option(12, COUNT, "attention heads of a layer")
    intermediate_size: int | None = option(None, COUNT, "width inside a layer, else 4 x hidden")
    max_position_embeddings: int = option(512, COUNT, "rows of the position table")
    layer_norm_eps: float = option(0.001, POSITIVE, "epsilon of layer norms")
    initializer_range: float = option(0.02, POSITIVE, "standard deviation of initial weights")
    hidden_dropout_prob: float = option(0.1, DROPOUT, "dropout of hidden layers")
    attention_probs_dropout_prob: float = option(0.0, DROPOUT, "dropout of attention weights")

    # Optimizer.
    optimizer: str = option("AdamW", one_of(*OPTIMIZERS), "Google has AdamWNoBiasCorrection")
    learning_rate: float = option(0.001, NOT_NEGATIVE, "learning rate, the highest of a schedule")
    lr_schedule: str = option("constant", one_of("constant", "linear"), "learning rate's schedule")
    lr_warmup: float = option(0.0, SHARE, "share of the steps in which the learning rate rises")
    weight_decay: float = option(0.0, NOT_NEGATIVE, "weight decay")
    loss_scaling: float = option(1.0, POSITIVE, "loss scale; the first one if it is automatic")
    auto_loss_scaling: bool = option(False, boolean, "adapt the loss scale")

    # Checkpoints. One is saved at the start and at the end anyway.
    checkpoint_output_dir: str | None = option(None, str, "folder for checkpoints")
    checkpoint_steps: int | None = option(None, COUNT, "steps between checkpoints")
    checkpoint_input_dir: str | None = option(
        None, str, "checkpoint, or a folder of them, to take the first weights from"
    )
    resume_training_from_checkpoint: bool = option(
        False, boolean, "go on from the newest checkpoint of --checkpoint-output-dir"
    )

    # What else to do.
    dry_run: bool = option(False, boolean, "print the plan, and start nothing")
    compile_only: bool = option(False, boolean, "build the graph, and end before the first step")
    evaluate: bool = option(False, boolean, "evaluate after the training: the held-out text")
    predict: tuple[str, ...] = option((), str, "texts whose [MASK]s are predicted at the end")
    export_dir: str | None = option(None, str, "folder for a SavedModel of the encoder")
    disable_progress_bar: bool = option(False, boolean, "log each step in a line of its own")
    profile_dir: str | None = option(None, str, "folder for a profile of some steps")

    @property
    def inner_size(self) -> int:
        return self.intermediate_size or 4 * self.hidden_size

    @property
    def num_updates(self) -> int:
        """Weight updates of the whole training."""
        return self.training_steps * self.device_iterations


# Options of the original without effect here, most of them for IPUs. They take any value.
_IPUS = "it is for IPUs"
WITHOUT_EFFECT = {
    "async-dataloader": _IPUS,
    "custom-ops": _IPUS,
    "dataloader-workers": _IPUS,
    "embedding-serialization-factor": _IPUS,
    "enable-half-first-order-momentum": _IPUS,
    "enable-half-partials": _IPUS,
    "executable-cache-dir": _IPUS,
    "matmul-proportion": _IPUS,
    "optimizer-state-offchip": _IPUS,
    "replicated-tensor-sharding": _IPUS,
    "synthetic-data": _IPUS,
    "wandb": "training.csv has the losses; docs/monitoring.md shows a hook for W&B",
    "wandb-param-steps": _IPUS,
    "packed-data": "each row has one pair of segments",
}


def parse(argv: Sequence[str]) -> tuple[Settings, list[str]]:
    """Returns the settings, and a line for each option that has no effect.

    Raises:
      UsageError: If they cannot be used.
    """
    settings, given, notes = options.parse(
        Settings, argv, presets=PRESETS, without_effect=WITHOUT_EFFECT
    )
    settings = _with_devices(settings, given)
    _check_model(settings)
    _check_schedule(settings)
    _check_checkpoints(settings)
    check_package("tqdm", "bert")
    if settings.profile_dir:
        check_package("matplotlib", "pipeline")
    return settings, notes


def _with_devices(settings: Settings, given: dict[str, Any]) -> Settings:
    """Returns the settings with the layers of each device, and the number of devices."""
    num_layers = settings.num_hidden_layers
    layers = settings.layers_per_device
    if given.get("devices_per_replica") == 1 and "layers_per_device" not in given:
        layers = None  # One device has all layers, whatever the preset says.
    if layers is None:
        layers = (num_layers,)
    if len(layers) == 1 and 0 < layers[0] < num_layers:
        layers = layers * (num_layers // layers[0])
    if sum(layers) != num_layers:
        raise UsageError(
            f"layers_per_device {_listed(layers)} has {sum(layers)} layers, and the model has "
            f"{num_layers}. Give --layers-per-device with numbers that add up to {num_layers}, or "
            "another --num-hidden-layers."
        )
    number = given.get("devices_per_replica", len(layers))
    if number != len(layers):
        raise UsageError(
            f"devices_per_replica is {number}, and layers_per_device {_listed(layers)} is for "
            f"{len(layers)} device(s). Give --layers-per-device with {number} numbers that add up "
            f"to {num_layers}."
        )
    return replace(settings, layers_per_device=layers, devices_per_replica=len(layers))


def _listed(numbers: Sequence[int] | None) -> str:
    return " ".join(map(str, numbers or ()))


def _check_model(settings: Settings) -> None:
    hidden, heads = settings.hidden_size, settings.num_attention_heads
    if hidden % heads:
        divisors = [n for n in range(1, hidden + 1) if hidden % n == 0]
        best = min(divisors, key=lambda n: abs(n - heads))
        raise UsageError(
            f"{heads} attention heads do not divide the hidden size {hidden}. The nearest number "
            f"that does: {best}."
        )
    if settings.sequence_length > settings.max_position_embeddings:
        raise UsageError(
            f"sequence_length is {settings.sequence_length}, and the position table has "
            f"{settings.max_position_embeddings} rows. Shorten the sequences, or set "
            "--max-position-embeddings."
        )
    if settings.mask_tokens > settings.sequence_length:
        raise UsageError(
            f"mask_tokens is {settings.mask_tokens}, more than the {settings.sequence_length} "
            "words of a sequence. Lower --mask-tokens."
        )


def _check_schedule(settings: Settings) -> None:
    stages = num_stages(settings)
    schedule, accumulation = settings.pipeline_schedule, settings.gradient_accumulation
    if stages > 1 and schedule == "interleaved":
        raise UsageError(
            "pipeline_schedule interleaved allows a device one stage only, and device 0 has the "
            "first and the last one. Use grouped or sequential."
        )
    check_fills_pipeline(accumulation, stages, schedule, "--gradient-accumulation")
    if not settings.stochastic_rounding and not settings.precision.endswith(".16"):
        raise UsageError(
            f"--stochastic-rounding is for weights of 16 bits, and precision is "
            f"{settings.precision}. Leave it out, or set --precision 16.16 or bf16.16."
        )
    if settings.auto_loss_scaling and not 1 <= settings.loss_scaling < 2**14:
        raise UsageError(
            f"loss_scaling is {settings.loss_scaling:g}: with --auto-loss-scaling the first scale "
            "is from 1 to below 16384. Set --loss-scaling 1."
        )


def num_stages(settings: Settings) -> int:
    """Returns the stages of the pipeline: those with layers, and the heads'; 1 without one."""
    first, *others = settings.layers_per_device or (0,)
    del first  # The embedding is there, with layers or without.
    return 1 if not others else 2 + sum(number > 0 for number in others)


def _check_checkpoints(settings: Settings) -> None:
    output, source = settings.checkpoint_output_dir, settings.checkpoint_input_dir
    if settings.resume_training_from_checkpoint and not output:
        raise UsageError(
            "--resume-training-from-checkpoint needs the folder to go on in. Give "
            "--checkpoint-output-dir."
        )
    if settings.resume_training_from_checkpoint and source:
        raise UsageError(
            "--checkpoint-input-dir gives the first weights only, and "
            "--resume-training-from-checkpoint goes on in --checkpoint-output-dir. Give one."
        )
    if settings.checkpoint_steps and not output:
        raise UsageError("--checkpoint-steps needs a folder. Give --checkpoint-output-dir.")
    if source and not (list(Path(source).glob("*.index")) or Path(f"{source}.index").exists()):
        raise UsageError(
            f"--checkpoint-input-dir {source} is neither a checkpoint nor a folder of checkpoints: "
            "there is no .index file."
        )
    for name in ("checkpoint_output_dir", "export_dir", "profile_dir"):
        check_folder(name.replace("_", "-"), getattr(settings, name))
    later = [name for name in ("evaluate", "predict", "export_dir") if getattr(settings, name)]
    if settings.compile_only and later:
        raise UsageError(
            f"--compile-only ends before the first step, and --{later[0].replace('_', '-')} is for "
            "what was trained. Leave one of them out."
        )


def check_found_checkpoints(settings: Settings) -> None:
    """Refuses checkpoints of an earlier training, unless this one goes on from them."""
    folder = settings.checkpoint_output_dir
    if not folder or settings.resume_training_from_checkpoint:
        return
    found = sorted(Path(folder).glob("model.ckpt-*.index"))
    if found:
        raise UsageError(
            f"Found previously saved checkpoint(s) in {folder}. Overwriting checkpoints is not "
            "supported.\nGive another --checkpoint-output-dir, or "
            "--resume-training-from-checkpoint to go on from the newest."
        )
