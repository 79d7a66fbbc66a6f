"""`ipu.ipu_session_run_hooks`: a hook that logs tensors of a step."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdist.estimator import DeviceLoggingTensorHook

_FEED_NAME = "logging_hook"


class IPULoggingTensorHook(DeviceLoggingTensorHook):
    """`DeviceLoggingTensorHook` with the original's arguments, of which the first are the same.

    Args:
      logging_mode: LAST or ALL of `IPULoggingTensorHook.LoggingMode`.
      feed_name: Has no effect, which is logged once.
      replication_factor: 1; the Estimator knows the number of a worker's replicas.

    Raises:
      ValueError: If `replication_factor` is not 1.
    """

    def __init__(
        self,
        every_n_iter: int | None = None,
        every_n_secs: float | None = None,
        at_end: bool = False,
        formatter: Any = None,
        logging_mode: Any = DeviceLoggingTensorHook.LoggingMode.LAST,
        feed_name: str = _FEED_NAME,
        replication_factor: int = 1,
    ) -> None:
        if replication_factor != 1:
            raise ValueError(
                f"replication_factor is {replication_factor}; only 1 is supported: the hook logs "
                "the first replica of its worker. Leave it out."
            )
        if feed_name != _FEED_NAME:
            tf.compat.v1.logging.warning(
                "IPULoggingTensorHook: feed_name=%r has no effect without an IPU.", feed_name
            )
        super().__init__(every_n_iter, every_n_secs, at_end, formatter, logging_mode)
