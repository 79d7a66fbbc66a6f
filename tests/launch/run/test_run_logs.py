"""The workers' logs: complete, and without effect on the run if they cannot be written."""

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import pytest

from tfdist.launch.errors import UsageError
from tfdist.launch.options.hosts import Host
from tfdist.launch.options.run_command_line import parse_run_options
from tfdist.launch.options.run_options import RunOptions
from tfdist.launch.run import command
from tfdist.launch.run.run_logs import (
    RunLogs,
    default_log_dir,
    is_running,
    kept_from_pruning,
    make_log_dir,
    prune_logs,
)
from tfdist.launch.workers.plan import Plan
from tfdist.launch.workers.worker_state import WorkerState

MakeWorker = Callable[..., WorkerState]


@pytest.fixture
def plan(make_worker: MakeWorker) -> Plan:
    """Two workers whose logs are in the test's folder."""
    workers = (make_worker().plan, make_worker().plan)
    return Plan(engine="grpc", hosts=(Host(name="localhost"),), workers=workers)


@contextmanager
def logs_of(plan: Plan) -> Iterator[tuple[RunLogs, list[str]]]:
    said: list[str] = []
    logs = RunLogs(plan, said.append)
    try:
        yield logs, said
    finally:
        logs.close()


def test_output_can_be_read_at_once_behind_that_of_an_earlier_start(plan: Plan) -> None:
    for text, expected in (("one\n", "one\n"), ("no newline: ä", "one\nno newline: ä")):
        with logs_of(plan) as (logs, said):
            logs.write(1, text)
            assert plan.workers[1].log_path.read_text(encoding="utf-8") == expected
            assert plan.workers[0].log_path.read_text() == ""
        assert said == []


@pytest.mark.parametrize(
    ("is_full", "problem"),
    [
        (True, "worker-0.log ends here: No space left on device"),
        (False, "cannot be written: Is a directory"),
    ],
)
def test_a_log_that_cannot_be_written_is_reported_once_and_the_others_go_on(
    plan: Plan, is_full: bool, problem: str
) -> None:
    log = plan.workers[0].log_path
    log.symlink_to("/dev/full") if is_full else log.mkdir()
    with logs_of(plan) as (logs, said):
        for _ in range(3):
            logs.write(0, "lost\n")
            logs.write(1, "kept\n")
    assert plan.workers[1].log_path.read_text() == "kept\n" * 3
    (line,) = said
    assert problem in line


def test_the_tail_has_the_output_of_this_start_alone_though_no_log_can_be_written(
    plan: Plan,
) -> None:
    plan.workers[0].log_path.write_text("MemoryError: of the first start\n")
    plan.workers[1].log_path.symlink_to("/dev/full")
    with logs_of(plan) as (logs, _):
        logs._files.pop(0).close()  # as with a log that cannot be opened again
        for worker in (0, 1):
            assert logs.tail(worker) == ()
            logs.write(worker, "DiskError: of the ")
            logs.write(worker, "second start\n")
            assert logs.tail(worker) == ("DiskError: of the second start",)
        logs.write(0, "x" * 70_000 + "\nlast\n")
        assert logs.tail(0) == ("last",)


def test_logs_that_are_closed_twice_are_closed_once(plan: Plan) -> None:
    with logs_of(plan) as (logs, _):
        logs.close()
        logs.write(0, "too late\n")
    assert plan.workers[0].log_path.read_text() == ""


def test_two_runs_in_one_second_have_folders_of_their_own_and_one_that_the_user_names_may_exist(
    tmp_path: Path,
) -> None:
    wanted = tmp_path / default_log_dir(datetime(2026, 3, 4, 5, 6, 7))
    assert wanted == tmp_path / "tfdist-logs" / "2026-03-04_05-06-07"
    made = [make_log_dir(wanted, must_be_new=True) for _ in range(3)]
    assert [folder.name for folder in made] == [wanted.name, f"{wanted.name}.2", f"{wanted.name}.3"]
    assert all(folder.is_dir() for folder in made)
    assert make_log_dir(wanted, must_be_new=False) == wanted


def old_run(folder: Path, name: str, *files: str) -> Path:
    (folder / name).mkdir()
    for file in ("start.log", "worker-0.log", *files):
        (folder / name / file).touch()
    return folder / name


def test_the_oldest_folders_of_logs_are_deleted(tmp_path: Path) -> None:
    names = ["2026-11-02_12-00-00", "2026-11-02_12-00-00.2", "2026-11-02_12-00-00.10"]
    for name in ("2026-11-01_12-00-00", *names):
        old_run(tmp_path, name, "worker-12.log", "evaluator.log")
    assert prune_logs(4, tmp_path) == 0
    assert prune_logs(3, tmp_path) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)
    assert prune_logs(1, tmp_path) == 2
    assert [path.name for path in tmp_path.iterdir()] == names[-1:]
    assert prune_logs(1, tmp_path / "missing") == 0


def test_only_folders_made_by_the_launcher_are_deleted(tmp_path: Path) -> None:
    named, noted = old_run(tmp_path, "mine"), old_run(tmp_path, "2026-11-01_12-00-00", "notes.txt")
    begun, linked = tmp_path / "2026-11-01_12-00-01", tmp_path / "2026-11-01_12-00-02"
    begun.mkdir()
    linked.symlink_to(named)
    old_run(tmp_path, "2026-11-03_12-00-00")
    assert prune_logs(1, tmp_path) == 0
    assert (named / "worker-0.log").exists() and (noted / "worker-0.log").exists()
    assert begun.is_dir() and linked.is_symlink()


def test_a_run_that_is_looked_at_while_it_starts_counts_as_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "start.log").open("w") as looks:
        fcntl.flock(looks, fcntl.LOCK_SH)
        monkeypatch.setattr("time.sleep", lambda seconds: looks.close())
        with kept_from_pruning(tmp_path):
            assert is_running(tmp_path)


def test_the_folder_of_a_running_run_is_not_deleted(tmp_path: Path) -> None:
    running = old_run(tmp_path, "2026-11-01_12-00-00")
    old_run(tmp_path, "2026-11-02_12-00-00")
    with kept_from_pruning(running):
        assert prune_logs(1, tmp_path) == 0
    assert prune_logs(1, tmp_path) == 1
    assert not running.exists()


class RunThatLooks:
    """A replacement of a run that writes the names in the folder of logs into its own log."""

    def __init__(self, options: RunOptions, log_dir: Path, *_: object) -> None:
        self._log_dir = log_dir

    async def run(self) -> int:
        found = sorted(path.name for path in self._log_dir.parent.iterdir())
        (self._log_dir / "worker-0.log").write_text("\n".join(found))
        return 0


def test_a_run_deletes_old_folders_before_it_starts_and_not_with_a_folder_of_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "Supervision", RunThatLooks)
    monkeypatch.setattr(command, "adopt_orphans", lambda: None)
    Path("tfdist-logs").mkdir()
    for day in range(1, 10):
        old_run(Path("tfdist-logs"), f"2001-01-0{day}_12-00-00")
    mine = ["--log-dir", "tfdist-logs/mine"]
    assert command.main(parse_run_options(["--keep-logs", "3", *mine, "true"])) == 0
    assert len(Path("tfdist-logs/mine/worker-0.log").read_text().split()) == 10
    assert command.main(parse_run_options(["--keep-logs", "3", "true"])) == 0
    (log,) = Path("tfdist-logs").glob("20[2-9]*/worker-0.log")
    kept = ["2001-01-08_12-00-00", "2001-01-09_12-00-00", log.parent.name, "mine"]
    assert log.read_text().split() == kept


@pytest.mark.parametrize(
    ("path", "must_be_new", "problem"),
    [
        ("file/logs", False, "Not a directory"),
        ("file/logs", True, "Not a directory"),
        ("file", False, "File exists"),
    ],
)
def test_a_file_where_a_folder_is_needed_is_refused(
    tmp_path: Path, path: str, must_be_new: bool, problem: str
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=f"{problem}.*--log-dir"):
        make_log_dir(tmp_path / path, must_be_new=must_be_new)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
