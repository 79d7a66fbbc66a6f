from dataclasses import replace
from pathlib import Path

import machine
import pytest
import record
import report
import run
from record import Record, RecordError
from report import Picture
from results import Part, Ratio, Table, quartiles, ratio_of

REACHED = Ratio(name="CNN, Horovod: against ideal", value=1.1, low=1.08, high=1.2, target=1.18)
MISSED = Ratio(
    name="CNN, gRPC: against ideal",
    value=1.705,
    low=1.6,
    high=1.8,
    target=1.55,
    aim=1.3,
    note="The copies take 0.4 ms.",
)
TOLD = Ratio(name="growth of 4 workers", value=2.5, low=2.4, high=2.6)
TIMES = Table(
    title="ms a step",
    header=("contender", "median"),
    rows=(("ideal | both", "4.4"), ("tfdist", "15.2")),
    note="Of the slowest worker.",
)
PART = Part(
    name="steps",
    title="Step times",
    about="Two workers train.",
    tables=(TIMES,),
    ratios=(REACHED, MISSED, TOLD),
    missing=("PyTorch DDP: not installed. Install it.",),
    data={"step_seconds": {"cnn": {"ideal": [0.004]}}},
)
RECORD = Record(
    part=PART,
    date="2026-01-31 12:00 UTC",
    rounds=20,
    machine={"CPU": "a fast one", "cores to run on": "2"},
    cores_taken=0.04,
)


def test_ratios_are_taken_round_by_round() -> None:
    ratio = ratio_of([2.0, 6.0, 20.0], [1.0, 2.0, 5.0], name="a over b", target=3.0)
    assert (ratio.low, ratio.value, ratio.high) == (2.5, 3.0, 3.5)
    assert ratio.name == "a over b" and ratio.is_reached()
    assert quartiles([7.0]) == (7.0, 7.0, 7.0)


def test_rounds_that_do_not_match_are_refused() -> None:
    with pytest.raises(ValueError, match="found 2 and 1"):
        ratio_of([1.0, 2.0], [1.0], name="a over b")
    with pytest.raises(ValueError, match="found 0 and 0"):
        ratio_of([], [], name="a over b")


@pytest.mark.parametrize(
    ("value", "at_most", "outcome"),
    [
        (1.18, True, "reached"),
        (1.298, True, "missed by 0.118 (10.0%)"),
        (1.18, False, "reached"),
        (1.0, False, "missed by 0.18 (15.3%)"),
    ],
)
def test_an_outcome_says_by_how_much_a_target_was_missed(
    value: float, at_most: bool, outcome: str
) -> None:
    ratio = replace(REACHED, value=value, at_most=at_most)
    assert report.outcome(ratio) == outcome
    assert ratio.is_reached() == (outcome == "reached")


def test_a_ratio_without_a_target_has_no_outcome() -> None:
    assert TOLD.is_reached() is None
    assert report.outcome(TOLD) == report.asked(TOLD) == ""


def test_tables_are_aligned_and_numbers_stand_right() -> None:
    assert report.markdown_table(TIMES) == (
        "**ms a step**\n\n"
        "| contender     | median |\n"
        "|---------------|-------:|\n"
        "| ideal \\| both |    4.4 |\n"
        "| tfdist        |   15.2 |\n\n"
        "Of the slowest worker.\n"
    )


def test_a_row_of_another_width_is_refused() -> None:
    with pytest.raises(ValueError, match="a row has 1 cells, and the header has 2"):
        Table(title="times", header=("a", "b"), rows=(("1",),))


def test_the_page_has_the_key_figures_that_were_measured_and_the_pictures() -> None:
    pictures = {"steps": [Picture(path="benchmarks-steps.png", text="Bars")]}
    key = replace(REACHED, name="CNN, Horovod: step time against ideal", value=1.339)
    record_ = replace(RECORD, part=replace(PART, ratios=(key, MISSED)))
    text = report.page({"steps": record_}, pictures, "all.md")
    assert text.startswith("# Benchmarks\n") and "[its appendix](all.md)" in text
    [row] = [line for line in text.splitlines() if line.startswith("| CNN")]
    assert row.split("|")[2].strip() == "1.34" and "at most 1.18" in row
    assert "\n![Bars](benchmarks-steps.png)\n" in text
    assert "python scripts/benchmarks/run.py" in text


def test_every_key_figure_is_one_that_was_measured() -> None:
    records = record.read_records(run.RESULTS / "benchmarks.json")
    names = {(part, one.name) for part, found in records.items() for one in found.part.ratios}
    keys = [key[:2] for key in report.KEY_FIGURES if key[0] in records]
    assert [key for key in keys if key not in names] == []
    assert len(report.KEY_FIGURES) == 10


def test_the_appendix_has_missed_targets_reasons_tables_peers_and_the_machine() -> None:
    text = report.document({"steps": RECORD}, "page.md")
    assert text.startswith("# Appendix: the benchmark record\n")
    assert "[the benchmarks](page.md)" in text
    assert "\n1 of 2 targets are reached. The others:\n" in text
    rows = [line for line in text.splitlines() if line.startswith("| CNN")]
    assert [" ".join(row.split()) for row in rows] == [
        "| CNN, gRPC: against ideal | 1.705 | 1.600 to 1.800 | at most 1.55 | 1.3 "
        "| missed by 0.155 (10.0%) | The copies take 0.4 ms. |",
    ]
    assert "growth of 4 workers" not in text  # A ratio without a target: the data file has it.
    assert "Left out:\n\n- PyTorch DDP: not installed. Install it.\n" in text
    measured = "Measured on 2026-01-31 12:00 UTC, 20 rounds, while other processes took 0.04 of 2"
    assert measured in text
    assert "| a fast one |" in text
    assert "\n\n\n" not in text and text.endswith("|\n")


def test_a_long_note_stands_below_its_table() -> None:
    part = replace(PART, ratios=(REACHED, replace(MISSED, note="Why. " * 20)))
    text = report.document({"steps": replace(RECORD, part=part)}, "page.md")
    assert " see below |\n" in text
    assert "\n- CNN, gRPC: against ideal: Why. Why. " in text


def test_parts_from_different_machines_have_a_table_each() -> None:
    other = replace(
        RECORD,
        part=replace(PART, title="Growth", ratios=()),
        machine={"CPU": "a slow one"},
        models=("cnn",),
    )
    text = report.document({"steps": RECORD, "growth": other}, "page.md")
    assert "**Step times**\n" in text and "**Growth**\n" in text
    assert "| a fast one |" in text and "| a slow one |" in text
    assert "only the model(s) cnn" in text


def test_records_are_read_as_they_were_written(tmp_path: Path) -> None:
    file = tmp_path / "benchmarks.json"
    record.write_records(file, {"steps": RECORD})
    assert record.read_records(file) == {"steps": RECORD}
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"parts": {"steps": {"part": {}}}}'])
def test_a_file_with_something_else_is_refused_in_one_line(tmp_path: Path, content: str) -> None:
    file = tmp_path / "other.json"
    file.write_text(content)
    with pytest.raises(RecordError, match="holds no parts of a benchmark") as caught:
        record.read_records(file)
    assert "\n" not in str(caught.value)


def test_the_processor_has_its_name_or_its_architecture() -> None:
    assert machine.cpu_model("processor : 0\nmodel name\t: Fast (TM) 9\n") == "Fast (TM) 9"
    assert machine.cpu_model("processor : 0\n") == machine.platform.machine()


def test_a_machine_without_others_has_none_of_its_cores_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Times = type(machine.psutil.cpu_times())
    zeros = dict.fromkeys(Times._fields, 0.0)
    before, after = Times(**zeros), Times(**zeros | {"user": 6.0, "idle": 12.0, "iowait": 2.0})
    monkeypatch.setattr(machine.psutil, "cpu_count", lambda: 2)
    assert machine.cores_taken(before, before, own_s=0.0) == 0.0
    assert machine.cores_taken(before, after, own_s=6.0) == 0.0
    assert machine.cores_taken(before, after, own_s=1.0) == pytest.approx(2 * 5 / 20)
