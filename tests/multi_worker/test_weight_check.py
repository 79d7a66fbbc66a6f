"""A worker whose weights are not those of the others is found before a checkpoint is written."""

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def train(train_briefly: Any) -> Any:
    """Trains six steps, saving every third; worker 1 changes a weight after one of them."""

    def train(engine: str, folder: str, change_after: int, checked: tuple[int, int]) -> Any:
        def loss(index: int, weight: Any, features: Any) -> Any:
            import tensorflow as tf
            import tensorflow.compat.v1 as v1

            bias = v1.get_variable("bias", [2], initializer=v1.zeros_initializer())
            return tf.reduce_mean((tf.matmul(features, weight) + bias) ** 2)

        def hooks(index: int) -> list[Any]:
            import os
            from typing import Any  # a class's own names don't go to the workers by themselves

            import tensorflow.compat.v1 as v1

            os.environ["TFDIST_WEIGHT_CHECK"] = str(checked[index])

            class ChangeAWeight(v1.train.SessionRunHook):  # type: ignore[misc,name-defined]
                step = 0

                def begin(self) -> None:
                    self.change = v1.assign_add(v1.trainable_variables()[1], [0.0, 1e-6])

                def after_run(self, run_context: Any, run_values: Any) -> None:
                    self.step += 1
                    if self.step == change_after and index == 1:
                        run_context.session.run(self.change)

            return [ChangeAWeight()]

        folders = {"model_dir": lambda index: f"{folder}/{index}", "save_steps": 3}
        limits = {"limits": lambda index: {"steps": 6}}
        return train_briefly(engine, loss=loss, hooks=hooks, **folders, **limits)["error"]

    return train


@pytest.mark.parametrize(
    ("engine", "change_after", "found_after", "saved"),
    [("grpc", 2, 3, [0]), ("horovod", 6, 6, [0, 3, 6])],
)
def test_a_weight_that_one_worker_changed_is_found_before_the_next_checkpoint(
    fake_cluster: Any,
    train: Any,
    tmp_path: Path,
    engine: str,
    change_after: int,
    found_after: int,
    saved: list[int],
) -> None:
    ends = fake_cluster.run(train, engine, str(tmp_path), change_after, (1, 1), engine=engine)
    assert ends[0] == ends[1]
    assert ends[0].startswith(
        f"WeightsDifferError: After step {found_after} the weights of worker 1 are not those of "
        "worker 0, first in bias. They are not saved. "
    )
    assert {f.name for f in (tmp_path / "0").glob("*.index")} == {
        f"model.ckpt-{step}.index" for step in saved
    }


def test_workers_with_different_weights_go_on_where_the_check_is_switched_off(
    fake_cluster: Any, train: Any, tmp_path: Path
) -> None:
    ends = fake_cluster.run(train, "grpc", str(tmp_path), 2, (0, 0), engine="grpc")
    assert ends == [None, None]
    assert (tmp_path / "0" / "model.ckpt-6.index").exists()


def test_a_check_that_is_switched_off_on_one_worker_only_is_refused(
    fake_cluster: Any, train: Any, tmp_path: Path
) -> None:
    ends = fake_cluster.run(train, "grpc", str(tmp_path), 2, (1, 0), engine="grpc")
    assert ends[0] == ends[1]
    assert "TFDIST_WEIGHT_CHECK is True on worker 0 and False on worker 1." in ends[0]
