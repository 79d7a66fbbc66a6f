"""Models of Keras that one worker saves while the others do not.

Private names: `saving_lib` of both libraries, and of Keras 3 its `get_attr_skipset`.
"""

from __future__ import annotations

import functools
from typing import Any

from tfdist.strategies.eager.replica_variable import reads_own


def adapt_saving(module: Any, is_keras_3: bool) -> None:
    """Removes what every worker would have to do from the functions that save a model.

    Keras 3 makes an optimizer to compare the saved one with: its variables are made together, so it
    is made now. tf_keras saves the state of metrics: each worker saves its own.

    Args:
      module: The library's `saving_lib`.
      is_keras_3: Whether it is Keras 3's.
    """
    if is_keras_3:
        module.get_attr_skipset = functools.cache(module.get_attr_skipset)
        module.get_attr_skipset("Optimizer")
        return
    for name in ("save_model", "save_weights_only"):
        setattr(module, name, reads_own()(getattr(module, name)))
