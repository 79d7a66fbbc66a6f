"""`tfdist run` with real processes: the workers' environment, the verdict and the output."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tfdist.launch.machine.mpi import horovod_problem
from tfdist.launch.workers.channel import TOKEN_VARIABLE

Launch = Callable[..., Any]
BreakAgents = Callable[[str], dict[str, str]]

needs_horovod = pytest.mark.skipif(horovod_problem() is not None, reason=str(horovod_problem()))


def boxed(err: str) -> str:
    """Returns the box at the end without its borders, with single spaces between words."""
    begin = err.find("╭" if "╭" in err else "+-")
    assert begin >= 0, err
    return " ".join(err[begin:].replace("│", " ").replace("|", " ").split())


def test_each_worker_gets_its_place_and_its_output_is_kept_whole(launch: Launch) -> None:
    run = launch(
        """
        import json
        print(json.dumps(dict(os.environ)))
        print(json.dumps([os.getcwd(), sys.stdin.read(), sorted(os.sched_getaffinity(0))]))
        print("to stderr", file=sys.stderr)
        """,
        *("--num-replicas", "4", "--env", "MINE=a b", "--evaluator"),
        environ={"TF_CONFIG": "another run's", "TFDIST_NUM_INSTANCES": "7", "INHERITED": "yes"},
    )
    assert run.wait() == 0
    for index in range(2):
        lines = run.log(f"worker-{index}").splitlines()
        environment = json.loads(lines[0])
        tf_config = json.loads(environment["TF_CONFIG"])
        assert tf_config["task"] == {"type": "worker", "index": index}
        assert len(set(tf_config["cluster"]["worker"])) == 2
        assert environment["TFDIST_INSTANCE_INDEX"] == str(index)
        assert environment["TFDIST_NUM_INSTANCES"] == "2"
        assert environment["TFDIST_NUM_LOCAL_REPLICAS"] == "2"
        assert environment["TFDIST_RESTART_COUNT"] == "0"
        assert (environment["MINE"], environment["INHERITED"]) == ("a b", "yes")
        assert "TFDIST_PROGRESS_FILE" in environment
        assert not any(name.startswith(("TFDIST_AGENT", "OMPI_")) for name in environment)
        folder, stdin, cores = json.loads(lines[1])
        assert Path(folder) == run.folder
        assert stdin == ""
        assert set(cores) <= os.sched_getaffinity(0)
        assert "to stderr" in lines
        assert f"[{index}] to stderr" in run.err
    assert "TF_CONFIG of this environment" in run.err
    evaluators = json.loads(run.log("evaluator").splitlines()[0])
    assert json.loads(evaluators["TF_CONFIG"])["task"] == {"type": "evaluator", "index": 0}
    assert "TFDIST_INSTANCE_INDEX" not in evaluators
    assert "[evaluator] {" in run.out


def test_a_flood_of_output_is_kept_whole_to_its_last_byte(launch: Launch) -> None:
    run = launch(
        """
        print(*(f"line {number}" for number in range(100_000)), sep="\\n")
        os.write(1, "half a character: ä".encode()[:-1])
        """,
        num_instances=1,
    )
    assert run.wait() == 0
    lines = (run.log_dir / "worker-0.log").read_bytes().splitlines()
    assert lines[:-1] == [f"line {number}".encode() for number in range(100_000)]
    assert lines[-1] == "half a character: ä".encode()[:-1]
    assert "[0] line 99999\n" in run.out
    assert "[0] half a character: \N{REPLACEMENT CHARACTER}\n" in run.out


def test_a_worker_that_exits_3_is_blamed_though_it_is_hidden_and_the_other_may_save(
    launch: Launch,
) -> None:
    run = launch(
        """
        def save():
            time.sleep(0.3)
            (here / f"saved-{index}").touch()
            sys.exit(143)

        on(signal.SIGTERM, save)
        print("words of", index, flush=True)
        ready()
        if index == 1:
            wait_for("ready-0")
            print("my last words", flush=True)
            sys.exit(3)
        time.sleep(600)
        """,
        *("--show", "0"),
    )
    assert run.wait() == 3
    assert run.out == "[0] words of 0\n"
    assert run.log("worker-1") == "words of 1\nmy last words\n"
    box = boxed(run.err)
    assert "worker 1 failed first" in box
    assert "exit code 3" in box
    assert "my last words" in box
    assert "worker 0 was then stopped (TERM) and did not have to be killed" in box
    assert "logs/worker-1.log" in box
    assert (run.folder / "saved-0").exists()


def test_a_dry_run_starts_and_writes_nothing_and_shows_no_secret(launch: Launch) -> None:
    words = ("--dry-run", "-vv", "--env", "API_KEY=k1e9", "--env", "DB_PASSWORD")
    run = launch("(here / 'started').touch()", *words, environ={"DB_PASSWORD": "hunter2"})
    assert run.wait() == 0
    assert os.listdir(run.folder) == ["program.py"]
    assert run.out.count("program.py") == 2
    assert "TF_CONFIG=" in run.out
    assert "API_KEY='***'" in run.out
    for secret in (TOKEN_VARIABLE, "k1e9", "hunter2"):
        assert secret not in run.out
    assert run.err == ""


WITH_NOISE = """
    print("I0000 00:00:1795387128.079123    7492 grpc_server_lib.cc:467] Started", file=sys.stderr)
    ready()
    wait_for(f"ready-{1 - index}")
    print("common", flush=True)
    print("of", index, flush=True)
    """


def test_common_lines_are_shown_once_and_startup_lines_are_counted(launch: Launch) -> None:
    run = launch(WITH_NOISE)
    assert run.wait() == 0
    assert sorted(run.out.splitlines()) == ["[0-1] common", "[0] of 0", "[1] of 1"]
    assert run.err.splitlines()[-2:] == [
        "tfdist: TensorFlow printed 2 start-up lines; they are in the logs, --verbose shows them",
        "tfdist: logs are in logs",
    ]
    assert "Started" not in run.err and "Started" in run.log("worker-1")


def test_all_lines_and_commands_are_shown_if_asked_for_but_no_secret(launch: Launch) -> None:
    words = ("--output", "all", "--verbose", "--env", "MINE=1", "--env", "MY_TOKEN=t0p")
    run = launch(WITH_NOISE, *words)
    assert run.wait() == 0
    assert sorted(run.out.splitlines())[:2] == ["[0] common", "[0] of 0"]
    assert run.err.count("grpc_server_lib.cc:467] Started") == 2
    assert "start-up lines" not in run.err
    assert "MINE=1" in run.err and "program.py" in run.err
    assert "t0p" not in run.err


def test_a_command_that_cannot_be_started_is_never_tried_again(
    launch: Launch, tmp_path: Path
) -> None:
    program = tmp_path / "program"
    program.write_text("\x7fELF of another machine")
    program.chmod(0o755)
    run = launch([str(program)], "--max-restarts", "2", num_instances=1)
    assert run.wait() == 126
    assert "not started" in boxed(run.err)
    assert f"cannot start {program}: Exec format error" in run.log("worker-0")
    assert "restart 1" not in run.err


def test_the_wait_for_missing_agents_is_limited(launch: Launch, break_agents: BreakAgents) -> None:
    run = launch(
        "ready()",
        "--start-timeout",
        "1",
        environ=break_agents("time.sleep(600)"),
    )
    assert run.wait() == 1
    assert "worker 0 (localhost) and worker 1 (localhost) did not start within 1 s" in run.err
    assert "Traceback" not in run.err
    assert run.is_nothing_left()
    assert not (run.folder / "ready-0").exists()


def test_an_agent_that_cannot_run_is_reported_with_its_output(
    launch: Launch, break_agents: BreakAgents
) -> None:
    action = "print('no such library', flush=True); os._exit(5)"
    run = launch("ready()", num_instances=1, environ=break_agents(action))
    assert run.wait() == 1
    assert "the agent of worker 0 ended with exit code 5" in run.err
    assert "no such library" in run.err


def test_logs_that_cannot_be_written_are_reported_without_a_traceback(
    launch: Launch, tmp_path: Path
) -> None:
    (tmp_path / "run-0" / "logs" / "start.log").mkdir(parents=True)
    run = launch("ready()", num_instances=1)
    assert run.wait() == 1
    assert "could not be started" in run.err
    assert "start.log" in run.err
    assert "Traceback" not in run.err


def test_processes_that_a_worker_leaves_behind_are_ended_with_it_and_earlier_ones_are_not(
    launch: Launch,
) -> None:
    sleep = "env -u TFDIST_TEST_RUN sleep 600 >/dev/null 2>&1"
    run = launch(
        """
        subprocess.Popen(["sleep", "600"], start_new_session=True)
        subprocess.Popen(["sh", "-c", "trap '' TERM; sleep 600 & (setsid sleep 600 &) ; wait"])
        """,
        num_instances=1,
        before=["sh", "-c", f'{sleep} & echo $! > before; exec "$@"', "sh"],
    )
    assert run.wait() == 0
    earlier = psutil.Process(int((run.folder / "before").read_text()))
    assert earlier.name() == "sleep"
    earlier.kill()
    assert run.is_nothing_left(limit_s=5.0)


@needs_horovod
def test_horovods_ranks_get_mpis_variables_and_no_tf_config(launch: Launch) -> None:
    run = launch(
        """
        names = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "TFDIST_INSTANCE_INDEX")
        print(*(os.environ.get(name) for name in names), "TF_CONFIG" in os.environ, flush=True)
        """,
        "--engine",
        "horovod",
        "--evaluator",
    )
    assert run.wait() == 0, run.err
    assert [run.log(f"worker-{index}").split() for index in range(2)] == [
        ["0", "2", "0", "False"],
        ["1", "2", "1", "False"],
    ]
    assert run.log("evaluator").split() == ["None", "None", "None", "True"]
