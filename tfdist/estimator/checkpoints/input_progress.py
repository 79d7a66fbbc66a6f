"""The input of a running training: how far it is, written beside each checkpoint.

    steps       call_ends: so many batches more
    a save      position, write: it, beside the checkpoint; the write may come some steps later
    the end     end: the newest position is removed

So a position lies beside the newest checkpoint exactly while a training has not ended. A training
that finds one resumes an interrupted one; without one it begins its input at the start.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from tfdist.estimator.inputs.position import Batching, InputPosition, write_position
from tfdist.strategies.saving.checkpoint_files import exists


class InputProgress:
    """The batches that a training has taken from its input.

    Without `start`, the position at which the training begins, no positions are saved.
    `batches_per_call` is what each worker takes in a session call, or in the calls of a step.
    """

    def __init__(
        self,
        start: InputPosition | None,
        *,
        batches_per_call: int = 1,
        num_workers: int = 1,
        batching: Batching | None = None,
    ) -> None:
        self._start = start
        self._batches = 0 if start is None else start.batches
        self._batches_per_call = batches_per_call
        self._num_workers = num_workers
        self._batching = batching or Batching()
        self._has_ended = False
        self._newest: dict[str, str] = {}

    def call_ends(self) -> None:
        """Counts the batches of a step; called once its session calls have succeeded."""
        self._batches += self._batches_per_call

    def write(self, position: InputPosition | None, checkpoint: str, written: str) -> None:
        """Writes the position of a save; without one, removes that of an earlier training.

        `written` is the path of the checkpoint at present, before it is moved.
        """
        self._newest[os.path.dirname(checkpoint)] = checkpoint
        write_position(checkpoint if position is None else written, position)

    def begin_end(self) -> None:
        """Notes that the training has made its last step: the last checkpoint gets no position."""
        self._has_ended = True

    def end(self) -> None:
        """Removes the newest positions, after the end of a training that was not interrupted."""
        if self._has_ended:
            for checkpoint in self._newest.values():
                write_position(checkpoint, None)

    def position(self) -> InputPosition | None:
        """Returns the present position; None if the training saves none."""
        if self._start is None or self._has_ended:
            return None
        return InputPosition(
            batches=self._batches,
            num_workers=self._num_workers,
            elements=self._batching.elements(self._batches, self._num_workers),
            seed=self._start.seed,
        )


def remove_positions(checkpoints: Iterable[str]) -> None:
    """Removes the positions of those checkpoints that a saver has deleted."""
    for checkpoint in checkpoints:
        if not exists(checkpoint):
            write_position(checkpoint, None)
