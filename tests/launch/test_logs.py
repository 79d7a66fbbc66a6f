"""`tfdist logs` and `tfdist status`: which run and which worker, while it runs and later."""

import os
import threading
from pathlib import Path

import pytest

from tfdist.launch.cli import main
from tfdist.launch.logs import follow, last_line, table
from tfdist.launch.run.run_logs import is_running, kept_from_pruning
from tfdist.testing.run import wait_until

OLD, NEW = "2026-11-20_10-00-00", "2026-11-21_18-41-08"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with the logs of two runs that have ended."""
    monkeypatch.chdir(tmp_path)
    for name in (OLD, NEW):
        run = tmp_path / "tfdist-logs" / name
        run.mkdir(parents=True)
        (run / "start.log").write_text("mpirun's words\n")
        for worker in (0, 1, 10):
            (run / f"worker-{worker}.log").write_text(f"{name}: step 1 of {worker}\n")
        (run / "evaluator.log").write_text("evaluated\n")
    return tmp_path / "tfdist-logs"


def test_the_newest_run_is_shown_worker_by_worker(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["logs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1::2] == [*(f"{NEW}: step 1 of {worker}" for worker in (0, 1, 10)), "evaluated"]
    assert lines[::2] == [
        f"==> tfdist-logs/{NEW}/{name}.log <=="
        for name in ("worker-0", "worker-1", "worker-10", "evaluator")
    ]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--worker", "1"], f"{NEW}: step 1 of 1\n"),
        (["--worker", "evaluator"], "evaluated\n"),
        (["--worker=start"], "mpirun's words\n"),
        ([OLD, "--worker", "10"], f"{OLD}: step 1 of 10\n"),
        ([f"tfdist-logs/{OLD}", "--worker", "10"], f"{OLD}: step 1 of 10\n"),
        (["--worker", "0", "--follow"], f"{NEW}: step 1 of 0\n"),
    ],
)
def test_one_log_is_shown_as_it_is(
    folder: Path, words: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["logs", *words]) == 0
    assert capsys.readouterr().out == expected


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--worker", "2"], 'has no log of "2". It has:'),
        (["2026-11-21_18-41-09"], f'Did you mean "{NEW}"?'),
        (["--log-dir", "elsewhere"], 'there are no logs of a run in "elsewhere"'),
        (["other"], "the run other has no log. It has: nothing."),
        (["mine"], '"mine/worker-7.log" cannot be read: Is a directory.'),
    ],
)
def test_what_is_not_there_is_named(
    folder: Path, words: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("mine/worker-7.log").mkdir(parents=True)
    Path("other").mkdir()
    Path("other/worker-a.log").touch()
    assert main(["logs", *words]) == 2
    assert error in capsys.readouterr().err


def test_lines_are_followed_until_the_run_ends(folder: Path) -> None:
    run, path = folder / NEW, folder / NEW / "worker-0.log"
    found: list[str] = []
    with kept_from_pruning(run):
        assert is_running(run)
        reader = threading.Thread(
            target=lambda: found.extend(line for _, line in follow(run, [path]))
        )
        reader.start()
        with path.open("a") as file:
            file.write("half a ")
            file.flush()
            assert wait_until(lambda: len(found) == 1, 10)
            file.write("line\nthe end")
    reader.join(10)
    assert found == [f"{NEW}: step 1 of 0\n", "half a line\n", "the end"]


def test_running_runs_are_listed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / NEW / "latest.log").symlink_to("gone")
    assert main(["status"]) == 0
    assert capsys.readouterr().out == "There is no running run in tfdist-logs.\n"
    with kept_from_pruning(folder / NEW):
        assert main(["status"]) == 0
        head, line = capsys.readouterr().out.splitlines()
        assert head.split() == ["RUN", "STATE", "WORKERS", "LAST", "OUTPUT"]
        assert line.split()[:3] == [NEW, "running", "3"]
        assert line.endswith(f" {NEW}: step 1 of 0")
    assert main(["status", "--all"]) == 0
    states = [line.split()[:2] for line in capsys.readouterr().out.splitlines()[1:]]
    assert states == [[OLD, "ended"], [NEW, "ended"]]


@pytest.mark.parametrize(
    ("seconds", "age"), [(5, "5 s ago"), (300, "5 min ago"), (9000, "2 h ago")]
)
def test_the_last_output_has_an_age(folder: Path, seconds: int, age: str) -> None:
    for path in (folder / OLD).iterdir():
        os.utime(path, (1000.0, 1000.0))
    assert age in table([folder / OLD], 1000.0 + seconds)[1]


def test_the_last_line_is_short_and_printable(tmp_path: Path) -> None:
    path = tmp_path / "worker-0.log"
    path.write_bytes(b"first\n\x1b[1m" + b"x" * 100 + b"\xff\n\n")
    assert last_line(path) == f"[1m{'x' * 54}..."
    assert last_line(tmp_path / "none.log") == ""
