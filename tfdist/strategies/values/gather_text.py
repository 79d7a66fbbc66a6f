"""Short texts from every worker to every worker, outside the training graph."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.process.progress_file import in_phase
from tfdist.strategies.worker_strategy import WorkerStrategy


class TextExchange:
    """Lets workers compare notes, once: each gives a text and gets all of them.

    Made by every worker before its training graph, so that the workers agree on the keys of the
    exchange even where their models differ. Works over whatever engine the strategy has.

    Args:
      strategy: A tfdist strategy.
    """

    def __init__(self, strategy: WorkerStrategy) -> None:
        self._strategy = strategy
        collectives = strategy.extended.collectives
        self._graph = tf.Graph()
        with self._graph.as_default(), tf.device("/device:CPU:0"):
            self._characters = v1.placeholder(tf.int32, [None])
            size = tf.shape(self._characters)
            self._sizes = collectives.gather(size, "text_sizes")
            self._texts = collectives.gather(tf.identity(self._characters), "texts")

    def __call__(self, text: str) -> list[str]:
        """Sends this worker's text and returns the texts of all workers, in worker order.

        To be called once: TensorFlow expects texts as long as the first ones from then on.

        A collective: waits until every worker has called it.

        Raises:
          WorkerLostError: If another worker went away meanwhile.
        """
        config = self._strategy.update_config_proto(v1.ConfigProto())
        characters = np.frombuffer(text.encode(), np.uint8).astype(np.int32)
        with (
            v1.Session(self._strategy.master, graph=self._graph, config=config) as session,
            self._strategy.watch_peers() as watch,
            in_phase("waiting"),
        ):
            watch.start(session.close)
            sizes, everything = session.run(
                [self._sizes, self._texts], {self._characters: characters}
            )
        parts = np.split(everything, np.cumsum(sizes)[:-1])
        return [part.astype(np.uint8).tobytes().decode() for part in parts]
