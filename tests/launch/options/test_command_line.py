"""A command's options are declared once; its command line and its --help follow from that."""

from dataclasses import dataclass
from typing import Any

import pytest

from tfdist.launch.doctor.command import DOCTOR
from tfdist.launch.kubernetes.job_options import KUBERNETES
from tfdist.launch.options.command_line import CommandLine
from tfdist.launch.options.declaration import BOOLEAN, Group, flag, option
from tfdist.launch.options.run_options import RUN
from tfdist.launch.options.values import NETWORK, seconds, whole_number
from tfdist.launch.slurm.slurm_options import SLURM

GROUP = Group("size")


@dataclass(frozen=True)
class Options:
    num_cats: int = option(whole_number(1), "cats, 100 % of them", default=2, group=GROUP)
    quick: bool = flag("be quick")
    network: tuple[str, ...] = option(NETWORK, "where", "-w", "--net", is_list=True)
    limit_s: float | None = option(seconds(none_word="none"), "limit", default=3.5)
    level: int = option(None, "how loud", "-l", "--loud", default=0)
    secret: bool = option(BOOLEAN, None, default=False)


CATS = CommandLine(prog="tfdist cats", options=Options)


@pytest.mark.parametrize(
    ("words", "given"),
    [
        ("", {}),
        ("--num-cats 3 --quick", {"num_cats": 3, "quick": True}),
        ("--quick=no --limit=none", {"quick": False, "limit_s": None}),
        ("-w 10.0.0.0/8 --net=10.1.0.0/16", {"network": ("10.0.0.0/8", "10.1.0.0/16")}),
        ("-w10.0.0.0/8 -lll -l", {"network": ("10.0.0.0/8",), "level": 4}),
        ("--secret yes", {"secret": True}),
        ("train.py --quick -l", {"command": ("train.py", "--quick", "-l")}),
        ("-- --quick", {"command": ("--quick",)}),
    ],
)
def test_only_what_is_given_is_returned(words: str, given: dict[str, Any]) -> None:
    found = CATS.parse(words.split())
    found.pop("notices")
    assert found == given


def test_help_follows_from_the_declarations() -> None:
    text = CATS.help()
    assert text.startswith("usage: tfdist cats [options]\n")
    assert "size:\n  --num-cats N " in text
    assert [one.group for one in CATS.declared] == [GROUP] * len(CATS.declared)
    assert "cats, 100 % of them (default: 2)" in text
    assert "-w CIDR, --net CIDR" in text and "where; repeatable" in text
    assert "--limit SECONDS" in text and "limit (default: 3.5)" in text
    assert "be quick (default: no)" in text
    assert "secret" not in text


@pytest.mark.parametrize("line", [RUN, SLURM, KUBERNETES, DOCTOR], ids=lambda line: line.prog)
def test_no_two_options_of_a_command_have_one_name(line: CommandLine) -> None:
    names = [name for one in line.declared for name in one.names]
    assert len(names) == len(set(names))
    assert len({one.key for one in line.declared}) == len(line.declared)


@pytest.mark.parametrize("line", [RUN, SLURM, KUBERNETES], ids=lambda line: line.prog)
def test_every_default_could_be_written_by_a_user(line: CommandLine) -> None:
    for one in line.declared:
        if one.value and one.shown_default and one.default_in_file is not None:
            assert one.value.read(one.shown_default) == one.default, one.long_name
