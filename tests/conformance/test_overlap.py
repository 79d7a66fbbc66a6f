"""A reduction starts while the device still computes gradients."""

from typing import Any

import pytest


def _trace_deep_model(engine: str, accumulation: int) -> list[tuple[int, int]]:
    """Trains eight dense layers (8 MB of gradients) and times steps.

    Returns for each traced step, in microseconds: when the first reduction started, and when the
    backward pass (of the last micro-batch) ended.
    """
    import tempfile

    import numpy as np
    import tensorflow as tf
    import tensorflow.compat.v1 as v1

    import tfdist.estimator as tfe
    from tfdist.strategies import HorovodStrategy, MultiWorkerStrategy

    strategy = {"grpc": MultiWorkerStrategy, "horovod": HorovodStrategy}[engine]()

    def input_fn() -> tf.data.Dataset:
        return tf.data.Dataset.from_tensors(np.ones([256, 512], np.float32)).repeat()

    def model_fn(features: Any, mode: str) -> tfe.EstimatorSpec:
        hidden = features
        for layer in range(8):
            start = v1.truncated_normal_initializer(stddev=0.05)
            weights = v1.get_variable(f"layer_{layer}", [512, 512], initializer=start)
            hidden = tf.nn.tanh(tf.matmul(hidden, weights))
        loss = tf.reduce_mean(tf.square(hidden))
        optimizer = v1.train.GradientDescentOptimizer(0.1)
        pairs = optimizer.compute_gradients(loss)

        def apply_on_host(*gradients: Any) -> tf.Operation:
            return optimizer.apply_gradients(zip(gradients, [v for _, v in pairs], strict=True))

        return tfe.EstimatorSpec(mode, loss=loss, host_call=(apply_on_host, [g for g, _ in pairs]))

    timelines: list[tuple[int, int]] = []

    class Trace(v1.train.SessionRunHook):  # type: ignore[misc,name-defined]
        def before_run(self, run_context: Any) -> Any:
            options = v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE)
            return v1.train.SessionRunArgs(None, options=options)

        def after_run(self, run_context: Any, run_values: Any) -> None:
            starts, ends = [], []
            for device in run_values.run_metadata.step_stats.dev_stats:
                for node in device.node_stats:
                    end = node.all_start_micros + node.all_end_rel_micros
                    label = node.timeline_label.lower()
                    is_reduction = "reduce(" in label or "= queueenqueue" in label
                    if "all_reduce/" in node.node_name and is_reduction:
                        starts.append(node.all_start_micros)
                    elif node.node_name.startswith("gradients/MatMul"):
                        ends.append(end)
            timelines.append((min(starts), max(ends)))

    device = tfe.DeviceConfig(gradient_accumulation=accumulation)
    config = tfe.RunConfig(train_distribute=strategy, device=device)
    estimator = tfe.Estimator(model_fn, tempfile.mkdtemp(), config)
    estimator.train(input_fn, hooks=[Trace()], max_steps=8)
    return timelines


@pytest.mark.parametrize(("engine", "accumulation"), [("grpc", 1), ("horovod", 2)])
def test_a_reduction_starts_before_the_backward_pass_ends(
    fake_cluster: Any, engine: str, accumulation: int
) -> None:
    for timelines in fake_cluster.run(_trace_deep_model, engine, accumulation, engine=engine):
        assert len(timelines) == 8
        # On two busy cores a step may be scheduled so that it does not overlap. Where reductions
        # wait for the backward pass, none does.
        overlapping = sum(start < end for start, end in timelines)
        assert overlapping >= 3, timelines
