"""The order of samples, and the layout of a step, in examples/application."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from layout import Layout, Order, epoch_order


def test_each_epoch_has_every_sample_once_in_an_order_of_its_own() -> None:
    order = Order(num_samples=10, seed=3)
    numbers, epochs = order.take(5, 30)  # From the middle of the first epoch.
    assert list(epochs) == [0] * 5 + [1] * 10 + [2] * 10 + [3] * 5
    second, third = numbers[5:15], numbers[15:25]
    assert sorted(second) == sorted(third) == list(range(10))
    orders = [tuple(epoch_order(10, seed, epoch)) for seed in (3, 4) for epoch in (1, 2)]
    assert (tuple(second), tuple(third)) == (orders[0], orders[1])
    assert len(set(orders)) == 4
    assert list(Order(num_samples=10, seed=None).take(8, 4)[0]) == [8, 9, 0, 1]


@settings(max_examples=80, deadline=None)
@given(
    num_samples=st.integers(1, 60),
    size=st.integers(1, 4),
    workers=st.integers(1, 4),
    replicas=st.integers(1, 3),
    accumulation=st.integers(1, 3),
    step=st.integers(0, 9),
)
def test_workers_replicas_and_accumulation_together_read_what_one_worker_would(
    num_samples: int, size: int, workers: int, replicas: int, accumulation: int, step: int
) -> None:
    order = Order(num_samples=num_samples, seed=1)
    sizes = {"micro_batch": size, "accumulation": accumulation, "replicas": replicas}
    layouts = [Layout(**sizes, workers=workers, worker=worker) for worker in range(workers)]
    alone = Layout(micro_batch=layouts[0].global_batch)
    together = [
        order.take(layout.first_position(step * layout.micro_batches + i), size)[0]
        for layout in layouts
        for i in range(layout.micro_batches)
    ]
    whole, _ = order.take(alone.first_position(step), alone.micro_batch)
    np.testing.assert_array_equal(np.concatenate(together), whole)
