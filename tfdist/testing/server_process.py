"""The test's side of the fork server: its start at the first use, requests to it, its end."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tfdist.launch.machine.processes import python_command
from tfdist.testing.job import Job, read_text

_START_LIMIT_S = 60.0
_PRELOAD_LIMIT_S = 300.0  # a cold disk and a busy machine: TensorFlow is a gigabyte
_END_LIMIT_S = 10.0
_IMPORT_ENVIRONMENT = {
    # Imports start no thread pools, so that the process stays safe to fork.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    # Read when TensorFlow is imported, too early for a run's own environment.
    "TF_CPP_MIN_LOG_LEVEL": os.environ.get("TF_CPP_MIN_LOG_LEVEL", "2"),
    # Horovod's import touches tf.keras, which decides its version for good.
    "TF_USE_LEGACY_KERAS": os.environ.get("TF_USE_LEGACY_KERAS", "1"),
}


class ServerProcess:
    """A fork server, and the folder that holds its socket and its runs' files."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._preloaded: set[str] = set()

    @property
    def folder(self) -> Path:
        """The folder for the files of all runs; removed by `close`."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="tfdist-"))
        return self._folder

    @property
    def socket_path(self) -> str:
        return str(self.folder / "server")

    def preload(self, modules: Sequence[str]) -> None:
        """Asks the server to import modules, so that its processes have them from the start."""
        self._forget_a_dead_server()
        missing = [module for module in modules if module not in self._preloaded]
        if not missing:
            return
        with self._connect() as connection:
            connection.settimeout(_PRELOAD_LIMIT_S)
            connection.sendall(json.dumps({"preload": missing}).encode() + b"\n")
            if not connection.recv(64):
                raise RuntimeError(self._end_text())
        self._preloaded.update(missing)

    def start(self, job: Job) -> socket.socket:
        """Starts a process, which is stopped when the returned connection is closed."""
        connection = self._connect()
        try:
            connection.sendall(job.to_json().encode() + b"\n")
        except BaseException:
            connection.close()
            raise
        return connection

    def has_ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def check(self) -> None:
        if self.has_ended():
            raise RuntimeError(self._end_text())

    def close(self) -> None:
        self._end_process()
        folder, self._folder = self._folder, None
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    def _end_process(self) -> None:
        self._preloaded.clear()
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(_END_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()  # the kernel kills its children with it
                process.wait()

    def _connect(self) -> socket.socket:
        self._forget_a_dead_server()
        if self._process is None:
            self._launch()
        connection = socket.socket(socket.AF_UNIX)
        give_up_s = time.monotonic() + _START_LIMIT_S
        try:
            while True:
                self.check()
                with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
                    connection.connect(self.socket_path)
                    return connection
                if time.monotonic() > give_up_s:
                    raise RuntimeError(
                        f"the fork server did not answer within {_START_LIMIT_S:.0f} s"
                    )
                time.sleep(0.005)
        except BaseException:
            connection.close()
            raise

    def _forget_a_dead_server(self) -> None:
        """Removes a server that has ended, so that a new one can start in the same folder."""
        if self.has_ended():
            self._end_process()
            Path(self.socket_path).unlink(missing_ok=True)

    def _launch(self) -> None:
        with open(self.folder / "server.log", "wb") as log:
            self._process = subprocess.Popen(
                python_command("tfdist.testing.fork_server", self.socket_path),
                stdin=subprocess.PIPE,  # its end is the server's end
                stdout=log,
                stderr=log,
                env={**os.environ, **_IMPORT_ENVIRONMENT, "TMPDIR": str(self.folder)},
                start_new_session=True,  # Ctrl-C in the terminal is for the test, which stops all
            )

    def _end_text(self) -> str:
        log = read_text(self.folder / "server.log").strip().splitlines()[-20:]
        return "\n".join(["the fork server ended unexpectedly; its last lines:", *log])
