"""`tfdist doctor`: what works here and what does not, a line each, and the mend."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import nullcontext

from rich.console import Console

from tfdist.launch.doctor.machine_checks import (
    Network,
    judge_devices,
    judge_folders,
    judge_network,
    look_at_folders,
    look_at_machine,
    look_at_network,
)
from tfdist.launch.doctor.mpi_engine import (
    HorovodBuild,
    OpenMpi,
    judge_horovod,
    judge_open_mpi,
    look_at_horovod,
    look_at_open_mpi,
)
from tfdist.launch.doctor.probes import ENGINES, Survey, ask_tensorflow, judge_trial, try_workers
from tfdist.launch.doctor.report import (
    Finding,
    Group,
    absent,
    is_healthy,
    print_group,
    print_json,
    print_verdict,
)
from tfdist.launch.doctor.variables import judge_variables
from tfdist.launch.doctor.versions import (
    judge_optional,
    judge_versions,
    look_at_optional,
    look_at_versions,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the doctor's options."""
    parser.description = (
        "Looks at versions, devices, Horovod, Open MPI, the network, environment variables\n"
        "and folders, then trains one step with two workers over each engine. Exit code 0\n"
        "if nothing that is needed is broken, else 1."
    )
    parser.add_argument(
        "--engine",
        choices=list(ENGINES),
        help="the engine that is needed; without it gRPC is, and Horovod only if it is installed",
    )
    parser.add_argument("--no-self-test", action="store_true", help="start no workers")
    parser.add_argument("--model-dir", help="also look whether checkpoints can be written here")
    parser.add_argument("--log-dir", help="also look whether logs can be written here")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def main(arguments: argparse.Namespace) -> int:
    """Looks at everything and prints it.

    Args:
      arguments: What `add_arguments` describes.

    Returns:
      The exit code: 0, 1 if something that is needed is broken, 130 after Ctrl-C, 143 after
      SIGTERM.
    """
    return asyncio.run(_report_unless_stopped(arguments))


async def _report_unless_stopped(arguments: argparse.Namespace) -> int:
    """Reports; Ctrl-C and SIGTERM stop what was started.

    The event loop takes the signals: an exception out of a handler could come between the start of
    a child and the moment from which on it is known.
    """
    if threading.current_thread() is not threading.main_thread():
        return await _report(arguments)
    loop = asyncio.get_running_loop()
    report = asyncio.ensure_future(_report(arguments))
    received: list[int] = []

    def stop(number: int) -> None:
        if not received:
            report.cancel()
        received.append(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)
    try:
        return await report
    except asyncio.CancelledError:
        if not received:
            raise
        return 128 + received[0]
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


async def _report(arguments: argparse.Namespace) -> int:
    start_s = time.monotonic()
    console = Console(highlight=False)
    is_shown = not arguments.json
    groups: list[Group] = []
    # Only a terminal gets it, and gets it drawn over.
    with console.status("looking ...") if is_shown and console.is_terminal else nullcontext():
        async for group in examine(arguments):
            groups.append(group)
            if is_shown:
                print_group(group, console)
    seconds = time.monotonic() - start_s
    if is_shown:
        print_verdict(groups, seconds, console)
    else:
        print_json(groups, seconds, sys.stdout)
    return 0 if is_healthy(groups) else 1


async def examine(arguments: argparse.Namespace) -> AsyncIterator[Group]:
    """Looks at one thing after the other, and says what was found as soon as it is known."""
    with_horovod = arguments.engine != "grpc"
    # Before mpirun, which makes a TMPDIR that is not there.
    folders = look_at_folders(log_dir=arguments.log_dir, model_dir=arguments.model_dir)
    # TensorFlow's import takes seconds: what follows is looked at meanwhile.
    asked = asyncio.ensure_future(ask_tensorflow(with_horovod=with_horovod))
    tried = asyncio.ensure_future(look_at_open_mpi()) if with_horovod else None
    try:
        versions = look_at_versions()
        survey = await asked
        yield Group(name="versions", findings=judge_versions(versions, survey))
        yield Group(name="devices", findings=judge_devices(look_at_machine(), survey))
        horovod = look_at_horovod()
        if tried is not None:
            mpi = await tried
            for group in _judge_mpi_engine(arguments, horovod, mpi, survey):
                yield group
    finally:
        for task in filter(None, (asked, tried)):
            task.cancel()
    network = look_at_network()
    yield Group(name="network", findings=judge_network(network))
    yield Group(name="environment variables", findings=judge_variables(os.environ))
    yield Group(name="write access", findings=judge_folders(folders))
    yield Group(name="not needed", findings=judge_optional(look_at_optional()))
    if not arguments.no_self_test:
        engines = [arguments.engine] if arguments.engine else list(ENGINES)
        findings = [await _test(engine, survey, network) for engine in engines]
        yield Group(name="self-test", findings=findings)


def _judge_mpi_engine(
    arguments: argparse.Namespace, horovod: HorovodBuild, mpi: OpenMpi, survey: Survey
) -> Iterator[Group]:
    is_asked_for = arguments.engine == "horovod"
    yield Group(name="Horovod", findings=judge_horovod(horovod, survey, is_needed=is_asked_for))
    # Without Horovod there is nobody whom mpirun would start.
    is_needed = is_asked_for or horovod.version is not None
    yield Group(name="Open MPI", findings=judge_open_mpi(mpi, survey, is_needed=is_needed))


async def _test(engine: str, survey: Survey, network: Network) -> Finding:
    untried = f"two workers over {ENGINES[engine]} were not tried"
    if survey.problem:
        return absent(f"{untried}: TensorFlow does not work")
    if network.port_problem:
        return absent(f"{untried}: they could not reach each other")
    if engine == "horovod" and survey.horovod is None:
        return absent(f"{untried}: Horovod is not installed")
    if engine == "horovod" and survey.horovod_problem:
        return absent(f"{untried}: Horovod cannot be loaded")
    return judge_trial(await try_workers(engine))
