"""The batches of an input_fn, and a look-ahead that says whether input for more steps is left.

All ops and datasets of this module run on the host.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.estimator.config.arguments import InputFn, argument_names, call_with, needed_arguments
from tfdist.estimator.inputs.position import InputPosition, batches_before, batching_of
from tfdist.estimator.inputs.queued_input import QueuedInput, leaves, placeholders_of
from tfdist.estimator.inputs.read_again import ReadAgain, taken_in_calls, taken_in_loop
from tfdist.strategies.dataset_memory import copied, with_own_memory
from tfdist.strategies.private_runtime import graph_calls_python

# features, labels, has_more (see `Input`)
Batch = tuple[Any, Any, "tf.Tensor | None"]

_Dataset = (tf.data.Dataset, v1.data.Dataset)


@dataclass(kw_only=True)
class Input:
    """The input that an input_fn returned.

    Attributes:
      next_batch: Makes the ops that fetch (features, labels, has_more) of one step. Labels are None
        if the input has none. has_more is a float32 scalar, 1.0 if enough input is left for the
        next session call. It is None without a look-ahead.
      hooks: Hooks that initialize the input, unless `is_enough` does.
      starts_last: Whether `hooks` must run after those of the user, which may initialize what the
        input reads.
      is_endless: Whether the input does not signal its end, as with plain tensors.
      is_enough: With a look-ahead, a float32 scalar that is 1.0 if there is enough input for the
        first session call, otherwise None. It must be run once, after `hooks` have run and before
        the first batch.
      is_resumed: Whether batches of an interrupted training are read again.
    """

    next_batch: Callable[[], tuple[Any, Any, tf.Tensor | None]]
    hooks: list[v1.train.SessionRunHook] = field(default_factory=list)
    starts_last: bool = False
    is_endless: bool = False
    is_enough: tf.Tensor | None = None
    is_resumed: bool = False


def call_input_fn(
    input_fn: InputFn,
    *,
    mode: str,
    params: dict[str, Any],
    config: Any,
    input_context: tf.distribute.InputContext | None,
) -> Any:
    """Calls an input_fn on the host and returns its result.

    It gets those of the arguments mode, params, config and input_context that its signature names.
    """
    offered = {"mode": mode, "config": config}
    if "params" in argument_names(input_fn):
        offered["params"] = params
    # Outside a strategy, an optional input_context of the input_fn keeps its default.
    if input_context is not None or "input_context" in needed_arguments(input_fn):
        offered["input_context"] = input_context
    if input_context is not None and "input_context" in argument_names(input_fn):
        v1.logging.info("The `input_fn` accepts an `input_context` which will be given by "
                        "DistributionStrategy")  # fmt: skip
    with tf.device("/device:CPU:0"):
        return call_with(input_fn, offered)


def make_input(
    result: Any, *, many_per_call: bool = False, look_ahead: int | None = None, read_again: int = 0
) -> Input:
    """Prepares the result of an input_fn.

    Args:
      result: A dataset of features or (features, labels), or tensors in this structure.
      many_per_call: Whether a session call may take several batches. Tensors, which have one value
        in a call, are then passed on by a thread.
      look_ahead: The number of batches that one session call takes, if workers must agree on the
        end of the input. has_more then says whether that many batches are left. None makes no
        look-ahead.
      read_again: The number of batches to read and throw away before the first one.

    Raises:
      ValueError: If `result` is of another type, or a tuple with more than two elements.
    """
    if isinstance(result, _Dataset):
        return _from_dataset(result, look_ahead, read_again)
    if result is None:
        raise ValueError(
            "input_fn returned None. It must return a tf.data.Dataset, or features and labels."
        )
    features, labels = split(result)
    has_queues = bool(v1.get_collection(v1.GraphKeys.QUEUE_RUNNERS))
    is_read = _is_read_from_a_dataset(features)
    is_endless = not (has_queues or is_read)
    if is_read and graph_calls_python(v1.get_default_graph()):
        with tf.device("/device:CPU:0"):  # As in `with_own_memory`, of an iterator of the program.
            features, labels = tf.nest.map_structure(copied, (features, labels))
    if many_per_call or look_ahead is not None:
        return _from_tensors((features, labels), is_endless, look_ahead, read_again)
    hooks: list[v1.train.SessionRunHook] = []
    if read_again:
        tensors = [x for x in leaves(features) + leaves(labels) if tf.is_tensor(x)]
        batch = tf.group(*tf.nest.flatten(tensors, expand_composites=True))
        hooks = [ReadAgain(read_again, taken_in_calls(batch))]
    return Input(
        next_batch=lambda: (features, labels, None),
        hooks=hooks,
        starts_last=True,
        is_endless=is_endless,
    )


def start_of(position: InputPosition, num_workers: int, result: object) -> InputPosition:
    """Returns the position at which an input begins: that beside the checkpoint, or else its start.

    Logs a line unless the input goes on after as many batches as were taken. `num_workers` and the
    input_fn's result are those of now.
    """
    if not position.batches:
        return position
    batching = batching_of(result)
    batches = batches_before(position, num_workers, batching)
    problem = None
    if batches is None:
        problem = (
            f"the interrupted training had {position.num_workers} worker(s) and {num_workers} "
            "have begun now, or the size of its batches has changed. An input goes on where only "
            "batching and element-wise transformations follow Dataset.shard"
        )
    elif _is_fed(result):
        problem = "hooks of the program feed it"
    if batches is None or problem:
        v1.logging.warning("The input begins at its start: %s.", problem)
        return replace(position, batches=0, elements=0)
    if batches != position.batches:
        v1.logging.info(
            "The input goes on after the %s elements that %d worker(s) had taken.",
            f"{position.elements:,}",
            position.num_workers,
        )
    return replace(position, batches=batches)


def split(element: object) -> tuple[Any, Any]:
    """Splits a dataset's element, or the result of an input_fn, into features and labels."""
    if isinstance(element, (list, tuple)):
        if len(element) == 1:
            return element[0], None
        if len(element) != 2:
            raise ValueError(
                "input_fn should return (features, labels) as a len 2 tuple, got a tuple of "
                f"{len(element)}. Put several features into a dict."
            )
        return element[0], element[1]
    return element, None


def _from_tensors(
    batch: tuple[Any, Any], is_endless: bool, look_ahead: int | None, read_again: int
) -> Input:
    features, labels = batch
    structure = {"features": features} if labels is None else dict(features=features, labels=labels)
    queued_input = QueuedInput(structure, look_ahead, read_again)

    def next_batch() -> tuple[Any, Any, tf.Tensor | None]:
        parts, has_more = queued_input.next_batch()
        known = None if look_ahead is None else has_more
        return parts["features"], parts.get("labels"), known

    return Input(
        next_batch=next_batch,
        hooks=[queued_input.hook],
        starts_last=True,
        is_endless=is_endless,
        is_enough=queued_input.is_enough,
        is_resumed=read_again > 0,
    )


def _from_dataset(dataset: tf.data.Dataset, look_ahead: int | None, read_again: int) -> Input:
    spec = dataset.element_spec
    split(spec)  # Refuses an invalid structure before any op is built.
    hooks: list[v1.train.SessionRunHook] = []
    with tf.device("/device:CPU:0"):
        dataset = with_own_memory(dataset)
        if look_ahead is not None:
            dataset = _with_look_ahead(dataset, look_ahead)
        iterator = v1.data.make_initializable_iterator(dataset)
        if read_again:  # With a look-ahead, the filler is the first of them, and one is left.
            take = taken_in_loop(lambda: list(_tensors_of(iterator.get_next())))
            hooks = [ReadAgain(read_again, take)]
        if look_ahead is None or read_again:
            hooks.insert(0, RunFirst(iterator.initializer))
        is_enough = None
        if look_ahead is not None:  # One call initializes the iterator and reads the filler.
            with tf.control_dependencies([] if read_again else [iterator.initializer]):
                is_enough = iterator.get_next()[1]  # float32 []

    def next_batch() -> tuple[Any, Any, tf.Tensor | None]:
        with tf.device("/device:CPU:0"):
            element = iterator.get_next()
            has_more = None
            if look_ahead is not None:
                parts, has_more = element  # has_more: float32 []
                element = tf.nest.pack_sequence_as(spec, parts, expand_composites=True)
        features, labels = split(element)
        return features, labels, has_more

    return Input(next_batch=next_batch, hooks=hooks, is_enough=is_enough, is_resumed=read_again > 0)


def _with_look_ahead(dataset: tf.data.Dataset, distance: int) -> tf.data.Dataset:
    """Pairs each element with 1.0 if at least `distance` more elements follow, else 0.0.

    The first element of the result is a filler. It has 1.0 if the dataset has at least `distance`
    elements. An element is kept in the scan's state until the element `distance` positions later
    has been read. After the last element, `distance` fillers push the remaining elements out:

        read:     e0      e1      e2      filler  filler      (distance 2, three elements)
        returned:         filler  e0      e1      e2
                          1.0     1.0     0.0     0.0

    Each returned element is the flat tuple of its tensors. A filler is never packed into a sparse
    or ragged tensor, so it need not be a valid one.
    """
    specs = tf.nest.flatten(dataset.element_spec, expand_composites=True)
    filler = tuple(_filler(spec) for spec in specs)
    one, zero = tf.constant(1.0), tf.constant(0.0)  # float32 []

    # Without this, AutoGraph takes a third of a second at the start, with nothing to convert.
    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def as_real(*element: object) -> Any:
        return _tensors_of(element), one

    elements = dataset.map(as_real)
    fillers = tf.data.Dataset.from_tensors((filler, zero)).repeat(distance)
    waiting = (filler,) * distance

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def shift(state: Any, entry: Any) -> Any:
        element, is_real = entry
        return (*state[1:], element), (state[0], is_real)

    # The first `distance` results are the initial fillers. The last of them is kept: it is paired
    # with 1.0 if the element numbered `distance` (from 1) exists.
    return elements.concatenate(fillers).scan(waiting, shift).skip(distance - 1)


def _tensors_of(element: object) -> tuple[tf.Tensor, ...]:
    parts = tf.nest.flatten(element, expand_composites=True)
    return tuple(part for part in parts if part is not None)


def _filler(spec: tf.TensorSpec) -> tf.Tensor:
    """Returns zeros of the static shape of `spec`; they have 0 in place of an unknown dimension."""
    shape = [] if spec.shape.rank is None else [d or 0 for d in spec.shape.as_list()]
    # If more was known of the filler's shape than of the elements', `Dataset.scan` would trace its
    # function again for each position of the state.
    return v1.placeholder_with_default(tf.zeros(shape, spec.dtype), spec.shape)


def _is_read_from_a_dataset(features: Any) -> bool:
    """Returns True if the features come from a dataset's iterator that the user made."""
    tensors = [x for x in leaves(features) if isinstance(x, tf.Tensor)]
    return any(tensor.op.type == "IteratorGetNext" for tensor in tensors)


def _is_fed(result: object) -> bool:
    """Returns whether an input_fn returned tensors that need a feed_dict of the program's hooks."""
    if isinstance(result, _Dataset) or result is None:
        return False
    tensors = [x for part in split(result) for x in leaves(part) if isinstance(x, tf.Tensor)]
    return bool(placeholders_of(tensors))


class RunFirst(v1.train.SessionRunHook):  # type: ignore[misc]
    """Hook that runs an op after each creation of a session, such as an iterator's initializer."""

    def __init__(self, op: tf.Operation) -> None:
        self._op = op

    def after_create_session(self, session: v1.Session, coord: v1.train.Coordinator) -> None:
        session.run(self._op)
