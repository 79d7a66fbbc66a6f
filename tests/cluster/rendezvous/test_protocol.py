"""Messages of workers before the start read back, strangers' bytes do not; refusals name all."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

import tfdist
from tfdist.cluster import Cluster
from tfdist.cluster.rendezvous.protocol import (
    VERSION,
    Hello,
    Member,
    Reply,
    encode,
    ending_error,
    hello_of,
    members_of,
    missing_error,
    name_missing,
    parse_hello,
    parse_reply,
    refusal,
    waiting_line,
)


def members(count: int) -> tuple[Member, ...]:
    return tuple(Member(name=f"worker {i}", address=f"gpu{i}:3737") for i in range(count))


def hello(
    count: int = 2, *, index: int = 1, listed: Sequence[Member] | None = None, **facts: Any
) -> Hello:
    """Returns the hello of a worker among so many, or among those listed."""
    return replace(hello_of(members(count) if listed is None else listed, index, "p"), **facts)


def refused(by: Hello, count: int = 2) -> str:
    """Returns why a run of so many workers cannot start with this one."""
    message = refusal(by, hello(count, index=0))
    assert message is not None
    return message


def test_a_hello_and_a_reply_read_back_equal_and_a_hello_of_the_same_cluster_is_welcome() -> None:
    said = hello(3, index=2)
    assert parse_hello(encode(said)) == said
    assert refusal(said, hello(3, index=0)) is None
    for reply in (
        Reply(event="wait", missing="worker 1 (a:1)", waited_s=1.5, limit_s=300.0),
        Reply(event="go"),
        Reply(event="end", error="two\nlines"),
    ):
        assert parse_reply(encode(reply)) == reply
        assert encode(reply).count(b"\n") == 1


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"GET / HTTP/1.1\r",
        b"\x16\x03\x01\xff\xfe",
        b"{}",
        b"[]",
        b"null",
        b'{"protocol": "tfdist-rendezvous"}',
        b'{"protocol": "tfdist-rendezvous", "version": 1, "members": [], "index": 0}',
        b'{"protocol": "tfdist-rendezvous", "version": 1, "members": [1], "index": 0}',
        b'{"protocol": "tfdist-rendezvous", "version": 1, "members": 1, "index": Infinity}',
        encode(hello()).replace(b"tfdist", b"other"),
        encode(hello()).replace(f'"version": {VERSION}'.encode(), b'"version": ' + b"9" * 4000),
        b"[" * 100_000,
    ],
)
def test_strangers_bytes_are_recognised(line: bytes) -> None:
    assert parse_hello(line) is None
    assert parse_reply(line) is None


def test_members_are_the_training_workers_with_the_chief_first() -> None:
    jobs = {"worker": ("b:1",), "ps": ("c:1",), "chief": ("a:1",), "evaluator": ("d:1",)}
    assert [str(member) for member in members_of(Cluster(jobs=jobs))] == [
        "chief (a:1)",
        "worker 0 (b:1)",
    ]


def test_another_cluster_is_refused_with_both_lists() -> None:
    assert refused(hello(3)) == (
        "worker 1 was started with another cluster: it lists [gpu0:3737, gpu1:3737, gpu2:3737], "
        "worker 0 lists [gpu0:3737, gpu1:3737].\nGive all workers the same TF_CONFIG cluster."
    )


def test_long_lists_are_shown_where_they_differ() -> None:
    other = (*members(7), Member(name="worker 7", address="cpu7:3737"))
    message = refused(hello(listed=other), 8)
    assert "it lists 8 workers, among them worker 7 (cpu7:3737)" in message
    assert "worker 0 lists 8 workers, among them worker 7 (gpu7:3737)" in message
    shorter = refused(hello(7), 8)
    assert "lists 7 workers, worker 0 lists 8 workers, among them worker 7" in shorter


EVIL = "\x1b[2J\x1b]0;owned\x07\u202e\r\nroot: all is well\n" + "x" * 100_000


def check_printable(message: str, most_lines: int) -> None:
    lines = message.split("\n")
    assert len(lines) <= most_lines
    assert all(line.isprintable() for line in lines), message
    assert len(message) < 8_000


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("version", [VERSION, 9])
def test_a_strangers_hello_is_shown_without_its_escape_codes(count: int, version: int) -> None:
    theirs = (Member(name=EVIL, address=EVIL),) * count
    said = hello(listed=theirs, index=0, process=EVIL, version=version)
    found = parse_hello(encode(said))
    assert found is not None
    message = refused(found)
    assert r"\x1b[2J" in message
    check_printable(message, most_lines=2)


def test_a_strangers_reply_is_shown_without_its_escape_codes() -> None:
    reply = Reply(event="wait", missing=EVIL, error=EVIL, waited_s=1e308, limit_s=-1e308)
    found = parse_reply(encode(reply))
    assert found is not None
    check_printable(waiting_line(found.missing, found.waited_s, found.limit_s), most_lines=1)
    check_printable(missing_error(found.missing, found.limit_s), most_lines=2)
    check_printable(str(ending_error(found)), most_lines=2)


def test_other_versions_of_the_packages_are_refused() -> None:
    message = refused(hello(installed="tfdist 0.0.1 with TensorFlow 2.16"))
    assert message.startswith(
        "worker 1 (gpu1:3737) has tfdist 0.0.1 with TensorFlow 2.16, worker 0 (gpu0:3737) has "
        f"tfdist {tfdist.__version__} with TensorFlow 2."
    )
    assert message.endswith("\nInstall the same versions for all workers.")


@pytest.mark.parametrize("version", [1, 9])
def test_a_protocol_of_another_version_is_understood_and_refused(version: int) -> None:
    words = json.loads(encode(hello(version=version)))
    if version == 1:
        del words["installed"], words["sender"], words["digest"]
    found = parse_hello(json.dumps(words).encode())
    assert found is not None
    message = refused(found)
    assert "worker 1 (gpu1:3737) has another version of tfdist" in message
    assert f"it speaks version {version}" in message


def test_missing_workers_are_named_and_many_are_counted() -> None:
    names = [f"worker {index} (gpu{index}:3737)" for index in range(4)]
    assert [name_missing(members(count)) for count in range(4)] == [
        "",
        names[0],
        f"{names[0]} and {names[1]}",
        f"{names[0]}, {names[1]} and {names[2]}",
    ]
    assert name_missing(members(100)) == f"{', '.join(names)} and 96 more"


def test_waiting_is_told_with_its_limit() -> None:
    line = waiting_line("worker 2 (a:1)", 10.04, 300)
    assert line == "Waiting for worker 2 (a:1), 10 s of 300 s ..."
    line = waiting_line("worker 0 (a:1)", 0.52, 2.5, "no answer")
    assert line == "Waiting for worker 0 (a:1): no answer, 0.5 s of 2.5 s ..."


def test_giving_up_names_who_is_missing_and_the_mend() -> None:
    message = missing_error("worker 2 (a:1)", 300, "nothing listens there")
    assert message.startswith(
        "worker 2 (a:1) did not come within 300 s (nothing listens there).\nStart every worker"
    )
    assert "TFDIST_START_TIMEOUT_S" in message
