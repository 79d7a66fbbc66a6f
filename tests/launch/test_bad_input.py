"""Refusals of command lines in one or two lines: the value found, what is allowed, the fix.

Each row is a command line and phrases that its message must hold. Malformed environments are in
`tests/cluster`; the options of `slurm` and `kubernetes` in the tests of these commands.
"""

import os
import resource
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tfdist.launch.cli import main

# Of processor time: 0.2 s here, and 2 with TensorFlow.
_LIMIT_S = 1.5

# Words of the command line (split as a shell does, run in a folder with FILES) -> phrases.
# The first word after `tfdist` may be any sub-command.
FILES = {
    "train.py": "",
    "notes.txt": "",
    "no_hosts": "# empty\n",
    "twice": "a slots=2\na slots=1\n",
    "bad_slots": "a slots=2\nb slots=two\n",
    "bad_key": "a slots=2\nb slot=2\n",
    "option": "b slots=2\n-x slots=2\n",
    "option.yaml": "host: --foo\n",
    "max_slots": "a max_slots=2\n",
    "binary": "\udcff\udcfe",
    "unclosed.yaml": "num-instances: [2\n",
    "list.yaml": "- num-instances\n",
    "empty.yaml": "",
    "unknown.yaml": "num-instnces: 2\n",
    "wrong.yaml": "num-instances: two\n",
    "many.yaml": "num-instances: [1, 2]\n",
    "nested.yaml": "show: {a: 1}\n",
    "twice.yaml": "show: 0\nshow: 1\n",
    "itself.yaml": "import-config: itself.yaml\n",
    "command.yaml": "command: train.py\n",
    "nul.yaml": 'command: [cat, "a\\0b"]\n',
    "tagged.yaml": "command: !!python/object/apply:os.system [touch broken-in]\n",
}
COMMANDS: list[tuple[str, list[str]]] = [
    # No command, or an unknown one.
    ("rnu train.py", ['unknown command "rnu"', 'Did you mean "tfdist run"?']),
    ("rnu", ["Allowed are run, slurm, kubernetes, horovod, doctor, env, logs, status and comp"]),
    ("launch train.py", ['unknown command "launch"', 'Did you mean "tfdist run"?']),
    ("train train.py", ['unknown command "train"', 'Did you mean "tfdist run"?']),
    ("start -n 2 train.py", ['unknown command "start"', 'Did you mean "tfdist run"?']),
    ("train.py", ['unknown command "train.py"', "Allowed are run", "tfdist run -- train.py"]),
    ("--version-format xml", ['got "xml"', "allowed are text and json", "Write text or json"]),
    # The program.
    ("run", ["got no command to run", "after the options", "For example: tfdist run"]),
    ("run --num-instances 2 --", ["got no command to run", "For example: tfdist run"]),
    ("run -- --num-instances 2 cat", ['begins with "--num-instances"', "before the --"]),
    ("run tran.py", ['no file "tran.py"', 'Did you mean "train.py"?', "correct it"]),
    ("run main.py", ['no file "main.py"', "A program is named by its path"]),
    ("run python tran.py", ['no file "tran.py"', 'Did you mean "train.py"?']),
    ("run no-such-tool", ['no program "no-such-tool" on PATH', "Correct the name"]),
    ("run ./tool", ['no program "./tool" in ', "Correct the name"]),
    ("run notes.txt", ['"notes.txt" is not executable', "chmod +x ./notes.txt"]),
    ("run .", ['"." is a folder', "a file is needed", "Name the program"]),
    ("run -m", ["-m needs the name of a module, got nothing", "For example"]),
    ("run -m no_such_module", ['no module "no_such_module"', "Correct the name"]),
    ("run -m 'a b'", ['-m "a b" is not', "letters, digits", "Write for example"]),
    # Options.
    ("run --num-instnces 2 cat", ['"--num-instnces"', 'Did you mean "--num-instances"?']),
    (
        "kubernetes --min-instances=2 cat",
        ["option of tfdist run and tfdist slurm", "Replace it with --max-restarts N."],
    ),
    ("run --num-inst 2 cat", ['"--num-inst"', 'Did you mean "--num-instances"?']),
    ("run -num-instances 2 cat", ['"-num-instances"', 'Did you mean "--num-instances"?']),
    ("run -q cat", ['unknown option "-q"', '"tfdist run --help" lists']),
    ("run --num-instances", ["needs a value, got nothing", "Write --num-instances=N"]),
    ("run --log-dir -v cat", ['needs a value, got the option "-v"', "Write --log-dir=FOLDER"]),
    ("run --verbose=2 cat", ["--verbose takes no value", 'got "2"', "Write --verbose"]),
    ("run -vq cat", ["-v takes no value", 'got "q"', "Write -v"]),
    ("run --help=x", ["--help takes no value", 'got "x"', "Write --help"]),
    ("run --evaluator yes cat", ['"yes" after --evaluator', "Write --evaluator=yes"]),
    ("run -verbose cat", ['"-verbose"', 'Did you mean "--verbose"?']),
    ("run -n two cat", ['got "two"', "from 1 to 100000"]),
    ("run --num-instances 0 cat", ['got "0"', "from 1 to 100000", "Write for example 1"]),
    ("run --num-instances -2 cat", ['got "-2"', "from 1 to 100000", "Write for example 1"]),
    ("run --engine gprc cat", ['got "gprc"', "grpc and horovod", 'Did you mean "grpc"?']),
    ("run --tag-output maybe cat", ['got "maybe"', "allowed are yes, 1", "Write yes or no"]),
    ("run --grace soon cat", ['got "soon"', "seconds from 0 on", "Write for example 30"]),
    ("run --stall-timeout 0 cat", ['got "0"', "seconds above 0", "Write for example 30"]),
    ("run --stall-timeout nan cat", ['got "nan"', "seconds above 0", "Write for example 30"]),
    ("run --bind core cat", ['got "core"', "cores, numa and none", 'Did you mean "cores"?']),
    ("run --port 70000 cat", ['got "70000"', "from 1 to 65535", "Write for example"]),
    ("run --host-subnet 10.0.0.0/99 cat", ['got "10.0.0.0/99"', "ADDRESS/BITS", "10.0.0.0/24"]),
    (
        "run --env 1A=2 cat",
        ['--env: got the name "1A"', "letters, digits and _", "Write NAME or NAME=VALUE"],
    ),
    ("run --env NOT_SET_HERE cat", ["NOT_SET_HERE is not set here", "NOT_SET_HERE=VALUE"]),
    ("run --env TF_CONFIG={} cat", ["--env sets TF_CONFIG", "Remove it"]),
    ("run --env HOROVOD_RANK=0 cat", ["--env sets HOROVOD_RANK", "Horovod's own", "Remove it"]),
    ("run --env PMI_SIZE=2 cat", ["--env sets PMI_SIZE", "another MPI's launcher", "Remove it"]),
    ("run --env TFDIST_RUN=a cat", ["--env sets TFDIST_RUN", "tfdist run makes it", "Remove it"]),
    ("run --env TFDIST_START_TIMEOUT_S=3 cat", ["--env sets", "use --start-timeout"]),
    ('run --mpi-global-args="\'a" cat', ['got "\'a"', "no closing quotation", "Close each"]),
    ("run --instance-mpi-local-args x cat", ['got "x"', "a colon", "Write for example 1:"]),
    # Options that contradict each other.
    ("run --num-instances 4 --num-replicas 10 cat", ["is 10", "is 4", "8 or 12", "2 or 5"]),
    ("run --num-instances 2 --num-replicas 1 cat", ["is 1", "is 2", "--num-replicas 2"]),
    ("run --num-instances 3 --num-replicas 7 cat", ["is 7", "is 3", "6 or 9", "1 or 7"]),
    (
        "run --min-instances 3 --num-instances 2 --max-restarts 1 cat",
        ["--min-instances is 3", "--num-instances is 2", "Use at most 2."],
    ),
    ("run --min-instances 1 cat", ["--min-instances is 1", "Add for example --max-restarts 3."]),
    ("run --snapshot-steps 5 cat", ["--snapshot-steps is 5", "Add for example --max-restarts 3."]),
    ("run --show 2 --num-instances 2 cat", ["--show is 2", "allowed here: 0 and 1", "raise"]),
    ("run --show evaluator cat", ["--show is evaluator", "add --evaluator"]),
    ("run --show all cat", ['got "all"', "indices", "Write for example 0"]),
    ("run --numa-aware yes --bind none cat", ["is yes", "--bind is none", "Leave --numa-aware"]),
    ("run --offline-mode no --dry-run cat", ["is no", "--dry-run is yes", "Leave --offline"]),
    ("run --instance-mpi-local-args 3:x cat", ["instance 3", "only 0", "raise --num-instances"]),
    ("run --host a,b --num-instances 9 --port 65530 cat", ["65530", "65538", "at most 65527"]),
    # Lists of hosts.
    ("run --host a,a cat", ['names "a" twice', "once is allowed", "write a:2"]),
    ("run --host 'n[0-2],n1' cat", ['names "n1" twice', "once is allowed", "write n1:2"]),
    ("run --host localhost,b cat", ['has "localhost"', 'beside "b"', "Use names that all"]),
    ("run --host 'n[0-2' cat", ['"n[0-2" is not a node list', "Write it like"]),
    ("run --host 'n[2-0]' cat", ['the range "2-0"', "Write a range like"]),
    ("run --host 'n[0-99][0-9999]' cat", ["more than 100000", "Make its ranges smaller"]),
    ("run --host a,,b cat", ['"a,,b"', "nothing before, between", "Write for example gpu1,gpu2"]),
    ("run --host a: cat", ['got ""', "from 1 to 99999", "Write for example gpu1:2"]),
    ("run --host a:0 cat", ['got "0"', "from 1 to 99999", "Write for example gpu1:2"]),
    ("run --host :2 cat", ['":2" has slots but no name', "Write NAME"]),
    ("run --host ::1 cat", ['"::1" has two colons', "in brackets"]),
    ("run --host http://a cat", ["starts with a protocol", "Write only NAME"]),
    ("run --host a/b cat", ['"a/b" is not a host', "Use a name of letters"]),
    ("run --host=--foo cat", ['"--foo" is not a host', "Use a name of letters"]),
    ("run --host=b,-oProxyCommand=x cat", ['"-oProxyCommand=x" is not a host', "Use a name"]),
    ("run --host=n[0-1],-n[0-1]:2 cat", ['"-n0" is not a host', "Use a name of letters"]),
    (f"run --host {'a.' * 130} cat", ['..." is not a host', "Use a name of letters"]),
    ("run --host a:2,b cat", ['"b" has no slots, but "a" has 2', "Give slots to all"]),
    ("run --host a:2,b:1 --num-instances 4 cat", ["3 slots", "is 4", "--num-instances 3"]),
    ("run --host a --hostfile twice cat", ["both --host", "one of them is allowed", "Leave one"]),
    # One command on each node.
    ("run --node-rank 1 cat", ["--node-rank is 1", "--nodes is missing", "Add --nodes a:3737"]),
    ("run --nodes a:1,b:1 cat", ["--node-rank is missing", "Write 0 on the first", "1 on the"]),
    ("run --nodes a:1,b:1 --node-rank 2 cat", ["--node-rank is 2", "--nodes has 2", "1 on the"]),
    ("run --nodes a,b:1 --node-rank 0 cat", ['has "a"', "it has no port", "Write "]),
    ("run --nodes a:1,a:1 --node-rank 0 cat", ['"a:1" twice', "once is allowed", "Remove"]),
    ("run --nodes localhost:1,b:1 --node-rank 0 cat", ['"localhost:1"', "Use names that all"]),
    ("run --nodes a:1,b:1 --node-rank 0 -n 3 cat", ["is 3, of all 2 nodes", "Use 2 or 4"]),
    (
        "run --nodes a:1,b:1 --node-rank 0 --max-restarts 1 cat",
        ["no place for --max-restarts", "needs one launcher for all", "Use --host"],
    ),
    (
        "run --nodes a:1,b:1 --node-rank 0 --engine horovod cat",
        ["no place for --engine", "one mpirun for all nodes", "Use --host"],
    ),
    ("run --nodes a:1 --node-rank 0 --host a cat", ["no place for --host:", "Use one of both"]),
    ("run --nodes a:1,b:1 --node-rank 0 --evaluator cat", ["no place for --eval", "Leave it out"]),
    # Hostfiles.
    ("run --hostfile nowhere cat", ['"nowhere" cannot be read: No such file', "Name a file"]),
    ("run --hostfile . cat", ['"." cannot be read: Is a directory', "Name a file"]),
    ("run --hostfile binary cat", ['"binary" is not a text file', "Name a file"]),
    ("run --hostfile no_hosts cat", ["names no host", "Name one a line"]),
    ("run --hostfile twice cat", ['names "a" twice', "slots=2 in a file"]),
    ("run --hostfile bad_slots cat", ['line 2: got "two"', "from 1 to 99999", "slots=2"]),
    ("run --hostfile bad_key cat", ["line 2", 'got "slot=2"', 'Did you mean "slots"?']),
    ("run --hostfile option cat", ['line 2: "-x" is not a host', "Use a name of letters"]),
    ("run --hostfile max_slots cat", ['line 1: got "max_slots=2"', "slots=N", "A whole line"]),
    # Folders and files.
    ("run --profile notes.txt/p cat", ['"notes.txt" is not a folder', "Name a folder"]),
    ("run --profile-steps 12:10 cat", ['got "12:10"', "Write for example 10:12"]),
    ("run --profile-steps 0:3 cat", ['got "0:3"', "Write for example 10:12"]),
    ("run --log-dir notes.txt cat", ['"notes.txt" is not a folder', "Name a folder"]),
    ("run --export-config notes.txt cat", ["is there already", "Name another", "overwrite"]),
    ("run --export-config a/run.yaml cat", ["folder that does not exist", 'Make "a" first']),
    ("run --export-config . cat", ['"." is a folder', "a file is needed", "Name a file"]),
    ("run --import-config nowhere", ["cannot be read: No such file", "Name a YAML file"]),
    ("run --import-config binary", ["not YAML text in UTF-8", "For example"]),
    ("run --import-config unclosed.yaml", ["not YAML", "line 2", "For example"]),
    ("run --import-config list.yaml", ["holds a list", "options with values", "For example"]),
    ("run --import-config /dev/null", ["it is a pipe", "a regular file", "Write the options"]),
    ("run --import-config empty.yaml", ["holds nothing", "options with values", "For example"]),
    ("run --import-config unknown.yaml", ['"num-instnces"', 'Did you mean "num-instances"?']),
    (
        "run --import-config wrong.yaml",
        ['"wrong.yaml": --num-instances: got "two"', "Write"],
    ),
    ("run --import-config many.yaml", ["list of 2 values", "one is allowed", "For example"]),
    ("run --import-config nested.yaml", ["show holds more than a word", "For example"]),
    ("run --import-config twice.yaml", ['the key "show" twice', "once is allowed", "Remove"]),
    ("run --import-config option.yaml cat", ['"--foo" is not a host', "Use a name of letters"]),
    ("run --import-config itself.yaml", ['unknown option "import-config"', "Allowed are"]),
    ("run --import-config command.yaml", ['list of words, got "train.py"', "For example"]),
    ("run --import-config tagged.yaml", ["the tag ", "os.system", "Remove the tag"]),
    ("run --import-config nul.yaml", ["NUL character", r'"a\u0000b"', "Remove it"]),
    # Slurm's batch script.
    ("slurm", ["no command to run", "For example: tfdist slurm --num-instances 2 -- python"]),
    # Kubernetes' manifests.
    ("kubernetes --image i -- cat", ["--name is missing", "Write for example"]),
    # The self-test.
    ("doctor now", ['"now" is no option', "only options are allowed", "Remove it"]),
]
# Rows of COMMANDS that are also run as the real command.
REAL_COMMANDS = (
    "train.py",
    "run --num-instances 4 --num-replicas 10 cat",
    "run --import-config unclosed.yaml",
)


@pytest.fixture
def in_a_folder_with_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, errors="surrogateescape")


@pytest.fixture
def nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails a test in which a process, or a run, is started."""

    def start(*args: object, **options: object) -> int:
        raise AssertionError(f"started: {args}")

    monkeypatch.setattr(subprocess, "Popen", start)
    for name in ("fork", "forkpty", "posix_spawn", "posix_spawnp", "execv", "execve", "system"):
        monkeypatch.setattr(os, name, start)
    monkeypatch.setitem(sys.modules, "tfdist.launch.run.command", SimpleNamespace(main=start))


@pytest.fixture
def within_the_limit() -> Iterator[None]:
    """Fails a test that uses too much processor time; other load does not count."""
    started_s = time.process_time()
    yield
    assert time.process_time() - started_s < _LIMIT_S


def check(message: str, phrases: list[str]) -> None:
    assert [phrase for phrase in phrases if phrase not in message] == [], message
    assert len(message.rstrip("\n").splitlines()) <= 2, message
    assert "Traceback" not in message
    assert message.count("is not a host") <= 1


@pytest.mark.usefixtures("nothing_starts", "within_the_limit", "in_a_folder_with_files")
@pytest.mark.parametrize(("words", "phrases"), COMMANDS)
def test_a_command_is_refused(
    words: str, phrases: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(shlex.split(words)) == 2
    out, message = capsys.readouterr()
    check(message, [": error: ", *phrases])
    assert message.startswith("tfdist")
    assert out == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(FILES)


@pytest.mark.processes
@pytest.mark.usefixtures("in_a_folder_with_files")
@pytest.mark.parametrize("words", REAL_COMMANDS)
def test_the_real_command_refuses_within_the_time_limit(words: str, tmp_path: Path) -> None:
    used_s = children_s()
    done = subprocess.run(
        [sys.executable, "-m", "tfdist", *shlex.split(words)], capture_output=True, text=True
    )
    assert children_s() - used_s < _LIMIT_S
    assert (done.returncode, done.stdout) == (2, "")
    check(done.stderr, dict(COMMANDS)[words])
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(FILES)


def children_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
