"""Measures what pipelined execution gains, and what cutting a model into stages costs.

    python scripts/benchmarks/pipeline.py [--rounds 20] [--json FILE]

Needs two cores and takes about two minutes. A device is one core: an operation has one thread.
First the blocks are timed, and the cut into stages is chosen by that. Then the contenders run in
turn in this process, one step each a round; ratios are taken round by round. "plain" is the model
in one tf.function: a tape for each micro-batch, gradients added up, one update; on one core if not
said otherwise. What other processes take of the cores meanwhile is printed too: figures of a busy
machine are worth little.

`run.py --only pipelines` compares pipelines with those of PyTorch.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
sys.path.append(str(Path(__file__).parent / "contenders"))

import pipeline_figures as asked
import tensorflow as tf
from machine import watch_others
from pipeline_networks import NUM_DEVICES, DenseNetwork, plain_step, staged_model
from pipeline_work import DENSE, make_samples
from results import quartiles

from tfdist.pipeline import PipelinedExecution, ShardedExecution, set_cpu_devices

WARM_UP_ROUNDS = 2
PROFILED_CALLS = 2  # Only so many are. In the first one kernels are made, which is slow.
LABEL_WIDTH = 58

# What does a step, and on how many cores.
Contender = tuple[Callable[..., Any], int]


def read_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--micro-batches", type=int, default=16)
    parser.add_argument("--micro-batch-size", type=int, default=128)
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--width", type=int, default=512, help="of the layers")
    parser.add_argument("--json", type=Path, help="file for the times and the figures")
    return parser.parse_args()


def stage_times(
    arguments: argparse.Namespace, cut: asked.Cut, data: Sequence[tf.Tensor]
) -> list[float]:
    """Measures what a micro-batch takes in each stage, forward and backward, in seconds.

    One works at a time. The timeline of a step tells the times; of the micro-batches the fastest
    counts, as the least disturbed.
    """
    with tempfile.TemporaryDirectory() as folder:
        model = staged_model(
            DenseNetwork(arguments.width, arguments.blocks),
            cut,
            arguments.micro_batches,
            ShardedExecution,
            profile_dir=folder,
        )
        for _ in range(PROFILED_CALLS):
            model(*data)
        events = json.loads(Path(folder, "trace.json").read_text())["traceEvents"]
    fastest: dict[tuple[int, str], float] = {}
    for event in events:
        if event["ph"] == "X":
            box = event["args"]["stage"], event["args"]["direction"]
            fastest[box] = min(1e-6 * event["dur"], fastest.get(box, float("inf")))
    return [
        sum(time_s for (stage, _), time_s in fastest.items() if stage == number)
        for number in range(len(cut))
    ]


def make_contenders(
    arguments: argparse.Namespace, cuts: dict[int, asked.Cut]
) -> dict[str, Contender]:
    """Makes all contenders; each has weights of its own."""
    make_network = functools.partial(DenseNetwork, arguments.width, arguments.blocks)

    def staged(num_stages: int, strategy: Callable[..., Any]) -> Callable[..., Any]:
        cut = cuts[num_stages]
        return staged_model(make_network(), cut, arguments.micro_batches, strategy)

    grouped = functools.partial(PipelinedExecution, schedule="grouped")
    plain = plain_step(make_network, arguments.micro_batches)
    sharded = staged(2, ShardedExecution)
    return {
        asked.PLAIN: (plain, 1),
        asked.SHARDED_ONE: (sharded, 1),
        asked.SHARDED: (sharded, 2),
        asked.PIPELINED: (staged(2, PipelinedExecution), 2),
        asked.PIPELINED_4: (staged(4, PipelinedExecution), 2),
        asked.GROUPED: (staged(2, grouped), 2),
        asked.PLAIN_BOTH: (plain, 2),
        asked.WHOLE: (plain_step(make_network, 1), 1),
    }


def pin(cores: set[int]) -> None:
    """Lets all threads of this process run on these cores only."""
    for thread in os.listdir("/proc/self/task"):
        try:
            os.sched_setaffinity(int(thread), cores)
        except ProcessLookupError:
            continue


def measure(
    contenders: dict[str, Contender],
    data: Sequence[tf.Tensor],
    num_rounds: int,
    cores: Sequence[int],
) -> dict[str, list[float]]:
    """Lets each contender do one step a round, in turn.

    Returns:
      The seconds of each round, without the warm-up, for each contender.
    """
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(-WARM_UP_ROUNDS, num_rounds):
        for name, (step, num_cores) in contenders.items():
            pin(set(cores) if num_cores == 2 else {cores[number % 2]})
            start_s = time.perf_counter()
            step(*data).numpy()
            if number >= 0:
                times[name].append(time.perf_counter() - start_s)
    pin(set(cores))
    return times


def print_cut(cut: asked.Cut, times: Sequence[float]) -> None:
    """Prints what each stage takes, and how even the cut is."""
    stages = ", ".join(
        f"B{blocks[0]}-B{blocks[-1]} {1e3 * time_s:.2f}"
        for blocks, time_s in zip(cut, times, strict=True)
    )
    excess = asked.imbalance(times)
    print(f"{len(cut)} stages, ms a micro-batch: {stages}; slowest over mean {excess:+.1%}")


def print_times(times: dict[str, list[float]]) -> None:
    """Prints a row for each contender."""
    print(f"\n{'ms a step':{LABEL_WIDTH}} {'median':>8}  {'quartiles':>15} {'least':>8}")
    for name, seconds in times.items():
        low, middle, high = (1e3 * one for one in quartiles(seconds))
        least = 1e3 * min(seconds)
        print(f"{name:{LABEL_WIDTH}} {middle:8.1f}  {low:7.1f} {high:7.1f} {least:8.1f}")


def print_figures(figures: Sequence[asked.Figure], times: dict[str, list[float]]) -> None:
    """Prints a row for each ratio, then whether each target was reached."""
    head = f"{'median':>8}  {'quartiles':>15} {'fastest':>8} {'target':>8} {'bound':>7}"
    print(f"\n{'ratio of the times':{LABEL_WIDTH}} {head}")
    for figure in figures:
        low, middle, high = quartiles(figure.ratios(times))
        row = f"{middle:8.3f}  {low:7.3f} {high:7.3f} {figure.ratio_of_fastest(times):8.3f}"
        bound = "" if figure.bound is None else f"{figure.bound:.3f}"
        row = f"{row} {figure.asked:>8} {bound:>7}  {figure.formula}"
        print(f"{figure.name:{LABEL_WIDTH}} {row}".rstrip())
    print()
    for figure in (one for one in figures if one.target is not None):
        short = figure.missed_by(quartiles(figure.ratios(times))[1])
        outcome = f"missed by {short:.3f}" if short else "reached"
        print(f"{figure.name} {figure.asked}: {outcome}")


def as_json(figure: asked.Figure, times: dict[str, list[float]]) -> dict[str, Any]:
    """Returns a figure with what was found."""
    low, middle, high = quartiles(figure.ratios(times))
    return {
        "name": figure.name,
        **asdict(figure),
        "median": middle,
        "quartiles": [low, high],
        "ratio_of_fastest": figure.ratio_of_fastest(times),
        "missed_by": figure.missed_by(middle),
    }


def main() -> int:
    """Measures and prints."""
    arguments = read_arguments()
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        print(f"This needs two cores, and may run on {len(cores)}.", file=sys.stderr)
        return 2
    pin(set(cores))
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    set_cpu_devices(NUM_DEVICES)
    num_samples = arguments.micro_batches * arguments.micro_batch_size
    data = [tf.constant(one) for one in make_samples(DENSE, num_samples)]

    block_times = stage_times(arguments, [[n] for n in range(arguments.blocks)], data)
    cuts = {count: asked.balanced_cut(block_times, count) for count in (2, 4)}
    times_of_cuts = {count: stage_times(arguments, cut, data) for count, cut in cuts.items()}
    print("blocks, ms a micro-batch:", " ".join(f"{1e3 * one:.2f}" for one in block_times))
    for count, cut in cuts.items():
        print_cut(cut, times_of_cuts[count])

    contenders = make_contenders(arguments, cuts)
    others = watch_others()
    times = measure(contenders, data, arguments.rounds, cores)
    taken = others()
    print(f"{arguments.rounds} rounds; others took {taken:.2f} of {psutil.cpu_count()} cores")

    figures = asked.figures(arguments.micro_batches, times_of_cuts[2])
    print_times(times)
    print_figures(figures, times)
    if arguments.json:
        found = {
            "settings": {name: value for name, value in vars(arguments).items() if name != "json"},
            "tensorflow": tf.__version__,
            "cores_taken_by_others": taken,
            "block_seconds": block_times,
            "stages": {n: {"cut": cuts[n], "seconds": times_of_cuts[n]} for n in cuts},
            "step_seconds": times,
            "figures": [as_json(figure, times) for figure in figures],
        }
        arguments.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
