"""MemoryHook: what a training's process and its GPUs use."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import tensorflow as tf

from tfdist.monitoring import MemoryHook
from tfdist.monitoring.memory import MemoryUse, describe, gpu_memory, host_memory, tags

Train = Callable[..., Any]

USES = [
    MemoryUse(place="host", now_bytes=1500 * 2**20, peak_bytes=2048 * 2**20),
    MemoryUse(place="GPU:0", now_bytes=2**20, peak_bytes=3 * 2**20),
]


def test_a_peak_stays_after_memory_is_freed() -> None:
    before = host_memory()
    block = bytearray(b"x") * (before.peak_bytes - before.now_bytes + 64 * 2**20)
    during = host_memory()
    del block
    after = host_memory()
    assert during.now_bytes > before.now_bytes + 60 * 2**20
    assert during.peak_bytes > before.peak_bytes + 50 * 2**20
    assert after.now_bytes < during.now_bytes - 60 * 2**20
    # Linux writes a peak down later than it shows it, up to a few pages.
    assert after.peak_bytes > during.peak_bytes - 2**20
    assert after.now_bytes == pytest.approx(psutil.Process().memory_info().rss, rel=0.05)


def test_one_line_says_everything() -> None:
    assert describe(USES) == ("memory: host 1,500 MiB (peak 2,048 MiB); GPU:0 1 MiB (peak 3 MiB)")
    assert tags(USES) == {
        "memory/host_now_mib": 1500,
        "memory/host_peak_mib": 2048,
        "memory/GPU_0_now_mib": 1,
        "memory/GPU_0_peak_mib": 3,
    }


def test_each_gpu_is_asked_and_one_without_statistics_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Replaces TensorFlow's functions about GPUs, since tests run without one."""

    def info(place: str) -> dict[str, int]:
        if place == "GPU:1":
            raise ValueError("Allocator stats not available")
        return {"current": 5, "peak": 7}

    names = [SimpleNamespace(name=f"/device:GPU:{index}") for index in range(2)]
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: names)
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: names)
    monkeypatch.setattr(tf.config.experimental, "get_memory_info", info)
    assert gpu_memory() == [MemoryUse(place="GPU:0", now_bytes=5, peak_bytes=7)]


@pytest.mark.parametrize("iterations", [1, 2])
def test_each_interval_is_reported_and_written(
    train: Train, tmp_path: Path, logged: list[str], read_events: Any, iterations: int
) -> None:
    hook = MemoryHook(every_n_steps=4, output_dir=tmp_path / "memory")
    train([hook], steps=10, iterations=iterations)
    lines = [line for line in logged if line.startswith("memory: host ")]
    assert len(lines) == 2
    assert lines[-1] == describe(hook.last)
    events = read_events(tmp_path / "memory")
    assert {tag: [step for step, _ in found] for tag, found in events.items()} == {
        tag: [4, 8] for tag in tags(hook.last)
    }
    assert events["memory/host_peak_mib"][-1][1] == pytest.approx(hook.last[0].peak_bytes / 2**20)


def test_summaries_can_be_left_out_and_an_interval_is_checked(train: Train) -> None:
    hook = MemoryHook(every_n_steps=2)
    train([hook], steps=1)
    assert hook.last == []
    with pytest.raises(ValueError, match="every_n_steps must be an integer of at least 1, got 0"):
        MemoryHook(every_n_steps=0)
