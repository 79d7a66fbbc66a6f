"""Growth: what a step costs with 1, 2, 3, 4 workers, and by a fitted formula with up to 1,024.

The computation is replaced by a wait that takes no core, so that a few cores suffice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from contender import Contender, mpirun, program, tf_configs
from growth_figures import SIZES, TITLES, WAIT_S, Times, make_part, megabytes
from results import Options, Part, quartiles
from turn_taking import ContenderError, Running, running

from tfdist.launch.machine.mpi import horovod_problem


def measure(options: Options) -> Part:
    """Measures both engines one after the other, and fits the formula to each."""
    found: dict[str, Times] = {}
    missing: list[str] = []
    for engine, title in TITLES.items():
        try:
            if engine == "horovod" and (problem := horovod_problem()):
                raise ContenderError(f"{problem} Run: tfdist horovod install")
            found[engine] = _measure_engine(engine, options)
        except ContenderError as error:
            missing.append(f"{title}: {error}")
            options.say(f"growth: left out: {missing[-1]}")
    if not found:
        raise ContenderError(" ".join(missing))
    return make_part(found, len(options.cores), tuple(missing))


def _measure_engine(engine: str, options: Options) -> Times:
    """Lets 1, 2, 3, ... workers take turns; each set of workers trains one size after another."""
    times: dict[int, dict[int, list[float]]] = {}
    with ExitStack() as stack:
        runs: dict[int, Running] = {}
        for count in options.workers:
            options.say(f"growth: {TITLES[engine]}, starting {count} worker(s)")
            contender = _contender(engine, count, options.rounds)
            runs[count] = stack.enter_context(running(contender, options.cores))
            runs[count].take_turn(steps_per_turn(SIZES[0]))
        for size in SIZES:
            if size != SIZES[0]:
                for run in runs.values():  # The warm-up, in which the next model is built.
                    run.take_turn(steps_per_turn(size))
            times[size] = {count: [] for count in runs}
            for _ in range(options.rounds):
                for count, run in runs.items():
                    times[size][count].append(run.take_turn(steps_per_turn(size)).seconds)
            options.say(f"growth: {TITLES[engine]}, {megabytes(size)}: {_medians(times[size])}")
    return times


def steps_per_turn(num_bytes: int) -> int:
    """Returns how many steps take a few tenths of a second."""
    return max(4, min(20, 100_000_000 // num_bytes))


def _contender(engine: str, num_workers: int, num_rounds: int) -> Contender:
    turns = 1 + num_rounds  # the warm-up first
    plan = ",".join(f"{size}:{turns * steps_per_turn(size)}" for size in SIZES)
    commands = [
        program("waiting.py", f"{1e3 * WAIT_S:g}", plan, str(index), engine)
        for index in range(num_workers)
    ]
    name = f"{TITLES[engine]}, {num_workers} worker(s)"
    if engine == "horovod":
        command = mpirun(num_workers, commands[0])
        return Contender(name=name, commands=[command], num_workers=num_workers)
    environ = tf_configs(num_workers)
    return Contender(name=name, commands=commands, environ=environ, num_workers=num_workers)


def _medians(of_size: Mapping[int, Sequence[float]]) -> str:
    return ", ".join(
        f"{count}: {1e3 * quartiles(seconds)[1]:.1f} ms" for count, seconds in of_size.items()
    )
