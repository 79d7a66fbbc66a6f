"""Runs a script as two local workers over gRPC and shows the output of both.

    two_workers.py SCRIPT [ARGUMENT ...]

Each worker gets a TF_CONFIG with two free ports on this machine. When a worker fails, or on Ctrl-C,
SIGTERM or SIGHUP, the rest is stopped (SIGTERM, then SIGKILL) with all that it started. The exit
code is that of the worker that failed first.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from queue import Empty, SimpleQueue
from typing import TextIO

NUM_WORKERS = 2
GRACE_S = 5.0  # from SIGTERM to SIGKILL


def find_free_addresses(count: int) -> list[str]:
    """Returns addresses on the loopback interface that nothing listens on."""
    with ExitStack() as stack:
        # All open at once, so that no port is found twice.
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for found in sockets:
            found.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{found.getsockname()[1]}" for found in sockets]


def worker_environment(
    environ: Mapping[str, str], addresses: Sequence[str], index: int
) -> dict[str, str]:
    """Returns the environment variables of one worker."""
    tf_config = {
        "cluster": {"worker": list(addresses)},
        "task": {"type": "worker", "index": index},
    }
    return {
        # Two workers on one GPU: without this the first takes all of its memory.
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        **environ,
        "TF_CONFIG": json.dumps(tf_config),
        # Lines are shown when they are printed, not when a pipe's buffer is full.
        "PYTHONUNBUFFERED": "1",
    }


def describe_exit(returncode: int) -> str:
    """Says how a process ended, given `Popen.returncode`."""
    if returncode >= 0:
        return f"with exit code {returncode}"
    return f"by signal {-returncode} ({signal.Signals(-returncode).name})"


class Output:
    """Prints the lines of all workers, the chief's result last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._result = ""

    def show(self, index: int, line: str, target: TextIO) -> None:
        """Prints a line of a worker, or holds it back if it may be the chief's result."""
        text = f"[worker {index}] {line.rstrip()}\n"
        with self._lock:
            if index == 0 and target is sys.stdout:
                # The result is JSON on the chief's standard output, and nothing comes after it. The
                # other worker's last lines would.
                held, self._result = self._result, text if line.startswith("{") else ""
                text = held if self._result else held + text
            target.write(text)
            target.flush()

    def finish(self) -> None:
        """Prints what was held back."""
        with self._lock:
            sys.stdout.write(self._result)
            sys.stdout.flush()


class Worker:
    """One worker's process, in a process group of its own, and the threads that watch it."""

    def __init__(
        self,
        command: Sequence[str],
        index: int,
        environment: Mapping[str, str],
        output: Output,
        events: "SimpleQueue[tuple[str, int]]",
    ) -> None:
        self.index = index
        self._output = output
        self._events = events
        self._process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
        assert self._process.stdout and self._process.stderr
        self._readers = [
            threading.Thread(target=self._read, args=(self._process.stdout, sys.stdout)),
            threading.Thread(target=self._read, args=(self._process.stderr, sys.stderr)),
        ]
        for thread in [*self._readers, threading.Thread(target=self._watch, daemon=True)]:
            thread.daemon = True
            thread.start()

    def _read(self, source: TextIO, target: TextIO) -> None:
        try:
            for line in source:
                self._output.show(self.index, line, target)
        except BrokenPipeError:  # whoever read our output went away: `| head`
            self._events.put(("signal", signal.SIGPIPE))

    def _watch(self) -> None:
        # Not reaped yet: its number stays its own, so killing its group later hits nobody else's.
        os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        self._events.put(("exit", self.index))

    def send(self, signum: int) -> None:
        """Sends a signal to the worker and all that it started."""
        os.killpg(self._process.pid, signum)

    def reap(self) -> int:
        """Ends what an ended worker left running; returns the worker's return code."""
        self.send(signal.SIGKILL)
        returncode = self._process.wait()
        for reader in self._readers:
            reader.join(timeout=1.0)
        return returncode


def stop(workers: Mapping[int, Worker], events: "SimpleQueue[tuple[str, int]]") -> None:
    """Ends the given workers: SIGTERM, then SIGKILL to those still there after the grace period."""
    running = dict(workers)
    for worker in running.values():
        worker.send(signal.SIGTERM)
    deadline = time.monotonic() + GRACE_S
    while running:
        try:
            kind, number = events.get(timeout=max(0.0, deadline - time.monotonic()))
        except Empty:
            break
        if kind == "exit":
            running.pop(number).reap()
    for worker in running.values():
        worker.reap()


def run_workers(command: Sequence[str]) -> int:
    """Runs the command in every worker; returns the exit code for this process."""
    events: SimpleQueue[tuple[str, int]] = SimpleQueue()
    # Before the first worker starts, so that no signal finds one unwatched.
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, lambda received, _: events.put(("signal", received)))
    output = Output()
    addresses = find_free_addresses(NUM_WORKERS)
    started = time.monotonic()
    running: dict[int, Worker] = {}
    exit_code, message = 0, ""
    try:
        for index in range(NUM_WORKERS):
            environment = worker_environment(os.environ, addresses, index)
            running[index] = Worker(command, index, environment, output, events)
        while running and not message:
            kind, number = events.get()
            if kind == "signal":
                exit_code = 128 + number
                message = f"stopped by {signal.Signals(number).name}"
                continue
            returncode = running.pop(number).reap()
            if returncode != 0:
                exit_code = returncode if returncode > 0 else 128 - returncode
                after = f"after {time.monotonic() - started:.1f} s"
                message = f"worker {number} failed first, {after}, {describe_exit(returncode)}"
                message += "; the other one was then stopped" if running else ""
    finally:
        stop(running, events)
    output.finish()
    if message:
        print(message, file=sys.stderr)
    return exit_code


def main() -> int:
    """Reads the command line and runs it."""
    if len(sys.argv) < 2:
        print("usage: two_workers.py SCRIPT [ARGUMENT ...]", file=sys.stderr)
        return 2
    try:
        return run_workers([sys.executable, *sys.argv[1:]])
    except BrokenPipeError:
        return 128 + signal.SIGPIPE


if __name__ == "__main__":
    exit_code = main()
    # Not sys.exit: flushing at exit would complain about a reader of our output that went away.
    os._exit(exit_code)
