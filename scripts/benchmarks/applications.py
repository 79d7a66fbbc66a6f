"""The real models: the examples' ResNet-20 and BERT mini, with one and two workers, and peers."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace

import application_figures as figures
import peers
from application_figures import IDEAL, ONE_WORKER, contender_name
from contender import Contender, over_gloo, over_grpc, over_mpi, separate
from peers import (
    HOROVOD_FIT,
    MIRRORED_STEP,
    OLD_ESTIMATOR,
    OLD_PYTHON,
    OURS,
    TORCH_DDP,
    torch_python,
)
from results import Options, Part
from rounds import Race, take_rounds
from turn_taking import ContenderError, Running
from work import BERT_MINI, RESNET_20, WORKS

MAX_ROUNDS = 10  # They keep the part at about ten minutes.
# All libraries must train as many values.
NUM_PARAMETERS = {RESNET_20: 269_722, BERT_MINI: 11_267_900}


def measure(options: Options) -> Part:
    """Measures one model after the other.

    A contender that cannot be had, does not start, trains another number of values or ends early is
    named and left out.

    Raises:
      ContenderError: If tfdist over gRPC fails.
    """
    found: dict[str, figures.Groups] = {}
    missing: list[str] = []
    options = replace(options, rounds=min(options.rounds, MAX_ROUNDS))
    for model in NUM_PARAMETERS:
        groups = []
        for contenders in (first_contenders(model), further_contenders(model)):
            race = Race(
                label=WORKS[model].title,
                contenders=contenders,
                steps=WORKS[model].steps_per_turn,
                needed=OURS["gRPC"],
                why_missing=why_missing,
                check=functools.partial(check_parameters, model),
            )
            measured = take_rounds(race, options)
            groups.append(measured.turns)
            missing += measured.missing
        found[model] = groups
    works = {model: WORKS[model] for model in found}
    return figures.make_part(
        found,
        {model: work.batch_size for model, work in works.items()},
        {model: work.title for model, work in works.items()},
        list(dict.fromkeys(missing)),
    )


def check_parameters(model: str, run: Running) -> None:
    """Raises a ContenderError if a contender trains another number of values than tfdist."""
    if run.num_parameters != NUM_PARAMETERS[model]:
        raise ContenderError(
            f"{run.contender.name} trains {run.num_parameters:,} values, and the example "
            f"{NUM_PARAMETERS[model]:,}. Make the models the same."
        )


def first_contenders(model: str) -> Iterator[Contender]:
    """Yields tfdist and Horovod's own way, one and two workers, in the order of their turns.

    Start each before the next one is asked for: its ports may be taken later.
    """
    for count in (1, 2):
        name = contender_name(IDEAL, count)
        yield separate(name, "application.py", model, "none", count=count)
    yield from _ours(model)
    for count in (1, 2):
        yield over_mpi(contender_name(HOROVOD_FIT, count), "horovod_fit.py", model, count=count)


def further_contenders(model: str) -> Iterator[Contender]:
    """Yields tfdist, and one and two workers of the other libraries; see `first_contenders`."""
    yield from _ours(model)
    yield separate(contender_name(MIRRORED_STEP, 1), "mirrored_step.py", model, count=1)
    yield over_grpc(MIRRORED_STEP, "mirrored_step.py", model)
    for count in (1, 2):
        name = contender_name(TORCH_DDP, count)
        yield over_gloo(name, "torch_ddp.py", model, count=count, python=torch_python())
    old = ("old_estimator.py", model)
    yield separate(contender_name(OLD_ESTIMATOR, 1), *old, count=1, python=str(OLD_PYTHON))
    yield over_grpc(OLD_ESTIMATOR, *old, python=str(OLD_PYTHON))


def _ours(model: str) -> Iterator[Contender]:
    yield over_mpi(OURS["Horovod"], "application.py", model, "0", "horovod")
    yield over_grpc(OURS["gRPC"], "application.py", model, "grpc")


def why_missing(name: str) -> str | None:
    """Says in one line why a contender cannot be started, with the fix; None if it can."""
    return peers.why_missing(name.removesuffix(ONE_WORKER))
