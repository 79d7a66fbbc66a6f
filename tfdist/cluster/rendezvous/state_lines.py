"""The lines in which workers send states: equal states once, with the numbers of their workers.

    {"0-254,256": {"phase": "training", "waits": true, "since_s": 12.3}, "255": {...}}

In a synchronous training nearly all workers are in the same state, so a line about thousands of
them has some hundred bytes. Only the ages differ from worker to worker: a group has those of its
first one. A line without a word says that nothing has changed.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tfdist.cluster.rendezvous.peer_state import PeerState, one_line
from tfdist.process.progress_file import PHASES

BEAT = b""
# What two states have in common, and the workers that are in it.
Group = tuple[tuple[Any, ...], tuple[int, ...]]

_NUMBERS = re.compile(r"\d{1,6}(?:-\d{1,6})?(?:,\d{1,6}(?:-\d{1,6})?)*", re.ASCII)
_LARGEST = 1e9  # seconds, or a count


def group_states(states: Mapping[int, PeerState]) -> list[Group]:
    """Returns the workers in each state, whatever its age; equal lists need no new line."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for index, one in states.items():
        alike: tuple[Any, ...] = (
            one.phase,
            one.waits,
            one.moves,
            one.farewells,
            one.failure,
            one.lost,
        )
        alike += (one.is_silent, one.call, one.place, one.number, one.difference, one.stop)
        groups.setdefault(alike, []).append(index)
    return [(alike, tuple(sorted(indices))) for alike, indices in groups.items()]


def encode_states(states: Mapping[int, PeerState], groups: Sequence[Group] | None = None) -> bytes:
    """Returns the line that `parse_states` reads; `groups` are the states' groups."""
    named = {}
    for _, indices in group_states(states) if groups is None else groups:
        named[_numbers_text(indices)] = _facts_of(states[indices[0]])
    return json.dumps(named, separators=(",", ":")).encode() + b"\n"


def parse_states(line: bytes, num_workers: int) -> dict[int, PeerState]:
    """Returns the states in a line of `encode_states`; none if it is not one.

    Workers from `num_workers` on are left out, and so is what is unknown here.
    """
    states: dict[int, PeerState] = {}
    try:
        for key, facts in json.loads(line).items():
            numbers, state = _numbers_in(key, num_workers), _state_of(facts)
            if len(states) + len(numbers) > num_workers:
                return {}
            states.update(dict.fromkeys(numbers, state))
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        return {}
    return states


def _facts_of(state: PeerState) -> dict[str, Any]:
    usual = vars(PeerState())
    facts = {name: value for name, value in vars(state).items() if value != usual[name]}
    if not state.is_silent:
        facts.pop("silent_s", None)
    return {
        "phase": state.phase,
        **{k: round(v, 3) if isinstance(v, float) else v for k, v in facts.items()},
    }


def _state_of(facts: Mapping[str, Any]) -> PeerState:
    return PeerState(
        phase=facts["phase"] if facts["phase"] in PHASES else PeerState.phase,
        waits=facts.get("waits") is True,
        moves=facts.get("moves") is True,
        since_s=_number(facts.get("since_s", 0.0)),
        farewells=_count(facts.get("farewells", 0)),
        failure=one_line(facts.get("failure", "")),
        silent_s=_number(facts.get("silent_s", 0.0)),
        lost=one_line(facts.get("lost", "")),
        call=one_line(facts.get("call", "")),
        place=one_line(facts.get("place", "")),
        number=_count(facts.get("number", 0)),
        difference=one_line(facts.get("difference", "")),
        stop=_count(facts.get("stop", 0)),
    )


def _count(value: Any) -> int:
    if type(value) is not int:
        raise TypeError
    return int(_number(value))


def _number(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value <= _LARGEST:  # NaN is refused as well.
        raise ValueError
    return float(value)


def _numbers_text(numbers: Sequence[int]) -> str:
    """Returns rising numbers as "0-254,256"."""
    parts = []
    first = last = numbers[0]
    for number in (*numbers[1:], None):
        if number is not None and number == last + 1:
            last = number
            continue
        parts.append(f"{first}" if first == last else f"{first}-{last}")
        if number is not None:
            first = last = number
    return ",".join(parts)


def _numbers_in(text: str, limit: int) -> list[int]:
    """Returns the numbers below a limit; a ValueError if they do not rise."""
    if not _NUMBERS.fullmatch(text):
        raise ValueError
    numbers: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        added = range(int(first), int(last or first) + 1)
        if not added or (numbers and added[0] <= numbers[-1]):
            raise ValueError
        numbers += added[: max(0, limit - added[0])]
    return numbers
