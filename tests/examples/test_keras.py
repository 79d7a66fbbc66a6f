"""The examples in `keras/`, alone and on two workers."""

import ast
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples" / "keras"


def _metrics(printed: list[Any]) -> dict[str, float]:
    metrics: dict[str, float] = json.loads(printed[0].stdout.splitlines()[-1])
    assert all("{" not in worker.stdout for worker in printed[1:])
    return metrics


@pytest.mark.parametrize(("program", "engine"), [("mnist.py", "horovod"), ("own_loop.py", "grpc")])
def test_two_workers_reach_what_one_process_reaches(
    run_program: Callable[..., list[Any]], program: str, engine: str
) -> None:
    arguments = [str(EXAMPLES / program), *(["--epochs", "1"] if program == "mnist.py" else [])]
    alone = _metrics(run_program(arguments, engine="none"))
    together = _metrics(run_program(arguments, engine=engine, num_workers=2))
    assert together == pytest.approx(alone, abs=2e-3)
    assert together.get("accuracy", 1.0) > 0.85


@pytest.mark.processes
def test_the_notebook_trains_on_two_workers_as_its_committed_output_says(
    run_notebook: Callable[[Any], None],
) -> None:
    import nbformat

    notebook = nbformat.read(EXAMPLES / "two_workers.ipynb", as_version=4)
    committed, _ = _values(notebook)
    run_notebook(notebook)
    metrics, are_weights_equal = _values(notebook)
    assert metrics[0] == metrics[1] == pytest.approx(committed[0], abs=0.01)
    assert are_weights_equal
    last = "".join(output["text"] for output in notebook.cells[-1]["outputs"])
    assert "worker 1 failed first" in last
    assert last.endswith("\nValueError('the digits of worker 1 are missing')\n")


def _values(notebook: Any) -> list[Any]:
    """Returns the values of the cells that end with one."""
    data = [
        output["data"]["text/plain"]
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if output["output_type"] == "execute_result"
    ]
    return [ast.literal_eval(text) for text in data]
