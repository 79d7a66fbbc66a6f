"""Fresh processes that do one step each: how long it takes until that is done."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from contender import program, tf_configs
from turn_taking import ContenderError

TIMEOUT_S = 180.0


def first_step_s(work: str, engine: str, cores: Sequence[int], num_workers: int = 1) -> float:
    """Starts the workers at once; returns seconds until the last one has done its first step.

    Args:
      work: What is trained.
      engine: "plain", "none" or "grpc"; see contenders/first_step.py.
      cores: One for each worker.
      num_workers: How many.

    Raises:
      ContenderError: If a worker fails, or takes too long.
    """
    environs = tf_configs(num_workers) if engine == "grpc" else [{}] * num_workers
    shared = {"TFDIST_BENCHMARK_CORES": ",".join(map(str, cores)), "TF_ENABLE_ONEDNN_OPTS": "1"}
    with tempfile.TemporaryDirectory(prefix="tfdist-benchmark-") as folder, ExitStack() as stack:
        outputs = [Path(folder, f"output-{index}") for index in range(num_workers)]
        start_s = time.monotonic()
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    program("first_step.py", work, engine, str(index)),
                    env={**os.environ, **shared, **environ},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=stack.enter_context(output.open("wb")),
                    text=True,
                    start_new_session=True,
                )
            )
            for index, (environ, output) in enumerate(zip(environs, outputs, strict=True))
        ]
        try:
            printed = [process.communicate(timeout=TIMEOUT_S)[0] for process in processes]
        except subprocess.TimeoutExpired:
            raise ContenderError(f"first step, {engine}: not done in {TIMEOUT_S:.0f} s.") from None
        finally:
            for process in processes:
                process.kill()  # Nothing happens to one that has ended.
        for process, output in zip(processes, outputs, strict=True):
            if process.returncode != 0:
                lines = output.read_text(errors="replace").splitlines() or ["It printed nothing."]
                raise ContenderError(
                    f"first step, {engine}: exit code {process.returncode}. {lines[-1].strip()}"
                )
        return max(json.loads(text.splitlines()[-1])["done_s"] for text in printed) - start_s
