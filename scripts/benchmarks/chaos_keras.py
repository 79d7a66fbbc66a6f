"""Kills random workers of `fit` and of own loops at random moments, which must not change the end.

    python scripts/benchmarks/chaos_keras.py [--program fit] [--engine grpc] [--num-instances 2]
        [--rounds 10] [--kills 2] [--seed 1]

A round trains a network under `tfdist run --max-restarts`, kills a worker, and then one of each
restart. The moments are random: starts, steps, saves and evaluations. The weights and slots at the
end must have the bits of an undisturbed run. Of the round nothing may be left: no process, no port
that listens, nothing in /dev/shm, no file in TMPDIR, no draft beside the model. Prints a line a
round, and the findings as JSON at the end.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

TRAINING = Path(__file__).with_name("chaos_keras_training.py")
LIMIT_S = 300.0
SETTLE_S = 15.0
LOOK_S = 0.2
MEMORY = "/dev/shm"


def parse_arguments() -> argparse.Namespace:
    """Returns the command line's arguments."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--program", choices=("fit", "loop"), default="fit")
    parser.add_argument("--keras", choices=("keras", "tf_keras"), default="keras")
    parser.add_argument("--engine", choices=("grpc", "horovod"), default="grpc")
    parser.add_argument("--num-instances", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--kills", type=int, default=2, help="of each round")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit-s", type=float, default=3600.0, help="no new round after this")
    return parser.parse_args()


class Traces:
    """Ports of a run that listen, and its files in shared memory.

    A thread looks at the processes of the run, as others use this machine as well.
    """

    def __init__(self, launcher: Any) -> None:
        self.launcher = launcher
        self.ports: set[int] = set()
        self.shared: set[str] = set()
        self.run_names: set[str] = set()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def left(self) -> list[str]:
        """Returns what is left of it now."""
        listening = _listening(psutil.net_connections("tcp"))
        shared = {path for path in self.shared if os.path.exists(path)}
        shared |= {
            os.path.join(MEMORY, name)
            for name in os.listdir(MEMORY)
            if any(run in name for run in self.run_names)
        }
        return [
            *(f"port {port}" for port in sorted(self.ports & listening)),
            *(f"shared memory {path}" for path in sorted(shared)),
        ]

    def end(self) -> None:
        """Stops to look."""
        self._is_over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._is_over.wait(LOOK_S):
            try:
                processes = [self.launcher, *self.launcher.children(recursive=True)]
            except psutil.NoSuchProcess:
                return
            for process in processes:
                # It may have ended meanwhile.
                with suppress(psutil.Error, OSError):
                    self._note(process)

    def _note(self, process: psutil.Process) -> None:
        self.ports |= _listening(process.net_connections("tcp"))
        maps = Path(f"/proc/{process.pid}/maps").read_text()
        self.shared |= set(re.findall(rf"{MEMORY}/\S+", maps))
        if run_name := process.environ().get("TFDIST_RUN"):
            self.run_names.add(run_name)


def _listening(connections: Iterable[Any]) -> set[int]:
    """Returns the ports of the connections that listen."""
    return {one.laddr.port for one in connections if one.status == psutil.CONN_LISTEN}


class Round:
    """One training, which is disturbed so many times; everything goes into the folder."""

    def __init__(self, arguments: argparse.Namespace, folder: Path, kills: int) -> None:
        self.arguments = arguments
        self.folder = folder
        self.kills = kills
        self.said: list[str] = []
        (folder / "tmp").mkdir(parents=True)

    def run(self, chance: random.Random) -> dict[str, Any]:
        """Trains; returns what is found."""
        began_s = time.monotonic()
        with (self.folder / "output").open("wb") as output:
            launcher = psutil.Popen(
                self._command(),
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env={**os.environ, "TMPDIR": str(self.folder / "tmp")},
            )
        traces = Traces(launcher)
        try:
            made = self._disturb(launcher, chance)
            code = str(launcher.wait(LIMIT_S))
        except (psutil.TimeoutExpired, TimeoutError) as error:
            made, code = self.said, f"no end: {error}"
            launcher.terminate()
            launcher.wait()
        finally:
            traces.end()
        seconds = time.monotonic() - began_s
        text = (self.folder / "output").read_text(errors="replace")
        return {
            "code": code,
            "kills": made,
            "digests": sorted(set(re.findall(r"digest (\w+)", text))),
            "seconds": round(seconds, 1),
            "until_next_step": re.findall(r"interrupted .*?: ([\d.]+) s until", text),
            "ports": len(traces.ports),
            "shared": len(traces.shared),
            "left": _left(self.folder, traces),
        }

    def _command(self) -> list[str]:
        one = self.arguments
        return [
            *(sys.executable, "-m", "tfdist", "run", "--engine", one.engine),
            *("--num-instances", str(one.num_instances), "--max-restarts", str(self.kills + 1)),
            *("--grace", "5", "--progress", "none", "--log-dir", str(self.folder / "logs"), "--"),
            *(str(TRAINING), one.program, one.keras, str(self.folder / "model")),
        ]

    def _disturb(self, launcher: Any, chance: random.Random) -> list[str]:
        """Kills one worker after the other, each some time after all have begun to train."""
        seen: set[psutil.Process] = set()
        for _ in range(self.kills):
            workers = self._wait_for_workers(launcher, seen)
            seen.update(workers)
            # A training takes about 6 s; a start as long.
            where = chance.choice(("start", "steps", "steps", "save", "evaluation"))
            if where == "start":
                time.sleep(chance.uniform(0.0, 4.0))
            else:
                self._wait_for_line(launcher, where, chance)
            victim = chance.randrange(len(workers))
            try:
                workers[victim].kill()
            except psutil.NoSuchProcess:
                self.said.append(f"{where}: too late")
                break
            self.said.append(f"{where}: worker")
        return self.said

    def _wait_for_workers(self, launcher: Any, seen: set[psutil.Process]) -> list[psutil.Process]:
        """Returns the processes of the next start."""
        give_up_s = time.monotonic() + LIMIT_S
        while launcher.status() != psutil.STATUS_ZOMBIE:
            found = []
            for process in launcher.children(recursive=True):
                try:
                    is_worker = str(TRAINING) in process.cmdline()[:3]
                    if is_worker and process.name() != "tfdist-standby" and process not in seen:
                        found.append(process)
                except (psutil.NoSuchProcess, psutil.AccessDenied):
                    continue
            if len(found) == self.arguments.num_instances:
                return found
            if time.monotonic() > give_up_s:
                raise TimeoutError("the next start did not come")
            time.sleep(0.02)
        raise TimeoutError("the run ended before the next start")

    def _wait_for_line(self, launcher: Any, where: str, chance: random.Random) -> None:
        log = self.folder / "logs" / "worker-0.log"
        begin = log.stat().st_size if log.exists() else 0
        skipped = chance.randrange(20 if where == "steps" else 2)
        give_up_s = time.monotonic() + LIMIT_S
        while launcher.status() != psutil.STATUS_ZOMBIE and time.monotonic() < give_up_s:
            if log.exists():
                with log.open("rb") as file:
                    file.seek(begin)
                    if file.read().count(f"at {where}".encode()) > skipped:
                        break
            time.sleep(0.005)
        time.sleep(chance.uniform(0.0, 0.08))


def _left(folder: Path, traces: Traces) -> list[str]:
    """Returns what is left of a round, when that has had time to end."""
    give_up_s = time.monotonic() + SETTLE_S
    while True:
        left = [
            f"process {one.pid}"
            for one in psutil.process_iter(["cmdline"])
            if str(folder) in str(one.info["cmdline"])
        ]
        left += [f"TMPDIR {path.name}" for path in (folder / "tmp").iterdir()]
        left += [
            f"draft {path.name}"
            for path in (folder / "model").rglob(".saving*")
            if path.is_file() or any(path.iterdir())
        ]
        left += traces.left()
        if not left or time.monotonic() > give_up_s:
            return left
        time.sleep(0.2)


def main() -> int:
    """Runs the rounds, and says what was found."""
    arguments = parse_arguments()
    began_s = time.monotonic()
    rounds: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="tfdist-chaos-") as scratch:
        quiet = Round(arguments, Path(scratch, "quiet"), 0).run(random.Random(0))
        print(f"undisturbed: {json.dumps(quiet)}", flush=True)
        for number in range(arguments.rounds):
            if time.monotonic() - began_s > arguments.limit_s:
                break
            seed = arguments.seed + number
            folder = Path(scratch, f"round-{seed}")
            found = Round(arguments, folder, arguments.kills).run(random.Random(seed))
            is_sound = (
                found["code"] == "0"
                and found["digests"] == quiet["digests"]
                and len(found["digests"]) == 1
                and not found["left"]
            )
            rounds.append({"seed": seed, "is_sound": is_sound, **found})
            print(f"{'sound' if is_sound else 'NOT SOUND'}: {json.dumps(rounds[-1])}", flush=True)
            if not is_sound:
                name = hashlib.sha256(folder.name.encode()).hexdigest()[:8]
                kept = Path(tempfile.gettempdir(), f"tfdist-chaos-{seed}-{name}.txt")
                kept.write_bytes((folder / "output").read_bytes()[-20_000:])
                print(f"its output is in {kept}", flush=True)
    summary = {
        **vars(arguments),
        "rounds": len(rounds),
        "sound": sum(one["is_sound"] for one in rounds),
        "kills": sum(": worker" in kill for one in rounds for kill in one["kills"]),
    }
    print(json.dumps(summary))
    return 0 if rounds and summary["sound"] == len(rounds) else 1


if __name__ == "__main__":
    sys.exit(main())
