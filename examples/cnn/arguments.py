"""The command line of train.py: options, presets, and checks that need no TensorFlow.

A value comes from the command line, else from the preset of `--config`, else from the default.
"""

import argparse
import difflib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import yaml
from architecture import SIZES

PRESETS = Path(__file__).with_name("configs.yml")

DATASETS = ("digits", "photos", "animals", "cifar-10", "cifar-100", "imagenet")
SCHEDULES = ("stepped", "cosine", "polynomial_decay_lr", "exponential")
OPTIMISERS = ("SGD", "momentum", "RMSprop", "LARS", "LAMB")
# Dtype of the computation, and dtype of the weights.
PRECISIONS = ("32.32", "16.32", "16.16", "bf16.32", "bf16.16")
PIPELINE_SCHEDULES = ("interleaved", "grouped", "sequential")

# Of two such options the command line's takes the place of the preset's; two at once are refused.
_ALTERNATIVES = (
    ("epochs", "iterations"),
    ("base_learning_rate", "abs_learning_rate"),
    ("batch_norm", "group_norm"),
    ("loss_scaling", "auto_loss_scaling"),
    ("restore_path", "init_path"),
    ("no_validation", "evaluator"),
)

# What such an option sets is decided by TensorFlow or by the launcher here.
_WITHOUT_EFFECT = {
    "available-memory-proportion": "memory is allocated as it is needed",
    "batches-per-step": "each weight update is a session call of its own",
    "ckpt-all-instances": "weights are equal on all workers, and worker 0 saves them",
    "compile-only": "a graph is not compiled ahead; --dry-run checks the plan",
    "device-iterations": "each weight update is a session call of its own",
    "disable-variable-offloading": "variables are on the host",
    "distributed": "the launcher's variables say whether there are other workers",
    "enable-half-partials": "matrix products add up in float32",
    "fp-exceptions": "a loss that is not a number ends the training",
    "gather-conv-output": "there is no such option of a convolution",
    "half-res-training": "images keep their size",
    "internal-exchange-optimisation-target": "devices have no exchange to plan",
    "max-cross-replica-buffer-size": "gradients are reduced in buckets of tfdist",
    "num-io-tiles": "devices have no tiles",
    "on-demand": "devices are not attached",
    "popdist": "the launcher's variables say whether there are other workers",
    "replicated-tensor-sharding": "optimizer states are on the host, once for each worker",
    "select-ipu": "devices are numbered from the first one",
    "stable-norm": "norms are computed in float32",
    "synthetic-data": "use --generated-data",
    "use-popdist": "the launcher's variables say whether there are other workers",
    "xla-recompute": "use --enable-recomputation",
}


def refuse(message: str) -> NoReturn:
    """Ends the program with exit code 2 and one line."""
    print(f"{Path(sys.argv[0]).name}: error: {message}", file=sys.stderr)
    raise SystemExit(2)


class OneLineParser(argparse.ArgumentParser):
    """A parser whose errors are one line, with the nearest name for an unknown one."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(
            allow_abbrev=False,
            argument_default=argparse.SUPPRESS,  # Only what is given: see `parse_arguments`.
            usage="%(prog)s [options]",
            formatter_class=argparse.RawTextHelpFormatter,
            **settings,
        )
        self.defaults: dict[str, Any] = {}
        self.flags: list[str] = []

    def add(self, flag: str, default: Any, text: str, **settings: Any) -> None:
        """Adds an option."""
        dest = flag.removeprefix("--").replace("-", "_")
        self.defaults[dest] = default
        self.flags.append(flag)
        if default is not None and "action" not in settings:
            shown = " ".join(map(str, default)) if isinstance(default, tuple) else default
            text += f" (default: {shown})"
        self.add_argument(flag, dest=dest, help=text, **settings)

    def error(self, message: str) -> NoReturn:
        unknown = message.removeprefix("unrecognized arguments: ")
        if unknown != message:
            flag = unknown.split()[0].partition("=")[0]
            message = f"unknown option {flag}.{nearest(flag, self.flags)} --help shows all"
        refuse(message.removeprefix("argument "))


def nearest(name: str, known: Iterable[str]) -> str:
    """Returns a sentence with the known name that looks like an unknown one, or nothing."""
    found = difflib.get_close_matches(name, list(known), 1, cutoff=0.5)
    return f" Did you mean {found[0]}?" if found else ""


def one_of(*allowed: Any) -> Callable[[str], Any]:
    """Makes the type of an option: one of some words or numbers, in any case."""

    def parse(text: str) -> Any:
        for value in allowed:
            if text.lower() == str(value).lower():
                return value
        words = [str(value) for value in allowed]
        raise argparse.ArgumentTypeError(
            f"{text!r} is unknown.{nearest(text, words)} Known: {', '.join(words)}"
        )

    return parse


def number(
    kind: type, *, above: float = float("-inf"), least: float = float("-inf"), most: float = 1e30
) -> Callable[[str], Any]:
    """Makes the type of an option: a number in a range."""

    def parse(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            kinds = {int: "an integer", float: "a number"}
            raise argparse.ArgumentTypeError(f"{text!r} is not {kinds[kind]}") from None
        if not (above < value and least <= value <= most):
            rules = [f"above {above:g}"] if above > float("-inf") else []
            rules += [f"at least {least:g}"] if least > float("-inf") else []
            rules += [f"at most {most:g}"] if most < 1e30 else []
            raise argparse.ArgumentTypeError(f"{text} must be {' and '.join(rules) or 'finite'}")
        return value

    return parse


_COUNT = number(int, least=1)
_SHARE = number(float, least=0, most=1)
_NOT_NEGATIVE = number(float, least=0)
_POSITIVE = number(float, above=0)


def make_parser() -> OneLineParser:
    """Makes the parser of train.py."""
    parser = OneLineParser(description="Train a ResNet, alone or with other workers.")
    add = parser.add
    add("--config", None, f"preset of {PRESETS.name}; options of the command line win")
    add("--dry-run", False, "print the plan and end", action="store_true")
    _add_model(add)
    _add_data(add)
    _add_batch(add)
    _add_optimizer(add)
    _add_devices(add)
    _add_files(add)
    for flag, reason in _WITHOUT_EFFECT.items():
        add(f"--{flag}", None, f"no effect: {reason}", nargs="*", metavar="X")
    return parser


def _add_model(add: Callable[..., None]) -> None:
    add("--model", "resnet", "the model", type=one_of("resnet"))
    add("--model-size", 8, f"one of {', '.join(map(str, SIZES))}", type=one_of(*SIZES))
    add("--batch-norm", None, "batch norm (the default)", action="store_true")
    add("--group-norm", None, "group norm, which does not depend on batches", action="store_true")
    add("--groups", None, "groups of channels (default: 8; 32 from size 18 on)", type=_COUNT)
    add("--BN-decay", 0.97, "decay of the moving averages", type=_SHARE)
    add(
        "--BN-span",
        1,
        'neighbouring replicas that share batch statistics, or "all"',
        type=lambda text: 0 if text == "all" else _COUNT(text),
    )


def _add_data(add: Callable[..., None]) -> None:
    add("--dataset", "digits", f"one of {', '.join(DATASETS)}", type=one_of(*DATASETS))
    add("--data-dir", None, "folder of the published files, for cifar and imagenet")
    add("--generated-data", False, "one random batch, again and again", action="store_true")
    add("--augment", False, "random crops, and flips where they make sense", action="store_true")
    add("--eight-bit-io", False, "copy images to the device as bytes", action="store_true")
    add("--dataset-benchmark", False, "measure the input alone", action="store_true")


def _add_batch(add: Callable[..., None]) -> None:
    add("--batch-size", 32, "images in a micro-batch", type=_COUNT)
    add("--gradient-accumulation-count", 1, "micro-batches of a replica in a step", type=_COUNT)
    add("--replicas", 1, "copies of the model in this process; `tfdist run` wins", type=_COUNT)
    add("--epochs", 5, "passes over the images", type=_POSITIVE)
    add("--iterations", None, "weight updates, in place of --epochs", type=_COUNT)
    add("--seed", 0, "seed of weights and of the order of images", type=number(int, least=0))


def _add_optimizer(add: Callable[..., None]) -> None:
    add("--optimiser", "momentum", f"one of {', '.join(OPTIMISERS)}", type=one_of(*OPTIMISERS))
    add(
        "--momentum", 0.9, "of momentum, RMSprop and LARS", type=number(float, least=0, most=0.9999)
    )
    add("--rmsprop-decay", 0.9, "decay of the mean square", type=_SHARE)
    add("--rmsprop-epsilon", 1e-3, "added to the mean square", type=_POSITIVE)
    add("--weight-decay", 1e-4, "times the weight, added to the gradient", type=_NOT_NEGATIVE)
    add("--lars-eeta", 0.001, "factor of the trust ratio", type=_POSITIVE)
    add("--lars-epsilon", 0.0, "added to the trust ratio's divisor", type=_NOT_NEGATIVE)
    add("--lars-weight-decay", None, "in place of --weight-decay", type=_NOT_NEGATIVE)
    add(
        "--lars-skip-list",
        ("beta", "gamma", "bias"),
        "names of weights without decay and trust ratio",
        nargs="*",
    )
    add("--lr-schedule", "cosine", f"one of {', '.join(SCHEDULES)}", type=one_of(*SCHEDULES))
    add(
        "--base-learning-rate",
        -10,
        "N: the rate is 2**N times the global batch",
        type=number(int, least=-40, most=10),
    )
    add("--abs-learning-rate", None, "the rate itself", type=_POSITIVE)
    add("--warmup-epochs", 0.0, "epochs in which the rate rises from 0", type=_NOT_NEGATIVE)
    add(
        "--learning-rate-schedule",
        (0.5, 0.75, 0.875),
        "stepped: shares of the training at which the rate falls",
        nargs="+",
        type=_SHARE,
    )
    add(
        "--learning-rate-decay",
        (0.1, 0.01, 0.001),
        "stepped: the factors from there on; exponential: the factor at the end",
        nargs="+",
        type=_POSITIVE,
    )
    add("--poly-lr-decay-power", 2.0, "power of polynomial_decay_lr", type=_POSITIVE)
    add("--abs-end-learning-rate", 0.0, "last rate of cosine and polynomial", type=_NOT_NEGATIVE)
    add("--label-smoothing", 0.0, "share of a label that all classes get", type=_SHARE)
    add("--loss-scaling", None, "scale of the loss (default: 128 in float16)", type=_POSITIVE)
    add("--auto-loss-scaling", None, "a scale that adapts", action="store_true")
    add("--weight-avg-N", (), "mean of the last N checkpoints", nargs="+", type=_COUNT)
    add("--weight-avg-exp", (), "exponential mean with this decay", nargs="+", type=_SHARE)


def _add_devices(add: Callable[..., None]) -> None:
    add(
        "--precision",
        "32.32",
        f"dtypes of computation and weights: {', '.join(PRECISIONS)}",
        type=one_of(*PRECISIONS),
    )
    add("--no-stochastic-rounding", False, "half weights to nearest", action="store_true")
    add("--pipeline", False, "stages of the model on devices of their own", action="store_true")
    add("--shards", 1, "devices of a replica", type=_COUNT)
    add("--pipeline-splits", (), "points behind which the model is cut", nargs="+")
    add(
        "--pipeline-schedule",
        "interleaved",
        f"one of {', '.join(PIPELINE_SCHEDULES)}",
        type=one_of(*PIPELINE_SCHEDULES),
    )
    add("--enable-recomputation", False, "compute activations twice", action="store_true")


def _add_files(add: Callable[..., None]) -> None:
    add("--log-dir", "logs", "the folder of the run is made in it")
    add("--name-suffix", "", "end of the name of the folder of the run")
    add("--logs-per-epoch", 16.0, "log lines in an epoch", type=_POSITIVE)
    add("--log-freq", None, "steps between two log lines", type=_COUNT)
    add("--log-all-instances", False, "a log of each worker", action="store_true")
    add("--ckpts-per-epoch", 1.0, "checkpoints in an epoch", type=_POSITIVE)
    add("--no-validation", False, "leave out the validation at the end", action="store_true")
    add(
        "--evaluator",
        False,
        "the evaluator of `tfdist run --evaluator` validates, beside the training",
        action="store_true",
    )
    add("--restore-path", None, "folder of a run, or a checkpoint, to go on with")
    add("--init-path", None, "checkpoint with the first weights")
    add("--profile", False, "time and picture of steps 10 to 12", action="store_true")
    add("--wandb", False, "record the run with Weights & Biases", action="store_true")


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Parses a command line; ends the program with one line where it is wrong."""
    parser = make_parser()
    given = vars(parser.parse_args(argv))
    for names in _ALTERNATIVES:
        _refuse_both(given, names)
    preset = _read_preset(given["config"], parser) if "config" in given else {}
    for names in _ALTERNATIVES:
        if given.keys() & set(names):
            preset = {name: value for name, value in preset.items() if name not in names}
    chosen = argparse.Namespace(**{**parser.defaults, **preset, **given})
    for flag, reason in _WITHOUT_EFFECT.items():
        if vars(chosen).pop(flag.replace("-", "_")) is not None:
            print(f"--{flag} has no effect: {reason}.", file=sys.stderr)
    _complete(chosen, {**preset, **given})
    _check(chosen, given)
    return chosen


def _refuse_both(given: Mapping[str, Any], names: Sequence[str]) -> None:
    both = [f"--{name.replace('_', '-')}" for name in names if name in given]
    if len(both) > 1:
        refuse(f"{' and '.join(both)} contradict each other: give one of them")


def _read_preset(name: str, parser: OneLineParser) -> dict[str, Any]:
    presets = yaml.safe_load(PRESETS.read_text(encoding="utf-8"))
    if name not in presets:
        refuse(
            f"--config {name} is unknown.{nearest(name, presets)} {PRESETS.name} has: "
            f"{', '.join(presets)}"
        )
    argv: list[str] = []
    for key, value in presets[name].items():
        if f"--{key}" not in parser.flags:
            names = [flag.removeprefix("--") for flag in parser.flags]
            refuse(f"preset {name} has the unknown key {key!r}.{nearest(key, names)}")
        values = value if isinstance(value, list) else [value]
        argv += [f"--{key}"] if value is True else [f"--{key}", *map(str, values)]
    preset = vars(parser.parse_args(argv))  # By the rules of the command line.
    for names in _ALTERNATIVES:
        _refuse_both(preset, names)
    return preset


def _complete(chosen: argparse.Namespace, given: Mapping[str, Any]) -> None:
    """Sets the values that follow from others."""
    if "iterations" in given:
        chosen.epochs = None
    if "abs_learning_rate" in given:
        chosen.base_learning_rate = None
    chosen.norm = "group" if chosen.group_norm else "batch"
    if chosen.groups is None:
        chosen.groups = 32 if chosen.model_size in (18, 34, 50) else 8
    if chosen.loss_scaling is None and chosen.precision.startswith("16."):
        chosen.loss_scaling = 128.0
    if chosen.lars_weight_decay is None:
        chosen.lars_weight_decay = chosen.weight_decay
    del chosen.batch_norm, chosen.group_norm


def _check(chosen: argparse.Namespace, given: Mapping[str, Any]) -> None:
    """Refuses options that do not go together.

    Args:
      chosen: All options.
      given: Those of the command line. A preset may have one that another takes the sense of.
    """
    for name, needed in {"groups": "--group-norm", "BN_span": "--batch-norm"}.items():
        if name in given and chosen.norm not in needed:
            refuse(f"--{name.replace('_', '-')} is for {needed}: leave it out, or add {needed}")
    first_filters = 64 if chosen.model_size in (18, 34, 50) else 16
    if chosen.norm == "group" and first_filters % chosen.groups:
        fitting = [str(n) for n in range(1, first_filters + 1) if first_filters % n == 0]
        refuse(
            f"--groups {chosen.groups} does not divide the {first_filters} filters of the first "
            f"convolution: {', '.join(fitting)} do"
        )
    if len(chosen.learning_rate_schedule) != len(chosen.learning_rate_decay) and (
        chosen.lr_schedule == "stepped"
    ):
        refuse(
            f"--learning-rate-schedule has {len(chosen.learning_rate_schedule)} points and "
            f"--learning-rate-decay {len(chosen.learning_rate_decay)} factors: give as many"
        )
    if sorted(set(chosen.learning_rate_schedule)) != list(chosen.learning_rate_schedule):
        refuse("the points of --learning-rate-schedule must increase, as in 0.5 0.75 0.875")
    if chosen.optimiser == "RMSprop" and chosen.precision.endswith(".16"):
        refuse(
            f"--optimiser RMSprop does not keep small updates of half weights (--precision "
            f"{chosen.precision}): use SGD, momentum, LARS or LAMB, or {chosen.precision[:-2]}32"
        )
    if chosen.no_stochastic_rounding and not chosen.precision.endswith(".16"):
        refuse(
            f"--no-stochastic-rounding is for weights in half precision, and --precision is "
            f"{chosen.precision}: leave it out, or use 16.16 or bf16.16"
        )
    if not chosen.pipeline:
        for name in ("shards", "pipeline_splits", "pipeline_schedule"):
            if name in given and chosen.__dict__[name] not in (1, ()):
                refuse(f"--{name.replace('_', '-')} is for a pipeline: add --pipeline")
