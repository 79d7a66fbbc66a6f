"""Refusals of malformed input in one or two lines: the value found, what is allowed, the fix.

Each row is an input and phrases that its message must hold. To add a row, put it into the table it
belongs to; a new sub-command's rows go into COMMANDS.
"""

import json
import os
import resource
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tfdist.cluster import ClusterError, find_cluster, find_mpi_rank, parse_tf_config
from tfdist.cluster.environment import find_instance
from tfdist.launch.cli import main

# Of processor time: 0.2 s here, and 2 with TensorFlow.
_LIMIT_S = 1.5

TWO = {"worker": ["localhost:3737", "localhost:3738"]}
FIRST = {"type": "worker", "index": 0}
EXAMPLE = '{"cluster": {"worker": ["localhost:3737", "localhost:3738"]}'


def tf_config(cluster: Any, task: Any = FIRST) -> str:
    return json.dumps({"cluster": cluster, "task": task})


def worker(*addresses: str) -> str:
    return tf_config({"worker": list(addresses)})


# The text of TF_CONFIG -> phrases.
TF_CONFIGS: list[tuple[str, list[str]]] = [
    ("{", ["not JSON", "line 1, column 2", 'near "{"', EXAMPLE]),
    ("{'cluster': {}}", ["not JSON", "near \"{'cluster", "double quotes", EXAMPLE]),
    ("worker:0", ["not JSON", 'near "worker:0"', EXAMPLE]),
    (f"{worker('a:1')} more", ["not JSON", "Extra data", EXAMPLE]),
    ("[" * 100_000, ["nested too deeply", "For example", EXAMPLE]),
    ("[]", ["must be a JSON object, got []", "For example", EXAMPLE]),
    ("7", ["must be a JSON object, got 7", EXAMPLE]),
    ("{}", ['has no "cluster"', EXAMPLE]),
    ('{"cluster": {"worker": ["a:1"]}}', ['has no "task"', EXAMPLE]),
    ('{"cluster": {}, "cluster": {}}', ['the key "cluster" twice', "Keep one"]),
    (tf_config([]), ["cluster must be an object", "got []", "For example"]),
    (tf_config({}), ["no chief and no worker", 'Add the tasks that train, for example "worker"']),
    (tf_config({"ps": ["a:1"]}), ["no chief and no worker, only ps", "Add the tasks that train"]),
    (tf_config({"worker": "a:1"}), ['list of "host:port" strings, got "a:1"', "For example"]),
    (tf_config({"worker": [1]}), ['list of "host:port" strings, got [1]', "For example"]),
    (tf_config({"worker": {"0": "a:1", "2": "b:1"}}), ['got ["0", "2"]', "Number them 0 and 1"]),
    (tf_config({"wroker": ["a:1"]}), ['"wroker": allowed are chief', 'Did you mean "worker"?']),
    (worker("gpu1"), ['lists "gpu1": it has no port', 'Write "host:port"']),
    (worker(":1"), ['lists ":1": it has no host', 'Write "host:port"']),
    (worker("a:0"), ['"0" is not a port', "Use a number from 1 to 65535"]),
    (worker("a:99999"), ['"99999" is not a port', "Use a number from 1 to 65535"]),
    (worker("a:three"), ['"three" is not a port', "Use a number from 1 to 65535"]),
    (worker("http://a:1"), ['"http://a:1": it starts with a protocol', 'Write only "host:port"']),
    (worker("::1:3"), ['"::1:3": its host has a colon', "Put an IPv6 address in brackets"]),
    (worker("[z]:3"), ["[z] is not an IPv6 address", "Write [address]:port"]),
    (worker("-a:1"), ['"-a" is not a host', "Use a name of letters"]),
    (worker("a b:1"), ['"a b" is not a host', "Use a name of letters"]),
    (worker("a\nb:1"), [r'"a\nb" is not a host', "Use a name of letters"]),
    (
        worker("a:1", "a:1"),
        ["a:1 twice, as worker 0 and worker 1", "Give each task its own address"],
    ),
    (worker("localhost:1", "b:1"), ["mixes localhost:1", "with b:1", "Use names or addresses"]),
    (tf_config({"chief": ["a:1", "b:1"]}), ["2 chiefs (a:1 and b:1)", "one is allowed", "Keep"]),
    (tf_config(TWO, 3), ["task must be an object, got 3", "For example"]),
    (tf_config(TWO, {"index": 0}), ['task has no "type"', '{"index": 0}', "For example"]),
    (tf_config(TWO, {"type": "worker"}), ['task has no "index"', "For example"]),
    (tf_config(TWO, {"type": "wrker", "index": 0}), ['"wrker": allowed', 'mean "worker"?']),
    (tf_config(TWO, {"type": "worker", "index": 2}), ["index 2", "2 workers", "Set", "0 or 1"]),
    (tf_config(TWO, {"type": "worker", "index": -1}), ["integer from 0, got -1", "Set task.index"]),
    (tf_config(TWO, {"type": "worker", "index": 1.5}), ["got 1.5", "integer", "Set task.index"]),
    (tf_config(TWO, {"type": "worker", "index": True}), ["got true", "integer", "Set task.index"]),
    (tf_config(TWO, {"type": "chief", "index": 0}), ['"chief" is not in', "lists worker", "add"]),
    (tf_config(TWO, {"type": "evaluator", "index": 1}), ["index 1", "Set task.index to 0"]),
]

MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
# Differences from MPI -> phrases.
MPI_VARIABLES: list[tuple[dict[str, str | None], list[str]]] = [
    ({"OMPI_COMM_WORLD_RANK": "4"}, ["_RANK is 4", "_SIZE is 4", "Leave these variables to mpi"]),
    ({"OMPI_COMM_WORLD_LOCAL_RANK": "2"}, ["LOCAL_RANK is 2", "LOCAL_SIZE is 2", "Leave"]),
    ({"OMPI_COMM_WORLD_LOCAL_SIZE": "5"}, ["LOCAL_SIZE is 5", "WORLD_SIZE is 4", "Leave"]),
    ({"OMPI_COMM_WORLD_SIZE": "many"}, ['is "many"', "integer from 0", "Leave it to mpirun"]),
    ({"OMPI_COMM_WORLD_RANK": "-1"}, ['is "-1"', "integer from 0", "Leave it to mpirun"]),
    ({"OMPI_COMM_WORLD_RANK": "1\n2\n3"}, [r'is "1\n2\n3"', "integer from 0", "Leave it"]),
    ({"OMPI_COMM_WORLD_SIZE": None}, ["_SIZE is not set, though", "_RANK", "mpirun", "unset"]),
]

STEP = {
    "SLURM_JOB_ID": "17",
    "SLURM_PROCID": "2",
    "SLURM_STEP_NODELIST": "n[08-09],m",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
}
# Differences from STEP -> phrases.
SLURM_VARIABLES: list[tuple[dict[str, str | None], list[str]]] = [
    ({"SLURM_PROCID": "5"}, ["SLURM_PROCID is 5", "from 0 to 4", "Start the program with srun"]),
    ({"SLURM_PROCID": "first"}, ['is "first"', "integer from 0", "with srun"]),
    ({"SLURM_STEP_NUM_TASKS": "6"}, ["NUM_TASKS is 6", "means 5 tasks", "with srun"]),
    ({"SLURM_STEP_NUM_TASKS": "9" * 15}, ["9" * 15, "at most 100000", "with srun"]),
    ({"SLURM_STEP_NODELIST": "n[08-09]"}, ["has 2 nodes (n[08-09])", "3 nodes", "with srun"]),
    ({"SLURM_STEP_NODELIST": "n[08"}, ['"n[08" is not a node list', "Write it like"]),
    ({"SLURM_STEP_NODELIST": "n[9-8],m"}, ['the range "9-8"', "Write a range like"]),
    ({"SLURM_STEP_NODELIST": "n[0-999999]"}, ["more than 100000", "Make its ranges smaller"]),
    ({"SLURM_STEP_TASKS_PER_NODE": "two"}, ['"two" is not a list', "with srun", '"2(x3),1"']),
    ({"SLURM_NODEID": "2"}, ["SLURM_NODEID is 2", "expected 1", "--distribution=block"]),
]

# Variables that contradict each other -> phrases.
CONTRADICTIONS: list[tuple[dict[str, str], list[str]]] = [
    ({**MPI, "TFDIST_NUM_INSTANCES": "4"}, ["is not set, though TFDIST_NUM_INSTANCES", "unset"]),
    ({"TFDIST_DEVICES_PER_REPLICA": "2"}, ["TFDIST_NUM_LOCAL_REPLICAS is not set", "unset"]),
    ({"TFDIST_NUM_LOCAL_REPLICAS": "none"}, ['is "none"', "integer from 1", "tfdist run"]),
    ({"HOROVOD_RANK": "0"}, ["HOROVOD_SIZE is not set, though HOROVOD_RANK is", "horovodrun"]),
    ({"PMI_RANK": "0", "PMI_SIZE": "2"}, ["PMI_SIZE is 2", "not supported", "tfdist run"]),
    ({"PMIX_RANK": "a\nb"}, [r'PMIX_RANK is "a\nb"', "not supported", "unset PMIX_RANK"]),
]

# Words of the command line (split as a shell does, run in a folder with FILES) -> phrases.
# The first word after `tfdist` may be any sub-command.
FILES = {
    "train.py": "",
    "notes.txt": "",
    "no_hosts": "# empty\n",
    "twice": "a slots=2\na slots=1\n",
    "bad_slots": "a slots=2\nb slots=two\n",
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
    ("", ["no command", "Allowed are run, slurm", '"tfdist --help"']),
    ("rnu train.py", ['unknown command "rnu"', "Allowed are run", 'Did you mean "run"?']),
    ("train.py", ['unknown command "train.py"', "Allowed are run", "tfdist run -- train.py"]),
    ("--version-format xml", ['got "xml"', "allowed are text and json", "Write text or json"]),
    # The program.
    ("run", ["got no command to run", "after the options", "For example: tfdist run"]),
    ("run --num-instances 2 --", ["got no command to run", "For example: tfdist run"]),
    ("run -- --num-instances 2 cat", ['begins with "--num-instances"', "before the --"]),
    ("run tran.py", ['no file "tran.py"', 'Did you mean "train.py"?', "correct it"]),
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
    ("run --num-inst 2 cat", ['"--num-inst"', 'Did you mean "--num-instances"?']),
    ("run -num-instances 2 cat", ['"-num-instances"', 'Did you mean "--num-instances"?']),
    ("run -q cat", ['unknown option "-q"', '"tfdist run --help" lists']),
    ("run --num-instances", ["needs a value, got nothing", "Write --num-instances=N"]),
    ("run --log-dir -v cat", ['needs a value, got the option "-v"', "Write --log-dir=FOLDER"]),
    ("run --verbose=2 cat", ["--verbose takes no value", 'got "2"', "Write --verbose"]),
    ("run --evaluator yes cat", ['"yes" after --evaluator', "Write --evaluator=yes"]),
    ("run --num-instances two cat", ['got "two"', "from 1 to 100000", "Write for example 1"]),
    ("run --num-instances 0 cat", ['got "0"', "from 1 to 100000", "Write for example 1"]),
    ("run --num-instances -2 cat", ['got "-2"', "from 1 to 100000", "Write for example 1"]),
    ("run --max-restarts 1.5 cat", ['got "1.5"', "from 0 to 100000", "Write for example 1"]),
    ("run --engine gprc cat", ['got "gprc"', "grpc and horovod", 'Did you mean "grpc"?']),
    ("run --tag-output maybe cat", ['got "maybe"', "allowed are yes, 1", "Write yes or no"]),
    ("run --grace soon cat", ['got "soon"', "seconds from 0 on", "Write for example 30"]),
    ("run --stall-timeout 0 cat", ['got "0"', "seconds above 0", "Write for example 30"]),
    ("run --stall-timeout nan cat", ['got "nan"', "seconds above 0", "Write for example 30"]),
    ("run --bind core cat", ['got "core"', "cores, numa and none", 'Did you mean "cores"?']),
    ("run --port 70000 cat", ['got "70000"', "from 1 to 65535", "Write for example"]),
    ("run --host-subnet 10.0.0.0/99 cat", ['got "10.0.0.0/99"', "ADDRESS/BITS", "10.0.0.0/24"]),
    ("run --env 1A=2 cat", ['name "1A"', "letters, digits and _", "Write NAME or NAME=VALUE"]),
    ("run --env NOT_SET_HERE cat", ["NOT_SET_HERE is not set here", "NOT_SET_HERE=VALUE"]),
    ("run --env TF_CONFIG={} cat", ["--env sets TF_CONFIG", "Remove it"]),
    ("run --env HOROVOD_RANK=0 cat", ["--env sets HOROVOD_RANK", "Horovod's own", "Remove it"]),
    ("run --env PMI_SIZE=2 cat", ["--env sets PMI_SIZE", "another MPI's launcher", "Remove it"]),
    ("run --env TFDIST_START_TIMEOUT_S=3 cat", ["--env sets", "use --start-timeout"]),
    ('run --mpi-global-args="\'a" cat', ['got "\'a"', "no closing quotation", "Close each"]),
    ("run --instance-mpi-local-args x cat", ['got "x"', "a colon", "Write for example 1:"]),
    # Options that contradict each other.
    ("run --num-instances 4 --num-replicas 10 cat", ["is 10", "is 4", "8 or 12", "2 or 5"]),
    ("run --num-instances 2 --num-replicas 1 cat", ["is 1", "is 2", "--num-replicas 2"]),
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
    ("run --host=b,-x cat", ['"-x" is not a host', "Use a name of letters"]),
    ("run --host=n[0-1],-n[0-1]:2 cat", ['"-n0" is not a host', "Use a name of letters"]),
    (f"run --host {'a.' * 130} cat", ['..." is not a host', "Use a name of letters"]),
    ("run --host a:2,b cat", ['"b" has no slots, but "a" has 2', "Give slots to all"]),
    ("run --host a:2,b:1 --num-instances 4 cat", ["3 slots", "is 4", "--num-instances 3"]),
    ("run --host a --hostfile twice cat", ["both --host", "one of them is allowed", "Leave one"]),
    # Hostfiles.
    ("run --hostfile nowhere cat", ['"nowhere" cannot be read: No such file', "Name a file"]),
    ("run --hostfile . cat", ['"." cannot be read: Is a directory', "Name a file"]),
    ("run --hostfile binary cat", ['"binary" is not a text file', "Name a file"]),
    ("run --hostfile no_hosts cat", ["names no host", "Name one a line"]),
    ("run --hostfile twice cat", ['names "a" twice', "slots=2 in a file"]),
    ("run --hostfile bad_slots cat", ['line 2: got "two"', "from 1 to 99999", "slots=2"]),
    ("run --hostfile option cat", ['line 2: "-x" is not a host', "Use a name of letters"]),
    ("run --hostfile max_slots cat", ['line 1: got "max_slots=2"', "slots=N", "A whole line"]),
    # Folders and files.
    ("run --profile notes.txt/p cat", ['"notes.txt" is not a folder', "Name a folder"]),
    ("run --profile-steps 12:10 cat", ['got "12:10"', "Write for example 10:12"]),
    ("run --profile-steps 0:3 cat", ['got "0:3"', "Write for example 10:12"]),
    ("run --log-dir notes.txt cat", ['"notes.txt" is not a folder', "Name a folder"]),
    ("run --log-dir notes.txt/logs cat", ['"notes.txt" is not a folder', "Name a folder"]),
    ("run --export-config notes.txt cat", ["is there already", "Name another", "overwrite"]),
    ("run --export-config a/run.yaml cat", ["folder that does not exist", 'Make "a" first']),
    ("run --export-config . cat", ['"." is a folder', "a file is needed", "Name a file"]),
    ("run --import-config nowhere", ["cannot be read: No such file", "Name a YAML file"]),
    ("run --import-config binary", ["not YAML text in UTF-8", "For example"]),
    ("run --import-config unclosed.yaml", ["not YAML", "line 2", "For example"]),
    ("run --import-config list.yaml", ["holds a list", "options with values", "For example"]),
    ("run --import-config empty.yaml", ["holds nothing", "options with values", "For example"]),
    ("run --import-config unknown.yaml", ['"num-instnces"', 'Did you mean "num-instances"?']),
    ("run --import-config wrong.yaml", ['"wrong.yaml": --num-instances: got "two"', "Write"]),
    ("run --import-config many.yaml", ["list of 2 values", "one is allowed", "For example"]),
    ("run --import-config nested.yaml", ["show holds more than a word", "For example"]),
    ("run --import-config twice.yaml", ['the key "show" twice', "once is allowed", "Remove"]),
    ("run --import-config option.yaml cat", ['"--foo" is not a host', "Use a name of letters"]),
    ("run --import-config itself.yaml", ['unknown option "import-config"', "Allowed are"]),
    ("run --import-config command.yaml", ['list of words, got "train.py"', "For example"]),
    ("run --import-config tagged.yaml", ["the tag ", "os.system", "Remove the tag"]),
    ("run --import-config nul.yaml", ["NUL character", r'"a\u0000b"', "Remove it"]),
    # Slurm's batch script.
    ("slurm", ["no command to run", "For example"]),
    ("slurm --tiem 3 cat", ['unknown option "--tiem"', 'Did you mean "--time"?']),
    ("slurm --time soon cat", ['got "soon"', "allowed are", "Write for example"]),
    ("slurm --partition 'a b' cat", ['got "a b"', "allowed are", "Write for example"]),
    ("slurm --job-name 'a\nb' cat", [r'got "a\nb"', "allowed are", "Write for example"]),
    ("slurm --num-instances 3 --nodes 2 cat", ["is 3", "--nodes is 2", "--num-instances 2 or 4"]),
    ("slurm --num-instances 2 --num-replicas 3 cat", ["is 3", "is 2", "--num-replicas 2 or 4"]),
    # Names and sizes in Kubernetes' manifests.
    ("kubernetes --image i -- cat", ["--name is missing", "Write for example"]),
    ("kubernetes --name a --image i", ["no command to run", "for example"]),
    ("kubernetes --name A_b --image i cat", ['got "A_b"', "a-z, 0-9 and -", "Write for example"]),
    ("kubernetes --name a --image 'x y' cat", ['got "x y"', "without spaces", "Write for"]),
    ("kubernetes --name a --image i --kind jbo cat", ['got "jbo"', "allowed are", 'mean "job"?']),
    ("kubernetes --name a --image i --namespace A cat", ['got "A"', "a-z", "Write for example"]),
    ("kubernetes --name a --image i --memory lots cat", ['got "lots"', "Mi", "Write for example"]),
    # The self-test.
    ("doctor now", ['"now" is no option', "only options are allowed", "Remove it"]),
]
# Rows of COMMANDS that are also run as the real command.
REAL_COMMANDS = (
    "train.py",
    "run",
    "run tran.py",
    "run --num-instnces 2 cat",
    "run --num-instances 4 --num-replicas 10 cat",
    "run --host localhost,b cat",
    "run --hostfile bad_slots cat",
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


def refused(read: Callable[[], object]) -> str:
    with pytest.raises(ClusterError) as caught:
        read()
    return str(caught.value)


def changed(variables: dict[str, str], change: dict[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in {**variables, **change}.items() if value is not None}


@pytest.mark.usefixtures("nothing_starts", "within_the_limit")
class TestRefusals:
    @pytest.mark.parametrize(("text", "phrases"), TF_CONFIGS)
    def test_of_a_tf_config(self, text: str, phrases: list[str]) -> None:
        message = refused(lambda: parse_tf_config(text))
        check(message, ["TF_CONFIG", *phrases])
        assert refused(lambda: find_cluster({"TF_CONFIG": text})) == message

    @pytest.mark.parametrize(("change", "phrases"), MPI_VARIABLES)
    def test_of_mpi_variables(self, change: dict[str, str | None], phrases: list[str]) -> None:
        check(refused(lambda: find_mpi_rank(changed(MPI, change))), phrases)

    @pytest.mark.parametrize(("change", "phrases"), SLURM_VARIABLES)
    def test_of_slurm_variables(self, change: dict[str, str | None], phrases: list[str]) -> None:
        check(refused(lambda: find_cluster(changed(STEP, change))), phrases)

    @pytest.mark.parametrize(("variables", "phrases"), CONTRADICTIONS)
    def test_of_contradictions(self, variables: dict[str, str], phrases: list[str]) -> None:
        check(refused(lambda: find_instance(variables)), phrases)

    @pytest.mark.usefixtures("in_a_folder_with_files")
    @pytest.mark.parametrize(("words", "phrases"), COMMANDS)
    def test_of_a_command(
        self,
        words: str,
        phrases: list[str],
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        assert main(shlex.split(words)) == 2
        out, message = capsys.readouterr()
        check(message, [": error: ", *phrases])
        assert message.startswith("tfdist")
        assert out == ""
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted(FILES)

    def test_are_more_than_sixty(self) -> None:
        tables = (TF_CONFIGS, MPI_VARIABLES, SLURM_VARIABLES, CONTRADICTIONS, COMMANDS)
        assert sum(len(table) for table in tables) >= 60


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


@pytest.mark.processes
@pytest.mark.parametrize("row", [1, 17, 34])
def test_a_program_with_a_wrong_tf_config_ends_within_the_time_limit(row: int) -> None:
    text, phrases = TF_CONFIGS[row]
    code = (
        "from tfdist.process import endings; from tfdist.cluster import find_cluster\n"
        "endings.install(); find_cluster()\n"
        "print('trained')"
    )
    used_s = children_s()
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "TF_CONFIG": text},
        capture_output=True,
        text=True,
    )
    assert children_s() - used_s < _LIMIT_S
    assert (done.returncode, done.stdout) == (2, "")
    check(done.stderr, ["ClusterError: TF_CONFIG", *phrases])


def children_s() -> float:
    """Returns the processor's time that all ended children have used."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
