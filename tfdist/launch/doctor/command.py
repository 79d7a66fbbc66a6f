"""The command `tfdist doctor`: its options, the table of checks, and the report."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property

from rich.console import Console

from tfdist.launch.doctor import engines, host, network, packages, report
from tfdist.launch.doctor.children import Children, Stopped
from tfdist.launch.doctor.hosts import check_hosts
from tfdist.launch.doctor.report import Finding
from tfdist.launch.doctor.self_test import ENGINES, try_workers
from tfdist.launch.errors import UsageError
from tfdist.launch.horovod.build import installed_version
from tfdist.launch.options import run_rules as rules
from tfdist.launch.options.command_line import CommandLine
from tfdist.launch.options.declaration import Group, flag, option
from tfdist.launch.options.hosts import is_this_machine
from tfdist.launch.options.values import NETWORK, any_text, one_of, whole_number

_CHECKED = Group("what is checked")
_MACHINES = Group("the machines of a run, in place of this one alone")
_FIRST_PORT = 3737


@dataclass(frozen=True, kw_only=True)
class DoctorOptions:
    """The options of `tfdist doctor`."""

    engine: str | None = option(
        one_of(*ENGINES),
        "the engine that is needed; without it gRPC is, and Horovod only if it is installed",
        group=_CHECKED,
    )
    no_self_test: bool = flag("start no workers", shown_default="")
    model_dir: str | None = option(
        any_text("FOLDER"), "also check that checkpoints can be written here"
    )
    log_dir: str | None = option(any_text("FOLDER"), "also check that logs can be written here")
    json: bool = flag("print one JSON object", shown_default="")
    hosts: tuple[str, ...] | None = option(
        any_text("LIST"),
        "check ssh, versions, folders, ports, clocks and messages between these, as for tfdist run",
        *("-H", "--host"),
        is_list=True,
        group=_MACHINES,
    )
    host_subnet: str | None = option(NETWORK, "the network between them", shown_default="any")
    port: int = option(
        whole_number(1, 65535, "PORT"), "first port of their workers", default=_FIRST_PORT
    )

    def __post_init__(self) -> None:
        own = {"no_self_test": "--no-self-test", "model_dir": "--model-dir", "log_dir": "--log-dir"}
        given = [name for field, name in own.items() if getattr(self, field)]
        if self.hosts is not None and given:
            raise UsageError(
                f"{given[0]} is for the checks of this machine alone, and --host "
                f"{','.join(self.hosts)} checks several. Leave one of them out."
            )
        if self.engine == "horovod" and self.port != _FIRST_PORT:
            raise UsageError("--port is for --engine grpc: MPI takes free ports. Leave it out.")
        between = {"--host-subnet": self.host_subnet, "--port": self.port != _FIRST_PORT}
        if self.hosts is None and (
            without := [name for name, is_given in between.items() if is_given]
        ):
            raise UsageError(f"{without[0]} needs --host, for example --host a,b. Add it.")


DOCTOR = CommandLine(
    prog="tfdist doctor",
    options=DoctorOptions,
    description=(
        "Checks versions, devices, Horovod, Open MPI, the network, environment variables\n"
        "and folders, then trains one step with two workers over each engine. With --host it\n"
        "checks what a run over these machines needs. Exit code 0 if nothing that is needed\n"
        "is broken, else 1."
    ),
    takes_command=False,
)


class Facts:
    """Facts and findings that several checks use."""

    def __init__(self, options: DoctorOptions, children: Children) -> None:
        self.children = children
        self.engine: str | None = options.engine
        self.engines: list[str] = [options.engine] if options.engine else list(ENGINES)
        # Now, because mpirun creates a TMPDIR that does not exist.
        self.folders = host.check_folders(options.log_dir, options.model_dir)

    @cached_property
    def tensorflow(self) -> packages.TensorFlowFacts:
        return packages.ask_tensorflow(self.children, with_horovod="horovod" in self.engines)


@dataclass(frozen=True)
class Check:
    """One group of lines in the report, and what it needs."""

    name: str  # The heading.
    findings: Callable[[Facts], Iterable[Finding]]
    engine: str | None = None  # Skipped if the user chose the other engine.
    starts_workers: bool = False  # Skipped with --no-self-test.


def _check_open_mpi(facts: Facts) -> Iterable[Finding]:
    # Without Horovod, mpirun has nothing to start.
    is_needed = facts.engine == "horovod" or installed_version("horovod") is not None
    mpi = engines.look_at_open_mpi(facts.children)
    return engines.judge_open_mpi(mpi, facts.tensorflow, is_needed=is_needed)


def _check_workers(facts: Facts) -> Iterator[Finding]:
    joined = ""
    for engine in facts.engines:
        is_horovod, found = engine == "horovod", facts.tensorflow
        obstacles = {
            "TensorFlow does not work": found.problem,
            "they could not reach each other": network.port_problem(),
            "Horovod is not installed": is_horovod and found.horovod is None,
            "Horovod cannot be loaded": is_horovod and found.horovod_problem,
        }
        if obstacle := next((text for text, is_there in obstacles.items() if is_there), ""):
            yield report.absent(f"two workers over {ENGINES[engine]} were not tried: {obstacle}")
        else:
            finding = try_workers(facts.children, engine)
            yield finding
            joined = joined or (engine if finding.state == "good" else "")
    if joined and installed_version("keras") is not None:
        yield try_workers(facts.children, joined, "fit")


CHECKS = (
    Check("versions", lambda facts: packages.check_versions(facts.tensorflow)),
    Check("devices", lambda facts: host.check_devices(facts.tensorflow)),
    Check(
        "Horovod",
        lambda facts: engines.check_horovod(facts.tensorflow, is_needed=facts.engine == "horovod"),
        engine="horovod",
    ),
    Check("Open MPI", _check_open_mpi, engine="horovod"),
    Check("network", lambda _: network.check_network()),
    Check("environment variables", lambda _: network.judge_variables(os.environ)),
    Check("write access", lambda facts: facts.folders),
    Check("self-test", _check_workers, starts_workers=True),
)


def main(words: Sequence[str]) -> int:
    """Runs the checks and prints the report; `words` are those after `tfdist doctor`.

    Returns 0, 1 if something that is needed is broken, 130 after Ctrl-C, 143 after SIGTERM.
    """
    options = DoctorOptions(**DOCTOR.parse(words))
    checked = _checked_hosts if options.hosts else _checked_here
    start_s = time.monotonic()
    console, children = Console(highlight=False), Children()
    groups: dict[str, list[Finding]] = {}
    is_live = console.is_terminal and not options.json
    live = console.status("looking ...") if is_live else nullcontext()
    try:
        with children.stopped_by_signals(), live:
            for name, findings in checked(options, children):
                groups[name] = findings
                children.raise_if_stopped()
                if not options.json:
                    report.print_group(name, findings, console)
    except Stopped as stopped:
        return 128 + int(stopped.args[0])
    seconds = time.monotonic() - start_s
    if options.json:
        report.print_json(groups, seconds, sys.stdout)
    else:
        report.print_verdict(groups, seconds, console)
    return 1 if report.num_broken(groups) else 0


def _checked_here(
    options: DoctorOptions, children: Children
) -> Iterator[tuple[str, list[Finding]]]:
    """Yields the heading and the findings of each check of this machine."""
    facts = Facts(options, children)
    for check in CHECKS:
        is_skipped = check.starts_workers and options.no_self_test
        if not is_skipped and check.engine in (None, *facts.engines):
            yield check.name, list(check.findings(facts))


def _checked_hosts(
    options: DoctorOptions, children: Children
) -> Iterator[tuple[str, list[Finding]]]:
    """Yields each host of a run and the findings about it."""
    hosts = rules.hosts(options.hosts, None)
    if is_this_machine(hosts):
        raise UsageError(
            f"--host {hosts[0].name} is this machine alone, which is checked without it. Name the "
            "machines of a run: --host a,b."
        )
    port = 0 if options.engine == "horovod" else options.port
    yield from check_hosts(hosts, port=port, subnet=options.host_subnet, children=children)
