"""Measures how fast tfdist is against its bounds and its peers, and writes docs/benchmarks.md.

The full record goes to docs/benchmarks-appendix.md.

    python scripts/benchmarks/run.py [--only steps,growth] [--models cnn,mlp] [--rounds 20]
    python scripts/benchmarks/run.py --quick

Needs two idle cores. Each part is written to the JSON file as soon as it is
measured; parts that are not measured stay in it as they are. The document and the pictures are
made of the whole file. The exit code is 1 if a part failed, 2 after a wrong call.

--quick reproduces the first picture in less than ten minutes: the step times of the contenders
shown there, in few rounds. It writes into build/quick-benchmark, and leaves the record as it is.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import signal
import sys
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from record import Record
    from results import Options, Part
    from rich.console import Console

DOCS = Path(__file__).parents[2] / "docs"
RESULTS = Path(__file__).parent / "results"
QUICK = DOCS.parent / "build" / "quick-benchmark"
CONTENDERS = Path(__file__).parent / "contenders"

# In the order of the document. A part's module has `measure(options) -> Part`.
PARTS = {
    "steps": "step_times",
    "fit": "fit_times",
    "applications": "applications",
    "pipelines": "pipeline_peers",
    "slow-link": "slow_link",
    "own-cost": "own_cost",
    "features": "features",
    "growth": "growth",
}
MODELS = ("cnn", "mlp", "resnet-20", "embedding")
WITHOUT_MODELS = ("applications", "pipelines", "growth")  # They have their own, or none.
ROUNDS, QUICK_ROUNDS = 20, 5
NUM_CORES = 2
MAX_WORKERS = 16
FILE_WIDTH = 160
INTERRUPTED = 130  # 128 + SIGINT, as shells have it


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Says in one line what is wrong."""
        self.exit(2, f"{self.prog}: error: {message}\n")


def read_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Reads and checks the command line."""
    parser = _Parser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--quick", action="store_true", help="only the first picture, in less than ten minutes"
    )
    parser.add_argument("--only", type=_names(PARTS), metavar="PART,...", help=", ".join(PARTS))
    parser.add_argument(
        "--models", type=_names(MODELS), default=MODELS, metavar="NAME,...", help=", ".join(MODELS)
    )
    parser.add_argument(
        "--rounds",
        type=_at_least_one,
        help=f"turns of each contender (default: {ROUNDS}; {QUICK_ROUNDS} with --quick)",
    )
    parser.add_argument(
        "--workers",
        type=_worker_counts,
        default=(1, 2, 3, 4),
        metavar="N,...",
        help="numbers of workers, for growth (default: 1,2,3,4)",
    )
    parser.add_argument("--output", type=Path, metavar="FILE.md", help="the page")
    parser.add_argument("--json", type=Path, metavar="FILE.json", help="the record")
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="for pictures")
    parser.add_argument(
        "--from-json",
        type=Path,
        metavar="FILE.json",
        help="measure nothing: make the document and the pictures of this file",
    )
    arguments = parser.parse_args(argv)
    if arguments.quick and arguments.only:
        parser.error("--quick measures the step times alone. Leave out --only, or --quick.")
    _set_defaults(arguments)
    for folder in (arguments.output.parent, arguments.json.parent, arguments.plots):
        if not folder.is_dir():
            parser.error(f"there is no folder {folder}. Make it, or name another one.")
    if arguments.from_json and not arguments.from_json.is_file():
        parser.error(f"--from-json: there is no file {arguments.from_json}.")
    if importlib.util.find_spec("matplotlib") is None:
        parser.error('matplotlib is not installed. Run: pip install -e ".[benchmark]"')
    cores = len(os.sched_getaffinity(0))
    if cores < NUM_CORES and not arguments.from_json:
        parser.error(
            f"this needs {NUM_CORES} cores and may run on {cores}. Run it on a machine with more, "
            "or without taskset."
        )
    return arguments


def _set_defaults(arguments: argparse.Namespace) -> None:
    """Sets what was not given: what is measured, and where it is written."""
    is_quick = arguments.quick
    if is_quick:
        QUICK.mkdir(parents=True, exist_ok=True)
    defaults = {
        "only": ("steps",) if is_quick else tuple(PARTS),
        "rounds": QUICK_ROUNDS if is_quick else ROUNDS,
        "output": (QUICK if is_quick else DOCS) / "benchmarks.md",
        "json": (QUICK if is_quick else RESULTS) / "benchmarks.json",
        "plots": QUICK if is_quick else DOCS,
    }
    for name, default in defaults.items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, default)


def _names(allowed: Sequence[str] | dict[str, str]) -> Callable[[str], tuple[str, ...]]:
    """Returns what reads names with commas between them; they come in the order of `allowed`."""

    def read(text: str) -> tuple[str, ...]:
        names = text.split(",")
        for name in names:
            if name not in allowed:
                raise argparse.ArgumentTypeError(
                    f"{name!r} is unknown. Choose from {', '.join(allowed)}."
                )
        return tuple(name for name in allowed if name in names)

    return read


def _at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 1.")
    return int(text)


def _worker_counts(text: str) -> tuple[int, ...]:
    counts = sorted({_at_least_one(one) for one in text.split(",")})
    if len(counts) < 2 or counts[-1] > MAX_WORKERS:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not at least two numbers of 1 to {MAX_WORKERS}. Write 1,2,3,4."
        )
    return tuple(counts)


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, prints and writes; says how it went as an exit code."""
    arguments = read_arguments(argv)
    # Only now: these take a second, and a wrong call should be quick.
    from record import RecordError, read_records
    from rich.console import Console

    # A file has no width; lines for one are not folded as narrowly as rich would.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else FILE_WIDTH)
    sys.path.append(str(CONTENDERS))  # What contenders train is described there.
    file = arguments.from_json or arguments.json
    try:
        records = read_records(file) if file.exists() else {}
    except RecordError as error:
        print(f"run.py: error: {error}", file=sys.stderr)
        return 2
    if arguments.from_json:
        publish(records, arguments, console)
        return 0
    # Without this, workers would be left running after a `kill`.
    signal.signal(signal.SIGTERM, _end)
    try:
        return measure_parts(records, arguments, console)
    except KeyboardInterrupt:
        print(f"Interrupted. What was measured before is in {arguments.json}.", file=sys.stderr)
        return INTERRUPTED


def _end(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


def measure_parts(
    records: dict[str, Record], arguments: argparse.Namespace, console: Console
) -> int:
    """Measures the chosen parts; a part that fails is reported, and the others go on.

    Returns:
      1 if a part failed, else 0.
    """
    from record import read_records, write_records
    from results import Options
    from screen import show_part

    options = Options(
        rounds=arguments.rounds,
        models=arguments.models,
        cores=tuple(sorted(os.sched_getaffinity(0))[:NUM_CORES]),
        say=lambda line: console.print(line, style="dim", markup=False),
        workers=arguments.workers,
        is_quick=arguments.quick,
    )
    failed = []
    for name in arguments.only:
        try:
            records[name] = measure_part(name, options)
        except Exception as error:  # Whatever it is, the other parts do not depend on it.
            failed.append(name)
            print(f"{name} failed: {type(error).__name__}: {_line(error)}", file=sys.stderr)
            continue
        show_part(records[name], console)
        write_records(arguments.json, records)
    if len(failed) < len(arguments.only):
        # Read again, so that it is the same document as that of --from-json.
        publish(read_records(arguments.json), arguments, console)
    return 1 if failed else 0


def measure_part(name: str, options: Options) -> Record:
    """Measures one part, and how busy the machine was meanwhile."""
    import machine
    from record import Record

    measure: Callable[[Options], Part] = importlib.import_module(PARTS[name]).measure
    others = machine.watch_others()
    part = measure(options)
    return Record(
        part=part,
        date=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        rounds=options.rounds,
        models=() if name in WITHOUT_MODELS or options.models == MODELS else options.models,
        machine=machine.describe(),
        cores_taken=others(),
    )


def publish(records: dict[str, Record], arguments: argparse.Namespace, console: Console) -> None:
    """Writes the pictures, the page and its appendix, of everything that was ever measured."""
    import application_growth
    import plots
    import report

    ordered = {name: records[name] for name in PARTS if name in records}
    pictures: dict[str, Any] = {}
    for name, drawn in plots.draw(ordered, arguments.plots).items():
        pictures[name] = [
            report.Picture(path=os.path.relpath(path, arguments.output.parent), text=text)
            for path, text in drawn
        ]
    output: Path = arguments.output
    appendix = output.with_stem(f"{output.stem}-appendix")
    output.write_text(report.page(ordered, pictures, appendix.name), encoding="utf-8")
    appendix.write_text(report.document(ordered, output.name), encoding="utf-8")
    application_growth.write(ordered, output.parent)
    console.print(f"Written: {output}, {appendix.name}", markup=False, soft_wrap=True)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


if __name__ == "__main__":
    sys.exit(main())
