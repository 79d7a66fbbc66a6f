"""Heads over workers and replicas: weights as in one with the double batch."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest


@pytest.mark.timeout(200)
def test_two_that_train_with_a_head_equal_one_with_the_double_batch(
    fake_cluster: Any, tmp_path: Path
) -> None:
    from head_training import train_heads

    folder = str(tmp_path)
    alone = fake_cluster.run(train_heads, folder, 12, engine="none")[0]
    for way, num_workers in (("grpc", 2), ("horovod", 2), ("replicas", 1)):
        engine = way if num_workers == 2 else "none"
        options = {"engine": engine, "num_workers": num_workers, "timeout_s": 120}
        together = fake_cluster.run(train_heads, folder, 6, way, **options)[0]
        assert len(together) == (5 if way == "grpc" else 2)
        for case in together:
            assert alone[case]["global_step"] == 4
            for name, value in alone[case].items():
                where = f"{way}, {case}, {name}"
                np.testing.assert_allclose(
                    together[case][name], value, rtol=1e-6, atol=1e-6, err_msg=where
                )
