"""The real models: the examples' ResNet-20 and BERT mini, with one and two workers, and peers."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from dataclasses import replace

import application_figures as figures
import peers
from application_figures import HOROVOD_FIT, IDEAL, MIRRORED, OLD, OURS, TORCH, contender_name
from peers import OLD_PYTHON, torch_python
from results import Options, Part
from rounds import Race, take_rounds
from turn_taking import (
    Contender,
    ContenderError,
    Running,
    mpirun,
    program,
    tf_configs,
    torch_environ,
)
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
    yield _separate(IDEAL, 1, "application.py", model, "none")
    yield _separate(IDEAL, 2, "application.py", model, "none")
    yield from _ours(model)
    yield _over_mpi(HOROVOD_FIT, 1, "horovod_fit.py", model)
    yield _over_mpi(HOROVOD_FIT, 2, "horovod_fit.py", model)


def further_contenders(model: str) -> Iterator[Contender]:
    """Yields tfdist, and one and two workers of the other libraries; see `first_contenders`."""
    yield from _ours(model)
    yield _separate(MIRRORED, 1, "mirrored_step.py", model)
    yield _over_grpc(MIRRORED, "mirrored_step.py", model)
    for count in (1, 2):
        yield Contender(
            name=contender_name(TORCH, count),
            commands=_each(count, "torch_ddp.py", model, python=torch_python()),
            environ=[torch_environ(count)],
            num_workers=count,
        )
    yield _separate(OLD, 1, "old_estimator.py", model, python=str(OLD_PYTHON))
    yield _over_grpc(OLD, "old_estimator.py", model, python=str(OLD_PYTHON))


def _ours(model: str) -> Iterator[Contender]:
    yield _over_mpi(OURS["Horovod"], 2, "application.py", model, "0", "horovod")
    yield _over_grpc(OURS["gRPC"], "application.py", model, "grpc")


def why_missing(name: str) -> str | None:
    """Says in one line why a contender cannot be started, with the fix; None if it can."""
    return peers.why_missing(
        name.removesuffix(": one"),
        of_horovod=(OURS["Horovod"], HOROVOD_FIT),
        of_torch=(TORCH,),
        of_old_tensorflow=(OLD,),
    )


def _each(
    count: int, script: str, model: str, *arguments: str, python: str = sys.executable
) -> list[list[str]]:
    """Returns the commands of all workers."""
    return [program(script, model, str(index), *arguments, python=python) for index in range(count)]


def _separate(
    library: str, count: int, script: str, *arguments: str, python: str = sys.executable
) -> Contender:
    """Returns workers that know nothing of each other."""
    commands = _each(count, script, *arguments, python=python)
    return Contender(name=contender_name(library, count), commands=commands, num_workers=count)


def _over_grpc(
    library: str, script: str, *arguments: str, python: str = sys.executable
) -> Contender:
    commands = _each(2, script, *arguments, python=python)
    return Contender(name=library, commands=commands, environ=tf_configs(2))


def _over_mpi(library: str, count: int, script: str, *arguments: str) -> Contender:
    command = mpirun(count, program(script, *arguments))
    return Contender(name=contender_name(library, count), commands=[command], num_workers=count)
