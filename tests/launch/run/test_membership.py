"""The hosts and instances with which a run goes on after a failure."""

from collections.abc import Callable

import pytest

from tfdist.launch.failures.failure import Failure
from tfdist.launch.options.run_command_line import parse_run_options
from tfdist.launch.options.run_options import RunOptions
from tfdist.launch.run.membership import instances_by_host, smaller_run


def options(words: str) -> RunOptions:
    return parse_run_options([*words.split(), "--max-restarts", "3", "cat"])


Failed = Callable[..., Failure]
THREE_HOSTS = "--host a,b,c --num-instances 4 --num-replicas 8 --min-instances 2"


@pytest.mark.parametrize(
    ("lost", "left"),
    [
        ({"c"}, {"a": 2, "b": 1}),
        ({"a"}, {"b": 1, "c": 1}),  # Another host has worker 0 now.
        ({"a", "b"}, None),
        (set(), {"a": 2, "b": 1, "c": 1}),
    ],
)
def test_lost_hosts_are_left_out(
    failed: Failed, lost: set[str], left: dict[str, int] | None
) -> None:
    failure = failed(index=2, kind="silent")
    smaller = smaller_run(options(THREE_HOSTS), failure, None, lost)
    assert (None if smaller is None else instances_by_host(smaller)) == left
    assert smaller is None or smaller.num_replicas == 2 * smaller.num_instances


def test_a_worker_that_fails_twice_in_a_row_is_left_out_and_no_other(failed: Failed) -> None:
    failures = [failed(index=index) for index in range(4)]
    here = options("--num-instances 3 --min-instances 2")
    assert smaller_run(here, failures[1], None, ()) == here
    assert smaller_run(here, failures[1], failures[0], ()) == here
    smaller = smaller_run(here, failures[1], failures[1], ())
    assert smaller is not None
    assert (smaller.num_instances, smaller.hosts) == (2, here.hosts)
    assert smaller_run(smaller, failures[1], failures[1], ()) is None
    there = smaller_run(options(THREE_HOSTS), failures[3], failures[3], ())
    assert there is not None
    assert instances_by_host(there) == {"a": 1, "b": 1, "c": 1}


def test_an_evaluator_that_fails_twice_leaves_out_no_instance(failed: Failed) -> None:
    failure = failed(index=3)
    run = options("--num-instances 3 --min-instances 2 --evaluator")
    assert smaller_run(run, failure, failure, ()) == run
