"""One program with most of what an Estimator offers, equal over every engine and over replicas."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

WORKERS = {"grpc": 2, "horovod": 2, "none": 1}


@pytest.fixture
def old_checkpoint(tmp_path: Path) -> str:
    import tensorflow as tf
    import tensorflow.compat.v1 as v1

    with tf.Graph().as_default(), v1.Session() as session:
        v1.get_variable("table", initializer=np.linspace(-1, 1, 40).reshape(10, 4).astype("f"))
        v1.get_variable("bias", initializer=np.array([0.25], np.float32))
        session.run(v1.global_variables_initializer())
        return str(v1.train.Saver().save(session, str(tmp_path / "old" / "model.ckpt")))


def test_it_computes_the_same_over_every_engine_and_over_replicas(
    fake_cluster: Any, old_checkpoint: str, tmp_path: Path
) -> None:
    from whole_program import run_program

    found = {}
    for engine, replicas in (("none", 1), ("none", 2), ("horovod", 1), ("grpc", 2)):
        folder = str(tmp_path / f"{engine}-{replicas}")
        found[engine, replicas] = fake_cluster.run(
            run_program,
            engine,
            folder,
            old_checkpoint,
            replicas,
            engine=engine,
            num_workers=WORKERS[engine],
        )[0]
    alone = found["none", 1]
    assert alone["values"]["global_step"] == 3
    # From zeros all columns would be equal: their difference comes from the old checkpoint.
    np.testing.assert_allclose(np.ptp(alone["values"]["table"], axis=1), 0.15385, atol=0.05)
    np.testing.assert_allclose(alone["served"], alone["predicted"], atol=1e-6)
    for way, other in found.items():
        for name, value in alone["values"].items():
            np.testing.assert_allclose(
                other["values"][name], value, atol=2e-6, err_msg=f"{way} {name}"
            )
        assert other["metrics"] == pytest.approx(alone["metrics"], abs=1e-5), way
        np.testing.assert_allclose(other["predicted"], alone["predicted"], atol=1e-5)
        np.testing.assert_allclose(other["served"], alone["served"], atol=1e-5)
