"""SavedModels with tables that are divided between the workers.

A SavedModel has the whole table, and looks rows up in it without messages. All workers must export
together:

    worker 0                                        worker 1
    traces the model's functions for it             so does this
    writes the values as a checkpoint, in pieces    sends its rows (`table_checkpoints`)
    writes the graph                                to a folder that is thrown away
    is done                  ------------------>    goes on
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from functools import cache
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

from tfdist.strategies.divided.variable import DividedTableError, DividedVariable
from tfdist.strategies.eager.replica_variable import tf_variable
from tfdist.strategies.eager.run import needs_all_workers
from tfdist.strategies.eager.table_checkpoints import refuse_remote
from tfdist.strategies.placement import HOST
from tfdist.strategies.private_tensorflow import announce_saved_models, objects_in
from tfdist.strategies.reductions.division import division_of

_MESSAGES = ("Collective", "Horovod")  # The beginnings of the ops' names.


@cache
def adapt_exports() -> None:
    """Makes SavedModels of TensorFlow 2 have divided tables."""
    announce_saved_models(_export)


def _export(root: Any, folder: str, write: Callable[[str], Any]) -> Any:
    tables = [tf_variable(one) for one in objects_in(root) if division_of(one) is not None]
    if not tables:
        return write(folder)
    table: DividedVariable = tables[0]
    refuse_remote(folder, table.division)
    with needs_all_workers("saving a divided table", lambda: f"the export to {folder}"):
        if table.division.worker_index == 0:
            written = write(folder)
            _check(folder, table)
        else:
            with tempfile.TemporaryDirectory() as thrown_away:
                written = write(thrown_away)
                _check(thrown_away, table)
        with tf.device(HOST):
            table.reducer.broadcast(tf.zeros([1], tf.int64), "exported")
    return written


def _check(folder: str, table: DividedVariable) -> None:
    """Refuses a SavedModel that would send messages to other workers, and removes its graph.

    TensorFlow traces each tf.function again for a SavedModel, but not a concrete function.

    Raises:
      DividedTableError: If it has a function that was traced for training.
    """
    path = os.path.join(folder, "saved_model.pb")
    with tf.io.gfile.GFile(path, "rb") as file:
        model = SavedModel.FromString(file.read())
    for graph in model.meta_graphs:
        for function in graph.graph_def.library.function:
            if any(node.op.startswith(_MESSAGES) for node in function.node_def):
                tf.io.gfile.remove(path)
                raise DividedTableError(
                    f"{function.signature.name}, which is to be exported, is the trace of a "
                    f"function: it looks rows of {table.division.name} up at "
                    f"{table.division.num_workers} workers. Give signatures the tf.function with "
                    "an input_signature in place of a concrete function."
                )
