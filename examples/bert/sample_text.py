"""English text that every Python has, as pretraining records that are made once and kept.

The text is Python's language reference (`pydoc_data.topics`) and the docstrings of the standard
library, whose files are parsed, not imported: about 2 million characters. A tenth of the documents
is held out for evaluation.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import fcntl
import hashlib
import os
import re
import shutil
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import records
import wordpieces
from options import DataError
from samples import Recipe, make_samples

_FORMAT = 1  # Change it with this file or samples.py: it is part of the cache's key.
_DUPE_FACTOR = 4  # of the text for training: 34,000 samples of 64 pieces, made in 7 s
_LONGEST_WAIT_S = 600
_FEWEST_SOURCES = 20
_NOT_LIBRARY = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3"}


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """The files of the prepared sample."""

    training: Path
    held_out: Path
    vocabulary: Path


def prepare(
    *,
    sequence_length: int,
    mask_tokens: int,
    vocab_size: int,
    seed: int,
    vocab_file: Path | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Prepared:
    """Returns the sample's files; makes them if the cache has none of these sizes and this text.

    Of several processes that need them at once, one makes them and the others wait.

    Raises:
      DataError: If the cache cannot be written, or a package is missing.
    """
    recipe = Recipe(
        sequence_length=sequence_length, mask_tokens=mask_tokens, dupe_factor=_DUPE_FACTOR
    )
    sources = library_sources()
    if len(sources) < _FEWEST_SOURCES:
        raise DataError(
            f"the sample is made of the standard library's source files, and "
            f"{sysconfig.get_path('stdlib')} has {len(sources)}. Use another Python, or --dataset "
            "pretraining."
        )
    given = "" if vocab_file is None else vocab_file.read_text(encoding="utf-8")
    key = _key(sources, repr((_FORMAT, recipe, vocab_size, seed, given)))
    folder = _cache_folder(environ) / "bert-sample" / key
    try:
        if not folder.exists():
            with _lock(folder.with_suffix(".lock")):
                if not folder.exists():  # Another process may have made it meanwhile.
                    _make(folder, sources, recipe, vocab_size, seed, vocab_file)
    except OSError as error:
        raise DataError(
            f"the sample cannot be kept in {folder.parent}: {error.strerror}. Set TFDIST_CACHE_DIR "
            "to a folder that can be written."
        ) from error
    return _files_of(folder)


def _cache_folder(environ: Mapping[str, str]) -> Path:
    """Returns the folder that tfdist keeps built wheels in, too."""
    if chosen := environ.get("TFDIST_CACHE_DIR"):
        return Path(chosen).expanduser().absolute()
    return Path(environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().absolute() / "tfdist"


def _files_of(folder: Path) -> Prepared:
    return Prepared(
        training=folder / "training.tfrecord",
        held_out=folder / "held_out.tfrecord",
        vocabulary=folder / "vocab.txt",
    )


def _make(
    folder: Path,
    sources: Mapping[str, bytes],
    recipe: Recipe,
    vocab_size: int,
    seed: int,
    vocab_file: Path | None,
) -> None:
    """Makes the folder in one step: it is complete as soon as it is there."""
    start_s = time.monotonic()
    partial = folder.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed
    training, held_out = split(documents_of(sources))
    if vocab_file is None:
        texts = [sentence for document in training for sentence in document]
        vocabulary = wordpieces.train_vocabulary(texts, vocab_size)
    else:
        vocabulary = wordpieces.read_vocabulary(vocab_file)
    read_once = dataclasses.replace(recipe, dupe_factor=1)
    files = _files_of(partial)
    partial.mkdir()
    try:
        wordpieces.write_vocabulary(files.vocabulary, vocabulary)
        for path, documents, used in (
            (files.training, training, recipe),
            (files.held_out, held_out, read_once),
        ):
            sentences = [sentence for document in documents for sentence in document]
            encoded = iter(wordpieces.encode(vocabulary, sentences))
            of_documents = [[next(encoded) for _ in document] for document in documents]
            made = make_samples(of_documents, vocabulary, used, seed)
            records.write_file(path, map(records.encode, made))
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    print(
        f"The sample was made in {time.monotonic() - start_s:.1f} secs and is kept in {folder}",
        file=sys.stderr,
        flush=True,
    )


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Holds the lock file of one process at a time; the system releases it when a holder dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    deadline_s = time.monotonic() + _LONGEST_WAIT_S
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline_s:
                    raise DataError(
                        f"another process has held {path} for {_LONGEST_WAIT_S} s while it makes "
                        "the sample. End it, or set TFDIST_CACHE_DIR to another folder."
                    ) from None
                time.sleep(0.1)
        yield


def library_sources() -> dict[str, bytes]:
    """Returns the source files of the standard library: name, such as "json/decoder.py", to bytes.

    Tests and the packages of the editor IDLE are left out.
    """
    library = Path(sysconfig.get_path("stdlib"))
    paths: list[Path] = []
    for folder, folders, files in os.walk(library):
        folders[:] = [name for name in folders if name not in _NOT_LIBRARY]  # Not walked through.
        paths += [Path(folder, name) for name in files if name.endswith(".py")]
    return {str(path.relative_to(library)): path.read_bytes() for path in sorted(paths)}


def _key(sources: Mapping[str, bytes], settings: str) -> str:
    """Returns a hash of the text's sources and the settings."""
    digest = hashlib.sha256(settings.encode())
    for name, source in sources.items():
        digest.update(f"{name} {len(source)} ".encode() + source)
    return digest.hexdigest()[:16]


def documents_of(sources: Mapping[str, bytes]) -> dict[str, list[str]]:
    """Returns the documents of the standard library: name to sentences.

    A module's docstrings are a document, a topic of the language reference is one.
    """
    documents = {}
    for name, source in sources.items():
        if Path(name).parent.name == "pydoc_data":
            topics = _topics(source)
            documents.update({f"topic {topic}": text for topic, text in topics.items()})
        else:
            documents[name] = "\n\n".join(_docstrings(source))
    split = {name: list(sentences_of(text)) for name, text in documents.items()}
    return {name: sentences for name, sentences in split.items() if sentences}


def _topics(source: bytes) -> dict[str, str]:
    """Returns the texts of `topics = {...}` in a source file, by topic."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            return ast.literal_eval(node.value)
    return {}


def _docstrings(source: bytes) -> Iterator[str]:
    try:
        tree = ast.parse(source)
    except SyntaxError:  # A template, or source for another version of Python.
        return
    with_docstrings = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, with_docstrings) and (text := ast.get_docstring(node)):
            yield text


def sentences_of(text: str) -> Iterator[str]:
    """Splits text at empty lines, and behind the marks that end a sentence."""
    for paragraph in re.split(r"\n\s*\n", text):
        words = " ".join(paragraph.split())
        yield from filter(None, re.split(r"(?<=[.!?]) ", words))


def split(documents: Mapping[str, list[str]]) -> tuple[list[list[str]], list[list[str]]]:
    """Returns the documents for training, and the last tenth, which is held out.

    They are ordered by a hash of their names, so that topics and modules are in both parts.
    """
    names = sorted(documents, key=lambda name: hashlib.sha256(name.encode()).digest())
    ordered = [documents[name] for name in names]
    count = len(names) // 10
    return ordered[:-count], ordered[-count:]
