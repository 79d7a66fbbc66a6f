"""`gc`, `util` and `estimator_export` of tf.estimator: for exporters that libraries bring.

A rule of `gc` is a function of a list of `Path`, which returns those to keep.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfdist.estimator.config.arguments import argument_names as fn_args

__all__ = ["Path", "estimator_export", "fn_args"]


class Path(NamedTuple):
    """An export: its folder, and the number in the folder's name."""

    path: str
    export_version: int | None


_Rule = Callable[[Sequence[Path]], list[Path]]


def _largest_export_versions(n: int) -> _Rule:
    """Returns the rule that keeps the newest n."""

    def newest(paths: Sequence[Path]) -> list[Path]:
        known = [path for path in paths if path.export_version is not None]
        known.sort(key=lambda path: path.export_version or 0)
        return sorted(known[max(0, len(known) - n) :])

    return newest


def _negation(f: _Rule) -> _Rule:
    """Returns the rule that keeps what the other one does not keep."""
    return lambda paths: sorted(set(paths) - set(f(paths)))


def _union(lf: _Rule, rf: _Rule) -> _Rule:
    """Returns the rule that keeps what one of two keeps."""
    return lambda paths: sorted({*lf(paths), *rf(paths)})


def _get_paths(base_dir: str | bytes, parser: Callable[[Path], Path | None]) -> list[Path]:
    """Returns what a parser makes of each entry of a folder; None leaves it out."""
    base = tf.compat.as_str_any(base_dir)
    names = [tf.compat.as_str_any(name).rstrip("/") for name in tf.io.gfile.listdir(base)]
    parsed = [parser(Path(os.path.join(base, name), None)) for name in names]
    return sorted(path for path in parsed if path)


def estimator_export(*names: str, **options: Any) -> Callable[[Any], Any]:
    """Returns a decorator that returns what it is given: names of the API need no list here."""
    return lambda decorated: decorated
