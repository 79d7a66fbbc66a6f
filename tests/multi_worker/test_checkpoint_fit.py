"""A checkpoint that does not fit the model is refused on every worker, before the first step."""

from pathlib import Path
from typing import Any


def test_every_worker_refuses_what_worker_0s_checkpoint_does_not_fit(
    fake_cluster: Any, train_briefly: Any, tmp_path: Path
) -> None:
    # test_checkpoint_recovery.py has a checkpoint that is refused over gRPC.
    def train(units: int) -> list[str | None]:
        def loss(index: int, weight: Any, features: Any) -> Any:
            import tensorflow as tf
            import tensorflow.compat.v1 as v1

            return tf.reduce_mean(tf.matmul(features, v1.get_variable("kernel", [2, units])))

        options = {"loss": loss, "limits": lambda index: {"steps": 3}}
        folders = {"model_dir": lambda index: f"{tmp_path}/{index}"}
        ends = fake_cluster.run(train_briefly, "horovod", engine="horovod", **options, **folders)
        return [end["error"] for end in ends]

    assert train(3) == [None, None]
    before = {file.name: file.read_bytes() for file in (tmp_path / "0").glob("*ckpt*")}
    expected = (
        "CheckpointMismatchError: Restoring from checkpoint failed for a mismatch between "
        f"{tmp_path}/0/model.ckpt-3 and the model: kernel is float32 [2, 3] in the checkpoint and "
        "float32 [2, 5] in the model "
        "(variables that differ: 1 of 3). Use another model_dir, or the model that wrote the "
        "checkpoint."
    )
    assert train(5) == [expected, expected]
    assert {file.name: file.read_bytes() for file in (tmp_path / "0").glob("*ckpt*")} == before
