"""Measures how fast tfdist is against its bounds and its peers, and writes docs/benchmarks.md.

The record goes to docs/lab: all medians as a page, and with quartiles as JSON.

    python scripts/benchmarks/run.py [--only steps,fit] [--models cnn,mlp] [--rounds 20]
    python scripts/benchmarks/run.py --quick

Needs two idle cores. Each part is written to the JSON file as soon as it is measured; parts that
are not measured stay in it as they are. The pages and the pictures are made of the whole file. The
exit code is 1 if a part failed, 2 after a wrong call.

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
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from results import Options, Part, Record

DOCS = Path(__file__).parents[2] / "docs"
QUICK = DOCS.parent / "build" / "quick-benchmark"
CONTENDERS = Path(__file__).parent / "contenders"
JSON, RECORD_PAGE = Path("lab", "benchmarks.json"), Path("lab", "record.md")

# In the order of the document. A part's module has `measure(options) -> Part`.
PARTS = {
    "steps": "step_times",
    "fit": "fit_times",
    "applications": "applications",
    "pipelines": "pipelines",
    "slow-link": "slow_link",
    "tables": "large_tables",
    "own-cost": "own_cost",
}
# `applications`, `pipelines` and `tables` have their own models.
MODELS = ("cnn", "mlp", "resnet-20", "bert-mini", "embedding")
ROUNDS, QUICK_ROUNDS = 20, 5
NUM_CORES = 2
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
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="for pages and pictures")
    parser.add_argument(
        "--from-json",
        action="store_true",
        help=f"measure nothing: write the pages and the pictures of the folder's {JSON}",
    )
    arguments = parser.parse_args(argv)
    if arguments.quick and arguments.only:
        parser.error("--quick measures the step times alone. Leave out --only, or --quick.")
    if arguments.quick:
        QUICK.mkdir(parents=True, exist_ok=True)
    arguments.only = arguments.only or (("steps",) if arguments.quick else tuple(PARTS))
    arguments.rounds = arguments.rounds or (QUICK_ROUNDS if arguments.quick else ROUNDS)
    arguments.output = arguments.output or (QUICK if arguments.quick else DOCS)
    if not arguments.output.is_dir():
        parser.error(f"there is no folder {arguments.output}. Make it, or name another one.")
    if arguments.from_json and not (arguments.output / JSON).is_file():
        parser.error(f"--from-json: there is no file {arguments.output / JSON}.")
    if importlib.util.find_spec("matplotlib") is None:
        parser.error('matplotlib is not installed. Run: pip install -e ".[benchmark]"')
    cores = len(os.sched_getaffinity(0))
    if cores < NUM_CORES and not arguments.from_json:
        parser.error(
            f"this needs {NUM_CORES} cores and may run on {cores}. Run it on a machine with more, "
            "or without taskset."
        )
    return arguments


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


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, prints and writes; says how it went as an exit code."""
    arguments = read_arguments(argv)
    sys.path.append(str(CONTENDERS))  # What contenders train is described there.
    from results import RecordError, read_records  # A wrong call should be quick.

    file = arguments.output / JSON
    try:
        records = read_records(file) if file.exists() else {}
    except RecordError as error:
        print(f"run.py: error: {error}", file=sys.stderr)
        return 2
    if arguments.from_json:
        publish(records, arguments.output)
        return 0
    # Without this, workers would be left running after a `kill`.
    signal.signal(signal.SIGTERM, _end)
    try:
        return measure_parts(records, arguments)
    except KeyboardInterrupt:
        print(f"Interrupted. What was measured before is in {file}.", file=sys.stderr)
        return INTERRUPTED


def _end(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


def measure_parts(records: dict[str, Record], arguments: argparse.Namespace) -> int:
    """Measures the chosen parts; a part that fails is reported, and the others go on.

    Returns:
      1 if a part failed, else 0.
    """
    from report import section
    from results import Options, read_records, with_earlier, write_records

    options = Options(
        rounds=arguments.rounds,
        models=arguments.models,
        cores=tuple(sorted(os.sched_getaffinity(0))[:NUM_CORES]),
        say=lambda line: print(line, flush=True),
        is_quick=arguments.quick,
    )
    file = arguments.output / JSON
    file.parent.mkdir(exist_ok=True)
    failed = []
    for name in arguments.only:
        try:
            record = measure_part(name, options)
            is_whole = arguments.models == MODELS or name not in records
            records[name] = record if is_whole else with_earlier(record, records[name])
        except Exception as error:  # Whatever it is, the other parts do not depend on it.
            failed.append(name)
            reason = " ".join(str(error).split())
            print(f"{name} failed: {type(error).__name__}: {reason}", file=sys.stderr)
            continue
        print(section(records[name]), flush=True)
        write_records(file, records)
    if len(failed) < len(arguments.only):
        # Read again, so that they are the same pages as those of --from-json.
        publish(read_records(file), arguments.output)
    return 1 if failed else 0


def measure_part(name: str, options: Options) -> Record:
    """Measures one part, and how busy the machine was meanwhile."""
    import machine
    from results import Record

    measure: Callable[[Options], Part] = importlib.import_module(PARTS[name]).measure
    others = machine.watch_others()
    part = measure(options)
    return Record(
        part=part,
        date=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        rounds=options.rounds,
        machine=machine.describe(),
        cores_taken=others(),
    )


def publish(records: dict[str, Record], folder: Path) -> None:
    """Writes the pictures, the page and the record, of everything that was ever measured."""
    import plots
    import report

    ordered = {name: records[name] for name in PARTS if name in records}
    pictures = plots.draw(ordered, folder)
    (folder / "benchmarks.md").write_text(report.page(ordered, pictures), encoding="utf-8")
    (folder / RECORD_PAGE).write_text(report.record_page(ordered), encoding="utf-8")
    print(f"Written: {folder / 'benchmarks.md'}, {folder / RECORD_PAGE}")


if __name__ == "__main__":
    sys.exit(main())
