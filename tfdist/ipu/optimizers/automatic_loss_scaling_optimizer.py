"""`ipu.optimizers.automatic_loss_scaling_optimizer`: a loss scale that follows the gradients."""

from __future__ import annotations

from typing import Any

from tfdist import training
from tfdist.cluster.arguments import check_number
from tfdist.cluster.tasks import checked_count


class AutomaticLossScalingOptimizer(training.LossScaleOptimizer):
    """`tfdist.training.LossScaleOptimizer` by `HistogramLossScale`, with the original's arguments.

    A step whose reduced gradients are not finite is skipped: the original's device saturates
    instead.

    Args:
      opt: The optimizer.
      initial_loss_scaling_factor: The first scale.
      update_frequency: The number of steps between two changes of the scale.
      increase_factor: The factor by which the scale rises.
      decrease_factor: The factor by which it falls.
      max_loss_scaling_factor: The scale stays below it.
      accumulate_statistics_over_update_period: Whether the values of all steps since the last
        change are counted, or only those of the last step.
      ratio_threshold: The share of saturated values above which the scale falls.
      name: Has no effect.

    Raises:
      ValueError: If a number is out of the original's range.
    """

    def __init__(
        self,
        opt: Any,
        initial_loss_scaling_factor: float = 1,
        update_frequency: int = 8,
        increase_factor: float = 2,
        decrease_factor: float = 0.5,
        max_loss_scaling_factor: float = 32768,
        accumulate_statistics_over_update_period: bool = True,
        ratio_threshold: float = 1e-5,
        name: str = "AutomaticLossScalingOptimizer",
    ) -> None:
        checked_count("update_frequency", update_frequency)
        largest = check_number("max_loss_scaling_factor", max_loss_scaling_factor, above=1)
        increase = check_number("increase_factor", increase_factor, above=0)
        check_number("decrease_factor", decrease_factor, above=0, below=increase)
        # The first scale is below the largest one, and so is the next.
        limit = largest / max(increase, 1.0)
        first = check_number(
            "initial_loss_scaling_factor", initial_loss_scaling_factor, above=0, below=limit
        )
        rule = training.HistogramLossScale(
            initial_scale=first,
            update_steps=update_frequency,
            increase_factor=increase,
            decrease_factor=decrease_factor,
            min_scale=min(1.0, first),
            max_scale=largest,
            ratio_threshold=ratio_threshold,
            accumulates=bool(accumulate_statistics_over_update_period),
        )
        super().__init__(opt, rule)
