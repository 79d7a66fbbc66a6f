"""The programs of README and docs/ do what these pages say, and the links lead somewhere."""

import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def _program(page: str) -> str:
    """Returns the only Python program of a page."""
    [program] = _programs(page)
    return program


def _programs(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


MOVED = _program("docs/moving-from-tf-estimator.md")
TEST = _program("docs/testing.md")
# Commands of the README that take minutes; tests of their own run them.
LEFT_OUT = r"^(scripts/run|scripts/test)[.]sh.*|^pip install .*|^tfdist horovod install"
NUM_LEFT_OUT = 6
# The MNIST program as far as it is without training, which tests/examples/test_mnist.py has.
MNIST = """
import runpy
import sys
from tfdist.cluster.instances import find_instance

program = runpy.run_path({program!r})
arguments = program["parse_arguments"]()
program["check_environment"](arguments.strategy)
found = find_instance()
line = f"worker {{found.index}} of {{found.num_instances}} in {{arguments.model_dir}}"
# In one piece: without a buffer, `print` lets another rank write between its pieces.
sys.stdout.write(line + "\\n")
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder with what the README's commands need of a clone, set up with these packages."""
    activate = tmp_path / ".venv" / "bin" / "activate"
    activate.parent.mkdir(parents=True)
    activate.write_text(f"export PATH={shlex.quote(str(Path(sys.prefix, 'bin')))}:$PATH\n")
    mnist = tmp_path / "examples" / "mnist" / "train.py"
    mnist.parent.mkdir(parents=True)
    mnist.write_text(MNIST.format(program=str(ROOT / "examples" / "mnist" / "train.py")))
    names = ("smallest.py", "smallest_fit.py")
    for name, program in zip(names, _programs("README.md"), strict=True):
        (tmp_path / name).write_text(program)
    return tmp_path


@pytest.mark.processes
def test_the_readmes_commands_run_as_they_stand_one_after_the_other(
    clone: Path, paste: Callable[[str, Path], str]
) -> None:
    blocks = re.findall(r"```bash\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (of_second_terminal,) = [block for block in blocks if '"index": 1' in block]
    blocks.remove(of_second_terminal)
    script, num_left_out = re.subn(LEFT_OUT, ":", "\n".join(blocks), flags=re.MULTILINE)
    assert num_left_out == NUM_LEFT_OUT
    names_before = {path.name for path in clone.iterdir()}
    printed = paste(script, clone)
    weights = re.findall(r"weight \[\[(\S+)\]\]$", printed, re.M)
    assert [abs(float(weight) - 2.0) < 0.01 for weight in weights] == [True, True]
    predictions = re.findall(r"prediction \[(\S+)\]", printed)
    assert {abs(float(one) - 4.0) < 0.1 for one in predictions} == {True}
    assert len(predictions) >= 2
    # The first terminal, mpirun, tfdist run. Nothing is left over from one for the next.
    workers = re.findall(r"worker (\d) of 2 in (\w+)$", printed, re.M)
    assert workers[0] == ("0", "None")
    assert sorted(workers[1:]) == [("0", "None")] * 2 + [("1", "None")] * 2
    second = paste(f". .venv/bin/activate\n{of_second_terminal}", clone)
    assert second == "worker 1 of 2 in None\n"
    # Nothing of a run stays in the clone but the logs, which git ignores.
    made = {path.name for path in clone.iterdir()} - names_before
    assert made == {"tfdist-logs"}


def test_a_program_with_tf_estimators_own_names_runs(fake_cluster: Any, tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(MOVED)
    [ran] = fake_cluster.run_script([str(script)], engine="none", forked=True)
    assert ran.stdout == "3\n"


def test_the_test_that_uses_the_fake_cluster_passes(fake_cluster: Any) -> None:
    namespace: dict[str, Any] = {}
    exec(TEST, namespace)
    namespace["test_sum_over_workers"](fake_cluster)


def test_every_link_to_a_file_or_a_heading_leads_there() -> None:
    broken = []
    for page in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")):
        for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            name, _, heading = link.partition("#")
            target = page.parent / name if name else page
            is_there = target.exists() and (not heading or heading in _headings(target))
            if not is_there and "://" not in link:
                broken.append(f"{page.name}: {link}")
    assert broken == []


def test_no_page_installs_from_an_index_before_there_is_a_release() -> None:
    pages = (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.*"))
    texts = {page.name: page.read_text() for page in pages if page.suffix in (".md", ".ipynb")}
    found = r"pip install [^`\n]*tfdist\["
    assert [name for name, text in texts.items() if re.search(found, text)] == []


def _headings(page: Path) -> set[str]:
    """Returns how links name the headings of a page."""
    texts = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-") for text in texts}
