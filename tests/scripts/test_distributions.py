"""The source distribution and the wheel."""

import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]


def test_the_source_has_everything_and_the_wheel_the_package_alone(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=60)
    (source,), (wheel,) = tmp_path.glob("*.tar.gz"), tmp_path.glob("*.whl")
    with tarfile.open(source) as archive:
        in_source = {name.partition("/")[2] for name in archive.getnames()}
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.split()
    assert set(tracked) - {name for name in tracked if not (ROOT / name).exists()} <= in_source
    assert not {name for name in in_source if name.startswith((".venv", "tfdist-logs"))}
    with zipfile.ZipFile(wheel) as archive:
        [metadata] = [name for name in archive.namelist() if name.endswith("METADATA")]
        described = archive.read(metadata).decode()
        in_wheel = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert {name.partition("/")[0] for name in in_wheel} == {"tfdist"}
    assert {"tfdist/py.typed", "tfdist/launch/kubernetes/Dockerfile"} <= in_wheel
    # An index shows the README without the repository around it, but for programs' own brackets.
    links = re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```", "", described, flags=re.DOTALL))
    assert len(links) > 30
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
    for link in links:
        path = link.partition("/blob/main/")[2].partition("#")[0]
        assert (ROOT / path).exists(), link
