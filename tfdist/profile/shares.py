"""The shares of a step's time on each worker, and the advice that follows from them.

At each moment a worker does what stands first in this list:

    backward, forward, update     an op of that kind runs
    waiting                       a reduction runs here, and another worker has not joined it yet;
                                  or another worker is still in its hooks
    reductions                    a reduction runs, and no other work hides it
    input                         the next batch is awaited
    other                         no op runs between the first and the last one of a call
    hooks                         Python between two session calls

So the shares of a worker add up to 1. All workers begin a traced call together, once the last of
them has left its hooks; what TensorFlow does to collect a trace is left out.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import mean

from tfdist.profile.records import Op, Span, length, union

SHARES = ("backward", "forward", "update", "waiting", "reductions", "input", "other", "hooks")
# Smaller shares are not worth a change.
_MUCH = 0.1
_WORK = ("backward", "forward", "update")


@dataclass(frozen=True, kw_only=True)
class Step:
    """One session call of one worker, and the time until its next one.

    Attributes:
      ops: The ops of the call, by rising start.
      hooks_s: Seconds from the end of the call to the beginning of the next one.
    """

    ops: Sequence[Op]
    hooks_s: float

    @cached_property
    def span(self) -> Span:
        """Start of the first op and end of the last one."""
        return self.ops[0].span[0], max(op.span[1] for op in self.ops)

    def reductions(self) -> dict[tuple[str, int], Span]:
        """Returns the span of each reduction; one in a loop has a number for each run."""
        runs: Counter[str] = Counter()
        found = {}
        for op in self.ops:
            if op.kind == "reduction":
                found[op.name, runs[op.name]] = op.span
                runs[op.name] += 1
        return found

    def shifted(self, by: float) -> Step:
        ops = [replace(op, span=(op.span[0] + by, op.span[1] + by)) for op in self.ops]
        return replace(self, ops=ops)


@dataclass(frozen=True, kw_only=True)
class Worker:
    """The profile of one worker.

    Attributes:
      steps: The steps, the same on all workers.
      memory: Peak memory in bytes: of "host" and of each GPU.
    """

    steps: Sequence[Step]
    memory: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Profile:
    """A few steps of all workers by one clock, from the step `first_step` on; see `joined`."""

    workers: Sequence[Worker]
    first_step: int

    @property
    def num_steps(self) -> int:
        return len(self.workers[0].steps)

    @cached_property
    def step_s(self) -> float:
        """Mean duration of a step over all workers, in seconds."""
        calls = [_duration(step) for worker in self.workers for step in worker.steps]
        return mean(calls) / 1e6 + mean(self._hooks_s(number) for number in range(self.num_steps))

    @cached_property
    def shares(self) -> list[dict[str, float]]:
        """The shares of each worker's time, by the names of SHARES."""
        return [self._shares(index) for index in range(len(self.workers))]

    @cached_property
    def hidden(self) -> list[float]:
        """For each worker, the share of its time in which other work hid a reduction."""
        shares = []
        for worker in self.workers:
            hidden = total = 0.0
            for number, step in enumerate(worker.steps):
                reductions = list(step.reductions().values())
                work = [op.span for op in step.ops if op.kind in _WORK]
                both = length(union([*reductions, *work]))
                hidden += length(union(reductions)) + length(union(work)) - both
                total += _duration(step) + 1e6 * self._hooks_s(number)
            shares.append(hidden / total)
        return shares

    @cached_property
    def slowest(self) -> int:
        """The worker that waits least for others."""
        return min(range(len(self.workers)), key=lambda index: self.shares[index]["waiting"])

    def longest_ops(self, worker: int, most: int = 3) -> list[tuple[str, str, float]]:
        """Returns name, type and seconds in a step of the ops that take longest on a worker."""
        took: dict[tuple[str, str], float] = defaultdict(float)
        for step in self.workers[worker].steps:
            for op in step.ops:
                if op.kind in _WORK:
                    took[op.name, op.type] += op.span[1] - op.span[0]
        return [
            (name, type_, micros / self.num_steps / 1e6)
            for (name, type_), micros in sorted(took.items(), key=lambda one: -one[1])[:most]
        ]

    def _shares(self, index: int) -> dict[str, float]:
        micros: dict[str, float] = defaultdict(float)
        for number, step in enumerate(self.workers[index].steps):
            last_starts = self._last_starts(number)
            spans: dict[str, list[Span]] = defaultdict(list)
            for op in step.ops:
                if op.kind != "reduction":
                    spans[op.kind].append(op.span)
            for key, (start, end) in step.reductions().items():
                spans["waiting"].append((start, min(end, max(start, last_starts[key]))))
                spans["reductions"].append((start, end))
            seen: list[Span] = []
            for name in SHARES[:-2]:
                together = union([*seen, *spans[name]])
                micros[name] += length(together) - length(seen)
                seen = together
            micros["other"] += _duration(step) - length(seen)
            micros["hooks"] += 1e6 * step.hooks_s
            micros["waiting"] += 1e6 * (self._hooks_s(number) - step.hooks_s)
        total = sum(micros.values())
        return {name: micros[name] / total for name in SHARES}

    def _hooks_s(self, number: int) -> float:
        """Returns the seconds that the last worker has spent in hooks after a step."""
        return max(worker.steps[number].hooks_s for worker in self.workers)

    def _last_starts(self, number: int) -> dict[tuple[str, int], float]:
        """Returns when the last worker joined each reduction of a step."""
        last: dict[tuple[str, int], float] = {}
        for worker in self.workers:
            for key, (start, _) in worker.steps[number].reductions().items():
                last[key] = max(start, last.get(key, start))
        return last


def joined(workers: Sequence[Worker], first_step: int) -> Profile:
    """Puts the workers' steps on worker 0's clock.

    A reduction cannot end on one worker before it has begun on another. That bounds the difference
    of two clocks from both sides; within the bounds they are taken to be equal.
    """
    first, *others = workers
    moved = [first]
    for worker in others:
        by = _difference(first, worker)
        moved.append(replace(worker, steps=[step.shifted(by) for step in worker.steps]))
    return Profile(moved, first_step)


def _difference(first: Worker, other: Worker) -> float:
    """Returns the microseconds to add to the times of `other`."""
    least, most = [], []
    for mine, theirs in zip(first.steps, other.steps, strict=True):
        own = mine.reductions()
        for key, (start, end) in theirs.reductions().items():
            if key in own:
                least.append(own[key][0] - end)
                most.append(own[key][1] - start)
    if not least or max(least) <= 0 <= min(most):
        return 0
    return (max(least) + min(most)) / 2


def advice(profile: Profile) -> str:
    """Returns one sentence about the largest loss of time, and what helps against it."""
    waiting = max(shares["waiting"] for shares in profile.shares)
    if waiting >= _MUCH:
        own = profile.shares[profile.slowest]
        return (
            f"Worker {profile.slowest} is the slowest: others wait for it {waiting:.0%} of a step. "
            f"{_work_of(own)}"
        )
    causes = [
        (shares[name], name, index)
        for index, shares in enumerate(profile.shares)
        for name in ("input", "hooks", "reductions")
    ]
    share, name, index = max(causes)
    if share >= _MUCH:
        return {
            "input": f"Worker {index} waits for input {share:.0%} of a step: prefetch, cache, or "
            "read in parallel (tf.data).",
            "hooks": f"Worker {index} spends {share:.0%} of a step in hooks and other Python: let "
            "them act less often, or use iterations_per_loop.",
            "reductions": f"Reductions that no computation hides take {share:.0%} of a step on "
            f"worker {index}: larger batches, gradient accumulation or compression help.",
        }[name]
    work = max(sum(shares[k] for k in _WORK) for shares in profile.shares)
    return f"Computation takes {work:.0%} of a step: only a faster device or less work helps."


def _work_of(shares: Mapping[str, float]) -> str:
    """Returns a sentence about the largest share of the slowest worker."""
    words = {
        "input": "It waits for input",
        "hooks": "It is in hooks and other Python",
        "forward": "It is in its forward pass",
        "backward": "It is in its backward pass",
        "update": "It updates weights",
    }
    name = max(words, key=lambda name: shares[name])
    return f"{words[name]} {shares[name]:.0%} of a step."


def _duration(step: Step) -> float:
    """Returns the duration of a session call in microseconds."""
    return step.span[1] - step.span[0]
