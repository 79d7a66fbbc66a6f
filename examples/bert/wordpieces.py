"""WordPiece vocabularies: read from a file, trained on text, and applied to sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from options import DataError

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_MOST_LETTERS = 1000  # of a text; words with another one become [UNK]
_PREFIX = "##"  # of a piece that continues a word


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The WordPieces of a vocabulary, in the order of their ids."""

    pieces: tuple[str, ...]

    def __post_init__(self) -> None:
        missing = [piece for piece in SPECIAL if piece not in self.pieces]
        if missing:
            raise DataError(f"the vocabulary has no {', '.join(missing)}. Add a line for each.")
        if len(set(self.pieces)) < len(self.pieces):
            twice = next(piece for i, piece in enumerate(self.pieces) if piece in self.pieces[:i])
            raise DataError(f"the vocabulary has {twice!r} twice. Remove one of the lines.")

    def __len__(self) -> int:
        return len(self.pieces)

    def id_of(self, piece: str) -> int:
        return self.pieces.index(piece)

    def continues_word(self) -> np.ndarray:
        """Returns for each id whether its piece continues a word: bool [vocabulary]."""
        return np.array([piece.startswith(_PREFIX) for piece in self.pieces])

    def words(self) -> np.ndarray:
        """Returns the ids of all pieces but those in brackets: int64 [words]."""
        bracketed = [len(p) > 2 and p[0] == "[" and p[-1] == "]" for p in self.pieces]
        return np.flatnonzero(~np.array(bracketed))


def read_vocabulary(path: Path) -> Vocabulary:
    """Reads a vocabulary file: one piece a line, its id is the number of the line from 0.

    Raises:
      DataError: If it cannot be read, lacks one of `SPECIAL`, or has a piece twice.
    """
    try:
        pieces = path.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise DataError(f"vocabulary {path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError:
        raise DataError(f"vocabulary {path} is not text in UTF-8.") from None
    if pieces[-1] == "":
        pieces.pop()
    try:
        return Vocabulary(tuple(piece.rstrip("\r") for piece in pieces))
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


def write_vocabulary(path: Path, vocabulary: Vocabulary) -> None:
    path.write_text("".join(f"{piece}\n" for piece in vocabulary.pieces), encoding="utf-8")


def train_vocabulary(texts: Sequence[str], size: int, *, lowercase: bool = True) -> Vocabulary:
    """Finds the `size` pieces that serve to write the texts.

    The same texts give the same vocabulary. Where they have too few words for the size, the last
    pieces are [unused0], [unused1] and so on.

    Raises:
      DataError: If the special pieces and the letters alone are more than `size`.
    """
    tokenizers = _tokenizers()
    trained = tokenizers.BertWordPieceTokenizer(lowercase=lowercase)
    counts = Counter(trained.normalize("\n".join(texts)))
    frequent = sorted(
        counts.keys() - set(" \t\n\r\v\f"), key=lambda letter: (-counts[letter], letter)
    )
    letters = sorted(frequent[:_MOST_LETTERS])
    # The trainer numbers the letters in an order that differs from run to run, and decides between
    # equally frequent pieces by these numbers. Given first, they have the same numbers every time.
    first = [*SPECIAL, *letters, *(_PREFIX + letter for letter in letters)]
    if len(first) > size:
        raise DataError(
            f"a vocabulary of {size} is too small for this text: {len(SPECIAL)} special pieces and "
            f"{len(letters)} letters, at the beginning of a word and inside, are {len(first)}."
        )
    trained.train_from_iterator(
        texts,
        vocab_size=size,
        min_frequency=2,
        limit_alphabet=1,  # No other letters than those of `first`.
        special_tokens=first,
        show_progress=False,
    )
    ids = trained.get_vocab()
    pieces = sorted(ids, key=ids.__getitem__)
    unused = [f"[unused{i}]" for i in range(size - len(pieces))]
    return Vocabulary((*pieces, *unused))


def encode(
    vocabulary: Vocabulary, sentences: Iterable[str], *, lowercase: bool = True
) -> list[list[int]]:
    """Returns the ids of each sentence's pieces."""
    ids = {piece: i for i, piece in enumerate(vocabulary.pieces)}
    tokenizer = _tokenizers().BertWordPieceTokenizer(ids, lowercase=lowercase)
    return [one.ids for one in tokenizer.encode_batch(list(sentences), add_special_tokens=False)]


def _tokenizers() -> ModuleType | Any:
    try:
        import tokenizers
    except ImportError:
        raise DataError(
            'WordPieces need the package tokenizers. Run: pip install "tfdist[bert]"'
        ) from None
    return tokenizers
