"""The standby itself: an interpreter that imports in advance, and forks each later worker.

    agent                          standby                                worker
      |  starts it with the           |
      |  program's own command  ----> |  `site` runs this file
      |                               |  imports what the first worker had
      |  <-------------------- ready  |
      |  a start: environment,        |
      |  cores, two pipes       ----> |  forks ------------------------->  takes this place,
      |  <-----------------------------------------------------  its pid   returns to `site`,
      |                               |  waits for it                      runs the program
      |  <----------------- exit code |  <-------------------------------  ends

Python runs this file as `sitecustomize` (a copy of it is first on PYTHONPATH), before it looks at
the program. A forked worker goes on from there as any Python does: `sys.argv`, `__main__`,
`sys.path` and tracebacks are Python's own work. It differs from a new process in its imported
modules only.

The standby never returns to `site` itself: whatever fails here ends it, and the agent starts the
next worker afresh. A module that cannot be imported in advance is left to the program. The standby
needs nothing but Python's standard library.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping
from typing import Any

# JSON: "connection", a file descriptor; "imports" and "environment", two files.
VARIABLE = "TFDIST_STANDBY"
_NAME = "tfdist-standby"  # in the list of processes; at most 15 characters
_PR_SET_PDEATHSIG = 1  # from <linux/prctl.h>
_LONGEST_READ = 1 << 16
_libc = ctypes.CDLL(None, use_errno=True)  # loaded before any fork


def main() -> None:
    """Serves the agent; returns only in a forked worker."""
    settings = json.loads(os.environ.pop(VARIABLE))
    folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [one for one in sys.path if os.path.abspath(one or ".") != folder]
    own_name, standby = _rename(_NAME), os.getpid()
    connection = socket.socket(fileno=settings["connection"])
    with open(settings["imports"]) as file, open(settings["environment"]) as other:
        imports, environ = json.load(file), json.load(other)
    gained = _import(imports, environ)
    sys.stdout.flush()
    sys.stderr.flush()
    connection.sendall(b'{"ready": true}\n')
    while True:
        request, pipes = _receive(connection)
        pid = os.fork()
        if pid == 0:
            _take_place(request, pipes, standby)
            os.environ.update(gained)
            _rename(own_name)
            connection.sendall(json.dumps({"pid": os.getpid()}).encode() + b"\n")
            break
        for pipe in pipes:
            os.close(pipe)
        _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        connection.sendall(json.dumps({"code": code}).encode() + b"\n")
    connection.close()


def _import(imports: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, str]:
    """Imports the modules of the first worker, in the order in which it began to.

    Two modules that import each other may fail where the program's own imports did not. A module
    that fails is tried again after all others, and then left to the program.

    Returns:
      The variables that belong to the imports, and are not in `environ`, the program's environment
      at its start: those that the imports have set, and those that the first worker had set, by
      itself or in an import, and that the imports have read.

    Raises:
      ImportError: If one would hide one of the program's own modules.
      RuntimeError: If an import has started a thread, which no forked process would have.
    """
    changes = imports["environment"]
    with _noted_variables() as (read, put):
        failed = [one for one in imports["modules"] if _import_error(one)]
        for module in failed:
            if error := _import_error(module):
                print(f"tfdist: {module} is left to the program: {error}", file=sys.stderr)
    hidden = sorted(set(imports["own"]).intersection(sys.modules))
    if hidden:
        raise ImportError(f"the program has modules of its own with the names {hidden}")
    if threading.active_count() > 1:
        raise RuntimeError(f"an import has started threads: {threading.enumerate()}")
    gc.collect()
    gc.freeze()  # Collections in the workers leave the shared pages alone.
    put |= {name for name in read if changes.get(name) is not None and name not in environ}
    return {name: os.environ[name] for name in put if name in os.environ}


def _import_error(module: str) -> str:
    """Imports a module, unless it is there; returns why that failed, "" if it did not."""
    try:
        if module not in sys.modules:
            importlib.import_module(module)
    except BaseException as error:  # Some modules end the process where they cannot be imported.
        return f"{type(error).__name__}: {error}"
    return ""


@contextlib.contextmanager
def _noted_variables() -> Iterator[tuple[set[str], set[str]]]:
    """Notes the names of the variables that are read in the block, and of those that are set."""
    kind, putenv = type(os.environ), os.putenv
    getitem = kind.__getitem__
    read: set[str] = set()
    put: set[str] = set()

    def noting_getitem(environ: Any, name: str) -> str:
        read.add(name)
        return getitem(environ, name)

    def noting_putenv(name: bytes, value: bytes) -> None:
        put.add(os.fsdecode(name))
        putenv(name, value)

    kind.__getitem__, os.putenv = noting_getitem, noting_putenv  # type: ignore[method-assign, assignment]
    try:
        yield read, put
    finally:
        kind.__getitem__, os.putenv = getitem, putenv  # type: ignore[method-assign]


def _receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Returns the next request and its two pipes; ends this process if the agent is gone."""
    data, pipes, _, _ = socket.recv_fds(connection, _LONGEST_READ, 2)
    while not data.endswith(b"\n"):
        more = connection.recv(_LONGEST_READ)
        if not more:
            os._exit(0)
        data += more
    return json.loads(data), pipes


def _take_place(request: Mapping[str, Any], pipes: list[int], standby: int) -> None:
    """Makes this forked process the worker of the request."""
    os.setsid()
    _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != standby:
        os._exit(1)
    if request["cores"] is not None:
        os.sched_setaffinity(0, request["cores"])
    for number, pipe in zip((1, 2), pipes, strict=True):
        os.dup2(pipe, number)
        os.close(pipe)
    os.environ.clear()
    os.environ.update(request["environment"])
    # Python's own generator has a new seed after a fork, NumPy's has not.
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()


def _rename(name: str) -> str:
    """Gives this process another name in the list of processes; returns the one before."""
    with open("/proc/self/comm", "r+") as file:
        before = file.read().rstrip("\n")
        file.seek(0)
        file.write(name)
    return before


if __name__ == "sitecustomize":
    # An exception that reached `site` would be printed there, and the program run.
    try:
        main()
    except BaseException:
        with contextlib.suppress(BaseException):
            traceback.print_exc()
            sys.stderr.flush()
        os._exit(1)
    # In a forked worker. The program's own one, if there is one; `site` knows what to do if there
    # is none.
    importlib.invalidate_caches()
    del sys.modules["sitecustomize"]
    import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
