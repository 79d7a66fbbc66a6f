"""The cost of the training features: tables and ratios with the target of each. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from results import Part, Ratio, Table, quartiles, ratio_of

ENGINES = {"grpc": "gRPC", "horovod": "Horovod"}
TITLES = {"cnn": "CNN", "mlp": "MLP", "resnet-20": "ResNet-20"}

# Features of contenders/host_call.py.
PLAIN, SCALED = "plain", "loss-scale"
ACCUMULATED, BACKWARD = "accumulated", "backward"
OWN_NORM, REPLICA_NORM, KERAS_NORM = "own-norm", "replica-norm", "keras-norm"
HOOKS = "hooks"
NUM_MICRO_BATCHES = 8

# Updates of contenders/update_only.py: optimizer, variables, dtype of the weights, rounding.
UPDATES = {
    "Adam, TensorFlow's fused kernel": ("adam", "8", "float32", "nearest"),
    "AdamW": ("adamw", "8", "float32", "nearest"),
    "LAMB": ("lamb", "8", "float32", "nearest"),
    "LARS": ("lars", "8", "float32", "nearest"),
    "Adam, one variable": ("adam", "1", "float32", "nearest"),
    "LAMB, one variable": ("lamb", "1", "float32", "nearest"),
    "AdamW, bfloat16, nearest": ("adamw", "8", "bfloat16", "nearest"),
    "AdamW, bfloat16, stochastic": ("adamw", "8", "bfloat16", "stochastic"),
    "AdamW, float16, nearest": ("adamw", "8", "float16", "nearest"),
    "AdamW, float16, stochastic": ("adamw", "8", "float16", "stochastic"),
}
SCALE_TARGETS = {"cnn": 1.03, "mlp": 1.08}
LAMB_TARGET, ROUNDING_TARGET = 2.6, 3.5
ACCUMULATION_TARGET, NORM_TARGET, HOOKS_TARGET = 1.03, 1.06, 1.01

# Seconds of each round, by contender.
Times = Mapping[str, Sequence[float]]


@dataclass(frozen=True, kw_only=True)
class Found:
    """The measured times: seconds a step of each round, by feature.

    Attributes:
      steps: By model and engine ("cnn", "grpc"), joined with a space.
      hooks: PLAIN and HOOKS of one worker, by model.
      updates: By the names of UPDATES.
    """

    steps: Mapping[str, Times]
    hooks: Mapping[str, Times]
    updates: Times


def make_part(found: Found, missing: Sequence[str]) -> Part:
    """Makes the part of what was found."""
    return Part(
        name="features",
        title="What the training features cost",
        about=(
            "Steps of two workers with a feature against the same steps without it. Accumulation "
            f"is a step of {NUM_MICRO_BATCHES} micro-batches against {NUM_MICRO_BATCHES - 1} "
            "forward and backward passes of one worker by itself and one plain step. Hooks are all "
            "of tfdist.monitoring but that of Weights & Biases, every 100 steps, in one worker. "
            "An update is that of 8.4 million weights (33.6 MB in float32) in one thread."
        ),
        tables=(_step_table(found), _update_table(found.updates)),
        ratios=(*_step_ratios(found.steps), *_hook_ratios(found.hooks), *_update_ratios(found)),
        missing=tuple(missing),
        data=asdict(found),
    )


def accumulation_bound(times: Times) -> list[float]:
    """Returns the seconds of a step of 8 micro-batches that costs nothing by itself, per round."""
    more = NUM_MICRO_BATCHES - 1
    return [one + more * back for one, back in zip(times[PLAIN], times[BACKWARD], strict=True)]


def _step_ratios(steps: Mapping[str, Times]) -> list[Ratio]:
    made = []
    for key, times in steps.items():
        model, engine = key.split()
        where = f"{TITLES[model]}, {ENGINES[engine]}"
        if SCALED in times:
            name = f"{where}: loss scaling against none"
            target = SCALE_TARGETS.get(model)
            made.append(ratio_of(times[SCALED], times[PLAIN], name=name, target=target))
        if ACCUMULATED in times:
            name = f"{where}: accumulation of {NUM_MICRO_BATCHES} against its passes and one step"
            bound, target = accumulation_bound(times), ACCUMULATION_TARGET
            made.append(ratio_of(times[ACCUMULATED], bound, name=name, target=target))
        if REPLICA_NORM in times:
            name = f"{where}: batch norm over replicas against own statistics"
            shared, own = times[REPLICA_NORM], times[OWN_NORM]
            made.append(ratio_of(shared, own, name=name, target=NORM_TARGET))
            name = f"{where}: batch norm over replicas, times as fast as tf_keras'"
            theirs = times[KERAS_NORM]
            made.append(ratio_of(theirs, shared, name=name, target=1.0, at_most=False))
    return made


def _hook_ratios(hooks: Mapping[str, Times]) -> list[Ratio]:
    return [
        ratio_of(
            times[HOOKS],
            times[PLAIN],
            name=f"{TITLES[model]}, one worker: all hooks against none",
            target=HOOKS_TARGET,
        )
        for model, times in hooks.items()
    ]


def _update_ratios(found: Found) -> list[Ratio]:
    asked = (
        ("LAMB", "Adam, TensorFlow's fused kernel", LAMB_TARGET),
        ("LAMB, one variable", "Adam, one variable", LAMB_TARGET),
        ("AdamW", "Adam, TensorFlow's fused kernel", None),
        ("LARS", "Adam, TensorFlow's fused kernel", None),
        ("AdamW, bfloat16, stochastic", "AdamW, bfloat16, nearest", ROUNDING_TARGET),
        ("AdamW, float16, stochastic", "AdamW, float16, nearest", ROUNDING_TARGET),
    )
    return [
        ratio_of(
            found.updates[one],
            found.updates[other],
            name=f"Update: {one} against {other}",
            target=target,
        )
        for one, other, target in asked
        if one in found.updates
    ]


def _step_table(found: Found) -> Table:
    rows = [
        (f"{TITLES[key.split()[0]]}, 2 workers, {ENGINES[key.split()[1]]}", feature, _ms(seconds))
        for key, times in found.steps.items()
        for feature, seconds in times.items()
    ]
    rows += [
        (f"{TITLES[model]}, one worker", feature, _ms(seconds))
        for model, times in found.hooks.items()
        for feature, seconds in times.items()
    ]
    return Table(title="A step, ms", header=("model", "feature", "ms"), rows=tuple(rows))


def _update_table(updates: Times) -> Table:
    return Table(
        title="An update of 8.4 million weights, one thread, ms",
        header=("update", "ms"),
        rows=tuple((name, _ms(seconds)) for name, seconds in updates.items()),
    )


def _ms(seconds: Sequence[float]) -> str:
    low, middle, high = (1e3 * one for one in quartiles(seconds))
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"
