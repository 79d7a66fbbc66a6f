from pathlib import Path

import application_growth
import growth_figures
import pytest
from growth_model import Shape, StepModel
from record import Record, read_records, write_records
from results import Part

MODEL = StepModel(
    shape=Shape.DOUBLING,
    wait_s=growth_figures.WAIT_S,
    overhead_s=0.002,
    local_s_per_byte=0.0,
    latency_s=0.001,
    wire_s_per_byte=1e-9,
)


@pytest.fixture
def records(tmp_path: Path) -> dict[str, Record]:
    """Both parts, as they are read from a file."""
    times = {
        size: {n: [MODEL.step_s(n, size, num_cores=2)] for n in (1, 2, 3, 4, 8)}
        for size in growth_figures.SIZES
    }
    data = {
        "step_seconds": {
            application_growth.RESNET_20: {
                application_growth.ALONE: [0.16, 0.15, 0.2],
                application_growth.TWO: [0.18],
            }
        },
        "batch_sizes": {application_growth.RESNET_20: 64},
    }
    applications = Part(
        name="applications", title="", about="", tables=(), ratios=(), missing=(), data=data
    )
    parts = (growth_figures.make_part({"horovod": times}, 2, ()), applications)
    made = {p.name: Record(part=p, date="", rounds=1, machine={}, cores_taken=0.0) for p in parts}
    write_records(tmp_path / "b.json", made)
    return read_records(tmp_path / "b.json")


def test_a_page_has_the_step_of_each_number_of_workers(
    records: dict[str, Record], tmp_path: Path
) -> None:
    page = tmp_path / "resnet.md"
    page.write_text(f"before\n{application_growth.BEGIN}old\n{application_growth.END}after\n")
    for _ in range(2):  # Written again, it is the same.
        application_growth.write(records, tmp_path)
        text = page.read_text()
        assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text
        # 64 workers: six rounds, in each of which all gradients cross.
        total_s = 0.16 + 6 * (0.001 + 4 * 269_722 * 1e-9)
        row = f"|      64 |       {1e3 * total_s:.0f} |       {16 / total_s:.0f} % |"
        assert "of this model took 180 ms: the formula is 10.0 % below that" in " ".join(
            text.split()
        )
        assert row in text and f"{64 * 64 / total_s:,.0f}" in text
        assert "|       1 |       160 |      100 % |       400 |" in text


def test_without_a_formula_that_holds_pages_stay_as_they_are(records: dict[str, Record]) -> None:
    records["growth"].part.data["drawn_seconds"].clear()
    assert application_growth.tables(records) == {}
