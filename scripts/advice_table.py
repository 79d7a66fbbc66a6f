"""The table of docs/troubleshooting.md: messages and ends of workers, with the launcher's advice.

    advice_table.py             writes the table into the page

It stands between `<!-- advice -->` and `<!-- end of advice -->`. The advice is what the box of a
failed run prints for the examples below.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from tfdist.launch.failures.advice import advice
from tfdist.launch.failures.failure import Failure, FailureKind

PAGE = Path(__file__).resolve().parents[1] / "docs" / "troubleshooting.md"
START, END = "<!-- advice -->\n", "<!-- end of advice -->"

# A part of a program's last lines.
MESSAGES = (
    "module 'tensorflow' has no attribute 'estimator'",
    "No module named 'tensorflow_estimator'",
    "module 'tensorflow' has no attribute 'contrib'",
    "NanLossDuringTrainingError",
    "Attempt to convert a value (PerReplica:{",
    "No space left on device",
    "MemoryError",
    "OOM when allocating tensor",
    "Address already in use",
    "ModuleNotFoundError: No module named",
    "No such file or directory",
    "Permission denied",
    "CUDA_ERROR",
)
# The end of a worker: (how the box calls it, kind, exit code or signal, detail).
ENDS: tuple[tuple[str, FailureKind, int | None, str], ...] = (
    ("exit code 2", "exited", 2, ""),
    ("exit code 28", "exited", 28, ""),
    ("exit code 126", "exited", 126, ""),
    ("exit code 127", "exited", 127, ""),
    ("exit code 200", "exited", 200, ""),
    ("exit code 201", "exited", 201, ""),
    ("signal SIGKILL (9), exit code 137", "signal", 9, ""),
    ("signal SIGSEGV (11), exit code 139", "signal", 11, ""),
    ("signal SIGTERM (15), exit code 143", "signal", 15, ""),
    ("exit code 0, but too early", "ended early", 0, ""),
    ("its training failed, and its program caught the error", "caught", None, ""),
    ("stalled, stopped (SIGSTOP)", "stalled", None, "SIGSTOP"),
    ("stalled", "stalled", None, ""),
    ("silent", "silent", None, ""),
)


def table() -> str:
    """Returns the table in Markdown."""
    return "\n".join(_rows())


def _rows() -> Iterator[str]:
    yield "| in the last lines, or as the end | advice |"
    yield "|---|---|"
    for message in MESSAGES:
        yield f"| `{message}` | {_advice('exited', 1, log_tail=(message,))} |"
    for shown, kind, code, detail in ENDS:
        yield f"| {shown} | {_advice(kind, code, detail=detail)} |"


def _advice(
    kind: FailureKind, code: int | None, *, detail: str = "", log_tail: tuple[str, ...] = ()
) -> str:
    failure = Failure(
        name="worker 1",
        index=1,
        host="its host",
        pid=None,
        kind=kind,
        code=code,
        after_s=0.0,
        at=datetime.min,
        step=None,
        log_tail=log_tail,
        log_path=Path("worker-1.log"),
        detail=detail,
    )
    return advice(failure)


def with_table(page: str) -> str:
    """Returns the text of the page with the table as the launcher has it.

    Raises:
      ValueError: If the page has no place for the table.
    """
    before, start, rest = page.partition(START)
    _, end, after = rest.partition(END)
    if not (start and end):
        raise ValueError(f"there is no {START.strip()} with {END} after it. Add both lines.")
    return f"{before}{start}\n{table()}\n\n{end}{after}"


def main() -> None:
    """Writes the table into the page."""
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
