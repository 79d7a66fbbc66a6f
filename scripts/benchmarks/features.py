"""The cost of the training features: steps with and without each, and updates alone."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

import feature_figures as figures
import work as works
from contender import Contender, one_process, over_grpc, over_mpi
from feature_figures import (
    ACCUMULATED,
    BACKWARD,
    ENGINES,
    HOOKS,
    KERAS_NORM,
    NUM_MICRO_BATCHES,
    OWN_NORM,
    PLAIN,
    REPLICA_NORM,
    SCALED,
    UPDATES,
    Found,
    Times,
)
from results import Options, Part
from turn_taking import ContenderError, running

from tfdist.launch.machine.mpi import horovod_problem

FEATURES = {
    works.CNN: (PLAIN, SCALED, BACKWARD, ACCUMULATED),
    works.MLP: (PLAIN, SCALED, BACKWARD, ACCUMULATED),
    works.RESNET_20: (OWN_NORM, REPLICA_NORM, KERAS_NORM),
}
HOOKED = (works.CNN, works.MLP)
HOOKED_TURNS = 5  # A turn has to hold the hundredth steps, on which hooks act.
UPDATES_PER_TURN = 10


def measure(options: Options) -> Part:
    """Measures the features of each model over both engines, then hooks and updates alone."""
    engines, missing = dict(ENGINES), []
    if (problem := horovod_problem()) is not None:
        missing.append(f"Horovod: {problem} Run: tfdist horovod install")
        del engines["horovod"]
    models = [model for model in options.models if model in FEATURES]
    steps: dict[str, Times] = {}
    for model in models:
        for engine in engines:
            try:
                steps[f"{model} {engine}"] = _measure_steps(model, engine, options)
            except ContenderError as error:
                missing.append(f"{model}, {engine}: {error}")
                options.say(f"features: left out: {missing[-1]}")
    found = Found(
        steps=steps,
        hooks={model: _measure_hooks(model, options) for model in models if model in HOOKED},
        updates=_measure_updates(options),
    )
    return figures.make_part(found, missing)


def _measure_steps(model: str, engine: str, options: Options) -> Times:
    steps = works.WORKS[model].steps_per_turn
    counts = {ACCUMULATED: max(1, steps // NUM_MICRO_BATCHES)}
    contenders = []
    for feature in FEATURES[model]:
        contenders.append((_contender(model, feature, engine), counts.get(feature, steps)))
    options.say(f"features: {model}, {engine}")
    return _take_turns(contenders, options)


def _measure_hooks(model: str, options: Options) -> Times:
    steps = max(100, works.WORKS[model].steps_per_turn * HOOKED_TURNS)
    options.say(f"features: {model}, hooks")
    return _take_turns(
        [(_contender(model, feature, "none"), steps) for feature in (PLAIN, HOOKS)], options
    )


def _measure_updates(options: Options) -> Times:
    """Returns seconds an update; those that are compared with each other run at the same time."""
    times: dict[str, Sequence[float]] = {}
    for names in (list(UPDATES)[:6], list(UPDATES)[6:]):
        options.say(f"features: updates ({', '.join(names)})")
        contenders = [one_process(name, "update_only.py", *UPDATES[name]) for name in names]
        times |= _take_turns([(one, UPDATES_PER_TURN) for one in contenders], options)
    return times


def _contender(model: str, feature: str, engine: str) -> Contender:
    """Returns two workers over an engine; what needs no reduction is a worker by itself."""
    if engine == "none" or feature == BACKWARD:
        return one_process(feature, "host_call.py", model, "0", "none", feature)
    if engine == "horovod":
        return over_mpi(feature, "host_call.py", model, "0", engine, feature)
    return over_grpc(feature, "host_call.py", model, engine, feature)


def _take_turns(contenders: Sequence[tuple[Contender, int]], options: Options) -> Times:
    """Lets contenders take turns of so many steps; the first turn of each warms up."""
    times: dict[str, list[float]] = {one.name: [] for one, _ in contenders}
    with ExitStack() as stack:
        runs = [
            (stack.enter_context(running(one, options.cores)), steps) for one, steps in contenders
        ]
        for run, steps in runs:
            run.take_turn(steps)
        for _ in range(options.rounds):
            for run, steps in runs:
                times[run.contender.name].append(run.take_turn(steps).seconds)
    return times
