"""Step times: tfdist against its bounds and its peers, for each model."""

from __future__ import annotations

import step_figures as figures
from results import Options, Part
from rounds import Race, take_rounds
from step_contenders import make_contenders, why_missing
from step_figures import Turns
from work import WORKS


def measure(options: Options) -> Part:
    """Measures one model after the other.

    A contender that cannot be had, does not start or ends early is named and left out; only the
    ideal is needed for everything else.

    Raises:
      ContenderError: If the ideal fails.
    """
    found: dict[str, Turns] = {}
    missing: list[str] = []
    for model in options.models:
        race = Race(
            label=model,
            contenders=make_contenders(model, figures.DRAWN if options.is_quick else None),
            steps=WORKS[model].steps_per_turn,
            needed=figures.IDEAL,
            why_missing=why_missing,
        )
        measured = take_rounds(race, options)
        found[model] = measured.turns
        missing += measured.missing
    titles = {model: WORKS[model].title for model in options.models}
    return figures.make_part(found, titles, list(dict.fromkeys(missing)))
