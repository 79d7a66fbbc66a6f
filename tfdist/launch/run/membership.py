"""The hosts and instances with which a run goes on after a failure, with --min-instances."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace

from tfdist.launch.failures.failure import Failure
from tfdist.launch.options.hosts import Host, place_instances
from tfdist.launch.options.run_options import RunOptions


def instances_by_host(options: RunOptions) -> dict[str, int]:
    """Returns how many instances each host of a run has."""
    return dict(Counter(one.name for one in place_instances(options.hosts, options.num_instances)))


def smaller_run(
    options: RunOptions, failure: Failure, earlier: Failure | None, lost: Collection[str]
) -> RunOptions | None:
    """Returns the options with which the run goes on after a failure; None if too few are left.

    Hosts that do not answer are `lost`, and left out; so is an instance on the host of a worker
    that failed twice in a row. `earlier` is the failure of the start before; None if that had other
    instances.
    """
    left = {host: number for host, number in instances_by_host(options).items() if host not in lost}
    if not lost and earlier is not None and earlier.index == failure.index:
        places = place_instances(options.hosts, options.num_instances)
        if failure.index < len(places):  # An evaluator is no instance.
            left[places[failure.index].name] -= 1
    return resized(options, left)


def resized(options: RunOptions, instances: Mapping[str, int]) -> RunOptions | None:
    """Returns options for these instances on each host; None if they are too few."""
    number = sum(instances.values())
    if number < max(1, options.min_instances or options.num_instances):
        return None
    hosts = tuple(Host(name=name, slots=slots) for name, slots in instances.items() if slots)
    return replace(
        options,
        hosts=options.hosts if options.is_on_this_machine else hosts,
        num_instances=number,
        num_replicas=number * options.replicas_per_instance,
        instance_mpi_local_args={
            index: words
            for index, words in options.instance_mpi_local_args.items()
            if index < number
        },
    )
