"""The engines over which workers can be connected, and whether they work here."""

from tfdist.launch.mpi import horovod_problem

_ENGINES = ("grpc", "horovod", "none")


class EngineMissingError(RuntimeError):
    """What the engine of a run needs is not installed."""


def check_request(engine: str, num_workers: int | None) -> int:
    """Returns the number of workers, after checking that the engine can run them here."""
    if engine not in _ENGINES:
        raise ValueError(f"engine is {engine!r}; it must be one of {', '.join(_ENGINES)}.")
    if num_workers is None:
        num_workers = 1 if engine == "none" else 2
    if num_workers < 1:
        raise ValueError(f"num_workers is {num_workers}; it must be at least 1.")
    if engine == "none" and num_workers != 1:
        raise ValueError(
            f"num_workers is {num_workers} with engine 'none', which connects no workers. "
            "Leave it out, or choose engine 'grpc' or 'horovod'."
        )
    problem = engine_problem(engine)
    if problem is not None:
        raise EngineMissingError(problem)
    return num_workers


def engine_problem(engine: str) -> str | None:
    """Returns why runs over this engine cannot be started here, or None if they can."""
    return horovod_problem() if engine == "horovod" else None
