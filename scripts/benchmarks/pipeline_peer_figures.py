"""Pipelines against those of PyTorch: shares of the ideal, times and memory. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from results import Part, Ratio, Table, quartiles, ratio_of

# The contenders, as tables name them.
OURS, OURS_4, PLAIN = "tfdist, 2 stages", "tfdist, 4 stages", "TensorFlow, one core"
ONE_F_ONE_B, GPIPE, TORCH_PLAIN = "PyTorch 1F1B", "PyTorch GPipe", "PyTorch, one core"
PEERS = (ONE_F_ONE_B, GPIPE)
# What the time of each is divided by: the same network on one device by the same library.
ALONE = {OURS: PLAIN, OURS_4: PLAIN, ONE_F_ONE_B: TORCH_PLAIN, GPIPE: TORCH_PLAIN}
DRAWN = (OURS, *PEERS)  # The table has all.
CONTENDERS = (PLAIN, OURS, OURS_4, TORCH_PLAIN, *PEERS)
MICRO_BATCHES = (4, 8, 16)

ABOUT = (
    "Two stages on two cores, one thread each, against the same network on one core by the same "
    "library, so that the libraries' kernels drop out. m is the number of micro-batches of an "
    "update: 128 samples for the MLP (960 inputs, 8 layers of 512), one sequence of 128 words for "
    "the 4 layers of BERT mini's encoder. Both stages have half of the blocks, in every library. "
    "The ideal is 2m/(m+1) times as fast as one core. It counts micro-batches alone: what happens "
    "once an update, such as the optimizer, is divided as well, so a share may be above 1. Four "
    "stages are on four devices that share the cores; their ideal is 2m/(m+1/4), and they need 7 "
    "micro-batches. PyTorch's are those of torch.distributed.pipelining, a process for each "
    "stage, over gloo. Memory is the most of a step beyond that between two steps, of all "
    "processes: kept activations, gradients and buffers, in the least of four steps with m = 16 "
    "and with the C library's allocator."
)

Times = Mapping[str, Sequence[float]]


@dataclass(frozen=True, kw_only=True)
class Found:
    """The times and the memory of a network.

    Attributes:
      title: Of the network.
      step_seconds: By the number of micro-batches: each contender's, in the order of the rounds.
      step_bytes: Each contender's memory of a step with the most micro-batches.
    """

    title: str
    step_seconds: Mapping[int, Times]
    step_bytes: Mapping[str, int]


def make_part(found: Sequence[Found], missing: Sequence[str]) -> Part:
    """Makes the part of what was found of each network."""
    data: dict[str, Any] = {
        one.title: {"step_seconds": one.step_seconds, "step_bytes": one.step_bytes} for one in found
    }
    return Part(
        name="pipelines",
        title="Pipelines",
        about=ABOUT,
        tables=tuple(_table(one) for one in found),
        ratios=tuple(ratio for one in found for ratio in ratios(one)),
        missing=tuple(missing),
        data=data,
    )


def ideal_speedup(micro_batches: int, pipeline: str = OURS) -> float:
    """Returns how many times as fast as one core two cores can be: 2m/(m+1) with two stages.

    With four stages one core waits for the first quarter of a forward pass and for the last quarter
    of a backward pass only: 2m/(m+1/4).
    """
    return 2 * micro_batches / (micro_batches + (0.25 if pipeline == OURS_4 else 1))


def shares(times: Times, micro_batches: int) -> dict[str, list[float]]:
    """Returns the speed-up of each pipeline over one core as a share of the ideal, per round."""
    found = {}
    for name, alone in ALONE.items():
        if name in times and alone in times:
            ideal = ideal_speedup(micro_batches, name)
            pairs = zip(times[alone], times[name], strict=True)
            found[name] = [one / two / ideal for one, two in pairs]
    return found


def ratios(found: Found) -> Iterator[Ratio]:
    """Yields tfdist's shares of the ideal, then how it compares with each peer."""
    for m, times in found.step_seconds.items():
        share = shares(times, m)
        if OURS not in share:
            continue
        where = f"{found.title}, m = {m}"
        low, middle, high = quartiles(share[OURS])
        speedup = f"{middle * ideal_speedup(m):.2f} of {ideal_speedup(m):.2f} times as fast"
        yield Ratio(
            name=f"{where}: share of the ideal", value=middle, low=low, high=high, note=speedup
        )
        for peer in (one for one in PEERS if one in share):
            yield ratio_of(
                share[OURS],
                share[peer],
                name=f"{where}: share of the ideal against {peer}",
                target=1.0,
                at_most=False,
            )
        if OURS_4 in times:
            best = ideal_speedup(m, OURS_4) / ideal_speedup(m)
            yield ratio_of(
                times[OURS],
                times[OURS_4],
                name=f"{where}: 4 stages on 4 devices, times as fast as 2 stages",
                target=1.0,
                at_most=False,
                note=f"at best {best:.2f}",
            )
    ours = found.step_bytes.get(OURS)
    for peer in (one for one in PEERS if ours and one in found.step_bytes):
        ratio = ours / found.step_bytes[peer] if ours else 0.0
        name = f"{found.title}, m = {max(MICRO_BATCHES)}: memory of a step against {peer}"
        yield Ratio(name=name, value=ratio, low=ratio, high=ratio, target=1.0)


def _table(found: Found) -> Table:
    """Makes a network's table, a row for each contender and number of micro-batches."""
    rows = []
    for m, times in found.step_seconds.items():
        share = shares(times, m)
        for name in (one for one in CONTENDERS if one in times):
            low, middle, high = (f"{1e3 * one:.1f}" for one in quartiles(times[name]))
            speedup, of_ideal = "", ""
            if name in share:
                middle_share = quartiles(share[name])[1]
                speedup = f"{middle_share * ideal_speedup(m, name):.2f}"
                of_ideal = f"{100 * middle_share:.1f} %"
            has_bytes = m == max(MICRO_BATCHES) and name in found.step_bytes
            memory = f"{found.step_bytes[name] / 1e6:.0f}" if has_bytes else ""
            rows.append((str(m), name, middle, f"{low} - {high}", speedup, of_ideal, memory))
    return Table(
        title=found.title,
        header=("m", "contender", "ms a step", "quartiles", "speed-up", "of the ideal", "MB"),
        rows=tuple(rows),
    )
