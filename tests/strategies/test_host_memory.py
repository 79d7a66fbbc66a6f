"""A process that keeps freed memory does not ask the system for it again, and has few arenas."""

import os
import subprocess
import sys

import pytest

from tfdist.strategies import host_memory

_FAULTS = """
import resource, runpy, sys
import numpy as np
keep_memory = runpy.run_path(sys.argv[1])["keep_memory"]  # Without TensorFlow.
size = 5 << 20
if sys.argv[2] == "kept":
    assert keep_memory({})
if sys.argv[2].startswith("large"):
    assert keep_memory({}, large_blocks=sys.argv[2] == "large, kept")
    size = 40 << 20
def use():
    for _ in range(4):
        blocks = [np.ones(size, np.uint8) for _ in range(4)]
        del blocks
use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
use()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""

_ARENAS = """
import ctypes, runpy, sys, threading
keep_memory = runpy.run_path(sys.argv[1])["keep_memory"]
if sys.argv[2] != "given back":
    assert keep_memory({"MALLOC_ARENA_MAX": "8"} if sys.argv[2] == "told" else {})
all_have = threading.Barrier(8)
def use():
    block = bytes(10_000)
    all_have.wait(20)
threads = [threading.Thread(target=use) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
ctypes.CDLL(None).malloc_stats()
"""


def _run(program: str, way: str) -> subprocess.CompletedProcess[str]:
    # Without advice about huge pages, which numpy gives, and which would count as few faults.
    environ = {"NUMPY_MADVISE_HUGEPAGE": "0"}
    command = [sys.executable, "-c", program, host_memory.__file__, way]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environ)
    assert done.returncode == 0, done.stderr
    return done


def _page_faults(way: str) -> int:
    return int(_run(_FAULTS, way).stdout)


def _arenas(way: str) -> int:
    return _run(_ARENAS, way).stderr.count("Arena ")


@pytest.mark.processes
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="GNU's C library is needed")
def test_kept_memory_is_used_again_without_page_faults() -> None:
    assert _page_faults("given back") > 4 * 5 * 256  # 4 KiB each; one round of four at least
    assert _page_faults("kept") < 100
    assert _page_faults("large") > 4 * 40 * 256
    assert _page_faults("large, kept") < 100


@pytest.mark.processes
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="GNU's C library is needed")
def test_threads_share_at_most_one_arena_for_each_core() -> None:
    cores = min(8, len(os.sched_getaffinity(0)))
    assert _arenas("kept") <= cores
    assert _arenas("told") == _arenas("given back") > cores or cores == 8


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
    monkeypatch.setattr(host_memory, "_keep", lambda limits_arenas, large_blocks: True)
    assert host_memory.keep_memory(environ) == expected
