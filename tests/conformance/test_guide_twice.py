"""The features of tf.estimator's guides: the same numbers twice in a process, over both engines."""

from pathlib import Path
from typing import Any

import numpy as np


def test_a_second_round_in_the_process_gives_the_numbers_of_the_first_over_grpc_and_horovod(
    fake_cluster: Any, tmp_path: Path
) -> None:
    from guide_twice import run_twice

    found = {}
    for engine in ("grpc", "horovod"):
        folder = tmp_path / engine
        folder.mkdir()
        [found[engine], _] = fake_cluster.run(run_twice, str(folder), engine=engine, timeout_s=200)
    for engine, (first, second) in found.items():
        assert len(second) > 20
        assert first["exported"] == second["exported"] == 1
        for name, value in second.items():
            np.testing.assert_allclose(first[name], value, atol=1e-6, err_msg=f"{engine} {name}")
        for name, value in first.items():
            np.testing.assert_allclose(found["grpc"][0][name], value, atol=1e-5, err_msg=name)
