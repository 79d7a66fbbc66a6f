"""Every Python that a test starts reads this first, and pytest itself: it starts and ends sooner.

- TensorFlow and Keras import packages that few programs use. They are read here when they are first
  used, and what Keras takes only where it is installed, Keras does without: a second less.
- What many processes import is compiled by the first, also where the environment forbids it.
- TensorFlow names types in 18,000 strings, of which 116 differ: each of these is compiled once.
- An import of TensorFlow makes half a million objects that stay. Looking through them for garbage,
  a thousand times while they are made and once more at the end, takes a third of a program's time.
- Protobuf's Python code prints `graph.pbtxt`, which takes a tenth of a short training. The tests
  need the file, and no certain layout of its lines: protobuf's C code prints it here.
"""

import atexit
import gc
import importlib.util
import sys
import typing
from collections.abc import Callable
from functools import cache, partial
from importlib.util import LazyLoader, find_spec
from types import ModuleType
from typing import Any

sys.dont_write_bytecode = False
vars(typing)["compile"] = cache(compile)
gc.set_threshold(100_000, 20, 100)
atexit.register(gc.freeze)  # The first to be registered is the last to run.


class _WrappedLoader:
    """A module's loader, with another `exec_module` in each subclass."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class _ThenPrintGraphsFast(_WrappedLoader):
    """The loader of `google.protobuf.text_format`, which then prints graphs by C code."""

    def exec_module(self, module: Any) -> None:
        self._loader.exec_module(module)
        in_python = module.MessageToString

        def print_message(message: Any, *args: Any, **options: Any) -> str:
            is_graph = message.DESCRIPTOR.name == "GraphDef"
            return str(message) if is_graph else in_python(message, *args, **options)

        module.MessageToString = print_message


class _WithoutPackage(_WrappedLoader):
    """The loader of a module that takes a package where it is installed, and here finds none."""

    def __init__(self, loader: Any, package: str) -> None:
        super().__init__(loader)
        self._package = package

    def exec_module(self, module: Any) -> None:
        is_imported = self._package in sys.modules
        if not is_imported:
            sys.modules[self._package] = None  # type: ignore[assignment]
        try:
            self._loader.exec_module(module)
        finally:
            if not is_imported:
                del sys.modules[self._package]


class _OtherLoaders:
    """Finds some modules as the other finders do, and gives them another loader."""

    def __init__(self, loaders: dict[str, Callable[[Any], Any]]) -> None:
        self._loaders = loaders

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        if name not in self._loaders:
            return None
        make_loader = self._loaders.pop(name)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = make_loader(spec.loader)
        return spec


class _NotRead(ModuleType):
    """A module of `LazyLoader` that tells its name and its file without being read."""

    def __getattribute__(self, name: str) -> Any:
        if name in ("__class__", "__file__", "__name__"):
            return super().__getattribute__(name)
        self.__class__ = importlib.util._LazyModule  # type: ignore[attr-defined]
        return getattr(self, name)


class _Lazy(LazyLoader):
    """The loader of a module that is read when it is used, but not when AutoGraph looks for it."""

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        module.__class__ = _NotRead


_LAZY = ("h5py", "requests", "scipy.linalg", "scipy.ndimage", "scipy.stats")
_OPTIONAL = {
    "keras.src.saving.file_editor": "IPython",
    "keras.src.trainers.data_adapters.array_slicing": "pandas",
    "keras.src.visualization.plot_bounding_box_gallery": "matplotlib",
    "keras.src.visualization.plot_image_gallery": "matplotlib",
    "keras.src.wrappers": "sklearn",
    "tensorflow.python.keras.engine.training_arrays_v1": "scipy.sparse",
    "tensorflow.python.keras.engine.training_v1": "scipy.sparse",
    "tf_keras.src.engine.data_adapter": "pandas",
    "tf_keras.src.engine.training_arrays_v1": "scipy.sparse",
    "tf_keras.src.engine.training_v1": "scipy.sparse",
}
_LOADERS = {
    **dict.fromkeys(_LAZY, _Lazy),
    **{name: partial(_WithoutPackage, package=package) for name, package in _OPTIONAL.items()},
    "google.protobuf.text_format": _ThenPrintGraphsFast,
}
sys.meta_path.insert(0, _OtherLoaders(_LOADERS))
