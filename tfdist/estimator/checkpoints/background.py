"""Saves beside the training: a step waits for a copy of the values, and a thread writes the files.

    training          step 100 | copy of the values | step 101   step 102   step 103 ...
    thread "save"                                   | write, fsync, rename, prune |

    the graph         is written after the first step, in the same thread
    the next save     waits until the last one is written
    the next step     raises the error of a failed write, which ends the training
    the end           waits until the files are there: the training's, an error's, SIGTERM's

The copy is what the ops of the saver would have written: all inputs of its `SaveV2` ops, in memory
that is kept until the end of the training (`value_copies.py`). The same ops, in a small
graph and session of their own, write it. So the names, the slices and the bytes of the files are
those of a save in the foreground.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.estimator.checkpoints.value_copies import PIECE_BYTES, ValueCopies
from tfdist.process.memory import total_and_free_bytes
from tfdist.strategies.saving.background_writes import BackgroundWrites

# The ops by which TensorFlow's savers write values in the format of TensorFlow 2.
_OPS_OF_SAVERS = frozenset(
    ("Const", "Identity", "MergeV2Checkpoints", "NoOp", "Pack", "PlaceholderWithDefault",
     "RegexFullMatch", "SaveV2", "Select", "SelectV2", "ShardedFilename", "StaticRegexFullMatch",
     "StringJoin")
)  # fmt: skip
_NUM_OTHER_INPUTS = 3  # of SaveV2, before the values: file, names, slices


class BackgroundSaves(BackgroundWrites, v1.train.SessionRunHook):  # type: ignore[misc]
    """The thread that writes checkpoints, and the memory of the copied values.

    A hook, so that a failed write ends the training before the next step; and a context, which
    waits for the write at its end, also after an error.
    """

    _has_reported = False
    _copies: ValueCopies | None = None
    _after_step: tuple[str, Callable[[], Any]] | None = None

    def start_after_step(self, what: str, write: Callable[[], Any]) -> None:
        """Calls `write` in the thread after a step, once the write before it has ended.

        Python runs one thread at a time: a long `write` in Python would hold up the first step. The
        arguments are as in `start`.
        """
        self._after_step = what, write

    def before_run(self, run_context: v1.train.SessionRunContext) -> None:
        self.raise_error()

    def after_run(
        self, run_context: v1.train.SessionRunContext, run_values: v1.train.SessionRunValues
    ) -> None:
        if self._after_step is not None and not (self._thread and self._thread.is_alive()):
            self._start_waiting()

    def _start_waiting(self) -> None:
        self.wait()
        if self._after_step is not None:
            (what, write), self._after_step = self._after_step, None
            self.start(what, write)

    def can_take(self, ops: SaverOps) -> bool:
        """Returns whether values can be copied and written beside the training; else says why."""
        needed = self.new_bytes_for(ops)
        _, free = total_and_free_bytes()
        why_not = "" if ops.are_known else "its saver has ops of its own"
        if needed > free:
            why_not = (
                f"a copy of its values needs {needed:,} bytes of memory, where {free:,} are free"
            )
        if why_not and not self._has_reported:
            v1.logging.warning("Steps wait until a checkpoint is written: %s.", why_not)
            self._has_reported = True
        return not why_not

    def copy(self, session: v1.Session, ops: SaverOps) -> list[Any]:
        """Returns the values for a write; the write before it must have ended."""
        if self._copies is None or not self._copies.fits(ops.num_bytes):
            self._copies = None  # Freed first.
            self._copies = ValueCopies(ops.num_bytes)
        return self._copies.update(session.run, ops.values)

    def new_bytes_for(self, ops: SaverOps) -> int:
        """Returns the memory that the next copy needs beyond the last copy's."""
        piece = max([PIECE_BYTES, *ops.num_bytes])
        has_memory = self._copies is not None and self._copies.fits(ops.num_bytes)
        return min(piece, sum(ops.num_bytes)) + (0 if has_memory else sum(ops.num_bytes))

    def __enter__(self) -> BackgroundSaves:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        try:
            if error is None:
                self._start_waiting()
            self.wait()
        except Exception as of_write:
            if error is None:
                raise
            if of_write is not error:
                v1.logging.error("The %s could not be written: %s", self._what, of_write)
        finally:
            self._copies = self._after_step = None


class WaitingListener(v1.train.CheckpointSaverListener):  # type: ignore[misc]
    """A listener that calls `wait_for_files` before it reads files in `after_save`.

    For another one that has an `after_save`, a training writes its checkpoints in the foreground.

    Attributes:
      wait_for_files: Returns when the checkpoint is written. Set by a training with such saves.
    """

    wait_for_files: Callable[[], None] = staticmethod(lambda: None)


def reads_files(listener: v1.train.CheckpointSaverListener) -> bool:
    """Returns whether a listener may expect the files of a checkpoint in its `after_save`."""
    after_save = getattr(type(listener), "after_save", None)  # A stand-in has it as a value.
    return after_save is not v1.train.CheckpointSaverListener.after_save and not isinstance(
        listener, WaitingListener
    )


class SaverOps:
    """The ops by which a built saver of a graph writes files, for a graph of their own.

    Attributes:
      values: The tensors of the saver's graph that are written.
      num_bytes: The size of each; 0 if its shape is unknown.
      are_known: Whether the ops write nothing but values that can be fetched.
    """

    def __init__(self, saver: v1.train.Saver, graph: tf.Graph) -> None:
        self.values: list[tf.Tensor] = []
        self._nodes: list[Any] = []
        save = graph.as_graph_element(saver.saver_def.save_tensor_name).op
        found, waiting, types = {save}, [save], set()
        while waiting:
            op = waiting.pop()
            types.add(op.type)
            if op.type not in _OPS_OF_SAVERS:
                break
            self._nodes.append(self._copied(op))
            inputs = op.inputs[:_NUM_OTHER_INPUTS] if op.type == "SaveV2" else op.inputs
            before = {*(tensor.op for tensor in inputs), *op.control_inputs}
            waiting += before - found
            found |= before
        dtypes = [value.dtype.base_dtype for value in self.values]
        is_whole = types <= _OPS_OF_SAVERS and "SaveV2" in types
        self.are_known = is_whole and not {tf.resource, tf.variant} & set(dtypes)
        self.num_bytes = [
            (value.shape.num_elements() or 0) * (0 if dtype == tf.string else dtype.size)
            for value, dtype in zip(self.values, dtypes, strict=True)
        ]

    @cached_property
    def graph(self) -> tf.Graph:
        """A graph with the ops, and a placeholder for each value."""
        nodes = [*self._nodes, *map(_placeholder, range(len(self.values)), self.values)]
        graph = tf.Graph()
        with graph.as_default():
            tf.import_graph_def(v1.GraphDef(node=nodes), name="")
        return graph

    def _copied(self, op: tf.Operation) -> Any:
        """Returns an op's node, without a device, and with fed values in a `SaveV2`."""
        node = op.node_def
        node.device = ""
        node.attr.pop("_class", None)
        if op.type == "SaveV2":
            for place, value in enumerate(op.inputs[_NUM_OTHER_INPUTS:], start=_NUM_OTHER_INPUTS):
                node.input[place] = _fed(len(self.values))
                self.values.append(value)
        return node


def save_values(
    saver: v1.train.Saver, ops: SaverOps, values: list[Any], path: str, step: Any
) -> str:
    """Writes the values of `ops.values` as `saver.save` does, and returns the checkpoint's path.

    It writes no graph and no file `checkpoint`, and does not hold up Python. `path` has no step.
    """
    fed = {f"{_fed(index)}:0": value for index, value in enumerate(values)}
    with ops.graph.as_default(), _Session(ops.graph, fed) as session:
        return str(saver.save(session, path, step, write_state=False, write_meta_graph=False))


class _Session(v1.Session):  # type: ignore[misc]
    """A session that feeds the same values in each call, for `Saver.save`.

    Its ops run in the thread of the caller. The threads of a process's sessions are shared, and a
    write would keep one of them from the training.
    """

    def __init__(self, graph: tf.Graph, values: dict[str, Any]) -> None:
        super().__init__(graph=graph, config=v1.ConfigProto(device_count={"GPU": 0}))
        self._fed_values = values

    def run(self, fetches: Any, feed_dict: Any = None) -> Any:
        options = v1.RunOptions(inter_op_thread_pool=-1)
        return super().run(fetches, {**feed_dict, **self._fed_values}, options)


def _fed(index: int) -> str:
    return f"tfdist_saved_{index}"


def _placeholder(index: int, value: tf.Tensor) -> Any:
    node = v1.NodeDef(name=_fed(index), op="Placeholder")
    node.attr["dtype"].type = value.dtype.base_dtype.as_datatype_enum
    node.attr["shape"].shape.unknown_rank = True
    return node
