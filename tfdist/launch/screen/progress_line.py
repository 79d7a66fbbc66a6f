"""The progress line of a run: step, loss, throughput, remaining time, and workers' status."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from rich.text import Text

from tfdist.launch.failures.failure import joined_names, worker_tag
from tfdist.launch.options.values import ProgressMode
from tfdist.launch.screen.terminal import Terminal
from tfdist.launch.screen.worker_status import (
    RecentProgress,
    WorkerStatus,
    run_step,
    training_progress,
    worker_statuses,
)
from tfdist.launch.workers.worker_state import WorkerSnapshot

_MOST_CELLS = 8
_PLAIN_INTERVAL_S = 10.0
_PLAIN_WIDTH = 200
_BAR_WIDTHS = (10, 30)
_BOLD, _ALERT, _DONE, _TO_DO = "bold", "yellow", "green", "bright_black"
_GAP = Text("  ")
_LEAVING = ("stopping", "leaving", "ended")
_PREFIX = "tfdist: "
_CUT, _NARROWEST = "...", 40


class ProgressLine:
    """Shows the progress line on stderr, either redrawn in place or as occasional plain lines.

    A plain line is written every 10 seconds at most, and only if the status has changed.

    Where the reader of stderr is gone, `update` and `close` raise as `Terminal.write` does.

    Args:
      mode: "bar" redraws it in place on a terminal. "auto" does the same unless the variable CI
        is set. "plain" writes plain lines only. "none" shows nothing.
      started_s: The start of the run, on the clock of `update`; NaN if it is not shown.
    """

    def __init__(
        self,
        terminal: Terminal,
        *,
        mode: ProgressMode = "auto",
        started_s: float = math.nan,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._terminal = terminal
        self._started_s = started_s
        self._is_silent = mode == "none"
        wants_bar = mode == "bar" or (mode == "auto" and not environ.get("CI"))
        self._is_live = terminal.is_live and wants_bar
        self._is_terminal = terminal.is_terminal("err")
        self._recent = RecentProgress()
        self._workers: Mapping[int, WorkerSnapshot] = {}
        self._said: tuple[float, object] = (-math.inf, None)

    def update(self, now_s: float, workers: Mapping[int, WorkerSnapshot]) -> None:
        """Shows the state of the workers, given by index. Two calls a second are enough."""
        if self._is_silent:
            return
        self._recent = self._recent.after(now_s, workers)
        self._workers = dict(workers)
        if self._is_live:
            width = self._terminal.width - 1  # in the last column the cursor would wrap
            has_bar = self._terminal.has_unicode
            self._terminal.show_status(self._text(now_s, width, has_bar=has_bar))
        elif now_s - self._said[0] >= _PLAIN_INTERVAL_S:
            self._say(now_s)

    def close(self, now_s: float) -> None:
        """Removes the line and writes the final state of the run as a plain line."""
        if self._is_silent:
            return
        self._terminal.show_status(Text())
        self._say(now_s)

    def _say(self, now_s: float) -> None:
        if all(worker.progress is None for worker in self._workers.values()):
            return
        statuses = worker_statuses(now_s, self._recent, self._workers)
        # The seconds for which a worker is late are left out: they change without any news.
        news = [(status.word, status.step) for status in statuses]
        if news != self._said[1]:
            self._said = (now_s, news)
            width = self._terminal.width if self._is_terminal else _PLAIN_WIDTH
            text = self._text(now_s, width - len(_PREFIX))
            self._terminal.print(Text.assemble(_PREFIX, text))

    def _text(self, now_s: float, width: int, *, has_bar: bool = False) -> Text:
        elapsed_s = now_s - self._started_s
        return progress_text(
            now_s, self._recent, self._workers, width, elapsed_s=elapsed_s, has_bar=has_bar
        )


def progress_text(
    now_s: float,
    recent: RecentProgress,
    workers: Mapping[int, WorkerSnapshot],
    width: int,
    *,
    elapsed_s: float = math.nan,
    has_bar: bool = False,
) -> Text:
    """Returns the line. If it is too wide, less important fields are left out.

    The time is on the clock of `recent`; `elapsed_s` is NaN if it is not shown. With `has_bar` a
    bar is drawn if there is room.
    """
    progresses = training_progress(workers)
    step = run_step(workers)
    total = max((progress.total_steps for progress in progresses), default=-1)
    epoch = max(((p.epoch, p.total_epochs) for p in progresses), default=(-1, -1))
    loss = next((p.loss for p in progresses if not math.isnan(p.loss)), math.nan)
    statuses = worker_statuses(now_s, recent, workers)
    is_measured = step >= 0 and total > 0
    # Else there is no ETA.
    is_well = not any(status.is_trouble or status.word in _LEAVING for status in statuses)
    remaining_s = (
        (total - step) / recent.steps_per_s() if is_measured and step < total else math.nan
    )
    no_step = "no step yet" if progresses else ""
    short_step = Text(f"step {step}", _BOLD) if step >= 0 else Text(no_step)
    fields: dict[str, str | Text] = {
        "step": Text(f"step {step}/{total}", _BOLD) if is_measured else short_step,
        "epoch": "epoch {}/{}".format(*epoch) if epoch[0] > 0 else "",
        "bar": "",
        "percent": f"{100 * min(step, total) // total} %" if is_measured else "",
        "loss": "" if math.isnan(loss) else f"loss {loss:#.4g}".removesuffix("."),
        "speed": _speed_text(recent),
        "elapsed": f"{_time_text(elapsed_s)} elapsed" if math.isfinite(elapsed_s) else "",
        "eta": f"ETA {_time_text(remaining_s)}" if is_well and math.isfinite(remaining_s) else "",
        "workers": _cells(statuses) if len(workers) <= _MOST_CELLS else _counts(statuses),
    }
    choices: tuple[dict[str, str | Text], ...] = (
        {},
        {"workers": _counts(statuses)},
        {"workers": _troubles(statuses)},
        {"elapsed": ""},
        {"epoch": ""},
        {"speed": ""},
        {"loss": ""},
        {"step": short_step},
        {"eta": ""},
        {"percent": ""},
    )
    for shorter in choices:
        fields |= shorter
        room = width - _joined(_GAP, fields.values()).cell_len
        if room >= 0:
            break
    if has_bar and is_measured and room - 2 >= _BAR_WIDTHS[0]:
        wide = min(room - 2, _BAR_WIDTHS[1])
        done = math.floor(min(1.0, step / total) * wide)
        fields["bar"] = Text.assemble(("━" * done, _DONE), ("─" * (wide - done), _TO_DO))
    line = _joined(_GAP, fields.values())
    most = max(width, _NARROWEST)
    if line.cell_len > most:  # Many workers may be in trouble, each in another.
        line.truncate(most - len(_CUT))
        line.append(_CUT)
    return line


def _joined(separator: Text, texts: Iterable[str | Text]) -> Text:
    """Joins the texts that are not empty."""
    return separator.join(Text.assemble(text) for text in texts if text)


def _cells(statuses: Sequence[WorkerStatus]) -> Text:
    cells = []
    for status in statuses:
        step = f" {status.step}" if status.step >= 0 and not status.late_s else ""
        cell = f"[{worker_tag(status.name)} {status}{step}]"
        cells.append(Text(cell, _ALERT if status.is_trouble else ""))
    return _joined(Text(" "), cells)


def _counts(statuses: Sequence[WorkerStatus]) -> Text:
    counts = Counter(status.word for status in statuses if not status.is_trouble)
    texts = [f"{count} {word}" for word, count in counts.most_common()]
    return _joined(Text(", "), [*texts, _troubles(statuses)])


def _troubles(statuses: Sequence[WorkerStatus]) -> Text:
    groups: dict[str, list[WorkerStatus]] = {}
    for status in statuses:
        if status.is_trouble:
            groups.setdefault(status.word, []).append(status)
    texts = []
    for group in groups.values():
        longest = max(group, key=lambda status: status.late_s)
        texts.append(f"{joined_names(status.name for status in group)} {longest}")
    return _joined(Text(", "), [Text(text, _ALERT) for text in texts])


def _speed_text(recent: RecentProgress) -> str:
    for rate, unit in (
        (recent.examples_per_s(), "samples/s"),
        (recent.steps_per_s(), "steps/s"),
    ):
        if rate > 0:
            return f"{rate:.0f} {unit}" if rate >= 100 else f"{rate:.3g} {unit}"
    return ""


def _time_text(seconds: float) -> str:
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24} d {hours % 24} h"
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
