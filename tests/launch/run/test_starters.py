"""The commands that start agents, directly or by one mpirun, and without secrets."""

import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tfdist.launch.machine.cores_and_gpus import Machine
from tfdist.launch.options.hosts import Host
from tfdist.launch.options.run_options import RunOptions
from tfdist.launch.run import starters
from tfdist.launch.run.starters import Starter, starters_of
from tfdist.launch.workers.channel import SILENCE_S
from tfdist.launch.workers.plan import make_plan

MPIRUN = "/opt/mpi/bin/mpirun"
ENVIRON = {"PATH": "/usr/bin", "HOME": "/root", "PASSWORD": "hunter2"}
Started = Callable[..., list[Starter]]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    monkeypatch.setattr(starters, "find_mpirun", lambda: MPIRUN)

    def started(
        num_instances: int, environ: Mapping[str, str] = ENVIRON, **options: Any
    ) -> list[Starter]:
        chosen = RunOptions(
            command=("python", "train.py", "--secret=x"),
            num_instances=num_instances,
            num_replicas=num_instances,
            environment={"API_KEY": "k123"},
            **options,
        )
        plan = make_plan(
            chosen,
            machine=Machine(cores=(0,), numa_nodes=((0,),)),
            ports=tuple(range(20001, 20009)),
            log_dir=Path("logs"),
            environ=environ,
        )
        return starters_of(plan, chosen, environ)

    return started


def contexts(starter: Starter) -> list[list[str]]:
    """Splits mpirun's command at its colons."""
    found: list[list[str]] = [[]]
    for word in starter.command:
        if word == ":":
            found.append([])
        else:
            found[-1].append(word)
    return found


def follows(words: list[str], name: str) -> list[str]:
    """Returns the word after each occurrence of `name`."""
    return [words[place + 1] for place, word in enumerate(words) if word == name]


def test_agents_on_this_machine_are_started_each_by_itself(started: Started) -> None:
    found = started(2)
    assert [starter.workers for starter in found] == [(0,), (1,)]
    assert [starter.name for starter in found] == ["the agent of worker 0", "the agent of worker 1"]
    assert [starter.command[-1] for starter in found] == ["0", "1"]
    assert all(starter.command[0] == sys.executable for starter in found)
    assert all(starter.environment == {} for starter in found)


def test_horovod_agents_are_ranks_of_one_mpirun_and_the_evaluator_is_started_here(
    started: Started,
) -> None:
    starter, evaluator = started(3, engine="horovod", evaluator=True)
    assert (starter.name, starter.workers, evaluator.workers) == ("mpirun", (0, 1, 2), (3,))
    assert evaluator.command[0] == sys.executable
    found = contexts(starter)
    assert found[0][0] == MPIRUN
    assert [words[-1] for words in found] == ["0", "1", "2"]
    assert [follows(words, "-np") for words in found] == [["1"]] * 3
    assert [follows(words, "-H") for words in found] == [["localhost"]] * 3


def test_mpirun_starts_workers_on_other_hosts_over_horovod_or_with_options_of_its_own(
    started: Started,
) -> None:
    hosts = (Host(name="a"), Host(name="b"))
    for options in ({"engine": "horovod"}, {"mpi_local_args": ("--report-bindings",)}):
        (starter,) = started(3, hosts=hosts, **options)
        assert [follows(words, "-H") for words in contexts(starter)] == [["a"], ["b"], ["a"]]


def test_mpirun_uses_the_users_network_and_kills_later_than_the_agents(started: Started) -> None:
    hosts, subnet = (Host(name="a"), Host(name="b")), "10.0.0.0/24"
    (starter,) = started(2, engine="horovod", hosts=hosts, host_subnet=subnet, grace_s=10.0)
    words = list(starter.command)
    assert follows(words, "btl_tcp_if_include") == follows(words, "oob_tcp_if_include") == [subnet]
    assert int(follows(words, "odls_base_sigkill_timeout")[0]) > 10


def test_mpirun_waits_longer_for_a_host_that_is_silent_than_the_launcher(started: Started) -> None:
    hosts = (Host(name="a", slots=1), Host(name="b", slots=1))
    (starter,) = started(2, engine="horovod", hosts=hosts)
    idle_s, interval_s, probes = (
        int(follows(list(starter.command), f"oob_tcp_keepalive_{name}")[0])
        for name in ("time", "intvl", "probes")
    )
    assert SILENCE_S + 5.0 < idle_s + probes * interval_s < 60.0


def test_the_users_mpirun_options_stand_where_they_belong(started: Started) -> None:
    (starter,) = started(
        2,
        engine="horovod",
        mpi_global_args=("--report-bindings",),
        mpi_local_args=("-x", "A"),
        instance_mpi_local_args={1: ("-x", "B")},
    )
    assert starter.command[:2] == (MPIRUN, "--report-bindings")
    first, second = contexts(starter)
    assert "A" in follows(first, "-x") and "A" in follows(second, "-x")
    assert "B" not in follows(first, "-x") and "B" in follows(second, "-x")


def test_only_names_of_variables_are_in_mpiruns_command(started: Started) -> None:
    (starter,) = started(2, engine="horovod", hosts=(Host(name="a"), Host(name="b")))
    exported = follows(list(starter.command), "-x")
    assert {"PATH", "TFDIST_AGENT_TOKEN", "TFDIST_AGENT_LAUNCHERS"} == set(exported)
    words = " ".join(starter.command)
    assert not any(secret in words for secret in ("hunter2", "k123", "--secret", "="))


def test_over_grpc_ssh_starts_the_agents_of_each_other_machine_and_sends_their_variables(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "here")
    hosts = (Host(name="here"), Host(name="gpu2"))
    first, third, there = started(4, hosts=hosts)
    assert (first.name, first.sent) == ("the agent of worker 0", ())
    assert third.workers == (2,)
    assert (there.name, there.workers) == ("ssh to gpu2", (1, 3))
    assert there.command[:4] == ("ssh", "-o", "BatchMode=yes", "gpu2")
    assert shlex.split(there.command[4])[-2:] == ["1,3", "--environment-on-stdin"]
    assert there.sent == ("PATH", "TFDIST_AGENT_LAUNCHERS", "TFDIST_AGENT_TOKEN")
    other = ("--mca", "plm_rsh_agent", "ssh -F 'my config'")
    _, there = started(2, hosts=hosts, mpi_global_args=other)
    assert there.command[:4] == ("ssh", "-F", "my config", "gpu2")


def test_in_a_job_of_slurm_mpirun_starts_them_without_ssh(started: Started) -> None:
    hosts = (Host(name="a"), Host(name="b"))
    (starter,) = started(2, hosts=hosts, environ={**ENVIRON, "SLURM_JOB_ID": "7"})
    assert starter.is_mpirun
