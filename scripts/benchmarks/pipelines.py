"""Pipelines against those of PyTorch: the same networks, cuts and micro-batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pipeline_work as works
from contender import Contender, one_process, program, torch_environ
from peers import torch_python, why_missing
from results import Options, Part, Row, Spread, Turns, ratio, row, seconds
from rounds import Race, take_rounds
from turn_taking import ContenderError, running

# The contenders, as tables name them.
OURS, OURS_4, PLAIN = "tfdist, 2 stages", "tfdist, 4 stages", "TensorFlow, one core"
ONE_F_ONE_B, GPIPE, TORCH_PLAIN = "PyTorch 1F1B", "PyTorch GPipe", "PyTorch, one core"
PEERS = (ONE_F_ONE_B, GPIPE)
# The same network on one device by the same library.
ALONE = {OURS: PLAIN, OURS_4: PLAIN, ONE_F_ONE_B: TORCH_PLAIN, GPIPE: TORCH_PLAIN}
MICRO_BATCHES = (4, 8, 16)
# So many take about half a second.
MICRO_BATCHES_PER_TURN = {works.DENSE: 32, works.ENCODER: 16}
MEMORY_TURNS = 4
# oneDNN's allocator keeps what a step has had; the C library's returns it.
RETURNS_MEMORY = {"TF_ENABLE_ONEDNN_OPTS": "0"}

ABOUT = (
    "Two stages on two cores, one thread each, against the same network on one core by the same "
    "library, so that the libraries' kernels drop out. m is the number of micro-batches of an "
    "update: 128 samples for the MLP (960 inputs, 8 layers of 512), one sequence of 128 words for "
    "the 4 layers of BERT mini's encoder. Both stages have half of the blocks. The ideal is "
    "2m/(m+1) times as fast as one core; it counts micro-batches alone, and what happens once an "
    "update is divided as well, so a step may be below it. Four stages are on four devices that "
    "share the cores; their ideal is 2m/(m+1/4). PyTorch's pipelines are those of "
    "torch.distributed.pipelining over gloo, a process a stage; torchgpipe has one thread for all "
    "stages on CPUs and is left out. MB is the most of a step beyond that between two steps, with "
    "the C library's allocator."
)


def measure(options: Options) -> Part:
    """Measures one network after the other, with each number of micro-batches.

    Raises:
      ContenderError: If plain TensorFlow fails.
    """
    missing: list[str] = []
    groups: dict[str, Mapping[str, Row]] = {}
    ratios: dict[str, Spread] = {}
    for name, title in works.TITLES.items():
        step_bytes = measure_memory(name, options, missing)
        for m in MICRO_BATCHES:
            group = f"{title}, m = {m}"
            race = Race(
                label=group,
                contenders=make_contenders(name, m),
                steps=MICRO_BATCHES_PER_TURN[name] // m,
                needed=PLAIN,
            )
            measured = take_rounds(race, options)
            missing += measured.missing
            groups[group] = rows(measured.turns, m, step_bytes if m == max(MICRO_BATCHES) else {})
            ratios |= ratios_of(group, measured.turns, m)
    return Part(
        title="Pipelines",
        about=ABOUT,
        groups=groups,
        ratios=ratios,
        missing=tuple(dict.fromkeys(missing)),
    )


def ideal_seconds(turns: Turns, pipeline: str, micro_batches: int) -> list[float]:
    """Returns what a step of a pipeline takes at best, one a round.

    Two stages are 2m/(m+1) times as fast as one core. With four, one core waits for the first
    quarter of a forward pass and for the last quarter of a backward pass only: 2m/(m+1/4).
    """
    waits = 0.25 if pipeline == OURS_4 else 1
    speedup = 2 * micro_batches / (micro_batches + waits)
    return [one / speedup for one in seconds(turns[ALONE[pipeline]])]


def rows(turns: Turns, micro_batches: int, step_bytes: Mapping[str, int]) -> dict[str, Row]:
    """Returns a row for each pipeline, over its ideal."""
    return {
        name: row(
            seconds(turns[name]), ideal_seconds(turns, name, micro_batches), step_bytes.get(name)
        )
        for name, alone in ALONE.items()
        if name in turns and alone in turns
    }


def ratios_of(group: str, turns: Turns, micro_batches: int) -> dict[str, Spread]:
    """Returns tfdist's share of the ideal, and the peers' steps over their ideal over tfdist's."""
    if OURS not in turns:
        return {}
    ours, ideal = seconds(turns[OURS]), ideal_seconds(turns, OURS, micro_batches)
    found = {f"{group}: share of the ideal": ratio(ideal, ours)}
    for peer in PEERS:
        if peer in turns and ALONE[peer] in turns:
            theirs, their_ideal = seconds(turns[peer]), ideal_seconds(turns, peer, micro_batches)
            found[f"{group}: share of the ideal over that of {peer}"] = ratio(
                [a * b for a, b in zip(ideal, theirs, strict=True)],
                [a * b for a, b in zip(ours, their_ideal, strict=True)],
            )
    return found


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

    Start each before the next one is asked for: its port may be taken later. `environ` are
    variables for those on TensorFlow.
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
