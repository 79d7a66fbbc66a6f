"""The programs and commands of docs/tutorial.md do what the page says."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "tutorial.md").read_text()


@pytest.mark.processes
def test_the_tutorial_trains_alone_and_with_two_workers_and_serves(
    paste: Callable[[str, Path], str], tmp_path: Path
) -> None:
    names = re.findall(r"Save this as `(\w+\.py)`", PAGE)
    programs = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    for name, program in zip(names, programs, strict=True):
        (tmp_path / name).write_text(program)
    commands = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    printed = paste("\n".join(commands), tmp_path)
    right = re.findall(r"step 300: (\S+)% of the test rows are right$", printed, re.MULTILINE)
    assert len(right) == 2  # Alone, and once with two workers.
    assert all(float(share) > 90 for share in right)  # By their first weights 96 to 99.
    served = re.findall(r"^(\S+) is large with probability (\S+)$", printed, re.MULTILINE)
    assert served == [("0.9x0.8", "1.00"), ("0.3x0.2", "0.00")]
