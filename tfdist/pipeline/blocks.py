"""Blocks: the parts of a model that are kept together on one device.

A block gets its name in the code of the forward pass. The blocks of each stage and its device are
set in the options, so that a model can be cut differently without changing its code.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from contextlib import ContextDecorator, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.pipeline.stage_plan import FoundBlock
from tfdist.pipeline.stages import check_device
from tfdist.strategies.private_tensorflow import nested_layers

LayerT = TypeVar("LayerT")

_WRAPPED = ("build", "call")


class Block(ContextDecorator):
    """A named part of the forward pass: `with Block("B1"): ...` or `@Block("B1")`.

    Blocks with the same name are one block. A block inside another one has no effect. While no
    pipelined model is built, a block has no effect either.

    Args:
      name: The block's name; by default "block_1", "block_2", ... in the order of the forward pass.
      device: The index of the block's device. It is used by `AutoStage`, and for a stage that names
        no device.

    Raises:
      TypeError: If the name is not a string, or the device is not an integer.
      ValueError: If the device is below 0. While a model is built, also if the block has named
        another device before, or is inside a tf.function, a loop or a condition.
    """

    def __init__(self, name: str | None = None, device: int | None = None) -> None:
        if name is not None and not isinstance(name, str):
            raise TypeError(
                f'a block is named by a string, got {name!r}. Write Block("B1"); for a layer, '
                'begin_block(layer, "B1").'
            )
        if device is not None:
            check_device("a block", device, "device=0")
        self.name = name
        self.device = device

    def __enter__(self) -> Block:
        record = _recording.get()
        if record is not None:
            record.open_block(self.name, self.device)
        return self

    def __exit__(self, *_: object) -> None:
        record = _recording.get()
        if record is not None:
            record.close_block()

    def _recreate_cm(self) -> Block:
        return Block(self.name, self.device)  # A new one for each call of a function.


def begin_block(layer: LayerT, name: str, device: int | None = None) -> LayerT:
    """Makes a block begin at the call of a layer; it ends where the next such block begins.

    This is for models without a forward pass in which to write a `Block`, such as a Keras
    Sequential. Code inside a `Block` stays in that block.

    Args:
      layer: A layer of tf_keras or Keras 3. It is changed in place.
      name: The block's name.
      device: As for `Block`.

    Returns:
      The layer.

    Raises:
      TypeError: If `layer` is not a layer.
      ValueError: If a block already begins at this layer.
    """
    Block(name, device)
    if not all(callable(getattr(layer, method, None)) for method in _WRAPPED):
        raise TypeError(
            f"begin_block takes a Keras layer, got {layer!r}. Elsewhere write "
            f'`with Block("{name}"):` in the forward pass.'
        )
    if getattr(layer.call, "tfdist_block", None) is not None:  # type: ignore[attr-defined]
        raise ValueError(
            f"block {layer.call.tfdist_block!r} begins at layer "  # type: ignore[attr-defined]
            f"{getattr(layer, 'name', layer)!r} already. Call remove_blocks(layer) first."
        )
    for method in _WRAPPED:
        setattr(layer, method, _beginning(getattr(layer, method), name, device))
    return layer


def remove_blocks(model: Any) -> None:
    """Reverts every `begin_block` of the layers of a Keras `model`, which may be a layer."""
    layers = [model, *nested_layers(model)]
    for layer, method in itertools.product(layers, _WRAPPED):
        own = vars(layer).get(method)
        if getattr(own, "tfdist_block", None) is not None:
            setattr(layer, method, own.__wrapped__)


def _beginning(method: Callable[..., Any], name: str, device: int | None) -> Callable[..., Any]:
    @functools.wraps(method)
    def begin(*args: Any, **kwargs: Any) -> Any:
        record = _recording.get()
        if record is not None:
            record.begin(name, device)
        return method(*args, **kwargs)

    begin.tfdist_block = name  # type: ignore[attr-defined]
    return begin


@dataclass
class BlockRecord:
    """A record of the blocks that a forward pass enters while it is traced into a graph."""

    graph: tf.Graph  # The graph that is being built.
    # The blocks in the order in which they were first entered.
    found: list[FoundBlock] = field(default_factory=list)
    # The error with which tfdist ended the trace; None if there is none.
    refusal: Exception | None = None
    _marks: list[tuple[int, str | None]] = field(default_factory=list)
    _open: list[str] = field(default_factory=list)
    _current: str | None = None
    _unnamed: int = 0

    def restart(self, graph: tf.Graph) -> None:
        """Clears the record: the forward pass is traced again, into another graph."""
        self.__init__(graph)  # type: ignore[misc]

    @contextmanager
    def noting_refusals(self) -> Iterator[None]:
        """Keeps a TypeError or ValueError that is raised inside as `refusal`."""
        try:
            yield
        except (TypeError, ValueError) as error:
            self.refusal = error.with_traceback(None)
            raise

    @property
    def current(self) -> FoundBlock | None:
        """The block in which the forward pass is now; None outside all blocks."""
        name = self._open[0] if self._open else self._current
        return next((block for block in self.found if block.name == name), None)

    def open_block(self, name: str | None, device: int | None) -> None:
        """Records that a `Block` has been entered."""
        with self.noting_refusals():
            if not self._is_in_scratch_graph():
                self._check_graph(name)
            self._open.append(self._note(name, device))
        self._mark()

    def close_block(self) -> None:
        """Records that a `Block` has been left."""
        self._open.pop()
        self._mark()

    def begin(self, name: str, device: int | None) -> None:
        """Records that a block begins; it lasts until the next one begins."""
        with self.noting_refusals():
            if not self._is_in_scratch_graph():
                self._check_graph(name)
            self._current = self._note(name, device)
        self._mark()

    def blocks_of(self, operations: list[tf.Operation]) -> dict[str, str | None]:
        """Returns the block of each operation by its name; they are in the order of creation."""
        bounds = [*self._marks, (len(operations), None)]
        result: dict[str, str | None] = {op.name: None for op in operations[: bounds[0][0]]}
        for (start, name), (end, _) in itertools.pairwise(bounds):
            result.update((op.name, name) for op in operations[start:end])
        return result

    def _note(self, name: str | None, device: int | None) -> str:
        if name is None:
            self._unnamed += 1
            name = f"block_{self._unnamed}"
        known = next((i for i, block in enumerate(self.found) if block.name == name), None)
        if known is None:
            self.found.append(FoundBlock(name, device))
        elif device is not None and self.found[known].device is None:
            self.found[known] = FoundBlock(name, device)
        elif device is not None and self.found[known].device != device:
            raise ValueError(
                f"block {name!r} names device {device}, and device {self.found[known].device} "
                "before. Give both the same device, or two names."
            )
        return name

    def _mark(self) -> None:
        name = self._open[0] if self._open else self._current
        self._marks.append((len(self.graph.get_operations()), name))

    def _is_in_scratch_graph(self) -> bool:
        """Returns whether Keras 3 only infers shapes, in a graph that it discards afterwards."""
        return str(getattr(v1.get_default_graph(), "name", "")).startswith("scratch_graph")

    def _check_graph(self, name: str | None) -> None:
        if v1.get_default_graph() is not self.graph:
            raise ValueError(
                f"block {name!r} is inside a tf.function, a loop or a condition of its own, which "
                "cannot be cut. Take the tf.function off, or put the block around it."
            )


_recording: ContextVar[BlockRecord | None] = ContextVar("tfdist_block_record", default=None)


@contextmanager
def recording(record: BlockRecord) -> Iterator[BlockRecord]:
    """Makes blocks record the operations inside them, within the context."""
    token = _recording.set(record)
    try:
        yield record
    finally:
        _recording.reset(token)
