"""`tfdist slurm`: options, the batch script, and the reading of a job's end."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tfdist.launch.cli import main
from tfdist.launch.failures.first_failure import Verdict
from tfdist.launch.slurm.ending import (
    ending,
    failure_of,
    is_hopeless,
    is_node_lost,
    stopped_after,
)
from tfdist.launch.slurm.nodes import command_on
from tfdist.launch.slurm.script import batch_script
from tfdist.launch.slurm.slurm_checks import slurm_options
from tfdist.launch.slurm.slurm_options import SLURM, SlurmOptions, time_limit_s
from tfdist.launch.slurm.worker import JobFiles, WorkerRecord


@pytest.fixture(autouse=True)
def in_a_folder_with_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("")


def options(*words: str) -> SlurmOptions:
    return slurm_options(SLURM.parse([*words, "--", "python", "train.py"]))


def record(host: str, code: int | None = None, *, ended_s: float | None = None) -> WorkerRecord:
    return WorkerRecord(host=host, pid=1, started_s=100.0, ended_s=ended_s, code=code)


@pytest.mark.processes
def test_the_workers_of_a_job_do_not_get_the_variables_of_the_run_it_was_submitted_from() -> None:
    of_a_run = (
        *("TF_CONFIG", "TFDIST_NUM_INSTANCES", "TFDIST_RUN", "TFDIST_SNAPSHOT_STEPS"),
        *("OMPI_COMM_WORLD_RANK", "HOROVOD_RANK", "HOROVOD_CONTROLLER", "PMI_SIZE", "PMIX_RANK"),
        "MV2_COMM_WORLD_SIZE",
    )
    of_the_job = {"SLURM_JOB_NAME": "j", "SLURM_JOB_ID": "1", "SLURM_PROCID": "0"}
    code = "import os; open('names', 'w').write(' '.join(os.environ))"
    worker = [sys.executable, "-m", "tfdist.launch.slurm.worker", sys.executable, "-c", code]
    job = [sys.executable, "-m", "tfdist.launch.slurm.job", "--num-workers=1", "--log-dir=."]
    environ = {**os.environ, **dict.fromkeys(of_a_run, "1"), **of_the_job}
    subprocess.run([*job, "--", *worker], env=environ, check=True, timeout=60)
    names = set(Path("names").read_text().split())
    assert names >= of_the_job.keys()
    assert not names & set(of_a_run)


# --- the script ---------------------------------------------------------------------------------


def test_the_script_of_a_grpc_job() -> None:
    words = ("--nodes=3", "--tasks-per-node=2", "--cpus-per-task=4", "--time=02:00:00")
    job = options(*words, "--partition=gpu", "--requeue", "--max-restarts=2", "-x", "LR=0.1")
    assert (
        batch_script(job, environ={})
        == f"""\
#!/bin/bash
# Written by `tfdist slurm`. The log folder must be there when the job starts.
#SBATCH --job-name=train
#SBATCH --nodes=3
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=4
#SBATCH --time=02:00:00
#SBATCH --partition=gpu
#SBATCH --output=logs/%x-%j.log
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@120
#SBATCH --export=ALL
#SBATCH --requeue

export LR=0.1
export OMP_NUM_THREADS=4
export OPENBLAS_NUM_THREADS=4
export PYTHONUNBUFFERED=1
export TFDIST_DEVICES_PER_REPLICA=1
export TFDIST_GRACE_S=120
export TFDIST_NUM_LOCAL_REPLICAS=1
export TF_NUM_INTRAOP_THREADS=4
python={sys.executable}

# Starts the workers, passes signals on to them, and ends as the one that failed first.
exec "$python" -m tfdist.launch.slurm.job \\
    --num-workers=6 --log-dir=logs --grace=30 --max-restarts=2 --requeue -- \\
    srun --nodes=3 --ntasks-per-node=2 --cpus-per-task=4 --distribution=block \\
    --kill-on-bad-exit=1 \\
    "$python" -m tfdist.launch.slurm.worker \\
    python train.py
"""
    )


def test_the_script_of_a_horovod_job_starts_mpirun_with_as_many_ranks_on_each_node() -> None:
    job = options("--engine=horovod", "--nodes=2", "--tasks-per-node=4", "--gpus-per-task=1")
    script = batch_script(job, mpirun="/opt/bin/mpirun", environ={})
    words = script.replace("\\\n", " ").split()
    assert "srun" not in words
    start = words[words.index("/opt/bin/mpirun") :]
    for expected in (["--map-by", "ppr:4:node", "-np", "8"], ["--bind-to", "none"]):
        place = start.index(expected[0])
        assert start[place : place + len(expected)] == expected
    # Slurm would give the GPUs of one task to each node's single daemon.
    assert "#SBATCH --gpus-per-node=4\n" in script
    assert "per-task" not in script


def test_slurm_does_not_end_an_elastic_job_that_lost_a_node() -> None:
    job = options("--nodes=3", "--max-restarts=1", "--min-instances=2", "--snapshot-steps=5")
    script = batch_script(job, environ={})
    assert "#SBATCH --no-kill\n" in script
    assert " --min-instances=2 " in script
    assert " --snapshot-steps=5 " in script


def test_a_smaller_start_is_on_the_nodes_that_are_left() -> None:
    program = ["train.py", "--nodes=9", "-np", "9"]
    srun = ["srun", "--nodes=3", "--ntasks-per-node=2", *program]
    smaller = ["srun", "--nodes=2", "--ntasks=4", "--nodelist=a,c", "--ntasks-per-node=2"]
    assert command_on(srun, ["a", "c"], 2) == [*smaller, *program]
    mpirun = ["mpirun", "--map-by", "ppr:2:node", "-np", "6", *program]
    smaller = ["mpirun", "--map-by", "ppr:2:node", "-np", "4", "--host", "a:2,c:2"]
    assert command_on(mpirun, ["a", "c"], 2) == [*smaller, *program]


@pytest.mark.processes
def test_every_word_and_value_reaches_the_worker_unchanged(tmp_path: Path) -> None:
    values = ["a b", "it's", '"$HOME"', "`id`", "$(id)", "*", "\\", "two\nlines\n#SBATCH --uid=0"]
    given = ["-x", f"VALUE={values[-1]}", "--", "python", "train.py", *values]
    script = batch_script(slurm_options(SLURM.parse(given)), environ={})
    directives = script.partition("\n\n")[0].splitlines()
    assert [line for line in directives if "uid" in line] == []
    # The shell itself reads the script; only the program is replaced.
    show = "import os, sys; print(repr(sys.argv[1:]), repr(os.environ['VALUE']))"
    script = script.replace(f"python={sys.executable}", f"python=({sys.executable} -c {show!r})")
    script = script.replace('"$python" -m', '"${python[@]}" -m')
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    words = done.stdout.strip()
    assert words.endswith(f"{['python', 'train.py', *values]!r}"[1:] + f" {values[-1]!r}")


def test_a_variable_without_a_value_is_not_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "secret")
    script = batch_script(options("--env", "TOKEN"))
    assert "secret" not in script
    assert "#SBATCH --export=ALL" in script


def test_own_options_of_sbatch_become_lines_of_their_own() -> None:
    script = batch_script(options("--sbatch-args=--exclusive --constraint=v100|a100"), environ={})
    assert "#SBATCH --exclusive\n#SBATCH --constraint=v100|a100\n" in script


@pytest.mark.parametrize(
    ("words", "places"),
    [
        ([], (1, 1)),
        (["--nodes=3"], (3, 1)),
        (["--tasks-per-node=2"], (1, 2)),
        (["--num-instances=4"], (4, 1)),
        (["--num-instances=4", "--nodes=2"], (2, 2)),
        (["--num-instances=4", "--tasks-per-node=4"], (1, 4)),
        (["--num-instances=6", "--nodes=2", "--tasks-per-node=3"], (2, 3)),
    ],
)
def test_missing_sizes_are_derived_from_the_given_ones(
    words: Sequence[str], places: tuple[int, int]
) -> None:
    found = options(*words)
    assert (found.nodes, found.tasks_per_node) == places


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["python", "train.py"], "train"),
        (["train.py", "--epochs", "3"], "train"),
        (["-m", "json.tool"], "json.tool"),
        (["sh", "-c", "x"], "sh"),
    ],
)
def test_a_job_is_named_after_its_program(command: Sequence[str], name: str) -> None:
    assert slurm_options(SLURM.parse(["--", *command])).job_name == name


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 5400),
        ("90:30", 5430),
        ("02:30:00", 9000),
        ("1-12", 129600),
        ("1-12:30", 131400),
        ("1-12:30:15", 131415),
        ("0", 0),
        ("", 0),
        ("1h", 0),
        ("-5", 0),
        ("1:2:3:4", 0),
    ],
)
def test_times_are_read_as_slurm_does(text: str, seconds: int) -> None:
    assert time_limit_s(text) == seconds


# --- bad input ----------------------------------------------------------------------------------

RUN = ["--", "python", "train.py"]
BAD_INPUT = [
    (["--nodes=3"], ["no command", "python train.py"]),
    (["--time=1h", *RUN], ['"1h"', "HOURS:MINUTES:SECONDS", "02:30:00"]),
    (["--time=0", *RUN], ['"0"', "above 0"]),
    (["--time=2", *RUN], ["--time 2", "--save-before-end 120", "Raise"]),
    (["--job-name=a b", *RUN], ["--job-name", '"a b"', "train-1"]),
    (["--partition=gpu;rm", *RUN], ["--partition", '"gpu;rm"']),
    (["--account=", *RUN], ["--account", '""']),
    (["--qos=a\nb", *RUN], ["--qos", '"a\\nb"']),
    (["--mem=16GB", *RUN], ["--mem", '"16GB"', "16G"]),
    (["--log-dir=my logs", *RUN], ["--log-dir", '"my logs"', "logs"]),
    (["--log-dir=%j", *RUN], ["--log-dir", '"%j"']),
    (["--log-dir=train.py", *RUN], ["--log-dir", "train.py", "not a folder"]),
    (["--nodes=0", *RUN], ["--nodes", '"0"', "from 1"]),
    (["--tasks-per-node=65", *RUN], ["--tasks-per-node is 65", "at most 64", "more nodes"]),
    (["--num-instances=5", "--nodes=2", *RUN], ["is 5", "--nodes is 2", "4 or 6"]),
    (["--num-instances=5", "--tasks-per-node=2", *RUN], ["--tasks-per-node is 2", "4 or 6"]),
    (
        ["--num-instances=5", "--nodes=2", "--tasks-per-node=2", *RUN],
        ["is 5", "make 4", "Leave one"],
    ),
    (["--nodes=2", "--num-replicas=3", *RUN], ["--num-replicas is 3", "2 or 4"]),
    (["--num-replicas=2", "--gpus-per-task=1", *RUN], ["--gpus-per-task is 1", "task 2"]),
    (["--cpus-per-task=2", "--threads=4", *RUN], ["--threads is 4", "--cpus-per-task 4"]),
    (["--evaluator", *RUN], ["--evaluator", "Leave it out", "worker 0"]),
    (["--sbatch-args=--nodes=4", *RUN], ["--nodes", "sets itself", "use --nodes"]),
    (["--sbatch-args=--comment='a b'", *RUN], ['"--comment=a b"', "--exclusive"]),
    (["--sbatch-args=rm -rf", *RUN], ['"rm"', "options of sbatch"]),
    (["--save-before-end=x", *RUN], ["--save-before-end", '"x"']),
    (["-x", "1A=2", *RUN], ['"1A"', "NAME=VALUE"]),
    (["-x", "TF_CONFIG={}", *RUN], ["TF_CONFIG", "Remove it"]),
    (["--sbatch-args=--no-kill", *RUN], ["--no-kill", "use --min-instances"]),
    (["--nodes=2", "--min-instances=1", *RUN], ["--min-instances is 1", "Add for example"]),
    (["--snapshot-steps=5", *RUN], ["--snapshot-steps is 5", "Add for example"]),
    (["--max-restarts=1", "--min-instances=2", *RUN], ["--min-instances is 2", "Use at most 1"]),
    (["--nodse=3", *RUN], ['"--nodse"', '"--nodes"']),
    (["--", "python", "trian.py"], ['"trian.py"', '"train.py"']),
]


@pytest.mark.parametrize(("argv", "phrases"), BAD_INPUT)
def test_bad_input_is_refused_in_two_lines_with_the_fix(
    argv: Sequence[str], phrases: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["slurm", "--dry-run", *argv]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("tfdist slurm: error: ")
    assert captured.err.count("\n") <= 2
    assert [phrase for phrase in phrases if phrase not in captured.err] == [], captured.err
    assert not Path("logs").exists()


@pytest.mark.processes
def test_a_missing_sbatch_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    assert main(["slurm", *RUN]) == 2
    assert "no sbatch on PATH" in capsys.readouterr().err


@pytest.mark.processes
def test_a_job_is_submitted_though_its_script_is_neither_read_to_its_end_nor_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sbatch = tmp_path / "bin" / "sbatch"
    sbatch.parent.mkdir()
    sbatch.write_text("#!/bin/sh\necho 7\n")
    sbatch.chmod(0o755)
    monkeypatch.setenv("PATH", f"{sbatch.parent}{os.pathsep}{os.environ['PATH']}")
    Path("logs/train-7.sbatch").mkdir(parents=True)
    assert main(["slurm", *RUN, "x" * 200_000]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("job 7: logs/train-7.sbatch\n")
    assert captured.err == "tfdist slurm: logs/train-7.sbatch is not written: Is a directory\n"


# --- the end of a job -----------------------------------------------------------------------------


def test_the_first_worker_that_failed_by_itself_is_to_blame() -> None:
    records = {
        0: record("a", -signal.SIGTERM, ended_s=105.0),
        1: record("b", 200, ended_s=103.0),
        2: record("c", 7, ended_s=104.0),
    }
    assert ending(records, 143) == Verdict(exit_code=7, worker=2)
    assert stopped_after(ending(records, 143), records) == {"worker 0": False}


def test_a_lost_worker_is_to_blame_though_its_end_is_unknown() -> None:
    records = {0: record("a", 200, ended_s=103.0), 1: record("b")}
    end = ending(records, 137)
    assert (end.exit_code, end.worker, end.kind) == (124, 1, "silent")


@pytest.mark.parametrize(("code", "step_code"), [(200, 200), (-signal.SIGTERM, 205)])
def test_a_worker_on_a_node_that_does_not_answer_is_to_blame_with_any_exit_code(
    code: int, step_code: int
) -> None:
    records = {worker: record("a", code, ended_s=103.0 + worker) for worker in range(3)}
    assert is_node_lost(records, step_code)
    end = ending(records, step_code, unreachable=[2])
    assert (end.exit_code, end.worker, end.kind) == (124, 2, "silent")


@pytest.mark.parametrize(("code", "expected"), [(0, 0), (138, 138), (143, 143)])
def test_workers_that_saved_and_stopped_are_not_to_blame(code: int, expected: int) -> None:
    records = {worker: record("a", code, ended_s=103.0) for worker in range(2)}
    assert ending(records, 0) == Verdict(exit_code=expected)


def test_without_records_the_exit_code_is_that_of_srun() -> None:
    assert ending({}, 1) == Verdict(exit_code=1)


def test_workers_that_mpirun_stopped_after_a_lost_node_are_not_to_blame() -> None:
    records = {worker: record("a", -signal.SIGTERM, ended_s=103.0) for worker in range(2)}
    assert ending(records, 205) == Verdict(exit_code=200)


def test_a_job_is_hopeless_once_all_others_left_a_lost_worker_or_the_grace_period_is_over() -> None:
    lost = {0: record("a", 200, ended_s=103.0), 1: record("b")}
    assert not is_hopeless(lost, now_s=106.0, grace_s=30.0)
    assert is_hopeless(lost, now_s=109.0, grace_s=30.0)
    failed = {0: record("a", 7, ended_s=103.0), 1: record("b")}
    assert not is_hopeless(failed, now_s=132.0, grace_s=30.0)
    assert is_hopeless(failed, now_s=134.0, grace_s=30.0)
    assert not is_hopeless({0: record("a")}, now_s=1e6, grace_s=30.0)


def test_the_report_of_a_failure_comes_from_its_record_and_its_log(tmp_path: Path) -> None:
    files = JobFiles(str(tmp_path / "train-7"))
    files.log_path(0).write_text("one\ntwo\n")
    files.write(0, record("a", 7, ended_s=103.0))
    records = files.read(2)
    failure = failure_of(ending(records, 7), records, files)
    assert failure is not None
    assert (failure.name, failure.host, failure.after_s) == ("worker 0", "a", 3.0)
    assert tuple(failure.log_tail) == ("one", "two")
    assert failure.log_path == Path("train-7-0.log")
    last = failure_of(ending(records, 7), records, files, {0: len("one\n")})
    assert last is not None
    assert tuple(last.log_tail) == ("two",)
    later = JobFiles(files.prefix, start=1)
    assert later.read(2) == {}  # a worker that was lost does not speak for its successor
    later.remove(2)
    assert [path.name for path in tmp_path.glob("train-7*")] == ["train-7-0.log"]


# --- the process beside each worker -------------------------------------------------------------


@pytest.mark.processes
def test_a_worker_that_saved_and_stopped_does_not_make_slurm_kill_the_others(
    tmp_path: Path,
) -> None:
    files = JobFiles(str(tmp_path / "train-7"))
    for code, expected in ((138, 0), (7, 7)):
        program = f"print('hello'); raise SystemExit({code})"
        assert _run_worker(files, sys.executable, "-c", program) == expected
        assert files.read(1)[0].code == code
    assert files.log_path(0).read_text() == "hello\nhello\n"


@pytest.mark.processes
def test_a_command_that_cannot_be_started_is_on_record(tmp_path: Path) -> None:
    files = JobFiles(str(tmp_path / "train-7"))
    assert _run_worker(files, "./no-such-program") == 127
    assert "cannot start ./no-such-program: No such file" in files.log_path(0).read_text()


def _run_worker(files: JobFiles, *command: str) -> int:
    words = [sys.executable, "-m", "tfdist.launch.slurm.worker", *command]
    environ = {**os.environ, **files.environment(), "SLURM_PROCID": "0"}
    return subprocess.run(words, env=environ, timeout=20).returncode
