"""The cost of a slow link: the tables and the ratios. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from results import Part, Ratio, Table, quartiles, ratio_of

RATES = (1e9, 200e6)  # bits a second
ENGINES = {"grpc": "gRPC", "horovod": "Horovod"}
TARGET = 1.15
# Weights of the dense models, 4 bytes each. Two workers of a ring send as many bytes as there are.
GRADIENT_BYTES = {"cnn": 4 * 347_146, "mlp": 4 * 8_308_746}
TURN_S = 1.0
MIN_STEPS = 3


@dataclass(frozen=True, kw_only=True)
class Found:
    """The times of one engine and model over a link of one rate, in seconds, one a round.

    Attributes:
      model: A key of GRADIENT_BYTES.
      engine: A key of ENGINES.
      rate_bits: A second.
      step: A step of tfdist's.
      computation: The same step in both workers at once, without reduction.
      communication: The bare reduction of the same bytes over the same link.
    """

    model: str
    engine: str
    rate_bits: float
    step: Sequence[float]
    computation: Sequence[float]
    communication: Sequence[float]

    @property
    def name(self) -> str:
        return f"{self.model.upper()}, {ENGINES[self.engine]}, {rate_name(self.rate_bits)}"


def bytes_on_link_s(model: str, rate_bits: float) -> float:
    """Returns what a link takes for a model's gradients if it sends without a pause."""
    return 8 * GRADIENT_BYTES[model] / rate_bits


def steps_per_turn(model: str, rate_bits: float) -> int:
    """Returns how many steps' gradients take about a second over the link, a few at least."""
    return max(MIN_STEPS, int(TURN_S / bytes_on_link_s(model, rate_bits)))


def rate_name(rate_bits: float) -> str:
    """Returns a rate as people write it."""
    return f"{rate_bits / 1e9:g} Gbit/s" if rate_bits >= 1e9 else f"{rate_bits / 1e6:g} Mbit/s"


def ratios(found: Sequence[Found]) -> tuple[Ratio, ...]:
    """Divides round by round by what overlaps perfectly, then by what does not overlap."""
    against_max, against_sum = [], []
    for one in found:
        pairs = list(zip(one.computation, one.communication, strict=True))
        against_max.append(
            ratio_of(
                one.step,
                [max(pair) for pair in pairs],
                name=f"{one.name}: step time against max(computation, communication)",
                target=TARGET,
                note="Bound 1: the shorter one hidden behind the longer one.",
            )
        )
        against_sum.append(
            ratio_of(
                one.step,
                [sum(pair) for pair in pairs],
                name=f"{one.name}: step time against computation + communication",
                note="1: one after the other.",
            )
        )
    return (*against_max, *against_sum)


def make_part(found: Sequence[Found], missing: Sequence[str]) -> Part:
    """Makes the part of what was found; nothing where there can be no link."""
    return Part(
        name="slow-link",
        title="Overlap on a slow link",
        about=(
            "Two workers of tfdist, each on its own core and in its own network namespace, train "
            "over a link that is shaped (token bucket, each direction by itself). Computation is "
            "the same step in both workers at once without reduction; communication is a bare "
            "reduction of the same bytes by the same engine over the same link, Horovod's with the "
            "settings that tfdist makes for itself. Where both overlap perfectly a step takes as "
            "long as the longer one. Times are ms a step: the median, with quartiles."
        ),
        tables=(_table(found),) if found else (),
        ratios=ratios(found),
        missing=tuple(missing),
        data={"found": [asdict(one) for one in found]},
    )


def _table(found: Sequence[Found]) -> Table:
    return Table(
        title="Step, computation and communication, ms",
        header=("model, engine, link", "step", "computation", "communication", "bytes at the rate"),
        rows=tuple(
            (
                one.name,
                *(_ms(times) for times in (one.step, one.computation, one.communication)),
                f"{1e3 * bytes_on_link_s(one.model, one.rate_bits):.1f}",
            )
            for one in found
        ),
        note=(
            "Bytes at the rate: the gradients' bytes over the link's rate, the bound of "
            "communication. Headers are not counted, nor the 32 kB that go at once after a pause."
        ),
    )


def _ms(seconds: Sequence[float]) -> str:
    low, middle, high = (1e3 * one for one in quartiles(seconds))
    return f"{middle:.1f} ({low:.1f} to {high:.1f})"
