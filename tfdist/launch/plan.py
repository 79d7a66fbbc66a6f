"""The plan of a run: which worker is where, what it runs, and in which environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tfdist.launch.shares import Share


@dataclass(frozen=True, kw_only=True)
class Host:
    """A machine of the run.

    Attributes:
      name: As the user wrote it; "localhost" for this machine.
      slots: How many instances it takes; None if the user did not say.
    """

    name: str
    slots: int | None = None


@dataclass(frozen=True, kw_only=True)
class WorkerPlan:
    """One process of the run.

    Attributes:
      index: Its number in the run: instances first, in order, then the evaluator if there is one.
      name: What messages call it: "worker 0", "evaluator".
      host: Where it runs.
      replicas: The indices of the model's copies in it; none for the evaluator.
      devices_per_replica: Devices of each copy.
      cores: The processor cores that it is bound to; None binds it to none, or its host is another
        one, where its agent finds them.
      share: Its part of its host, if that is another one; None on this machine, where the plan has
        it in `cores` and `environment`.
      command: What it runs.
      environment: The variables that are set for it, on top of the inherited ones.
      log_path: Where all that it prints is kept.
    """

    index: int
    name: str
    host: str
    replicas: range
    devices_per_replica: int
    cores: tuple[int, ...] | None
    command: tuple[str, ...]
    environment: Mapping[str, str]
    log_path: Path
    share: Share | None = None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All processes of the run.

    Attributes:
      engine: "grpc" or "horovod".
      hosts: The machines, in order.
      workers: The processes, in order of their index.
      num_ilds: The original's link domains: a row in the topology table, nothing else.
    """

    engine: str
    hosts: tuple[Host, ...]
    workers: tuple[WorkerPlan, ...]
    num_ilds: int | None = None
