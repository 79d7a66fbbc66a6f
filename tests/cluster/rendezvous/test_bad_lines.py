"""No line that another program sends ends a reader of the rendezvous: it is read, or refused."""

from collections.abc import Callable, Iterator

import pytest

from tfdist.cluster.rendezvous.chief import Gathering
from tfdist.cluster.rendezvous.newcomers import Unfinished
from tfdist.cluster.rendezvous.parameter_servers import _read_chief
from tfdist.cluster.rendezvous.peer_state import (
    PeerState,
    describe_wait,
    stalled_workers,
)
from tfdist.cluster.rendezvous.protocol import (
    Hello,
    Member,
    Reply,
    encode,
    ending_error,
    hello_of,
    parse_reply,
    refusal,
    waiting_line,
)
from tfdist.cluster.rendezvous.sockets import Patience
from tfdist.cluster.rendezvous.state_lines import encode_states, parse_states

Lines = Callable[..., Iterator[bytes]]

MEMBERS = [Member(name=f"worker {index}", address=f"gpu{index}:3737") for index in range(3)]
OURS = hello_of(MEMBERS, 0, process="ours")
HELLOS = [
    encode(hello_of(MEMBERS, 1, process="p")),
    encode(OURS),
    encode(Hello(index=2, sender=MEMBERS[2], process="q", digest=OURS.digest)),
    encode(Hello(index=2, sender=MEMBERS[2], process="q", digest="another")),
]


def check_shown(text: str) -> None:
    lines = text.split("\n")
    assert len(lines) <= 2 and all(line.isprintable() for line in lines), text
    assert len(text) < 8_000


def test_any_first_message_to_the_chief_or_a_ps_task(mutated_lines: Lines) -> None:
    chief = Gathering(MEMBERS, [], Patience())
    welcome = 0
    for line in mutated_lines(HELLOS):
        hello = chief._read_hello(line + b"\n")
        if isinstance(hello, Hello):
            why = refusal(hello, OURS)
            welcome += why is None and 0 <= hello.index < len(MEMBERS)
            check_shown(why or "")
        else:
            assert hello is None or isinstance(hello, Unfinished)
        hello = _read_chief(line + b"\n")
        assert hello is None or isinstance(hello, Hello | Unfinished)
    assert welcome > 200
    chief._newcomers.close()
    chief._selector.close()


def test_any_reply_to_a_worker(mutated_lines: Lines) -> None:
    replies = [
        Reply(event="wait", missing="worker 1 (a:1)", waited_s=1.5, limit_s=300.0),
        Reply(event="end", error="two\nlines", is_absence=True),
    ]
    sound = 0
    for line in mutated_lines([encode(reply) for reply in replies]):
        reply = parse_reply(line)
        if reply is not None:
            sound += 1
            check_shown(str(ending_error(reply)))
            check_shown(waiting_line(reply.missing, reply.waited_s, reply.limit_s))
    assert sound > 200


@pytest.mark.parametrize("number", ["Infinity", "-Infinity", "NaN", "1e999", "-1", '"1"', "null"])
@pytest.mark.parametrize("name", ["farewells", "since_s", "silent_s"])
def test_a_number_that_is_none_is_refused(name: str, number: str) -> None:
    line = encode_states({1: PeerState(farewells=77, since_s=77.0, silent_s=77.0)}).decode()
    value = "77" if name == "farewells" else "77.0"
    changed = line.replace(f'"{name}":{value}', f'"{name}":{number}')
    assert changed != line
    assert parse_states(changed.encode(), 4) == {}


def test_any_states_of_workers(mutated_lines: Lines) -> None:
    states = {
        0: PeerState(phase="training", waits=True, since_s=99.5, farewells=1),
        12: PeerState(failure="ValueError: no", lost="its process has ended", silent_s=20.25),
        **dict.fromkeys(range(20, 25), PeerState(phase="training", moves=True)),
    }
    own, sound = PeerState(phase="training", waits=True, since_s=100.0), 0
    members = MEMBERS * 10
    for line in mutated_lines([encode_states(states)]):
        found = parse_states(line, len(members))
        sound += found == states
        known = {index: state for index, state in found.items() if index < len(members)}
        check_shown(describe_wait(known, members, 1.0))
        stalled_workers(own, known, 30.0)
        for state in known.values():
            check_shown(state.failure + state.lost)
    assert sound > 20
