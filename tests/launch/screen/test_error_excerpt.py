"""The part of a worker's last output that is shown: its error, and the user's frames."""

from pathlib import Path

import tfdist
from tfdist.launch.screen.error_excerpt import error_excerpt, error_text, exception_line

TRACEBACK = (
    "Traceback (most recent call last):",
    '  File "train.py", line 17, in <module>',
    "    raise ValueError(text)",
    "          ^^^^^^^^^^^^^^^^",
    "ValueError: 17 is too many",
)
OWN = f'  File "{Path(tfdist.__file__).parent}/estimator/loop.py", line 9, in step'
INSTALLED = '  File "/v/lib/python3.11/site-packages/tensorflow/session.py", line 14, in _do_call'
# As TensorFlow 2.21 prints it.
SESSION = (
    "tensorflow.python.framework.errors_impl.InvalidArgumentError: Graph execution error:",
    "",
    "From /job:worker/replica:0/task:1:",
    "2 root error(s) found.",
    "  (0) INVALID_ARGUMENT: assertion failed: [step too large]",
    "\t [[{{node Assert}}]]",
    "\t [[Identity_G27]]",
    "  (1) INVALID_ARGUMENT: assertion failed: [step too large]",
    "\t [[{{node Assert}}]]",
    "0 successful operations.",
    "0 derived errors ignored.",
    "Recent warning and error logs:",
    "  W0000 00:00:1795659017.531663   14493 local_rendezvous.cc:412] Local rendezvous is abort",
)


def test_the_exception_is_the_last_tracebacks_last_line() -> None:
    during = ("", "During handling of the above exception, another exception occurred:", "")
    second = (*TRACEBACK[:-1], "pkg.errors.OwnError")
    assert exception_line((*TRACEBACK, *during, *second, "later: noise")) == "pkg.errors.OwnError"
    assert exception_line(TRACEBACK[1:]) == "ValueError: 17 is too many"  # its head is cut off
    for lines in ((), ("Error: no traceback",), ("step 1", "Killed")):
        assert (exception_line(lines), error_text(lines), error_excerpt(lines)) == (None, "", ())


def test_frames_of_packages_are_counted_and_those_of_the_user_are_shown() -> None:
    lines = (
        *TRACEBACK[:-1],
        *(OWN, "    self.run()", "    ^^^^^^^^^^"),
        *(INSTALLED, "    return fn(*args)", "           ~~~^^^^^^^"),
        *('  File "/home/me/model.py", line 3, in model_fn', "    return x[1]"),
        OWN,
        "KeyError: 1",
    )
    assert error_excerpt(("step 3", *lines)) == (
        *TRACEBACK[:-2],
        "  ... 2 frames of packages",
        *('  File "/home/me/model.py", line 3, in model_fn', "    return x[1]"),
        "  ... 1 frame of packages",
        "KeyError: 1",
    )


def test_without_a_frame_of_the_user_the_last_two_are_shown() -> None:
    lines = (TRACEBACK[0], INSTALLED, OWN, INSTALLED, "KeyError: 1")
    assert error_excerpt(lines) == (TRACEBACK[0], "  ... 1 frame of packages", *lines[2:])


def test_an_error_of_a_session_is_its_first_cause() -> None:
    lines = (*TRACEBACK[:-1], INSTALLED, *SESSION)
    assert error_excerpt(lines)[-2:] == (
        "InvalidArgumentError: Graph execution error:",
        "  INVALID_ARGUMENT: assertion failed: [step too large]",
    )
    assert error_text(lines) == (
        "InvalidArgumentError: Graph execution error: "
        "INVALID_ARGUMENT: assertion failed: [step too large]"
    )


def test_an_exception_of_a_local_class_has_its_short_name() -> None:
    lines = (*TRACEBACK[:-1], "train.main.<locals>.OwnError: no")
    assert exception_line(lines) == "train.main.<locals>.OwnError: no"
    assert error_text(lines) == "OwnError: no"
