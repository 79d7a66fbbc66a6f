"""Rounds of turns: all contenders are started first; then each takes one turn a round."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from contender import Contender
from peers import why_missing
from results import Options, Pairs, Part, Row, Spread, quartiles, ratios, rows, seconds
from turn_taking import ContenderError, Running, Turn, running


def _accept_all(run: Running) -> None:
    pass


@dataclass(frozen=True, kw_only=True)
class Race:
    """The contenders of a table."""

    label: str  # For lines of progress, and for those who are left out.
    # Those to start, in the order of their turns. Each is started before the next one is asked for,
    # since its ports may be taken later.
    contenders: Iterable[Contender]
    steps: int  # Of a turn.
    needed: str  # The contender without which nothing can be said of the others.
    # Raises a ContenderError if a contender that has started is not comparable.
    check: Callable[[Running], None] = _accept_all


@dataclass(frozen=True, kw_only=True)
class Found:
    """The turns of those who took part to the end, by name."""

    turns: dict[str, list[Turn]] = field(default_factory=dict)  # One a round.
    # Those who were left out, each with the reason.
    missing: list[str] = field(default_factory=list)


def chosen_models(options: Options, models: Sequence[str], instead: str = "") -> list[str]:
    """Returns those models of a part that are to be measured.

    Raises:
      ValueError: If there are none; the message ends with `instead`.
    """
    chosen = [model for model in options.models if model in models]
    if not chosen:
        raise ValueError(
            f"{', '.join(options.models)} is no model of this part. Choose from "
            f"{', '.join(models)}{instead}."
        )
    return chosen


def measure_models(
    races: Mapping[str, Iterable[Race]],
    bound: str,
    pairs: Callable[[str], Pairs],
    options: Options,
    **text: str,
) -> Part:
    """Measures one model after the other.

    A contender that cannot be had, does not start or ends early is named and left out. The races
    are by the model's title ("CNN, 1.4 MB"); `pairs` returns the ratios to take from its short
    title ("CNN"); the text is the part's `title` and `about`.

    Raises:
      ContenderError: If one that is needed fails.
    """
    groups: dict[str, dict[str, Row]] = {}
    found: dict[str, Spread] = {}
    missing: list[str] = []
    for title, of_model in races.items():
        measured = [take_rounds(race, options) for race in of_model]
        turns = [one.turns for one in measured]
        groups[title] = rows(turns, bound)
        found |= ratios(turns, pairs(title.split(",")[0]))
        missing += [line for one in measured for line in one.missing]
    return Part(groups=groups, ratios=found, missing=tuple(dict.fromkeys(missing)), **text)


def take_rounds(race: Race, options: Options) -> Found:
    """Starts the contenders, and lets them take turns.

    Raises:
      ContenderError: If the one that is needed fails.
    """
    found = Found()
    with ExitStack() as stack:
        runs: dict[str, Running] = {}
        for contender in race.contenders:
            options.say(f"{race.label}, starting {contender.name}")
            try:
                runs[contender.name] = _start(race, contender, options, stack)
            except ContenderError as error:
                _leave_out(contender.name, error, race, options, found)
        found.turns.update({name: [] for name in runs})
        for number in range(options.rounds):
            options.say(f"{race.label}, round {number + 1} of {options.rounds}")
            for name in list(found.turns):
                try:
                    found.turns[name].append(runs[name].take_turn(race.steps))
                except ContenderError as error:
                    _leave_out(name, error, race, options, found)
                    del found.turns[name]
        options.say(f"{race.label}, ms a step: {_medians(found.turns)}")
    return found


def _start(race: Race, contender: Contender, options: Options, stack: ExitStack) -> Running:
    """Starts a contender and lets it warm up, in a turn that does not count."""
    if reason := why_missing(contender.name):
        raise ContenderError(reason)
    with ExitStack() as own:
        run = own.enter_context(running(contender, options.cores))
        race.check(run)
        run.take_turn(race.steps)
        stack.push(own.pop_all())
    return run


def _leave_out(
    name: str, error: ContenderError, race: Race, options: Options, found: Found
) -> None:
    if name == race.needed:
        raise error
    is_absent = why_missing(name) is not None  # whatever the model
    found.missing.append(str(error) if is_absent else f"{race.label}: {error}")
    options.say(f"left out: {found.missing[-1]}")


def _medians(turns: Mapping[str, list[Turn]]) -> str:
    return "; ".join(
        f"{name} {1e3 * quartiles(seconds(own))[1]:.2f}" for name, own in turns.items()
    )
