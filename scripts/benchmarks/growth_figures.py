"""The results of growth: the tables, the ratios and the fitted formula. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import growth_model
from growth_model import LARGEST_ERROR, Fit, Point, Shape
from results import Part, Ratio, Table, quartiles, ratio_of

WAIT_S = 0.01
# Two sizes would do to tell latency from bandwidth; four show whether the formula holds between.
SIZES = (100_000, 1_400_000, 8_000_000, 33_000_000)  # bytes of gradients
TITLES = {"grpc": "gRPC", "horovod": "Horovod"}
# What the engines may use: over MPI the library chooses by size and number.
SHAPES = {"grpc": (Shape.OWNERS,), "horovod": (Shape.RING, Shape.DOUBLING)}
DRAWN_WORKERS = tuple(2**power for power in range(11))  # to 1,024
TABLE_WORKERS = (1, 4, 16, 64, 256, 1024)

# Seconds a step of each round, by bytes of gradients and number of workers.
Times = Mapping[int, Mapping[int, Sequence[float]]]


def make_part(found: Mapping[str, Times], num_cores: int, missing: tuple[str, ...]) -> Part:
    """Makes the part from the times of each engine.

    Args:
      found: Of every engine; all have the same sizes and numbers of workers.
      num_cores: On how many cores the workers were.
      missing: Engines that were left out, with the reason.
    """
    workers = sorted(next(iter(next(iter(found.values())).values())))
    fits = {engine: _fit(engine, times, num_cores) for engine, times in found.items()}
    shown = {engine: fit for engine, fit in fits.items() if fit.holds}
    crowded = [str(count) for count in workers if count > num_cores]
    crowding = (
        f"{' and '.join(crowded)} workers shared {num_cores} cores, which is in their times; the "
        "formula knows it. "
        if crowded
        else ""
    )
    return Part(
        name="growth",
        title="Growth: from few workers to 1,024",
        about=(
            f"Workers of tfdist train models whose computation is a wait of {1e3 * WAIT_S:g} ms "
            "that takes no core; then all gradients exist at once, in tensors of at most 1 MB, are "
            "reduced, and applied. Reduction overlaps with nothing here, which is the worst case. "
            "Each worker does the same work however many there are (weak scaling), so that the "
            "ideal step takes as long as one worker's, and efficiency is one worker's step over n "
            "workers' step. "
            "A formula with four constants is fitted to the medians (least squares of relative "
            "errors, none negative): t(n) = wait + crowd x (overhead + local x bytes + messages(n) "
            "x latency + moved(n) x bytes/bandwidth). crowd is workers over cores, rounded up. "
            "messages and moved are those of the shape in which an engine adds gradients: two "
            "rounds with owners over gRPC; over MPI a ring or recursive doubling, whichever "
            "predicts better. The error of a formula is the largest over numbers of workers that "
            f"it has not seen. Above {percent(LARGEST_ERROR)} only what was measured is shown."
        ),
        tables=(
            _measured_table(found, shown, workers, num_cores, crowding),
            _constants_table(fits),
            *([_drawn_table(shown)] if shown else []),
        ),
        ratios=tuple(_ratios(found, workers)),
        missing=missing,
        data={
            "wait_seconds": WAIT_S,
            "cores": num_cores,
            "step_seconds": found,
            "fits": {engine: _as_data(fit) for engine, fit in fits.items()},
            "drawn_seconds": {
                engine: {
                    size: {n: fit.model.step_s(n, size) for n in DRAWN_WORKERS} for size in SIZES
                }
                for engine, fit in shown.items()
            },
        },
    )


def _fit(engine: str, times: Times, num_cores: int) -> Fit:
    points = [
        Point(num_workers=count, num_bytes=size, seconds=quartiles(seconds)[1])
        for size, of_size in times.items()
        for count, seconds in of_size.items()
    ]
    return growth_model.best_fit(points, WAIT_S, num_cores, SHAPES[engine])


def _as_data(fit: Fit) -> dict[str, Any]:
    data = asdict(fit)
    data["model"]["shape"] = fit.model.shape.value
    return data


def _ratios(found: Mapping[str, Times], workers: Sequence[int]) -> list[Ratio]:
    fewest, most = min(workers), max(workers)
    return [
        ratio_of(
            of_size[most],
            of_size[fewest],
            name=f"{TITLES[engine]}, {megabytes(size)}: step of {most} workers against {fewest}",
        )
        for engine, times in found.items()
        for size, of_size in times.items()
    ]


def _measured_table(
    found: Mapping[str, Times],
    shown: Mapping[str, Fit],
    workers: Sequence[int],
    num_cores: int,
    crowding: str,
) -> Table:
    rows = []
    for engine, times in found.items():
        for size, of_size in times.items():
            cells = [TITLES[engine], megabytes(size)]
            for count in workers:
                low, middle, high = (1e3 * one for one in quartiles(of_size[count]))
                cell = f"{middle:.1f} ({low:.1f} to {high:.1f})"
                if engine in shown:
                    formula = 1e3 * shown[engine].model.step_s(count, size, num_cores)
                    cell += f"; {formula:.1f}"
                cells.append(cell)
            rows.append(tuple(cells))
    return Table(
        title="Measured, ms a step: median (quartiles); by the formula where it holds",
        header=("engine", "gradients", *(f"{n} worker{'s' * (n > 1)}" for n in workers)),
        rows=tuple(rows),
        note=crowding.strip(),
    )


def _constants_table(fits: Mapping[str, Fit]) -> Table:
    rows = []
    for engine, fit in fits.items():
        model = fit.model
        wire = f"{1e-9 / model.wire_s_per_byte:.2f} GB/s" if model.wire_s_per_byte else "unlimited"
        rows.append(
            (
                TITLES[engine],
                model.shape.value,
                f"{1e3 * model.overhead_s:.2f} ms",
                f"{1e9 * model.local_s_per_byte:.2f} ms",
                f"{1e3 * model.latency_s:.3f} ms",
                wire,
                percent(fit.median_error),
                percent(fit.left_out_error),
            )
        )
    return Table(
        title="The fitted constants, and the formula's relative errors",
        header=(
            "engine",
            "shape",
            "overhead",
            "local, a MB",
            "latency, a message",
            "bandwidth",
            "median error",
            "largest error, left out",
        ),
        rows=tuple(rows),
    )


def _drawn_table(fits: Mapping[str, Fit]) -> Table:
    rows = [
        (
            TITLES[engine],
            megabytes(size),
            *(
                f"{1e3 * fit.model.step_s(n, size):,.0f}; {percent(fit.model.efficiency(n, size))}"
                for n in TABLE_WORKERS
            ),
        )
        for engine, fit in fits.items()
        for size in SIZES
    ]
    return Table(
        title="By the formula: ms a step; weak-scaling efficiency",
        header=("engine", "gradients", *(f"{n:,}" for n in TABLE_WORKERS)),
        rows=tuple(rows),
        note=(
            "Each worker has a core here. What this can't know: all workers were on one machine, "
            "so that a message went through memory and was paid for with a core's time, and no "
            "real network's latency, bandwidth or congestion is in it. Stragglers, which grow with "
            "the number of workers, are not in it either. Beyond the measured numbers of workers "
            "it is an extrapolation. A latency of 0 says that the measured numbers do not tell it "
            "from the turns that workers take on shared cores. A longer computation, or one that "
            "overlaps with the reduction, has a higher efficiency."
        ),
    )


def percent(share: float) -> str:
    if share == math.inf:
        return "unknown"
    return f"{100 * share:.{0 if share >= 0.1 else 1}f} %"


def megabytes(num_bytes: int) -> str:
    """Returns a size for people."""
    return f"{1e-6 * num_bytes:g} MB"
