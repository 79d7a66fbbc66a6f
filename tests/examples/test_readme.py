"""The programs of README and docs/ do what these pages say, and the links lead somewhere."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def _program(page: str) -> str:
    """Returns the only Python program of a page."""
    [program] = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    return str(program)


SMALLEST = _program("README.md")
MOVED = _program("docs/moving-from-tf-estimator.md")
TEST = _program("docs/testing.md")


def test_the_smallest_program_trains_on_two_workers_and_alone(
    fake_cluster: Any, run_program: Callable[..., list[Any]], tmp_path: Path
) -> None:
    model_dir = str(tmp_path / "model")
    script = tmp_path / "program.py"
    script.write_text(SMALLEST.replace('"model"', repr(model_dir)))
    first, second = run_program([str(script)])
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


def test_every_link_to_a_file_or_a_heading_leads_there() -> None:
    broken = []
    for page in (ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")):
        for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            name, _, heading = link.partition("#")
            target = page.parent / name if name else page
            is_there = target.exists() and (not heading or heading in _headings(target))
            if not is_there and "://" not in link:
                broken.append(f"{page.name}: {link}")
    assert broken == []


def _headings(page: Path) -> set[str]:
    """Returns how links name the headings of a page."""
    texts = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-") for text in texts}
