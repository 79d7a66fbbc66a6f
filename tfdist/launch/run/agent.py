"""The agent: a process on the worker's machine, between the launcher and one worker.

The agent starts the worker with the command and environment that the launcher sends. It forwards
the worker's output and progress to the launcher, and the launcher's signals to the worker. Once no
process of the worker is left, it starts the next one if the launcher sends "start" again, and ends
after "bye". For the next one it may keep a standby (`tfdist.launch.standby`), which ends with it
in any case: the kernel kills it when the agent ends. If the launcher closes the connection, or its
machine does not answer for `SILENCE_S` seconds, the agent stops the worker: with TERM, then KILL.

The drawing in `supervision.py` shows launcher, agents and workers together.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import errno
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import psutil

from tfdist.cluster.instance_variables import OF_ONE_RUN
from tfdist.cluster.ranks import OF_OTHER_LAUNCHERS
from tfdist.launch.machine.cores_and_gpus import (
    Share,
    bound_cores,
    look_at_machine,
    share_environment,
)
from tfdist.launch.machine.descendants import descendants, end_all, send
from tfdist.launch.machine.processes import adopt_orphans, stop_signals
from tfdist.launch.run.contact import Contact
from tfdist.launch.run.guardian import guarded
from tfdist.launch.standby.standby import ForkedWorker, Standby, WorkerProgram, can_stand_by
from tfdist.launch.workers.channel import (
    ADDRESSES_VARIABLE,
    AS_BYTES,
    BEAT_S,
    CHUNK_BYTES,
    LINE_LIMIT_BYTES,
    READS_ENVIRONMENT,
    SILENCE_S,
    TOKEN_VARIABLE,
    Channel,
)
from tfdist.launch.workers.handshake import introduce
from tfdist.launch.workers.observed_time import ObservedClock
from tfdist.process import endings
from tfdist.process.exit_codes import CANNOT_RUN, NOT_FOUND
from tfdist.process.imports import IMPORTS_VARIABLE
from tfdist.process.progress_file import Progress, ProgressFile, progress_environment

_CONNECT_LIMIT_S = 10.0  # for each of the launcher's addresses
_RETRY_S = 0.2
# The last output arrives soon after the worker's last process has ended. The limit is needed
# because an unrelated process may hold the pipe open.
_DRAIN_LIMIT_S = 2.0
# The time between TERM and KILL for processes left behind by a worker that ended by itself.
_LEFTOVERS_GRACE_S = 2.0
# Prefixes of the variables that mpirun sets for its ranks. The launcher itself may be a worker of
# another run and have inherited them.
_MPI = ("OMPI_", "PRTE_", "ORTE_", *OF_OTHER_LAUNCHERS)
# Inspecting all processes takes some milliseconds, so it is done only after this long without
# progress, and no more often than that.
_QUIET_S = 2.0
_PHASES_OF_STEPS = ("training", "stopping")


class Agent:
    """Starts one worker, forwards its output and state, and stops it.

    The agent's standby is used and kept if the message "start" asks for that.
    """

    def __init__(
        self,
        channel: Channel,
        start: Mapping[str, Any],
        progress_path: Path,
        clock: ObservedClock,
        standby: Standby,
    ) -> None:
        self._channel = channel
        self._start = start
        progress_path.unlink(missing_ok=True)  # of the worker before
        self._progress = ProgressFile(progress_path)
        inherited = os.environ if start["rank_environment"] is None else start["rank_environment"]
        environment = {
            **worker_environment(inherited, start["environment"], is_rank=start["is_rank"]),
            **progress_environment(progress_path),
        }
        command, cores = start["command"], start["cores"]
        if start["share"] is not None:
            share, machine = Share(**start["share"]), look_at_machine()
            cores = bound_cores(share, machine)
            environment = {**share_environment(share, machine, os.environ), **environment}
        self._keeps_standby = start["keeps_standby"] and can_stand_by(command, sys.executable)
        self._standby = standby
        if self._keeps_standby:
            environment[IMPORTS_VARIABLE] = os.fspath(standby.imports_path)
        self._program = WorkerProgram(
            command=command, cwd=start["cwd"], environment=environment, cores=cores
        )
        self._contact = Contact(environment, is_rank=start["is_rank"])
        self._started_s = clock.now_s()
        self._grace_s = float(start["grace_s"])
        self._clock = clock
        self._kill_at_s = float("inf")  # on the observed clock, as all times here
        self._kill_in_step_at_s = float("inf")
        self._changed: tuple[float, float] = (-1.0, 0.0)
        self._is_stopping = asyncio.Event()
        self._worker: subprocess.Popen[bytes] | ForkedWorker | None = None
        self._early: list[int] = []  # signals that came before it: a standby may take seconds

    async def run_worker(self) -> Mapping[str, Any] | None:
        """Starts the worker, and sees to it until no process of it is left.

        Returns the launcher's next message "start"; None after "bye", or if the launcher is gone.

        A worker that cannot be started is reported as ended, with exit code 127 if its program is
        not found, else 126.
        """
        loop = asyncio.get_running_loop()
        if self._start["ignores_hang_up"]:  # mpirun has set it back for its ranks
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
        for number in stop_signals():
            loop.add_signal_handler(number, self._stop, self._grace_s)
        loop.add_signal_handler(signal.SIGUSR1, self._pass_on, signal.SIGUSR1)
        following = asyncio.create_task(self._follow_launcher())
        try:
            self._worker = await self._start_worker()
        except OSError as error:
            program, missing = self._program.command[0], error.filename
            where = "" if missing in (None, program) else f": {missing}"  # the working directory
            what = f"cannot start {program}: {error.strerror or error}{where}\n"
            self._channel.send("output", stream="err", text=what)
            code = NOT_FOUND if isinstance(error, FileNotFoundError) else CANNOT_RUN
            self._channel.send("ended", code=code, ago_s=0.0)
            self._channel.send("gone", was_killed=False)
        else:
            for early in self._early:
                self._pass_on(early)
            self._channel.send("started", pid=self._worker.pid)
            self._channel.send("gone", was_killed=await self._see_it_end(self._worker))
        return await following

    async def _see_it_end(self, worker: subprocess.Popen[bytes] | ForkedWorker) -> bool:
        """Waits until no process of the worker is left; returns whether it had to be killed."""
        reporting = asyncio.create_task(self._report())
        killing = asyncio.create_task(self._kill_in_time(worker.pid))
        assert worker.stdout is not None and worker.stderr is not None
        pumps = asyncio.gather(self._pump(worker.stdout, "out"), self._pump(worker.stderr, "err"))
        # asyncio's subprocess.wait() would also wait until every process has closed the pipes.
        code = await asyncio.to_thread(worker.wait)
        ended_s = self._clock.now_s()
        was_killed = self._is_kill_time()
        # The worker's output must be sent before its end is reported.
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(pumps), BEAT_S)
        self._say_state(is_stopped=False)
        self._channel.send("ended", code=code, ago_s=self._clock.now_s() - ended_s)
        killing.cancel()
        if self._kill_at_s == float("inf"):
            send(signal.SIGTERM, self._descendants())
            self._kill_at_s = self._clock.now_s() + _LEFTOVERS_GRACE_S
        else:  # its process group got TERM already, and may need the rest of the grace period
            send(
                signal.SIGTERM,
                [
                    descendant
                    for descendant in self._descendants()
                    if _group(descendant) != worker.pid
                ],
            )
        await end_all(self._is_kill_time, spared=self._spared())
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(pumps, _DRAIN_LIMIT_S)
        reporting.cancel()
        return was_killed

    async def _start_worker(self) -> subprocess.Popen[bytes] | ForkedWorker:
        forking = asyncio.create_task(self._standby.fork(self._program))
        while not (await asyncio.wait([forking], timeout=BEAT_S))[0]:
            self._say_state(is_stopped=False)  # A standby that still imports takes seconds.
        forked = forking.result()
        if forked is not None:
            for stream in ("out", "err"):  # a new process would have printed it as well
                if text := self._standby.output(stream):
                    self._channel.send("output", stream=stream, text=text)
            return forked
        if self._standby.problem:
            self._channel.send("standby", problem=self._standby.problem)
        program = self._standby.observed(self._program) if self._keeps_standby else self._program
        return program.start(subprocess.PIPE, subprocess.PIPE)

    def _spared(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.NoSuchProcess):
            return [] if self._standby.pid is None else [psutil.Process(self._standby.pid)]
        return []

    def _descendants(self, awaited: Collection[int] = ()) -> list[psutil.Process]:
        return descendants(awaited, self._spared())

    async def _pump(self, pipe: IO[bytes], stream: str) -> None:
        source = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(source), pipe
        )
        decoder = codecs.getincrementaldecoder("utf-8")(AS_BYTES)
        while chunk := await source.read(CHUNK_BYTES):
            self._channel.send("output", stream=stream, text=decoder.decode(chunk))
            await self._channel.flush()  # back-pressure: a slow launcher slows the worker down
        if cut := decoder.decode(b"", final=True):
            self._channel.send("output", stream=stream, text=cut)

    async def _report(self) -> None:
        looked_at_s, is_stopped = self._clock.now_s(), False
        while True:
            progress = self._progress.read()
            quiet_s = self._quiet_s(progress)
            if quiet_s is not None and quiet_s < _QUIET_S:
                is_stopped = False
            elif self._clock.now_s() - looked_at_s >= _QUIET_S:
                looked_at_s, living = self._clock.now_s(), self._living()
                is_stopped = _are_stopped(living)
                if progress is None:
                    self._contact.look([process.pid for process in living], looked_at_s)
            if progress is None:
                self._contact.listen()
            # `is_stopped` was determined before this report of a quiet worker.
            self._say_state(is_stopped=is_stopped)
            if self._keeps_standby:
                self._standby.begin(self._program)
            await asyncio.sleep(BEAT_S)

    def _quiet_s(self, progress: Progress | None) -> float | None:
        """Returns the observed seconds since the last change of the progress."""
        if progress is None:
            return None
        now_s = self._clock.now_s()
        if progress.time_s != self._changed[0]:
            before_s = min(BEAT_S, time.monotonic() - progress.time_s)
            self._changed = (progress.time_s, now_s - before_s)
        return now_s - self._changed[1]

    def _say_state(self, *, is_stopped: bool) -> None:
        progress = self._progress.read()
        reported = asdict(progress) if progress is not None else None
        quiet_s = self._quiet_s(progress)
        self._channel.send(
            "state",
            is_stopped=is_stopped,
            progress=reported,
            quiet_s=quiet_s,
            alone_s=self._contact.alone_s(self._clock.now_s()),
            has_horovod=self._contact.has_horovod,
            is_importing=progress is None and self._is_importing(),
        )

    def _is_importing(self) -> bool:
        program = os.path.basename(self._program.command[0])
        if not program.startswith("python") or isinstance(self._worker, ForkedWorker):
            return False
        return self._contact.is_importing(self._started_s, self._clock.now_s())

    def _living(self) -> list[psutil.Process]:
        return self._descendants([self._worker.pid] if self._worker else ())

    async def _follow_launcher(self) -> Mapping[str, Any] | None:
        """Follows the launcher's messages until "bye" (returns None), or the next "start".

        Stops the worker if the launcher is gone.
        """
        while True:
            message = await _hear(self._channel, self._clock)
            if message is None:
                self._channel.close()
                self._stop(self._grace_s)
                return None
            if message["kind"] == "bye":
                self._stop(0.0)  # kills the processes that are left, if any
                return None
            if message["kind"] == "start":  # "gone" was sent before
                return message
            if message["kind"] == "signal":
                self._pass_on(message["number"])
            elif message["kind"] == "stop":
                self._stop(float(message["grace_s"]))
                self._kill_in_step_at_s = self._clock.now_s() + float(
                    message.get("in_step_grace_s", "inf")
                )

    def _stop(self, grace_s: float) -> None:
        if self._kill_at_s == float("inf"):
            self._pass_on(signal.SIGTERM)
            self._pass_on(signal.SIGCONT)  # a stopped process handles TERM only after CONT
        self._kill_at_s = min(self._kill_at_s, self._clock.now_s() + grace_s)
        self._is_stopping.set()

    async def _kill_in_time(self, worker: int) -> None:
        await self._is_stopping.wait()
        await end_all(self._is_kill_time, awaited=[worker], spared=self._spared())

    def _is_kill_time(self) -> bool:
        now_s = self._clock.now_s()
        if now_s >= self._kill_at_s:
            return True
        return now_s >= self._kill_in_step_at_s and is_stuck_in_step(self._progress.read())

    def _pass_on(self, number: int) -> None:
        """Sends a signal to the worker's process group, unless the worker has ended."""
        if self._worker is None:
            self._early.append(number)
        elif self._worker.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._worker.pid, number)


def is_stuck_in_step(progress: Progress | None) -> bool:
    """Returns whether a worker waits in a step for a lost one, and is writing no checkpoint."""
    if progress is None or progress.is_writing:
        return False
    return progress.in_step and progress.phase in _PHASES_OF_STEPS


def _are_stopped(processes: Collection[psutil.Process]) -> bool:
    """Returns whether one of the processes was stopped (SIGSTOP, Ctrl-Z)."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.status() == psutil.STATUS_STOPPED:
                return True
    return False


def _group(process: psutil.Process) -> int | None:
    with contextlib.suppress(ProcessLookupError):
        return os.getpgid(process.pid)
    return None


def worker_environment(
    inherited: Mapping[str, str], additions: Mapping[str, str], *, is_rank: bool
) -> dict[str, str]:
    """Returns a worker's environment.

    `additions` are the variables that the launcher sets. mpirun's are removed unless the worker is
    a rank of the MPI job in which this agent was started.
    """
    kept = {
        name: value
        for name, value in inherited.items()
        if (is_rank if name.startswith(_MPI) else not name.startswith(OF_ONE_RUN))
    }
    return {**kept, **additions}


async def connect(addresses: str, token: str) -> Channel:
    """Connects to the first of the launcher's addresses ("host:port,host:port") that answers.

    If no launcher with this token answers at any of them, it raises a ConnectionError.
    """
    problems = []
    for address in addresses.split(","):
        try:
            return await asyncio.wait_for(_meet_launcher(address, token), _CONNECT_LIMIT_S)
        except (OSError, asyncio.TimeoutError) as error:
            is_down = getattr(error, "errno", None) == errno.ENETUNREACH and "127." in address
            cause = "the loopback is down, `ip link set lo up`" if is_down else str(error)
            problems.append(f"{address}: {cause or 'no answer'}")
    raise ConnectionError(f"the launcher cannot be reached from here ({'; '.join(problems)})")


async def _meet_launcher(address: str, token: str) -> Channel:
    """Returns the channel to the launcher at this address.

    Connects again if the connection is closed in the handshake: a launcher to which many other
    processes connect drops some connections.
    """
    host, _, port = address.rpartition(":")
    while True:
        reader, writer = await asyncio.open_connection(
            host.strip("[]"), int(port), limit=LINE_LIMIT_BYTES
        )
        try:
            if await introduce(reader, writer, token):
                return Channel(reader, writer)
        except ConnectionError:
            writer.close()
            await asyncio.sleep(_RETRY_S)
        else:
            writer.close()
            raise ConnectionError("another program answers there")


async def _hear(channel: Channel, clock: ObservedClock) -> Mapping[str, Any] | None:
    """Returns the launcher's next message; None if the launcher is gone.

    A launcher that is silent is gone if its machine does not answer either. Otherwise it is
    suspended, as by Ctrl-Z, and will send messages again.
    """
    heard_s = clock.now_s()
    while True:
        with contextlib.suppress(TimeoutError):
            return await channel.receive(BEAT_S)
        silent_s = clock.now_s() - heard_s
        if silent_s > SILENCE_S and not channel.is_answered():
            return None
        if silent_s > SILENCE_S / 4:
            channel.send("alive")  # Only what is sent can be answered.


async def _run(index: int) -> None:
    channel = await connect(os.environ[ADDRESSES_VARIABLE], os.environ[TOKEN_VARIABLE])
    channel.send("hello", index=index, host=socket.gethostname(), pid=os.getpid())
    clock = ObservedClock()
    message = await _hear(channel, clock)
    while message is not None and message["kind"] not in ("start", "bye"):
        message = await _hear(channel, clock)
    if message is None or message["kind"] == "bye":
        return
    folder = Path(tempfile.mkdtemp(prefix="tfdist-"))
    standby = Standby(folder)
    with guarded(folder):
        try:
            while message is not None:
                message = await Agent(
                    channel, message, folder / "progress", clock, standby
                ).run_worker()
        finally:
            standby.end()
            with contextlib.suppress(asyncio.TimeoutError):  # a stopped launcher reads nothing
                await asyncio.wait_for(channel.flush(), _DRAIN_LIMIT_S)
            channel.close()
            shutil.rmtree(folder, ignore_errors=True)


def main(indices: str = "", environment: str = "") -> None:
    """Runs the agents of the workers with these indices, by default of this process's MPI rank.

    With `READS_ENVIRONMENT` as the second word it takes further variables from standard input.
    Exits with code 1 if the launcher cannot be reached.
    """
    if environment == READS_ENVIRONMENT:
        os.environ.update(json.loads(sys.stdin.readline()))
    numbers = (indices or os.environ["OMPI_COMM_WORLD_RANK"]).split(",")
    if len(numbers) > 1:
        numbers = [_fork_for_each(numbers)]
    endings.install()
    adopt_orphans()
    try:
        asyncio.run(_run(int(numbers[0])))
    except ConnectionError as error:
        print(f"agent of worker {numbers[0]}, {socket.gethostname()}: {error}", file=sys.stderr)
        sys.exit(1)


def _fork_for_each(numbers: Sequence[str]) -> str:
    """Returns a number in a process of its own for each; this one waits for them, and exits.

    An agent has no other agents below it, because it ends all processes that are.
    """
    pids = []
    for number in numbers:
        pid = os.fork()
        if pid == 0:
            return number
        pids.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    sys.exit(next((code for code in codes if code), 0))
