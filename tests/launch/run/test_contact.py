"""Workers that train alone are told so, whatever their program is; those that meet are not."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tfdist.launch.run.contact import Contact, port_of, strangers_text
from tfdist.testing.run import wait_until

Launch = Callable[..., Any]

# Has a library of TensorFlow, as after its import, until the test has seen a line.
ALONE = """
import mmap
library = here / f"libtensorflow_framework-{index}.so.2"
library.write_text("its code")
mapped = mmap.mmap(os.open(library, os.O_RDONLY), 0, prot=mmap.PROT_READ)
wait_for("end")
"""
TENSORFLOW = "libtensorflow_framework.so.2"
AT_ONCE = "import tfdist.launch.run.contact as c\nc.PATIENCE_S = c._LEAST_S = 0.1\n"


@pytest.mark.processes
def test_workers_that_train_alone_are_told_what_to_write(launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(AT_ONCE)
    environ = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{Path(__file__).parents[3]}"}
    said = tmp_path / "said"
    with said.open("w") as file:
        run = launch(ALONE, environ=environ, stderr=file)
    assert wait_until(lambda: "have not met yet" in said.read_text(), 60)
    (tmp_path / "run-0" / "end").touch()
    assert run.wait() == 0
    lines = [line for line in said.read_text().splitlines() if "have not met" in line]
    fix = (
        "Write strategy = tfdist.strategies.strategy_for_run(), and make and compile the model in "
        "`with strategy.scope():`."
    )
    assert lines == [
        f"tfdist: the 2 workers have not met yet: each trains alone. {fix}",
        f"tfdist: the 2 workers have not met: each trained alone. {fix}",
    ]


# Maps files, as loaded libraries are. This process may have TensorFlow from another test.
MAPPING = """
import mmap, os, sys
for name in sys.argv[1:]:
    globals()[name] = mmap.mmap(os.open(name, os.O_RDONLY), 0, prot=mmap.PROT_READ)
print("ready", flush=True)
sys.stdin.read()
"""


@contextmanager
def program(folder: Path, *names: str) -> Iterator[int]:
    """Starts a program with libraries of these names; yields its process id."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("its code")
    command = [sys.executable, "-S", "-c", MAPPING, *names]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd=folder, text=True, **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process.pid


def tf_config(port: int) -> dict[str, str]:
    cluster = {"worker": ["127.0.0.1:1", f"127.0.0.1:{port}"]}
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 1}})}


@pytest.mark.processes
def test_a_worker_is_alone_from_tensorflow_on_until_it_listens_on_its_port(tmp_path: Path) -> None:
    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))
        contact = Contact(tf_config(own.getsockname()[1]), is_rank=False)
        with program(tmp_path) as pid:
            contact.look([pid], 10.0)
        assert contact.alone_s(20.0) == 0.0
        assert [contact.is_importing(8.0, now_s) for now_s in (17.0, 19.0)] == [True, False]
        with program(tmp_path, TENSORFLOW) as pid:
            contact.look([pid], 20.0)
            contact.listen()
            assert contact.alone_s(25.0) == 5.0
            assert contact.alone_s(90.0) == 5.0  # It has computed nothing.
            assert [contact.is_importing(8.0, now_s) for now_s in (24.0, 26.0)] == [True, False]
            own.listen()
            contact.listen()
            contact.look([pid], 30.0)
        assert contact.alone_s(35.0) == 0.0
        assert not contact.is_importing(8.0, 9.0)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("name", "is_rank", "is_alone"),
    [
        ("horovod/tensorflow/mpi_lib.so", True, False),
        ("horovod/tensorflow/mpi_lib.so", False, True),
        ("libtorch_cpu.so", False, False),
        ("other.so", True, True),
    ],
)
def test_a_rank_with_horovod_is_not_alone_and_no_program_of_another_framework(
    tmp_path: Path, name: str, is_rank: bool, is_alone: bool
) -> None:
    contact = Contact({}, is_rank=is_rank)
    with program(tmp_path, TENSORFLOW, name) as pid:
        contact.look([pid], 1.0)
    assert (contact.alone_s(2.0) > 0.0) == is_alone
    assert contact.has_horovod == name.startswith("horovod/")


def test_a_program_that_has_its_own_tf_config_has_no_port() -> None:
    for text in ("", "{}", "[]", '{"task": {"type": "worker", "index": 9}, "cluster": {}}'):
        assert port_of(text) is None


@pytest.mark.parametrize(
    ("others", "has_ended", "expected"),
    [
        ({"alone_s": 31.0}, False, "have not met yet: each trains alone. Write"),
        ({"alone_s": 29.0}, False, ""),
        ({"alone_s": 6.0}, True, "have not met: each trained alone. Write"),
        ({"alone_s": 1.0}, True, ""),
        ({"alone_s": 31.0, "step": 3}, True, ""),
        ({"alone_s": 31.0, "is_evaluator": True}, True, ""),
        ({"alone_s": 31.0, "has_horovod": True}, False, "start it with --engine horovod."),
    ],
)
def test_only_workers_that_all_train_alone_are_strangers(
    make_worker: Callable[..., Any], others: dict[str, Any], has_ended: bool, expected: str
) -> None:
    workers = [make_worker(alone_s=40.0, has_horovod=True), make_worker(**others)]
    said = strangers_text(workers, "grpc", has_ended=has_ended)
    assert expected in said and bool(said) == bool(expected)
    if "horovod" in expected:
        assert "Write strategy" in strangers_text(workers, "horovod", has_ended=has_ended)
