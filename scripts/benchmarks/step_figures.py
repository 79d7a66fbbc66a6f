"""The step times: the tables and the ratios, with the target of each. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from peers import HOROVOD_TAPE, MIRRORED_FIT, MIRRORED_STEP, OLD_ESTIMATOR, OURS, TORCH_DDP
from results import Part, Ratio, Table, quartiles, ratio_of
from turn_taking import Turn

# The contenders, as tables and pictures name them; the libraries' names are those of `peers`.
IDEAL = "ideal"
BARE = {"gRPC": "bare reduction, gRPC", "Horovod": "bare reduction, Horovod"}
SUM = {"gRPC": "sum, gRPC", "Horovod": "sum, Horovod"}
PEERS = (HOROVOD_TAPE, MIRRORED_STEP, MIRRORED_FIT, TORCH_DDP, OLD_ESTIMATOR)
# Those of the picture; the tables have all.
DRAWN = (IDEAL, *OURS.values(), HOROVOD_TAPE, MIRRORED_STEP, TORCH_DDP, OLD_ESTIMATOR)

# The real models are measured by themselves: `applications`.
MODELS = ("cnn", "mlp", "embedding")

# The worst ratio to the ideal that will do, what would be better still, and the worst to the sum.
TARGETS = {
    ("cnn", "Horovod"): (1.18, 1.10, 1.03),
    ("cnn", "gRPC"): (1.55, 1.3, 0.95),
    ("mlp", "Horovod"): (1.35, 1.25, 1.02),
    ("mlp", "gRPC"): (2.2, 1.7, 0.65),
}
NO_TARGETS = (None, None, None)
TIMES_AS_FAST = {"gRPC": 1.1, "Horovod": 1.3}  # as every peer, at least

# Each contender's turns, in the order of the rounds.
Turns = Mapping[str, Sequence[Turn]]
Times = Mapping[str, Sequence[float]]

ABOUT = (
    "Two workers train three models with batches of 64 samples a worker that stay in memory; a "
    "time is that of a step (weight update), in ms. Ideal is the same step in both workers at once "
    "without any reduction. Sum is, round by round, the ideal plus a bare reduction of as many "
    "bytes by the same engine with its own settings: over gRPC in packs of at most 4 MB (a larger "
    "gradient is one pack), over Horovod in one group; gradients in slices are gathered. "
    "The peers have the same layers, optimizers and batches and are started as their documentation "
    "says; \"times as fast\" is the peer's step time over tfdist's. "
    "CPU ms is the processor time of a step in the worker that took most, peak MB the most memory "
    "that a worker had; a sum is calculated, so it has neither."
)


def make_part(
    found: Mapping[str, Turns], titles: Mapping[str, str], missing: Sequence[str]
) -> Part:
    """Makes the part from the turns of each model's contenders.

    Args:
      found: By model; those who were left out are not in it, the ideal always is.
      titles: Of the models.
      missing: Who was left out, with the reason.
    """
    seconds = {model: step_seconds(turns) for model, turns in found.items()}
    return Part(
        name="steps",
        title="Step times",
        about=ABOUT,
        tables=tuple(times_table(turns, titles[model]) for model, turns in found.items()),
        ratios=tuple(
            one for model in found for one in ratios(model, titles[model], seconds[model])
        ),
        missing=tuple(missing),
        data={
            "titles": {model: titles[model] for model in found},
            "step_seconds": seconds,
            "bare_seconds": {
                model: {name: _seconds(turns[name]) for name in BARE.values() if name in turns}
                for model, turns in found.items()
            },
            "cpu_seconds": {
                model: {name: [turn.cpu_seconds for turn in own] for name, own in turns.items()}
                for model, turns in found.items()
            },
            "peak_bytes": {
                model: {name: max(turn.peak_bytes for turn in own) for name, own in turns.items()}
                for model, turns in found.items()
            },
        },
    )


def step_seconds(turns: Turns) -> dict[str, list[float]]:
    """Returns the seconds of each round: of the ideal, the sums, tfdist and the peers."""
    ideal = _seconds(turns[IDEAL])
    seconds = {IDEAL: ideal}
    for engine, name in BARE.items():
        if name in turns:
            pairs = zip(ideal, _seconds(turns[name]), strict=True)
            seconds[SUM[engine]] = [alone + bare for alone, bare in pairs]
    for name in (*OURS.values(), *PEERS):
        if name in turns:
            seconds[name] = _seconds(turns[name])
    return seconds


def ratios(model: str, title: str, seconds: Times) -> Iterator[Ratio]:
    """Yields what is asked for a model, leaving out who did not take part."""
    short = title.split(",")[0]
    for engine, ours in OURS.items():
        if ours not in seconds:
            continue
        most, aim, most_of_sum = TARGETS.get((model, engine), NO_TARGETS)
        yield ratio_of(
            seconds[ours],
            seconds[IDEAL],
            name=f"{short}, {engine}: step time against ideal",
            target=most,
            aim=aim,
            note="the bound is 1",
        )
        if SUM[engine] in seconds:
            yield ratio_of(
                seconds[ours],
                seconds[SUM[engine]],
                name=f"{short}, {engine}: step time against sum",
                target=most_of_sum,
                note=f"the sum itself is {_ratio(seconds, SUM[engine]):.2f} x ideal",
            )
        for peer in (one for one in PEERS if one in seconds):
            bound = _ratio(seconds, peer)
            least = TIMES_AS_FAST[engine]
            note = f"the ideal itself would be {bound:.2f} times as fast"
            if bound < least:
                note += ", so no library can reach the target"
            yield ratio_of(
                seconds[peer],
                seconds[ours],
                name=f"{short}, {engine}: times as fast as {peer}",
                target=least,
                at_most=False,
                note=note,
            )


def times_table(turns: Turns, title: str) -> Table:
    """Makes a model's table, a row for each contender."""
    seconds = step_seconds(turns)
    rows = []
    for name in [*seconds, *(bare for bare in BARE.values() if bare in turns)]:
        own = seconds.get(name) or _seconds(turns[name])
        low, middle, high = (f"{1e3 * one:.2f}" for one in quartiles(own))
        against = f"{_ratio(seconds, name):.2f}" if name in seconds else ""
        cpu, peak = "", ""
        if name in turns:
            cpu = f"{1e3 * quartiles([turn.cpu_seconds for turn in turns[name]])[1]:.2f}"
            peak = f"{max(turn.peak_bytes for turn in turns[name]) / 1e6:.0f}"
        rows.append((name, middle, f"{low} - {high}", f"{1e3 * min(own):.2f}", against, cpu, peak))
    return Table(
        title=title,
        header=("contender", "ms a step", "quartiles", "least", "x ideal", "CPU ms", "peak MB"),
        rows=tuple(rows),
    )


def _seconds(turns: Sequence[Turn]) -> list[float]:
    return [turn.seconds for turn in turns]


def _ratio(seconds: Times, name: str) -> float:
    """Returns the median ratio to the ideal."""
    return ratio_of(seconds[name], seconds[IDEAL], name="").value
