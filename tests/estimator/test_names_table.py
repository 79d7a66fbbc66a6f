"""The table of tf.estimator's names: the code is as it says, and it is as the code."""

import functools
import importlib
from collections.abc import Iterator
from typing import Any

import estimator_names as names
import pytest

import tfdist.estimator as tfe
from tfdist.estimator import v1


def _find(place: str) -> Any:
    if place in names.UNEXPORTED.values():  # As a program imports it from the module on the page.
        module, _, name = f"tfdist.estimator.{place}".rpartition(".")
        return getattr(importlib.import_module(module), name)
    return functools.reduce(getattr, place.split("."), tfe)


def _recorded() -> Iterator[tuple[str, str, dict[str, str]]]:
    """Yields (name, place, signatures in 2.15) of what the table calls there."""
    data = names.data()
    for version in ("v2", "v1", "keras"):
        for name, signatures in data[version].items():
            if name not in names.out():
                yield name, names.place(name, version), signatures


@pytest.mark.parametrize("place", [place for _, place, _ in _recorded()])
def test_what_is_there_is_found(place: str) -> None:
    assert _find(place) is not None


@pytest.mark.parametrize("name", names.UNEXPORTED)
def test_what_programs_import_from_modules_is_found(name: str) -> None:
    assert _find(names.UNEXPORTED[name]) is not None


@pytest.mark.parametrize("name", names.out())
def test_the_use_of_what_is_out_says_what_to_take_instead(name: str) -> None:
    found = functools.reduce(getattr, name.split("."), v1)
    assert found is functools.reduce(getattr, name.split("."), v1)
    subclass = type("Own", (found,), {})  # Libraries have such classes.
    for kind in (found, subclass):
        with pytest.raises(NotImplementedError, match=f"tf.estimator.{name} is not in tfdist. Use"):
            kind(units=3)
    with pytest.raises(AttributeError, match=f"{name} is not in tfdist. Use {names.out()[name]}"):
        _ = found.anything


def test_names_that_were_never_there_are_not_found() -> None:
    for module in (tfe, v1, tfe.experimental, v1.experimental, v1.tpu, v1.tpu.experimental):
        assert not hasattr(module, "Estimators")


def _parts(signature: str) -> list[str]:
    # The value of a default that only means "not given" is an implementation detail.
    return [part.removesuffix("=<unset>") for part in signature.split(", ")] if signature else []


def _is_superset(ours: str, theirs: str) -> bool:
    """Says whether every call by their signature is one by ours; ours may have more arguments."""
    if theirs == "*args, **kwargs":
        return True
    mine, requested = _parts(ours), _parts(theirs)
    more = mine[len(requested) :]
    return mine[: len(requested)] == requested and all(
        "=" in part or part[0] == "*" for part in more
    )


@pytest.mark.parametrize(
    ("place", "signatures"), [(place, listed) for _, place, listed in _recorded()]
)
def test_arguments_and_defaults_are_those_of_tf_estimator(
    place: str, signatures: dict[str, str]
) -> None:
    found = names.signatures(_find(place))
    for method, theirs in signatures.items():
        ours = found.get(method, "(no such method)")
        assert _is_superset(ours, theirs), f"{place}.{method}({ours}), but there ({theirs})"


def test_a_signature_may_only_grow_at_its_end() -> None:
    assert _is_superset("a, b=1", "a, b=1")
    assert _is_superset("a, b=1, c=2", "a, b=1")
    assert not _is_superset("a, b=2", "a, b=1")
    assert not _is_superset("a, c=2, b=1", "a, b=1")
    assert not _is_superset("a, b=1, c", "a, b=1")


def test_the_document_has_the_table() -> None:
    text = names.DOCUMENT.read_text()
    assert text.split(names.BEGIN)[1].split(names.END)[0] == names.table(), (
        "Run scripts/estimator_names.py table"
    )
    assert len(names.rows()) > 100
