"""The options of a run that goes on with other hosts and instances, with --min-instances."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from tfdist.launch.options.hosts import Host, place_instances
from tfdist.launch.options.run_options import RunOptions


def instances_by_host(options: RunOptions) -> dict[str, int]:
    """Returns how many instances each host of a run has."""
    return dict(
        Counter(instance.name for instance in place_instances(options.hosts, options.num_instances))
    )


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
