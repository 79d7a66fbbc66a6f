"""Texts in which a model predicts words: the features of their pieces, and lines of its answers.

"a [MASK] of strings"  ->  [CLS] a [MASK] of strings [SEP] [PAD] ...  ->  list 31.0 %, ...
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import wordpieces
from data import SampleShape
from options import DataError
from wordpieces import Vocabulary

if TYPE_CHECKING:
    import tensorflow as tf

MASK = "[MASK]"
NUM_GUESSES = 3  # shown for each masked word


@dataclass(frozen=True, kw_only=True, eq=False)
class MaskedTexts:
    """Texts with masked words."""

    texts: tuple[str, ...]
    vocabulary: Vocabulary  # The pieces of the model.
    # int32 `input_ids`, `input_mask`, `segment_ids` [texts, sequence] and `masked_lm_positions`
    # [texts, masks]: 0, the place of [CLS], behind the last masked word.
    features: dict[str, np.ndarray]

    def batches(self) -> "tf.data.Dataset":
        """Returns the features of one text after the other, for `Estimator.predict`."""
        import tensorflow as tf

        return tf.data.Dataset.from_tensor_slices(self.features).batch(1)

    def guesses(self, predictions: Sequence[dict[str, Any]]) -> list[list[list[tuple[str, float]]]]:
        """Returns for each text, for each of its masked words, the likeliest pieces.

        A prediction has `words` and `probabilities`, [masks, NUM_GUESSES].
        """
        num_masked = np.count_nonzero(self.features["masked_lm_positions"], axis=1)  # [texts]
        return [
            [
                [(self.vocabulary.pieces[w], float(p)) for w, p in zip(words, shares, strict=True)]
                for words, shares in zip(one["words"][:n], one["probabilities"][:n], strict=True)
            ]
            for one, n in zip(predictions, num_masked, strict=True)
        ]

    def describe(self, guesses: Sequence[Sequence[Sequence[tuple[str, float]]]]) -> list[str]:
        """Returns a line for each text, with the guesses for its masked words."""
        of_texts = [
            "; ".join(
                ", ".join(f'"{piece}" {100 * share:.1f} %' for piece, share in of_word)
                for of_word in one
            )
            for one in guesses
        ]
        return [f"{text} -> {said}" for text, said in zip(self.texts, of_texts, strict=True)]


def read_masked_texts(
    texts: Sequence[str], vocab_file: Path | None, shape: SampleShape
) -> MaskedTexts:
    """Encodes texts for a model.

    A vocabulary without a capital letter is for text in small letters.

    Raises:
      DataError: If there is no vocabulary, or a text has no [MASK], too many, or too many pieces.
    """
    if vocab_file is None:
        raise DataError("--predict needs the vocabulary of the model. Give it as --vocab-file.")
    vocabulary = wordpieces.read_vocabulary(vocab_file)
    words = [vocabulary.pieces[index] for index in vocabulary.words()]
    encoded = wordpieces.encode(vocabulary, texts, lowercase=all(w == w.lower() for w in words))
    begin, end, mask = (vocabulary.id_of(piece) for piece in ("[CLS]", "[SEP]", MASK))
    padding = vocabulary.id_of("[PAD]")
    ids = np.full([len(texts), shape.sequence_length], padding, np.int32)
    is_word = np.zeros_like(ids)
    positions = np.zeros([len(texts), shape.mask_tokens], np.int32)
    for row, (text, pieces) in enumerate(zip(texts, encoded, strict=True)):
        all_pieces = [begin, *pieces, end]
        places = [place for place, piece in enumerate(all_pieces) if piece == mask]
        _check(text, len(all_pieces), len(places), shape)
        ids[row, : len(all_pieces)], is_word[row, : len(all_pieces)] = all_pieces, 1
        positions[row, : len(places)] = places
    features = {"input_ids": ids, "input_mask": is_word, "segment_ids": np.zeros_like(ids)}
    features["masked_lm_positions"] = positions
    return MaskedTexts(texts=tuple(texts), vocabulary=vocabulary, features=features)


def _check(text: str, num_pieces: int, num_masks: int, shape: SampleShape) -> None:
    if not num_masks:
        raise DataError(f"--predict {text!r} has no {MASK}. Write it where a word is to be found.")
    if num_masks > shape.mask_tokens:
        raise DataError(
            f"--predict {text!r} has {num_masks} times {MASK}, and --mask-tokens is "
            f"{shape.mask_tokens}. Give it in parts."
        )
    if num_pieces > shape.sequence_length:
        raise DataError(
            f"--predict {text!r} has {num_pieces} pieces with [CLS] and [SEP], and "
            f"--sequence-length is {shape.sequence_length}. Shorten the text."
        )
