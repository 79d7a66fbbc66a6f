"""The position of a training's input, which a file beside each checkpoint keeps.

    model.ckpt-40.index, ...   the weights after step 40
    model.ckpt-40.input        {"batches": 40, "num_workers": 1, "elements": 1280, "seed": 1903}

A training that was interrupted is resumed with the same input: its batches before the position are
read again and thrown away, so that the next batch is the one that the undisturbed training would
have read. Shuffle buffers and iterators are not saved: a file of a few bytes costs a save nothing,
and holds for every input that gives the same batches again. So that an input without a seed does,
its ops and datasets get seeds of the run, which the file keeps as well.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import asdict, dataclass

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.strategies.saving.checkpoint_files import file_beside

# Datasets that hand on the elements of another one in its order. Behind batches they count batches.
_IN_ORDER = frozenset(
    {
        "MapDataset", "ParallelMapDataset", "ParallelMapDatasetV2", "PrefetchDataset",
        "OptionsDataset", "ModelDataset", "AssertCardinalityDataset",
    }
)  # fmt: skip
_BATCHES = frozenset({"BatchDataset", "BatchDatasetV2", "ParallelBatchDataset"})


@dataclass(frozen=True, kw_only=True)
class InputPosition:
    """The position of the input after the last finished step.

    Attributes:
      batches: The batches that each worker has taken. Batches that were only prefetched do not
        count.
      num_workers: The number of workers.
      elements: The elements, before batching, that all workers together have taken from the data
        that they share; None if they are not known, or not shared in turn.
      seed: The seed of the run, for ops and datasets without one.
    """

    batches: int = 0
    num_workers: int = 1
    elements: int | None = 0
    seed: int

    @classmethod
    def of_new_run(cls) -> InputPosition:
        """Returns the start of an input, with a seed drawn by chance."""
        return cls(seed=1 + secrets.randbelow(2**31 - 2))


def write_position(checkpoint: str, position: InputPosition | None) -> None:
    """Writes the position beside a checkpoint; None removes it."""
    path = file_beside(checkpoint)
    if position is not None:
        with tf.io.gfile.GFile(path, "w") as file:
            file.write(json.dumps(asdict(position)))
    elif tf.io.gfile.exists(path):
        tf.io.gfile.remove(path)


def read_position(checkpoint: str) -> InputPosition | None:
    """Returns the position beside a checkpoint; None if there is none, or it cannot be read."""
    path = file_beside(checkpoint)
    if not tf.io.gfile.exists(path):
        return None
    try:
        with tf.io.gfile.GFile(path, "r") as file:
            return InputPosition(**json.loads(file.read()))
    except (tf.errors.OpError, ValueError, TypeError) as error:
        v1.logging.warning("The input begins at its start: %s cannot be read (%s).", path, error)
        return None


@dataclass(frozen=True, kw_only=True)
class Batching:
    """The end of a dataset, as far as its elements keep their order.

    Attributes:
      size: The elements in a batch; None if it is not known.
      num_shares: The number of workers by which `Dataset.shard` divides the elements, if only
        batching and element-wise transformations follow; else 1.
    """

    size: int | None = None
    num_shares: int = 1

    def elements(self, batches: int, num_workers: int) -> int | None:
        """Returns the elements in so many batches of each worker, if they are taken in turn."""
        is_in_turn = self.size is not None and self.num_shares == num_workers
        return batches * num_workers * self.size if is_in_turn and self.size else None


def batching_of(result: object) -> Batching:
    """Returns how the dataset that an input_fn returned makes its batches."""
    if not isinstance(result, tf.data.Dataset | v1.data.Dataset):
        return Batching()
    op, size = tf.data.experimental.to_variant(result).op, None
    while op.type in _IN_ORDER or op.type in _BATCHES:
        if op.type in _BATCHES:
            value = tf.get_static_value(op.inputs[1])  # batch_size, []
            if value is None:
                return Batching()
            size = int(value) * (size or 1)
        op = op.inputs[0].op
    shares = tf.get_static_value(op.inputs[1]) if op.type == "ShardDataset" else 1
    return Batching(size=size, num_shares=0 if shares is None else int(shares))


def batches_before(saved: InputPosition, num_workers: int, batching: Batching) -> int | None:
    """Returns how many batches each worker reads again; None if the saved position does not fit.

    With another number of workers, or another size of batches, the input goes on after the same
    elements, where the workers take them in turn.
    """
    is_same_size = saved.elements in (None, batching.elements(saved.batches, num_workers))
    if saved.num_workers == num_workers and (is_same_size or batching.size is None):
        return saved.batches
    per_step = batching.elements(1, num_workers)
    return None if saved.elements is None or per_step is None else saved.elements // per_step
