"""Lists of hosts and hostfiles are read as poprun and Open MPI read them."""

from pathlib import Path

import pytest

from tfdist.launch.options.hosts import (
    is_this_machine,
    parse_host_list,
    place_instances,
    read_hostfile,
)


def described(text: str) -> list[tuple[str, int | None]]:
    return [(host.name, host.slots) for host in parse_host_list(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a,b", [("a", None), ("b", None)]),
        ("n[0-2,4]", [("n0", None), ("n1", None), ("n2", None), ("n4", None)]),
        ("n[08-10]-ib:2", [("n08-ib", 2), ("n09-ib", 2), ("n10-ib", 2)]),
        ("a:2, b.example.org:4", [("a", 2), ("b.example.org", 4)]),
        ("10.0.0.1,10.0.0.2", [("10.0.0.1", None), ("10.0.0.2", None)]),
        ("[fe80::1]:2,[fe80::2]:3", [("fe80::1", 2), ("fe80::2", 3)]),
        ("[fe80::1]", [("fe80::1", None)]),
        ("r[1-2]n[1-2]", [("r1n1", None), ("r1n2", None), ("r2n1", None), ("r2n2", None)]),
    ],
)
def test_lists_of_hosts(text: str, expected: list[tuple[str, int | None]]) -> None:
    assert described(text) == expected


def test_a_hostfile_has_a_host_a_line_with_comments(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("# the cluster\na slots=2  # left\n\nb slots=1\nn[0-1]:3\n")
    found = [(host.name, host.slots) for host in read_hostfile(str(file))]
    assert found == [("a", 2), ("b", 1), ("n0", 3), ("n1", 3)]


@pytest.mark.parametrize(
    ("text", "num_instances", "expected"),
    [
        ("a,b", 5, "a b a b a"),
        ("a,b,c", 2, "a b"),
        ("a:2,b:3", 4, "a a b b"),  # One host after another is filled.
        ("n[0-9999]:99999", 2, "n0 n0"),
        ("n[0-299]r[0-9]", 3, "n0r0 n0r1 n0r2"),
    ],
)
def test_instances_are_dealt_out_to_hosts_in_turn_or_fill_their_slots(
    text: str, num_instances: int, expected: str
) -> None:
    placed = place_instances(parse_host_list(text), num_instances)
    assert [host.name for host in placed] == expected.split()


def test_only_a_single_loopback_host_is_this_machine() -> None:
    assert is_this_machine(parse_host_list("localhost:4"))
    assert is_this_machine(parse_host_list("127.0.0.1"))
    assert not is_this_machine(parse_host_list("gpu1"))
    assert not is_this_machine(parse_host_list("a,b"))
