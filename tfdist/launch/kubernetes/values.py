"""Values of `tfdist kubernetes` options: names, quantities, images, volumes, variables.

The API server of Kubernetes would also refuse an invalid value, but later, and it would name a
manifest field that the user did not write.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from tfdist.launch.options.declaration import Value
from tfdist.launch.options.values import check_variable, matching, wrong
from tfdist.process.text import shown

LONGEST_LABEL = 63
_LONGEST_NAME = 253
_LONGEST_EXAMPLE = 30
_LABEL = "[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"

_BINARY = {"": 1, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
_DECIMAL = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18}
_BYTES = {**_BINARY, **_DECIMAL}
_LEAST_MEMORY = 2**20


class ClaimMount(NamedTuple):
    """A PersistentVolumeClaim, and the folder in the pods where it is mounted."""

    claim: str
    path: str


class SecretVariable(NamedTuple):
    """An environment variable with the value of a Secret's key."""

    name: str
    secret: str
    key: str


def run_name(text: str) -> str:
    """Reads a name for pods and a Service: a DNS label that starts with a letter."""
    label(text)
    if not text[0].isalpha():
        raise ValueError(
            f"got {shown(text)}, which starts with a digit, and a Service's name may not. "
            f"Write for example {_shown_label(f'run-{text}')}."
        )
    return text


def label(text: str) -> str:
    """Reads a DNS label, such as the name of a namespace or a queue."""
    if not re.fullmatch(_LABEL, text) or len(text) > LONGEST_LABEL:
        allowed = f"are 1 to {LONGEST_LABEL} characters a-z, 0-9 and -, no - first or last"
        raise wrong(text, allowed, _shown_label(text))
    return text


def object_name(text: str) -> str:
    """Reads the name of a Secret, service account or claim: DNS labels separated by dots."""
    if not re.fullmatch(rf"{_LABEL}(?:[.]{_LABEL})*", text) or len(text) > _LONGEST_NAME:
        characters = "characters a-z, 0-9, - and ., a letter or digit first and last"
        raise wrong(text, f"are 1 to {_LONGEST_NAME} {characters}", _shown_label(text))
    return text


def memory(text: str) -> str:
    """Reads an amount of memory, such as 16Gi or 500M."""
    match = re.fullmatch(r"([0-9]{1,18}(?:[.][0-9]{1,3})?)([A-Za-z]*)", text)
    if not match or match[2] not in _BYTES:
        allowed = "is a number with Ki, Mi, Gi, Ti (of 1024), k, M, G or T (of 1000)"
        raise wrong(text, allowed, _memory_example(text))
    if float(match[1]) * _BYTES[match[2]] < _LEAST_MEMORY:
        raise ValueError(
            f"got {shown(text)}, which is less than a megabyte: a number without a unit counts "
            f"bytes. Write for example {_memory_example(text)}."
        )
    return text


def claim_mount(text: str) -> ClaimMount:
    """Reads a claim and its mount path: CLAIM:/FOLDER."""
    claim, _, path = text.partition(":")
    is_absolute = path.startswith("/") and path.strip("/")
    if not is_absolute or re.search(r"[:\s]|/[.][.]?(/|$)", path):
        allowed = "is the name of a PersistentVolumeClaim, a colon and an absolute folder"
        raise wrong(text, allowed, "checkpoints:/mnt/checkpoints")
    return ClaimMount(claim=object_name(claim), path=path.rstrip("/"))


def assignment(text: str) -> tuple[str, str]:
    """Reads an environment variable: NAME=VALUE."""
    name, equals, value = check_variable(text).partition("=")
    if not equals:
        raise ValueError(
            f"got {shown(text)}, and a manifest holds values, not those that are here. "
            f"Write {name}=VALUE."
        )
    return name, value


def secret_variable(text: str) -> SecretVariable:
    """Reads an environment variable from a Secret: NAME=SECRET:KEY."""
    name, _, place = text.partition("=")
    secret, _, key = place.partition(":")
    if not re.fullmatch(r"[-._a-zA-Z0-9]{1,253}", key):
        allowed = "is a variable, the name of a Secret and a key in it"
        raise wrong(text, allowed, "API_TOKEN=my-secret:token")
    return SecretVariable(name=check_variable(name), secret=object_name(secret), key=key)


def _shown_label(text: str) -> str:
    near = re.sub("[^a-z0-9]+", "-", text.lower()).strip("-")[:_LONGEST_EXAMPLE].rstrip("-")
    return near if re.fullmatch(_LABEL, near) else "train"


def _memory_example(text: str) -> str:
    match = re.match(r"\s*([0-9]+)\s*([kKmMgGtTpPeE]?)", text)
    if not match or not int(match[1]):
        return "16Gi"
    return f"{int(match[1])}{(match[2] or 'G').upper()}i"


RUN_NAME = Value(run_name, "NAME")
LABEL = Value(label, "NAME")
OBJECT_NAME = Value(object_name, "NAME")
MEMORY = Value(memory, "SIZE")
MEMORY_OR_NONE = Value(lambda text: None if text == "0" else memory(text), "SIZE", none_word="none")
CLAIM_MOUNT = Value(claim_mount, "CLAIM:/FOLDER")
ASSIGNMENT = Value(assignment, "NAME=VALUE")
SECRET_VARIABLE = Value(secret_variable, "NAME=SECRET:KEY")
CPUS = matching(
    r"(?=.*[1-9])(?:[0-9]{1,6}(?:[.][0-9]{1,3})?|[0-9]{1,9}m)",
    "N",
    "are cores above 0 as 4, 0.5 or 500m (thousandths)",
    "4",
)
_PART = "[a-z0-9]+(?:(?:[.]|_|__|-+)[a-z0-9]+)*"
_IMAGE = (
    rf"(?:[A-Za-z0-9.-]+(?::[0-9]+)?/)?{_PART}(?:/{_PART})*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
)
IMAGE = matching(
    _IMAGE,
    "IMAGE",
    "is REGISTRY/NAME:TAG, the name in lower case, without spaces",
    "registry.example.com/team/train:1.0",
)
PROGRAM = matching(
    r"\S+", "PROGRAM", "is a program's name or path without spaces", "/usr/local/bin/mpirun"
)
