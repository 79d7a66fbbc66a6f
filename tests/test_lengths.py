"""Lengths in the tests: no test over 60 lines, and no function within another one over 40."""

import ast
from collections.abc import Iterator
from pathlib import Path

FOLDER = Path(__file__).parent
TEST_LINES = 60
NESTED_LINES = 40

# Functions that are not split yet: remove an entry with the split, and add none.
NOT_YET_SPLIT = {
    "conformance/test_canned.py: _train_canned",
    "conformance/test_heads.py: _train_heads",
    "conformance/test_hooks.py: run",
    "conformance/test_hooks.py: run.train",
    "conformance/test_hooks.py: test_the_same_hooks_on_all_workers_do_their_work.hooks",
    "conformance/test_pipelined.py: run_pipeline",
    "conformance/test_pipelined.py: run_pipeline.run_pipeline",
    "conformance/test_whole_programs.py: program",
    "conformance/test_whole_programs.py: program.program",
    "faults/conftest.py: run_to_fault.run",
    "multi_worker/conftest.py: train_briefly",
    "multi_worker/conftest.py: train_briefly.train_briefly",
    "multi_worker/test_exchange.py: train",
    "multi_worker/test_exchange.py: train.train",
}


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
    assert found - NOT_YET_SPLIT == set(), "split these"
    assert NOT_YET_SPLIT - found == set(), "these are split: remove them from the list"
