"""The same programs in two worlds: here, and in TensorFlow 2.15, the last one with tf.estimator."""

import contextlib
import json
import os
import re
import selectors
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent
OLD_ENVIRONMENT = Path(sys.prefix, "tensorflow-2.15")  # scripts/old_tensorflow.py makes it.
LIMIT_S = 120.0
# The imports of programs, and what takes their place there: all that differs.
OLD_NAMES = {
    "import tfdist.estimator as tfe": "import tensorflow.estimator as tfe",
    "from tfdist.estimator import v1 as tfe1": "tfe1 = tf.compat.v1.estimator",
    "from tfdist.estimator import model_to_estimator": (
        "from tensorflow.keras.estimator import model_to_estimator"
    ),
}


@dataclass(frozen=True, kw_only=True)
class Ran:
    """A program's result: what it printed, and the lines of TensorFlow's logger from INFO on."""

    printed: str
    logged: list[tuple[str, str]] = field(repr=False)

    @property
    def result(self) -> Any:
        """The last line that it printed, which is JSON."""
        return json.loads(self.printed.splitlines()[-1])

    def lines(self, level: str = "INFO") -> list[str]:
        return [line for one, line in self.logged if one == level]


class OldServer:
    """A process with TensorFlow 2.15 imported; each program runs in a fork of it."""

    def __init__(self, python: str, folder: Path) -> None:
        self._answer = folder / "answer.json"
        self._errors = folder / "stderr.txt"
        # Nor what chooses a Keras here: importing tfdist.estimator has set it in this process.
        ours = ("PYTHON", "TF_USE_LEGACY_KERAS")
        environ = {name: os.environ[name] for name in os.environ if not name.startswith(ours)}
        environ |= {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [python, "-I", str(FOLDER / "run_program.py")],
                env=environ,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self._selector = selectors.DefaultSelector()
        assert self._process.stdout
        self._selector.register(self._process.stdout, selectors.EVENT_READ)
        self._read_line()

    def run(self, program: Path, *arguments: Any) -> Ran:
        request = {
            "program": str(program),
            "arguments": [str(one) for one in arguments],
            "replacements": OLD_NAMES,
            "answer": str(self._answer),
        }
        self._answer.unlink(missing_ok=True)
        assert self._process.stdin
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        status = self._read_line()
        if not self._answer.exists():
            pytest.fail(f"{program.name} ended with {status} in TensorFlow 2.15: {self._tail()}")
        got = json.loads(self._answer.read_text())
        if "error" in got:
            pytest.fail(f"{program.name} failed in TensorFlow 2.15:\n{got['error']}")
        return Ran(printed=got["printed"], logged=[(a, b) for a, b in got["logged"]])

    def close(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate(timeout=30)  # The end of its input ends it.

    def _read_line(self) -> str:
        if not self._selector.select(LIMIT_S):
            self._process.kill()
            pytest.fail(f"TensorFlow 2.15 took longer than {LIMIT_S:.0f} s: {self._tail()}")
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            pytest.fail(f"TensorFlow 2.15's process ended: {self._tail()}")
        return line.strip()

    def _tail(self) -> str:
        return self._errors.read_text(errors="replace")[-3000:]


@pytest.fixture(scope="session")
def old_python() -> str:
    """The interpreter of an environment with TensorFlow 2.15; skips where there is none."""
    python = OLD_ENVIRONMENT / "bin" / "python"
    if (OLD_ENVIRONMENT / "tensorflow-2.15.txt").exists() and python.exists():
        return str(python)
    failed = Path(sys.prefix, "set-up", "old-tensorflow-failed")
    reason = failed.read_text().splitlines()[-1] if failed.exists() else ""
    pytest.skip(reason or "TensorFlow 2.15 is not set up: run scripts/setup.sh test")


@pytest.fixture(scope="session")
def old_server(old_python: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OldServer]:
    server = OldServer(old_python, tmp_path_factory.mktemp("tensorflow-2.15"))
    yield server
    server.close()


@pytest.fixture
def there(old_server: OldServer) -> Callable[..., Ran]:
    """Runs a program in TensorFlow 2.15 with its own tf.estimator."""

    def there(program: str | Path, *arguments: Any) -> Ran:
        return old_server.run(FOLDER / "programs" / program, *arguments)

    return there


@pytest.fixture
def here(fake_cluster: Any) -> Callable[..., Ran]:
    """Runs a program in this TensorFlow with tfdist.estimator."""

    def here(program: str | Path, *arguments: Any) -> Ran:
        path = str(FOLDER / "programs" / program)
        strings = [str(one) for one in arguments]
        runner = str(FOLDER / "run_program.py")

        def run() -> dict[str, Any]:
            import runpy

            return runpy.run_path(runner)["run"](path, strings)

        [got] = fake_cluster.run(run, engine="none", timeout_s=LIMIT_S)
        return Ran(**got)

    return here


@pytest.fixture
def files_of() -> Callable[[Path], list[str]]:
    """Lists the files below a folder, with the times and host in their names left out.

    The positions of inputs, which tf.estimator does not have, are not in the list.
    """

    def files_of(folder: Path) -> list[str]:
        paths = (
            str(path.relative_to(folder))
            for path in folder.rglob("*")
            if path.is_file() and path.suffix != ".input"
        )
        return sorted(re.sub(r"tfevents\..*?(\.v2)?$", r"tfevents\1", path) for path in paths)

    return files_of


@pytest.fixture
def assert_close() -> Callable[[Any, Any], None]:
    """Compares what came out of JSON: numbers to five decimals, all else exactly.

    An area under a curve to three: it moves in steps, and two scores that are the same but for
    rounding may change places.
    """

    def assert_close(got: Any, expected: Any, where: str = "result") -> None:
        if isinstance(expected, dict):
            assert got.keys() == expected.keys(), where
            for key in expected:
                assert_close(got[key], expected[key], f"{where}[{key!r}]")
        elif isinstance(expected, list):
            assert len(got) == len(expected), where
            for i in range(len(expected)):
                assert_close(got[i], expected[i], f"{where}[{i}]")
        elif isinstance(expected, float):
            tolerance = 1e-3 if "auc" in where else 1e-5
            assert got == pytest.approx(expected, rel=tolerance, abs=tolerance), where
        else:
            assert got == expected, where

    return assert_close
