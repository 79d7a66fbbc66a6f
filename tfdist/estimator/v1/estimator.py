"""The Estimator of tf.compat.v1, which also has `export_savedmodel`."""

from __future__ import annotations

import os

import tensorflow.compat.v1 as v1

from tfdist.estimator import estimator as v2
from tfdist.estimator.evaluation.saved_model import ReceiverFn
from tfdist.estimator.spec import ModeKeys


class _AnyEstimator(type):
    """Metaclass that makes every Estimator an instance of the v1 `Estimator`.

    In tf.estimator, the v1 class is the base class of all Estimators.
    """

    def __instancecheck__(cls, instance: object) -> bool:
        if cls is Estimator:
            return isinstance(instance, v2.Estimator)
        return super().__instancecheck__(instance)

    def __subclasscheck__(cls, subclass: type) -> bool:
        if cls is Estimator:
            return issubclass(subclass, v2.Estimator)
        return super().__subclasscheck__(subclass)


class Estimator(v2.Estimator, metaclass=_AnyEstimator):
    """The v1 Estimator, which also has `export_savedmodel`."""

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

        The other arguments are those of `export_saved_model`. `strip_default_attrs` is whether to
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
