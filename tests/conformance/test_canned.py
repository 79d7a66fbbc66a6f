"""Canned estimators over workers and replicas: weights as in one with the double batch."""

from pathlib import Path
from typing import Any

import numpy as np


def test_two_that_train_a_canned_estimator_equal_one_with_the_double_batch(
    fake_cluster: Any, tmp_path: Path
) -> None:
    from canned_training import train_canned

    start = str(tmp_path / "alone")
    [alone] = fake_cluster.run(train_canned, start, 12, engine="none")
    [replicas] = fake_cluster.run(
        train_canned, str(tmp_path / "replicas"), 6, start, 2, engine="none"
    )
    workers, _ = fake_cluster.run(train_canned, str(tmp_path / "workers"), 6, start, 1)
    for together in (replicas, workers):
        for case, weights in together.items():
            assert alone[case]["global_step"] == 4
            for name, value in alone[case].items():
                np.testing.assert_allclose(
                    weights[name], value, rtol=1e-6, atol=1e-6, err_msg=f"{case}, {name}"
                )
