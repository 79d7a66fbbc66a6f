"""The decision on a direct exchange, before the graph is built."""

import pytest
import tensorflow.compat.v1 as v1

from tfdist.strategies.grpc.graph_exchange import may_exchange_directly

ISOLATED = v1.ConfigProto(isolate_session_state=True)


@pytest.mark.parametrize(
    ("num_workers", "config", "steps_per_call", "are_all_there", "expected"),
    [
        (1, None, 1, True, False),
        (2, None, 1, True, True),
        (8, v1.ConfigProto(), 1, True, True),
        (9, None, 1, True, False),
        (2, ISOLATED, 1, True, False),
        (2, None, 2, True, False),
        (2, None, 1, False, False),
    ],
)
def test_few_workers_that_all_see_the_whole_graph_exchange_directly(
    num_workers: int,
    config: v1.ConfigProto | None,
    steps_per_call: int,
    are_all_there: bool,
    expected: bool,
) -> None:
    may = may_exchange_directly(
        num_workers, config, steps_per_call=steps_per_call, are_all_there=are_all_there
    )
    assert may is expected
