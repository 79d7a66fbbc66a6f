"""The harm that comes to one worker of a training, for the programs beside this file.

    PROGRAM MODEL_DIR FAULT MOMENT WORKER

Worker WORKER suffers FAULT at MOMENT, at the first start only; the file MODEL_DIR.fault then says
when, by the clock of `time.time`. FAULT "hold" is none: it trains until it is stopped.
"""

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

NUM_STEPS = 60 if sys.argv[2] != "hold" else 1_000_000  # "hold": until it is stopped
SAVE_STEPS = 10
MIDDLE = 35

model_dir, fault, moment, worker = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
index = int(os.environ.get("TFDIST_INSTANCE_INDEX", os.environ.get("OMPI_COMM_WORLD_RANK", "0")))
is_victim = index == worker and os.environ.get("TFDIST_RESTART_COUNT", "0") == "0"
note = Path(f"{model_dir}.fault")


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
