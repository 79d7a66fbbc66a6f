"""Griffe extension: the arguments of classes that are made by `__new__`, such as named tuples."""

from __future__ import annotations

from typing import Any

import griffe


class ConstructorsByNew(griffe.Extension):
    """Treats the parameters of `__new__` as those of `__init__`, which griffe looks for."""

    def on_class_members(self, *, cls: griffe.Class, **kwargs: Any) -> None:
        """Called with each class once its members are known."""
        if "__new__" in cls.members and "__init__" not in cls.members:
            made = cls.members["__new__"]
            if isinstance(made, griffe.Function):
                cls.members["__init__"] = griffe.Function(
                    "__init__",
                    parameters=made.parameters,
                    lineno=made.lineno,
                    endlineno=made.endlineno,
                    parent=cls,
                )
