"""Step times: tfdist against its bounds and its peers, for each model."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack

import step_figures as figures
from results import Options, Part, quartiles
from step_contenders import make_contenders, why_missing
from step_figures import Turns
from turn_taking import Contender, ContenderError, Running, Turn, running
from work import WORKS


def measure(options: Options) -> Part:
    """Measures one model after the other.

    A contender that cannot be had, does not start or ends early is named and left out; only the
    ideal is needed for everything else.

    Raises:
      ContenderError: If the ideal fails.
    """
    missing: list[str] = []
    found = {model: _measure_model(model, options, missing) for model in options.models}
    titles = {model: WORKS[model].title for model in options.models}
    return figures.make_part(found, titles, list(dict.fromkeys(missing)))


def _measure_model(model: str, options: Options, missing: list[str]) -> Turns:
    """Lets all contenders take turns."""
    steps = WORKS[model].steps_per_turn
    with ExitStack() as stack:
        runs: dict[str, Running] = {}
        for contender in make_contenders(model):
            options.say(f"steps: {model}, starting {contender.name}")
            try:
                runs[contender.name] = _start(contender, steps, options, stack)
            except ContenderError as error:
                _leave_out(contender.name, error, model, options, missing)
        turns: dict[str, list[Turn]] = {name: [] for name in runs}
        for number in range(options.rounds):
            options.say(f"steps: {model}, round {number + 1} of {options.rounds}")
            for name in list(turns):
                try:
                    turns[name].append(runs[name].take_turn(steps))
                except ContenderError as error:
                    _leave_out(name, error, model, options, missing)
                    del turns[name]
        options.say(f"steps: {model}, ms a step: {_medians(turns)}")
    return turns


def _start(contender: Contender, steps: int, options: Options, stack: ExitStack) -> Running:
    """Starts a contender and lets it warm up, in a turn that does not count."""
    if reason := why_missing(contender.name):
        raise ContenderError(reason)
    with ExitStack() as own:
        run = own.enter_context(running(contender, options.cores))
        run.take_turn(steps)
        stack.push(own.pop_all())
    return run


def _leave_out(
    name: str, error: ContenderError, model: str, options: Options, missing: list[str]
) -> None:
    if name == figures.IDEAL:
        raise error
    is_absent = why_missing(name) is not None  # whatever the model
    missing.append(str(error) if is_absent else f"{model}: {error}")
    options.say(f"steps: left out: {missing[-1]}")


def _medians(turns: Mapping[str, list[Turn]]) -> str:
    return "; ".join(
        f"{name} {1e3 * quartiles([turn.seconds for turn in own])[1]:.2f}"
        for name, own in turns.items()
    )
