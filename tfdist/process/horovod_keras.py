"""A refusal in Horovod: its DistributedOptimizer reduces nothing with an optimizer of Keras 3.

Horovod 0.28 reduces in methods that Keras 3 does not call, so each rank would train a model of its
own, without a word. `import tfdist` puts the refusal in place for its process. For programs that do
not import it, `tfdist horovod install` writes a copy of this file beside Horovod, and one by which
every Python of the environment reads it when it starts. So it imports as little as possible.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # that of `typing`, whose import would take longer than all of this
if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType
    from typing import Any

_MODULE = "horovod._keras"  # where all of Horovod's functions for Keras make their optimizers
_COPY = "tfdist_horovod_keras"


def refuse_keras_3() -> None:
    """Makes Horovod refuse optimizers of Keras 3, now or when it is imported."""
    module = sys.modules.get(_MODULE)
    if module is not None:
        _change(module)
    elif not any(type(finder).__name__ == _Finder.__name__ for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def write_files(folder: Path) -> None:
    """Writes the copy, and the file that every Python of the environment reads when it starts."""
    with open(__file__) as own:
        (folder / f"{_COPY}.py").write_text(own.read())
    (folder / f"{_COPY}.pth").write_text(f"import {_COPY}\n")


class _Finder:
    """Finds Horovod's module for Keras as Python does, and changes it once it is imported."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != _MODULE:
            return None
        from importlib.machinery import PathFinder

        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_change(module: ModuleType) -> None:
                execute(module)
                _change(module)

            spec.loader.exec_module = execute_and_change  # type: ignore[method-assign]
        return spec


def _change(module: ModuleType) -> None:
    make = module.create_distributed_optimizer
    if hasattr(make, "tfdist_refuses_keras_3"):
        return

    def create_distributed_optimizer(keras: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        kinds = {f"{kind.__module__}.{kind.__name__}" for kind in type(optimizer).__mro__}
        if "keras.src.optimizers.base_optimizer.BaseOptimizer" in kinds and module.hvd.size() > 1:
            raise ValueError(
                f"Horovod's DistributedOptimizer reduces nothing with Keras 3's "
                f"{type(optimizer).__name__}: each rank would train alone. Use an optimizer of "
                "tf_keras (TF_USE_LEGACY_KERAS=1 makes tf.keras that), "
                "hvd.DistributedGradientTape, or tfdist.strategies.HorovodStrategy without it."
            )
        return make(keras, optimizer, *args, **kwargs)

    create_distributed_optimizer.tfdist_refuses_keras_3 = True  # type: ignore[attr-defined]
    module.create_distributed_optimizer = create_distributed_optimizer  # type: ignore[attr-defined]


if __name__ == _COPY:
    refuse_keras_3()
