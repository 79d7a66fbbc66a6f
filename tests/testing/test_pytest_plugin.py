"""The end of pytest itself, killed or not: nothing is left."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tfdist.testing import engine_problem
from tfdist.testing.run import wait_until

USERS_TEST = """
import os, pathlib, time
from tfdist.testing import fake_cluster as module

module._PRELOADED = ("cloudpickle",)  # Without TensorFlow, which these workers do not use.
FOLDER = pathlib.Path({folder!r})
CODE = "import os, pathlib, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
CODE += f"pathlib.Path({folder!r}, str(os.getpid())).touch(); time.sleep(600)"

def test_scripts_and_functions(fake_cluster):
    def wait():
        (FOLDER / str(os.getpid())).touch()
        time.sleep(600)

    for engine in {engines!r}:
        fake_cluster.start_script(["-c", CODE], engine=engine)
    fake_cluster.run(wait)
"""
ENGINES = ["grpc"] if engine_problem("horovod") else ["grpc", "horovod"]


def start_pytest(folder: Path, *args: str) -> "subprocess.Popen[str]":
    (folder / "tmp").mkdir()
    env = {
        **os.environ,
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # the plugin under test comes from here
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path]),
        "TMPDIR": str(folder / "tmp"),
    }
    command = [sys.executable, "-m", "pytest", "-p", "tfdist.testing.pytest_plugin", "-q"]
    command += ["-p", "no:cacheprovider", *args]
    return subprocess.Popen(
        command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_pytest_that_is_killed_or_interrupted_leaves_nothing(
    tmp_path: Path,
    read_pids: Callable[[], list[int]],
    all_end: Callable[..., bool],
    number: int,
) -> None:
    text = USERS_TEST.format(folder=str(tmp_path), engines=ENGINES)
    (tmp_path / "test_users.py").write_text(text)
    expected = 2 * len(ENGINES) + 2
    with start_pytest(tmp_path, "test_users.py") as running:
        try:
            assert wait_until(lambda: len(read_pids()) == expected, limit_s=100)
            running.send_signal(number)
            output, _ = running.communicate(timeout=60)
        finally:
            running.kill()
    assert all_end(*read_pids(), limit_s=20), output
    assert wait_until(lambda: os.listdir(tmp_path / "tmp") == [], 10), output


def test_a_worker_failure_is_what_pytest_shows(tmp_path: Path) -> None:
    (tmp_path / "test_users.py").write_text(
        "def test_it(fake_cluster):\n"
        "    code = 'import sys; print(\"last words\"); sys.exit(3)'\n"
        "    fake_cluster.run_script(['-c', code], engine='none')\n"
    )
    with start_pytest(tmp_path, "test_users.py") as running:
        output, _ = running.communicate(timeout=60)
    assert running.returncode == 1
    assert re.search(r"E +\S*WorkerFailedError: worker 0 of 1 failed, after .* exit code 3", output)
    assert "last words" in output
    assert "scripts.py" not in output.split("short test summary")[0].split("WorkerFailedError")[0]
    assert os.listdir(tmp_path / "tmp") == []
