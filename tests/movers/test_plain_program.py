"""A plain program leaves the same files, lines, events and numbers as with tf.estimator 2.15."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Both = tuple[Any, Any, Path, Path]


@pytest.fixture(scope="module")
def ran_before() -> list[Both]:
    """The results of `both` in this module."""
    return []


@pytest.fixture
def both(
    here: Callable[..., Any],
    there: Callable[..., Any],
    tmp_path_factory: pytest.TempPathFactory,
    ran_before: list[Both],
) -> Both:
    """The results of the program here and in 2.15, and the folders that each left."""
    if not ran_before:
        new, old = tmp_path_factory.mktemp("new"), tmp_path_factory.mktemp("old")
        ran = (here("plain.py", "--model-dir", new), there("plain.py", "--model-dir", old))
        ran_before.append((*ran, new, old))
    return ran_before[0]


def plain_lines(lines: list[str], model_dir: Path) -> list[str]:
    """Lines of a log without what differs between any two runs, and without losses and metrics."""
    changed = []
    for line in lines:
        line = line.replace(str(model_dir), "DIR")
        line = re.sub(r"\d{4}-\d\d-\d\d[-T]\d\d:\d\d:\d\d", "TIME", line)
        line = re.sub(r"-?\d+\.\d+(e-?\d+)?|(?<=sec: )\d+", "NUMBER", line)
        # TensorFlow's hook reads the step while the training op may be incrementing it.
        line = re.sub(r"(?<=, step = )\d+", "STEP", line)
        for start in ("Using config: ", "Summary for np.ndarray is not visible in Tensorboard"):
            if line.startswith(start):
                line = start
        changed.append(line)
    return changed


def test_metrics_predictions_and_variables_are_equal(
    both: Both, assert_close: Callable[[Any, Any], None]
) -> None:
    new, old, _, _ = both
    assert_close(new.result, old.result)
    assert list(new.result["metrics"]) == list(old.result["metrics"])


def test_the_files_have_the_same_names(both: Both, files_of: Callable[[Path], list[str]]) -> None:
    _, _, new_dir, old_dir = both
    assert files_of(new_dir) == files_of(old_dir)
    assert (new_dir / "checkpoint").read_text() == (old_dir / "checkpoint").read_text()


def test_the_log_has_the_same_lines(both: Both) -> None:
    new, old, new_dir, old_dir = both
    assert plain_lines(new.lines(), new_dir) == plain_lines(old.lines(), old_dir)
    assert own_warnings(new) == own_warnings(old) == []


def own_warnings(ran: Any) -> list[str]:
    """Warnings but for those that names will be removed, and TensorFlow's about the step: its hook
    reads the step while the training op may be incrementing it."""
    warnings = ran.lines("WARNING")
    return [one for one in warnings if "deprecated" not in one and "global step (tf" not in one]


def test_either_tensorflow_reads_the_same_events_from_both(
    both: Both, here: Callable[..., Any], there: Callable[..., Any]
) -> None:
    _, _, new_dir, old_dir = both
    read = []
    for folder in (new_dir, old_dir):
        folders = [folder, folder / "eval", folder / "eval_all"]
        for world in (here, there):
            events = world("events.py", *folders).result
            events["model_dir"] = events.pop(folder.name)
            read.append(events)
    # tfdist writes the graph once, while the training runs; tf.estimator twice, before it.
    graphs = ("graph_def", "meta_graph_def")
    for events in read:
        assert set(graphs) <= {what for what, _, _ in events["model_dir"]}
        events["model_dir"] = [one for one in events["model_dir"] if one[0] not in graphs]
    assert read[1:] == [read[0]] * 3
    steps = [
        step
        for what, step, values in read[0]["model_dir"]
        if ["loss", "simple_value", ""] in values
    ]
    assert steps == list(range(1, 11))
