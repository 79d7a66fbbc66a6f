"""The program that a batch script of `tfdist slurm` runs to start and supervise the workers.

It runs on the job's first node, starts `srun` or `mpirun` and passes signals on to it. It names the
worker that failed first and exits with that worker's exit code. It does not wait for a node that
does not answer. Slurm itself would wait SlurmdTimeout seconds.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from tfdist.cluster.environment import SNAPSHOT_STEPS
from tfdist.cluster.instance_variables import NUM_FULL_INSTANCES, OF_ONE_RUN, RUN, SHAPE
from tfdist.launch.errors import UsageError
from tfdist.launch.failures.failure import Failure
from tfdist.launch.failures.first_failure import Verdict
from tfdist.launch.failures.restart_rule import (
    End,
    History,
    Limits,
    LookForHosts,
    Restart,
    Shrink,
    Stop,
    next_start,
)
from tfdist.launch.machine.preemption import find_preemption_file
from tfdist.launch.screen.failure_box import Aftermath, failure_box
from tfdist.launch.screen.size_change import going_on_text, step_text
from tfdist.launch.slurm.ending import ending, failure_of, is_hopeless, is_node_lost, stopped_after
from tfdist.launch.slurm.nodes import (
    OVERLAP,
    command_on,
    end_steps,
    find_answering,
    find_nodes_left,
    nodes_at_start,
    remove_on_nodes,
)
from tfdist.launch.slurm.worker import JobFiles, WorkerRecord
from tfdist.process import snapshot_folders
from tfdist.process.exit_codes import (
    BAD_CONFIGURATION,
    LOST_WORKER,
    NOT_FOUND,
    STOP_CODES,
    shell_code,
)

_LOOK_EVERY_S = 0.5
# Files of another node appear in a shared folder with a delay.
_RECORDS_LIMIT_S = 5.0
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
_BOX_WIDTH = 100


def main(argv: Sequence[str]) -> int:
    """Runs the job and returns its exit code."""
    options = _parse(argv)
    try:
        job = _Job(options)
    except UsageError as error:
        _say(str(error))
        return BAD_CONFIGURATION
    limits = Limits(
        max_restarts=options.max_restarts,
        min_instances=options.min_instances,
        can_leave_out_one=False,  # srun starts as many workers on each node
    )
    history = History()
    while True:
        result = job.run(history.restarts)
        failure = failure_of(result, job.records, job.files, job.first_bytes)
        _tell(result, failure, job, history.restarts, options)
        job.files.remove(options.num_workers)
        end = _end_of(result, failure, job, options)
        decision = next_start(history, end, limits)
        if isinstance(decision, LookForHosts):
            try:
                end = replace(end, lost_hosts=job.find_lost_nodes(), must_stop=job.must_stop)
                decision = next_start(history, end, limits)
            except UsageError as error:
                decision = Stop(reason=str(error))
        if isinstance(decision, Stop):
            if decision.reason and options.max_restarts:
                _say(f"not started again: {decision.reason}")
            break
        history = history.after(end, decision)
        if isinstance(decision, Restart) and decision.with_other_ports:
            _say("restarting the workers on other ports, which follow from the step's number")
            continue
        if isinstance(decision, Shrink):
            job.leave_out_nodes(decision)
        _say(f"restarting all workers, restart {history.restarts} of {options.max_restarts}")
    code = result.exit_code
    is_orderly = code in (0, *STOP_CODES) and job.num_workers == options.num_workers
    if options.max_restarts:
        _remove_snapshots(job.run_name, job.job_id, is_orderly)
    if options.requeue and (code in STOP_CODES or job.has_lost_a_node):
        _requeue(job.job_id)
    return code


def _end_of(
    result: Verdict, failure: Failure | None, job: _Job, options: argparse.Namespace
) -> End:
    """Returns the facts on which `next_start` decides."""
    is_elastic = options.min_instances is not None
    # Slurm, or a user, has stopped a worker.
    is_stopped = job.must_stop or result.exit_code in STOP_CODES
    return End(
        exit_code=result.exit_code,
        failure=failure,
        must_stop=is_stopped or (job.has_lost_a_node and not is_elastic),
        hosts=job.hosts,
        lost_hosts=None if is_elastic else (),
    )


class _Job:
    """The workers of the job, which are started once or several times.

    Attributes:
      job_id: Slurm's number of the job.
      files: The files of the workers, with the records of the last start.
      first_bytes: The place in each worker's log at which the last start began.
      run_name: The name that its snapshots have; see `tfdist.process.snapshot_folders`.
      num_workers: The workers of this start, or of the next one.
      must_stop: Whether the job was asked to stop.
      has_lost_a_node: Whether a node of the job does not answer.

    Raises:
      UsageError: If the file of TFDIST_PREEMPTED is there already, or cannot be.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        name, self.job_id = os.environ["SLURM_JOB_NAME"], os.environ["SLURM_JOB_ID"]
        self.files = JobFiles(str(Path(options.log_dir).absolute() / f"{name}-{self.job_id}"))
        self.records: dict[int, WorkerRecord] = {}
        self.first_bytes: dict[int, int] = {}
        self.must_stop = False
        self.has_lost_a_node = False
        self.run_name = snapshot_folders.new_run()
        self.num_workers: int = options.num_workers
        self._num_full = self.num_workers
        self._full_command: list[str] = options.command
        self._command = self._full_command
        self._grace_s: float = options.grace
        self._snapshots = {RUN: self.run_name} if options.max_restarts else {}
        if options.snapshot_steps is not None:
            self._snapshots[SNAPSHOT_STEPS] = options.snapshot_steps
        self._nodes = [] if options.min_instances is None else nodes_at_start(os.environ)
        self._preemption_file = find_preemption_file(os.environ)

    def run(self, restarts: int) -> Verdict:
        """Starts the workers, waits until they have ended, and returns the result."""
        before = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
        self.files.remove(self._num_full)
        self.files = replace(self.files, start=before + restarts)
        # Without variables of a run in which the job was submitted. The batch script sets SHAPE.
        environ = {
            name: value
            for name, value in os.environ.items()
            if name in SHAPE or not name.startswith(OF_ONE_RUN)
        }
        environ |= {**self.files.environment(), **self._snapshots}
        if self.num_workers != self._num_full:
            environ[NUM_FULL_INSTANCES] = str(self._num_full)
            environ[OVERLAP] = "1"
        self.has_lost_a_node = False
        logs = {worker: self.files.log_path(worker) for worker in range(self.num_workers)}
        self.first_bytes = {w: log.stat().st_size for w, log in logs.items() if log.exists()}
        # Signals are blocked, so that none arrives after the start and before it can be passed on.
        signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
        try:
            process = subprocess.Popen(
                self._command,
                env=environ,
                stdin=subprocess.DEVNULL,
                preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON),
            )
        except OSError as error:
            _say(f"cannot start {self._command[0]}: {error.strerror or error}")
            return Verdict(exit_code=NOT_FOUND)

        def pass_on(number: int, _: object) -> None:
            self.must_stop = True
            process.send_signal(number)

        for number in _PASSED_ON:
            signal.signal(number, pass_on)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
        code = self._wait(process)
        return self._ending(shell_code(code))

    @property
    def hosts(self) -> list[str]:
        """The node of each worker of an elastic job; else empty."""
        per_node = self.num_workers // max(1, len(self._nodes))
        return [node for node in self._nodes for _ in range(per_node)]

    def find_lost_nodes(self) -> list[str]:
        """Returns the nodes that do not answer, and ends what is left of the last start."""
        left = find_nodes_left(self.job_id, self._nodes)
        end_steps(self.job_id)
        return [node for node in self._nodes if node not in left]

    def leave_out_nodes(self, decision: Shrink) -> None:
        """Makes the next start one on the nodes that are left."""
        per_node = self.num_workers // len(self._nodes)
        self._nodes, self.num_workers = list(dict.fromkeys(decision.hosts)), len(decision.hosts)
        self._command = command_on(self._full_command, self._nodes, per_node)
        _say(going_on_text(decision.reason, self.num_workers, self._num_full))
        _say(step_text(self.num_workers, self._num_full))

    def _wait(self, process: subprocess.Popen[bytes]) -> int:
        while True:
            try:
                return process.wait(_LOOK_EVERY_S)
            except subprocess.TimeoutExpired:
                self.records = self.files.read(self.num_workers)
            file = self._preemption_file
            if not self.must_stop and file is not None and file.exists():
                _say(f"{file} is there: the workers save and leave")
                self.must_stop = True
                # Not SIGTERM, after which mpirun kills its ranks within a second.
                process.send_signal(signal.SIGUSR1)
            if is_hopeless(self.records, time.time(), self._grace_s):
                self.has_lost_a_node = True
                process.kill()

    def _ending(self, code: int) -> Verdict:
        """Waits until all workers have written their final records, and returns the result."""
        give_up_s = time.monotonic() + _RECORDS_LIMIT_S
        while True:
            self.records = self.files.read(self.num_workers)
            have_all_ended = all(record.ended_s is not None for record in self.records.values())
            if have_all_ended or self.has_lost_a_node or time.monotonic() > give_up_s:
                break
            time.sleep(_LOOK_EVERY_S)
        unreachable: list[int] = []
        if is_node_lost(self.records, code):
            answering = find_answering({record.host for record in self.records.values()})
            unreachable = [w for w, one in self.records.items() if one.host not in answering]
        end = ending(self.records, code, unreachable)
        self.has_lost_a_node |= end.kind == "silent" or end == Verdict(exit_code=LOST_WORKER)
        return end


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tfdist.launch.slurm.job")
    parser.add_argument("--num-workers", type=int, required=True)
    parser.add_argument("--log-dir", required=True)
    parser.add_argument("--grace", type=float, default=30.0)
    parser.add_argument("--max-restarts", type=int, default=0)
    parser.add_argument("--min-instances", type=int)
    parser.add_argument("--snapshot-steps")
    parser.add_argument("--requeue", action="store_true")
    parser.add_argument("command", nargs="+")
    return parser.parse_args(argv)


def _tell(
    end: Verdict, failure: Failure | None, job: _Job, restarts: int, options: argparse.Namespace
) -> None:
    if failure is not None:
        stopped = stopped_after(end, job.records)
        aftermath = Aftermath(
            num_workers=job.num_workers,
            stopped=tuple(stopped),
            killed=tuple(name for name, was_killed in stopped.items() if was_killed),
            restarts=restarts,
            max_restarts=options.max_restarts,
        )
        console = Console(width=_BOX_WIDTH, color_system=None)
        console.print(failure_box(failure, aftermath, width=_BOX_WIDTH), crop=False)
    elif end.exit_code == LOST_WORKER:
        _say("a node of the job no longer answers; mpirun names it above")
    elif end.exit_code in STOP_CODES:
        _say("the workers were asked to stop; they saved and exited")
    elif end.exit_code != 0:
        _say(f"{options.command[0]} ended with exit code {end.exit_code}; no worker has failed")


def _remove_snapshots(run: str, job_id: str, is_orderly: bool) -> None:
    """Removes what the workers have left in the nodes' memory; after an orderly end nothing."""
    folder = snapshot_folders.folder_of_run(run)
    if is_orderly and not folder.exists():
        return
    try:
        remove_on_nodes(job_id, os.fspath(folder))
    except UsageError as error:
        _say(f"snapshots may be left in {folder} of the job's nodes: {error}")


def _requeue(job_id: str) -> None:
    _say("requeueing the job, to continue from its last checkpoint")
    try:
        subprocess.run(["scontrol", "requeue", job_id], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        _say(f"the job could not be requeued: {error}")


def _say(text: str) -> None:
    print(f"tfdist slurm: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
