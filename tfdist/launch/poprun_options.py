"""The options of poprun that have no effect here: accepted, with a line that says why."""

from __future__ import annotations

import argparse

from tfdist.launch.option_values import whole_number

_NO_VIPU = "there is no V-IPU server: the devices are those of the machines themselves"
_NO_PARTITION = "there are no partitions: each worker uses devices of the machine it runs on"

# poprun's other options: what stands for the value, and why they mean nothing here.
MEANINGLESS = {
    "--executable-cache-path": ("FOLDER", "TensorFlow compiles no executables to keep"),
    "--sync-type": ("TYPE", "the engine synchronises the workers, there are no sync groups"),
    "--vipu-server-host": ("HOST", _NO_VIPU),
    "--vipu-server-port": ("PORT", _NO_VIPU),
    "--vipu-server-timeout": ("SECONDS", _NO_VIPU),
    "--vipu-partition": ("NAME", _NO_PARTITION),
    "--vipu-partition-attempts": ("N", _NO_PARTITION),
    "--vipu-allocation": ("NAME", _NO_PARTITION),
    "--vipu-cluster": ("NAME", _NO_PARTITION),
    "--update-partition": ("BOOL", _NO_PARTITION),
    "--reset-partition": ("BOOL", _NO_PARTITION),
    "--remove-partition": ("BOOL", _NO_PARTITION),
}


def add_poprun_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of poprun that have no effect here; each has its reason."""
    group = parser.add_argument_group(
        "accepted for poprun's sake", "They change nothing; a line says why."
    )
    group.add_argument(
        "--num-ilds",
        type=whole_number(1),
        metavar="N",
        help="link domains: a row of the topology table",
    )
    for name, (metavar, _) in MEANINGLESS.items():
        group.add_argument(name, metavar=metavar)


def meaningless_notices(given: argparse.Namespace) -> list[str]:
    """Returns a line for each option that was given and has no effect."""
    return [
        f"{name} is ignored: {reason}"
        for name, (_, reason) in MEANINGLESS.items()
        if getattr(given, name[2:].replace("-", "_")) is not None
    ]
