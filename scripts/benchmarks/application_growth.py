"""The examples on up to 64 workers: their own step, and what the formula of growth adds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from applications import NUM_PARAMETERS
from growth_figures import percent
from growth_model import Shape, StepModel
from record import Record
from report import markdown_table
from results import Table, quartiles
from work import BERT_MINI, RESNET_20

ENGINE = "horovod"
WORKERS = (1, 2, 4, 8, 16, 32, 64)
# The contenders of the part "applications".
ALONE, TWO = "tfdist, one worker", "tfdist, Horovod"
PAGES = {RESNET_20: "resnet.md", BERT_MINI: "bert.md"}
BEGIN, END = "<!-- growth: written by scripts/benchmarks/run.py -->\n", "<!-- end of growth -->\n"


def tables(records: Mapping[str, Record]) -> dict[str, str]:
    """Returns a table for each page, as Markdown; none if the formula does not hold."""
    if not {"growth", "applications"} <= records.keys():
        return {}
    growth, applications = (records[name].part.data for name in ("growth", "applications"))
    if ENGINE not in growth["drawn_seconds"]:
        return {}
    fit = growth["fits"][ENGINE]
    model = StepModel(**{**fit["model"], "shape": Shape(fit["model"]["shape"])})
    found = {}
    for name, page in PAGES.items():
        seconds = applications["step_seconds"].get(name, {})
        if {ALONE, TWO} <= seconds.keys():
            one_s, two_s = (quartiles(seconds[contender])[1] for contender in (ALONE, TWO))
            batch, num_bytes = applications["batch_sizes"][name], 4 * NUM_PARAMETERS[name]
            table = _table(model, one_s, two_s, batch, num_bytes, fit["left_out_error"])
            found[page] = markdown_table(table)
    return found


def _table(
    model: StepModel, one_s: float, two_s: float, batch: int, num_bytes: int, error: float
) -> Table:
    alone_s = model.step_s(1, num_bytes)
    steps = {count: one_s + model.step_s(count, num_bytes) - alone_s for count in WORKERS}
    side = "below" if steps[2] < two_s else "above"
    rows = [
        (
            f"{count}",
            f"{1e3 * step_s:,.0f}",
            percent(one_s / step_s),
            f"{count * batch / step_s:,.0f}",
        )
        for count, step_s in steps.items()
    ]
    return Table(
        title=f"By the formula: {batch} samples a worker and step, {1e-6 * num_bytes:.1f} MB",
        header=("workers", "ms a step", "efficiency", "samples/s"),
        rows=tuple(rows),
        note=(
            "One worker's step is measured on one core. What the others add is the formula of the "
            f"[growth part](benchmarks-appendix.md) over Horovod ({model.shape.value}), whose "
            f"largest error at numbers of workers that it had not seen was {percent(error)}. Two "
            f"workers of this model took {1e3 * two_s:,.0f} ms: the formula is "
            f"{percent(abs(steps[2] / two_s - 1))} {side} that. "
            "Nothing overlaps in it, and all messages go through one machine's memory: a real "
            "network adds its own latency and bandwidth."
        ),
    )


def write(records: Mapping[str, Record], folder: Path) -> None:
    """Puts the tables into the pages that have a place for them."""
    for name, table in tables(records).items():
        page = folder / name
        text = page.read_text(encoding="utf-8") if page.exists() else ""
        if BEGIN in text:
            before, rest = text.split(BEGIN, 1)
            after = rest.split(END, 1)[1]
            page.write_text(f"{before}{BEGIN}\n{table.strip()}\n\n{END}{after}", encoding="utf-8")
