"""The end of a program by an error that is not caught."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tfdist.cluster import ClusterError, RendezvousError, WorkerLostError
from tfdist.cluster.rendezvous.protocol import AbsentWorkerError, PortTakenError
from tfdist.process import endings
from tfdist.process.progress_file import ProgressFile, progress_environment

pytestmark = pytest.mark.processes

ROOT = str(Path(__file__).parents[2])
ERRORS = """
import os, signal, sys
sys.path.insert(0, {root!r})
from tfdist.cluster import ClusterError; from tfdist.process import endings
from tfdist.cluster.rendezvous.protocol import PortTakenError
{before}
endings.install()
endings.install()
{code}
"""


@pytest.fixture
def end(tmp_path: Path) -> Callable[..., Any]:
    """Runs a program that installs the hook after `before`, then runs `code`."""

    def end(
        code: str, *, before: str = "", env: dict[str, str] | None = None, options: Any = ()
    ) -> subprocess.CompletedProcess[str]:
        program = tmp_path / "program.py"
        program.write_text(ERRORS.format(root=ROOT, before=before, code=code))
        outside = {k: v for k, v in os.environ.items() if not k.startswith(("TFDIST_", "OMPI_"))}
        return subprocess.run(
            [sys.executable, *options, str(program)],
            env={**outside, **(env or {})},
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=30,
        )

    return end


@pytest.mark.parametrize(("error", "exit_code"), [("ClusterError", 2), ("PortTakenError", 201)])
def test_an_error_for_the_user_is_one_line_with_its_exit_code_and_what_is_registered_still_runs(
    end: Any, error: str, exit_code: int
) -> None:
    ended = end(f"import atexit; atexit.register(print, 'cleaned up'); raise {error}('the fix')")
    assert (ended.returncode, ended.stdout) == (exit_code, "cleaned up\n")
    assert ended.stderr == f"{error}: the fix\n"


def test_an_error_that_a_library_copies_into_another_one_is_one_line_as_well(end: Any) -> None:
    copied = "raise RuntimeError(f'in a layer: {error}') from None"
    ended = end(f"try:\n  raise ClusterError('the fix')\nexcept ValueError as error:\n  {copied}")
    assert (ended.returncode, ended.stderr) == (2, "ClusterError: the fix\n")


def test_each_error_for_the_user_has_its_exit_code() -> None:
    codes = {ClusterError: 2, RendezvousError: 2, AbsentWorkerError: 200}
    codes |= {PortTakenError: 201, WorkerLostError: 200}
    assert {error: error.exit_code for error in codes} == codes


def test_an_error_of_a_library_may_be_named_in_one_line(end: Any) -> None:
    code = (
        "def name(e):\n  return ClusterError(f'key {e.args[0]}') if type(e) is KeyError else None\n"
        "endings.name_errors(name); endings.name_errors(name)\n"
        "assert type(endings.named(ValueError())) is ValueError\n"
        "raise KeyError('age')"
    )
    ended = end(code)
    assert (ended.returncode, ended.stderr) == (2, "ClusterError: key age\n")


def test_any_other_error_is_pythons_traceback_and_1(end: Any) -> None:
    ended = end("raise ValueError('of the user')")
    assert ended.returncode == 1
    assert ended.stderr.startswith("Traceback") and ended.stderr.endswith("of the user\n")


@pytest.mark.parametrize(
    ("env", "returncode"), [({}, -signal.SIGINT), ({"TFDIST_INSTANCE_INDEX": "0"}, 130)]
)
def test_ctrl_c_has_no_stack(end: Any, env: dict[str, str], returncode: int) -> None:
    # By hand the process dies of the signal, so that a shell's loop ends as well.
    ended = end("raise KeyboardInterrupt", env=env)
    assert (ended.returncode, ended.stderr) == (returncode, "Interrupted.\n")


@pytest.mark.parametrize(("error", "exit_code"), [("ClusterError", 2), ("ValueError", 1)])
def test_a_hook_of_the_users_own_gets_every_error(end: Any, error: str, exit_code: int) -> None:
    ended = end(
        f"raise {error}('x')", before="sys.excepthook = lambda *e: print('own', e[0].__name__)"
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (exit_code, f"own {error}\n", "")


def test_an_interactive_session_goes_on(end: Any) -> None:
    ended = end("raise ClusterError('x')", options=["-i"])
    assert ended.returncode == 0  # at the end of its input
    assert "ClusterError: x\n" in ended.stderr and "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    "code", ["endings.tell_when_leaving(); sys.exit(3)", "raise ValueError('of the user')"]
)
def test_the_launcher_is_told_before_anything_else_that_this_process_leaves(
    end: Any, tmp_path: Path, code: str
) -> None:
    path = tmp_path / "progress"
    show = "import atexit; from pathlib import Path; from tfdist.process.progress_file import *;"
    show += f"atexit.register(lambda: print(ProgressFile(Path({str(path)!r})).read().phase))\n"
    ended = end(show + code, env=progress_environment(path))
    assert ended.stdout == "leaving\n"
    progress = ProgressFile(path).read()
    assert progress is not None and progress.phase == "leaving"


# Where the hook is put in place.

UNCHANGED = """
import signal, sys, threading
sys.path.insert(0, {root!r})
import tensorflow  # Its handlers are not ours.
def outside():
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    return [sys.excepthook, threading.excepthook, *handlers]
before = outside()
import tfdist.cluster, tfdist.estimator, tfdist.strategies
import tfdist.launch.cli, tfdist.testing, tfdist.pipeline, tfdist.monitoring
assert outside() == before
tfdist.cluster.find_cluster({{}})
assert outside() == before
"""


def _run(code: str, **env: str) -> Any:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **env},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_an_import_leaves_the_hook_and_the_signal_handlers_as_they_were() -> None:
    ended = _run(UNCHANGED.format(root=ROOT))
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("name", ["strategies.LocalStrategy", "estimator.RunConfig"])
def test_a_strategy_and_a_run_config_put_the_hook_in_place(fake_cluster: Any, name: str) -> None:
    def make_one() -> list[str]:
        import importlib
        import sys

        module, made = name.split(".")
        before = sys.excepthook
        getattr(importlib.import_module(f"tfdist.{module}"), made)()
        return [hook.__module__ for hook in (before, sys.excepthook)]

    [modules] = fake_cluster.run(make_one, engine="none")
    assert modules == ["sys", "tfdist.process.endings"]


def test_a_process_of_any_launcher_is_launched() -> None:
    for name in ("TFDIST_INSTANCE_INDEX", "OMPI_COMM_WORLD_RANK", "HOROVOD_RANK"):
        assert endings.is_launched({name: "0"})
    assert not endings.is_launched({"HOROVOD_CYCLE_TIME": "5"})


def test_an_error_of_the_cluster_is_one_line_before_anything_of_a_run_is_made() -> None:
    code = f"import sys; sys.path.insert(0, {ROOT!r}); import tfdist.cluster as cluster"
    ended = _run(f"{code}; cluster.find_cluster()", TF_CONFIG="[]")
    assert ended.returncode == 2
    assert ended.stderr.startswith("ClusterError: TF_CONFIG must be a JSON object, got []")
    assert ended.stderr.count("\n") == 1


def test_lines_of_several_threads_stay_apart(end: Any) -> None:
    done = end(
        """
import threading
def tell(): together.wait(); endings.print_to_stderr("w" * 120)
together = threading.Barrier(2)
for _ in range(300):
    threads = [threading.Thread(target=tell) for _ in range(2)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
"""
    )
    assert done.returncode == 0
    assert done.stderr.splitlines() == ["w" * 120] * 600
