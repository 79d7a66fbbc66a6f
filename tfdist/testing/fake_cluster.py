"""FakeCluster: real worker processes on this machine, for a test.

    def test_sum_over_workers(fake_cluster):
        def add():
            strategy = tf.distribute.MultiWorkerMirroredStrategy()
            ...
        assert fake_cluster.run(add, num_workers=2) == [3.0, 3.0]

Every worker is a new process for this one run; nothing of it is left when the run ends. It is
forked from a server that has imported TensorFlow and done nothing else (`fork_server`), so only the
first run of a test session waits for the import. Seconds on 2 cores:

    first run of a session                      5 to 7
    later runs of a trivial function            0.1 (grpc), 0.3 (horovod), 0.06 (none)
    ... that makes a strategy and reduces once  0.45 (grpc)
    ... that calls hvd.init and reduces once    0.5 to 0.8 (horovod)
    run_script, plus the script's own time      0.1 (grpc, none), 0.3 (horovod)

Forking has two effects: environment variables that TensorFlow reads while it is imported come too
late in `env`, and the workers of a run share one string hash seed. A script (`run_script`) is
started as a user starts it, without these effects, unless the test asks for a forked one.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfdist.launch.functions.calls import pickle_call
from tfdist.testing.calls import wait_for_results
from tfdist.testing.run import Run, start_run
from tfdist.testing.scripts import CompletedWorker, ScriptRun
from tfdist.testing.server_process import ServerProcess

# Modules that each worker would import otherwise. Not every run needs Horovod, but it costs little;
# pytest's rewritten assertions call that module of pytest.
_PRELOADED = (
    "cloudpickle",
    "tensorflow",
    "tf_keras",
    "tfdist.estimator",
    "horovod.tensorflow",
    "_pytest.assertion.rewrite",
)


class FakeCluster:
    """Starts local workers over an engine, and returns their results to a test.

    The engines: "grpc" sets a TF_CONFIG of local addresses for each worker; "horovod" starts the
    workers with mpirun; "none" is one worker without a cluster.

    Args:
      server: The process that starts the workers; the fixture `fake_cluster` makes it.

    Attributes:
      outputs: The output of each worker of the last `run`, in worker order.
    """

    def __init__(self, server: ServerProcess) -> None:
        self.outputs: tuple[str, ...] = ()
        self._server = server
        self._runs: list[Run] = []

    def run(
        self,
        function: Callable[..., Any],
        /,
        *args: Any,
        num_workers: int | None = None,
        engine: str = "grpc",
        timeout_s: float = 60.0,
        env: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> list[Any]:
        """Calls `function(*args, **kwargs)` in every worker and returns the values.

        The function is sent to the workers by value: a test's own functions, closures and lambdas
        can be used. A worker stays after its call has returned until the calls of all have.

        Args:
          function: The function.
          *args: Its positional arguments, equal for all workers.
          num_workers: The number of workers; by default 2, and 1 with engine "none".
          engine: "grpc", "horovod" or "none".
          timeout_s: The limit for the call in all workers, counted from the start of the last.
          env: Environment variables for every worker; they override the test's.
          **kwargs: The function's keyword arguments.

        Returns:
          One value per worker, in worker order.

        Raises:
          WorkerFailedError: If a worker's call raises or its process ends; the message has the
            first failed worker, its traceback and its output. The others are stopped.
          WorkerTimeoutError: If not all finish within the limit.
          EngineMissingError: If Horovod or mpirun is needed and not installed.
        """
        __tracebackhide__ = True  # pytest shows the worker's error without this function
        call = pickle_call(function, args, kwargs)
        run = self._start(engine=engine, num_workers=num_workers, env=env, call=call)
        try:
            return wait_for_results(run, timeout_s)
        finally:
            run.stop()
            self.outputs = tuple(job.output() for job in run.workers)

    def run_script(
        self,
        argv: str | Path | Sequence[str],
        *,
        num_workers: int | None = None,
        engine: str = "grpc",
        timeout_s: float = 120.0,
        env: Mapping[str, str] | None = None,
        check: bool = True,
        forked: bool = False,
    ) -> list[CompletedWorker]:
        """Runs a Python script in every worker, waits, and returns each worker's end.

        Args:
          argv: The script's path, or a list of it and its arguments; started with this Python.
          num_workers: As in `run`.
          engine: As in `run`.
          timeout_s: The limit for all workers together.
          env: As in `run`.
          check: Whether an exit status other than 0 is an error that stops the other workers.
          forked: Whether the script begins with TensorFlow imported, in a forked process as a
            function of `run` does. It saves seconds where the script's start is not tested.

        Returns:
          Exit status, standard output and standard error of each worker, in worker order.

        Raises:
          WorkerFailedError: If `check` is set and a worker ends with another status than 0.
          WorkerTimeoutError: If not all end within the limit; all are stopped.
        """
        __tracebackhide__ = True
        with self.start_script(
            argv, num_workers=num_workers, engine=engine, env=env, forked=forked
        ) as script:
            return script.wait(timeout_s, check=check)

    def start_script(
        self,
        argv: str | Path | Sequence[str],
        *,
        num_workers: int | None = None,
        engine: str = "grpc",
        env: Mapping[str, str] | None = None,
        forked: bool = False,
    ) -> ScriptRun:
        """Starts a Python script in every worker, to be watched, signalled and waited for.

        Use it in a `with` statement. The arguments are as in `run_script`.

        Raises:
          ValueError: If an option of Python is given to a forked script.
        """
        words = [str(argv)] if isinstance(argv, str | Path) else argv
        if forked and words[0].startswith("-"):
            raise ValueError(
                f"a forked script must be a file, got the option {words[0]}: the process has "
                "Python's options already. Write the code to a file, or leave forked out."
            )
        command = (sys.executable, *words)
        run = self._start(
            engine=engine, num_workers=num_workers, env=env, command=command, forked=forked
        )
        try:
            return ScriptRun(run)
        except BaseException:
            run.stop()
            raise

    def close(self) -> None:
        """Stops all runs that are not over, and removes the files of all runs."""
        while self._runs:
            self._runs.pop().close()

    def _start(self, *, forked: bool = False, **request: Any) -> Run:
        if forked or "call" in request:
            self._server.preload(_PRELOADED)
        run = start_run(self._server, forked=forked, **request)
        self._runs.append(run)
        return run
