"""Models of Keras that one worker saves while the others do not, or that all save to one file.

Private names: `saving_lib` of both libraries, and of Keras 3 its `get_attr_skipset`.
"""

from __future__ import annotations

import functools
import inspect
import os
from typing import Any

from tfdist.strategies.eager.replica_variable import reads_own
from tfdist.strategies.keras.extension import extends, strategy_of
from tfdist.strategies.saving.disk_space import bytes_of, full_disk_named, require_room
from tfdist.strategies.saving.whole_files import whole_file


def adapt_saving(module: Any, is_keras_3: bool) -> None:
    """Makes the functions of a `saving_lib` that save a model work on any number of workers.

    Keras 3 makes an optimizer to compare the saved one with: its variables are made together, so it
    is made now. tf_keras saves the state of metrics: each worker saves its own.

    A file is written under another name first: a worker that loads it may find the file of another
    one, and finds it whole.
    """
    if is_keras_3:
        module.get_attr_skipset = functools.cache(module.get_attr_skipset)
        module.get_attr_skipset("Optimizer")

    @extends(module, "save_model")
    @extends(module, "save_weights_only")
    def save_whole(save: Any, model: Any, filepath: Any, *args: Any, **options: Any) -> Any:
        save = save if is_keras_3 else reads_own()(save)
        given = inspect.signature(save).bind(model, filepath, *args, **options).arguments
        if strategy_of(model) is None or not _is_one_file(given):
            return save(model, filepath, *args, **options)
        folder, num_bytes = os.path.dirname(os.path.abspath(filepath)), bytes_of(model.variables)
        with full_disk_named(folder, f"the file {os.path.basename(filepath)}", num_bytes, "model"):
            require_room(folder, num_bytes)
            with whole_file(str(filepath)) as draft:
                return save(model, draft, *args, **options)


def _is_one_file(given: dict[str, Any]) -> bool:
    """Returns whether these arguments save a model as one file, in a folder of this machine."""
    path = str(given["filepath"])
    is_whole = path.endswith((".keras", ".weights.h5")) and given.get("max_shard_size") is None
    return is_whole and os.path.isdir(os.path.dirname(os.path.abspath(path)))
