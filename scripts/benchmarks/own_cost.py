"""The cost of tfdist itself: its loop, its start-up, its memory, and input from a generator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack

import work as works
from contender import Contender, one_process, over_grpc, over_mpi
from first_steps import first_step_s
from own_cost_figures import (
    CORES,
    ESTIMATOR,
    INPUTS,
    LOOPS,
    PLAIN,
    STARTS,
    TINY,
    Found,
    Times,
    make_part,
)
from results import Options, Part
from turn_taking import running

from tfdist.launch.machine.mpi import horovod_problem

TINY_STEPS = 1000  # about half a second
MAX_START_ROUNDS = 10  # Each takes half a minute, and there is little spread.


def measure(options: Options) -> Part:
    """Measures loops and memory with each model, start-up and input with the CNN."""
    without_horovod = horovod_problem()
    missing = (
        [f"Memory with Horovod: {without_horovod} Run: tfdist horovod install"]
        if without_horovod is not None
        else []
    )
    loops: dict[str, Times] = {}
    peak_bytes: dict[str, Mapping[str, int]] = {}
    for model in (TINY, *options.models):
        options.say(f"own cost, {model}: the Estimator's loop against bare ones")
        loops[model], peaks = _measure_loops(model, options)
        if model != TINY:
            options.say(f"own cost, {model}: memory")
            peak_bytes[model] = {
                PLAIN: peaks[PLAIN],
                "tfdist, one worker": peaks[ESTIMATOR],
                **_peaks_of_two(model, without_horovod is None, options.cores),
            }
    found = Found(
        loops=loops,
        starts=_measure_starts(options),
        peak_bytes=peak_bytes,
        inputs={cores: _measure_inputs(cores, options) for cores in CORES},
    )
    return make_part(found, missing)


def _measure_loops(model: str, options: Options) -> tuple[Times, dict[str, int]]:
    """Returns seconds a step, and peak memory in bytes, of each loop."""
    steps = TINY_STEPS if model == TINY else works.WORKS[model].steps_per_turn
    contenders = [one_process(loop, "own_loop.py", model, loop) for loop in LOOPS]
    return _take_turns(contenders, steps, steps, options)


def _measure_inputs(cores: str, options: Options) -> Times:
    """Returns seconds a step with each input."""
    steps = works.WORKS[works.CNN].steps_per_turn
    contenders = [one_process(kind, "input_loop.py", kind, cores) for kind in INPUTS]
    options.say(f"own cost: input, {CORES[cores]}")
    # Over an epoch: afterwards what is kept of the generator's samples is complete.
    return _take_turns(contenders, steps, max(100, steps), options)[0]


def _take_turns(
    contenders: Sequence[Contender], num_steps: int, warm_up_steps: int, options: Options
) -> tuple[dict[str, list[float]], dict[str, int]]:
    times: dict[str, list[float]] = {one.name: [] for one in contenders}
    peaks: dict[str, int] = {}
    with ExitStack() as stack:
        runs = [stack.enter_context(running(one, options.cores)) for one in contenders]
        for run in runs:
            run.take_turn(warm_up_steps)
        for _ in range(options.rounds):
            for run in runs:
                turn = run.take_turn(num_steps)
                times[run.contender.name].append(turn.seconds)
                peaks[run.contender.name] = turn.peak_bytes
    return times, peaks


def _peaks_of_two(model: str, has_horovod: bool, cores: Sequence[int]) -> dict[str, int]:
    """Returns the peak memory of the larger of two workers, in bytes, by engine."""
    contenders = [over_grpc("tfdist, 2 workers over gRPC", "host_call.py", model, "grpc")]
    if has_horovod:
        name = "tfdist, 2 workers over Horovod"
        contenders.append(over_mpi(name, "host_call.py", model, "0", "horovod"))
    peaks = {}
    for contender in contenders:
        with running(contender, cores) as run:
            peaks[contender.name] = run.take_turn(works.WORKS[model].steps_per_turn).peak_bytes
    return peaks


def _measure_starts(options: Options) -> Times:
    """Returns seconds until the first step is done; the first round is left out."""
    times: dict[str, list[float]] = {name: [] for name in STARTS}
    for number in range(-1, min(options.rounds, MAX_START_ROUNDS)):
        for name, start in STARTS.items():
            seconds = first_step_s(works.CNN, start.engine, options.cores, start.num_processes)
            if number >= 0:
                times[name].append(seconds)
        options.say(f"own cost: start-up, round {number + 1}")
    return times
