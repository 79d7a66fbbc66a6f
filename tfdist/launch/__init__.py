"""The command `tfdist`: run, slurm, kubernetes and doctor. No TensorFlow.

`tfdist.launch` is also a function: `tfdist.launch(train, num_instances=2)`, which is described in
`tfdist.launch.functions.launch`.
"""

import sys
import types
from typing import Any

__all__: list[str] = []  # internal


class _CallableModule(types.ModuleType):
    def __call__(self, *args: Any, **options: Any) -> list[Any]:
        from tfdist.launch.functions.launch import launch

        return launch(*args, **options)


sys.modules[__name__].__class__ = _CallableModule
