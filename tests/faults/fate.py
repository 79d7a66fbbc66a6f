"""The harm that comes to one worker of a training, for the programs beside this file.

    PROGRAM MODEL_DIR FAULT MOMENT WORKER

Worker WORKER suffers FAULT at MOMENT, at the first start only; the file MODEL_DIR.fault then says
when, by the clock of `time.time`. FAULT "hold" is none: it trains until it is stopped.
"""

import multiprocessing
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

NUM_STEPS = 60 if sys.argv[2] != "hold" else 1_000_000  # "hold": until it is stopped
SAVE_STEPS = 10
MIDDLE = 35

model_dir, fault, moment, worker = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
index = int(os.environ.get("TFDIST_INSTANCE_INDEX", os.environ.get("OMPI_COMM_WORLD_RANK", "0")))
is_victim = index == worker and os.environ.get("TFDIST_RESTART_COUNT", "0") == "0"
note = Path(f"{model_dir}.fault")


def _print(kind: str) -> None:
    for _ in range(100):
        size = 1 << 20 if kind == "text" else 1 << 14
        data = (b"x" * 99 + b"\n") * (size // 100) if kind == "text" else os.urandom(size)
        while data:
            data = data[os.write(1, data) :]


def _compute_in_processes() -> None:
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(abs, [-1, -2]) == [1, 2]


# What a program may do that trains all the same.
_HABITS: dict[str, Callable[[], Any]] = {
    "closes its output": lambda: (os.close(1), os.close(2)),
    "changes its folder": lambda: os.chdir("/"),
    "starts a daemon": lambda: subprocess.Popen(["sleep", "1000"], start_new_session=True),
    "prints 100 MB": lambda: _print("text"),
    "prints binary data": lambda: _print("binary"),
    "has processes of its own": _compute_in_processes,
    "deletes its folder": lambda: shutil.rmtree(model_dir),
    "has 64 descriptors": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)),
    "calls os._exit": lambda: os._exit(7),
    "ignores SIGTERM": lambda: (signal.signal(signal.SIGTERM, signal.SIG_IGN), time.sleep(10_000)),
}


def suffer_in_a_save(drafts: str) -> None:
    """Suffers when the first file that matches is in the folder, from another thread."""
    if fault != "kill":
        suffer()
        return

    def watch() -> None:
        while not list(Path(model_dir).glob(drafts)):
            pass
        suffer()

    threading.Thread(target=watch, daemon=True).start()


def suffer() -> None:
    if fault == "hold" or not is_victim or note.exists():
        return
    note.write_text(repr(time.time()))
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif fault == "exception":
        raise RuntimeError("the data are broken")
    elif fault == "exit 3":
        sys.exit(3)
    elif fault == "exit 0":
        sys.exit(0)
    elif fault == "hang":
        time.sleep(10_000)
    elif fault == "memory":
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + (64 << 20),) * 2)
        bytearray(1 << 30)
    elif fault in _HABITS:
        _HABITS[fault]()
    elif fault == "full disk":
        # No file may grow beyond this; a process that ignores the signal gets an error.
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))
    elif fault == "port taken":
        import json

        config = json.loads(os.environ["TF_CONFIG"])
        address = config["cluster"]["worker"][config["task"]["index"]]
        port = int(address.rpartition(":")[2])
        hold = f"import socket; s = socket.create_server(('', {port})); print(flush=True); input()"
        holder = subprocess.Popen(
            [sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert holder.stdout is not None
        holder.stdout.readline()
        globals()["holder"] = holder
    else:
        raise ValueError(fault)
