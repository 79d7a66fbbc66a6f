"""The README's programs do what it says."""

import re
from pathlib import Path
from typing import Any

README = (Path(__file__).parents[2] / "README.md").read_text()
SMALLEST, MOVED, TEST = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_the_smallest_program_trains_on_two_workers_and_alone(
    fake_cluster: Any, tmp_path: Path
) -> None:
    model_dir = str(tmp_path / "model")
    script = tmp_path / "program.py"
    script.write_text(SMALLEST.replace('"model"', repr(model_dir)))
    first, second = fake_cluster.run_script([str(script)])
    weight = re.search(r"^weight \[\[(\S+)\]\]$", first.stdout, re.M)
    assert weight is not None
    assert abs(float(weight[1]) - 2.0) < 0.01
    assert second.stdout == "weight is on worker 0\n"

    script.write_text(script.read_text().replace("MultiWorkerStrategy())", "None)"))
    [alone] = fake_cluster.run_script([str(script)], engine="none")
    assert alone.stdout.startswith("weight [[")


def test_a_program_with_tf_estimators_own_names_runs(fake_cluster: Any, tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(MOVED)
    [ran] = fake_cluster.run_script([str(script)], engine="none")
    assert ran.stdout == "3\n"


def test_the_test_that_uses_the_fake_cluster_passes(fake_cluster: Any) -> None:
    namespace: dict[str, Any] = {}
    exec(TEST, namespace)
    namespace["test_sum_over_workers"](fake_cluster)
