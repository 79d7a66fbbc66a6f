"""The options of a run that goes on with other hosts and instances."""

from tfdist.launch.options.run_command_line import parse_run_options
from tfdist.launch.options.run_options import RunOptions
from tfdist.launch.run.membership import instances_by_host, resized


def options(words: str) -> RunOptions:
    return parse_run_options([*words.split(), "--max-restarts", "3", "cat"])


def test_a_smaller_run_keeps_its_replicas_for_each_instance_and_its_hosts() -> None:
    there = options("--host a,b,c --num-instances 4 --num-replicas 8 --min-instances 2")
    smaller = resized(there, {"a": 2, "c": 1})
    assert smaller is not None
    assert (smaller.num_instances, smaller.num_replicas) == (3, 6)
    assert instances_by_host(smaller) == {"a": 2, "c": 1}
    assert resized(there, {"a": 1}) is None
    here = options("--num-instances 3 --min-instances 2")
    smaller = resized(here, {here.hosts[0].name: 2})
    assert smaller is not None
    assert (smaller.num_instances, smaller.hosts) == (2, here.hosts)
