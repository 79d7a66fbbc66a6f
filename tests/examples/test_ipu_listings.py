"""The original's two programs, with only their import lines changed."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "ipu"


@pytest.mark.parametrize(
    ("engine", "script"),
    [
        ("grpc", "distributed_training_example.py"),
        ("horovod", "distributed_training_horovod_example.py"),
    ],
)
def test_the_program_runs_to_the_end(
    run_program: Callable[..., list[Any]], tmp_path: Path, engine: str, script: str
) -> None:
    workers = run_program(
        [str(FOLDER / script), "--num-steps", "20", "--model-dir", str(tmp_path / "model")],
        engine=engine,
        env={"HOME": str(tmp_path), "https_proxy": "http://127.0.0.1:9"},
    )
    losses = [re.findall(r"Loss for final step: (\S+)\.$", w.stderr, re.M) for w in workers]
    assert losses[0] == losses[1]
    assert float(losses[0][0]) < 1.5
    assert "using the bundled sample" in workers[0].stderr
    gradients = "host_call: 6 gradients (1.39 MB) from /device:CPU:1 to /device:CPU:0"
    assert gradients in workers[0].stderr
    assert (tmp_path / "model" / "model.ckpt-20.index").exists()
    if engine == "grpc":
        assert "Saving dict for global step 20: accuracy = " in workers[0].stderr
