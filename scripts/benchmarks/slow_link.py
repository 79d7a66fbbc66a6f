"""Overlap on a slow link: a step against computation and communication alone, over the same link.

Needs root, for network namespaces and a shaped link between them.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from contender import Contender, program
from results import Options, Part
from shaped_link import SUBNET, Link, LinkError, linked_hosts, why_impossible
from slow_link_figures import (
    ENGINES,
    GRADIENT_BYTES,
    RATES,
    Found,
    make_part,
    rate_name,
    steps_per_turn,
)
from turn_taking import Running, running

from tfdist.launch.machine.mpi import (
    find_mpirun,
    horovod_problem,
    mpirun_environment,
    mpirun_options,
)

COMPUTATION = "computation"
FIRST_PORT = 4000


def measure(options: Options) -> Part:
    """Measures the dense models over each engine and rate; says what is missing where it cannot."""
    problem = why_impossible()
    if problem is not None:
        return make_part((), (f"A slow link: {problem}",))
    engines, missing = list(ENGINES), []
    without_horovod = horovod_problem()
    if without_horovod is not None:
        engines.remove("horovod")
        missing.append(f"Horovod: {without_horovod} Run: tfdist horovod install")
    found: list[Found] = []
    try:
        with linked_hosts() as link:
            link.shape(RATES[0])  # If it cannot be shaped, say so before anything is started.
            ports = itertools.count(FIRST_PORT)
            for model in (name for name in options.models if name in GRADIENT_BYTES):
                found += _measure_model(model, engines, link, ports, options)
    except LinkError as error:
        return make_part((), (f"A slow link: {error}",))
    return make_part(found, missing)


def _measure_model(
    model: str, engines: Sequence[str], link: Link, ports: Iterator[int], options: Options
) -> Iterator[Found]:
    contenders = {COMPUTATION: _computation(model, link)}
    for engine in engines:
        make = _over_mpi if engine == "horovod" else _over_grpc
        for script in ("bare_reduction.py", "host_call.py"):
            contenders[f"{engine} {script}"] = make(model, script, link, next(ports))
    with ExitStack() as stack:
        runs: dict[str, Running] = {}
        for name, contender in contenders.items():
            options.say(f"slow link, {model}: starting {contender.name}")
            runs[name] = stack.enter_context(running(contender, options.cores))
            runs[name].take_turn(steps_per_turn(model, RATES[0]))
        for rate in RATES:
            link.shape(rate)
            times = _take_turns(runs, model, rate, options)
            for engine in engines:
                yield Found(
                    model=model,
                    engine=engine,
                    rate_bits=rate,
                    step=times[f"{engine} host_call.py"],
                    computation=times[COMPUTATION],
                    communication=times[f"{engine} bare_reduction.py"],
                )


def _take_turns(
    runs: dict[str, Running], model: str, rate: float, options: Options
) -> dict[str, list[float]]:
    """Lets all take turns at a rate; the first turn of each is left out."""
    num_steps = steps_per_turn(model, rate)
    times: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(-1, options.rounds):
        for name, run in runs.items():
            seconds = run.take_turn(num_steps).seconds
            if number >= 0:
                times[name].append(seconds)
        options.say(f"slow link, {model}, {rate_name(rate)}: round {number + 1}")
    return times


def _computation(model: str, link: Link) -> Contender:
    commands = [
        host.command(program("plain.py", model, str(index)))
        for index, host in enumerate(link.hosts)
    ]
    return Contender(name=COMPUTATION, commands=commands)


def _over_grpc(model: str, script: str, link: Link, port: int) -> Contender:
    workers = [f"{host.address}:{port}" for host in link.hosts]
    return Contender(
        name=f"{script}, gRPC",
        commands=[
            host.command(program(script, model, str(index), "grpc"))
            for index, host in enumerate(link.hosts)
        ],
        environ=[
            {
                "TF_CONFIG": json.dumps(
                    {"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}}
                )
            }
            for index in range(len(workers))
        ],
    )


def _over_mpi(model: str, script: str, link: Link, port: int) -> Contender:
    mpirun = find_mpirun()
    assert mpirun is not None  # `horovod_problem` would have said so.
    # The hosts share /tmp: a daemon would tidy up what another contender's has made.
    session = link.folder / f"session-{port}"
    session.mkdir()
    # As it comes, Open MPI uses one direction of a link at a time; that would be no bound.
    engine = "tuned-horovod" if script == "bare_reduction.py" else "horovod"
    command = [
        mpirun,
        *mpirun_options(mpirun, is_local=False, subnet=SUBNET, kill_after_s=1.0),
        *("--mca", "plm_rsh_agent", link.agent, "--mca", "orte_tmpdir_base", str(session)),
        *("-np", str(len(link.hosts)), "-H", ",".join(host.name for host in link.hosts)),
        *program(script, model, "0", engine),
    ]
    return Contender(
        name=f"{script}, Horovod",
        commands=[link.hosts[0].command(command)],
        environ=[mpirun_environment(mpirun, {})],
    )
