"""Pytest plugin: lines that are nearly those of a protocol, for the readers of sockets."""

import random
import re
from collections.abc import Callable, Iterator, Sequence

import pytest

COUNT = 20_000  # for each of the readers, about 100,000 in all
_SPECIAL = (
    *(b"Infinity", b"-Infinity", b"NaN", b"1e999", b"-1", b"0.5", b"9" * 30, b"9" * 5000),
    *(b"null", b"true", b"{}", b"[]", b'""', b"[" * 50, b'"\\ud800"', b'"\\u001b[2J"', b'"\xff"'),
    *(b"\x00", b"\xff\xfe", b"\r", b" ", b"'", b"-0", b'"0"', b"[[1]]", b'{"a": 1}'),
)
_PIECES = re.compile(rb'("(?:[^"\\]|\\.)*"|[\[\]{}:,]|[^\[\]{}:,"]+)')


def _of_bytes(line: bytearray, dice: random.Random) -> bytes:
    """Changes, removes, repeats or inserts some bytes."""
    for _ in range(dice.randint(1, 3)):
        place = dice.randrange(len(line) + 1)
        kind = dice.randrange(4)
        if kind == 0:
            line[place : place + 1] = bytes([dice.randrange(256)])
        elif kind == 1:
            del line[place : place + dice.randint(1, 20)]
        elif kind == 2:
            line[place:place] = line[place : place + dice.randint(1, 20)]
        else:
            line[place:place] = dice.choice(_SPECIAL)
    return bytes(line)


def _of_pieces(pieces: list[bytes], dice: random.Random) -> bytes:
    """Replaces some of a line's values, names and brackets by others."""
    pieces = list(pieces)
    for _ in range(dice.randint(1, 2)):
        place = dice.randrange(len(pieces))
        other = dice.choice(pieces) if dice.random() < 0.3 else dice.choice(_SPECIAL)
        pieces[place] = other
    return b"".join(pieces)


def mutated_lines(examples: Sequence[bytes], count: int = COUNT) -> Iterator[bytes]:
    """Yields so many lines, without their ends: most are nearly examples, some are random bytes."""
    dice = random.Random(1)
    lines = [example.rstrip(b"\n") for example in examples]
    pieces = [_PIECES.findall(line) for line in lines]
    for number in range(count):
        chosen = number % len(lines)
        kind = dice.random()
        if kind < 0.7:
            yield _of_pieces(pieces[chosen], dice)
        elif kind < 0.95:
            yield _of_bytes(bytearray(lines[chosen]), dice)
        else:
            yield dice.randbytes(dice.randrange(200))


@pytest.fixture(name="mutated_lines", scope="session")
def mutated_lines_fixture() -> Callable[..., Iterator[bytes]]:
    """`mutated_lines`."""
    return mutated_lines
