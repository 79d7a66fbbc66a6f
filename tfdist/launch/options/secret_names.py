"""Secrets in commands and variables: known by the words of a name, or by the form of a value."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

HIDDEN = "***"

# Anywhere in a name, also within a word: PGPASSWORD, --secret-file.
_ALWAYS = re.compile(
    r"password|passwd|passphrase|secret(?!ar)|credential|apikey|(access|auth)token|amzsignature"
)
# As the last word of a name, where words such as FILE may follow. Beside each: the words before it
# that make it another thing, as in --forward-pass, --sort-key, --pad-token.
_LAST: Mapping[str, frozenset[str]] = {
    word: frozenset(before.split())
    for word, before in {
        "auth": "no use with without skip enable disable",
        "bearer": "",
        "cookie": "",
        "cred": "",
        "creds": "",
        "dsn": "",
        "jwt": "",
        "key": "sort primary foreign feature label metric partition group public cache index",
        "pass": "forward backward single multi first second one two num max min per low high band",
        "pat": "",
        "psw": "",
        "pswd": "",
        "pw": "",
        "pwd": "",
        "sas": "",
        "sshpass": "",
        "token": "pad eos bos sep cls mask unk special start stop end image first last per max",
        "webhook": "",
    }.items()
}
# The plural is one only behind these: API_KEYS, and not --max-tokens.
_PLURAL, _BEFORE_PLURAL = ("keys", "tokens"), ("access", "api", "auth", "private", "secret", "ssh")
_MAY_FOLLOW = ("base", "data", "file", "id", "json", "path", "string", "text", "value")
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")

# mysql's -pPASSWORD. A number is ssh's port; some programs have long options with one dash.
_SHORT_OPTION = re.compile(
    r"-p(?!=?\d+(:\d+)*$)"
    r"(?!(ack|ara|arsa|art|ath|atien|edantic|er|hase|ip|ix|lat|ool|ort|re|rin|roc|rof|roj|roxy|thr)"
    r"[a-z_-]*$).+",
    re.DOTALL,
)
# user:password@ of a URL, or of a proxy without its scheme; a long user is a token.
_IN_URL = re.compile(
    r"(?P<user>://[^\s/:@]*:)[^\s/]*(?=@)"
    r"|(?P<scheme>://)[^\s/:@]{20,}(?=@)"
    r"|(?P<name>(?<![\w/:])[^\s/:@=]+:)[^\s/:@]+(?=@[\w.-]+:\d)"
)
# What GitHub, Hugging Face, Amazon, Slack and others give out, and private keys.
_KNOWN = re.compile(
    r"\bgh[pousr]_\w{20,}|\bgithub_pat_\w{20,}|\bhf_\w{20,}|\bsk-[\w-]{20,}|\bxox[abp]-[\w-]{10,}"
    r"|\bAKIA[0-9A-Z]{16}\b|-----BEGIN.*",
    re.DOTALL,
)
_OF_STORAGE = "sig"  # Azure's, in a URL; as an option it may be a signal
_ASSIGNMENT = re.compile(r"(?P<name>[\w.-]+)=(?P<value>[^\s,;&]+)")


def is_secret_name(name: str) -> bool:
    """Returns whether a variable or an option holds a secret, judged by the words of its name."""
    words = [word.lower() for word in _WORD.findall(name)]
    if any(_ALWAYS.search(word) for word in (*words, "".join(words))):
        return True
    while words and words[-1] in _MAY_FOLLOW:
        words.pop()
    if not words or name == "PWD":  # the shell's working directory
        return False
    before = words[-2] if len(words) > 1 else ""
    if words[-1] in _PLURAL:
        return before in _BEFORE_PLURAL
    return words[-1] in _LAST and before not in _LAST[words[-1]]


def hide_in_value(text: str) -> str:
    """Returns a text with the secrets hidden that its form shows: URLs, tokens, name=value."""
    text = _KNOWN.sub(HIDDEN, text)
    text = _IN_URL.sub(lambda found: f"{found[found.lastgroup or 0]}{HIDDEN}", text)
    return _ASSIGNMENT.sub(_hide_assigned, text)


def _hide_assigned(found: re.Match[str]) -> str:
    name = found["name"]
    is_secret = name == _OF_STORAGE or is_secret_name(name)
    return f"{name}={HIDDEN}" if is_secret else found[0]


def hide_in_variable(name: str, value: str) -> str:
    """Returns the value of a variable as it may be shown."""
    return HIDDEN if is_secret_name(name) else hide_in_value(value)


def hide_in_command(command: Sequence[str]) -> list[str]:
    """Returns the words of a command as they may be shown."""
    shown: list[str] = []
    is_value = False
    for word in command:
        name, equals, value = word.partition("=")
        is_short = _SHORT_OPTION.fullmatch(word) is not None
        if is_value:
            shown.append(HIDDEN)
        elif " " in name:  # A command for a shell.
            shown.append(" ".join(hide_in_command(hide_in_value(word).split(" "))))
        elif equals and name and "://" not in name:
            shown.append(f"{name}={hide_in_variable(name, value)}")
        elif is_short:
            shown.append(f"-p{HIDDEN}")
        else:
            shown.append(hide_in_value(word))
        is_option = word.startswith("-") and not (is_value or equals or is_short)
        is_value = is_option and is_secret_name(word)
    return shown
