"""A process that keeps freed memory does not ask the system for it again."""

import subprocess
import sys

import pytest

from tfdist.strategies.reductions import host_memory

_FAULTS = """
import resource, runpy, sys
import numpy as np
keep_memory = runpy.run_path(sys.argv[1])["keep_memory"]  # Without TensorFlow.
if sys.argv[2] == "kept":
    assert keep_memory({})
def use():
    for _ in range(4):
        blocks = [np.ones(5 << 20, np.uint8) for _ in range(4)]
        del blocks
use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
use()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def _page_faults(way: str) -> int:
    # Without advice about huge pages, which numpy gives, and which would count as few faults.
    environ = {"NUMPY_MADVISE_HUGEPAGE": "0"}
    command = [sys.executable, "-c", _FAULTS, host_memory.__file__, way]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environ)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.processes
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="GNU's C library is needed")
def test_kept_memory_is_used_again_without_page_faults() -> None:
    assert _page_faults("given back") > 4 * 5 * 256  # 4 KiB each; one round of four at least
    assert _page_faults("kept") < 100


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, True),
        ({"GLIBC_TUNABLES": "glibc.cpu.x86_ibt=on"}, True),
        ({"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=65536"}, False),
        ({"MALLOC_TRIM_THRESHOLD_": "65536"}, False),
        ({"MALLOC_MMAP_THRESHOLD_": "65536"}, False),
    ],
)
def test_what_the_user_has_set_stays(
    environ: dict[str, str], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_memory, "_keep", lambda: True)
    assert host_memory.keep_memory(environ) == expected
