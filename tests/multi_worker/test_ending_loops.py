"""Loops of one's own that a signal ends, or that differ between the workers."""

import re
from pathlib import Path
from typing import Any

import pytest

LIMIT_S = 90.0
PROGRAM = Path(__file__).parents[1] / "programs" / "ending_loops.py"


def ends(cluster: Any, engine: str, *arguments: str) -> tuple[list[int], list[str], list[str]]:
    """Runs two workers; returns their exit codes, output, and last lines of standard error."""
    # By default mpirun stops the others.
    env = {"OMPI_MCA_orte_abort_on_non_zero_status": "0"}
    options = {"engine": engine, "forked": True, "env": env}
    with cluster.start_script([str(PROGRAM), *arguments], **options) as script:
        codes = [worker.wait(LIMIT_S) for worker in script.workers]
        output = [worker.stdout() for worker in script.workers]
        lines = [worker.stderr().splitlines()[-1:] for worker in script.workers]
    return codes, output, [line for of_worker in lines for line in of_worker]


@pytest.mark.parametrize(
    ("engine", "way", "name", "receiver", "code"),
    [("grpc", "function", "SIGTERM", 1, 143), ("horovod", "eager", "SIGUSR1", 0, 138)],
)
def test_a_signal_to_one_worker_ends_the_loops_of_all_after_the_same_step(
    fake_cluster: Any, engine: str, way: str, name: str, receiver: int, code: int
) -> None:
    codes, output, lines = ends(fake_cluster, engine, way, name, str(receiver))
    assert codes == [code] * 2
    assert output[0] == output[1]
    saved = re.fullmatch(rf"saved after step (\d+), -?\d+\.\d+, {code}\n", output[0])
    assert saved is not None, output
    assert lines[0] == (
        f"Stopped by {name} to worker {receiver} after step {saved[1]} of its loop: "
        f"SystemExit({code}) is raised there."
    )


def test_sigterm_ends_a_loop_whose_next_step_does_not_come(fake_cluster: Any) -> None:
    codes, _, lines = ends(fake_cluster, "grpc", "function", "pause", "0")
    assert codes == [143, 200]
    assert lines[0].startswith("SIGTERM: no step of a loop has begun for 1 s.")
    assert "Lost worker 0" in lines[1]


@pytest.mark.parametrize(("engine", "way"), [("grpc", "function"), ("horovod", "eager")])
def test_a_step_more_on_one_worker_ends_all_with_a_line_that_names_both(
    fake_cluster: Any, engine: str, way: str
) -> None:
    codes, _, lines = ends(fake_cluster, engine, way, "a step more", "1")
    assert codes == [2, 2]
    place = "step 6 of its loop" if way == "function" else "a reduction"
    line = re.escape(
        f"ProgramsDifferError: worker 0 has ended its program, worker 1 is in {place} "
        "(ending_loops.py:"
    )
    assert re.match(
        line + r"\d+\), and neither comes any further: every worker must make", lines[0]
    )
    assert lines[0] == lines[1]
