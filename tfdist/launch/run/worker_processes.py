"""The starts of all workers of a run: their agents, the agents' messages, and the end of all.

The drawing in `supervision.py` shows the order of events.

Agents that the launcher starts directly may stay for the next start. mpirun ends with each start.
Over Horovod it starts agents, which end with it, or, if agents are to stay, a `rank_relay` for each
rank:

    launcher ──> agent ──> worker, with the variables of its rank
        └─────> mpirun ──> relay, which sends them to the launcher
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import secrets
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from tfdist.launch.errors import StartError
from tfdist.launch.machine.descendants import end_all, wait_for_guardians
from tfdist.launch.machine.mpi import remove_session_folder
from tfdist.launch.machine.ports import ADD_LOOPBACK
from tfdist.launch.machine.processes import stop_signals
from tfdist.launch.machine.remote_hosts import refusal_of_ssh
from tfdist.launch.run.listener import Listener
from tfdist.launch.run.starters import Starter
from tfdist.launch.screen.failure_box import log_tail
from tfdist.launch.screen.terminal import Stream
from tfdist.launch.workers.channel import (
    ADDRESSES_VARIABLE,
    BEAT_S,
    SILENCE_S,
    TOKEN_VARIABLE,
    Channel,
)
from tfdist.launch.workers.messages import progress_of
from tfdist.launch.workers.observed_time import ObservedClock
from tfdist.launch.workers.plan import Plan, WorkerPlan
from tfdist.launch.workers.worker_state import WorkerState
from tfdist.process.exit_codes import LOST_WORKER
from tfdist.process.text import listed, printable

# Agents kill their workers at the end of the grace period; this is the time to report it.
_AFTER_KILL_S = 5.0
# mpirun needs a moment to clean up after its last rank has ended.
_STARTER_END_S = 2.0
# Once a rank has ended without MPI's end it sleeps instead, for twice as long as ranks may take to
# save, even if all have ended.
_SLEEPING_STARTER_END_S = 0.2
_SHORTLY_S = 0.05
# The guardians of killed agents need some milliseconds.
_GUARDIANS_END_S = 3.0

_STARTER_LINES = 15
_LONGEST_HOST = 64  # Linux's limit


@dataclass(kw_only=True, eq=False)
class WorkerProcesses:
    """All workers, from the start of the first agent to the end of the last process.

    `start` and `close` are called once for each start.

    Args:
      own_hosts: Names and addresses by which agents reach this machine, best first.
      start_timeout_s: The time limit for all agents to connect, in seconds.
      folder: The folder of "start.log", which receives the output of the starters themselves.
      keeps_standby: Whether each agent keeps a standby for the next start.
      on_notice: Called with each line that the user should read.
      on_stranger: Called with the IP address of each connection that is not an agent's.

    Attributes:
      changed: Set whenever the state of a worker has changed.
    """

    listen_on: str
    own_hosts: Sequence[str]
    grace_s: float
    start_timeout_s: float
    folder: Path
    cwd: str
    clock: ObservedClock
    keeps_standby: bool
    on_notice: Callable[[str], None]
    on_stranger: Callable[[str], None]

    def __post_init__(self) -> None:
        self.workers: list[WorkerState] = []
        self.changed = asyncio.Event()
        self._engine = ""
        self._starter_log = self.folder / "start.log"
        self._starter_log_begin = 0
        self._on_output: Callable[[int, Stream, str], None] = lambda worker, stream, text: None
        self._token = secrets.token_hex(16)
        self._listener: Listener | None = None
        self._beating: asyncio.Task[None] | None = None
        self._started: list[tuple[Starter, asyncio.subprocess.Process]] = []
        self._relays: list[Channel] = []
        self._is_given_up = False
        self._sent: set[int] = set()
        # Children that this process had before; `close` leaves them alone.
        self._spared = psutil.Process().children(recursive=True)

    async def start(
        self,
        plan: Plan,
        starters: Sequence[Starter],
        relays: Starter | None,
        on_output: Callable[[int, Stream, str], None],
    ) -> None:
        """Starts all agents that are not there, waits for them, then starts all workers.

        `relays` is the command that starts the relays of the ranks; None if there are none.
        `on_output` is called with a worker's index, "out" or "err", and the text as it was printed.
        If an agent cannot be started or does not connect, or the workers are stopped before all
        have, it raises a StartError.
        """
        kept = {worker.plan.index: worker for worker in self.workers} if self._listener else {}
        self.workers = [WorkerState(plan=worker) for worker in plan.workers]
        self._engine, self._on_output = plan.engine, on_output
        self._sent.clear()
        for worker in self.workers:
            if worker.plan.index in kept:
                earlier = kept[worker.plan.index]
                worker.channel, worker.host = earlier.channel, earlier.host
        try:
            if not kept:
                self._listener = Listener(
                    host=self.listen_on,
                    token=self._token,
                    num_agents=len(self.workers) * 2,
                    on_agent=self._listen,
                    on_stranger=self.on_stranger,
                )
                self._beating = asyncio.create_task(self._beat())
                await self._start_all(starters)
            if relays is not None:
                await self._start_all([relays])
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                raise StartError(
                    f"this machine has no address {self.listen_on}, by which launcher and workers "
                    f"meet. {ADD_LOOPBACK}"
                ) from None
            raise StartError(str(error)) from None
        await self._wait_for_agents(has_relays=relays is not None)
        now_s = self.clock.now_s()
        for worker in self.workers:
            assert worker.channel is not None
            worker.started_s = worker.heard_s = now_s
            message = start_message(
                worker.plan,
                plan,
                cwd=self.cwd,
                grace_s=self.grace_s,
                keeps_standby=self.keeps_standby,
                rank_environment=worker.rank_environment,
            )
            worker.channel.send("start", **message)

    async def _start_all(self, starters: Sequence[Starter]) -> None:
        assert self._listener is not None
        port = self._listener.port
        way_back = {
            ADDRESSES_VARIABLE: ",".join(f"{host}:{port}" for host in self.own_hosts),
            TOKEN_VARIABLE: self._token,
        }
        with self._starter_log.open("ab") as log:
            self._starter_log_begin = log.tell()  # An earlier start wrote what is before.
            for starter in starters:
                pipe = asyncio.subprocess.PIPE if starter.sent else asyncio.subprocess.DEVNULL
                environment = {**os.environ, **starter.environment, **way_back}
                process = await asyncio.create_subprocess_exec(
                    *starter.command,
                    stdin=pipe,
                    stdout=log,
                    stderr=log,
                    env=environment,
                    start_new_session=True,  # Ctrl-C reaches the launcher only
                )
                self._started.append((starter, process))
                if process.stdin is not None:
                    sent = {name: environment[name] for name in starter.sent}
                    process.stdin.write(f"{json.dumps(sent)}\n".encode())
                    process.stdin.close()

    def signal(self, number: int) -> None:
        """Sends a signal that asks to stop to every running worker."""
        self._sent.add(number)
        for worker in self._reachable():
            worker.channel.send("signal", number=number)

    def ask_to_stop(self, grace_s: float, in_step_grace_s: float = float("inf")) -> None:
        """Asks the agents to stop every worker: TERM, and KILL after `grace_s` seconds.

        `in_step_grace_s` is for a worker in a step, which cannot end if another worker is lost.
        """
        self._is_given_up = True
        for worker in self._reachable():
            worker.channel.send("stop", grace_s=grace_s, in_step_grace_s=in_step_grace_s)

    async def wait_until_gone(self, kill_at_s: Callable[[], float]) -> None:
        """Waits until no agent that can be heard has a process of its worker left.

        Waits until `_AFTER_KILL_S` seconds after the kill time at most: `kill_at_s` returns when
        the agents kill their workers, on `clock`.
        """
        while any(not self._is_silent(worker) for worker in self._reachable()):
            if self.clock.now_s() > kill_at_s() + _AFTER_KILL_S:
                return
            await self.wait_for_change()

    async def wait_for_change(self) -> None:
        """Waits until `changed` is set: at most `BEAT_S` seconds, or less if a worker has ended.

        Then records which workers are orphaned: those with a starter that has ended.
        """
        with contextlib.suppress(asyncio.TimeoutError):
            has_ended = any(worker.code is not None for worker in self.workers)
            await asyncio.wait_for(self.changed.wait(), _SHORTLY_S if has_ended else BEAT_S)
        self.changed.clear()
        for starter, process in self._started:
            if process.returncode is not None:
                for worker in self._workers_of(starter):
                    if worker.orphaned_s is None and not worker.is_over:
                        worker.orphaned_s = self.clock.now_s()

    async def close(self, *, keeps_agents: bool = False) -> None:
        """Ends all agents, starters and workers that still run, in any state.

        Sends "bye" to each agent, gives mpirun a moment if all workers are over, then kills every
        process that is left below this one. With `keeps_agents` the agents stay for the next start,
        if each has reported the end of its worker.
        """
        keeps_agents = keeps_agents and all(
            worker.is_gone and not worker.is_lost for worker in self.workers
        )
        agents = [] if keeps_agents else [w.channel for w in self.workers if w.channel is not None]
        for channel in (*agents, *self._relays):
            channel.send("bye")
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(channel.flush(), BEAT_S)
        self._relays.clear()
        self._is_given_up = False
        staying = [entry for entry in self._started if keeps_agents and not entry[0].is_mpirun]
        ending = [process for one, process in self._started if (one, process) not in staying]
        if not all(worker.is_over for worker in self.workers):
            for process in ending:  # mpirun then ends its daemons on the hosts that answer.
                with contextlib.suppress(ProcessLookupError):
                    process.terminate()
        give_up_s = self.clock.now_s() + self._starters_end_s()
        while any(process.returncode is None for process in ending):
            if self.clock.now_s() > give_up_s:
                break
            await asyncio.sleep(0.02)
        awaited = {process.pid for process in ending if process.returncode is None}
        kept = _with_descendants(process.pid for _, process in staying)
        await end_all(
            lambda: True,
            spared=[*self._spared, *kept],
            awaited={*awaited, *(process.pid for _, process in staying)},
        )
        for process in ending:
            await process.wait()
        for pid in awaited:
            remove_session_folder(pid)
        self._started = staying
        if keeps_agents:
            return
        await wait_for_guardians(_GUARDIANS_END_S)
        if self._beating is not None:
            self._beating.cancel()
        for worker in self.workers:
            if worker.channel is not None:
                worker.channel.close()
        if self._listener is not None:
            await self._listener.close()
        self._listener = None

    def starter_output(self) -> tuple[str, ...]:
        """Returns the last lines that mpirun, ssh, and the hosts that they reached have printed."""
        lines = log_tail(self._starter_log, self._starter_log_begin)
        return tuple(printable(line) for line in lines[-_STARTER_LINES:])

    def _starters_end_s(self) -> float:
        if not all(worker.is_over for worker in self.workers):
            return _STARTER_END_S if any(one.is_mpirun for one, _ in self._started) else 0.0
        if self._engine == "horovod" and any(
            worker.code is None or worker.code < 0 or worker.code == LOST_WORKER
            for worker in self.workers
        ):
            return _SLEEPING_STARTER_END_S
        return _STARTER_END_S

    def _workers_of(self, starter: Starter) -> list[WorkerState]:
        return [worker for worker in self.workers if worker.plan.index in starter.workers]

    def _reachable(self) -> list[Any]:
        return [w for w in self.workers if w.channel is not None and not w.is_over]

    async def _beat(self) -> None:
        while True:
            for worker in self._reachable():
                worker.channel.send("alive")
            await asyncio.sleep(SILENCE_S / 8)

    async def _wait_for_agents(self, *, has_relays: bool) -> None:
        def is_missing(worker: WorkerState) -> bool:
            needs_rank = has_relays and worker.plan.replicas and worker.rank_environment is None
            return worker.channel is None or bool(needs_rank)

        newline = "\n"
        give_up_s = self.clock.now_s() + self.start_timeout_s
        while missing := [worker for worker in self.workers if is_missing(worker)]:
            if self._is_given_up:
                raise StartError(f"they were stopped before {_named(missing)} had started")
            for starter, process in self._started:
                lost = [worker for worker in self._workers_of(starter) if is_missing(worker)]
                if lost and process.returncode is not None:
                    raise StartError(
                        self._refusal(lost)
                        or f"{starter.name} ended with exit code {process.returncode} before "
                        f"{_named(lost)} had started.\n{newline.join(self.starter_output())}"
                    )
            if self.clock.now_s() > give_up_s:
                raise StartError(
                    self._refusal(missing)
                    or f"{_named(missing)} did not start within {self.start_timeout_s:g} s. Check "
                    "that the hosts can be reached and run the same Python at the same path.\n"
                    f"{newline.join(self.starter_output())}"
                )
            await self.wait_for_change()

    def _refusal(self, missing: Sequence[WorkerState]) -> str:
        """Returns why ssh did not reach the hosts of these workers, and the fix; "" if it did."""
        lines = log_tail(self._starter_log, self._starter_log_begin)
        said = refusal_of_ssh(printable(line) for line in lines)
        hosts = list(dict.fromkeys(worker.plan.host for worker in missing))
        which, name = (
            ("", hosts[0]) if len(hosts) == 1 else (f", for each of {listed(hosts)}", "HOST")
        )
        return f"{said.reason}. {said.fix} To try it{which}: ssh {name} true" if said else ""

    async def _listen(self, channel: Channel) -> None:
        hello = None
        with contextlib.suppress(TimeoutError):
            hello = await channel.receive(SILENCE_S)
        if hello is not None and hello["kind"] == "rank":
            await self._keep_relay(channel, hello)
            return
        worker = self._greeted(hello)
        if hello is None or worker is None:
            return
        index = self.workers.index(worker)
        worker.channel, worker.heard_s = channel, self.clock.now_s()
        worker.host = printable(hello["host"], most=_LONGEST_HOST)
        self.changed.set()
        while message := await channel.receive():
            worker = self.workers[index]  # of this start
            worker.heard_s = self.clock.now_s()
            self._note(worker, message)
            if message["kind"] != "state":
                self.changed.set()
        worker = self.workers[index]
        if not worker.is_gone:
            worker.is_lost, worker.lost_s = True, self.clock.now_s()
            worker.absence_s = self.clock.absence_before_s(worker.lost_s)
        self.changed.set()

    async def _keep_relay(self, channel: Channel, hello: Mapping[str, Any]) -> None:
        """Notes the variables of a rank, and keeps the connection until the relay closes it."""
        for worker in self.workers:
            if worker.plan.index == hello["index"] and worker.plan.replicas:
                worker.rank_environment = hello["environment"]
        self._relays.append(channel)
        self.changed.set()
        while await channel.receive():
            pass

    def _greeted(self, hello: Mapping[str, Any] | None) -> WorkerState | None:
        """Returns the worker of the agent that sent `hello`; None if it is not expected."""
        if hello is None or hello["kind"] != "hello":
            return None
        index = hello["index"]
        free = [
            worker
            for worker in self.workers
            if worker.plan.index == index and worker.channel is None
        ]
        return free[0] if free else None

    def _note(self, worker: WorkerState, message: Mapping[str, Any]) -> None:
        kind, now_s = message["kind"], self.clock.now_s()
        if kind == "output":
            self._on_output(worker.plan.index, message["stream"], message["text"])
        elif kind == "state":
            progress = message["progress"]
            worker.progress = None if progress is None else progress_of(progress)
            worker.quiet_s, worker.is_stopped = message["quiet_s"], message["is_stopped"]
            worker.alone_s, worker.has_horovod = message["alone_s"], message["has_horovod"]
            worker.is_importing = message["is_importing"]
        elif kind == "standby":
            problem = printable(message["problem"])
            self.on_notice(f"{worker.plan.name} starts without its standby: {problem}")
        elif kind == "started":
            worker.pid = message["pid"]
        elif kind == "ended":
            code = message["code"]
            # A program without a handler for the signal was ended by it, as requested. That is
            # reported as exit code 128 + signal, not as a failure.
            worker.code = 128 - code if -code in self._sent else code
            worker.ended_s = now_s - message["ago_s"]
        elif kind == "gone":
            worker.is_gone, worker.was_killed = True, message["was_killed"]

    def _is_silent(self, worker: WorkerState) -> bool:
        return worker.heard_s is not None and self.clock.now_s() - worker.heard_s > SILENCE_S


def _named(workers: Iterable[WorkerState]) -> str:
    """Returns the names of workers with their hosts, shortened where there are many."""
    return listed(f"{worker.plan.name} ({worker.plan.host})" for worker in workers)


def _with_descendants(pids: Iterable[int]) -> list[psutil.Process]:
    found = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            found += [process, *process.children(recursive=True)]
    return found


def start_message(
    worker: WorkerPlan,
    plan: Plan,
    *,
    cwd: str,
    grace_s: float,
    keeps_standby: bool = False,
    rank_environment: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Returns the facts of a worker's message "start"."""
    return {
        "command": worker.command,
        "environment": dict(worker.environment),
        "cwd": cwd,
        "cores": worker.cores,
        "share": asdict(worker.share) if worker.share is not None else None,
        "rank_environment": rank_environment,
        "keeps_standby": keeps_standby,
        "is_rank": plan.engine == "horovod" and len(worker.replicas) > 0,
        "grace_s": grace_s,
        "ignores_hang_up": signal.SIGHUP not in stop_signals(),
    }
