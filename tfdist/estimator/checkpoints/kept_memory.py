"""Memory in which the values of one session call after another are placed.

    session.run(variables)     TensorFlow copies each value into a NumPy array
                               1 GiB in new memory: 0.13 to 3 s; in kept memory: 0.10 s

New memory costs more than the copy: the system clears it, and a virtual machine may have to get it
from its host first. Memory that is freed in between does not stay at hand, since the system caches
the written files in it.

TensorFlow cannot fetch into given memory. But NumPy can be told where the arrays that a thread
makes get theirs (NEP 49, `PyDataMem_SetHandler`). That is a function of NumPy's C interface, so it
is called through the table that NumPy hands to extension modules, whose places are fixed.
"""

from __future__ import annotations

import ctypes
import importlib
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np

# TensorFlow takes an array that begins here without a copy.
_ALIGNMENT = 64
# For small arrays that a session call makes as well.
_SPARE_BYTES = 4096
# numpy/__multiarray_api.h: the places of the two functions, from NumPy 1.22.
_NUMPY = {"1": "numpy.core", "2": "numpy._core"}.get(np.__version__.partition(".")[0])
_SET_HANDLER, _GET_HANDLER = 304, 305
_HANDLER_NAME = b"mem_handler"
_POINTER, _SIZE = ctypes.c_void_p, ctypes.c_size_t
_MALLOC = ctypes.CFUNCTYPE(_POINTER, _POINTER, _SIZE)
_FREE = ctypes.CFUNCTYPE(None, _POINTER, _POINTER, _SIZE)


class _Handler(ctypes.Structure):
    """`PyDataMem_Handler` of numpy/ndarraytypes.h: the functions that get and free memory."""

    _fields_ = (
        ("name", ctypes.c_char * 127),
        ("version", ctypes.c_uint8),
        ("context", _POINTER),
        ("malloc", _MALLOC),
        ("calloc", _POINTER),
        ("realloc", _POINTER),
        ("free", _FREE),
    )


def bytes_for(sizes: Iterable[int]) -> int:
    """Returns the bytes that a memory needs for values of these sizes in bytes."""
    return sum(-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes) + _SPARE_BYTES


class KeptMemory:
    """Memory, `[bytes_for(sizes)]` of uint8, that fetched values fill from its beginning."""

    def __init__(self, room: np.ndarray) -> None:
        self._room = room

    @property
    def num_bytes(self) -> int:
        return self._room.nbytes

    def fetch(self, run: Callable[[], Sequence[Any]]) -> list[Any]:
        """Returns the values of a session call as views of the room, valid until the next one.

        A value for which there is no room, since its size was not known, gets memory of its own.
        So do all with a NumPy whose table of functions is not known. `run` makes the call in this
        thread: `lambda: session.run(tensors)`.
        """
        if _NUMPY is None:
            return list(run())
        start = self._room.ctypes.data
        with _allocator().placing(start, start + self.num_bytes):
            fetched = run()
        return [self._own(value) for value in fetched]

    def _own(self, value: Any) -> Any:
        """Returns a fetched array as one that does not depend on the allocator."""
        if not isinstance(value, np.ndarray):  # A scalar.
            return value
        start = value.ctypes.data - self._room.ctypes.data
        if value.dtype.hasobject or not 0 <= start < self.num_bytes:
            return value.copy()
        return self._room[start : start + value.nbytes].view(value.dtype).reshape(value.shape)


class _Place(threading.local):
    """Addresses of the room that is left for arrays of this thread; none outside of a call."""

    start = end = 0


class _Allocator:
    """Memory for NumPy's arrays. It is never freed, as an array calls it at its own end."""

    def __init__(self) -> None:
        table = vars(importlib.import_module(f"{_NUMPY}._multiarray_umath"))["_ARRAY_API"]
        functions = ctypes.cast(_pointer(table, None), ctypes.POINTER(_POINTER))
        self._set = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(functions[_SET_HANDLER])
        self._before = ctypes.PYFUNCTYPE(ctypes.py_object)(functions[_GET_HANDLER])()
        self._usual = usual = _Handler.from_address(_pointer(self._before, _HANDLER_NAME))
        self._place = _Place()
        self._placed: Counter[int | None] = Counter()  # Addresses.
        malloc, free = _MALLOC(self._malloc), _FREE(self._free)
        self._handler = _Handler(
            b"tfdist", 1, usual.context, malloc, usual.calloc, usual.realloc, free
        )
        new_capsule = ctypes.pythonapi.PyCapsule_New
        new_capsule.restype = ctypes.py_object
        new_capsule.argtypes = (_POINTER, ctypes.c_char_p, _POINTER)
        self._capsule = new_capsule(ctypes.addressof(self._handler), _HANDLER_NAME, None)

    @contextmanager
    def placing(self, start: int, end: int) -> Iterator[None]:
        """Places arrays that this thread makes in the `with` block between two addresses."""
        self._place.start, self._place.end = start, end
        before = self._set(self._capsule)
        try:
            yield
        finally:
            self._set(before)
            self._place.start = self._place.end = 0

    def _malloc(self, context: int | None, num_bytes: int) -> int | None:
        start = -(-self._place.start // _ALIGNMENT) * _ALIGNMENT
        if start + num_bytes > self._place.end:
            return self._usual.malloc(context, num_bytes)
        self._place.start = start + num_bytes
        self._placed[start] += 1
        return start

    def _free(self, context: int | None, start: int | None, num_bytes: int) -> None:
        if start in self._placed:
            self._placed -= Counter([start])
        else:
            self._usual.free(context, start, num_bytes)


@cache
def _allocator() -> _Allocator:
    return _Allocator()


def _pointer(capsule: Any, name: bytes | None) -> Any:
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype = _POINTER
    get_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
    return get_pointer(capsule, name)
