"""The doctor's part on one machine of a run: versions, files, clock, and ports that others reach.

On another machine it is a program at the end of ssh, which answers each line of its standard input
with one line, and ends with it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import signal
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import tfdist
from tfdist.launch.horovod.build import installed_version

MARK = "tfdist-probe "  # begins each answer: a login may print lines of its own
PACKAGES = {"TensorFlow": "tensorflow", "Keras": "keras", "tf-keras": "tf-keras"}
_LIMIT_S = 120  # It ends by itself if the doctor does not end it.
_CONNECT_LIMIT_S = 5.0
_NUM_MESSAGES = 21
_MOST_FILES = 200


class Probe:
    """The answers of one machine. Its listening sockets are closed by `close`."""

    def __init__(self) -> None:
        self._listeners: list[socket.socket] = []

    def answer(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Answers the question "facts", "clock", "listen" or "reach"; the rest are arguments."""
        arguments = {name: value for name, value in question.items() if name != "ask"}
        answers: dict[str, Callable[..., dict[str, Any]]] = {
            "facts": _facts,
            "clock": lambda: {"time_s": time.time()},
            "listen": self._listen,
            "reach": _reach,
        }
        return answers[question["ask"]](**arguments)

    def close(self) -> None:
        while self._listeners:
            listener = self._listeners.pop()
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
            listener.close()

    def _listen(self, port: int, word: str) -> dict[str, Any]:
        """Says `word` to all who connect, and returns what they send; port 0 is any free one."""
        # As TensorFlow's server does: on all addresses, of IPv6 as well if there is any.
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        try:
            listener = socket.create_server(("", port), family=family, dualstack_ipv6=both)
        except OSError as error:
            return {"problem": _text(error)}
        self._listeners.append(listener)
        threading.Thread(target=_accept, args=(listener, word.encode()), daemon=True).start()
        return {"port": listener.getsockname()[1]}


def main() -> None:
    """Answers the questions on standard input, until it ends."""
    signal.alarm(_LIMIT_S)
    probe = Probe()
    for line in sys.stdin:
        print(f"{MARK}{json.dumps(probe.answer(json.loads(line)))}", flush=True)
    os._exit(0)  # without waiting for threads that still send


def _facts(folder: str) -> dict[str, Any]:
    versions = {name: installed_version(package) for name, package in PACKAGES.items()}
    return {
        "versions": {
            "Python": platform.python_version(),
            **versions,
            "Horovod": installed_version("horovod"),
            "tfdist": tfdist.__version__,
        },
        "tfdist_files": _digest(sorted(Path(tfdist.__file__).parent.rglob("*.py"))),
        "has_folder": os.path.isdir(folder),
        "programs": dict(_programs(folder)),
    }


def _programs(folder: str) -> Iterator[tuple[str, str]]:
    for path in sorted(Path(folder).glob("*.py"))[:_MOST_FILES]:
        with contextlib.suppress(OSError):
            yield path.name, _digest([path])


def _digest(paths: list[Path]) -> str:
    content = hashlib.sha256()
    for path in paths:
        content.update(path.read_bytes())
    return content.hexdigest()


def _accept(listener: socket.socket, word: bytes) -> None:
    with contextlib.suppress(OSError):
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=_echo, args=(connection, word), daemon=True).start()


def _echo(connection: socket.socket, word: bytes) -> None:
    with connection, contextlib.suppress(OSError):
        connection.settimeout(_CONNECT_LIMIT_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(word)
        while data := connection.recv(1024):
            connection.sendall(data)


def _reach(host: str, port: int, word: str) -> dict[str, Any]:
    """Connects to a listener, and returns the seconds that a message there and back takes."""
    try:
        connection = socket.create_connection((host, port), timeout=_CONNECT_LIMIT_S)
    except socket.gaierror:
        return {"problem": "unknown"}
    except TimeoutError:
        return {"problem": "no answer"}
    except OSError as error:
        return {"problem": _text(error)}
    try:
        with connection, connection.makefile("rb") as answers:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if answers.read(len(word)) != word.encode():
                return {"problem": "stranger"}
            times_s = []
            for _ in range(_NUM_MESSAGES):
                begin_s = time.perf_counter()
                connection.sendall(b"x")
                if not answers.read(1):
                    return {"problem": "the connection was closed"}
                times_s.append(time.perf_counter() - begin_s)
    except TimeoutError:
        return {"problem": "no answer"}
    except OSError as error:
        return {"problem": _text(error)}
    return {"seconds": statistics.median(times_s)}


def _text(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno else str(error)
