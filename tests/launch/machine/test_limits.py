"""Refusals before the start of a run that is too large, or whose folder does not exist."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tfdist.launch.cli import main
from tfdist.launch.errors import UsageError
from tfdist.launch.machine.limits import (
    Limits,
    check_command,
    check_cores,
    check_size,
    check_words,
)

ENOUGH = Limits(open_files=10**6, processes=10**6, memory_bytes=10**12)
LONG = ["a" * 120_000] * 10
# Words of the command line -> phrases of the message. hosts names a thousand hosts.
TOO_LARGE: list[tuple[list[str], list[str]]] = [
    (["run", "--num-instances=100000"], ["100000 workers", "GB of memory", "--host"]),
    (["run", "--num-instances=100000", "--dry-run"], ["GB of memory", "--host"]),
    (["run", "--num-instances=100000", "--hostfile=hosts"], ["400032 files", "ulimit -n"]),
    (
        ["run", "--num-instances=5000", "--hostfile=hosts", "--dry-run"],
        ["TF_CONFIG", "131071", "Use at most"],
    ),
    (
        ["run", "--num-instances=100000", "--hostfile=hosts", "--dry-run", "--engine=horovod"],
        ["command of mpirun", "Use fewer workers"],
    ),
    (["run", "--num-instances=17"], ["17 workers", "2 core(s)", "at most 16", "--oversubscribe"]),
    (["run", "--log-dir="], ['got ""', "Write for example logs"]),
    (["run", "--", "cat", *LONG], ["worker 0 have 12", "1048575", "Put long lists into a file"]),
    (["run", "--dry-run", "--", "cat", *LONG], ["worker 0 have 12", "1048575"]),
    (["run", "--", "cat", "a" * 131_072], ["131072 bytes", "131071", "Put it into a file"]),
    (["run", f"--env=A={'a' * 131_072}"], ["131074 bytes", "131071", "Put it into a file"]),
    (["kubernetes", "--name=a", "--image=i", "--num-instances=100000"], ["TF_CONFIG", "131071"]),
    (["slurm", f"--log-dir={'a' * 300}"], ["--log-dir", "cannot be made", "another folder"]),
]


@pytest.mark.parametrize(("words", "phrases"), TOO_LARGE)
def test_a_run_that_is_too_large_is_refused_at_once(
    words: list[str],
    phrases: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("hosts").write_text("".join(f"host{i}.cluster.example.org\n" for i in range(1000)))
    # The limits of most machines, in place of this one's.
    limits = Limits(open_files=1024, processes=30_000, memory_bytes=16 << 30)
    monkeypatch.setattr("tfdist.launch.run.command.find_limits", lambda: limits)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 1})
    monkeypatch.setattr("tfdist.launch.run.starters.find_mpirun", lambda: "mpirun")
    monkeypatch.setattr("tfdist.launch.run.command.horovod_problem", lambda: None)
    started_s = time.process_time()
    assert main(words if "--" in words else [*words, "--", "cat"]) == 2
    assert time.process_time() - started_s < 2.0
    out, message = capsys.readouterr()
    assert [phrase for phrase in phrases if phrase not in message] == [], message
    assert (out, len(message.splitlines()) <= 2) == ("", True)
    assert [path.name for path in tmp_path.iterdir()] == ["hosts"]


@pytest.mark.parametrize("command", ["run", "run --dry-run", "slurm --dry-run", "doctor"])
def test_a_current_folder_that_was_removed_is_named_in_one_line(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert main([*command.split(), "--", "sleep", "1"]) == 2
    message = capsys.readouterr().err
    assert "the current folder does not exist any more. Change to a folder" in message
    assert len(message.splitlines()) == 1


@pytest.mark.processes
def test_few_open_files_are_noticed_by_the_real_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tfdist", "run", "--num-instances", "16", "--", "sleep", "60"]
    done = subprocess.run(
        ["sh", "-c", 'ulimit -n 32; exec "$@"', "sh", *command],
        cwd=tmp_path,
        env={"PYTHONPATH": str(Path(__file__).parents[3]), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        "for 16 workers the launcher opens up to 96 files, and the limit here is 32" in done.stderr
    )
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_each_limit_is_checked() -> None:
    check_cores(16, 2)
    with pytest.raises(UsageError, match="more than 8 for each"):
        check_cores(17, 2)
    check_size(1000, 0, ENOUGH)
    check_size(0, 100_000, ENOUGH)
    for limit in ("open_files", "processes", "memory_bytes"):
        with pytest.raises(UsageError, match="1000"):
            check_size(1000, 0, Limits(**{**vars(ENOUGH), limit: 1000}))


def test_words_are_measured_in_bytes() -> None:
    check_words(["a" * 131_071], {"A": "a" * 131_069})
    with pytest.raises(UsageError):
        check_words(["\N{GREEK SMALL LETTER ALPHA}" * 70_000], {})
    with pytest.raises(UsageError, match="the command of mpirun"):
        check_command("mpirun", ["a" * 1000] * 100_000, {})


def test_a_thousand_workers_over_hosts_are_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tfdist.launch.run.starters.find_mpirun", lambda: "mpirun")
    started_s = time.process_time()
    words = ["run", "--dry-run", "--num-instances=1000", "--host=n[0-999]", "--", "cat"]
    assert main(words) == 0
    assert time.process_time() - started_s < 4.0
    assert "# worker 999 on n999" in capsys.readouterr().out
