"""Check of the language in docstrings, comments, messages, identifiers and documents.

    check_words.py              checks the repository
    check_words.py PATH ...     checks these files and folders

Each finding is one line, `file:line: found -> suggestion`; with a finding the exit code is 1.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]

# These files name the words: this one to forbid them, and its tests.
EXEMPT = ("scripts/check_words.py", "tests/scripts/test_check_words.py")

# What a docstring must not begin with -> what to write instead.
_OPENINGS = {
    r"(what|how|who|whom|whose|which|where|when|whether|why|whatever|whoever)\b": (
        "a noun phrase, or a verb such as Returns"
    ),
    r"is to be\b": "Must be",
    r"does so\b": "repeat the verb: 'Like `f`, for ...'",
    r"(has|have) (this|the|a|each|every|all) \w+ (?!been\b)[a-z]+\b": "name the action directly",
    r"(nobody|somebody)('s)?\b": "name the subject",
}

# What must not stand anywhere -> what to write instead. Matched as whole words, in any case.
_WORDS = {
    r"(no|some|any|every)body('s)?": "name the subject: a worker, a process, the user",
    r"who(m|so)ever|whoever": "name the subject",
    r"whom": "which worker, which process, the objects that",
    r"for ever": "indefinitely, forever",
    r"anew": "again",
    r"heirs?": "subclass, subclasses",
    r"mend(s|ed|ing)?": "fix",
    r"whose each": "start a new sentence",
    r"lets what": "name the object: 'makes the ops that ...'",
    r"beside it(self)?": "next to it, in the same folder",
    r"met us": "joined",
    r"lest": "so that ... not",
    r"hence(forth)?|whence|thence": "therefore, so",
    r"there(of|in|from|upon)|where(of|in|upon)|here(by|in|upon)": "name the thing",
    r"so, too": "as well",
    r"shall": "must, will",
    r"not for nothing": "leave out",
    r"for want of": "because there is no",
    r"told of": "reported",
    r"in times (of )?the": "relative to the",
}

# What must not be a word of an identifier, such as `is_told` or `ToldWorkers` -> what to write
# instead. Names of tests are sentences, and may have them.
_IDENTIFIER_WORDS = {
    r"mends?": "fix",
    r"told": "reported, launched, given",
    r"asked": "requested",
    r"wish(es)?": "requests",
    r"sightings?": "snapshot",
    r"standings?": "status",
}


def _joined(rules: Iterable[str]) -> str:
    """Returns one pattern for all rules, in which a space may also be a line break."""
    return "|".join(rule.replace(" ", r"\s+") for rule in rules)


_OPENING = re.compile(_joined(_OPENINGS), re.IGNORECASE)
_WORD = re.compile(rf"\b({_joined(_WORDS)})\b", re.IGNORECASE)
# A capital, code in backticks, or a number or bracket that a capital cannot replace.
_GOOD_START = re.compile(r"[A-Z`(\d*]")
_CODE = re.compile(r"^( *)(```|~~~).*?^\1\2|`[^`\n]+`|\]\([^)\s]+\)|<!--.*?-->", re.M | re.S)
_PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")  # Of snake_case and of CamelCase.
_IDENTIFIER_WORD = re.compile(_joined(_IDENTIFIER_WORDS), re.IGNORECASE)
_TEXT_FILES = {".cfg", ".md", ".sh", ".toml", ".yaml", ".yml"}


class Finding(NamedTuple):
    """One place to rewrite."""

    line: int
    found: str
    suggestion: str


def check_python(source: str) -> list[Finding]:
    """Checks the docstrings, comments, messages and identifiers of a Python file."""
    tree = ast.parse(source)
    found: list[Finding] = []
    docstrings: set[ast.expr] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node)
            if text is not None:
                statement = node.body[0]
                assert isinstance(statement, ast.Expr)
                docstrings.add(statement.value)
                found += _check_opening(text, statement.lineno)
    if _IDENTIFIER_WORD.search(source):
        found += _check_identifiers(source)
    if not _WORD.search(source):  # As in most files: there is nothing more to look for.
        return sorted(set(found))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            is_message = " " in node.value  # Without a space it is a name or a value.
            if is_message or node in docstrings:
                found += _check_words(node.value, node.lineno)
    found += _check_comments(source)
    return sorted(set(found))


def check_text(text: str) -> list[Finding]:
    """Checks a document, a shell script or a settings file; code blocks and code are left out."""
    return sorted(set(_check_words(_CODE.sub(_blank, text), 1)))


def _check_opening(docstring: str, line: int) -> Iterator[Finding]:
    text = docstring.strip()
    match = _OPENING.match(text)
    if match:
        suggestion = _suggestion(_OPENINGS, match[0])
        yield Finding(line, f"docstring begins with {_quoted(match[0])}", suggestion)
    elif text and not _GOOD_START.match(text):
        yield Finding(line, f"docstring begins with {_quoted(text.split()[0])}", "a capital letter")


def _check_words(text: str, line: int) -> Iterator[Finding]:
    for match in _WORD.finditer(text):
        number = line + text.count("\n", 0, match.start())
        yield Finding(number, _quoted(match[0]), _suggestion(_WORDS, match[0]))


def _check_comments(source: str) -> Iterator[Finding]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield from _check_words(token.string, token.start[0])


def _check_identifiers(source: str) -> Iterator[Finding]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME and not token.string.startswith("test_"):
            for part in _PART.findall(token.string):
                if _IDENTIFIER_WORD.fullmatch(part):
                    suggestion = _suggestion(_IDENTIFIER_WORDS, part)
                    yield Finding(token.start[0], f"identifier {token.string}", suggestion)


def _blank(match: re.Match[str]) -> str:
    """Replaces code by nothing, and keeps its line breaks: findings have line numbers."""
    return "\n" * match[0].count("\n") or " "


def _suggestion(rules: dict[str, str], found: str) -> str:
    """Returns what the rule that has matched suggests."""
    text = " ".join(found.split())
    return next(fix for rule, fix in rules.items() if re.match(rule, text, re.IGNORECASE))


def _quoted(found: str) -> str:
    return f"'{' '.join(found.split())}'"


def check_file(path: Path) -> list[Finding]:
    """Checks one file by its kind; other kinds have no findings."""
    if path.suffix == ".py":
        return check_python(path.read_text(encoding="utf-8"))
    if path.suffix in _TEXT_FILES:
        return check_text(path.read_text(encoding="utf-8"))
    return []


def repository_files() -> list[str]:
    """Lists the files that git knows or would add, relative to the repository's root."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return sorted(name for name in set(listed.stdout.splitlines()) if (ROOT / name).is_file())


def _chosen(paths: list[Path]) -> list[str]:
    """Returns the repository's files at or below these paths; without paths all of them."""
    names = [name for name in repository_files() if name not in EXEMPT]
    wanted = [path.resolve() for path in paths] or [ROOT]
    return [
        name
        for name in names
        if any((ROOT / name) == path or path in (ROOT / name).parents for path in wanted)
    ]


def main(argv: list[str] | None = None) -> int:
    """Prints every finding; returns 1 if there are any, else 0."""
    parser = argparse.ArgumentParser(description="Check the language of docstrings and documents.")
    parser.add_argument("paths", nargs="*", type=Path, metavar="PATH", help="check only these")
    count = 0
    for name in _chosen(parser.parse_args(argv).paths):
        for finding in check_file(ROOT / name):
            print(f"{name}:{finding.line}: {finding.found} -> {finding.suggestion}")
            count += 1
    if count:
        print(f"{count} to rewrite", file=sys.stderr)
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
