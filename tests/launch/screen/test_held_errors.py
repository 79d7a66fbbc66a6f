"""Tracebacks: shown once, in the box or as lines, and unchanged where the program goes on."""

from tfdist.launch.screen.held_errors import HeldErrors

BEGIN = "Traceback (most recent call last):"
USER = ['  File "train.py", line 3, in <module>', "    model.fit(x)"]
PACKAGE = [
    '  File "/venv/lib/python3.11/site-packages/keras/fit.py", line 9, in fit',
    "    raise E",
]
ERROR = "keras.errors.ShapeError: (3, 2)"
SHOWN = "ShapeError: (3, 2)"
TRACEBACK = [BEGIN, *USER, *PACKAGE, ERROR]
EXCERPT = [BEGIN, *USER, "  ... 1 frame of packages", SHOWN]


def held(lines: list[str] = TRACEBACK, *, worker: int = 0) -> HeldErrors:
    errors = HeldErrors()
    assert errors.add(worker, "before", 0.0) == ["before"]
    for line in lines:
        assert errors.add(worker, line, 1.0) == []
    return errors


def test_the_error_in_the_box_is_not_shown_and_another_one_without_the_frames_of_packages() -> None:
    errors = held()
    errors.end(SHOWN)
    assert errors.take(0) == []
    other = held()
    other.end("KeyError: 1")
    assert other.take(0) == EXCERPT
    assert other.take(0) == []


def test_a_traceback_that_comes_after_the_end_of_the_run_is_one_as_well() -> None:
    errors = HeldErrors()
    errors.end("KeyError: 1")
    for line in TRACEBACK:
        assert errors.add(1, line, 1.0) == []
    assert errors.take(1) == EXCERPT


def test_a_program_that_goes_on_has_its_lines_unchanged() -> None:
    for line in ("INFO:tensorflow:step 3", "WARNING: again", "2026-11-03 12:00 retry"):
        assert held().add(0, line, 2.0) == [*TRACEBACK, line]
    errors = held()
    assert errors.overdue(10.9) == {}
    assert errors.overdue(11.0) == {0: TRACEBACK}
    assert errors.add(0, "after", 12.0) == ["after"]
    assert held().take(0) == TRACEBACK  # It ended, and the run did not fail.


def test_the_lines_of_a_message_stay_with_it_and_a_second_error_is_one_of_its_own() -> None:
    more = ["", "Detected at node dense:", "  the shapes"]
    assert held([*TRACEBACK, *more]).take(0) == [*TRACEBACK, *more]
    chained = [*TRACEBACK, "", "During handling of the above exception, another one:", ""]
    errors = held([*chained, *TRACEBACK])
    errors.end(SHOWN)
    assert errors.take(0) == []
    assert held().add(0, BEGIN, 2.0) == TRACEBACK


def test_the_lines_of_other_workers_do_not_wait() -> None:
    assert held().add(1, "step 3", 1.0) == ["step 3"]


def test_an_error_of_syntax_in_the_program_itself_is_held() -> None:
    lines = ['  File "train.py", line 1', "    def f(:", "SyntaxError: invalid syntax"]
    errors = held(lines)
    errors.end("SyntaxError: invalid syntax")
    assert errors.take(0) == []


def test_lines_without_an_exception_are_never_left_out() -> None:
    errors = held(['  File "data.csv", row 3: 1, 2'])
    errors.end("KeyError: 1")
    assert errors.take(0) == ['  File "data.csv", row 3: 1, 2']
