"""Options are kept in files: the command line wins, and a file means the same as its options."""

import shlex
from pathlib import Path

import pytest
import yaml

from tfdist.launch.errors import UsageError
from tfdist.launch.options.config_file import write_config
from tfdist.launch.options.run_command_line import parse_run_options
from tfdist.launch.options.run_options import RunOptions

ENVIRON = {"PATH": "/usr/bin:/bin", "HOME": "/h"}


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def parsed(*words: str) -> RunOptions:
    return parse_run_options(words, ENVIRON)


def from_file(text: str, *words: str) -> RunOptions:
    Path("run.yaml").write_text(text)
    return parsed("--import-config", "run.yaml", *words)


def write(options: RunOptions) -> None:
    assert options.export_config is not None
    write_config(options.export_config, options.config, may_overwrite=options.overwrite_config)


def exported(*words: str) -> RunOptions:
    options = parsed(*words, "--export-config", "run.yaml", "--overwrite-config", "yes", "sleep")
    write(options)
    return options


@pytest.mark.parametrize(
    "words",
    [
        "",
        "--engine horovod --num-instances 4 --num-replicas 8 --host a:2,b:2 --evaluator -vv",
        "--grace 2.5 --stall-timeout 9 --max-restarts 3 --show 0 --show 0 --tag-output no",
        "-x A=yes -x HOME --threads 2 --numa-aware yes --color never --log-dir here",
        "--mpi-global-args=--tag --instance-mpi-local-args \"0:'a b'\" --num-ilds 3",
    ],
)
def test_an_exported_file_starts_the_same_run(words: str) -> None:
    before = exported(*shlex.split(words))
    after = parsed("--import-config", "run.yaml")
    assert after.config == before.config
    expected = {"export_config": None, "overwrite_config": False, "config": {}, "notices": ()}
    for name in RunOptions.__dataclass_fields__:
        if name not in expected:
            assert getattr(after, name) == getattr(before, name), name


def test_an_exported_file_holds_all_options_and_the_command() -> None:
    write(parsed("--num-instances", "2", "--export-config", "run.yaml", "sleep", "on"))
    config = yaml.safe_load(Path("run.yaml").read_text())
    assert config["num-instances"] == 2
    assert config["max-restarts"] == 0
    assert config["stall-timeout"] == "none"
    assert config["command"] == ["sleep", "on"]
    assert list(config)[-1] == "command"
    assert not config.keys() & {"dry-run", "import-config", "export-config", "overwrite-config"}


def test_the_command_line_wins() -> None:
    text = "num-instances: 2\nshow: [0, 1]\nstall-timeout: 5\nevaluator: yes\ncommand: [cat, a]"
    options = from_file(text)
    assert (options.num_instances, options.show, options.command) == (2, (0, 1), ("cat", "a"))
    words = "--num-instances 3 --show 2 --stall-timeout none --evaluator=no sleep 1"
    options = from_file(text, *words.split())
    assert (options.num_instances, options.show, options.evaluator) == (3, (2,), False)
    assert (options.stall_timeout_s, options.command) == (None, ("sleep", "1"))
    # Also where it has another name for the same.
    options = from_file("hostfile: nowhere\nnuma-aware: yes", "-H", "a", "--bind", "none", "sleep")
    assert [host.name for host in options.hosts] == ["a"]
    assert options.bind == "none"


def test_words_in_a_file_are_kept_unchanged_but_null_stands_for_an_options_default() -> None:
    assert from_file("threads: null\nnum-instances: null", "sleep").threads is None
    command = from_file("command: [sleep, yes, 010, 1.50, null, 2020-01-01]").command
    assert command == ("sleep", "yes", "010", "1.50", "null", "2020-01-01")


def test_popruns_names_may_stand_in_a_file() -> None:
    options = from_file("ipus-per-replica: 2\nvipu-partition: p\nverbose: 2", "sleep")
    assert options.devices_per_replica == 2
    assert options.verbosity == 2
    assert options.notices[0].startswith("--vipu-partition is ignored")


def test_a_file_is_not_replaced_unless_that_is_allowed() -> None:
    Path("there.yaml").write_text("mine")
    with pytest.raises(UsageError, match="is there already"):
        parsed("--export-config", "there.yaml", "sleep")
    options = parsed("--export-config", "new.yaml", "sleep")
    assert not Path("new.yaml").exists()
    Path("new.yaml").write_text("mine")  # between the check and the writing
    with pytest.raises(UsageError, match="File exists"):
        write(options)
    assert Path("there.yaml").read_text() == Path("new.yaml").read_text() == "mine"


def test_a_secret_that_is_named_but_not_written_stays_out_of_the_file() -> None:
    exported("-x", "HOME")
    assert "/h" not in Path("run.yaml").read_text()


def test_nested_yaml_aliases_do_not_fill_the_memory() -> None:
    rows = [f"a{index}: &a{index} [{', '.join([f'*a{index - 1}'] * 9)}]" for index in range(1, 20)]
    with pytest.raises(UsageError, match="unknown option"):
        from_file("\n".join(["a0: &a0 [x]", *rows]), "sleep")
    with pytest.raises(UsageError, match="show holds more than"):
        from_file("show: &x [[1], [2]]", "sleep")
