"""The table of small Keras programs that `keras_numbers` compares with plain Keras.

A program is a function of a `Bench`, which returns a dict of arrays. Its name says what it shows,
and its module is its kind. It is expected to give the numbers of plain Keras in one process with
the global batch, unless it says otherwise:

    @program()                       the numbers of plain Keras ("exact")
    @program(says="text")            one line has this text; the values that `differs` names differ
    @program(refuses="text")         an error of one line, which has this text
    @program(keras_refuses="text")   an error of Keras itself with this text, under any strategy
    @program(holds=function)         the function, of what all workers have, returns what is wrong
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

BOTH, KERAS_3, TF_KERAS = ("keras", "tf_keras"), ("keras",), ("tf_keras",)

Found = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Program:
    """A program, and what is expected of it.

    Attributes:
      name: Its name.
      kind: The name of its module.
      run: Runs it on a bench.
      libraries: The Kerases that it runs with.
      says: A part of the one line that a user gets; "" if there is none.
      refuses: A part of the error's line; "" if it trains.
      keras_refuses: A part of Keras' error; "" if it trains.
      differs: Beginnings of the names of values that need not be those of plain Keras.
      holds: Returns what is wrong in what the workers have, in place of a comparison.
      layouts: The layouts that it runs in; () for all.
      is_of_layout: Whether plain Keras gives other numbers for each layout.
    """

    name: str
    kind: str
    run: Callable[[Any], Found]
    libraries: tuple[str, ...] = BOTH
    says: str = ""
    refuses: str = ""
    keras_refuses: str = ""
    differs: tuple[str, ...] = ()
    holds: Callable[[list[Found]], str] | None = None
    layouts: tuple[str, ...] = ()
    is_of_layout: bool = False

    @property
    def expected(self) -> str:
        """Returns "exact", "said" or "refused"."""
        if self.refuses or self.keras_refuses:
            return "refused"
        return "said" if self.says else "exact"


PROGRAMS: dict[str, Program] = {}


def program(
    libraries: tuple[str, ...] = BOTH, **options: Any
) -> Callable[[Callable[[Any], Found]], Callable[[Any], Found]]:
    """Adds a function to the table."""

    def add(function: Callable[[Any], Found]) -> Callable[[Any], Found]:
        put(function.__name__, function.__module__, function, libraries, **options)
        return function

    return add


def put(
    name: str,
    module: str,
    run: Callable[[Any], Found],
    libraries: tuple[str, ...] = BOTH,
    **options: Any,
) -> None:
    """Adds a program to the table."""
    kind = module.rpartition(".")[2]
    assert name not in PROGRAMS, f"two programs are called {name}"
    PROGRAMS[name] = Program(name=name, kind=kind, run=run, libraries=libraries, **options)
