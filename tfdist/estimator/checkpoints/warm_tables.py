"""Warm starts of tables that are divided between workers: each reads its own rows.

TensorFlow's warm start reads whole variables, so it gets the others alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.strategies.divided import pieces
from tfdist.strategies.divided.variable import DividedTableError, DividedVariable
from tfdist.strategies.private_tensorflow import replace_input

_COLLECTIONS = (v1.GraphKeys.TRAINABLE_VARIABLES, v1.GraphKeys.GLOBAL_VARIABLES)


def chosen_tables(vars_to_warm_start: Any) -> dict[str, DividedVariable]:
    """Returns the divided tables and slots that a warm start chooses, by name in checkpoints.

    Args:
      vars_to_warm_start: As in `WarmStartSettings`; TensorFlow refuses other values.
    """
    trainable, everything = _COLLECTIONS
    graph = v1.get_default_graph()
    chosen: Sequence[Any] = ()
    if isinstance(vars_to_warm_start, str):
        chosen = graph.get_collection(trainable, vars_to_warm_start)
    elif isinstance(vars_to_warm_start, (list, tuple)):
        found = [
            graph.get_collection(everything, one) if isinstance(one, str) else [one]
            for one in vars_to_warm_start
        ]
        chosen = [variable for of_one in found for variable in of_one]
    return {one.name_in_checkpoint: one for one in chosen if isinstance(one, DividedVariable)}


@contextmanager
def hidden_tables() -> Iterator[None]:
    """Takes the divided tables out of the graph's collections of variables in the `with` block."""
    graph = v1.get_default_graph()
    tables = pieces.divided_in(graph)
    before = {name: graph.get_collection_ref(name)[:] for name in _COLLECTIONS}
    for name in _COLLECTIONS:
        others = [one for one in before[name] if not any(one is table for table in tables)]
        graph.get_collection_ref(name)[:] = others
    try:
        yield
    finally:
        for name in _COLLECTIONS:
            graph.get_collection_ref(name)[:] = before[name]


def refuse_vocabularies(names: Sequence[str]) -> None:
    """Raises an error if a divided table's rows would move to those of another vocabulary."""
    for variable in pieces.divided_in(v1.get_default_graph()):
        if variable.name_in_checkpoint in names:
            raise DividedTableError(
                f"{variable.division.name} is divided between {variable.division.num_workers} "
                "workers, and a warm start with a vocabulary moves rows between them. Warm-start "
                "with one worker: any number of workers goes on from its checkpoint."
            )


def start_tables(
    tables: Mapping[str, DividedVariable], checkpoint: str, renamed: Mapping[str, str]
) -> None:
    """Makes tables begin at this worker's rows of a checkpoint.

    Args:
      tables: The tables, by name in checkpoints.
      checkpoint: The checkpoint's path.
      renamed: Names in the checkpoint that differ, by the table's name.

    Raises:
      ValueError: If the checkpoint has no such table, or one of another shape.
    """
    if not tables:
        return
    shapes = tf.train.load_checkpoint(checkpoint).get_variable_to_shape_map()
    for name, table in tables.items():
        source, whole = renamed.get(name, name), [*table.division.shape]
        if source not in shapes:
            raise ValueError(f"Tensor {source} is not found in {checkpoint} checkpoint {shapes}")
        if shapes[source] != whole:
            raise ValueError(
                f"Shape of variable {name} ({whole}) doesn't match with shape of tensor {source} "
                f"({shapes[source]}) from checkpoint reader."
            )
        with tf.device(table.device):
            (rows,) = tf.raw_ops.RestoreV2(
                prefix=checkpoint,
                tensor_names=[source],
                shape_and_slices=[table.division.slice_info(name).spec],
                dtypes=[table.dtype],
            )
        initializer = table.initializer
        replace_input(initializer, initializer.inputs[1], rows)
    v1.logging.info("Warm-started the rows of %d divided tables.", len(tables))
