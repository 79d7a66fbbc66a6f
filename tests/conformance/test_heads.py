"""Heads over workers and replicas: weights as in one with the double batch."""

from pathlib import Path
from typing import Any

import numpy as np


def test_two_that_train_with_a_head_equal_one_with_the_double_batch(
    fake_cluster: Any, tmp_path: Path
) -> None:
    from head_training import train_heads

    [alone] = fake_cluster.run(train_heads, str(tmp_path / "alone"), 12, engine="none")
    [replicas] = fake_cluster.run(train_heads, str(tmp_path / "replicas"), 6, 2, engine="none")
    assert replicas.keys() == alone.keys()
    # A head knows the number of replicas, and not their strategy: workers train with two heads.
    workers, _ = fake_cluster.run(train_heads, str(tmp_path / "workers"), 6, 1, 2)
    for together in (replicas, workers):
        for case, weights in together.items():
            assert alone[case]["global_step"] == 4
            for name, value in alone[case].items():
                np.testing.assert_allclose(
                    weights[name], value, rtol=1e-6, atol=1e-6, err_msg=f"{case}, {name}"
                )
