"""The messages between launcher and agents: the facts of each kind, checked when they are read.

A line with a fact of another type or out of its range is no message. Facts and kinds that are
unknown here are left out.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from tfdist.launch.machine.cores_and_gpus import Share
from tfdist.process.progress_file import PHASES, Progress

Check = Callable[[Any], bool]

_MOST = 1 << 62


def parse_message(line: bytes) -> Mapping[str, Any] | None:
    """Returns the kind and the facts in a line; None if it is not a message."""
    try:
        words = json.loads(line)
    except (ValueError, RecursionError):  # RecursionError: thousands of brackets
        return None
    kind = words.get("kind") if isinstance(words, dict) else None
    if not isinstance(kind, str):
        return None
    facts = {name: words[name] for name in _CHECKS.get(kind, ()) if name in words}
    for name, is_sound in _CHECKS.get(kind, {}).items():
        if not (name in facts or name in _OPTIONAL) or not is_sound(facts.get(name)):
            return None
    return {"kind": kind, **facts}


def progress_of(facts: Mapping[str, Any]) -> Progress:
    """Returns the progress in a message "state"."""
    return Progress(**{name: facts[name] for name in vars(Progress()) if name in facts})


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < _MOST


def _is_code(value: Any) -> bool:
    return type(value) is int and -128 <= value <= 255


def _is_signal(value: Any) -> bool:
    return type(value) is int and 0 < value <= 64


def _is_duration(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < math.inf


def _is_limit(value: Any) -> bool:
    return _is_duration(value) or value == math.inf


def _is_stream(value: Any) -> bool:
    return value in ("out", "err")


def _are_variables(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_text, value.values()))


def _are_words(value: Any) -> bool:
    return isinstance(value, list) and len(value) > 0 and all(map(_is_text, value))


def _are_cores(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_count, value))


def _is_progress(value: Any) -> bool:
    return isinstance(value, dict) and all(
        _is_fact_of_progress(name, value[name], known)
        for name, known in vars(Progress()).items()
        if name in value
    )


def _is_fact_of_progress(name: str, value: Any, known: Any) -> bool:
    if name == "phase":
        return _is_text(value) and value in PHASES
    if isinstance(known, float):
        is_number = type(value) in (int, float)
        return is_number and (name == "loss" or abs(value) < _MOST)  # a loss may be NaN
    if isinstance(known, bool):
        return _is_flag(value)
    return type(value) is int and -1 <= value < _MOST


def _is_share(value: Any) -> bool:
    names = {field.name for field in dataclasses.fields(Share)}
    return isinstance(value, dict) and value.keys() <= names


def _or_none(is_sound: Check) -> Check:
    return lambda value: value is None or is_sound(value)


_CHECKS: Mapping[str, Mapping[str, Check]] = {
    # From an agent or a relay.
    "hello": {"index": _is_count, "host": _is_text, "pid": _is_count},
    "rank": {"index": _is_count, "environment": _are_variables},
    "standby": {"problem": _is_text},
    "started": {"pid": _is_count},
    "output": {"stream": _is_stream, "text": _is_text},
    "state": {
        "is_stopped": _is_flag,
        "progress": _or_none(_is_progress),
        "quiet_s": _or_none(_is_duration),
        "alone_s": _is_duration,
        "has_horovod": _is_flag,
        "is_importing": _is_flag,
    },
    "ended": {"code": _is_code, "ago_s": _is_duration},
    "gone": {"was_killed": _is_flag},
    # From the launcher.
    "start": {
        "command": _are_words,
        "environment": _are_variables,
        "cwd": _is_text,
        "cores": _or_none(_are_cores),
        "share": _or_none(_is_share),
        "rank_environment": _or_none(_are_variables),
        "keeps_standby": _is_flag,
        "is_rank": _is_flag,
        "grace_s": _is_limit,
        "ignores_hang_up": _is_flag,
    },
    "signal": {"number": _is_signal},
    "stop": {"grace_s": _is_limit, "in_step_grace_s": _or_none(_is_limit)},
}
_OPTIONAL = ("in_step_grace_s",)
