"""Tables divided between two workers, against whole tables of tfdist and of its peers."""

from __future__ import annotations

from collections.abc import Iterator

from contender import Contender, over_grpc, over_mpi, separate
from peers import HOROVOD_TAPE, IDEAL, MIRRORED_STEP
from results import Options, Part
from rounds import Race, measure_models
from tables_work import TABLES

DIVIDED = {"Horovod": "tfdist, divided, Horovod", "gRPC": "tfdist, divided, gRPC"}
WHOLE = {"Horovod": "tfdist, whole, Horovod", "gRPC": "tfdist, whole, gRPC"}
PEERS = {"Horovod": HOROVOD_TAPE, "gRPC": MIRRORED_STEP}

ABOUT = (
    "A worker and step look up 4,096 rows of 16 floats or 65,536 rows of 64, Zipf-distributed, and "
    "Adagrad updates them, in a tf.function with tf_keras. Divided, each of the two workers holds "
    "half of the rows and of their slots; whole, each holds all of them, and sparse gradients are "
    "gathered. The tenfold table has the look-ups of the first one: what a step takes must not "
    "follow the table. Ideal is two workers with a whole table each that reduce nothing. MB is the "
    "most memory that a worker had since its start. Those over Horovod take turns first, then "
    "those over gRPC, each time with the ideal: all whole tables at once need more than 24 GB."
)


def measure(options: Options) -> Part:
    """Measures one table after the other.

    Raises:
      ContenderError: If the ideal fails.
    """
    races = {
        table.title: [
            Race(
                label=f"tables, {name}",
                contenders=contenders,
                steps=table.steps_per_turn,
                needed=IDEAL,
            )
            for contenders in (over_horovod(name), over_tensorflow(name))
        ]
        for name, table in TABLES.items()
    }
    title = "Tables divided between workers"
    return measure_models(races, IDEAL, pairs, options, title=title, about=ABOUT)


def pairs(table: str) -> Iterator[tuple[str, str, str]]:
    """Yields what is compared of a table: divided with the ideal, with whole, and with a peer."""
    for engine, divided in DIVIDED.items():
        yield f"{table}, {engine}: divided over ideal", divided, IDEAL
        yield f"{table}, {engine}: divided over whole", divided, WHOLE[engine]
        peer = PEERS[engine]
        yield f"{table}, divided: times as fast as {peer}", peer, divided


def over_horovod(table: str) -> Iterator[Contender]:
    """Yields the ideal and those over Horovod; each is started before the next."""
    yield separate(IDEAL, "tables.py", table, "none")
    yield over_mpi(DIVIDED["Horovod"], "tables.py", table, "0", "divided-horovod")
    yield over_mpi(WHOLE["Horovod"], "tables.py", table, "0", "horovod")
    yield over_mpi(HOROVOD_TAPE, "tables.py", table, "0", "tape")


def over_tensorflow(table: str) -> Iterator[Contender]:
    """Yields the ideal and those over gRPC; see `over_horovod`."""
    yield separate(IDEAL, "tables.py", table, "none")
    yield over_grpc(DIVIDED["gRPC"], "tables.py", table, "divided-grpc")
    yield over_grpc(WHOLE["gRPC"], "tables.py", table, "grpc")
    yield over_grpc(MIRRORED_STEP, "tables.py", table, "mirrored")
