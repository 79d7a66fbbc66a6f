"""Settings of run_pretraining.py: options, presets, and the checks that need no TensorFlow.

    defaults below  <  preset of configs_pretraining.yml  <  command line

An option is declared once, as a field of `Settings`. Presets name options with underscores.
"""

import argparse
import difflib
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import Field, dataclass, field, fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

import yaml

PRESETS = Path(__file__).with_name("configs_pretraining.yml")
PROGRAM = "run_pretraining.py"


class UsageError(ValueError):
    """Settings that cannot be used: one or two lines with the value, what is allowed, the fix."""


def option(
    default: Any, kind: Callable[[str], Any], text: str, *aliases: str, nargs: str | None = None
) -> Any:
    """Returns the field of an option.

    Args:
      default: The value without a preset and a command line.
      kind: Converts the text of the command line; an ArgumentTypeError says what is allowed.
      text: The text of --help.
      *aliases: Further names.
      nargs: As in argparse.
    """
    details = {"kind": kind, "text": text, "aliases": aliases, "nargs": nargs}
    return field(default=default, metadata=details)


def count(text: str) -> int:
    return _number(text, int, "an integer of at least 1", lambda value: value >= 1)


def count_or_0(text: str) -> int:
    return _number(text, int, "an integer of at least 0", lambda value: value >= 0)


def rate(text: str) -> float:
    return _number(text, float, "a number of at least 0", lambda value: 0 <= value < float("inf"))


def above_0(text: str) -> float:
    return _number(text, float, "a number above 0", lambda value: 0 < value < float("inf"))


def share(text: str) -> float:
    return _number(text, float, "a number from 0 to 1", lambda value: 0 <= value <= 1)


def dropout(text: str) -> float:
    return _number(text, float, "a number from 0 to below 1", lambda value: 0 <= value < 1)


def _number(text: str, kind: Callable[[str], Any], allowed: str, fits: Callable[..., bool]) -> Any:
    try:
        value = kind(text)
    except ValueError:
        value = None
    if value is None or not fits(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not {allowed}")
    return value


def boolean(text: str) -> bool:
    word = text.lower()
    if word not in ("true", "t", "yes", "y", "1", "false", "f", "no", "n", "0"):
        raise argparse.ArgumentTypeError(f"{text!r} is not true or false")
    return word in ("true", "t", "yes", "y", "1")


def one_of(*names: str) -> Callable[[str], str]:
    def check(text: str) -> str:
        if text not in names:
            raise argparse.ArgumentTypeError(
                f"{text!r} is not one of {', '.join(names)}. Did you mean {nearest(text, names)}?"
            )
        return text

    check.__name__ = "|".join(names)  # For --help.
    return check


def nearest(name: str, names: Iterable[str]) -> str:
    """Returns the name that is most like another one."""
    by_lower = {known.lower(): known for known in names}
    return by_lower[difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.0)[0]]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All options with their values."""

    config: str = option("demo_tiny_128", str, "preset")

    # Execution.
    training_steps: int = option(150, count_or_0, "steps, each of --device-iterations updates")
    micro_batch_size: int = option(1, count, "sequences of one forward pass")
    gradient_accumulation: int = option(1, count, "micro-batches of a replica in an update")
    replication_factor: int = option(
        1, count, "copies of the model in each worker; the launcher's number has precedence"
    )
    device_iterations: int = option(1, count, "weight updates in a step of the log")
    devices_per_replica: int | None = option(
        None, count, "devices of one copy of the model", "ipus-per-replica"
    )
    layers_per_device: tuple[int, ...] | None = option(
        None,
        count_or_0,
        "encoder layers on each device; one number n puts n on each",
        "layers-per-ipu",
        nargs="+",
    )
    pipeline_schedule: str = option(
        "grouped", one_of("grouped", "interleaved", "sequential"), "order of a pipeline's stages"
    )
    recompute_checkpoint_every_layer: bool = option(
        True, boolean, "compute a layer again for its gradient, rather than keep its activations"
    )
    precision: str = option(
        "32.32",
        one_of("32.32", "16.32", "16.16", "bf16.32", "bf16.16"),
        "bits of computation and of weights",
    )
    stochastic_rounding: bool = option(
        True, boolean, "round weights of 16 bits up or down by chance, else to nearest"
    )
    random_seed: int = option(5, count_or_0, "seed of weights, data and dropout")

    # Data.
    dataset: str = option("generated", one_of("generated", "sample", "pretraining"), "data")
    input_files: tuple[str, ...] = option((), str, "TFRecord files or patterns", nargs="+")
    vocab_file: str | None = option(None, str, "vocabulary, one WordPiece in each line")
    sequence_length: int = option(128, count, "words in a sequence")
    mask_tokens: int = option(20, count, "most masked words in a sequence")

    # Model.
    vocab_size: int = option(30522, count, "words in the vocabulary")
    hidden_size: int = option(768, count, "width of the encoder")
    num_hidden_layers: int = option(12, count, "layers of the encoder")
    num_attention_heads: int = option(12, count, "attention heads of a layer")
    intermediate_size: int | None = option(
        None, count, "width inside a layer (default: 4 x hidden size)"
    )
    max_position_embeddings: int = option(512, count, "rows of the position table")
    layer_norm_eps: float = option(0.001, above_0, "epsilon of layer norms")
    initializer_range: float = option(0.02, above_0, "standard deviation of initial weights")
    hidden_dropout_prob: float = option(0.1, dropout, "dropout of hidden layers")
    attention_probs_dropout_prob: float = option(0.0, dropout, "dropout of attention weights")

    # Optimizer.
    optimizer: str = option(
        "AdamW",
        one_of("AdamW", "AdamWNoBiasCorrection", "LAMB", "LAMBNoBiasCorrection"),
        "optimizer; Google's BERT has AdamWNoBiasCorrection",
    )
    learning_rate: float = option(0.001, rate, "learning rate, the highest one of a schedule")
    lr_schedule: str = option("constant", one_of("constant", "linear"), "learning rate's schedule")
    lr_warmup: float = option(0.0, share, "share of the steps in which the learning rate rises")
    weight_decay: float = option(0.0, rate, "weight decay")
    loss_scaling: float = option(1.0, above_0, "loss scale; the first one if it is automatic")
    auto_loss_scaling: bool = option(False, boolean, "adapt the loss scale")

    # Checkpoints.
    checkpoint_output_dir: str | None = option(None, str, "folder for checkpoints")
    checkpoint_steps: int | None = option(
        None, count, "steps between checkpoints; one is saved at the start and at the end anyway"
    )
    checkpoint_input_dir: str | None = option(
        None, str, "checkpoint, or a folder of them, to take the first weights from"
    )
    resume_training_from_checkpoint: bool = option(
        False, boolean, "go on from the newest checkpoint of --checkpoint-output-dir"
    )

    # What else to do.
    dry_run: bool = option(False, boolean, "print the plan, and start nothing")
    compile_only: bool = option(False, boolean, "build the graph, and end before the first step")
    evaluate: bool = option(
        False, boolean, "evaluate after the training: the text that sample holds out, or the input"
    )
    predict: tuple[str, ...] = option(
        (), str, "texts with [MASK] in them, whose words are predicted at the end", nargs="+"
    )
    export_dir: str | None = option(None, str, "folder for a SavedModel of the encoder")
    disable_progress_bar: bool = option(False, boolean, "log each step in a line of its own")
    profile_dir: str | None = option(None, str, "folder for a profile of some steps")
    wandb: bool = option(False, boolean, "record the losses in Weights & Biases")

    @property
    def inner_size(self) -> int:
        return self.intermediate_size or 4 * self.hidden_size

    @property
    def num_updates(self) -> int:
        """Weight updates of the whole training."""
        return self.training_steps * self.device_iterations


# Options of the original that concern the memory and the compiler of an IPU. They take any value.
WITHOUT_EFFECT = (
    "async-dataloader",
    "custom-ops",
    "dataloader-workers",
    "embedding-serialization-factor",
    "enable-half-first-order-momentum",
    "enable-half-partials",
    "executable-cache-dir",
    "matmul-proportion",
    "optimizer-state-offchip",
    "replicated-tensor-sharding",
    "synthetic-data",
    "wandb-param-steps",
)


def parse(argv: Sequence[str]) -> tuple[Settings, list[str]]:
    """Returns the settings, and a line for each option that has no effect.

    Raises:
      UsageError: If they cannot be used.
    """
    given = _parsed(argv)
    name = given.get("config", Settings.config)
    preset = _parsed(_as_arguments(load_preset(name), name))
    values = {**preset, **given}
    unused = [key for key in values if key.replace("_", "-") in WITHOUT_EFFECT]
    notes = [f"--{key.replace('_', '-')} has no effect here: it is for IPUs." for key in unused]
    settings = Settings(**{key: values[key] for key in values if key not in unused})
    settings = _with_devices(settings, given)
    _check_model(settings)
    _check_schedule(settings)
    _check_checkpoints(settings)
    _check_compile_only(settings)
    _check_packages(settings)
    return settings, notes


def load_presets() -> dict[str, dict[str, Any]]:
    """Returns all presets, by name."""
    return {
        name: values
        for name, values in yaml.safe_load(PRESETS.read_text(encoding="utf-8")).items()
        if name != "defaults"
    }


def load_preset(name: str) -> dict[str, Any]:
    presets = load_presets()
    if name not in presets:
        raise UsageError(
            f"{PRESETS.name} has no preset {name!r}. Did you mean {nearest(name, presets)}? All: "
            f"{', '.join(presets)}."
        )
    return presets[name]


def _as_arguments(preset: dict[str, Any], name: str) -> list[str]:
    """Returns a preset as a command line, so that its values are checked in the same way."""
    known = [one.name for one in fields(Settings) if one.name != "config"]
    allowed = {*known, "ipus_per_replica", "layers_per_ipu"}
    allowed |= {one.replace("-", "_") for one in WITHOUT_EFFECT}
    argv: list[str] = []
    for key, value in preset.items():
        if key not in allowed:
            raise UsageError(
                f"preset {name} has an unknown key {key!r}. Did you mean {nearest(key, known)}?"
            )
        texts = value if isinstance(value, list) else [value]
        argv += [f"--{key.replace('_', '-')}", *map(str, texts)]
    return argv


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser; it leaves out what is not given."""
    parser = _Parser(
        prog=PROGRAM,
        description="Pretrain BERT on one machine or on many. A preset gives most values.",
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    for one in fields(Settings):
        names = [f"--{name}" for name in (one.name.replace("_", "-"), *one.metadata["aliases"])]
        parser.add_argument(*names, dest=one.name, **_in_argparse(one))
    for name in WITHOUT_EFFECT:
        parser.add_argument(f"--{name}", nargs="*", help=argparse.SUPPRESS)
    return parser


def _in_argparse(one: Field[Any]) -> dict[str, Any]:
    details: dict[str, Any] = {"type": one.metadata["kind"], "help": one.metadata["text"]}
    if one.metadata["kind"] is boolean:
        return {**details, "nargs": "?", "const": True, "metavar": "true|false"}
    name = one.metadata["kind"].__name__
    return {**details, "nargs": one.metadata["nargs"], "metavar": name if "|" in name else "X"}


def _parsed(argv: Sequence[str]) -> dict[str, Any]:
    """Returns the options that a command line gives."""
    parser = make_parser()
    known, unknown = parser.parse_known_args(list(argv))
    if unknown:
        names = [f"--{one.name.replace('_', '-')}" for one in fields(Settings)]
        name = unknown[0].partition("=")[0]
        alike = difflib.get_close_matches(name, names, n=1)
        hint = f" Did you mean {alike[0]}?" if alike else ""
        raise UsageError(f"unknown argument {unknown[0]!r}.{hint} --help lists all options.")
    values = vars(known)
    return {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}


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
    least = 2 * stages - 1
    if stages > 1 and schedule == "grouped" and accumulation < least:
        raise UsageError(
            f"gradient_accumulation is {accumulation}, and a pipeline of {stages} stages needs at "
            f"least {least} (2 x {stages} - 1).\nSet --gradient-accumulation {least}, or "
            "--pipeline-schedule sequential."
        )
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
        _check_folder(name, getattr(settings, name))


def _check_compile_only(settings: Settings) -> None:
    later = [name for name in ("evaluate", "predict", "export_dir") if getattr(settings, name)]
    if settings.compile_only and later:
        raise UsageError(
            f"--compile-only ends before the first step, and --{later[0].replace('_', '-')} is for "
            "what was trained. Leave one of them out."
        )


def _check_folder(name: str, folder: str | None) -> None:
    """Checks that a folder can be written, or made."""
    if not folder or "://" in folder:
        return
    path = Path(folder).absolute()
    existing = next(one for one in (path, *path.parents) if one.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        option_name = name.replace("_", "-")
        raise UsageError(
            f"--{option_name} {folder} cannot be written: {existing} is not a writable folder."
        )


def _check_packages(settings: Settings) -> None:
    for module, extra, needed in (
        ("tqdm", "bert", True),
        ("wandb", "wandb", settings.wandb),
        ("matplotlib", "pipeline", bool(settings.profile_dir)),
    ):
        if needed and find_spec(module) is None:
            raise UsageError(f"{module} is not installed. Run: pip install 'tfdist[{extra}]'")


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


def refuse(error: Exception) -> NoReturn:
    """Ends the program with one or two lines, before anything has started."""
    print(f"{PROGRAM}: error: {error}", file=sys.stderr)
    sys.exit(2)
