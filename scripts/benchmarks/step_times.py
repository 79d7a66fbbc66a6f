"""Step times: tfdist's Estimator against its bound and its peers, for each model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from contender import Contender, over_gloo, over_grpc, over_mpi, separate
from peers import (
    HOROVOD_TAPE,
    IDEAL,
    MIRRORED_FIT,
    MIRRORED_STEP,
    OLD_ESTIMATOR,
    OLD_PYTHON,
    OURS,
    TORCH_DDP,
    torch_python,
)
from results import Options, Part
from rounds import Race, chosen_models, measure_models
from work import WORKS

BARE = {"gRPC": "bare reduction, gRPC", "Horovod": "bare reduction, Horovod"}
PEERS = (HOROVOD_TAPE, MIRRORED_STEP, MIRRORED_FIT, TORCH_DDP, OLD_ESTIMATOR)
DRAWN = (IDEAL, *OURS.values(), HOROVOD_TAPE, MIRRORED_STEP, TORCH_DDP, OLD_ESTIMATOR)

# The real models are measured by themselves: `applications`.
MODELS = ("cnn", "mlp", "embedding")

ABOUT = (
    "Two workers train with batches of 64 samples each that stay in memory. Ideal is the same step "
    "in both workers at once without a reduction. A bare reduction is that of as many bytes by the "
    "same engine with its own settings: a program that computes first and reduces then takes the "
    "sum of both. The peers have the same layers, optimizers and batches and are started as their "
    "documentation says."
)


def measure(options: Options) -> Part:
    """Measures one model after the other.

    Raises:
      ValueError: If no model of this part was asked for.
      ContenderError: If the ideal fails.
    """
    instead = ", or measure the real models: --only applications"
    races = {
        WORKS[model].title: [
            Race(
                label=model,
                contenders=make_contenders(model, DRAWN if options.is_quick else None),
                steps=WORKS[model].steps_per_turn,
                needed=IDEAL,
            )
        ]
        for model in chosen_models(options, MODELS, instead)
    }
    return measure_models(races, IDEAL, pairs, options, title="Step times", about=ABOUT)


def pairs(model: str) -> Iterator[tuple[str, str, str]]:
    """Yields what is compared of a model: tfdist with the ideal, and the peers with tfdist."""
    for engine, ours in OURS.items():
        yield f"{model}, {engine}: step over ideal", ours, IDEAL
        for peer in PEERS:
            yield f"{model}, {engine}: times as fast as {peer}", peer, ours


def make_contenders(work: str, names: Sequence[str] | None = None) -> Iterator[Contender]:
    """Yields the contenders for a model that are named, or all, in the order of their turns.

    Start each before the next one is asked for: its ports may be taken later.
    """
    return (one for one in _all(work) if names is None or one.name in names)


def _all(work: str) -> Iterator[Contender]:
    yield separate(IDEAL, "own_loop.py", work, "plain")
    yield over_grpc(BARE["gRPC"], "bare_reduction.py", work, "grpc")
    yield over_grpc(OURS["gRPC"], "estimator.py", work, "grpc")
    yield over_mpi(BARE["Horovod"], "bare_reduction.py", work, "0", "horovod")
    yield over_mpi(OURS["Horovod"], "estimator.py", work, "0", "horovod")
    yield over_mpi(HOROVOD_TAPE, "horovod_keras.py", work, "tape")
    yield over_grpc(MIRRORED_STEP, "keras_fit.py", work, "mirrored", "tf_keras", "loop")
    yield over_grpc(MIRRORED_FIT, "keras_fit.py", work, "mirrored", "tf_keras", "fit")
    yield over_gloo(TORCH_DDP, "torch_ddp.py", work, python=torch_python())
    yield over_grpc(OLD_ESTIMATOR, "old_estimator.py", work, python=str(OLD_PYTHON))
