"""Two workers on this machine that `tfdist run` starts, and that train one step together."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tfdist.cluster.instance_variables import OF_ONE_RUN
from tfdist.launch.doctor.children import Children, Ended, telling_lines
from tfdist.launch.doctor.report import Finding, broken, good
from tfdist.launch.errors import UsageError
from tfdist.launch.machine.processes import python_command
from tfdist.launch.options.run_command_line import parse_run_options
from tfdist.launch.run import command
from tfdist.launch.screen.failure_box import log_tail

ENGINES = {"grpc": "gRPC", "horovod": "Horovod"}
DIALECTS = {"graph": "", "fit": " by Keras' fit"}
_MODULE = "tfdist.strategies.self_test"
_NUM_WORKERS = 2
_LIMIT_S = 90.0
_OPTIONS = (
    *("--start-timeout", "40"),  # They start together, but a busy machine may start one late.
    *("--grace", "3", "--print-topology", "no", "--progress", "none", "--color", "never"),
)


def main(engine: str, dialect: str, log_dir: str) -> None:
    """Runs the two workers as `tfdist run` does, and exits with its exit code."""
    words = ["--engine", engine, "--num-instances", str(_NUM_WORKERS), *_OPTIONS]
    words += ["--log-dir", log_dir, "--", *python_command(_MODULE, engine, dialect)]
    try:
        sys.exit(command.main(parse_run_options(words)))
    except UsageError as error:
        sys.exit(f"tfdist: {error}")


def try_workers(children: Children, engine: str, dialect: str = "graph") -> Finding:
    """Starts the workers in a child process, and returns whether they trained together."""
    with tempfile.TemporaryDirectory(prefix="tfdist-", ignore_cleanup_errors=True) as folder:
        command = python_command(__name__, engine, dialect, folder)
        ended = children.run(command, trial_environment(os.environ), limit_s=_LIMIT_S)
        paths = [Path(folder, f"worker-{index}.log") for index in range(_NUM_WORKERS)]
        return judge_trial(engine, ended, [log_tail(path) for path in paths], dialect)


def trial_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the launcher's environment, without the run that the doctor may be part of."""
    membership = (*OF_ONE_RUN, "TFDIST_", "SLURM_")
    kept = {name: value for name, value in environ.items() if not name.startswith(membership)}
    defaults = {
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "TF_USE_LEGACY_KERAS": "1",  # Half the time: without it TensorFlow imports Keras 3.
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",  # Two workers may share one GPU.
    }
    return {**defaults, **kept}


def judge_trial(
    engine: str, ended: Ended, logs: Sequence[Sequence[str]], dialect: str = "graph"
) -> Finding:
    """Returns whether the workers trained together, by the end of `tfdist run` and their logs."""
    answers = [_answer(log) for log in logs]
    counts = {answer.get("num_workers") for answer in answers}
    what = f"two workers over {ENGINES[engine]}"
    if ended.exit_code == 0 and counts == {_NUM_WORKERS}:
        device = str(answers[0]["device"]).removeprefix("/device:")
        return good(f"{what} trained a step{DIALECTS[dialect]} on {device} ({ended.seconds:.1f} s)")
    problem = f"each worker was on its own: it saw {counts} workers, not {_NUM_WORKERS}"
    if ended.exit_code != 0:
        problem = _problem(ended, logs)
    options = f"--engine {engine} --num-instances {_NUM_WORKERS}"
    by_hand = f"tfdist run {options} -- {sys.executable} -m {_MODULE} {engine} {dialect}"
    return broken(f"{what}: {problem}", f"To see all that they say run: {by_hand}")


def _problem(ended: Ended, logs: Sequence[Sequence[str]]) -> str:
    """Returns which worker failed first, how it ended, and its most telling line."""
    failed = re.search(r"(worker (\d+)) failed first", ended.stderr)  # The failure box's title.
    who = failed[1] if failed else "tfdist run"
    how = f"ended with exit code {ended.exit_code}"
    if ended.exit_code is None:
        how = f"was not done after {ended.seconds:.0f} s"
    output = [ended.stderr, *("\n".join(log) for log in logs)]
    lines = telling_lines(output[1 + int(failed[2])] if failed else "\n".join(output))
    errors = [line for line in lines if re.match(r"[\w.]+Error\b|tfdist: ", line)]
    reason = (errors or lines[-1:] or ["it said nothing"])[0]
    return f"{who} {how}: {reason[:300]}"


def _answer(log: Sequence[str]) -> dict[str, object]:
    lines = [line for line in log if line.startswith("{")]
    try:
        return dict(json.loads(lines[-1])) if lines else {}
    except ValueError:  # Standard error in the middle of the line.
        return {}
