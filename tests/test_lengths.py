"""Lengths in the tests: no test over 60 lines, and no function within another one over 40."""

import ast
from collections.abc import Iterator
from pathlib import Path

FOLDER = Path(__file__).parent
TEST_LINES = 60
NESTED_LINES = 40


def _too_long(path: Path) -> Iterator[str]:
    """Names the functions of a file that are too long, with those around them."""

    def look(node: ast.AST, names: list[str]) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield from look(child, names)
                continue
            lines = (child.end_lineno or 0) - child.lineno + 1
            inner = [*names, child.name]
            if lines > (NESTED_LINES if names else TEST_LINES):
                yield f"{path.relative_to(FOLDER)}: {'.'.join(inner)}"
            yield from look(child, inner)

    yield from look(ast.parse(path.read_text(encoding="utf-8")), [])


def test_no_function_is_too_long() -> None:
    found = {name for path in FOLDER.rglob("*.py") for name in _too_long(path)}
    assert found == set(), "split these"
