"""The ps tasks of a program for parameter servers: they hold no variables here, and end."""

from __future__ import annotations

import sys

from tfdist.cluster.environment import REPLACE, read_start_timeout
from tfdist.cluster.rendezvous.parameter_servers import ChiefNotice, wait_for_chief
from tfdist.cluster.tasks import Cluster, Task, TaskType
from tfdist.estimator.config.run_config import RunConfig
from tfdist.process.progress_file import in_phase

# The chief's connections, by the addresses of the ps tasks. They stay until its program ends.
_NOTICES: dict[tuple[str, ...], ChiefNotice] = {}


def end_if_server(config: RunConfig) -> None:
    """Ends a task of type ps whose variables the workers hold, as soon as the chief is done.

    In tf.estimator the same call never returned in such a task, so what comes after it in the
    program is for other tasks: the program ends here, with exit code 0.
    """
    if config.task_type != TaskType.PS or config.parameter_servers != REPLACE:
        return
    cluster = Cluster(jobs=config.cluster_spec.as_dict())
    task = Task(type=TaskType.PS, index=config.task_id)
    with in_phase("waiting"):
        wait_for_chief(cluster, task, timeout_s=read_start_timeout())
    sys.exit(0)


def notify_servers(config: RunConfig) -> None:
    """Makes the chief tell the ps tasks when it is done; other tasks do nothing."""
    addresses = config.replaced_servers
    if config.is_chief and addresses and addresses not in _NOTICES:
        cluster = Cluster(jobs=config.cluster_spec.as_dict())
        _NOTICES[addresses] = ChiefNotice(cluster, addresses)
