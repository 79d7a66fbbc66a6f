"""The cost of tfdist itself: the Estimator's loop against bare ones, and start-up."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import work as works
from contender import local_workers, one_process, program, tf_configs
from results import Options, Part, Spread, quartiles, row
from rounds import Race, measure_models
from turn_taking import ContenderError

TINY = "tiny"  # One weight: its step is all overhead.
TINY_STEPS = 1000  # about half a second
MAX_START_ROUNDS = 10  # Each takes half a minute, and there is little spread.
START_TIMEOUT_S = 180.0

# Loops of contenders/own_loop.py.
ESTIMATOR, RUN = "Estimator.train", "session.run, same graph"
LOOPS = {
    RUN: "run",
    ESTIMATOR: "estimator",
    "make_callable, same graph": "callable",
    "make_callable, without tfdist": "plain",
}
# Processes of contenders/first_step.py: what they do, how many start at once, and the bound. Two
# that start at once wait for the same disk, memory and processor.
LEAST, LEAST_PAIR = "least program with TensorFlow", "least program with TensorFlow, two at once"
LEAST_FIT, LEAST_FIT_PAIR = "least program with Keras 3", "least program with Keras 3, two at once"
STARTS = {
    LEAST: ("plain", 1, LEAST),
    "tfdist, one worker": ("estimator", 1, LEAST),
    LEAST_PAIR: ("plain", 2, LEAST_PAIR),
    "tfdist, 2 workers over gRPC": ("estimator", 2, LEAST_PAIR),
    LEAST_FIT: ("plain-fit", 1, LEAST_FIT),
    "fit of Keras 3, one worker": ("fit", 1, LEAST_FIT),
    LEAST_FIT_PAIR: ("plain-fit", 2, LEAST_FIT_PAIR),
    "fit of Keras 3, 2 workers over gRPC": ("fit", 2, LEAST_FIT_PAIR),
}

ABOUT = (
    "One worker on one core, no reduction. The Estimator's loop against bare loops of session "
    "calls: over its own graph in its own session, so that the loop is all that differs, and over "
    "the same model in a graph without tfdist; the bound is session.run. Start-up is from the "
    "start of a process to the end of its first step of the CNN, a fresh process each round; the "
    "bound is the least program that imports TensorFlow and Keras 2, builds the same CNN and does "
    "a step; that of fit is Keras 3's fit without a strategy."
)


def measure(options: Options) -> Part:
    """Measures loops with each model, and start-up with the CNN.

    Raises:
      ContenderError: If a bare loop or a process fails.
    """
    models = [TINY, *(model for model in options.models if model != works.BERT_MINI)]
    races = {
        "one weight" if model == TINY else works.WORKS[model].title: [
            Race(
                label=f"own cost, {model}",
                contenders=[
                    one_process(name, "own_loop.py", model, "0", loop)
                    for name, loop in LOOPS.items()
                ],
                steps=TINY_STEPS if model == TINY else works.WORKS[model].steps_per_turn,
                needed=RUN,
            )
        ]
        for model in models
    }
    title = "What tfdist costs by itself"
    part = measure_models(races, RUN, pairs, options, title=title, about=ABOUT)
    times = measure_starts(options)
    starts = {name: row(own, times[STARTS[name][2]]) for name, own in times.items()}
    groups = {**part.groups, "start-up": starts}
    return replace(part, groups=groups, ratios={**part.ratios, **seconds_beyond(times)})


def pairs(model: str) -> Iterator[tuple[str, str, str]]:
    """Yields what is compared of a model."""
    yield f"{model}: Estimator loop over {RUN}", ESTIMATOR, RUN


def seconds_beyond(times: dict[str, list[float]]) -> dict[str, Spread]:
    """Returns what each start takes beyond its bound, round by round: seconds, not a ratio."""
    return {
        f"Start-up, {name}: seconds beyond the {bound}": quartiles(
            [a - b for a, b in zip(times[name], times[bound], strict=True)]
        )
        for name, (_, _, bound) in STARTS.items()
        if name != bound
    }


def measure_starts(options: Options) -> dict[str, list[float]]:
    """Returns seconds until the first step is done; the first round is left out."""
    times: dict[str, list[float]] = {name: [] for name in STARTS}
    for number in range(-1, min(options.rounds, MAX_START_ROUNDS)):
        for name, (way, num_processes, _) in STARTS.items():
            seconds = first_step_s(works.CNN, way, options.cores, num_processes)
            if number >= 0:
                times[name].append(seconds)
        options.say(f"own cost: start-up, round {number + 1}")
    return times


def first_step_s(work: str, way: str, cores: Sequence[int], num_workers: int = 1) -> float:
    """Starts the workers at once; returns seconds until the last one has done its first step.

    `way` is what each does: see contenders/first_step.py. Each worker has a core.

    Raises:
      ContenderError: If a worker fails, or takes too long.
    """
    is_cluster = num_workers > 1 and not way.startswith("plain")
    environs = tf_configs(local_workers(num_workers)) if is_cluster else [{}] * num_workers
    shared = {"TFDIST_BENCHMARK_CORES": ",".join(map(str, cores)), "TF_ENABLE_ONEDNN_OPTS": "1"}
    with tempfile.TemporaryDirectory(prefix="tfdist-benchmark-") as folder, ExitStack() as stack:
        outputs = [Path(folder, f"output-{index}") for index in range(num_workers)]
        start_s = time.monotonic()
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    program("first_step.py", work, way, str(index)),
                    env={**os.environ, **shared, **environ},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=stack.enter_context(output.open("wb")),
                    text=True,
                    start_new_session=True,
                )
            )
            for index, (environ, output) in enumerate(zip(environs, outputs, strict=True))
        ]
        try:
            printed = [process.communicate(timeout=START_TIMEOUT_S)[0] for process in processes]
        except subprocess.TimeoutExpired:
            raise ContenderError(
                f"first step, {way}: not done in {START_TIMEOUT_S:.0f} s."
            ) from None
        finally:
            for process in processes:
                process.kill()  # Nothing happens to one that has ended.
        for process, output in zip(processes, outputs, strict=True):
            if process.returncode != 0:
                lines = output.read_text(errors="replace").splitlines() or ["It printed nothing."]
                raise ContenderError(
                    f"first step, {way}: exit code {process.returncode}. {lines[-1].strip()}"
                )
        return max(json.loads(text.splitlines()[-1])["done_s"] for text in printed) - start_s
