import re
from dataclasses import replace
from pathlib import Path

import machine
import pytest
import report
import results
import run
from results import Part, Record, RecordError, Row
from turn_taking import Turn

PART = Part(
    title="Step times",
    about="Two workers train.",
    groups={
        "CNN": {
            "ideal": Row(ms=(4.0, 4.2, 4.3), over=(1.0, 1.0, 1.0), peak_mb=709),
            "tfdist | gRPC": Row(ms=(7.0, 7.25, 8.0), over=(1.7, 1.75, 1.8)),
        },
        "MLP": {"ideal": Row(ms=(1030.0, 1034.0, 1040.0), over=(1.0, 1.0, 1.0))},
    },
    ratios={
        "CNN, Horovod: step over ideal": (1.5, 1.6, 1.7),
        "CNN, gRPC: step over ideal": (1.2, 1.339, 1.4),
        "CNN, Horovod: times as fast as PyTorch DDP, gloo": (2.0, 2.5, 2.6),
        "CNN, gRPC: times as fast as PyTorch DDP, gloo": (2.0, 2.25, 2.6),
        "MLP, gRPC: times as fast as PyTorch DDP, gloo": (0.9, 0.95, 1.0),
    },
    missing=("tf.estimator 2.15: not installed. Install it.",),
)
RECORD = Record(
    part=PART,
    date="2026-01-31 12:00 UTC",
    rounds=20,
    machine={"CPU": "a fast one", "cores": "2"},
    cores_taken=0.04,
)


def turns(*seconds: float, peak_bytes: int = 0) -> list[Turn]:
    return [Turn(seconds=one, peak_bytes=peak_bytes) for one in seconds]


def lines(text: str, start: str) -> list[str]:
    """The lines that begin so, with single spaces."""
    return [" ".join(one.split()) for one in text.splitlines() if one.startswith(start)]


def test_ratios_are_taken_round_by_round() -> None:
    assert results.ratio([2.0, 6.0, 20.0], [1.0, 2.0, 5.0]) == (2.5, 3.0, 3.5)
    assert results.quartiles([7.0]) == (7.0, 7.0, 7.0)


@pytest.mark.parametrize(("above", "below"), [([1.0, 2.0], [1.0]), ([], [])])
def test_rounds_that_do_not_match_are_refused(above: list[float], below: list[float]) -> None:
    with pytest.raises(ValueError, match=f"found {len(above)} and {len(below)}"):
        results.ratio(above, below)


def test_a_contender_of_several_races_has_the_row_of_the_first() -> None:
    first = {"ideal": turns(1.0, 2.0), "a": turns(2.0, 4.0, peak_bytes=700_000_000)}
    second = {"a": turns(9.0, 9.0), "b": turns(4.0, 8.0)}
    rows = results.rows([first, second], "ideal")
    assert rows["a"] == Row(ms=(2500.0, 3000.0, 3500.0), over=(2.0, 2.0, 2.0), peak_mb=700)
    assert rows["b"].over[1] == 4.0


def test_a_ratio_is_from_a_race_that_has_both() -> None:
    races = [{"a": turns(1.0)}, {"a": turns(4.0), "b": turns(2.0)}]
    found = results.ratios(races, [("a over b", "a", "b"), ("a over c", "a", "c")])
    assert found == {"a over b": (2.0, 2.0, 2.0)}


def test_the_page_says_first_how_many_times_as_fast_as_others_tfdist_is() -> None:
    text = report.page({"steps": RECORD}, {"steps": ("steps.png", "Bars")})
    assert text.startswith("# Benchmarks\n") and "[the record](lab/record.md)" in text
    [peer] = lines(text, "| PyTorch DDP, gloo")
    assert peer == "| PyTorch DDP, gloo | 2.50 / 2.25 | 0.95 |"
    assert text.index(peer[:10]) < text.index("## Against the bounds") < text.index("![Bars](steps")


def test_fits_are_compared_in_a_table_of_their_own() -> None:
    ratios = {
        "CNN, Keras 3: times as fast as Horovod, tape": (1.0, 1.25, 1.5),
        "CNN, tf_keras: times as fast as Horovod, tape": (1.0, 1.125, 1.5),
    }
    fit = replace(RECORD, part=replace(PART, ratios=ratios))
    text = report.page({"fit": fit}, {})
    assert lines(text, "| Horovod, tape") == ["| Horovod, tape | 1.25 / 1.12 |"]
    assert "## Against the bounds" not in text


def test_a_value_beyond_its_bound_is_marked_and_a_bound_has_its_reason() -> None:
    part = replace(PART, ratios={**PART.ratios, "CNN, gRPC: step over ideal": (1.8, 1.9, 2.0)})
    text = report.page({"steps": replace(RECORD, part=part)}, {})
    kept, worse = lines(text, "| CNN, ")
    assert kept.endswith("step over ideal | 1.60 | at most 1.7 | |")
    assert worse.endswith("step over ideal | 1.90 | at most 1.85 | **worse** |")
    reason, _ = lines(text, "- CNN, ")
    assert reason.startswith("- CNN, 1.4 MB of gradients, Horovod: step over ideal: With a core")


def test_every_key_figure_was_measured_and_is_within_its_bound() -> None:
    records = results.read_records(run.DOCS / run.JSON)
    for figure in report.KEY_FIGURES:
        _, median, _ = records[figure.part].part.ratios[figure.ratio]
        assert figure.is_kept(median), figure.meaning


def test_the_record_has_a_table_for_each_part_and_the_machines() -> None:
    other = replace(RECORD, part=replace(PART, title="Pipelines"), machine={"CPU": "a slow one"})
    text = report.record_page({"steps": RECORD, "pipelines": other})
    assert "| tfdist \\| gRPC | 7.25 (1.75) | |" in lines(text, "| tfdist")
    assert lines(text, "| ideal")[0] == "| ideal | 4.2 (1.00; 709 MB) | 1,034 (1.00) |"
    assert "2026-01-31 12:00 UTC, 20 rounds, while other processes took 0.04 of 2 cores." in text
    assert "Left out: tf.estimator 2.15: not installed. Install it." in text
    assert "- Step times: CPU a fast one, cores 2.\n- Pipelines: CPU a slow one.\n" in text
    assert not re.search(r"\n\n\n", text)


def test_models_that_are_not_measured_again_stay_and_say_how_they_were_measured() -> None:
    titles = list(PART.groups)
    kept, again = titles[0], titles[1]
    part = replace(PART, groups={again: PART.groups[again]}, ratios={})
    both = results.with_earlier(replace(RECORD, part=part, rounds=3), RECORD)
    assert both.part.groups == PART.groups
    of_kept = {n: r for n, r in PART.ratios.items() if n.startswith(kept.partition(",")[0])}
    assert both.part.ratios == of_kept and of_kept
    text = report.section(both)
    assert "Measured on 2026-01-31 12:00 UTC, 3 rounds" in text
    assert f"{kept}: measured on 2026-01-31 12:00 UTC, 20 rounds" in " ".join(text.split())
    assert results.with_earlier(RECORD, both) == RECORD


def test_the_longer_of_groups_and_contenders_stands_below_one_another() -> None:
    row = Row(ms=(1.0, 1.0, 1.0), over=(1.0, 1.0, 1.0))
    text = report.group_table({f"m = {m}": {"ours": row} for m in (4, 8)})
    assert text.splitlines()[0].split() == ["|", "|", "ours", "|"]


def test_records_are_read_as_they_were_written_and_have_no_single_times(tmp_path: Path) -> None:
    file = tmp_path / "benchmarks.json"
    results.write_records(file, {"steps": RECORD})
    assert results.read_records(file) == {"steps": RECORD}
    assert list(tmp_path.iterdir()) == [file]
    longest = max(map(len, file.read_text().splitlines()))
    assert longest <= results.LINE_WIDTH


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"parts": {"steps": {"part": {}}}}'])
def test_a_file_with_something_else_is_refused_in_one_line(tmp_path: Path, content: str) -> None:
    file = tmp_path / "other.json"
    file.write_text(content)
    with pytest.raises(RecordError, match="holds no parts of a benchmark") as caught:
        results.read_records(file)
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
