"""The Estimator of tf.compat.v1, which also has `export_savedmodel`."""

from __future__ import annotations

import os
from abc import ABCMeta

import tensorflow.compat.v1 as v1

from tfdist.estimator import estimator as v2
from tfdist.estimator.evaluation.saved_model import ReceiverFn
from tfdist.estimator.spec import ModeKeys


class Estimator(v2.Estimator, metaclass=ABCMeta):
    """The v1 Estimator, which also has `export_savedmodel`.

    Every Estimator is an instance of it, since in tf.estimator it is the base class of all.

    Args:
      model_fn: A function of `features` and any of `labels`, `mode`, `params`, `config` that builds
        one model in the current graph and returns an `EstimatorSpec`. It runs on the device.
      model_dir: Folder of checkpoints and event files. None takes the config's folder; without one,
        a temporary folder.
      config: A `RunConfig`; None is `RunConfig()`.
      params: Passed to model_fn and input_fn, copied.
      warm_start_from: A path or `WarmStartSettings`, for training and evaluation while model_dir
        has no checkpoint.
      train_batch_size: Examples that all replicas of all workers read in one step of training.
        params["batch_size"] in input_fn and model_fn is the number that each replica reads.
      eval_batch_size: The same for evaluating.
      predict_batch_size: The same for predicting.
    """

    @classmethod
    def __subclasshook__(cls, other: type) -> bool:
        return issubclass(other, v2.Estimator) if cls is Estimator else NotImplemented

    def export_savedmodel(
        self,
        export_dir_base: str | os.PathLike[str],
        serving_input_receiver_fn: ReceiverFn,
        assets_extra: dict[str, str] | None = None,
        as_text: bool = False,
        checkpoint_path: str | None = None,
        strip_default_attrs: bool = False,
    ) -> bytes:
        """Exports a SavedModel as `export_saved_model` does, but keeps default-valued attributes.

        The other arguments are as in `export_saved_model`. `strip_default_attrs` is whether to
        leave default-valued attributes out, as that does. Older TensorFlow versions can then read
        the export.
        """
        v1.logging.warning(
            "export_savedmodel is deprecated: use export_saved_model, which tf.estimator has, too."
        )
        if serving_input_receiver_fn is None:
            raise ValueError("serving_input_receiver_fn must be defined.")
        return self._export_all_saved_models(
            export_dir_base,
            {ModeKeys.PREDICT: serving_input_receiver_fn},
            assets_extra=assets_extra,
            as_text=as_text,
            checkpoint_path=checkpoint_path,
            strip_default_attrs=strip_default_attrs,
        )
