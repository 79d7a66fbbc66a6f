"""Stand-ins for savers and listeners, as tests of programs have them: no more is asked of them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import tensorflow as tf
import tensorflow.compat.v1 as v1

import tfdist.estimator as tfe
from tfdist.estimator.export import build_raw_serving_input_receiver_fn

Make = Callable[..., Any]


def test_a_stand_in_for_a_saver_saves_and_restores(
    dense: Make, numbers: Make, tmp_path: Path
) -> None:
    savers = []
    plain = dense("sgd")

    def model_fn(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
        spec = plain(features, labels, mode)
        saver = v1.train.Saver()
        savers.append(mock.Mock(wraps=saver, saver_def=saver.saver_def))
        return spec._replace(scaffold=v1.train.Scaffold(saver=savers[-1]))

    estimator = tfe.Estimator(model_fn, tmp_path).train(numbers(), steps=1)
    estimator.evaluate(numbers(), steps=1)
    next(iter(estimator.predict(numbers(batches=1))))
    receiver_fn = build_raw_serving_input_receiver_fn({"x": tf.zeros([1, 2])})
    estimator.export_saved_model(tmp_path / "export", receiver_fn)
    trained, *others = savers
    assert trained.save.call_count == 2
    assert [saver.restore.call_count for saver in others] == [1, 1, 1]


def test_a_stand_in_for_a_listener_is_called_around_each_checkpoint(
    dense: Make, numbers: Make, tmp_path: Path
) -> None:
    listener = mock.Mock(spec=v1.train.CheckpointSaverListener)
    listener.after_save.return_value = None
    estimator = tfe.Estimator(
        dense("sgd"), config=tfe.RunConfig(tmp_path, save_checkpoints_steps=1)
    )
    estimator.train(numbers(), steps=2, saving_listeners=[listener])
    assert listener.before_save.call_count == listener.after_save.call_count == 3
