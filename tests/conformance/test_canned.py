"""Canned estimators over workers and replicas: weights as in one with the double batch."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest


@pytest.mark.timeout(300)
def test_two_that_train_a_canned_estimator_equal_one_with_the_double_batch(
    fake_cluster: Any, tmp_path: Path
) -> None:
    from canned_training import train_canned

    folder = str(tmp_path)
    alone = fake_cluster.run(train_canned, folder, 12, None, engine="none")[0]
    for way, num_workers in (("grpc", 2), ("horovod", 2), ("replicas", 1)):
        engine = way if num_workers == 2 else "none"
        options = {"engine": engine, "num_workers": num_workers, "timeout_s": 120}
        together = fake_cluster.run(train_canned, folder, 6, folder, way, **options)[0]
        for case in together:
            assert alone[case]["global_step"] == 4
            for name, value in alone[case].items():
                where = f"{way}, {case}, {name}"
                np.testing.assert_allclose(
                    together[case][name], value, rtol=1e-6, atol=1e-6, err_msg=where
                )
