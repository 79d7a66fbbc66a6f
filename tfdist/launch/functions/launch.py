"""`tfdist.launch`: a function in several workers, through `tfdist run`.

this process         writes the call into a folder, shows what the launcher prints
|  starts
v
tfdist run           progress, failure box, restarts, logs: as for any program
|  starts
v
called.py            one per worker: makes the call, writes its value into the folder
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from tfdist.launch.errors import UsageError
from tfdist.launch.failures.first_failure import WorkerEnd, first_failure
from tfdist.launch.functions.called import CALL
from tfdist.launch.functions.calls import (
    Outcome,
    WorkerFailedError,
    exception_of,
    pickle_call,
    value_of,
)
from tfdist.launch.machine.processes import die_with_parent
from tfdist.launch.options.declaration import Option
from tfdist.launch.options.run_command_line import parse_run_options
from tfdist.launch.options.run_options import RUN
from tfdist.process.exit_codes import INTERRUPTED

if TYPE_CHECKING:
    from typing_extensions import Unpack

# The call lies in a folder of this machine, and a dry run or a file has no values to return.
_GROUPS_LEFT_OUT = ("other machines", "looking without starting", "options in a file")


class LaunchOptions(TypedDict, total=False):
    """The options of `tfdist run` that `launch` takes by their names, except poprun's.

    Editors and type checkers know them by this; the values are checked as on a command line.
    """

    num_replicas: int
    devices_per_replica: int
    evaluator: bool
    env: Mapping[str, str]
    threads: int
    oversubscribe: bool
    bind: Literal["cores", "numa", "none"]
    log_dir: str | Path
    keep_logs: int
    show: int | Sequence[int | Literal["evaluator"]]
    output: Literal["changes", "all"]
    tag_output: bool
    color: Literal["auto", "always", "never"]
    progress: Literal["auto", "bar", "plain", "none"]
    print_topology: bool
    verbose: int
    profile: str | Path
    profile_steps: str
    grace: float
    start_timeout: float
    stall_timeout: float | None
    max_restarts: int
    min_instances: int
    rejoin_interval: float
    snapshot_steps: int
    standby: bool
    mpi_global_args: str | Sequence[str]
    mpi_local_args: str | Sequence[str]
    instance_mpi_local_args: str | Sequence[str]
    allow_run_as_root: bool


def launch(
    function: Callable[..., Any],
    /,
    *args: Any,
    num_instances: int = 2,
    engine: Literal["grpc", "horovod"] = "grpc",
    **options: Unpack[LaunchOptions],
) -> list[Any]:
    """Calls `function(*args)` in several workers on this machine, and returns the values.

    The same as `tfdist run` in front of a program, from Python or a notebook: the progress, the
    failure box and the logs are the same. The function is sent to new processes by value, so it
    may be one of a notebook's cell; the workers import TensorFlow themselves. Bind keyword
    arguments of the function with `functools.partial`.

    Args:
      function: The function; each worker learns from its environment which one it is.
      *args: Its arguments, equal for all workers. What cannot be pickled, such as a model or a
        session, must be made inside the function.
      num_instances: The number of workers.
      engine: "grpc" or "horovod".
      **options: Further options of `tfdist run` by their names, such as `max_restarts=3`,
        `stall_timeout=300` or `env={"NAME": "value"}`; but none of other machines.

    Returns:
      One value per worker, in worker order. An evaluator's value is not among them.

    Raises:
      ValueError: If an option is unknown or has a wrong value; no process was started.
      TypeError: If the function, an argument or a value cannot be sent to another process.
      WorkerFailedError: If the run fails (`tfdist.testing.WorkerFailedError`). Its `__cause__` is
        the exception of the worker that failed first, if it ended by one.
      KeyboardInterrupt: After Ctrl-C; the workers have ended.
    """
    words = _words({"num_instances": num_instances, "engine": engine, **options})
    call = pickle_call(function, args, {})
    with tempfile.TemporaryDirectory(prefix="tfdist-launch-") as folder:
        command = [*words, "--", "-m", "tfdist.launch.functions.called", folder]
        number = parse_run_options(command).num_instances
        Path(folder, CALL).write_bytes(pickle.dumps((sys.path, call)))
        code = _run([sys.executable, "-m", "tfdist", "run", *command])
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        outcomes = [Outcome.read(Path(folder, str(index))) for index in range(number)]
    return _values(outcomes, code)


def _values(outcomes: Sequence[Outcome | None], code: int) -> list[Any]:
    ends = [
        WorkerEnd(worker=index, time_s=outcome.time_s, error=outcome.error)
        for index, outcome in enumerate(outcomes)
        if outcome is not None and outcome.error is not None
    ]
    if code == 0 and not ends and None in outcomes:
        index = outcomes.index(None)
        message = f"worker {index} ended with exit code 0 before the function returned"
        raise WorkerFailedError(message, worker=index, exit_code=0, output=())
    first = first_failure(ends)
    if first is not None:
        outcome = outcomes[first.worker]
        assert outcome is not None
        message = f"worker {first.worker} of {len(outcomes)} failed: {first.error}"
        raise WorkerFailedError(
            message, worker=first.worker, exit_code=None, output=()
        ) from exception_of(outcome)
    if code != 0:
        message = f"tfdist run ended with exit code {code}; the lines above say why"
        raise WorkerFailedError(message, worker=None, exit_code=code, output=())
    return [value_of(one, index) for index, one in enumerate(outcomes) if one is not None]


def _words(options: Mapping[str, Any]) -> list[str]:
    """Returns options as words of a command line; a UsageError if a function has no such option."""
    words = []
    for name, value in options.items():
        option = RUN.option(f"--{name.replace('_', '-')}")
        if option.group.title in _GROUPS_LEFT_OUT:
            raise UsageError(
                f"{option.long_name} has no effect on a function, which is called on this machine. "
                f"Leave it out, or start a program with: tfdist run {option.long_name} ..."
            )
        words += _words_of(option, value)
    return words


def _words_of(option: Option, value: Any) -> list[str]:
    name = option.long_name
    if value is None:
        return []
    if option.value is None:  # counted, as -vv is
        return [name] * value
    if isinstance(value, bool):
        return [f"{name}={'yes' if value else 'no'}"]
    if isinstance(value, Mapping):
        return [f"{name}={key}={text}" for key, text in value.items()]
    several = option.is_list and isinstance(value, Sequence) and not isinstance(value, str)
    return [f"{name}={item}" for item in (value if several else [value])]


def _run(command: Sequence[str]) -> int:
    """Runs the launcher, shows its output in this process's, and returns its exit code."""
    # A notebook's streams are no files that another process could write to.
    is_direct = sys.stdout is sys.__stdout__ and sys.stderr is sys.__stderr__
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=None if is_direct else subprocess.PIPE,
        stderr=None if is_direct else subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        preexec_fn=partial(die_with_parent, os.getpid()),
    )
    try:
        _show(process)
        return process.wait()
    except BaseException:
        process.send_signal(signal.SIGINT)  # The launcher gives its workers time to save.
        _show(process)
        process.wait()
        raise
    finally:
        process.kill()  # After a second Ctrl-C; the agents then stop their workers.
        process.communicate()


def _show(process: subprocess.Popen[str]) -> None:
    for line in process.stdout or ():
        sys.stdout.write(line)
        sys.stdout.flush()
