"""How messages call workers: one, several, or a great many."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_PREFIX = "worker "
_MOST_LISTED = 8
_MOST_RUNS = 4


def worker_tag(name: str) -> str:
    """Returns the short name of a worker: "0" for "worker 0", "evaluator" for the evaluator."""
    return name.removeprefix(_PREFIX)


def names_text(workers: Sequence[int]) -> str:
    """Returns "worker 1", "workers 1 and 2" or, for many, "workers 0-11,13-63"."""
    if len(workers) > _MOST_LISTED:
        return f"workers {numbers_text(workers)}"
    *most, last = [str(worker) for worker in workers]
    return f"workers {', '.join(most)} and {last}" if most else f"worker {last}"


def joined_names(names: Iterable[str]) -> str:
    """Returns names in a sentence: "workers 0 and 2 and the evaluator"."""
    numbers, others = [], []
    for name in names:
        if name.startswith(_PREFIX):
            numbers.append(int(worker_tag(name)))
        else:
            others.append(f"the {name}")
    return " and ".join([*([names_text(numbers)] if numbers else []), *others])


def numbers_text(numbers: Iterable[int]) -> str:
    """Returns numbers in order, runs of them as ranges: "0-3,8"; many runs are shortened."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    if len(texts) > _MOST_RUNS:
        texts = [*texts[:2], "...", texts[-1]]
    return ",".join(texts)
