"""A run with all its restarts: the workers are started, watched, stopped and restarted.

    launcher        `tfdist run`: one `Supervision`, with one `WorkerProcesses` for all starts
       |            starts: the agents, directly, through ssh (other machines) or mpirun (Horovod)
       v
    agent           one per worker, on the worker's machine
       |            starts: its worker, in a new session
       v
    worker          the user's program

    from      to        through            carries
    launcher  agent     environment        the launcher's addresses, a token
    agent     launcher  TCP                handshake (see `handshake.py`)
    agent     launcher  TCP, JSON lines    hello, started, state, output, ended, gone
    launcher  agent     TCP, JSON lines    start, alive, signal, stop, bye (see `channel.py`)
    agent     worker    environment        variables of the plan, the path of the progress file
    agent     worker    signals            to the worker's process group
    worker    agent     stdout and stderr  the output, which the agent sends on as "output"
    worker    agent     progress file      step and phase, which the agent sends on as "state"
    starter   launcher  start.log          the output of mpirun or of an agent itself

The start: the launcher waits until every agent has sent "hello", then sends "start" to all.

If a worker fails:

    1. Its agent sends "ended" with the exit code or signal. If the agent itself is lost, the
       launcher sees a closed connection, or 20 s of silence (`SILENCE_S`). A worker that makes no
       step for --stall-timeout counts as failed.
    2. `judge` (`verdict.py`) names the worker that failed first. It waits up to 0.8 s for news of
       an earlier failure, and longer if a worker ended only because it lost another one.
    3. The launcher sends "stop" to every agent. Each sends TERM to its worker, and KILL at the end
       of the grace period (--grace). It sends "gone" once no process of the worker is left.
    4. The launcher sends "bye", waits a moment for mpirun, and kills all processes that are left
       below it.
    5. `next_start` (`failures/restart_rule.py`) decides. All workers start again: with other ports
       if another process took a port, or from the last checkpoint if --max-restarts allows it.
       Otherwise the launcher prints the failure box and ends with the exit code of the worker that
       failed first, or 124 if that stalled or is silent.

With --min-instances, step 5 leaves out hosts that do not answer. The launcher looks for them every
--rejoin-interval. When one answers, SIGUSR1 makes the workers save and leave, and all start again
with it.

If the launcher fails, each agent sees a closed connection, or 20 s in which its machine does not
answer, and stops its worker with TERM, then KILL. While the launcher is suspended (Ctrl-Z), agents
and workers go on, and none of its limits counts (`observed_time.py`). If an agent fails, the kernel
kills its worker (`die_with_parent`), and the agent's guardian kills the worker's own children
(`guardian.py`).
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from tfdist.launch.errors import StartError
from tfdist.launch.failures.failure import Failure, joined_names, worker_tag
from tfdist.launch.failures.first_failure import Verdict
from tfdist.launch.failures.restart_rule import (
    MOST_NEW_PORTS,
    End,
    Grow,
    History,
    LookForHosts,
    NextStart,
    Restart,
    Shrink,
    Stop,
    next_start,
)
from tfdist.launch.machine.ports import ReservedPorts, own_addresses
from tfdist.launch.machine.processes import stop_signals
from tfdist.launch.machine.remote_hosts import (
    SLURM_JOB,
    call_on_hosts,
    lost_hosts,
    refusals_of_hosts,
)
from tfdist.launch.options.hosts import place_instances, remote_shell
from tfdist.launch.options.run_options import RunOptions
from tfdist.launch.run.ending import Result, failure_of, restart_limits, restart_text, stopped_text
from tfdist.launch.run.interruptions import Interruptions
from tfdist.launch.run.membership import instances_by_host, resized
from tfdist.launch.run.notices import Notices
from tfdist.launch.run.run_logs import RunLogs, as_text
from tfdist.launch.run.starters import Starter, relay_starter, starters_of
from tfdist.launch.run.stop_request import StopRequest
from tfdist.launch.run.verdict import judge, with_cause
from tfdist.launch.run.worker_processes import WorkerProcesses
from tfdist.launch.screen.failure_box import Aftermath, whole_error
from tfdist.launch.screen.output import Screen
from tfdist.launch.screen.progress_line import ProgressLine
from tfdist.launch.screen.size_change import going_on_text, step_text
from tfdist.launch.screen.terminal import Stream, Terminal, TerminalClosedError
from tfdist.launch.workers.channel import BEAT_S
from tfdist.launch.workers.observed_time import ObservedClock
from tfdist.launch.workers.plan import Plan, make_plan, num_local_ports
from tfdist.launch.workers.worker_state import worker_snapshots
from tfdist.process import snapshot_folders
from tfdist.process.text import listed

_LOOPBACK = "127.0.0.1"
# Not "", which would listen on one port for IPv4 and on another one for IPv6, in random order.
_EVERYWHERE = "0.0.0.0"
_CANNOT_START = 1
# A worker inside of a step that another one has left is killed after this time, if all start again:
# it cannot end the step, and has nothing to save.
_IN_STEP_GRACE_S = 0.2


class Supervision:
    """A run with all its restarts.

    When `preemption_file` appears, the workers save and leave as on SIGTERM.
    """

    def __init__(
        self,
        options: RunOptions,
        log_dir: Path,
        terminal: Terminal,
        preemption_file: Path | None = None,
    ) -> None:
        self._preemption_file = preemption_file
        self._full_size = options
        self._options = options  # of the present start
        self._lost_hosts: frozenset[str] = frozenset()
        self._joining: RunOptions | None = None  # of the next start, with hosts that are back
        self._interruptions = Interruptions()
        self._shell = remote_shell(options.mpi_global_args, os.environ)
        self._log_dir = log_dir
        self._run = snapshot_folders.new_run()
        self._terminal = terminal
        self._cwd = os.getcwd()  # It may be removed before a restart.
        self._clock = ObservedClock()
        self._started_s = self._clock.now_s()
        self._history = History()
        self._notices = Notices(terminal, log_dir, self._stop_without_reader)
        self._stop = StopRequest()
        is_local = options.is_on_this_machine
        self._processes = WorkerProcesses(
            listen_on=_LOOPBACK if is_local else _EVERYWHERE,
            own_hosts=[_LOOPBACK] if is_local else own_addresses(options.host_subnet),
            grace_s=options.grace_s,
            start_timeout_s=options.start_timeout_s,
            folder=log_dir,
            cwd=self._cwd,
            clock=self._clock,
            keeps_standby=options.keeps_agents,
            on_notice=self._notices.say,
            on_stranger=self._notices.note_stranger,
        )

    async def run(self) -> int:
        """Runs the workers, with restarts as far as they are allowed; returns the exit code."""
        snapshot_folders.remove_stale()
        code = None
        try:
            code = await self._run_until_over()
        finally:
            await self._processes.close()
            snapshot_folders.remove_run(self._run)
            # After an orderly end the workers have removed their own: not where a host was lost, or
            # where there was nothing left to train.
            is_orderly = code == 0 and self._interruptions.number == 0
            if not is_orderly and self._full_size.max_restarts > 0:
                await self._remove_snapshots_elsewhere()
        self._notices.end(self._interruptions)
        return code

    async def _remove_snapshots_elsewhere(self) -> None:
        if not self._full_size.is_on_this_machine:
            folder = os.fspath(snapshot_folders.folder_of_run(self._run))
            hosts = instances_by_host(self._full_size)
            await call_on_hosts(hosts, self._shell, "rm", "-rf", folder)

    async def _run_until_over(self) -> int:
        loop = asyncio.get_running_loop()
        for number in stop_signals():
            loop.add_signal_handler(number, self._ask_to_stop, number)
        loop.add_signal_handler(signal.SIGUSR1, self._ask_to_save)
        while True:
            result = await self._run_start()
            end = self._end_of(result)
            decision = next_start(self._history, end, restart_limits(self._options))
            if isinstance(decision, LookForHosts):
                lost = await self._find_lost_hosts()
                end = replace(self._end_of(result), lost_hosts=lost)
                decision = next_start(self._history, end, restart_limits(self._options))
            if isinstance(decision, Stop):
                return self._report_end(result, decision.reason)
            self._history = self._history.after(end, decision)
            await self._prepare(result, end, decision)

    async def _run_start(self) -> Result:
        with ReservedPorts(num_local_ports(self._options)) as ports:
            history, cost = self._history, self._interruptions
            plan = make_plan(
                self._options,
                ports=ports.ports,
                log_dir=self._log_dir,
                restart_count=history.starts,
                restart_step=cost.step if cost.step > 0 else None,
                restart_cost=(round(cost.lost_until(self._clock.now_s())), cost.repeated_steps),
                run=self._run,
                num_full_instances=self._full_size.num_instances,
            )
            if history == History():
                self._notices.introduce(self._options, plan)
            try:
                return await self._run_once(plan)
            except StartError as error:
                return Result(verdict=Verdict(exit_code=_CANNOT_START), start_error=str(error))

    def _end_of(self, result: Result) -> End:
        """Returns the facts on which `next_start` decides."""
        failure, joining = result.failure, self._joining
        options = joining or self._options
        may_miss_hosts = bool(result.start_error) or (failure and failure.kind == "silent")
        return End(
            exit_code=result.verdict.exit_code,
            failure=failure,
            start_error=result.start_error,
            must_stop=self._stop.is_made,
            is_for_joining=joining is not None and not result.start_error,
            hosts=[host.name for host in place_instances(options.hosts, options.num_instances)],
            lost_hosts=None if may_miss_hosts and not options.is_on_this_machine else (),
        )

    def _may_start_again(self, failure: Failure, verdict: Verdict) -> bool:
        end = self._end_of(Result(verdict=verdict, failure=failure))
        return not isinstance(next_start(self._history, end, restart_limits(self._options)), Stop)

    async def _prepare(self, result: Result, end: End, decision: NextStart) -> None:
        """Makes the options of the next start, and tells the user about it."""
        if end.is_for_joining:
            assert self._joining is not None
            self._options, self._joining = self._joining, None
            self._say_what_a_step_is()
        if isinstance(decision, Grow):
            return
        if isinstance(decision, Restart) and decision.with_other_ports:
            assert end.failure is not None
            self._notices.say(
                f"another program took the port of {end.failure.name} before it could: all workers "
                f"start again with other ports ({self._history.new_ports} of {MOST_NEW_PORTS})"
            )
            return
        if isinstance(decision, Shrink):
            self._shrink(decision, end.lost_hosts or ())
            await self._processes.close()  # Agents that stay belong to the larger run.
        now_s = self._clock.now_s()
        failed_s = now_s if end.failure is None else self._started_s + end.failure.after_s
        self._interruptions.begin(self._processes.workers, failed_s)
        self._notices.say(restart_text(result, self._history.restarts, self._options))

    def _shrink(self, decision: Shrink, lost_hosts: Collection[str]) -> None:
        self._lost_hosts |= frozenset(lost_hosts)
        smaller = resized(self._options, Counter(decision.hosts))
        assert smaller is not None  # The rule leaves no fewer than --min-instances.
        self._options = smaller
        whole = self._full_size.num_instances
        self._notices.say(going_on_text(decision.reason, smaller.num_instances, whole))
        self._say_what_a_step_is()

    def _report_end(self, result: Result, reason: str) -> int:
        """Tells the user how the run has ended; returns its exit code."""
        if result.start_error:
            self._notices.say(f"the workers could not be started: {result.start_error}")
            return _CANNOT_START if self._stop.number is None else self._stop.exit_code
        if result.failure is None:
            return self._ended_by_signal(result)
        self._notices.show_box(result.failure, result.aftermath)
        if reason and self._options.max_restarts > 0:
            self._notices.say(f"not started again: {reason}")
        return result.verdict.exit_code

    def _say_what_a_step_is(self) -> None:
        self._notices.say(step_text(self._options.num_instances, self._full_size.num_instances))

    async def _try_hosts_of_mpirun(self, starters: Sequence[Starter]) -> None:
        """Raises a StartError with ssh's reason, which mpirun hides, if a host refuses."""
        is_by_ssh = not self._options.is_on_this_machine and SLURM_JOB not in os.environ
        if not is_by_ssh or not any(one.is_mpirun for one in starters):
            return
        hosts = instances_by_host(self._options)
        trying = asyncio.ensure_future(refusals_of_hosts(hosts, self._shell))
        while not trying.done() and not self._stop.is_made:
            await asyncio.wait([trying], timeout=BEAT_S)
        if not trying.done():
            trying.cancel()
            raise StartError("they were stopped while their hosts were tried")
        if refusals := trying.result():
            texts = [f"{host}: {one.reason}. {one.fix}" for host, one in refusals.items()]
            raise StartError("\n".join(texts))

    async def _find_lost_hosts(self) -> frozenset[str]:
        if self._options.is_on_this_machine:
            return frozenset()
        return await lost_hosts(instances_by_host(self._options), self._shell)

    async def _take_in_hosts(self) -> None:
        """Waits until a lost host answers, and then has the workers save and leave."""
        back: frozenset[str] = frozenset()
        while not back:
            await asyncio.sleep(self._options.rejoin_interval_s)
            back = self._lost_hosts - await lost_hosts(self._lost_hosts, self._shell)
        self._lost_hosts -= back
        now = instances_by_host(self._options)
        larger = {
            host: number if host in back else now.get(host, 0)
            for host, number in instances_by_host(self._full_size).items()
        }
        self._joining = resized(self._options, larger)
        assert self._joining is not None  # It is larger than one that was allowed.
        self._notices.say(
            f"{listed(sorted(back))} can be reached again: the workers save, and start again as "
            f"{self._joining.num_instances} instances"
        )
        self._interruptions.begin(self._processes.workers, self._clock.now_s())
        self._processes.signal(signal.SIGUSR1)

    async def _run_once(self, plan: Plan) -> Result:
        options = self._options
        screen = Screen(
            self._terminal,
            {worker.index: worker_tag(worker.name) for worker in plan.workers},
            shown=options.show,
            is_tagged=options.tag_output,
            joined=[w.index for w in plan.workers if w.replicas and options.output == "changes"],
            hides_startup_lines=options.verbosity == 0,
            holds_errors=options.verbosity == 0,
        )
        logs = RunLogs(plan, self._notices.say)

        def on_output(worker: int, stream: Stream, text: str) -> None:
            logs.write(worker, text)
            with self._notices.shown():
                screen.write(worker, stream, as_text(text), self._clock.now_s())

        processes = self._processes
        result = None
        joining = None
        line = ProgressLine(self._terminal, mode=options.progress, started_s=self._started_s)
        try:
            starters = starters_of(plan, options, os.environ)
            await self._try_hosts_of_mpirun(starters)
            await processes.start(
                plan,
                starters,
                relay_starter(plan, options, os.environ),
                on_output,
            )
            if self._lost_hosts:  # Workers that have not started could not be asked to save.
                joining = asyncio.create_task(self._take_in_hosts())
            verdict = await self._watch(line, screen, logs)
            verdict = with_cause(
                verdict, processes.workers, lambda worker: logs.tail(worker.plan.index)
            )
            failure = None
            if verdict.worker is not None:
                failure = failure_of(
                    verdict,
                    processes.workers,
                    options,
                    log_tail=logs.tail(verdict.worker),
                    mpirun_lines=processes.starter_output(),
                    started_s=self._started_s,
                    now_s=self._clock.now_s(),
                )
            with self._notices.shown():
                if failure is not None:
                    screen.end_with(self._error_in_box(failure, verdict))
                screen.update(float("inf"))  # before what is said about a failure
            result = await self._stop_all(verdict, failure)
            return result
        finally:
            if joining is not None:
                joining.cancel()
            is_over = result is None or result.failure is None or self._stop.number is not None
            await processes.close(keeps_agents=options.keeps_agents and not is_over)
            with self._notices.shown():
                for worker in plan.workers:
                    screen.flush(worker.index)
                line.close(self._clock.now_s())
            self._notices.num_startup_lines += screen.num_startup_lines
            logs.close()

    async def _watch(self, line: ProgressLine, screen: Screen, logs: RunLogs) -> Verdict:
        processes, options = self._processes, self._options
        if self._stop.number is not None:  # while the agents were starting
            processes.ask_to_stop(self._stop.kill_at_s - self._clock.now_s())
        if self._stop.saves:
            processes.signal(signal.SIGUSR1)
        while True:
            logs.restore()
            file = self._preemption_file
            if self._stop.number is None and file is not None and file.exists():
                # The machine's own SIGTERM may follow, and must not count as a second one.
                self._ask_to_stop(signal.SIGTERM, f" ({file} is there)", is_signal=False)
            now_s = self._clock.now_s()
            with self._notices.shown():
                screen.update(now_s)
                line.update(now_s, worker_snapshots(processes.workers, now_s))
            self._interruptions.note(processes.workers, now_s)
            self._notices.note_meeting(processes.workers, options.engine, has_ended=False)
            verdict = judge(
                processes.workers,
                now_s,
                stall_timeout_s=options.stall_timeout_s,
                grace_s=options.grace_s,
            )
            if self._stop.number is not None:
                are_over = all(worker.is_over for worker in processes.workers)
                if are_over or now_s > self._stop.kill_at_s + 1.0:
                    return Verdict(exit_code=self._stop.exit_code)
            elif verdict is not None:
                return verdict
            await processes.wait_for_change()

    async def _stop_all(self, verdict: Verdict, failure: Failure | None) -> Result:
        processes = self._processes
        is_stopping = self._stop.number is not None  # then some workers have ended already
        stopped = [
            worker
            for worker in processes.workers
            if worker.plan.index != verdict.worker and (is_stopping or worker.code is None)
        ]
        if any(worker.code is None or not worker.is_over for worker in processes.workers):
            grace_s = self._stop.begin_grace(self._clock.now_s(), self._options.grace_s)
            starts_again = failure is not None and self._may_start_again(failure, verdict)
            processes.ask_to_stop(grace_s, _IN_STEP_GRACE_S if starts_again else float("inf"))
            if stopped and failure is not None:
                names = joined_names(worker.plan.name for worker in stopped)
                self._notices.say(f"{failure.name} has failed; stopping {names}")
            await processes.wait_until_gone(lambda: self._stop.kill_at_s)
        self._stop.end_grace()
        aftermath = Aftermath(
            num_workers=len(processes.workers),
            stopped=[worker.plan.name for worker in stopped],
            killed=[w.plan.name for w in stopped if w.was_killed or not w.is_gone],
            restarts=self._history.restarts,
            max_restarts=self._options.max_restarts,
            can_restart=not self._options.nodes,
        )
        return Result(verdict=verdict, failure=failure, aftermath=aftermath)

    def _ended_by_signal(self, result: Result) -> int:
        if self._stop.number is None:
            if result.verdict.exit_code != 0:
                self._notices.say(
                    result.verdict.detail or "the workers were asked to stop, and exited"
                )
            else:
                workers, engine = self._processes.workers, self._options.engine
                self._notices.note_meeting(workers, engine, has_ended=True)
            return result.verdict.exit_code
        lasted_s = self._stop.lasts_s(self._clock.now_s())
        self._notices.say(stopped_text(result, self._stop, lasted_s, self._options.grace_s))
        return self._stop.exit_code

    def _error_in_box(self, failure: Failure, verdict: Verdict) -> str:
        """Returns the error that the failure box will show; "" if there may be no box."""
        may_go_on = self._may_start_again(failure, verdict)
        return "" if may_go_on else whole_error(failure, width=self._terminal.width)

    def _ask_to_stop(self, number: int, why: str = "", *, is_signal: bool = True) -> None:
        """Stops the workers: TERM and the grace period on the first signal, KILL on the second.

        The arguments are as in `StopRequest.ask`.
        """
        now_s = self._clock.now_s()
        is_first = self._stop.number is None
        if not self._stop.ask(number, now_s, self._options.grace_s, why, is_signal=is_signal):
            return
        if is_first:
            again = " Ctrl-C again kills them." if number == signal.SIGINT else ""
            self._notices.say(
                f"{signal.Signals(number).name}{why}: the workers save and leave, within "
                f"{self._options.grace_s:g} s.{again}"
            )
        self._processes.ask_to_stop(max(0.0, self._stop.kill_at_s - now_s))
        self._processes.changed.set()

    def _ask_to_save(self) -> None:
        self._notices.say("SIGUSR1: the workers save and stop")
        self._stop.saves = True
        self._processes.signal(signal.SIGUSR1)

    def _stop_without_reader(self, error: TerminalClosedError) -> None:
        """Stops the run; after a hang-up that is ignored, as under `nohup`, it goes on."""
        if self._stop.number is None and error.cause == "reader":
            self._ask_to_stop(signal.SIGPIPE, f" ({error})")
        elif self._stop.number is None and signal.SIGHUP in stop_signals():
            self._ask_to_stop(signal.SIGHUP)
