"""Kills a worker in a training with tfdist, torchrun and Horovod's elastic run, and compares.

    python scripts/benchmarks/killed_worker.py [--torchrun TORCHRUN] [--only tfdist-grpc ...]

Each training of killed_worker_training.py runs undisturbed, and with worker 1 killed before step
31, six steps after a save. Prints a line of JSON for each: the exit codes, the workers that were
started, the steps that were made again, and whether the weights and slots have the same bits.
TORCHRUN is the path of that command, in an environment with PyTorch.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

TRAINING = str(Path(__file__).with_name("killed_worker_training.py"))
KILL_STEP = 31
LIMIT_S = 180.0


def commands(torchrun: str, folder: Path) -> dict[str, list[str]]:
    """Returns the command of each training, without the program's own arguments."""
    hosts = folder / "hosts.sh"
    hosts.write_text("#!/bin/sh\necho localhost:1\necho 127.0.0.1:1\n")
    hosts.chmod(0o755)
    tfdist = [sys.executable, "-m", "tfdist", "run", "--num-instances=2", "--max-restarts=1"]
    shown = ["--output=all", "--progress=none", f"--log-dir={folder / 'logs'}"]
    horovod = [sys.executable, "-m", "horovod.runner.launch", "--gloo", "-np", "2"]
    return {
        "tfdist-grpc": [*tfdist, *shown, "--engine=grpc", "--", TRAINING, "tfdist"],
        "tfdist-horovod": [*tfdist, *shown, "--engine=horovod", "--", TRAINING, "tfdist"],
        "torchrun": [torchrun, "--nproc-per-node=2", "--max-restarts=1", TRAINING, "torch"],
        "horovod-elastic": [
            *(*horovod, "--min-np", "1", "--host-discovery-script", str(hosts)),
            *("--network-interfaces", "lo", sys.executable, TRAINING, "horovod"),
        ],
    }


def train(name: str, torchrun: str, kill_step: int) -> dict[str, Any]:
    """Runs a training; returns what its output says."""
    with tempfile.TemporaryDirectory(prefix="tfdist-killed-") as scratch:
        folder = Path(scratch)
        words = [*commands(torchrun, folder)[name], scratch, str(kill_step)]
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
        with (folder / "out").open("wb") as out:
            launcher = subprocess.Popen(
                words, stdout=out, stderr=subprocess.STDOUT, env=environ, start_new_session=True
            )
            try:
                code = str(launcher.wait(LIMIT_S))
            except subprocess.TimeoutExpired:
                launcher.terminate()
                launcher.wait()
                code = f"no end within {LIMIT_S:.0f} s"
        text = (folder / "out").read_text(errors="replace")
    steps = Counter(re.findall(r"\bstep (\d+)$", text, re.MULTILINE))
    return {
        "code": code,
        "starts": sorted(re.findall(r"\bworker (\d) starts$", text, re.MULTILINE)),
        "steps_again": sum(steps.values()) - len(steps),
        "last_step": max(map(int, steps), default=0),
        "digests": sorted(re.findall(r"\bdigest (\w+)$", text, re.MULTILINE)),
        "output": text,
    }


def main() -> int:
    """Runs each training twice, and says what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torchrun", default="torchrun")
    parser.add_argument("--only", nargs="*", default=[])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        names = list(commands(arguments.torchrun, Path(scratch)))
    for name in arguments.only or names:
        quiet = train(name, arguments.torchrun, 0)
        killed = train(name, arguments.torchrun, KILL_STEP)
        has_equal_bits = len({*quiet["digests"], *killed["digests"]}) == 1
        for found in (quiet, killed):
            output = found.pop("output")
            if found["code"] != "0" or not found["digests"]:
                print(output[-5_000:], file=sys.stderr)
        result = {"name": name, "has_equal_bits": has_equal_bits, "quiet": quiet, "killed": killed}
        print(json.dumps(result), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
