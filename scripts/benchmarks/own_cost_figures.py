"""The cost of tfdist itself: loop, start-up, memory and input, as tables and ratios. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from results import Part, Ratio, Table, quartiles, ratio_of

TINY = "tiny"
TITLES = {"cnn": "CNN", "mlp": "MLP", "resnet-20": "ResNet-20", "embedding": "embedding"}

# Loops of own_loop.py.
ESTIMATOR, RUN, CALLABLE, PLAIN = "estimator", "run", "callable", "plain"
LOOPS = {
    ESTIMATOR: "Estimator.train",
    RUN: "session.run, same graph",
    CALLABLE: "make_callable, same graph",
    PLAIN: "make_callable, without tfdist",
}
LOOP_TARGET = 1.03


@dataclass(frozen=True, kw_only=True)
class Start:
    """Processes of first_step.py that start at once.

    Attributes:
      title: For tables.
      engine: Its argument; "none" is without a strategy.
      num_processes: How many.
      bound: The bound of its time, a name in STARTS; None for a bound.
      target_s: The most seconds beyond the bound; None for a bound.
    """

    title: str
    engine: str
    num_processes: int = 1
    bound: str | None = None
    target_s: float | None = None


STARTS = {
    "plain": Start(title="least program with TensorFlow", engine="plain"),
    "none": Start(title="tfdist, one worker", engine="none", bound="plain", target_s=0.5),
    # Two processes that start at once wait for the same disk, memory and processor.
    "plain-pair": Start(
        title="least program with TensorFlow, two at once", engine="plain", num_processes=2
    ),
    "grpc": Start(
        title="tfdist, 2 workers over gRPC",
        engine="grpc",
        num_processes=2,
        bound="plain-pair",
        target_s=1.0,
    ),
}

# Kinds of input_loop.py.
ONE_BATCH, MEMORY = "one-batch", "memory"
GENERATOR, ENDLESS = "generator", "endless-generator"
INPUTS = {
    ONE_BATCH: "one batch again and again",
    MEMORY: "arrays in memory",
    GENERATOR: "generator, kept (as in the example)",
    ENDLESS: "generator in every step",
}
CORES = {"one": "one core", "all": "both cores"}
INPUT_TARGET = 1.05
BATCH_SIZE = 64

# Seconds of each round, or bytes, by contender.
Times = Mapping[str, Sequence[float]]


@dataclass(frozen=True, kw_only=True)
class Found:
    """The measured times and sizes.

    Attributes:
      loops: Seconds a step, by model and loop.
      starts: Seconds from a process's start to the end of its first step, by STARTS.
      peak_bytes: The most memory of a worker, by model and then by kind of worker; "plain" is the
        model without tfdist.
      inputs: Seconds a step, by CORES and INPUTS.
    """

    loops: Mapping[str, Times]
    starts: Times
    peak_bytes: Mapping[str, Mapping[str, int]]
    inputs: Mapping[str, Times]


def make_part(found: Found, missing: Sequence[str]) -> Part:
    """Makes the part of what was found."""
    return Part(
        name="own-cost",
        title="What tfdist costs by itself",
        about=(
            "One worker on one core, no reduction. The Estimator's loop against bare loops of "
            "session calls: over its own graph in its own session, so that the loop is all that "
            "differs, and over the same model in a graph without tfdist. Start-up is from the "
            "start of a process to the end of its first step, a fresh process each round, against "
            "the least program that imports TensorFlow and Keras 2, builds the same CNN and does a "
            "step: one such process against one worker, two at once against two workers. Input is "
            "read by Estimator.train with the CNN, 64 samples a batch; the generator gives one "
            "sample at a time."
        ),
        tables=(
            _loop_table(found.loops),
            _start_table(found.starts),
            _memory_table(found.peak_bytes),
            _input_table(found.inputs),
        ),
        ratios=(
            *_loop_ratios(found.loops),
            *_start_figures(found.starts),
            *_memory_ratios(found.peak_bytes),
            *_input_ratios(found.inputs),
        ),
        missing=tuple(missing),
        data=asdict(found),
    )


def overhead_us(times: Times, loop: str, under: str) -> tuple[float, float, float]:
    """Returns what one loop takes beyond another, round by round: quartiles in microseconds."""
    pairs = zip(times[loop], times[under], strict=True)
    return quartiles([1e6 * (a - b) for a, b in pairs])


def _title(model: str) -> str:
    return TITLES.get(model, "one weight")


def _loop_ratios(loops: Mapping[str, Times]) -> list[Ratio]:
    made = []
    for model, times in loops.items():
        for under in (RUN, CALLABLE, PLAIN):
            # The step of one weight is all overhead, and a graph without tfdist is another graph.
            is_asked = model != TINY and under in (RUN, CALLABLE)
            name = f"{_title(model)}: Estimator loop against {LOOPS[under]}"
            target = LOOP_TARGET if is_asked else None
            made.append(ratio_of(times[ESTIMATOR], times[under], name=name, target=target))
    return made


def _start_figures(starts: Times) -> list[Ratio]:
    made = []
    for name, start in STARTS.items():
        if start.bound is None:
            continue
        pairs = zip(starts[name], starts[start.bound], strict=True)
        low, middle, high = quartiles([a - b for a, b in pairs])
        made.append(
            Ratio(
                name=f"Start-up, {start.title}: seconds beyond the {STARTS[start.bound].title}",
                value=middle,
                low=low,
                high=high,
                target=start.target_s,
                note="A difference in seconds, not a ratio.",
            )
        )
    return made


def _memory_ratios(peak_bytes: Mapping[str, Mapping[str, int]]) -> list[Ratio]:
    return [
        ratio_of(
            [num_bytes],
            [of_model[PLAIN]],
            name=f"{_title(model)}: peak memory of {worker} against the plain model",
        )
        for model, of_model in peak_bytes.items()
        for worker, num_bytes in of_model.items()
        if worker != PLAIN
    ]


def _input_ratios(inputs: Mapping[str, Times]) -> list[Ratio]:
    made = []
    for cores, times in inputs.items():
        for kind, under, target in (
            (GENERATOR, MEMORY, INPUT_TARGET),
            (GENERATOR, ONE_BATCH, None),
            (ENDLESS, MEMORY, None),
        ):
            name = f"Input, {CORES[cores]}: {INPUTS[kind]} against {INPUTS[under]}"
            note = f"{_sample_us(times):.0f} us a sample, which TensorFlow's from_generator takes."
            made.append(
                ratio_of(
                    times[kind],
                    times[under],
                    name=name,
                    target=target,
                    note=note if kind == ENDLESS else "",
                )
            )
    return made


def _sample_us(times: Times) -> float:
    """Returns what a sample from the generator costs in a step that waits for it."""
    return overhead_us(times, ENDLESS, MEMORY)[1] / BATCH_SIZE


def _loop_table(loops: Mapping[str, Times]) -> Table:
    return Table(
        title="A step of one worker, ms, and what the Estimator's loop adds, us",
        header=("model", *LOOPS.values(), "beyond session.run", "beyond make_callable"),
        rows=tuple(
            (
                _title(model),
                *(_spread(times[loop], 1e3, 3) for loop in LOOPS),
                *(f"{overhead_us(times, ESTIMATOR, under)[1]:.0f}" for under in (RUN, CALLABLE)),
            )
            for model, times in loops.items()
        ),
    )


def _start_table(starts: Times) -> Table:
    return Table(
        title="From the start of a process to the end of its first step, s",
        header=("process", "seconds"),
        rows=tuple((STARTS[name].title, _spread(s, 1, 2)) for name, s in starts.items()),
    )


def _memory_table(peak_bytes: Mapping[str, Mapping[str, int]]) -> Table:
    return Table(
        title="Peak memory of a worker",
        header=("model", "worker", "MB", "against the plain model"),
        rows=tuple(
            (
                _title(model),
                worker,
                f"{num_bytes / 1e6:.0f}",
                f"{num_bytes / of_model[PLAIN]:.2f}",
            )
            for model, of_model in peak_bytes.items()
            for worker, num_bytes in of_model.items()
        ),
    )


def _input_table(inputs: Mapping[str, Times]) -> Table:
    return Table(
        title="A step of the CNN, ms, by input",
        header=("input", *(CORES[cores] for cores in inputs)),
        rows=tuple(
            (title, *(_spread(times[kind], 1e3, 2) for times in inputs.values()))
            for kind, title in INPUTS.items()
        ),
        note=(
            "The example's generator is read once: its samples are shuffled, kept (cache) and "
            "batched from memory from then on. A generator that every step waits for costs "
            "from_generator's time for each sample; one that gives whole batches pays it once a "
            "batch."
        ),
    )


def _spread(values: Sequence[float], scale: float, digits: int) -> str:
    low, middle, high = (scale * one for one in quartiles(values))
    return f"{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"
