"""Each optimizer computes what its paper says, compared with NumPy in float64."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.strategies.graph_walks import ancestors
from tfdist.training import LAMB, LARS, SGD, AdamW

RATE = 0.01
# The betas that a float32 update computes with.
BETA_1, BETA_2 = float(np.float32(0.9)), float(np.float32(0.999))
Reference = Callable[..., dict[str, Any]]


def _adam(
    weight: Any, gradients: list[Any], *, lamb: bool, decay: float, corrected: bool = True,
    ratio: bool = True, limit: float = np.inf, epsilon: float = 1e-6,
) -> Any:  # fmt: skip
    m = v = np.zeros_like(weight)
    for t, gradient in enumerate(gradients, start=1):
        m = BETA_1 * m + (1 - BETA_1) * gradient
        v = BETA_2 * v + (1 - BETA_2) * gradient**2
        m_hat, v_hat = (m / (1 - BETA_1**t), v / (1 - BETA_2**t)) if corrected else (m, v)
        step = m_hat / (np.sqrt(v_hat) + epsilon) + decay * weight
        sizes = min(np.linalg.norm(weight), limit), np.linalg.norm(step)
        factor = sizes[0] / sizes[1] if lamb and ratio and all(sizes) else 1.0
        weight = weight - RATE * factor * step
    return weight


def _lars(
    weight: Any, gradients: list[Any], *, decay: float = 0.0, nesterov: bool = False,
    classic: bool = True, epsilon: float = 0.0, ratio: bool = True,
) -> Any:  # fmt: skip
    def trust(divisor: float, size: float) -> float:
        own = np.linalg.norm(weight)
        return 0.02 * own / divisor if ratio and own and size else 1.0

    n = np.zeros_like(weight)
    for gradient in gradients:
        d = gradient + decay * weight
        if classic:
            size = np.linalg.norm(gradient)
            d = RATE * trust(size + decay * np.linalg.norm(weight) + epsilon, size) * d
        n = 0.9 * n + d
        step = 0.9 * n + d if nesterov else n
        if not classic:
            size = np.linalg.norm(step)
            step = RATE * trust(size + epsilon, size) * step
        weight = weight - step
    return weight


def _sgd(weight: Any, gradients: list[Any], *, momentum: float, nesterov: bool) -> Any:
    n = np.zeros_like(weight)
    for gradient in gradients:
        n = momentum * n + gradient
        weight = weight - RATE * (gradient + momentum * n if nesterov else n)
    return weight


CASES = {
    "LAMB": (lambda: LAMB(RATE), lambda *a: _adam(*a, lamb=True, decay=0)),
    "LAMB with decay": (
        lambda: LAMB(RATE, weight_decay=0.1),
        lambda *a: _adam(*a, lamb=True, decay=0.1),
    ),
    "LAMB without correction": (
        lambda: LAMB(RATE, weight_decay=0.1, bias_correction=False),
        lambda *a: _adam(*a, lamb=True, decay=0.1, corrected=False),
    ),
    "LAMB with a limit": (
        lambda: LAMB(RATE, max_weight_norm=0.5, epsilon=0.1),
        lambda *a: _adam(*a, lamb=True, decay=0, limit=0.5, epsilon=0.1),
    ),
    "AdamW": (lambda: AdamW(RATE), lambda *a: _adam(*a, lamb=False, decay=0.01)),
    "AdamW without correction": (
        lambda: AdamW(RATE, bias_correction=False, weight_decay=0.0),
        lambda *a: _adam(*a, lamb=False, decay=0, corrected=False),
    ),
    "LARS": (lambda: LARS(RATE, eeta=0.02), _lars),
    "LARS with decay": (
        lambda: LARS(RATE, eeta=0.02, weight_decay=0.1, epsilon=0.5),
        lambda *a: _lars(*a, decay=0.1, epsilon=0.5),
    ),
    "LARS nesterov": (
        lambda: LARS(RATE, eeta=0.02, nesterov=True),
        lambda *a: _lars(*a, nesterov=True),
    ),
    "LARS popular": (
        lambda: LARS(RATE, eeta=0.02, classic_momentum=False, weight_decay=0.1),
        lambda *a: _lars(*a, classic=False, decay=0.1),
    ),
    "LARS popular nesterov": (
        lambda: LARS(RATE, eeta=0.02, classic_momentum=False, nesterov=True, epsilon=0.5),
        lambda *a: _lars(*a, classic=False, nesterov=True, epsilon=0.5),
    ),
    "SGD": (lambda: SGD(RATE), lambda *a: _sgd(*a, momentum=0, nesterov=False)),
    "SGD with momentum": (
        lambda: SGD(RATE, momentum=0.9),
        lambda *a: _sgd(*a, momentum=0.9, nesterov=False),
    ),
    "SGD nesterov": (
        lambda: SGD(RATE, momentum=0.9, nesterov=True),
        lambda *a: _sgd(*a, momentum=0.9, nesterov=True),
    ),
}


def _check(values: dict[str, Any], reference: Any, weights: Any, gradients: Any) -> None:
    for name, weight in weights.items():
        expected = reference(weight, [step[name] for step in gradients])
        np.testing.assert_allclose(values[name], expected, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("case", CASES)
def test_an_optimizer_equals_numpy(take: Any, weights: Any, gradients: Any, case: str) -> None:
    make, reference = CASES[case]
    values = take(make(), weights, gradients)
    _check(values, reference, weights, gradients)
    assert values["global_step"] == len(gradients)


@pytest.mark.parametrize("case", ["LAMB with decay", "AdamW", "LARS with decay", "SGD nesterov"])
def test_the_rule_computes_what_the_kernels_compute(
    take: Any, weights: Any, gradients: Any, case: str
) -> None:
    make, reference = CASES[case]
    by_rule = take(make(), weights, gradients, use_resource=False)
    _check(by_rule, reference, weights, gradients)


@pytest.mark.parametrize(
    ("optimizer", "reference"),
    [
        (LAMB, lambda *a, **k: _adam(*a, lamb=True, **k)),
        (LARS, _lars),
    ],
)
@pytest.mark.parametrize("own_list", [None, []])
def test_excluded_variables_have_no_decay_and_no_ratio(
    take: Any, weights: Any, gradients: Any, optimizer: Any, reference: Any, own_list: Any
) -> None:
    extra = {"eeta": 0.02} if optimizer is LARS else {}
    made = optimizer(
        RATE,
        weight_decay=0.1,
        exclude_from_weight_decay=["bias", "^norm/"],
        exclude_from_layer_adaptation=own_list,
        **extra,
    )
    values = take(made, weights, gradients)
    for name, weight in weights.items():
        excluded = name in ("bias", "norm/scale")
        ratio = not excluded or own_list is not None
        steps = [step[name] for step in gradients]
        expected = reference(weight, steps, decay=0.0 if excluded else 0.1, ratio=ratio)
        np.testing.assert_allclose(values[name], expected, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
@pytest.mark.parametrize("case", ["LAMB with decay", "AdamW", "LARS with decay", "SGD nesterov"])
def test_nothing_is_written_before_the_gradient_is_there(case: str, dtype: tf.DType) -> None:
    """In a graph the forward pass may read a weight as late as just before its gradient."""
    with tf.Graph().as_default():
        v1.train.create_global_step()
        weight = v1.get_variable("weight", [3], dtype, use_resource=True)
        gradient = v1.placeholder(dtype, [3])
        update = CASES[case][0]().apply_gradients([(gradient, weight)])
        handles = {variable.handle.op for variable in v1.global_variables()}
        writers = [
            op
            for op in ancestors([update], control_inputs=True)
            if op.type.startswith(("Assign", "ResourceApply")) and op.inputs[0].op in handles
        ]
        assert writers
        assert all(gradient.op in ancestors([op], control_inputs=True) for op in writers)


@pytest.mark.parametrize("case", ["LAMB with decay", "AdamW", "LARS with decay", "SGD nesterov"])
def test_a_sparse_gradient_counts_as_the_dense_one(take: Any, case: str) -> None:
    make, reference = CASES[case]
    table = np.random.default_rng(2).normal(size=(6, 3))
    rows, values = np.array([4, 1, 4]), np.random.default_rng(3).normal(size=(3, 3))
    dense = np.zeros((6, 3))
    np.add.at(dense, rows, values)
    with tf.Graph().as_default(), v1.Session() as session:
        variable = v1.get_variable("table", initializer=tf.constant(table, tf.float32))
        slices = tf.IndexedSlices(tf.constant(values, tf.float32), rows, tf.constant([6, 3]))
        update = make().apply_gradients([(slices, variable)])
        session.run(v1.global_variables_initializer())
        for _ in range(10):
            session.run(update)
        np.testing.assert_allclose(session.run(variable), reference(table, [dense] * 10), atol=1e-6)


def test_variables_share_the_scalars_of_an_update() -> None:
    with tf.Graph().as_default() as graph:
        variables = [v1.Variable([1.0], use_resource=True) for _ in range(3)]
        AdamW(0.1).apply_gradients([(tf.constant([1.0]), one) for one in variables])
    kinds = [op.type for op in graph.get_operations()]
    assert [kinds.count(one) for one in ("ResourceApplyAdam", "Sqrt")] == [3, 1]
