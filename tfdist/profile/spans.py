"""Spans of time: (start, end)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

Span: TypeAlias = tuple[float, float]


def union(spans: Iterable[Span]) -> list[Span]:
    """Joins spans that touch or overlap, and returns the result by rising start."""
    joined: list[Span] = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((start, end))
    return joined


def length(spans: Iterable[Span]) -> float:
    """Returns the total length of spans that do not overlap."""
    return sum(end - start for start, end in spans)
