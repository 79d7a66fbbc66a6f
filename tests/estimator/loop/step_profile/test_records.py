"""The ops of a traced call, and the kinds of their work."""

from typing import Any

import pytest
import tensorflow.compat.v1 as v1

from tfdist.estimator.loop.step_profile.records import Op, ops_of

HOST, DEVICE = (f"/job:worker/replica:0/task:1/device:CPU:{i}" for i in (0, 1))
ELSEWHERE = "/job:worker/replica:0/task:0/device:CPU:0"


def _ops(*records: tuple[str, str, int, int]) -> list[Op]:
    """Returns the ops of records: device, label, start and duration."""
    metadata: Any = v1.RunMetadata()
    for device, label, start, duration in records:
        node = metadata.step_stats.dev_stats.add(device=device).node_stats.add()
        node.node_name, node.timeline_label = label.split(" = ")[0], label
        node.all_start_micros, node.all_end_rel_micros = start, duration
    return ops_of(metadata.step_stats)


@pytest.mark.parametrize(
    ("label", "kind"),
    [
        ("IteratorGetNext_1 = IteratorGetNext(IteratorV2)", "input"),
        ("all_reduce/bucket = CollectiveReduceV2(g)", "reduction"),
        ("h = HorovodGroupedAllreduce(g)", "reduction"),
        ("gradients/dense/MatMul_grad/MatMul = MatMul(a, b)", "backward"),
        ("replica_1/gradients_1/mul = Mul(a, b)", "backward"),
        ("gradient_tape/dense/MatMul = MatMul(a, b)", "backward"),
        ("Adam/update_kernel/ResourceApplyAdam = ResourceApplyAdam(kernel)", "update"),
        ("LAMB/update_kernel/mul = Mul(m, v)", "update"),
        ("step = ResourceApplyGradientDescent(w)", "update"),
        ("dense/MatMul = MatMul(a, b)", "forward"),
        ("[cpu 4MB 4MB] dense/Relu = Relu(a)", "forward"),
    ],
)
def test_name_and_type_tell_the_kind(label: str, kind: str) -> None:
    (op,) = _ops((DEVICE, label, 5, 3))
    assert (op.kind, op.span) == (kind, (5, 8))


def test_what_the_host_does_once_reductions_have_begun_belongs_to_the_update() -> None:
    ops = _ops(
        (HOST, "cast = Cast(x)", 0, 5),
        (HOST, "norm/all_reduce = CollectiveReduceV2(statistics)", 6, 2),
        (HOST, "normalise = Mul(x, y)", 9, 1),
        (DEVICE, "gradients/mul = Mul(a, b)", 10, 5),
        (HOST, "all_reduce = CollectiveReduceV2(g)", 20, 5),
        (DEVICE, "late = Square(a)", 22, 1),
        (HOST, "split = SplitV(g)", 25, 1),
    )
    assert [(op.name, op.kind) for op in ops] == [
        ("cast", "forward"),
        ("norm/all_reduce", "reduction"),
        ("normalise", "forward"),
        ("gradients/mul", "backward"),
        ("all_reduce", "reduction"),
        ("late", "forward"),
        ("split", "update"),
    ]


def test_an_exchange_is_one_reduction_from_the_workers_own_offer_to_the_result() -> None:
    scope = "all_reduce/Identity_2_exchanged"
    ops = _ops(
        (HOST, f"{scope}/from_1_to_0 = FIFOQueueV2()", 100, 5),
        (HOST, f"{scope}/from_1_to_0_enqueue = QueueEnqueueV2({scope}/from_1_to_0, g)", 150, 5),
        (HOST, "RecvTensor", 150, 20),
        (HOST, f"[cpu 4MB 4MB] {scope}/AddN = AddN(g, {scope}/from_0_to_1_Dequeue_S15)", 170, 10),
        (HOST, f"all_reduce/Identity_2 = Identity({scope}/AddN)", 180, 20),
    )
    (reduction,) = (op for op in ops if op.kind == "reduction")
    assert (reduction.name, reduction.span) == (scope, (150, 180))
    assert len(ops) == 2


def test_an_exchange_of_the_worker_that_adds_begins_when_it_has_all_tensors() -> None:
    scope = "all_reduce/Identity_2_exchanged"
    ops = _ops(
        (HOST, f"{scope}/sum_from_0_to_1 = FIFOQueueV2()", 100, 5),
        (HOST, f"{scope}/AddN = AddN(g, {scope}/from_1_to_0_Dequeue_S15)", 170, 10),
        (HOST, f"{scope}/Identity = Identity({scope}/AddN)", 190, 5),
    )
    assert [(op.name, op.kind, op.span) for op in ops] == [(scope, "reduction", (170, 195))]


def test_records_of_other_workers_do_not_count_but_those_of_a_gpu_do() -> None:
    ops = _ops(
        (HOST, "a = NoOp()", 1, 1),
        (HOST, "b = NoOp()", 2, 1),
        (ELSEWHERE, "c = NoOp()", 7, 1),
        ("/device:GPU:0/stream:1", "MatMul = MatMul(a, b)", 3, 20),
    )
    assert [op.name for op in ops] == ["a", "b", "MatMul"]


def test_a_call_without_records_has_no_ops() -> None:
    assert _ops() == []
