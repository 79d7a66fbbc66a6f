"""Step times: tfdist against its bounds and its peers, for each model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import step_figures as figures
from contender import Contender, over_gloo, over_grpc, over_mpi, separate
from peers import (
    HOROVOD_TAPE,
    MIRRORED_FIT,
    MIRRORED_STEP,
    OLD_ESTIMATOR,
    OLD_PYTHON,
    OURS,
    TORCH_DDP,
    torch_python,
    why_missing,
)
from results import Options, Part
from rounds import Race, take_rounds
from step_figures import BARE, IDEAL, MODELS, Turns
from work import WORKS


def measure(options: Options) -> Part:
    """Measures one model after the other.

    A contender that cannot be had, does not start or ends early is named and left out; only the
    ideal is needed for everything else.

    Raises:
      ValueError: If no model of this part was asked for.
      ContenderError: If the ideal fails.
    """
    found: dict[str, Turns] = {}
    missing: list[str] = []
    models = [model for model in options.models if model in MODELS]
    if not models:
        raise ValueError(
            f"{', '.join(options.models)} is no model of this part. Choose from "
            f"{', '.join(MODELS)}, or measure the real models: --only applications."
        )
    for model in models:
        race = Race(
            label=model,
            contenders=make_contenders(model, figures.DRAWN if options.is_quick else None),
            steps=WORKS[model].steps_per_turn,
            needed=IDEAL,
            why_missing=why_missing,
        )
        measured = take_rounds(race, options)
        found[model] = measured.turns
        missing += measured.missing
    titles = {model: WORKS[model].title for model in models}
    return figures.make_part(found, titles, list(dict.fromkeys(missing)))


def make_contenders(work: str, names: Sequence[str] | None = None) -> Iterator[Contender]:
    """Yields the contenders for a model, in the order of their turns.

    Start each before the next one is asked for: its ports may be taken later.

    Args:
      work: The model.
      names: Those to yield; None for all.
    """
    return (one for one in _all(work) if names is None or one.name in names)


def _all(work: str) -> Iterator[Contender]:
    yield separate(IDEAL, "plain.py", work)
    yield over_grpc(BARE["gRPC"], "bare_reduction.py", work, "grpc")
    yield over_grpc(OURS["gRPC"], "host_call.py", work, "grpc")
    yield over_mpi(BARE["Horovod"], "bare_reduction.py", work, "0", "horovod")
    yield over_mpi(OURS["Horovod"], "host_call.py", work, "0", "horovod")
    yield over_mpi(HOROVOD_TAPE, "horovod_tape.py", work)
    yield over_grpc(MIRRORED_STEP, "mirrored_step.py", work)
    yield over_grpc(MIRRORED_FIT, "mirrored_fit.py", work)
    yield over_gloo(TORCH_DDP, "torch_ddp.py", work, python=torch_python())
    yield over_grpc(OLD_ESTIMATOR, "old_estimator.py", work, python=str(OLD_PYTHON))
