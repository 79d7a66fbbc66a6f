"""Pipelines against those of PyTorch: the same networks, cuts and micro-batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pipeline_peer_figures as figures
import pipeline_work as works
from contender import Contender, one_process, program, torch_environ
from peers import torch_python, why_missing
from pipeline_peer_figures import (
    GPIPE,
    MICRO_BATCHES,
    ONE_F_ONE_B,
    OURS,
    OURS_4,
    PLAIN,
    TORCH_PLAIN,
    Found,
)
from results import Options, Part
from rounds import Race, take_rounds
from turn_taking import ContenderError, running

# So many take about half a second.
MICRO_BATCHES_PER_TURN = {works.DENSE: 32, works.ENCODER: 16}
MEMORY_TURNS = 4
# It has no worker for each of several CPU devices (torchgpipe/worker.py), so its stages take turns.
NO_TORCHGPIPE = "torchgpipe: it has one thread for all stages on CPUs, so nothing overlaps."
# oneDNN's allocator keeps what a step has had; the C library's returns it.
RETURNS_MEMORY = {"TF_ENABLE_ONEDNN_OPTS": "0"}


def measure(options: Options) -> Part:
    """Measures one network after the other, with each number of micro-batches.

    Raises:
      ContenderError: If plain TensorFlow fails.
    """
    missing: list[str] = [NO_TORCHGPIPE]
    found = []
    for name, title in works.TITLES.items():
        step_seconds: dict[int, figures.Times] = {}
        for m in MICRO_BATCHES:
            race = Race(
                label=f"{title}, m = {m}",
                contenders=make_contenders(name, m),
                steps=MICRO_BATCHES_PER_TURN[name] // m,
                needed=PLAIN,
                why_missing=why_missing,
            )
            measured = take_rounds(race, options)
            missing += measured.missing
            step_seconds[m] = {
                one: [turn.seconds for turn in turns] for one, turns in measured.turns.items()
            }
        step_bytes = measure_memory(name, options, missing)
        found.append(Found(title=title, step_seconds=step_seconds, step_bytes=step_bytes))
    return figures.make_part(found, list(dict.fromkeys(missing)))


def measure_memory(name: str, options: Options, missing: list[str]) -> Mapping[str, int]:
    """Returns each contender's memory of a step with the most micro-batches, in bytes."""
    step_bytes = {}
    for contender in make_contenders(name, max(MICRO_BATCHES), RETURNS_MEMORY):
        if why_missing(contender.name):
            continue
        options.say(f"{works.TITLES[name]}, memory of {contender.name}")
        try:
            with running(contender, options.cores) as run:
                run.take_turn(2)
                # A turn that touches memory for the first time has more than a step needs.
                step_bytes[contender.name] = min(
                    run.take_turn(1, watches_memory=True).step_bytes for _ in range(MEMORY_TURNS)
                )
        except ContenderError as error:
            missing.append(f"{works.TITLES[name]}, memory: {error}")
    return step_bytes


def make_contenders(
    name: str, micro_batches: int, environ: Mapping[str, str] | None = None
) -> Iterator[Contender]:
    """Yields all contenders for a network, in the order of their turns.

    Start each before the next one is asked for: its port may be taken later.

    Args:
      name: The network.
      micro_batches: Of a step.
      environ: Variables for those on TensorFlow.
    """
    ours = ("pipeline_step.py", name, str(micro_batches))
    torch = ("torch_pipeline.py", name, str(micro_batches))
    python = torch_python()
    for num_stages, title in ((1, PLAIN), (2, OURS), (4, OURS_4)):
        if micro_batches >= 2 * num_stages - 1:  # Fewer are refused.
            yield one_process(title, *ours, str(num_stages), environ=environ)
    yield one_process(TORCH_PLAIN, *torch, "0", "plain", python=python)
    for title, schedule in ((ONE_F_ONE_B, "1f1b"), (GPIPE, "gpipe")):
        stages = [program(*torch, str(stage), schedule, python=python) for stage in range(2)]
        yield Contender(name=title, commands=stages, environ=[torch_environ(2)])
