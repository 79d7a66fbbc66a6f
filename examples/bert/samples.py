"""Pretraining samples made from text: two segments each, with masked words.

    document   sentence 1 | sentence 2 | sentence 3 | sentence 4 | ...
    sample     [CLS] sentence 1, sentence 2 [SEP] sentence 3 [SEP]          follows: label 0
           or  [CLS] sentence 1, sentence 2 [SEP] part of another document [SEP]     label 1

Half of the second segments follow the first one. Of the words to predict, 80 % are replaced by
[MASK], 10 % by a random word, and 10 % stay. (Devlin et al. 2018, section 3.1.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from options import DataError
from wordpieces import Vocabulary

Sentence = Sequence[int]  # ids of WordPieces
Document = Sequence[Sentence]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The sizes and rates of samples."""

    sequence_length: int  # Pieces of a sample with [CLS], two [SEP] and [PAD].
    mask_tokens: int  # The most words to predict in a sample.
    masked_lm_prob: float = 0.15  # The share of the pieces to predict.
    dupe_factor: int = 10  # How often the text is used, each time with other pairs and masks.
    short_seq_prob: float = 0.1  # The share of samples that are shorter than they could be.
    whole_words: bool = False  # Whether all pieces of a word are predicted together.

    def __post_init__(self) -> None:
        if self.sequence_length < 5:
            raise DataError(
                f"a sequence length of {self.sequence_length} is too short: [CLS], two [SEP] and "
                "two segments need 5."
            )
        if not 1 <= self.mask_tokens <= self.sequence_length:
            raise DataError(
                f"{self.mask_tokens} words to predict do not fit a sequence of "
                f"{self.sequence_length}. Choose from 1 to {self.sequence_length}."
            )
        if self.dupe_factor < 1:
            raise DataError(f"the dupe factor is {self.dupe_factor}. Choose 1 or more.")
        for name in ("masked_lm_prob", "short_seq_prob"):
            if not 0 <= getattr(self, name) <= 1:
                raise DataError(f"{name} is {getattr(self, name)}. Choose from 0 to 1.")


@dataclass(frozen=True)
class Pair:
    """Two segments, and whether the second one is from another document."""

    first: list[int]
    second: list[int]
    is_random: bool


def make_samples(
    documents: Sequence[Document], vocabulary: Vocabulary, recipe: Recipe, seed: int
) -> Iterator[dict[str, list[int] | list[float]]]:
    """Yields the features of each sample, document by document.

    The same arguments give the same samples.

    Raises:
      DataError: If there are fewer than two documents.
    """
    documents = [[s for s in document if s] for document in documents]
    documents = [document for document in documents if document]
    if len(documents) < 2:
        raise DataError(
            f"the text has {len(documents)} document{'s' * (not documents)}, random pairs need "
            "two. Put an empty line between documents."
        )
    random = np.random.default_rng(seed)
    masking = Masking(vocabulary)
    for _ in range(recipe.dupe_factor):
        for index in range(len(documents)):
            for pair in make_pairs(documents, index, recipe, random):
                yield features(pair, masking, recipe, random)


def make_pairs(
    documents: Sequence[Document], index: int, recipe: Recipe, random: np.random.Generator
) -> Iterator[Pair]:
    """Yields the pairs of a document: its sentences in turn, and parts of other documents."""
    document = documents[index]
    room = recipe.sequence_length - 3  # [CLS], [SEP], [SEP]
    start = 0
    while start < len(document):
        is_short = random.random() < recipe.short_seq_prob
        target = int(random.integers(2, room + 1)) if is_short else room
        end = _fill(document, start, target)
        chunk = document[start:end]
        is_random = bool(random.random() < 0.5)
        if len(chunk) > 1:
            cut = int(random.integers(1, len(chunk)))
            first, second = _join(chunk[:cut]), _join(chunk[cut:])
            if is_random:
                end = start + cut  # The rest begins the next sample.
        else:
            first, second = _halves(chunk[0], random)
            if not second:
                is_random = True
            if is_random:
                first = list(chunk[0])
        if is_random:
            second = _other_text(documents, index, max(1, target - len(first)), random)
        yield Pair(*_truncate(first, second, room, random), is_random)
        start = end


def _fill(document: Document, start: int, target: int) -> int:
    """Returns where the sentences end that have `target` pieces or, together, a few more."""
    count = 0
    for end in range(start, len(document)):
        count += len(document[end])
        if count >= target:
            return end + 1
    return len(document)


def _join(sentences: Sequence[Sentence]) -> list[int]:
    return [piece for sentence in sentences for piece in sentence]


def _halves(sentence: Sentence, random: np.random.Generator) -> tuple[list[int], list[int]]:
    """Cuts a sentence that fills a sample alone; the second part of a single piece is empty."""
    cut = int(random.integers(1, len(sentence))) if len(sentence) > 1 else 1
    return list(sentence[:cut]), list(sentence[cut:])


def _other_text(
    documents: Sequence[Document], index: int, target: int, random: np.random.Generator
) -> list[int]:
    """Returns sentences of another document, from a random one of them on."""
    chosen = (index + int(random.integers(1, len(documents)))) % len(documents)
    other = documents[chosen]
    start = int(random.integers(len(other)))
    return _join(other[start : _fill(other, start, target)])


def _truncate(
    first: list[int], second: list[int], room: int, random: np.random.Generator
) -> tuple[list[int], list[int]]:
    """Removes pieces from the longer segment, at its beginning or its end by chance."""
    sizes = [len(first), len(second)]
    excess = max(0, sum(sizes) - room)
    for _ in range(excess):
        sizes[sizes[0] <= sizes[1]] -= 1
    cut_in_front = random.binomial([len(first) - sizes[0], len(second) - sizes[1]], 0.5)
    starts = [int(cut) for cut in cut_in_front]
    return first[starts[0] :][: sizes[0]], second[starts[1] :][: sizes[1]]


class Masking:
    """The ids that masking needs of a vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.cls = vocabulary.id_of("[CLS]")
        self.sep = vocabulary.id_of("[SEP]")
        self.mask = vocabulary.id_of("[MASK]")
        self.pad = vocabulary.id_of("[PAD]")
        self.words = vocabulary.words()
        self.continues_word = vocabulary.continues_word()

    def choose(self, pieces: np.ndarray, recipe: Recipe, random: np.random.Generator) -> np.ndarray:
        """Returns the positions to predict, in ascending order: int64 [predictions]."""
        candidates = np.flatnonzero((pieces != self.cls) & (pieces != self.sep))
        share = round(len(pieces) * recipe.masked_lm_prob)
        count = min(recipe.mask_tokens, max(1, share), len(candidates))
        if not recipe.whole_words:
            return np.sort(random.permutation(candidates)[:count])
        begins = ~self.continues_word[pieces[candidates]]
        begins |= np.diff(candidates, prepend=-1) > 1  # A segment cannot continue the one before.
        words = np.split(candidates, np.flatnonzero(begins)[1:])
        chosen: list[int] = []
        for i in random.permutation(len(words)):
            if len(chosen) + len(words[i]) <= count:
                chosen.extend(words[i])
        return np.sort(np.array(chosen, np.int64))

    def hide(
        self, pieces: np.ndarray, positions: np.ndarray, random: np.random.Generator
    ) -> np.ndarray:
        """Returns the pieces as the model sees them: int64 [pieces]."""
        chance = random.random(len(positions))
        of_random = random.choice(self.words, len(positions))
        shown = pieces.copy()
        shown[positions] = np.where(
            chance < 0.8, self.mask, np.where(chance < 0.9, of_random, pieces[positions])
        )
        return shown


def features(
    pair: Pair, masking: Masking, recipe: Recipe, random: np.random.Generator
) -> dict[str, list[int] | list[float]]:
    """Returns the features of a sample, as they are in the public records."""
    pieces = np.array(
        [masking.cls, *pair.first, masking.sep, *pair.second, masking.sep], np.int64
    )  # [pieces]
    positions = masking.choose(pieces, recipe, random)
    shown = masking.hide(pieces, positions, random)
    padding = recipe.sequence_length - len(pieces)
    unused = recipe.mask_tokens - len(positions)
    return {
        "input_ids": [*shown.tolist(), *[masking.pad] * padding],
        "input_mask": [1] * len(pieces) + [0] * padding,
        "segment_ids": [0] * (len(pair.first) + 2) + [1] * (len(pair.second) + 1) + [0] * padding,
        "masked_lm_positions": positions.tolist() + [0] * unused,
        "masked_lm_ids": pieces[positions].tolist() + [0] * unused,
        "masked_lm_weights": [1.0] * len(positions) + [0.0] * unused,
        "next_sentence_labels": [int(pair.is_random)],
    }
