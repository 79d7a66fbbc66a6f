"""Equal lines of several workers: which are joined, when they are shown, and in which order."""

import random
from collections.abc import Sequence

from tfdist.launch.screen.equal_lines import EqualLines, Line


def line(worker: int, text: str, since_s: float = 0.0) -> Line:
    return Line(workers={worker}, stream="out", text=text, since_s=since_s)


def shown(lines: Sequence[Line]) -> list[tuple[str, set[int]]]:
    return [(one.text, one.workers) for one in lines]


def test_lines_that_differ_only_in_a_steps_duration_are_shown_once() -> None:
    lines = EqualLines([0, 1])
    for worker, rate, seconds in ((0, "102.524", "0.195"), (1, "117.2", "0.171")):
        both = lines.add(line(worker, f"INFO:tensorflow:global_step/sec: {rate}"))
        both += lines.add(line(worker, f"INFO:tensorflow:loss = 0.75, step = 20 ({seconds} sec)"))
    assert shown(both) == [
        ("INFO:tensorflow:global_step/sec: 102.524", {0, 1}),
        ("INFO:tensorflow:loss = 0.75, step = 20 (0.195 sec)", {0, 1}),
    ]
    lines.add(line(0, "INFO:tensorflow:loss = 0.75, step = 40 (0.195 sec)"))
    assert lines.add(line(1, "INFO:tensorflow:loss = 0.76, step = 40 (0.195 sec)")) == []


def test_a_line_that_not_all_print_waits_for_a_second_and_names_those_that_did() -> None:
    lines = EqualLines([0, 1, 2])
    lines.add(line(0, "a", 5.0))
    lines.add(line(2, "a", 5.9))
    lines.add(line(1, "b", 5.9))
    assert lines.overdue(5.9) == []
    assert shown(lines.overdue(6.0)) == [("a", {0, 2})]
    assert shown(lines.overdue(float("inf"))) == [("b", {1})]


def test_a_line_is_shown_after_all_lines_that_wait_before_it() -> None:
    lines = EqualLines([0, 1])
    for text in "abc":
        lines.add(line(0, text))
    assert shown(lines.add(line(1, "b"))) == [("a", {0}), ("b", {0, 1})]
    assert shown(lines.add(line(1, "c"))) == [("c", {0, 1})]


def test_a_line_is_shown_as_often_as_all_workers_have_printed_it() -> None:
    lines = EqualLines([0, 1])
    assert lines.add(line(0, "a")) == lines.add(line(0, "a")) == []
    assert shown(lines.add(line(1, "a"))) == shown(lines.add(line(1, "a"))) == [("a", {0, 1})]


def test_a_worker_that_has_ended_is_not_waited_for() -> None:
    lines = EqualLines([0, 1, 2])
    lines.add(line(0, "a"))
    lines.add(line(1, "a"))
    lines.add(line(0, "b"))
    assert shown(lines.leave(2)) == [("a", {0, 1})]
    assert shown(lines.leave(1)) == [("b", {0})]
    assert shown(lines.add(line(0, "c"))) == [("c", {0})]
    assert lines.leave(0) == []


def test_lines_of_others_do_not_wait() -> None:
    assert shown(EqualLines([0, 1]).add(line(2, "a"))) == [("a", {2})]
    assert shown(EqualLines([]).add(line(0, "a"))) == [("a", {0})]


def test_each_worker_keeps_all_of_its_lines_in_their_order() -> None:
    source = random.Random(0)
    for _ in range(200):
        texts = {worker: source.choices("abc", k=20) for worker in range(3)}
        left = {worker: list(some) for worker, some in texts.items()}
        lines, released, now_s = EqualLines(texts), list[Line](), 0.0
        while any(left.values()):
            now_s += source.random() / 3
            worker = source.choice([one for one, some in left.items() if some])
            released += lines.add(line(worker, left[worker].pop(0), now_s))
            released += lines.overdue(now_s)
            if not left[worker]:
                released += lines.leave(worker)
        assert all(
            [one.text for one in released if worker in one.workers] == some
            for worker, some in texts.items()
        )
