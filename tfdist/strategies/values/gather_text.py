"""TextExchange: gathers a short text from every worker on every worker."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.process.progress_file import in_phase
from tfdist.strategies.worker_strategy import WorkerStrategy


class TextExchange:
    """Gathers one text from each worker, once, in a graph and session of its exchange only.

    Every worker makes it before its training graph, so that the workers agree on the keys of the
    collectives even if their models differ. It works over every engine.
    """

    def __init__(self, strategy: WorkerStrategy) -> None:
        self._strategy = strategy
        collectives = strategy.extended.collectives
        self._graph = tf.Graph()
        with self._graph.as_default(), tf.device("/device:CPU:0"):
            self._characters = v1.placeholder(tf.int32, [None])
            # [characters of all texts]
            self._texts = collectives.gather(tf.identity(self._characters), "texts")

    def __call__(self, text: str) -> list[str]:
        """Sends this worker's text, and returns the texts of all workers, in worker order.

        A collective: waits until every worker has called it. It can be called once: after that,
        TensorFlow expects texts of the same lengths.

        Raises:
          WorkerLostError: If another worker is lost meanwhile.
        """
        config = self._strategy.update_config_proto(v1.ConfigProto())
        # Each text ends with a character that no text has: their lengths need no message.
        characters = np.frombuffer(f"{text}\0".encode(), np.uint8).astype(np.int32)
        with (
            v1.Session(self._strategy.master, graph=self._graph, config=config) as session,
            self._strategy.watch_peers() as watch,
            in_phase("waiting"),
        ):
            watch.start(session.close)
            texts = session.run(self._texts, {self._characters: characters})
            watch.leave()  # This may be the last act of a program.
        return str(texts.astype(np.uint8).tobytes().decode()).split("\0")[:-1]
