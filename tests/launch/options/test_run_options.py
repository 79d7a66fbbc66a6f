"""`tfdist run`'s options mean what poprun's mean, and each line of help is true."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tfdist.cluster.environment import FOR_USERS
from tfdist.cluster.tasks import ClusterError
from tfdist.launch.errors import UsageError
from tfdist.launch.options.declaration import options_of
from tfdist.launch.options.hosts import Host
from tfdist.launch.options.run_command_line import parse_run_options
from tfdist.launch.options.run_options import RUN, RunOptions

ENVIRON = {"PATH": "/usr/bin:/bin"}


def parsed(*words: str, **environ: str) -> RunOptions:
    return parse_run_options([*words, "sleep", "1"], {**ENVIRON, **environ})


def refusal(words: Sequence[str], **environ: str) -> str:
    with pytest.raises(UsageError) as caught:
        parse_run_options(words, {**ENVIRON, **environ})
    return str(caught.value)


def test_without_options_there_is_one_worker_on_this_machine() -> None:
    options = parsed()
    assert replace(options, config={}) == RunOptions(command=("sleep", "1"))
    assert options.is_on_this_machine
    assert not options.uses_mpirun
    assert options.replicas_per_instance == 1
    assert options.notices == ()


def test_every_option_reaches_the_run(tmp_path: Path) -> None:
    words = (
        "--engine horovod --num-instances 4 --num-replicas=8 --devices-per-replica 2 --evaluator "
        "-H a:3,b:1 --host-subnet 10.1.0.0/16 --bind numa --threads 3 -xA=1=2 --env HOME "
        f"--log-dir {tmp_path}/logs --show 0 --show 2,evaluator --tag-output no --color always "
        "--progress plain --print-topology 0 -v -v --grace 0 --start-timeout 9.5 "
        "--stall-timeout 60 --max-restarts 2 --dry-run --mpi-local-args=--report-bindings "
        "--num-ilds 2"
    ).split()
    words += ["--mpi-global-args", "mca x 'a b'", "--instance-mpi-local-args", "3:-x Y"]
    options = parsed(*words, HOME="/h")
    assert replace(options, config={}) == RunOptions(
        command=("sleep", "1"),
        engine="horovod",
        num_instances=4,
        num_replicas=8,
        devices_per_replica=2,
        evaluator=True,
        hosts=(Host(name="a", slots=3), Host(name="b", slots=1)),
        host_subnet="10.1.0.0/16",
        bind="numa",
        threads=3,
        environment={"A": "1=2", "HOME": "/h"},
        log_dir=tmp_path / "logs",
        show=(0, 2, 4),
        tag_output=False,
        color="always",
        progress="plain",
        print_topology=False,
        verbosity=2,
        grace_s=0.0,
        start_timeout_s=9.5,
        stall_timeout_s=60.0,
        max_restarts=2,
        dry_run=True,
        mpi_global_args=("mca", "x", "a b"),
        mpi_local_args=("--report-bindings",),
        instance_mpi_local_args={3: ("-x", "Y")},
        num_ilds=2,
    )
    assert options.uses_mpirun
    assert options.replicas_per_instance == 2


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--", "sleep", "--num-instances", "9"], ("sleep", "--num-instances", "9")),
        (["sleep", "--", "-v"], ("sleep", "--", "-v")),
        (["--num-instances", "2", "sleep", "-v"], ("sleep", "-v")),
        (["-v", "-m", "json.tool", "--x"], (sys.executable, "-m", "json.tool", "--x")),
        (["--", "-m", "json", "-v"], (sys.executable, "-m", "json", "-v")),
        (["train.py", "--show", "1"], (sys.executable, "train.py", "--show", "1")),
        (["--", "./tool", "a b"], ("./tool", "a b")),
    ],
)
def test_options_end_at_the_first_word_that_is_not_an_option(
    words: list[str], expected: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "tool").touch(mode=0o755)
    monkeypatch.chdir(tmp_path)
    options = parse_run_options(words, ENVIRON)
    assert options.command == expected
    assert options.show is None


def test_options_are_spelled_and_named_as_in_poprun() -> None:
    for word in ("yes", "1", "true", "TRUE", "Yes"):
        assert parsed("--evaluator=no", "--evaluator=" + word).evaluator
    assert not parsed("--print-topology", "No").print_topology
    levels = {"-v": 1, "--verbose": 1, "-vv": 2, "--vv": 2, "-vvvv": 2}
    assert {word: parsed(word).verbosity for word in levels} == levels
    options = parsed("--ipus-per-replica=4", "--only-output-from-instance", "0", "--numa-aware=1")
    assert (options.devices_per_replica, options.show, options.bind) == (4, (0,), "numa")
    assert options.notices == ()


@pytest.mark.parametrize(
    "name", [one.long_name for one in options_of(RunOptions).values() if one.ignored]
)
def test_an_option_without_a_meaning_is_accepted_with_one_line(name: str) -> None:
    (notice,) = parsed(name, "x").notices
    assert notice.startswith(f"{name} is ignored: ")
    assert "\n" not in notice


@pytest.mark.parametrize(
    ("words", "notice"),
    [
        ("--offline-mode yes", "--offline-mode yes is taken as --dry-run yes"),
        ("--offline-mode no", "--offline-mode no is taken as --dry-run no"),
        ("--host-subnet 10.0.0.0/8", "--host-subnet is ignored: no other hosts are given"),
        ("--port 4000", "--port is ignored: workers on this machine"),
        ("--port 4000 -H a,b --engine horovod --num-instances 2", "--port is ignored: Horovod"),
        ("--mpi-global-args x", "--mpi-global-args is ignored"),
        ("--instance-mpi-local-args 0:x", "--instance-mpi-local-args is ignored"),
        ("--allow-run-as-root yes", "--allow-run-as-root is ignored"),
        ("--host a,b,c --num-instances 2", "c gets no instance: --num-instances is 2"),
    ],
)
def test_an_option_without_effect_gets_a_notice_of_one_line(words: str, notice: str) -> None:
    options = parsed(*words.split())
    assert len(options.notices) == 1
    assert notice in options.notices[0]
    assert options.dry_run == (words == "--offline-mode yes")


def test_all_variables_of_tfdist_that_are_for_users_may_be_given_to_workers() -> None:
    words = [word for name in FOR_USERS for word in ("--env", f"{name}=1")]
    assert parsed(*words).environment == dict.fromkeys(FOR_USERS, "1")


def test_the_environment_gives_the_defaults_of_colors_and_of_the_start_timeout() -> None:
    assert parsed(NO_COLOR="1").color == "never"
    assert parsed(NO_COLOR="").color == "auto"
    assert parsed("--color", "always", NO_COLOR="1").color == "always"
    assert parsed(TFDIST_START_TIMEOUT_S="7").start_timeout_s == 7.0
    assert parsed("--start-timeout", "8", TFDIST_START_TIMEOUT_S="7").start_timeout_s == 8.0
    with pytest.raises(ClusterError, match='TFDIST_START_TIMEOUT_S is "soon"'):
        parsed(TFDIST_START_TIMEOUT_S="soon")


def test_a_variables_value_is_taken_from_this_environment_and_never_shown() -> None:
    options = parsed("-x", "TOKEN", TOKEN="hush")
    assert options.environment == {"TOKEN": "hush"}
    assert options.config["env"] == ["TOKEN"]
    assert "hush" not in refusal(["-x", "1OKEN=hush", "sleep"])


def test_help_explains_every_option_with_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_run_options(["--num-instances", "2", "--help"], ENVIRON)
    assert caught.value.code == 0
    text = capsys.readouterr().out
    words = " ".join(text.split())
    for option in RUN.declared:
        assert all(name in words for name in option.names)
        assert option.help is not None and option.help.replace("\n", " ") in words
    for default in ("(default: grpc)", "(default: 1,", "(default: 30)", "or 300)", "(default: 0)"):
        assert default in words
    assert "examples:" in text
    assert max(len(line) for line in text.splitlines()) <= 100


@pytest.mark.parametrize(
    "name",
    ["--np", "--nproc_per_node", "--num-workers", "--num-worker", "--nnodes", "--nnode"],
)
def test_other_launchers_names_for_the_number_of_workers_are_refused_with_ours(
    name: str,
) -> None:
    assert f'unknown option "{name}". Did you mean "--num-instances"?' in refusal(
        [name, "2", "cat"]
    )


@pytest.mark.parametrize("words", [["-n", "3"], ["-np", "3"], ["-n3"], ["-np=3"]])
def test_mpiruns_names_for_the_number_of_workers_work(words: list[str]) -> None:
    assert parsed(*words, "cat").num_instances == 3


def test_the_number_of_instances_is_the_sum_of_the_slots_if_there_are_any(tmp_path: Path) -> None:
    all_slots = parsed("--host", "a:2,b:3")
    assert (all_slots.num_instances, all_slots.num_replicas) == (5, 5)
    assert parsed("--host", "a:2,b:3", "--num-instances", "2").num_instances == 2
    assert parsed("--host", "a,b").num_instances == 1
    (tmp_path / "hosts").write_text("a slots=2\nb slots=1\n")
    assert parsed("--hostfile", str(tmp_path / "hosts")).num_instances == 3
    message = refusal(["--host", "n[0-9999]:99999", "cat"])
    assert "999990000 slots, and a run has at most 100000 instances" in message


@pytest.mark.parametrize(
    ("words", "gets_one"),
    [
        ("sleep 1 --num-instances 2", True),
        ("sleep 1 --epochs 3 --num-instances=2", True),
        ("sleep 1 --num-instances 2 --max-restarts 1", True),
        ("-- sleep --num-instances 2", False),  # the user has said where the options end
        ("--num-instances 3 sleep --num-instances 2", False),  # both have it
        ("sleep --epochs 3", False),
        ("sleep -- --num-instances 2", False),
    ],
)
def test_an_option_behind_the_program_gets_a_notice_unless_it_is_clearly_the_programs(
    words: str, gets_one: bool
) -> None:
    notices = parse_run_options(words.split(), ENVIRON).notices
    assert len(notices) == gets_one
    for notice in notices:
        assert notice.startswith("--num-instances behind sleep goes to the program; write it bef")
        assert "\n" not in notice
