"""The real models: throughput, efficiency and memory of each contender. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from peers import HOROVOD_FIT, MIRRORED_STEP, OLD_ESTIMATOR, OURS, TORCH_DDP
from results import Part, Ratio, Table, quartiles, ratio_of
from turn_taking import Turn

# A contender is a library with one or two workers: see `contender_name`.
IDEAL = "ideal, no reduction"
PEERS = (HOROVOD_FIT, MIRRORED_STEP, TORCH_DDP, OLD_ESTIMATOR)
LIBRARIES = (IDEAL, OURS["Horovod"], OURS["gRPC"], *PEERS)
ONE_WORKER = ": one"

EFFICIENCY_TARGETS = {"Horovod": 0.93, "gRPC": 0.9}
TIMES_AS_FAST = 1.0  # as every peer on TensorFlow, at least

ABOUT = (
    "ResNet-20 (64 images of 32x32 a worker) and BERT mini (8 sequences of 128 words a worker, 4 "
    "layers, 256 wide) with one worker and with two, each on a core of its own; the batches stay "
    "in memory. tfdist trains the model_fn of examples/cnn and of examples/bert. The peers have "
    "the same layers, sizes, losses and update rules, checked by their number of parameters, "
    "and are started as their documentation says. Efficiency is the throughput of two workers "
    "over twice that of one worker of the same library, round by round. The bound is two workers "
    "of tfdist that do not reduce: what they lose, the machine takes. Memory is the most that a "
    "worker had. Since all libraries at once do not fit into 24 GB, Horovod's fit takes turns with "
    "tfdist first, and then the others do; at most 10 rounds."
)

# The turns of each contender, in the order of the rounds.
Turns = Mapping[str, Sequence[Turn]]
# The contenders that took turns with each other, then others that did.
Groups = Sequence[Turns]


def contender_name(library: str, num_workers: int) -> str:
    """Returns a contender's name. One worker is the same over both engines of tfdist."""
    if num_workers == 1:
        return (
            "tfdist, one worker" if library in (IDEAL, *OURS.values()) else f"{library}{ONE_WORKER}"
        )
    return library


def make_part(
    found: Mapping[str, Groups],
    batch_sizes: Mapping[str, int],
    titles: Mapping[str, str],
    missing: Sequence[str],
) -> Part:
    """Makes the part from the turns of each model's contenders.

    Args:
      found: By model; those who were left out are not in it. Where tfdist is in several groups, the
        first one counts for it, and each peer is compared with tfdist's turns of its own group.
      batch_sizes: Samples a worker and step, by model.
      titles: Of the models.
      missing: Who was left out, with the reason.
    """
    of_all = {model: _merged(groups) for model, groups in found.items()}
    data: dict[str, Any] = {
        "titles": dict(titles),
        "batch_sizes": dict(batch_sizes),
        "step_seconds": {
            model: {name: _seconds(own) for name, own in turns.items()}
            for model, turns in of_all.items()
        },
        "peak_bytes": {
            model: {name: _peak_bytes(own) for name, own in turns.items()}
            for model, turns in of_all.items()
        },
    }
    return Part(
        name="applications",
        title="The real models",
        about=ABOUT,
        tables=tuple(
            _table(turns, batch_sizes[model], titles[model]) for model, turns in of_all.items()
        ),
        ratios=tuple(
            one for model, groups in found.items() for one in ratios(groups, titles[model])
        ),
        missing=tuple(missing),
        data=data,
    )


def _merged(groups: Groups) -> Turns:
    """Returns the turns of all; of those in several groups, the first ones."""
    return {name: own for group in reversed(groups) for name, own in group.items()}


def efficiencies(turns: Turns) -> dict[str, list[float]]:
    """Returns two workers' throughput over twice one worker's, of each library, round by round."""
    found = {}
    for library in LIBRARIES:
        alone = turns.get(contender_name(library, 1))
        if alone and library in turns:
            pairs = zip(_seconds(alone), _seconds(turns[library]), strict=True)
            found[library] = [one / two for one, two in pairs]
    return found


def ratios(groups: Groups, title: str) -> Iterator[Ratio]:
    """Yields a model's efficiencies, and how tfdist compares with each peer."""
    efficiency = efficiencies(_merged(groups))
    bound = quartiles(efficiency[IDEAL])[1] if IDEAL in efficiency else None
    for engine, at_least in EFFICIENCY_TARGETS.items():
        ours = OURS[engine]
        if ours not in efficiency:
            continue
        target: float | None = at_least
        note = "" if bound is None else f"without a reduction {bound:.2f}"
        if bound is not None and target is not None and bound < target:
            target, note = None, f"{note}: the machine leaves no room for {target:g}"
        low, middle, high = quartiles(efficiency[ours])
        yield Ratio(
            name=f"{title}, {engine}: efficiency of two workers",
            value=middle,
            low=low,
            high=high,
            target=target,
            at_most=False,
            note=note,
        )
        compared = [
            (peer, turns) for peer in PEERS for turns in groups if peer in turns and ours in turns
        ]
        for peer, turns in compared:
            yield ratio_of(
                _seconds(turns[peer]),
                _seconds(turns[ours]),
                name=f"{title}, {engine}: times as fast as {peer}",
                target=None if peer == TORCH_DDP else TIMES_AS_FAST,
                at_most=False,
                note="other kernels" if peer == TORCH_DDP else "",
            )


def _table(turns: Turns, batch_size: int, title: str) -> Table:
    """Makes a model's table, a row for each library."""
    efficiency = efficiencies(turns)
    rows = []
    for library in LIBRARIES:
        counts = [
            (count, turns[name])
            for count in (1, 2)
            if (name := contender_name(library, count)) in turns
        ]
        if not counts:
            continue
        cells = {count: _cells(own, count * batch_size) for count, own in counts}
        share = f"{quartiles(efficiency[library])[1]:.3f}" if library in efficiency else ""
        one, two = (cells.get(count, ("", "")) for count in (1, 2))
        rows.append((library, one[0], two[0], share, one[1], two[1]))
    return Table(
        title=title,
        header=("library", "samples/s, 1", "samples/s, 2", "efficiency", "MB, 1", "MB, 2"),
        rows=tuple(rows),
        note="1 and 2: workers. MB: peak memory of a worker.",
    )


def _cells(turns: Sequence[Turn], num_samples: int) -> tuple[str, str]:
    """Returns samples a second and megabytes."""
    per_second = num_samples / quartiles(_seconds(turns))[1]
    return f"{per_second:.1f}", f"{_peak_bytes(turns) / 1e6:.0f}"


def _seconds(turns: Sequence[Turn]) -> list[float]:
    return [turn.seconds for turn in turns]


def _peak_bytes(turns: Sequence[Turn]) -> int:
    return max(turn.peak_bytes for turn in turns)
