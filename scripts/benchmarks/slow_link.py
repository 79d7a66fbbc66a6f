"""Overlap on a slow link: a step against computation and communication alone, over the same link.

Needs root, for network namespaces and a shaped link between them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from contender import Contender, program, tf_configs
from results import Options, Part, Row, row
from turn_taking import Running, running
from virtual_hosts import SUBNET, HostsError, VirtualNetwork, virtual_network, why_impossible

from tfdist.launch.machine.mpi import (
    find_mpirun,
    horovod_problem,
    mpirun_environment,
    mpirun_options,
)

COMPUTATION = "computation"
FIRST_PORT = 4000
RATES = (1e9, 200e6)  # bits a second
ENGINES = {"grpc": "gRPC", "horovod": "Horovod"}
# Weights of the dense models, 4 bytes each. Two workers of a ring send as many bytes as there are.
GRADIENT_BYTES = {"cnn": 4 * 347_146, "mlp": 4 * 8_308_746}
TURN_S = 1.0
MIN_STEPS = 3

NAMES = ("slow1", "slow2")
# While a link is idle its bucket fills, and a step would send that much at once: 2% of the CNN's
# gradients. Packets are smaller than TCP's usual 64 KiB, so that so small a bucket holds two.
BURST = "32kb"
PACKET_BYTES = 16384
# So long a queue, full at the rate, that TCP is slowed down by waiting and not by losses.
QUEUE = "100ms"

ABOUT = (
    "Two workers of tfdist, each on its own core and in its own network namespace, train over a "
    "link that is shaped (token bucket, each direction by itself). Computation is the same step in "
    "both workers at once without a reduction; communication is a bare reduction of the same bytes "
    "by the same engine over the same link. The bound is the longer of the two: both overlap "
    "perfectly. One after the other is their sum."
)


def shape(network: VirtualNetwork, rate_bits: float) -> None:
    """Gives the hosts' links a rate in bits a second, in each direction by itself.

    Raises:
      HostsError: If this kernel cannot.
    """
    commands = (
        f"ip link set dev eth0 gso_max_size {PACKET_BYTES}",
        f"tc qdisc replace dev eth0 root tbf rate {rate_bits:.0f}bit burst {BURST} latency {QUEUE}",
    )
    for host, command in itertools.product(network.hosts, commands):
        done = host.run(command.split())
        if done.returncode != 0:
            why = done.stderr.strip().rpartition("\n")[2].rstrip(".") or "it printed nothing"
            raise HostsError(
                f"a link cannot be shaped here: {why}. Use a kernel with the token bucket filter "
                "(CONFIG_NET_SCH_TBF, module sch_tbf)."
            )


@dataclass(frozen=True, kw_only=True)
class Found:
    """The times of one engine and model over a link of one rate, in seconds, one a round."""

    model: str  # A key of GRADIENT_BYTES.
    engine: str  # A key of ENGINES.
    rate_bits: float  # A second.
    step: Sequence[float]  # A step of tfdist's.
    computation: Sequence[float]  # The same step in both workers at once, without reduction.
    communication: Sequence[float]  # The bare reduction of the same bytes over the same link.

    @property
    def name(self) -> str:
        return f"{self.model.upper()}, {ENGINES[self.engine]}, {rate_name(self.rate_bits)}"

    def rows(self) -> dict[str, Row]:
        pairs = list(zip(self.computation, self.communication, strict=True))
        longer = [max(pair) for pair in pairs]
        times = {
            "tfdist's step": self.step,
            "one after the other": [sum(pair) for pair in pairs],
            "computation": self.computation,
            "communication": self.communication,
        }
        return {name: row(own, longer) for name, own in times.items()}


def rate_name(rate_bits: float) -> str:
    """Returns a rate as people write it."""
    return f"{rate_bits / 1e9:g} Gbit/s" if rate_bits >= 1e9 else f"{rate_bits / 1e6:g} Mbit/s"


def steps_per_turn(model: str, rate_bits: float) -> int:
    """Returns how many steps' gradients take about a second over the link, a few at least."""
    return max(MIN_STEPS, int(TURN_S * rate_bits / (8 * GRADIENT_BYTES[model])))


def make_part(found: Sequence[Found], missing: Sequence[str]) -> Part:
    """Makes the part of what was found; nothing where there can be no link."""
    groups = {one.name: one.rows() for one in found}
    return Part(
        title="Overlap on a slow link",
        about=ABOUT,
        groups=groups,
        ratios={
            f"{name}: step over max(computation, communication)": rows["tfdist's step"].over
            for name, rows in groups.items()
        },
        missing=tuple(missing),
    )


def measure(options: Options) -> Part:
    """Measures the dense models over each engine and rate; says what is missing where it cannot."""
    problem = why_impossible("tc")
    if problem is not None:
        return make_part((), (f"A slow link: {problem}",))
    engines, missing = list(ENGINES), []
    without_horovod = horovod_problem()
    if without_horovod is not None:
        engines.remove("horovod")
        missing.append(f"Horovod: {without_horovod} Run: tfdist horovod install")
    found: list[Found] = []
    try:
        with virtual_network(NAMES) as network:
            shape(network, RATES[0])  # If it cannot be shaped, say so before anything is started.
            ports = itertools.count(FIRST_PORT)
            for model in (name for name in options.models if name in GRADIENT_BYTES):
                found += _measure_model(model, engines, network, ports, options)
    except HostsError as error:
        return make_part((), (f"A slow link: {error}",))
    return make_part(found, missing)


def _measure_model(
    model: str,
    engines: Sequence[str],
    network: VirtualNetwork,
    ports: Iterator[int],
    options: Options,
) -> Iterator[Found]:
    contenders = {COMPUTATION: _computation(model, network)}
    for engine in engines:
        make = _over_mpi if engine == "horovod" else _over_grpc
        for script in ("bare_reduction.py", "estimator.py"):
            contenders[f"{engine} {script}"] = make(model, script, network, next(ports))
    with ExitStack() as stack:
        runs: dict[str, Running] = {}
        for name, contender in contenders.items():
            options.say(f"slow link, {model}: starting {contender.name}")
            runs[name] = stack.enter_context(running(contender, options.cores))
            runs[name].take_turn(steps_per_turn(model, RATES[0]))
        for rate in RATES:
            shape(network, rate)
            times = _take_turns(runs, model, rate, options)
            for engine in engines:
                yield Found(
                    model=model,
                    engine=engine,
                    rate_bits=rate,
                    step=times[f"{engine} estimator.py"],
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


def _computation(model: str, network: VirtualNetwork) -> Contender:
    commands = [
        host.command(program("own_loop.py", model, str(index), "plain"))
        for index, host in enumerate(network.hosts)
    ]
    return Contender(name=COMPUTATION, commands=commands)


def _over_grpc(model: str, script: str, network: VirtualNetwork, port: int) -> Contender:
    return Contender(
        name=f"{script}, gRPC",
        commands=[
            host.command(program(script, model, str(index), "grpc"))
            for index, host in enumerate(network.hosts)
        ],
        environ=tf_configs([f"{host.address}:{port}" for host in network.hosts]),
    )


def _over_mpi(model: str, script: str, network: VirtualNetwork, port: int) -> Contender:
    mpirun = find_mpirun()
    assert mpirun is not None  # `horovod_problem` would have said so.
    # The hosts share /tmp: a daemon would tidy up what another contender's has made.
    session = network.folder / f"session-{port}"
    session.mkdir()
    # As it comes, Open MPI uses one direction of a link at a time; that would be no bound.
    engine = "tuned-horovod" if script == "bare_reduction.py" else "horovod"
    command = [
        mpirun,
        *mpirun_options(mpirun, is_local=False, subnet=SUBNET, kill_after_s=1.0),
        *("--mca", "plm_rsh_agent", network.write_agent()),
        *("--mca", "orte_tmpdir_base", str(session)),
        *("-np", str(len(network.hosts)), "-H", ",".join(host.name for host in network.hosts)),
        *program(script, model, "0", engine),
    ]
    return Contender(
        name=f"{script}, Horovod",
        commands=[network.hosts[0].command(command)],
        environ=[mpirun_environment(mpirun, {})],
    )
