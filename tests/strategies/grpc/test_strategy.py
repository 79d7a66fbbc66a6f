"""TensorFlow 2 over gRPC in a process that cannot use it any more: refused in one line."""

from typing import Any

import pytest

pytestmark = pytest.mark.processes


def _error_of_scope(strategy: Any) -> str:
    from tfdist.strategies.grpc.strategy import StrategyTooLateError

    with pytest.raises(StrategyTooLateError) as caught, strategy.scope():
        pass
    return str(caught.value)


def after_a_session() -> str:
    from tfdist.strategies import MultiWorkerStrategy
    from tfdist.strategies.self_test import train_one_step

    strategy = MultiWorkerStrategy()
    assert train_one_step(strategy) == 0.5
    return _error_of_scope(strategy)


def after_an_operation() -> str:
    import tensorflow as tf

    from tfdist.strategies import MultiWorkerStrategy

    tf.zeros([])
    return _error_of_scope(MultiWorkerStrategy())


def in_a_function() -> str:
    import tensorflow as tf

    from tfdist.strategies import MultiWorkerStrategy
    from tfdist.strategies.eager.dialect import NotJoinedError

    strategy = MultiWorkerStrategy()
    reduce = tf.function(lambda: strategy.reduce("SUM", tf.ones([]), axis=None))
    with pytest.raises(NotJoinedError) as caught:
        reduce()
    return str(caught.value).rpartition("NotJoinedError: ")[2]


@pytest.mark.parametrize(
    ("program", "line"),
    [
        (after_a_session, "This process has trained in graphs over gRPC, as an Estimator does"),
        (after_an_operation, "TensorFlow has executed an operation before this strategy was made"),
        (in_a_function, "this program uses the strategy for the first time in a tf.function"),
    ],
)
def test_a_scope_that_comes_too_late_is_refused(fake_cluster: Any, program: Any, line: str) -> None:
    for error in fake_cluster.run(program, num_workers=2, timeout_s=90):
        assert error.startswith(line)


def fit_a_large_layer() -> str:
    import contextlib
    import io

    import keras
    import numpy as np

    from tfdist.strategies import MultiWorkerStrategy

    with MultiWorkerStrategy().scope():
        model = keras.Sequential([keras.Input([1024]), keras.layers.Dense(2048, use_bias=False)])
        model.compile("sgd", "mse")
    with contextlib.redirect_stderr(io.StringIO()) as output:
        for _ in range(2):
            model.fit(np.ones([4, 1024]), np.zeros([4, 2048]), batch_size=2, verbose=0)
    return output.getvalue()


def test_a_fit_that_sends_much_over_grpc_names_the_faster_engine_once(fake_cluster: Any) -> None:
    line = (
        "A step sends 8 MiB of gradients over gRPC. Horovod sends them in less time: "
        "tfdist run --engine horovod."
    )
    first, second = fake_cluster.run(fit_a_large_layer, num_workers=2, timeout_s=90)
    assert first.count(line) == 1
    assert line not in second
