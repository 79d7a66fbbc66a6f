"""A run from its first start to its last: workers watched, stopped, started again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from tfdist.launch.errors import StartError
from tfdist.launch.failures import Failure
from tfdist.launch.machine.ports import ReservedPorts, own_addresses
from tfdist.launch.options.run_options import RunOptions
from tfdist.launch.plan import Plan, num_local_ports, plan_here
from tfdist.launch.run.attempt import Attempt
from tfdist.launch.run.description import description, notices
from tfdist.launch.run.run_logs import RunLogs
from tfdist.launch.run.starters import starters_of
from tfdist.launch.run.verdict import Verdict, is_new_port_needed, judge, why_no_restart
from tfdist.launch.screen.ansi import is_colored
from tfdist.launch.screen.failure_box import Aftermath, failure_box, how_text, log_tail
from tfdist.launch.screen.output import Screen, worker_tags
from tfdist.launch.screen.progress_line import ProgressLine
from tfdist.launch.screen.terminal import Stream, Terminal, TerminalClosedError
from tfdist.launch.worker_state import sightings

_LOOPBACK = "127.0.0.1"
# Not "", which listens on a port for IPv4 and on another one for IPv6, in an order left to chance.
_EVERYWHERE = "0.0.0.0"
# How often ports that somebody else took are replaced before the user has to look.
_MOST_NEW_PORTS = 3
_CANNOT_START = 1
# Programs that start this one often pass on a signal that the whole process group gets anyway.
_SAME_SIGNAL_S = 0.3


@dataclass(frozen=True, kw_only=True)
class _End:
    """How one start of the workers ended."""

    verdict: Verdict
    failure: Failure | None = None
    stopped: tuple[str, ...] = ()
    killed: tuple[str, ...] = ()
    exit_codes: tuple[int | None, ...] = ()


class Supervision:
    """A run with all its restarts.

    Args:
      options: What the user wants.
      log_dir: Where the logs go.
      terminal: Where the output goes.
    """

    def __init__(self, options: RunOptions, log_dir: Path, terminal: Terminal) -> None:
        self._options = options
        self._log_dir = log_dir
        self._terminal = terminal
        self._started_s = time.monotonic()
        self._restarts = 0
        self._new_ports = 0
        # The signal that asked us to stop, and when what is left will be killed.
        self._asked: int | None = None
        self._asked_s = 0.0
        self._kill_at_s = float("inf")
        self._is_saving = False
        self._attempt: Attempt | None = None

    async def run(self) -> int:
        """Starts the workers, again and again if that may help; returns the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._ask_to_stop, number)
        loop.add_signal_handler(signal.SIGUSR1, self._ask_to_save)
        while True:
            with ReservedPorts(num_local_ports(self._options)) as ports:
                plan = plan_here(self._options, ports.ports, self._log_dir, self._restarts)
                if self._restarts == 0 and self._new_ports == 0:
                    self._introduce(plan)
                try:
                    end = await self._run_once(plan)
                except StartError as error:
                    self._say(f"the workers could not be started: {error}")
                    return _CANNOT_START if self._asked is None else 128 + self._asked
            if end.failure is None:
                return self._ended_as_asked(end)
            if self._asked is not None or self._is_saving:  # nobody wants another start
                self._show_box(end)
                return end.verdict.exit_code
            if is_new_port_needed(end.failure, self._options) and self._new_ports < _MOST_NEW_PORTS:
                self._new_ports += 1
                self._say(
                    f"somebody took the port of {end.failure.name} before it could: all workers "
                    f"start again with other ports ({self._new_ports} of {_MOST_NEW_PORTS})"
                )
                continue
            reason = why_no_restart(end.failure, self._restarts, self._options.max_restarts)
            if reason is not None:
                self._show_box(end)
                if self._options.max_restarts > 0:
                    self._say(f"not started again: {reason}")
                return end.verdict.exit_code
            self._restarts += 1
            self._show_restart(end)

    def _introduce(self, plan: Plan) -> None:
        width = self._terminal.width
        for line in notices(self._options):
            self._write(line)
        for text in description(
            self._options, plan, verbosity=self._options.verbosity, width=width
        ):
            self._write(text)
        if self._options.verbosity > 0:
            self._say(f"logs are in {self._log_dir}")

    async def _run_once(self, plan: Plan) -> _End:
        options = self._options
        screen = Screen(
            self._terminal,
            worker_tags(plan),
            shown=options.show,
            is_tagged=options.tag_output,
            color=options.color,
        )
        logs = RunLogs(plan, self._say)

        def on_output(worker: int, stream: Stream, text: str) -> None:
            logs.write(worker, text)
            with self._shown():
                screen.write(worker, stream, text, time.monotonic())

        is_local = options.is_on_this_machine
        attempt = Attempt(
            plan,
            starters_of(plan, options, os.environ),
            listen_on=_LOOPBACK if is_local else _EVERYWHERE,
            own_hosts=[_LOOPBACK] if is_local else own_addresses(options.host_subnet),
            grace_s=options.grace_s,
            start_timeout_s=options.start_timeout_s,
            folder=self._log_dir,
            on_output=on_output,
        )
        self._attempt = attempt
        line = ProgressLine(self._terminal, mode=options.progress, color=options.color)
        try:
            await attempt.start()
            verdict = await self._watch(attempt, line)
            failure = self._failure(verdict) if verdict.blamed is not None else None
            return await self._stop_all(attempt, verdict, failure)
        finally:
            await attempt.close()
            with self._shown():
                for worker in plan.workers:
                    screen.flush(worker.index)
                line.close(time.monotonic())
            logs.close()

    async def _watch(self, attempt: Attempt, line: ProgressLine) -> Verdict:
        options = self._options
        if self._asked is not None:  # while the agents were starting
            attempt.ask_to_stop(self._kill_at_s - time.monotonic())
        if self._is_saving:
            attempt.signal(signal.SIGUSR1)
        while True:
            now_s = time.monotonic()
            with self._shown():
                line.update(now_s, sightings(attempt.workers, now_s))
            verdict = judge(
                attempt.workers,
                now_s,
                stall_timeout_s=options.stall_timeout_s,
                grace_s=options.grace_s,
            )
            if self._asked is not None:
                if all(worker.is_over for worker in attempt.workers):
                    return Verdict(exit_code=128 + self._asked)
                if now_s > self._kill_at_s + 1.0:
                    return Verdict(exit_code=128 + self._asked)
            elif verdict is not None:
                return verdict
            await attempt.wait_for_change()

    async def _stop_all(self, attempt: Attempt, verdict: Verdict, failure: Failure | None) -> _End:
        is_asked = self._asked is not None  # then some have left already
        stopped = [
            worker
            for worker in attempt.workers
            if worker is not verdict.blamed and (is_asked or worker.code is None)
        ]
        if any(worker.code is None or not worker.is_over for worker in attempt.workers):
            if self._kill_at_s == float("inf"):
                self._kill_at_s = time.monotonic() + self._options.grace_s
            attempt.ask_to_stop(max(0.0, self._kill_at_s - time.monotonic()))
            if stopped and failure is not None:
                names = ", ".join(worker.plan.name for worker in stopped)
                self._say(f"{failure.name} has failed; stopping {names}")
            await attempt.wait_until_gone(lambda: self._kill_at_s)
        if self._asked is None:
            self._kill_at_s = float("inf")
        return _End(
            verdict=verdict,
            failure=failure,
            stopped=tuple(worker.plan.name for worker in stopped),
            killed=tuple(w.plan.name for w in stopped if w.was_killed or not w.is_gone),
            exit_codes=tuple(worker.code for worker in attempt.workers),
        )

    def _failure(self, verdict: Verdict) -> Failure:
        worker = verdict.blamed
        assert worker is not None
        times = (worker.ended_s, worker.lost_s, time.monotonic())
        failed_s = next(one for one in times if one is not None)
        ago = timedelta(seconds=time.monotonic() - failed_s)
        return Failure(
            name=worker.plan.name,
            index=worker.plan.index,
            host=worker.host or worker.plan.host,
            pid=worker.pid,
            kind=verdict.kind,
            code=None if worker.code is None else abs(worker.code),
            after_s=failed_s - self._started_s,
            at=datetime.now() - ago,
            step=worker.step,
            log_tail=log_tail(worker.plan.log_path),
            log_path=worker.plan.log_path,
            detail=verdict.detail,
        )

    def _ended_as_asked(self, end: _End) -> int:
        if self._asked is None:
            if end.verdict.exit_code != 0:
                self._say("the workers were asked to stop, and have left")
            return end.verdict.exit_code
        name = signal.Signals(self._asked).name
        killed = f"; {', '.join(end.killed)} had to be killed" if end.killed else ""
        self._say(f"stopped by {name}{killed}. Logs: {self._log_dir}")
        return 128 + self._asked

    def _show_box(self, end: _End) -> None:
        assert end.failure is not None
        box = failure_box(
            end.failure,
            Aftermath(
                num_workers=len(end.exit_codes),
                stopped=end.stopped,
                killed=end.killed,
                restarts=self._restarts,
                max_restarts=self._options.max_restarts,
            ),
            width=self._terminal.width,
            is_colored=is_colored(
                self._options.color,
                is_terminal=self._terminal.is_terminal("err"),
                environ=os.environ,
            ),
            is_unicode=self._terminal.encodes("╭"),
        )
        self._write(box)

    def _show_restart(self, end: _End) -> None:
        assert end.failure is not None
        self._say(
            f"restart {self._restarts} of {self._options.max_restarts}: {end.failure.name} failed "
            f"({how_text(end.failure)}); all workers start again from the last checkpoint"
        )

    def _ask_to_stop(self, number: int) -> None:
        """Stops the workers: TERM and the grace period at first, KILL at the second time."""
        now_s = time.monotonic()
        if self._asked is None:
            self._asked, self._asked_s = number, now_s
            self._kill_at_s = min(self._kill_at_s, now_s + self._options.grace_s)
            again = " Ctrl-C again kills them." if number == signal.SIGINT else ""
            self._say(
                f"{signal.Signals(number).name}: the workers save and leave, within "
                f"{self._options.grace_s:g} s.{again}"
            )
        elif now_s - self._asked_s < _SAME_SIGNAL_S:
            return
        else:
            self._kill_at_s = min(self._kill_at_s, now_s)
        if self._attempt is not None:
            self._attempt.ask_to_stop(max(0.0, self._kill_at_s - now_s))
            self._attempt.changed.set()

    def _ask_to_save(self) -> None:
        """Has the workers save and stop, in their own time."""
        self._say("SIGUSR1: the workers save, and stop")
        self._is_saving = True
        if self._attempt is not None:
            self._attempt.signal(signal.SIGUSR1)

    def _say(self, text: str) -> None:
        self._write(f"tfdist: {text}")

    def _write(self, text: str) -> None:
        with self._shown():
            self._terminal.write("err", f"{text}\n")

    @contextlib.contextmanager
    def _shown(self) -> Iterator[None]:
        """Stops the run if what is written in this block is read by nobody any more."""
        try:
            yield
        except TerminalClosedError:
            if self._asked is None:
                self._ask_to_stop(signal.SIGPIPE)
