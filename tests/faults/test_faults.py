"""Faults that really happen to a training under the launcher: who is told to have failed, and when.

On two idle cores all have ended 1 to 5 s after a fault, 10 s where mpirun waits for a killed rank.
The limits are those of a slower, busy machine; a run that does not end is stopped long after them.
"""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tfdist.testing import engine_problem

# Seconds from the fault, or from the stall timeout, to the end of the last process.
LIMIT_S = 15.0
STALL_S = 8
# Over Horovod the others wait inside MPI for a rank that failed. On an idle machine all have ended
# within 3 s.
RANK_LIMIT_S = 12.0

needs_horovod = pytest.mark.skipif(
    engine_problem("horovod") is not None, reason=str(engine_problem("horovod"))
)

Fault = tuple[tuple[str, int, str, str, int], tuple[int, str, int | None]]

# (engine, workers, fault, when, who), (exit code, words about it, the last whole checkpoint at
# least: worker 0 may end while it writes that of step 30)
FAULTS: list[Fault] = [
    (("grpc", 2, "exception", "start", 1), (1, "exit code 1", None)),
    (("grpc", 2, "kill", "first step", 1), (137, "SIGKILL", 0)),
    (("grpc", 2, "stop", "middle", 1), (124, "stopped (SIGSTOP)", 30)),
    (("grpc", 2, "hang", "middle", 1), (124, "between two steps", 30)),
    (("grpc", 2, "memory", "middle", 1), (1, "exit code 1", 30)),
    (("grpc", 2, "kill", "saving", 0), (137, "SIGKILL", 10)),
    (("grpc", 3, "exit 0", "end", 1), (1, "too early", 60)),
    (("horovod", 2, "exit 3", "first step", 0), (3, "exit code 3", 0)),
    (("horovod", 2, "kill", "middle", 1), (137, "SIGKILL", 30)),
    (("horovod", 2, "exit 0", "middle", 1), (1, "too early", 30)),
]

# The same of Keras' `fit`; the checkpoint is BackupAndRestore's. The first ones are in each run of
# the suite, the others where the table is written.
FAULTS_OF_FIT: list[Fault] = [
    (("grpc", 2, "kill", "middle", 0), (137, "SIGKILL", 30)),
    (("grpc", 2, "exit 0", "middle", 1), (1, "too early", 30)),
    (("horovod", 2, "hang", "middle", 0), (124, "between two steps", 30)),
    (("grpc", 2, "exception", "start", 1), (1, "exit code 1", None)),
    (("grpc", 2, "kill", "first step", 1), (137, "SIGKILL", None)),
    (("grpc", 2, "stop", "middle", 1), (124, "stopped (SIGSTOP)", 30)),
    (("grpc", 2, "memory", "middle", 1), (1, "exit code 1", 30)),
    (("grpc", 3, "kill", "saving", 0), (137, "SIGKILL", 10)),
    (("grpc", 3, "kill", "evaluation", 2), (137, "SIGKILL", 30)),
    (("grpc", 3, "exit 0", "end", 1), (0, "", 60)),
    (("grpc", 2, "full disk", "saving", 0), (28, "no room", 10)),
    (("horovod", 2, "exit 3", "first step", 0), (3, "exit code 3", None)),
    (("horovod", 2, "kill", "middle", 1), (137, "SIGKILL", 30)),
]
# And of a loop of one's own, which saves a checkpoint every ten steps. One whose program ends
# before the others' has made fewer steps.
FAULTS_OF_LOOP: list[Fault] = [
    (("grpc", 2, "hang", "middle", 1), (124, "between two steps", 30)),
    (("horovod", 2, "exit 0", "middle", 1), (2, "exit code 2", 30)),
    (("grpc", 3, "kill", "middle", 2), (137, "SIGKILL", 30)),
    (("grpc", 2, "exception", "start", 1), (1, "exit code 1", None)),
    (("grpc", 2, "kill", "first step", 1), (137, "SIGKILL", None)),
    (("grpc", 2, "stop", "middle", 1), (124, "stopped (SIGSTOP)", 30)),
    (("grpc", 2, "memory", "middle", 1), (1, "exit code 1", 30)),
    (("grpc", 3, "kill", "saving", 0), (137, "SIGKILL", 10)),
    (("grpc", 3, "exit 0", "middle", 1), (2, "exit code 2", 30)),
    (("grpc", 2, "full disk", "saving", 0), (1, "exit code 1", 10)),
    (("horovod", 2, "exit 3", "first step", 0), (2, "exit code 2", None)),
    (("horovod", 2, "hang", "middle", 0), (124, "between two steps", 30)),
    (("horovod", 2, "kill", "middle", 1), (137, "SIGKILL", 30)),
]
# Loops whose program does what few do, at its step 35: exit code, words about the failed worker,
# and the last checkpoint. The others end because of it, or train on.
HABITS: list[Fault] = [
    (("grpc", 2, "starts a daemon", "middle", 1), (0, "", 60)),
    (("grpc", 2, "closes its output", "middle", 0), (1, "exit code 1", 30)),  # It prints.
    (("grpc", 2, "calls os._exit", "middle", 1), (7, "exit code 7", 30)),
    (("grpc", 2, "changes its folder", "middle", 0), (0, "", 60)),
    (("grpc", 2, "prints 100 MB", "middle", 1), (0, "", 60)),
    (("grpc", 2, "prints binary data", "middle", 1), (0, "", 60)),
    (("grpc", 2, "ignores SIGTERM", "middle", 1), (124, "between two steps", 30)),
    (("grpc", 2, "has processes of its own", "middle", 1), (0, "", 60)),
    (("grpc", 2, "deletes its folder", "middle", 0), (0, "", 60)),
    (("grpc", 2, "has 64 descriptors", "start", 1), (0, "", 60)),
]
NUM_IN_SUITE = 3
PROGRAM_NAMES = {"training": "", "fit": ", `fit`", "loop": ", loop"}
OF_PROGRAMS = {
    "training": FAULTS,
    "fit": FAULTS_OF_FIT,
    "loop": [*FAULTS_OF_LOOP[:NUM_IN_SUITE], *HABITS, *FAULTS_OF_LOOP[NUM_IN_SUITE:]],
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "program" not in metafunc.fixturenames or "case" not in metafunc.fixturenames:
        return
    has_all = metafunc.config.getoption("--write-fault-table")
    cases = [
        pytest.param(
            *one,
            program,
            id="-".join([program, *map(str, one[0])]),
            marks=needs_horovod if one[0][0] == "horovod" else (),
        )
        for program, faults in OF_PROGRAMS.items()
        for one in (faults if has_all or program == "training" else faults[:NUM_IN_SUITE])
    ]
    metafunc.parametrize(("case", "expected", "program"), cases)


def test_the_worker_that_failed_is_named_and_all_end_soon(
    program: str,
    case: tuple[str, int, str, str, int],
    expected: tuple[int, str, int | None],
    run_to_fault: Callable[..., Any],
    fault_table: list[tuple[str, ...]],
    within: Callable[[float], float],
) -> None:
    engine, num_workers, fault, moment, worker = case
    exit_code, words, last_step = expected
    is_stall = fault in ("stop", "hang", "ignores SIGTERM")
    # A process that hangs does not hear TERM, and would take all of the grace period.
    options = ("--grace", "1", "--stall-timeout", str(STALL_S)) if is_stall else ("--grace", "4")
    if engine == "horovod" and not is_stall:
        options = ()  # A rank that waits inside MPI does not hear TERM either: it ends by itself.
    seen = run_to_fault(
        engine=engine,
        num_workers=num_workers,
        fault=fault,
        moment=moment,
        worker=worker,
        options=options,
        program=program,
    )
    # Loops that differ are the fault of none.
    assert seen.blamed == ("" if exit_code == 0 else f"worker {worker}") or exit_code == 2
    assert words in seen.how, seen.output
    assert seen.exit_code == exit_code, seen.output
    # What was saved before is whole: a survivor may have saved once more when it was told to stop.
    assert (seen.last_step is None) == (last_step is None)
    assert last_step is None or (seen.last_step or 0) >= last_step
    limit_s = within(RANK_LIMIT_S if engine == "horovod" else LIMIT_S)
    assert seen.ended_s < (STALL_S if is_stall else 0.0) + limit_s, seen.output
    note(fault_table, case, seen, program)


@needs_horovod
@pytest.mark.parametrize(
    ("fault", "moment", "exit_code", "reported"),
    [
        ("exception", "model", 1, "RuntimeError: the data are broken"),
        ("kill", "middle", 137, "exited on signal 9 (Killed)"),
    ],
)
def test_under_mpirun_the_rank_that_failed_is_named_and_all_end_soon(
    fault: str,
    moment: str,
    exit_code: int,
    reported: str,
    run_to_fault: Callable[..., Any],
    fault_table: list[tuple[str, ...]],
    within: Callable[[float], float],
) -> None:
    case = ("mpirun", 2, fault, moment, 1)
    seen = run_to_fault(engine="mpirun", num_workers=2, fault=fault, moment=moment, worker=1)
    assert (seen.rank, seen.exit_code) == ("1", exit_code), seen.output
    assert reported in seen.output
    assert (seen.last_step is None) == (moment == "model")
    assert seen.ended_s < within(RANK_LIMIT_S), seen.output
    note(fault_table, case, seen)


@pytest.mark.parametrize(
    ("engine", "program"),
    [
        ("grpc", "training"),
        pytest.param("horovod", "fit", marks=needs_horovod),
        ("grpc", "loop"),
    ],
)
def test_a_launcher_that_is_asked_to_stop_has_the_workers_save(
    engine: str,
    program: str,
    run_to_fault: Callable[..., Any],
    fault_table: list[tuple[str, ...]],
) -> None:
    seen = run_to_fault(
        program=program,
        engine=engine,
        num_workers=2,
        fault="hold",
        moment="middle",
        worker=1,
        to_launcher=signal.SIGTERM,
    )
    assert seen.exit_code == 143, seen.output
    # A backup of `fit` counts the epochs, of ten steps each, before the one that was stopped.
    least = 20 if program == "fit" else 21
    assert seen.last_step is not None and seen.last_step >= least, seen.output
    assert seen.ended_s < LIMIT_S
    note(fault_table, (engine, 2, "TERM", "middle", "launcher"), seen, program)


@needs_horovod
def test_nothing_is_left_when_the_launcher_is_killed(
    run_to_fault: Callable[..., Any], fault_table: list[tuple[str, ...]]
) -> None:
    # tests/launch/run/test_signals.py has it over gRPC, with smaller programs.
    seen = run_to_fault(
        engine="horovod",
        num_workers=2,
        fault="hold",
        moment="middle",
        worker=1,
        to_launcher=signal.SIGKILL,
    )
    assert seen.exit_code == -signal.SIGKILL
    assert seen.last_step is not None and seen.last_step >= 20, seen.output
    assert seen.ended_s < LIMIT_S
    note(fault_table, ("horovod", 2, "kill", "middle", "launcher"), seen)


def test_a_port_that_was_taken_before_its_worker_could_is_replaced(
    run_to_fault: Callable[..., Any], fault_table: list[tuple[str, ...]]
) -> None:
    seen = run_to_fault(engine="grpc", num_workers=2, fault="port taken", moment="start", worker=1)
    assert seen.exit_code == 0, seen.output
    assert "another program took the port of worker 1" in seen.output
    assert seen.last_step == 60
    note(fault_table, ("grpc", 2, "port taken", "start", 1), seen)


def test_a_fit_that_is_started_again_ends_at_the_asked_step(
    run_to_fault: Callable[..., Any],
) -> None:
    # tests/multi_worker/test_elastic.py has it of an Estimator.
    seen = run_to_fault(
        program="fit",
        engine="grpc",
        num_workers=2,
        fault="kill",
        moment="middle",
        worker=1,
        options=("--max-restarts", "1"),
    )
    assert seen.exit_code == 0, seen.output
    assert "restart 1 of 1: worker 1 failed (signal SIGKILL" in seen.output
    assert seen.last_step == 60


def test_a_run_whose_disk_is_full_is_not_started_again(
    run_to_fault: Callable[..., Any], fault_table: list[tuple[str, ...]]
) -> None:
    seen = run_to_fault(
        engine="grpc",
        num_workers=2,
        fault="full disk",
        moment="saving",
        worker=0,
        options=("--max-restarts", "3"),
    )
    assert seen.exit_code == 28, seen.output
    assert seen.blamed == "worker 0", seen.output
    assert "no room for a checkpoint" in seen.how, seen.output
    assert "CheckpointSpaceError: File too large: the checkpoint of step 20 needs" in seen.output
    assert "not started again: there is no room for a checkpoint" in seen.output
    assert seen.last_step == 10
    assert seen.ended_s < LIMIT_S
    note(fault_table, ("grpc", 2, "full disk", "saving", 0), seen)


def test_each_case_is_a_row_of_the_table_in_the_docs() -> None:
    text = (Path(__file__).parents[2] / "docs" / "faults.md").read_text()
    rows = {tuple(map(str.strip, line.split("|")[1:6])) for line in text.splitlines()}
    missing = [
        (program, case)
        for program, faults in OF_PROGRAMS.items()
        for case, _ in faults
        if _cells(*case, program) not in rows
    ]
    assert not missing


def _cells(
    engine: str, num_workers: int, fault: str, moment: str, who: int | str, program: str
) -> tuple[str, ...]:
    worker = f"worker {who}" if isinstance(who, int) else who
    return (f"{engine}{PROGRAM_NAMES[program]}", str(num_workers), fault, moment, worker)


def note(
    table: list[tuple[str, ...]], case: tuple[Any, ...], seen: Any, program: str = "training"
) -> None:
    step = "none" if seen.last_step is None else f"step {seen.last_step}"
    table.append(
        (
            *_cells(*case, program),
            f"{seen.blamed}: {seen.how}" if seen.blamed else seen.rank and f"rank {seen.rank}",
            str(seen.exit_code),
            f"{seen.ended_s:.1f} s",
            step,
        )
    )
