"""An agent, with a launcher that the test emulates."""

import asyncio
import contextlib
import errno
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from tfdist.launch.machine.processes import python_command
from tfdist.launch.run.agent import is_stuck_in_step, worker_environment
from tfdist.launch.workers.channel import (
    ADDRESSES_VARIABLE,
    AS_BYTES,
    CHUNK_BYTES,
    LINE_LIMIT_BYTES,
    TOKEN_VARIABLE,
    Channel,
)
from tfdist.launch.workers.handshake import NONCE_BYTES, PROOF_BYTES, proof_of
from tfdist.process.progress_file import Progress
from tfdist.testing.run import wait_until

pytestmark = pytest.mark.processes


def test_a_worker_in_a_step_without_the_others_is_killed_unless_it_writes_a_checkpoint() -> None:
    in_step = Progress(phase="training", in_step=True)
    assert is_stuck_in_step(in_step)
    assert not is_stuck_in_step(replace(in_step, is_writing=True))
    assert not is_stuck_in_step(replace(in_step, in_step=False))
    assert not is_stuck_in_step(replace(in_step, phase="saving"))
    assert not is_stuck_in_step(None)


OF_ANOTHER_RUN = """
    TFDIST_AGENT_TOKEN TFDIST_AGENT_LAUNCHERS TF_CONFIG TFDIST_NUM_INSTANCES TFDIST_INSTANCE_INDEX
    TFDIST_PROGRESS_FILE TFDIST_RESTART_COUNT HOROVOD_RANK HOROVOD_SIZE HOROVOD_LOCAL_RANK
    HOROVOD_CONTROLLER HOROVOD_GLOO_RENDEZVOUS_ADDR
"""


def test_a_worker_inherits_no_variables_of_another_run_and_mpiruns_only_as_a_rank() -> None:
    kept = {"TFDIST_OTHER": "kept", "HOROVOD_CYCLE_TIME": "5", "OPAL_PREFIX": "/x"}
    of_mpirun = {"OMPI_COMM_WORLD_RANK": "0", "PMIX_RANK": "0", "PMI_SIZE": "2"}
    inherited = {**dict.fromkeys(OF_ANOTHER_RUN.split(), "1"), **kept, **of_mpirun}
    assert worker_environment(inherited, {}, is_rank=True) == {**kept, **of_mpirun}
    own = {"OPAL_PREFIX": "/y", "MINE": "1"}
    assert worker_environment(inherited, own, is_rank=False) == {**kept, **own}


def test_a_chunk_of_output_always_fits_into_a_line() -> None:
    for character in ("\x00", "\udcff", "\N{GRINNING FACE}"):
        text = character * (CHUNK_BYTES // (1 if character != "\N{GRINNING FACE}" else 4))
        said = json.dumps({"kind": "output", "stream": "out", "text": text})
        assert len(said) < LINE_LIMIT_BYTES


def test_a_connection_on_which_nobody_answers_for_too_long_is_a_closed_one() -> None:
    near, far = socket.socketpair()

    async def hear() -> Any:
        reader, writer = await asyncio.open_connection(sock=near)
        reader.set_exception(TimeoutError(errno.ETIMEDOUT, "Connection timed out"))
        writer.get_extra_info = lambda *_: None  # type: ignore[method-assign]
        channel = Channel(reader, writer)
        heard = await channel.receive()
        channel.close()
        return heard

    assert asyncio.run(hear()) is None
    far.close()


def test_output_that_is_not_utf_8_passes_through_a_message_unchanged() -> None:
    output = bytes(range(256)) + "ä".encode()
    text = json.loads(json.dumps(output.decode(errors=AS_BYTES)))
    assert text.encode(errors=AS_BYTES) == output


class Launcher:
    """The test's end of the connection to an agent."""

    def __init__(self, connection: socket.socket, agent: subprocess.Popen[str]) -> None:
        self._connection = connection
        self._lines = connection.makefile("r", encoding="utf-8")
        self.agent = agent
        self.heard: list[Mapping[str, Any]] = []

    def say(self, kind: str, **facts: Any) -> None:
        self._connection.sendall(json.dumps({"kind": kind, **facts}).encode() + b"\n")

    def start(self, *command: str, **facts: Any) -> None:
        usual = {"environment": {"MINE": "1"}, "cwd": os.getcwd(), "grace_s": 30.0}
        usual |= dict.fromkeys(("cores", "share", "rank_environment"))
        usual |= dict.fromkeys(("keeps_standby", "is_rank", "ignores_hang_up"), False)
        self.say("start", command=command, **{**usual, **facts})

    def hear(self, kind: str) -> Mapping[str, Any]:
        """Returns the next message of this kind."""
        for line in self._lines:
            self.heard.append(json.loads(line))
            if self.heard[-1]["kind"] == kind:
                return self.heard[-1]
        raise AssertionError(f"no {kind!r} in {self.heard}")

    def hear_output(self, text: str) -> None:
        while text not in self.output():
            self.hear("output")

    def output(self, stream: str = "out") -> str:
        """Returns the worker's output in the messages read so far."""
        return "".join(
            message["text"]
            for message in self.heard
            if message["kind"] == "output" and message["stream"] == stream
        )

    def leave(self) -> None:
        self._lines.close()
        self._connection.close()


def start_agent(addresses: str, index: str = "3") -> subprocess.Popen[str]:
    return subprocess.Popen(
        python_command("tfdist.launch.run.agent", index),
        env={**os.environ, ADDRESSES_VARIABLE: addresses, TOKEN_VARIABLE: "the token"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def prove(connection: socket.socket, token: str = "the token") -> None:
    """Does a launcher's part of the handshake."""
    connection.settimeout(60.0)
    challenge = b"c" * NONCE_BYTES
    connection.sendall(challenge)
    answer = connection.recv(NONCE_BYTES + PROOF_BYTES, socket.MSG_WAITALL)
    nonce, proof = answer[:NONCE_BYTES], answer[NONCE_BYTES:]
    assert proof == proof_of("agent", "the token", challenge, nonce)
    connection.sendall(proof_of("launcher", token, challenge, nonce))


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    """A connected agent; it must end without output of its own."""
    # The first of the launcher's addresses does not answer.
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        ports = (unused.getsockname()[1], server.getsockname()[1])
        agent = start_agent(",".join(f"127.0.0.1:{port}" for port in ports))
        server.settimeout(60.0)
        connection, _ = server.accept()
    prove(connection)
    found = Launcher(connection, agent)
    assert found.hear("hello")["index"] == 3
    try:
        yield found
        found.leave()
        assert agent.wait(30) == 0
        assert agent.stdout is not None
        assert agent.stdout.read() == ""
    finally:
        found.leave()
        agent.kill()
        agent.communicate()


def test_an_agent_reports_its_workers_progress_and_end(launcher: Launcher) -> None:
    launcher.start("sh", "-c", "echo $MINE; echo oops >&2; exit 7")
    assert launcher.hear("started")["pid"] > 0
    assert launcher.hear("ended")["code"] == 7
    assert launcher.hear("gone")["was_killed"] is False
    assert (launcher.output("out"), launcher.output("err")) == ("1\n", "oops\n")
    launcher.say("bye")


SHARE = {"num_workers": 1, "index": 0, "bind": "cores", "threads": 3, "num_devices": 1}
CORES = sorted(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("facts", "threads", "cores"),
    [
        ({"cores": CORES[:1], "environment": {"OMP_NUM_THREADS": "9"}}, 9, CORES[:1]),
        ({"share": SHARE}, 3, CORES),  # The agent finds its share of this machine.
    ],
)
def test_an_agent_starts_its_worker_in_the_launchers_folder_and_on_its_cores(
    launcher: Launcher, tmp_path: Path, facts: dict[str, Any], threads: int, cores: list[int]
) -> None:
    names = "os.getcwd(), os.environ['OMP_NUM_THREADS'], sorted(os.sched_getaffinity(0))"
    launcher.start(sys.executable, "-c", f"import os; print({names})", cwd=str(tmp_path), **facts)
    launcher.hear("gone")
    assert launcher.output() == f"{tmp_path} {threads} {cores}\n"


TRAPS = "trap 'echo {0}' {0}; echo ready; while :; do sleep 0.05; done"


def test_an_agent_forwards_signals(launcher: Launcher) -> None:
    launcher.start("sh", "-c", TRAPS.format("USR1"))
    launcher.hear_output("ready")
    launcher.say("signal", number=int(signal.SIGUSR1))
    launcher.hear_output("USR1")
    launcher.say("stop", grace_s=30.0)
    assert launcher.hear("ended")["code"] == -signal.SIGTERM
    assert launcher.hear("gone")["was_killed"] is False


def test_an_agent_kills_a_worker_that_ignores_term(launcher: Launcher) -> None:
    launcher.start("sh", "-c", TRAPS.format("TERM"))
    launcher.hear_output("ready")
    launcher.say("stop", grace_s=30.0)
    launcher.hear_output("TERM")
    launcher.say("stop", grace_s=0.0)
    assert launcher.hear("ended")["code"] == -signal.SIGKILL
    assert launcher.hear("gone")["was_killed"] is True


def test_an_agent_sends_nothing_to_another_program_on_its_launchers_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        agent = start_agent(f"127.0.0.1:{server.getsockname()[1]}")
        server.settimeout(60.0)
        connection, _ = server.accept()
        with connection:
            prove(connection, token="another token")
            assert connection.recv(1) == b""
        out, _ = agent.communicate(timeout=30)
    assert agent.returncode == 1
    assert "another program answers there" in out
    assert len(out.splitlines()) == 1


def test_an_agent_that_is_rejected_in_the_handshake_connects_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        agent = start_agent(f"127.0.0.1:{server.getsockname()[1]}")
        server.settimeout(60.0)
        for _ in range(2):
            server.accept()[0].close()
        connection, _ = server.accept()
        prove(connection)
        launcher = Launcher(connection, agent)
        assert launcher.hear("hello")["index"] == 3
        launcher.say("bye")  # It is not needed.
        assert agent.communicate(timeout=30)[0] == ""
        launcher.leave()


def test_an_agent_lets_its_worker_save_and_then_ends_it_when_its_launcher_has_gone(
    launcher: Launcher, tmp_path: Path
) -> None:
    saves = f"trap 'touch {tmp_path}/saved' TERM; echo ready; while :; do sleep 0.05; done"
    launcher.start("sh", "-c", saves, grace_s=0.5)
    worker = launcher.hear("started")["pid"]
    launcher.hear_output("ready")
    launcher.leave()
    assert launcher.agent.wait(30) == 0
    assert (tmp_path / "saved").exists()
    assert not _is_alive(worker)


def test_an_agent_that_is_asked_to_stop_stops_its_worker(launcher: Launcher) -> None:
    launcher.start("sh", "-c", "echo ready; exec sleep 600")
    launcher.hear_output("ready")
    launcher.agent.send_signal(signal.SIGTERM)
    assert launcher.hear("ended")["code"] == -signal.SIGTERM
    launcher.say("bye")


def test_an_agent_reports_when_its_worker_is_suspended_and_can_end_it(launcher: Launcher) -> None:
    code = (
        "import os, signal; from tfdist.process.progress_file import find_progress_file\n"
        "find_progress_file().write(phase='training', step=4)\n"
        "os.kill(os.getpid(), signal.SIGSTOP)"
    )
    launcher.start(sys.executable, "-c", code)
    state = launcher.hear("state")
    while not state["is_stopped"]:
        if state["quiet_s"] is not None:
            assert state["quiet_s"] < 3.0 or state["is_stopped"]
        state = launcher.hear("state")
    assert state["progress"]["step"] == 4
    assert state["quiet_s"] >= 2.0
    launcher.say("stop", grace_s=30.0)
    assert launcher.hear("ended")["code"] == -signal.SIGTERM
    assert launcher.hear("gone")["was_killed"] is False


STOOD_BY = """
import time
from tfdist.process.progress_file import set_phase
set_phase("training")
while not __import__("os").path.exists("end"):
    time.sleep(0.01)
"""


def test_an_agent_is_heard_while_it_waits_for_its_standby(
    launcher: Launcher, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(STOOD_BY)
    start = partial(launcher.start, sys.executable, "train.py", cwd=str(tmp_path))
    start(keeps_standby=True)

    def standbys() -> list[psutil.Process]:
        children = psutil.Process(launcher.agent.pid).children()
        return [one for one in children if one.name() == "tfdist-standby"]

    assert launcher.hear("state")["is_importing"]
    assert wait_until(lambda: bool(standbys()), 60)
    [standby] = standbys()
    standby.suspend()
    (tmp_path / "end").touch()
    launcher.hear("gone")
    start(keeps_standby=True)
    for _ in range(2):
        assert launcher.hear("state")["progress"] is None
    standby.resume()
    launcher.hear("started")
    launcher.hear("gone")
    assert standby.is_running()
    launcher.say("bye")


def test_an_agent_that_finds_no_launcher_reports_it() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        agent = start_agent(address)
        said, _ = agent.communicate(timeout=60)
    assert agent.returncode == 1
    assert said.startswith("agent of worker 3, ")
    assert f"the launcher cannot be reached from here ({address}: " in said
    assert said.count("\n") == 1


def _is_alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False
