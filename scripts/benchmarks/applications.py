"""The real models: the examples' ResNet-20 and BERT mini, with one and two workers, and peers."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace

from contender import Contender, over_gloo, over_grpc, over_mpi, separate
from peers import (
    HOROVOD_FIT,
    IDEAL,
    MIRRORED_STEP,
    OLD_ESTIMATOR,
    OLD_PYTHON,
    OURS,
    TORCH_DDP,
    torch_python,
)
from results import Options, Part
from rounds import Race, measure_models
from turn_taking import ContenderError, Running
from work import BERT_MINI, RESNET_20, WORKS

MAX_ROUNDS = 10  # They keep the part at about ten minutes.
# All libraries must train as many values.
NUM_PARAMETERS = {RESNET_20: 269_722, BERT_MINI: 11_267_900}
PEERS = (HOROVOD_FIT, MIRRORED_STEP, TORCH_DDP, OLD_ESTIMATOR)
ONE_WORKER = ": one worker"
ALONE = f"tfdist{ONE_WORKER}"  # the same over both engines

ABOUT = (
    "ResNet-20 (64 images of 32x32 a worker) and BERT mini (8 sequences of 128 words a worker, 4 "
    "layers, 256 wide), each worker on a core of its own. tfdist trains the model_fn of "
    "examples/cnn and of examples/bert. The peers have the same layers, sizes, losses and update "
    "rules, checked by their number of parameters. Ideal is two workers of tfdist that do not "
    "reduce. Efficiency is the throughput of two workers over twice that of one worker of the same "
    "library. Since all libraries at once do not fit into 24 GB, Horovod's fit takes turns with "
    "tfdist first, and then the others do; at most 10 rounds."
)


def measure(options: Options) -> Part:
    """Measures one model after the other.

    Raises:
      ContenderError: If the ideal fails, or tfdist over gRPC.
    """
    options = replace(options, rounds=min(options.rounds, MAX_ROUNDS))
    races = {
        WORKS[model].title: [
            Race(
                label=WORKS[model].title,
                contenders=contenders,
                steps=WORKS[model].steps_per_turn,
                needed=needed,
                check=functools.partial(check_parameters, model),
            )
            for contenders, needed in (
                (first_contenders(model), IDEAL),
                (further_contenders(model), OURS["gRPC"]),
            )
        ]
        for model in NUM_PARAMETERS
    }
    return measure_models(races, IDEAL, pairs, options, title="The real models", about=ABOUT)


def pairs(model: str) -> Iterator[tuple[str, str, str]]:
    """Yields what is compared of a model: the efficiencies, and the peers with tfdist."""
    for library in (IDEAL, *OURS.values(), *PEERS):
        alone = ALONE if library in (IDEAL, *OURS.values()) else f"{library}{ONE_WORKER}"
        yield f"{model}: efficiency of two workers, {library}", alone, library
    for engine, ours in OURS.items():
        for peer in PEERS:
            yield f"{model}, {engine}: times as fast as {peer}", peer, ours


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
    for count, name in ((1, ALONE), (2, IDEAL)):
        yield separate(name, "estimator.py", model, "none", count=count)
    yield from _ours(model)
    for count, name in ((1, HOROVOD_FIT + ONE_WORKER), (2, HOROVOD_FIT)):
        yield over_mpi(name, "horovod_keras.py", model, "fit", count=count)


def further_contenders(model: str) -> Iterator[Contender]:
    """Yields tfdist, and one and two workers of the other libraries; see `first_contenders`."""
    yield from _ours(model)
    step = ("keras_fit.py", model, "mirrored", "tf_keras", "loop")
    yield separate(MIRRORED_STEP + ONE_WORKER, *step, count=1)
    yield over_grpc(MIRRORED_STEP, *step)
    for count, name in ((1, TORCH_DDP + ONE_WORKER), (2, TORCH_DDP)):
        yield over_gloo(name, "torch_ddp.py", model, count=count, python=torch_python())
    old = ("old_estimator.py", model)
    yield separate(OLD_ESTIMATOR + ONE_WORKER, *old, count=1, python=str(OLD_PYTHON))
    yield over_grpc(OLD_ESTIMATOR, *old, python=str(OLD_PYTHON))


def _ours(model: str) -> Iterator[Contender]:
    yield over_mpi(OURS["Horovod"], "estimator.py", model, "0", "horovod")
    yield over_grpc(OURS["gRPC"], "estimator.py", model, "grpc")
