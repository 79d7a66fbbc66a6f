"""The API reference: every argument of every public callable is described."""

import importlib.util
import re
from pathlib import Path
from typing import Any

import griffe
import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.processes  # griffe asks git for the root of the repository
def test_every_argument_of_the_reference_is_described() -> None:
    extension = _extension()
    package: Any = griffe.load(
        "tfdist",
        extensions=griffe.load_extensions(extension.ReferencedArguments),
        search_paths=[str(ROOT)],
    )
    left, num_seen = {}, 0
    for page in (ROOT / "docs" / "reference").glob("*.md"):
        for path in re.findall(r"^::: tfdist\.(\S+)", page.read_text(), re.MULTILINE):
            shown = package[path]
            names = [str(name) for name in shown.exports or []] if shown.is_module else []
            members = [shown[name] for name in names if name in shown.members] or [shown]
            for member in members:
                one = member.final_target if member.is_alias else member
                if one.docstring is None or not (one.is_function or one.is_class):
                    continue
                for part in (one, *(extension.shown(one) if one.is_class else ())):
                    num_seen += 1
                    if missing := extension.missing(part):
                        left[part.path] = missing
    assert left == {}
    assert num_seen > 290


def _extension() -> Any:
    path = ROOT / "docs" / "site" / "griffe_arguments.py"
    spec = importlib.util.spec_from_file_location("griffe_arguments", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
