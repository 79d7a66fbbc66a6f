"""Scripts as workers, started as a user starts them: in N terminals, or with mpirun."""

import contextlib
import os
import re
from dataclasses import dataclass

from tfdist.launch.failures.first_failure import WorkerEnd
from tfdist.launch.functions.calls import WorkerFailedError
from tfdist.testing.failures import cause_of, tail_text
from tfdist.testing.job import Event, read_text
from tfdist.testing.run import Run, stop_after_failure, stop_after_time, wait_until


@dataclass(frozen=True, kw_only=True)
class CompletedWorker:
    """The end of a script in one worker.

    Attributes:
      returncode: The exit status, or minus the number of the signal that ended it.
      stdout: What it wrote to standard output.
      stderr: What it wrote to standard error.
    """

    returncode: int
    stdout: str
    stderr: str


class ScriptWorker:
    """One worker process that runs the script.

    Args:
      run: The run that it belongs to.
      index: Its index.
      start: The start of its process.
    """

    def __init__(self, run: Run, index: int, start: Event) -> None:
        """Watches a worker that has started."""
        self.index = index
        self.pid = start.value
        self._run = run
        self._job = run.workers[index]

    def poll(self) -> int | None:
        """Returns the exit status, or None while the worker runs."""
        end = self.ended()
        return end.value if end is not None else None

    def wait(self, timeout_s: float) -> int:
        """Waits for the worker's end and returns its exit status.

        Args:
          timeout_s: The limit in seconds.

        Raises:
          TimeoutError: If it still runs after the limit. It is not stopped.
        """
        if not wait_until(lambda: self.poll() is not None, timeout_s):
            raise TimeoutError(f"worker {self.index} still runs after {timeout_s:g} s")
        returncode = self.poll()
        assert returncode is not None
        return returncode

    def send_signal(self, number: int) -> None:
        """Sends a signal to the worker, unless it has ended.

        Args:
          number: The signal's number.
        """
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # Its end is not recorded yet.
                os.kill(self.pid, number)

    def stdout(self) -> str:
        """Returns its standard output so far."""
        return read_text(self._job.stdout_path)

    def stderr(self) -> str:
        """Returns its standard error so far."""
        return read_text(self._job.stderr_path)

    def text(self) -> str:
        """Returns all of its output so far, standard output first."""
        return self._job.output()

    def wait_for_text(self, pattern: str, timeout_s: float) -> re.Match[str]:
        """Waits until the pattern is found in the worker's output.

        Args:
          pattern: A regular expression; ^ and $ match at each line.
          timeout_s: The limit of the wait, in seconds.

        Returns:
          The first match.

        Raises:
          TimeoutError: If the worker does not write it within the limit.
          WorkerFailedError: If it ends before it writes that.
        """
        found: list[re.Match[str]] = []

        def is_decided() -> bool:
            has_ended = self.poll() is not None  # read first: nothing is written after the end
            for path in (self._job.stdout_path, self._job.stderr_path):
                match = re.search(pattern, read_text(path), re.MULTILINE)
                if match is not None:
                    found.append(match)
            return bool(found) or has_ended

        in_time = wait_until(is_decided, timeout_s)
        if found:
            return found[0]
        tail = tail_text(f"worker {self.index}", self.text())
        if in_time:
            raise WorkerFailedError(
                f"worker {self.index} ended with status {self.poll()} before it wrote "
                f"{pattern!r}\n\n{tail}",
                worker=self.index,
                exit_code=self.poll(),
                output=[self.text()],
            )
        raise TimeoutError(
            f"worker {self.index} did not write {pattern!r} within {timeout_s:g} s\n\n{tail}"
        )

    def ended(self) -> Event | None:
        """Returns the exit status and time of the worker's end, or None while it runs."""
        return self._run.end_of(self._job)


class ScriptRun:
    """Running workers of a script; leaving the `with` block stops those that still run.

    Args:
      run: The run; `FakeCluster.start_script` makes it.

    Attributes:
      workers: The workers, in worker order.
    """

    def __init__(self, run: Run) -> None:
        """Waits until all workers of the run have started."""
        self._run = run
        self._start_s = run.wait_for_start()
        starts = [job.started() for job in run.workers]
        self.workers = tuple(
            ScriptWorker(run, index, start) for index, start in enumerate(starts) if start
        )

    def wait(self, timeout_s: float, *, check: bool = True) -> list[CompletedWorker]:
        """Waits until every worker has ended.

        Args:
          timeout_s: The limit of the wait, in seconds.
          check: Whether a worker's failure is an error; the others are then stopped.

        Returns:
          The end of each worker, in worker order.

        Raises:
          WorkerFailedError: If a worker ends with another status than 0 and `check` is set.
          WorkerTimeoutError: If not all have ended within the limit; all are then stopped.
        """
        __tracebackhide__ = True

        def is_decided() -> bool:
            self._run.check()
            statuses = [worker.poll() for worker in self.workers]
            return None not in statuses or (check and any(statuses))

        in_time = wait_until(is_decided, timeout_s)
        first = cause_of(self._failures()) if check else None
        if first is not None:
            raise stop_after_failure(self._run, first, self._start_s)
        late = [worker.index for worker in self.workers if worker.poll() is None]
        if late and not in_time:
            raise stop_after_time(self._run, late, timeout_s)
        return self.completed()

    def completed(self) -> list[CompletedWorker]:
        """Stops the workers that still run, and returns the ends in worker order."""
        self._run.stop()
        return [
            CompletedWorker(
                returncode=worker.wait(timeout_s=1.0),
                stdout=worker.stdout(),
                stderr=worker.stderr(),
            )
            for worker in self.workers
        ]

    def close(self) -> None:
        """Stops the workers that still run."""
        self._run.stop()

    def _failures(self) -> list[WorkerEnd]:
        ends = [worker.ended() for worker in self.workers]
        return [
            WorkerEnd(worker=index, time_s=end.time_s, exit_code=end.value)
            for index, end in enumerate(ends)
            if end is not None and end.value != 0
        ]

    def __enter__(self) -> "ScriptRun":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
