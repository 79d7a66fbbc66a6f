"""Griffe extension: arguments that a docstring leaves to another one.

"The arguments are those of `linear_decay`", "As in `DNNEstimator`", a base class: their
descriptions are shown where they are left out, so that each page is complete.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Any

import griffe

_NAME = re.compile(r"`([A-Za-z_][\w.]*)`")
_SECTION = re.compile(r"^(Args|Attributes):\n((?:(?:  .*)?\n)*)", re.MULTILINE)
_ENTRY = re.compile(r"^  \*{0,2}(\w+)(?: \([^)]*\))?:(?:.|\n(?!  \S|\S))*", re.MULTILINE)
_DEEPEST = 4  # of references in descriptions of references


class ReferencedArguments(griffe.Extension):
    """Completes the "Args" of all docstrings of a package."""

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        """Called once the package is loaded."""
        for one in list(shown(pkg)):
            left = missing(one)
            found = [text for name in left if (text := _description(one, name))]
            if found and one.docstring is not None:
                one.docstring.value = _with_arguments(one.docstring.value, found)


def shown(module: griffe.Object) -> Iterator[griffe.Object]:
    """Yields the functions and classes that a reference may show: those with docstrings."""
    for name, member in module.members.items():
        if member.is_alias or (name.startswith("_") and not member.is_module):
            continue
        if (member.is_function or member.is_class) and member.docstring is not None:
            yield member
        if member.is_class or member.is_module:
            yield from shown(member)


def missing(one: griffe.Object) -> list[str]:
    """Returns the names of the arguments that an object's docstring does not describe."""
    text = one.docstring.value if one.docstring is not None else ""
    described = _entries(text)
    constructor = _constructor(one)
    if constructor is not one and constructor is not None and constructor.docstring is not None:
        text += constructor.docstring.value
        described |= _entries(constructor.docstring.value)
    mentioned = {*described, *_NAME.findall(text)}
    return [name for name in _parameters(one) if name not in mentioned]


def _parameters(one: griffe.Object) -> list[str]:
    function = _constructor(one)
    if function is None:
        return []
    names = [parameter.name.lstrip("*") for parameter in function.parameters]
    is_bound = function.parent is not None and function.parent.is_class
    if is_bound and "staticmethod" not in function.labels:
        names = names[1:]
    if one.is_class and names == ["arguments"]:  # an exception, which is made by tfdist
        return []
    return [name for name in names if not name.startswith("_")]


def _constructor(one: griffe.Object) -> Any:
    if one.is_function:
        return one
    for owner in (one, *_bases(one)):
        for name in ("__init__", "__new__"):
            if name in owner.members and owner.members[name].is_function:
                return owner.members[name]
    return None


def _bases(one: Any) -> list[Any]:
    try:
        return list(one.mro())
    except (ValueError, AttributeError):
        return []


def _entries(text: str) -> dict[str, str]:
    """Returns the descriptions of a docstring by name."""
    return {
        entry[1]: entry[0].rstrip()
        for section in _SECTION.finditer(text + "\n")
        for entry in _ENTRY.finditer(section[2])
    }


def _description(one: Any, name: str, depth: int = 0) -> str:
    """Returns the description of an argument in the texts that a docstring refers to; or ""."""
    if depth > _DEEPEST or one is None or one.docstring is None:
        return ""
    for other in _referred(one):
        if other is one or other.docstring is None:
            continue
        entry = _entries(other.docstring.value).get(name)
        if entry is None:
            entry = _description(other, name, depth + 1)
        if entry:
            return entry
    return ""


def _referred(one: Any) -> Iterator[Any]:
    """Yields the objects that a docstring names, then those that the object inherits from."""
    for name in _NAME.findall(one.docstring.value):
        found = _resolved(one, name)
        if found is not None:
            yield found
    if one.is_class:
        yield from _bases(one)
    elif one.parent is not None and one.parent.is_class:
        for base in _bases(one.parent):
            if one.name in base.members and base.members[one.name].is_function:
                yield base.members[one.name]


def _resolved(one: Any, name: str) -> Any:
    """Returns the object of a name: in a class or module around it, or anywhere in the package."""
    scope = one
    while scope is not None:
        try:
            return _final(scope[name])
        except (KeyError, griffe.AliasResolutionError, griffe.CyclicAliasError):
            scope = scope.parent
    try:
        return _final(one.package[name.removeprefix(f"{one.package.name}.")])
    except (KeyError, griffe.AliasResolutionError, griffe.CyclicAliasError):
        pass
    first, _, rest = name.partition(".")
    return _resolved_in(_by_name(one.package).get(first), rest)


@functools.cache
def _by_name(package: Any) -> dict[str, Any]:
    return {one.name: one for one in reversed(list(shown(package)))}


def _resolved_in(scope: Any, rest: str) -> Any:
    if scope is None or not rest:
        return scope
    try:
        return scope[rest]
    except (KeyError, griffe.AliasResolutionError):
        return None


def _final(found: Any) -> Any:
    return found.final_target if found.is_alias else found


def _with_arguments(text: str, entries: list[str]) -> str:
    section = re.search(r"^Args:\n(?:(?:  .*)?\n)*", text + "\n", re.MULTILINE)
    more = "\n".join(entries)
    if section is not None:
        whole = section[0].rstrip()
        return (text + "\n").replace(whole, f"{whole}\n{more}", 1).rstrip()
    later = re.search(r"^(?:Attributes|Returns|Yields|Raises):$", text, re.MULTILINE)
    place = later.start() if later else len(text)
    return f"{text[:place].rstrip()}\n\nArgs:\n{more}\n\n{text[place:]}".rstrip()
