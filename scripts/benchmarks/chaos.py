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
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
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


def make_parser(
    document: str | None, *, save_steps: int, limit_s: float
) -> argparse.ArgumentParser:
    """Returns a parser of the options that both programs have."""
    parser = argparse.ArgumentParser(
        description=document, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--engine", choices=("grpc", "horovod"), default="grpc")
    parser.add_argument("--round-steps", type=int, default=300, help="steps of a call of train")
    parser.add_argument("--save-steps", type=int, default=save_steps)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit-s", type=float, default=limit_s, help="no harm after this time")
    return parser


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


class DisturbedRun:
    """A training that is disturbed; everything goes into the folder.

    Attributes:
      last_step: The step at which it was to end.
      problem: What did not come in time; no more harm is done then.
      seconds: How long it took.
    """

    def __init__(self, arguments: argparse.Namespace, folder: Path, popen: Any) -> None:
        self.arguments = arguments
        self.folder = folder
        self.popen = popen
        self.random = random.Random(arguments.seed)
        self.last_step = 0
        self.problem = ""
        self.seconds = 0.0
        self._started_s = time.monotonic()

    def disturb(self) -> None:
        """Does harm, until there was enough of it."""
        raise NotImplementedError

    def run(self) -> int:
        """Disturbs the run, then waits; returns the launcher's exit code."""
        try:
            self.disturb()
            self.last_step = name_last_step(self.folder, self.arguments.round_steps)
            with suppress(subprocess.TimeoutExpired):
                self.popen.wait(5.0 if self.problem else END_LIMIT_S)
        finally:
            self.popen.terminate()
            self.popen.wait()
        self.seconds = time.monotonic() - self._started_s
        return int(self.popen.returncode)

    @property
    def may_go_on(self) -> bool:
        """True while there is time for more harm."""
        is_late = time.monotonic() - self._started_s > self.arguments.limit_s
        return not is_late and not self.problem

    def wait(self, what: str, limit_s: float, find: Callable[[], Any]) -> Any:
        """Waits until `find` finds something, and returns it; None comes with a problem."""
        give_up_s = time.monotonic() + limit_s
        while not self.problem:
            if found := find():
                return found
            if self.popen.poll() is not None:
                self.problem = f"the run ended before there was a {what}"
            elif time.monotonic() > give_up_s:
                self.problem = f"no {what} within {limit_s:g} s"
            time.sleep(POLL_S)
        self.say(self.problem)
        return None

    def wait_for_line(
        self, what: str, pattern: str, limit_s: float, is_ready: Callable[[], bool] = lambda: True
    ) -> None:
        """Waits until worker 0 logs a line that matches, from now on, and `is_ready` says yes."""
        log = self.folder / "logs" / "worker-0.log"
        begin = log.stat().st_size if log.exists() else 0
        lines = re.compile(pattern.encode())

        def is_logged() -> bool:
            if not is_ready() or not log.exists():
                return False
            with log.open("rb") as file:
                file.seek(begin)
                return lines.search(file.read()) is not None

        self.wait(what, limit_s, is_logged)

    def sleep(self, seconds: float) -> None:
        """Sleeps while the run goes on."""
        with suppress(subprocess.TimeoutExpired):
            self.popen.wait(seconds)

    def say(self, text: str) -> None:
        """Prints an event, and adds it to the run's output."""
        line = f"{time.monotonic() - self._started_s:5.0f} s: {text}"
        print(line, flush=True)
        with (self.folder / "output").open("a") as output:
            output.write(f"-- {line}\n")

    def findings(self, exit_codes: list[int | None], quiet: Path) -> dict[str, Any]:
        """Returns what is found in both runs' folders; `quiet` is the undisturbed run's."""
        values, expected = values_of(self.folder / "model"), values_of(quiet / "model")
        return {
            "engine": self.arguments.engine,
            "problem": self.problem,
            "exit_codes": exit_codes,
            "asked_step": self.last_step,
            "last_step": int(values.get("global_step", -1)),
            "largest_difference": largest_difference(values, expected),
            "seconds": round(self.seconds, 1),
            "said": re.findall("tfdist: (interrupted .*)", (self.folder / "output").read_text()),
        }


def end_of(popen: Any) -> int | None:
    """Returns the exit code of the undisturbed run; None if it does not end in time."""
    try:
        return int(popen.wait(END_LIMIT_S))
    except subprocess.TimeoutExpired:
        popen.terminate()
        popen.wait()
        return None


def report(findings: dict[str, Any], *, tolerance: float, is_sound: bool) -> int:
    """Prints the findings; returns 0 if all that both programs ask is so, and `is_sound`."""
    print(json.dumps(findings, indent=2))
    is_sound = (
        is_sound
        and not findings["problem"]
        and findings["exit_codes"] == [0, 0]
        and findings["last_step"] == findings["asked_step"]
        and findings["largest_difference"] <= tolerance
    )
    print("sound" if is_sound else "NOT SOUND")
    return 0 if is_sound else 1


def values_of(model_dir: Path) -> dict[str, Any]:
    """Returns all values of the last checkpoint; none without one."""
    import tensorflow as tf

    if saved_step(model_dir) < 0:
        return {}
    reader = tf.train.load_checkpoint(str(model_dir))
    return {name: reader.get_tensor(name) for name in sorted(reader.get_variable_to_shape_map())}


def largest_difference(values: dict[str, Any], others: dict[str, Any]) -> float:
    """Returns by how much two checkpoints differ, at most."""
    if values.keys() != others.keys() or not values:
        return float("inf")
    return max(float(abs(values[name] - others[name]).max()) for name in values)


def start_run(arguments: argparse.Namespace, folder: Path, max_restarts: int) -> Any:
    """Starts the training under the launcher; its output is in the folder, too."""
    size = ("--num-instances", str(arguments.num_instances), "--max-restarts", str(max_restarts))
    command = run_command(arguments, folder, *size)
    with (folder / "output").open("ab") as output:
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


class Chaos(DisturbedRun):
    """A run whose workers are killed."""

    def __init__(self, arguments: argparse.Namespace, folder: Path) -> None:
        super().__init__(arguments, folder, start_run(arguments, folder, arguments.kills))
        self.kills: list[dict[str, Any]] = []
        self.num_handles: list[int] = []

    def disturb(self) -> None:
        launcher = psutil.Process(self.popen.pid)
        killed: set[psutil.Process] = set()

        def new_workers() -> list[psutil.Process]:
            found = [worker for worker in workers_of(launcher) if worker not in killed]
            return found if len(found) == self.arguments.num_instances else []

        while self.may_go_on and len(self.kills) < self.arguments.kills:
            workers = self.wait("start", START_LIMIT_S, new_workers)
            if workers:
                self.num_handles.append(launcher.num_fds())
                killed.update(workers)
                self._kill_one(workers)

    def _kill_one(self, workers: list[psutil.Process]) -> None:
        # The second kill in a row, the fifth, the eighth, ...
        is_again = len(self.kills) % 3 == 1
        moment = "start" if is_again else self.random.choice(list(MOMENTS))
        line, longest_wait_s = MOMENTS[moment]
        if line is not None:
            self.wait_for_line(f'line "{line}"', line, START_LIMIT_S)
        self.sleep(self.random.uniform(0.0, longest_wait_s))
        victim = self.random.randrange(len(workers))
        before = saved_step(self.folder / "model")
        try:
            workers[victim].kill()
        except psutil.NoSuchProcess:
            return
        moment = "next start" if is_again else moment
        self.kills.append({"saved_step": before, "moment": moment})
        saved = f"step {before} saved" if before >= 0 else "nothing saved"
        self.say(f"kill {len(self.kills)}: {moment}, worker {victim} of {len(workers)}, {saved}")


def restored_steps(folder: Path) -> list[int]:
    """Returns from which step worker 0 went on, in order of its starts that got so far."""
    text = (folder / "logs" / "worker-0.log").read_text(errors="replace")
    return [
        int(step) for step in re.findall(r"Restoring parameters from \S*model\.ckpt-(\d+)", text)
    ]


def main() -> int:
    """Runs twice, compares, and says what was found."""
    parser = make_parser(__doc__, save_steps=20, limit_s=240.0)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--num-instances", type=int, default=2)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tfdist-chaos-") as scratch:
        disturbed, quiet = Path(scratch, "disturbed"), Path(scratch, "quiet")
        disturbed.mkdir()
        quiet.mkdir()
        chaos = Chaos(arguments, disturbed)
        exit_code = chaos.run()
        left = [
            one for one in psutil.process_iter(["cmdline"]) if scratch in str(one.info["cmdline"])
        ]
        if exit_code != 0:
            print((disturbed / "output").read_text(errors="replace")[-4000:])
        (quiet / LAST_STEP).write_text(str(chaos.last_step))
        quiet_code = end_of(start_run(arguments, quiet, max_restarts=0))
        restored, handles = restored_steps(disturbed), chaos.num_handles
        findings = {
            **chaos.findings([exit_code, quiet_code], quiet),
            "workers": arguments.num_instances,
            "kills": len(chaos.kills),
            "moments": dict(Counter(kill["moment"] for kill in chaos.kills)),
            "starts_that_went_back": sum(
                later < earlier for earlier, later in itertools.pairwise(restored)
            ),
            "least_restored_after_last_kill": restored[-1] if restored else -1,
            "saved_at_last_kill": chaos.kills[-1]["saved_step"] if chaos.kills else -1,
            "processes_left": len(left),
            "new_file_handles_of_launcher": max(handles, default=0) - min(handles, default=0),
        }
    if len(chaos.kills) < arguments.kills:
        print(f"only {len(chaos.kills)} of {arguments.kills} kills in {arguments.limit_s:g} s")
    is_sound = (
        len(chaos.kills) > 0
        and findings["starts_that_went_back"] == 0
        and findings["least_restored_after_last_kill"] >= findings["saved_at_last_kill"]
        and not left
        and findings["new_file_handles_of_launcher"] <= 2
    )
    return report(findings, tolerance=0.0, is_sound=is_sound)


if __name__ == "__main__":
    sys.exit(main())
