"""Kills random workers at random moments of one training, which must not notice in the end.

    python scripts/benchmarks/chaos.py [--kills 50] [--engine grpc] [--num-instances 2] [--seed 1]

The moments are the start of the processes, the first and the last seconds of a call of `train`, a
save, an evaluation, and any other. Every other kill is followed by one in the next start, before it
has come far. Trains under `tfdist run --max-restarts`, with as many restarts as kills, until all
kills are made or their time is over, and two rounds more. Then it trains as many steps without
harm. The exit code is 0 if the disturbed run ended at that step, with the same values in its last
checkpoint, if no start went back behind the checkpoint that was there, and if no process and no
file handle was left.
Prints a line a kill, and the findings as JSON at the end.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

TRAINING = Path(__file__).with_name("chaos_training.py")
LAST_STEP = "last-step"  # the file of a run's folder that ends it
POLL_S = 0.05
# A start that does not come, or a run that does not end, in this time is a finding.
START_LIMIT_S = 180.0
END_LIMIT_S = 600.0
# The line of worker 0's log that begins each kind of moment, and the longest time from then to the
# kill. None: the start of the processes.
MOMENTS: dict[str, tuple[str | None, float]] = {
    "start": (None, 3.0),
    "first steps": ("Running local_init_op", 1.0),
    "middle": ("Saving checkpoints for", 1.5),
    "save": ("Saving checkpoints for", 0.05),
    "end of training": ("Loss for final step|Calling checkpoint listeners after", 0.5),
    "evaluation": ("Starting evaluation", 0.5),
}


def read_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--engine", choices=("grpc", "horovod"), default="grpc")
    parser.add_argument("--num-instances", type=int, default=2)
    parser.add_argument("--round-steps", type=int, default=300, help="steps of a call of train")
    parser.add_argument("--save-steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit-s", type=float, default=240.0, help="no kill after this time")
    return parser.parse_args()


def run_command(
    arguments: argparse.Namespace, folder: Path, *options: str, program: Sequence[str] = ()
) -> list[str]:
    """Returns the launcher's command, with further options of it and of the program.

    Its logs, and the last step, are in the folder.
    """
    return [
        *(sys.executable, "-m", "tfdist", "run", "--engine", arguments.engine, *options),
        *("--grace", "5", "--progress", "none", "--log-dir", str(folder / "logs"), "--"),
        *(str(TRAINING), str(folder / "model"), "--last-step-file", str(folder / LAST_STEP)),
        *("--save-steps", str(arguments.save_steps)),
        *("--round-steps", str(arguments.round_steps), *program),
    ]


def start_run(arguments: argparse.Namespace, folder: Path, max_restarts: int) -> Any:
    """Starts the training under the launcher; its output is in the folder, too."""
    size = ("--num-instances", str(arguments.num_instances), "--max-restarts", str(max_restarts))
    command = run_command(arguments, folder, *size)
    with (folder / "output").open("wb") as output:
        return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=folder)


def workers_of(launcher: psutil.Process) -> list[psutil.Process]:
    """Returns the processes that train."""
    found = []
    for process in launcher.children(recursive=True):
        try:
            is_standby = process.name() == "tfdist-standby"
            if str(TRAINING) in process.cmdline()[:2] and not is_standby:
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


def saved_step(model_dir: Path) -> int:
    """Returns the step of the checkpoint that a start would find; -1 if there is none."""
    try:
        match = re.search(
            r'model_checkpoint_path: ".*-(\d+)"', (model_dir / "checkpoint").read_text()
        )
    except FileNotFoundError:
        return -1
    return int(match[1]) if match else -1


def name_last_step(folder: Path, round_steps: int) -> int:
    """Makes a run end in two rounds: the restarted workers are in the next one at most."""
    rounds = max(0, saved_step(folder / "model")) // round_steps
    last_step = (rounds + 2) * round_steps
    (folder / LAST_STEP).write_text(str(last_step))
    return last_step


class Chaos:
    """One disturbed run; everything goes into the folder."""

    def __init__(self, arguments: argparse.Namespace, folder: Path) -> None:
        self._arguments = arguments
        self._folder = folder
        self._random = random.Random(arguments.seed)
        self._started_s = time.monotonic()
        self.kills: list[dict[str, Any]] = []
        self.num_handles: list[int] = []
        self.last_step = 0

    def run(self) -> int:
        """Kills until enough are killed, then waits; returns the launcher's exit code."""
        popen = start_run(self._arguments, self._folder, max_restarts=self._arguments.kills)
        launcher = psutil.Process(popen.pid)
        killed: set[psutil.Process] = set()
        try:
            while self._goes_on() and popen.poll() is None:
                workers = self._wait_for_start(popen, launcher, killed)
                if not workers:
                    break
                self.num_handles.append(launcher.num_fds())
                killed.update(workers)
                self._kill_one(workers, popen)
            self.last_step = name_last_step(self._folder, self._arguments.round_steps)
            popen.wait(END_LIMIT_S)
        finally:
            popen.terminate()
            popen.wait()
        return int(popen.returncode)

    def _goes_on(self) -> bool:
        is_late = time.monotonic() - self._started_s > self._arguments.limit_s
        return not is_late and len(self.kills) < self._arguments.kills

    def _wait_for_start(
        self, popen: Any, launcher: psutil.Process, old: set[psutil.Process]
    ) -> list[psutil.Process]:
        give_up_s = time.monotonic() + START_LIMIT_S
        while popen.poll() is None and time.monotonic() < give_up_s:
            workers = [worker for worker in workers_of(launcher) if worker not in old]
            if len(workers) == self._arguments.num_instances:
                return workers
            time.sleep(POLL_S)
        return []

    def _kill_one(self, workers: list[psutil.Process], popen: Any) -> None:
        # The second kill in a row, the fifth, the eighth, ...
        is_again = len(self.kills) % 3 == 1
        moment = "start" if is_again else self._random.choice(list(MOMENTS))
        line, longest_wait_s = MOMENTS[moment]
        if line is not None:
            self._wait_for_line(line, popen)
        kill_at_s = time.monotonic() + self._random.uniform(0.0, longest_wait_s)
        while time.monotonic() < kill_at_s and popen.poll() is None:
            time.sleep(min(POLL_S, longest_wait_s / 4))
        victim = self._random.randrange(len(workers))
        before = saved_step(self._folder / "model")
        try:
            workers[victim].kill()
        except psutil.NoSuchProcess:
            return
        moment = "next start" if is_again else moment
        self.kills.append({"saved_step": before, "moment": moment})
        saved = f"step {before} saved" if before >= 0 else "nothing saved"
        print(
            f"kill {len(self.kills)} after {time.monotonic() - self._started_s:.0f} s: {moment}, "
            f"worker {victim} of {len(workers)}, {saved}",
            flush=True,
        )

    def _wait_for_line(self, pattern: str, popen: Any) -> None:
        """Waits until worker 0 logs a line that matches, from now on."""
        log = self._folder / "logs" / "worker-0.log"
        begin = log.stat().st_size if log.exists() else 0
        lines = re.compile(pattern.encode())
        give_up_s = time.monotonic() + START_LIMIT_S
        while popen.poll() is None and time.monotonic() < give_up_s:
            if log.exists():
                with log.open("rb") as file:
                    file.seek(begin)
                    if lines.search(file.read()):
                        return
            time.sleep(POLL_S)


def restored_steps(folder: Path) -> list[int]:
    """Returns from which step worker 0 went on, in order of its starts that got so far."""
    text = (folder / "logs" / "worker-0.log").read_text(errors="replace")
    return [
        int(step) for step in re.findall(r"Restoring parameters from \S*model\.ckpt-(\d+)", text)
    ]


def values_of(model_dir: Path) -> dict[str, Any]:
    """Returns all values of the last checkpoint."""
    import tensorflow as tf

    reader = tf.train.load_checkpoint(str(model_dir))
    return {name: reader.get_tensor(name) for name in sorted(reader.get_variable_to_shape_map())}


def largest_difference(values: dict[str, Any], others: dict[str, Any]) -> float:
    """Returns by how much two checkpoints differ, at most."""
    if values.keys() != others.keys():
        return float("inf")
    return max(float(abs(values[name] - others[name]).max()) for name in values)


def main() -> int:
    """Runs twice, compares, and says what was found."""
    arguments = read_arguments()
    with tempfile.TemporaryDirectory(prefix="tfdist-chaos-") as scratch:
        disturbed, quiet = Path(scratch, "disturbed"), Path(scratch, "quiet")
        disturbed.mkdir()
        quiet.mkdir()
        started_s = time.monotonic()
        chaos = Chaos(arguments, disturbed)
        exit_code = chaos.run()
        disturbed_s = time.monotonic() - started_s
        left = [
            one for one in psutil.process_iter(["cmdline"]) if scratch in str(one.info["cmdline"])
        ]
        if exit_code != 0:
            print((disturbed / "output").read_text(errors="replace")[-4000:])
        (quiet / LAST_STEP).write_text(str(chaos.last_step))
        quiet_code = start_run(arguments, quiet, max_restarts=0).wait(END_LIMIT_S)
        said = re.findall("tfdist: (interrupted .*)", (disturbed / "output").read_text())
        values, expected = values_of(disturbed / "model"), values_of(quiet / "model")
        restored = restored_steps(disturbed)
        findings = {
            "engine": arguments.engine,
            "workers": arguments.num_instances,
            "kills": len(chaos.kills),
            "moments": dict(Counter(kill["moment"] for kill in chaos.kills)),
            "exit_code": exit_code,
            "undisturbed_exit_code": quiet_code,
            "asked_step": chaos.last_step,
            "last_step": int(values["global_step"]),
            "largest_difference": largest_difference(values, expected),
            "starts_that_went_back": sum(
                later < earlier for earlier, later in itertools.pairwise(restored)
            ),
            "least_restored_after_last_kill": restored[-1] if restored else -1,
            "saved_at_last_kill": chaos.kills[-1]["saved_step"] if chaos.kills else -1,
            "processes_left": len(left),
            "launcher_file_handles": [min(chaos.num_handles), max(chaos.num_handles)],
            "seconds": round(disturbed_s, 1),
            "undisturbed_seconds": round(time.monotonic() - started_s - disturbed_s, 1),
            "said": said,
        }
    print(json.dumps(findings, indent=2))
    is_sound = (
        exit_code == quiet_code == 0
        and chaos.kills
        and findings["last_step"] == chaos.last_step
        and findings["largest_difference"] == 0.0
        and findings["starts_that_went_back"] == 0
        and findings["least_restored_after_last_kill"] >= findings["saved_at_last_kill"]
        and not left
        and max(chaos.num_handles) - min(chaos.num_handles) <= 2
    )
    if len(chaos.kills) < arguments.kills:
        print(f"only {len(chaos.kills)} of {arguments.kills} kills in {arguments.limit_s:g} s")
    print("sound" if is_sound else "NOT SOUND", os.linesep, end="")
    return 0 if is_sound else 1


if __name__ == "__main__":
    sys.exit(main())
