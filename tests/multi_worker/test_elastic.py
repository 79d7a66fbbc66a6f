"""A run that goes on with fewer workers."""

import sys
from pathlib import Path
from typing import Any

import elastic_training
import numpy as np
import pytest
from forking_launcher import FORKING_LAUNCHER

pytestmark = pytest.mark.processes


def _train(folder: str) -> None:
    import elastic_training

    elastic_training.train(f"{folder}/model", [])


def test_one_worker_of_two_goes_on_to_the_weights_of_both_if_the_global_batch_stays(
    fake_cluster: Any, saved: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "undisturbed").mkdir()
    fake_cluster.run(_train, str(tmp_path / "undisturbed"))
    options = ("--num-instances=2", "--min-instances=1", "--max-restarts=2")
    program = (elastic_training.__file__, str(tmp_path / "model"), "8", "13")
    words = [FORKING_LAUNCHER, "run", *options, "--", sys.executable, *program]
    [ended] = fake_cluster.run_script(
        words, engine="none", forked=True, check=False, env={"TF_USE_LEGACY_KERAS": "1"}
    )
    assert ended.returncode == 0, ended.stderr
    assert "worker 1 has failed twice in a row: going on with 1 of 2 instances" in ended.stderr
    assert "a step has 1/2 of its examples now if the batch size is each worker's" in ended.stderr
    assert "table [8, 4] is divided between 2 workers: 64 of 128 bytes in each." in ended.stderr
    assert "size factor 1.0" in ended.stdout and ended.stdout.count("size factor 0.5") == 1
    found, expected = saved(tmp_path), saved(tmp_path / "undisturbed")
    assert found.keys() == expected.keys() and found["global_step"] == elastic_training.STEPS
    assert {"dense/kernel/Momentum", "table/Momentum"} <= found.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-6, err_msg=name)
