"""The launcher accepts only the run's own agents, and no secret is shown."""

import ast
import json
import os
import signal
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import tfdist.launch
from tfdist.launch.run.listener import MOST_STRANGERS
from tfdist.launch.workers.channel import ADDRESSES_VARIABLE, LINE_LIMIT_BYTES, TOKEN_VARIABLE
from tfdist.launch.workers.handshake import NONCE_BYTES, PROOF_BYTES, proof_of
from tfdist.testing.run import wait_until

Launch = Callable[..., Any]

WAIT = "ready()\nwait_for('go')\nprint('done', flush=True)"


@pytest.fixture
def waiting(launch: Launch) -> Iterator[Any]:
    """A run of one worker that succeeds once it is allowed to end."""
    run = launch(WAIT, "-vv", num_instances=1)
    run.wait_until_ready(0)
    yield run
    (run.folder / "go").touch()
    assert run.wait() == 0, run.err
    assert run.log("worker-0") == "done\n"
    assert "Traceback" not in run.err
    assert "exception" not in run.err.lower()


def agent_environment(run: Any) -> dict[str, str]:
    agent, *_ = run.living("tfdist.launch.run.agent")
    return agent.environ()


def listening(run: Any) -> list[tuple[str, int]]:
    pids = {process.pid for process in run.living()}
    return [
        (found.laddr.ip, found.laddr.port)
        for found in psutil.net_connections(kind="inet")
        if found.status == psutil.CONN_LISTEN and found.pid in pids
    ]


def address(run: Any) -> tuple[str, int]:
    host, port = agent_environment(run)[ADDRESSES_VARIABLE].rsplit(":", 1)
    return host, int(port)


def knock(run: Any, said: bytes, *, token: str | None = None) -> bytes:
    """Sends this to the launcher, after a handshake if there is a token.

    Returns the launcher's answer to it, until it has closed the connection.
    """
    answer = b""
    with socket.create_connection(address(run), timeout=30.0) as connection:
        try:
            challenge = connection.recv(NONCE_BYTES, socket.MSG_WAITALL)
            if token is not None:
                nonce = b"n" * NONCE_BYTES
                connection.sendall(nonce + proof_of("agent", token, challenge, nonce))
                proof = connection.recv(PROOF_BYTES, socket.MSG_WAITALL)
                assert proof in (b"", proof_of("launcher", token, challenge, nonce))
            connection.sendall(said)
            connection.shutdown(socket.SHUT_WR)
            while chunk := connection.recv(1 << 16):
                answer += chunk
        except TimeoutError:
            raise
        except OSError:  # the launcher closed the connection before it had read everything
            pass
    return answer


def hello(**facts: Any) -> bytes:
    said = {"kind": "hello", "index": 0, "host": "evil", "pid": 1, **facts}
    return json.dumps(said).encode() + b"\n"


def test_the_launcher_listens_only_on_loopback_and_never_shows_its_token(waiting: Any) -> None:
    environ = agent_environment(waiting)
    addresses, token = environ[ADDRESSES_VARIABLE], environ[TOKEN_VARIABLE]
    assert addresses.startswith("127.0.0.1:")
    assert listening(waiting) == [("127.0.0.1", int(addresses.rsplit(":")[-1]))]
    assert len(token) >= 32
    for process in waiting.living():
        assert not any(token in word for word in process.cmdline())
        is_agent = any("tfdist.launch.run.agent" in word for word in process.cmdline())
        assert (token in process.environ().values()) == is_agent
    (waiting.folder / "go").touch()
    assert waiting.wait() == 0
    logs = "".join(path.read_text() for path in waiting.log_dir.iterdir())
    assert token not in waiting.out + waiting.err + logs


def test_a_stranger_is_disconnected_without_an_answer(waiting: Any) -> None:
    stop = b'{"kind": "stop", "grace_s": 0}\n'
    ended = b'{"kind": "ended", "code": 3, "ago_s": 0}\n{"kind": "gone", "was_killed": false}\n'
    messages = (hello() + ended, stop, ended, b"")
    rubbish = (
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\xfc\x03\x03" * 20,
        b"\n" * 100,
        b"null\n",
        b'["hello"]\n',
        b'{"kind": ["hello"]}\n',
        b'{"token": "no kind"}\n',
        b"[" * 100_000 + b"\n",
        b"9" * 10_000 + b"\n",
        b'"\xff\xfe"\n',
        b"x" * (LINE_LIMIT_BYTES + 10),
        b"x" * (2 * LINE_LIMIT_BYTES) + b"\n" + hello(),
    )
    for said in (*messages, *rubbish):
        assert knock(waiting, said) == b"", said[:20]
    for said in messages:
        assert knock(waiting, said, token="0" * 32) == b"", said[:20]
    token = agent_environment(waiting)[TOKEN_VARIABLE]
    # Worker 0 has its agent, and there is no other worker.
    for index in (0, 1, -1, "0", None, [0], 10**30):
        assert knock(waiting, hello(index=index) + ended, token=token) == b"", index
    for said in rubbish:
        assert knock(waiting, said, token=token) == b"", said[:20]


def test_no_stranger_takes_the_place_of_a_missing_agent_and_the_start_can_be_stopped(
    launch: Launch, break_agents: Callable[[str], dict[str, str]]
) -> None:
    run = launch("ready()", num_instances=1, environ=break_agents("time.sleep(600)"))
    assert wait_until(lambda: bool(run.living("tfdist.launch.run.agent")), 60.0)
    for token in (None, "", "0" * 32):
        assert knock(run, hello(), token=token) == b""
    run.signal(signal.SIGTERM)
    assert run.wait() == 143
    assert "they were stopped before worker 0 (localhost) had started" in run.err
    assert run.is_nothing_left()


def test_hundreds_of_connections_cost_one_line_and_no_worker(
    launch: Launch, break_agents: Callable[[str], dict[str, str]]
) -> None:
    # The agents start when the strangers are connected.
    agents = break_agents("while not os.path.exists('go'): time.sleep(0.01)")
    limit = ("sh", "-c", 'ulimit -n 128; exec "$@"', "sh")
    run = launch("print('done', flush=True)", environ=agents, before=limit)
    assert wait_until(lambda: len(run.living("tfdist.launch.run.agent")) == 2, 60.0)
    port, strangers = address(run), []
    for number in range(350):
        strangers.append(socket.create_connection(port, timeout=30.0))
        if number % 3 == 1:
            strangers[-1].sendall(b"x" * 1000)
        elif number % 3 == 2:  # closed with a reset
            reset = struct.pack("ii", 1, 0)
            strangers[-1].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
            strangers.pop().close()

    def num_open() -> int:
        found = psutil.Process(run.process.pid).net_connections(kind="tcp")
        return sum(one.status != psutil.CONN_LISTEN for one in found)

    # Before the time limit of a silent connection.
    assert wait_until(lambda: num_open() <= 2 + MOST_STRANGERS, 5.0), num_open()
    (run.folder / "go").touch()
    assert run.wait() == 0, run.err
    for connection in strangers:
        connection.close()
    assert [run.log(f"worker-{index}") for index in range(2)] == ["done\n"] * 2
    ignored = "tfdist: ignored a connection from 127.0.0.1 that is not an agent of this run"
    assert run.err.splitlines() == [ignored, "tfdist: logs are in logs"]


def test_other_users_cannot_read_a_workers_progress(launch: Launch) -> None:
    run = launch(
        """
        path = Path(os.environ["TFDIST_PROGRESS_FILE"])
        print(oct(path.parent.stat().st_mode & 0o777), path.parent, flush=True)
        """,
        num_instances=1,
    )
    assert run.wait() == 0
    mode, folder = run.log("worker-0").split()
    assert mode == "0o700"
    assert wait_until(lambda: not os.path.exists(folder), 10.0)


SHELLS = {"system", "popen", "getoutput", "getstatusoutput", "create_subprocess_shell"}


def test_no_shell_starts_a_command() -> None:
    folder = Path(tfdist.launch.__file__).parent
    found = []
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.keyword) and node.arg == "shell":
                found.append((path.name, node.value.lineno))
            if isinstance(node, ast.Attribute) and node.attr in SHELLS:
                is_platform = isinstance(node.value, ast.Name) and node.value.id == "platform"
                found += [] if is_platform else [(path.name, node.lineno)]
            if isinstance(node, ast.ImportFrom) and node.module in ("os", "subprocess", "asyncio"):
                found += [(path.name, node.lineno) for name in node.names if name.name in SHELLS]
    assert found == []
