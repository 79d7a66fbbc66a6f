"""Makes records for BERT's pretraining from text: pairs of segments with masked words.

The text has one sentence a line, and an empty line between documents. With a vocabulary:

    python examples/bert/create_pretraining_data.py --input_file "text/*.txt" \\
        --vocab_file vocab.txt --output_file records/0.tfrecord,records/1.tfrecord

Without one, `--train-vocab 8000` makes it of the text, and writes it to `--vocab_file`. Then:

    python examples/bert/run_pretraining.py --dataset pretraining \\
        --input-files "records/*.tfrecord" --vocab-file vocab.txt --vocab-size 8000

The same text, options and seed give the same bytes.
"""

import argparse
import glob
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).parents[1] / "application"))

import records
import wordpieces
from options import DataError, boolean
from samples import Recipe, make_samples


def main(argv: Sequence[str] | None = None) -> None:
    arguments = parse_arguments(argv)
    try:
        run(arguments)
    except DataError as error:
        print(f"create_pretraining_data.py: {error}", file=sys.stderr)
        sys.exit(2)


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Make records for BERT's pretraining from text.",
        usage="%(prog)s --input_file TEXT --vocab_file FILE --output_file RECORDS [options]",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )

    def add(name: str, **settings: Any) -> None:
        parser.add_argument(f"--{name}", f"--{name.replace('_', '-')}", **settings)

    def add_boolean(name: str, default: bool, text: str) -> None:
        add(name, type=boolean, nargs="?", const=True, default=default, help=text)

    add("input_file", required=True, help="text files or patterns, with commas between them")
    add("vocab_file", required=True, type=Path, help="the vocabulary, one WordPiece a line")
    add("output_file", help="TFRecord files to write, with commas between them")
    add("train_vocab", type=int, metavar="N", help="make --vocab_file of the text, with N pieces")
    add_boolean("do_lower_case", True, "write the text in lower case, without accents")
    add_boolean("do_whole_word_mask", False, "mask all pieces of a word together")
    add("max_seq_length", type=int, default=128, help="pieces of a sample")
    add("max_predictions_per_seq", type=int, default=20, help="the most masked pieces of a sample")
    add("masked_lm_prob", type=float, default=0.15, help="share of the pieces to mask")
    add("dupe_factor", type=int, default=10, help="how often the text is used, with other masks")
    add("short_seq_prob", type=float, default=0.1, help="share of shorter samples")
    add("random_seed", type=int, default=12345, help="seed of pairs, masks and order")
    return parser.parse_args(argv)


def run(arguments: argparse.Namespace) -> None:
    recipe = Recipe(
        sequence_length=arguments.max_seq_length,
        mask_tokens=arguments.max_predictions_per_seq,
        masked_lm_prob=arguments.masked_lm_prob,
        dupe_factor=arguments.dupe_factor,
        short_seq_prob=arguments.short_seq_prob,
        whole_words=arguments.do_whole_word_mask,
    )
    if arguments.random_seed < 0:
        raise DataError(f"--random_seed is {arguments.random_seed}. Choose 0 or more.")
    if arguments.output_file is None and arguments.train_vocab is None:
        raise DataError("nothing to write. Give --output_file, --train-vocab, or both.")
    vocabulary = None
    if arguments.train_vocab is None:
        vocabulary = wordpieces.read_vocabulary(arguments.vocab_file)
    elif arguments.vocab_file.exists():
        raise DataError(
            f"{arguments.vocab_file} is there already. Leave out --train-vocab to use it, or "
            "remove it."
        )
    documents = read_documents(arguments.input_file)
    try:
        if vocabulary is None:
            vocabulary = train(documents, arguments)
        if arguments.output_file is not None:
            write(documents, vocabulary, recipe, arguments)
    except OSError as error:
        raise DataError(f"{error.filename} cannot be written: {error.strerror}.") from error


def read_documents(patterns: str) -> list[list[str]]:
    """Returns the sentences of each document."""
    documents: list[list[str]] = []
    for pattern in patterns.split(","):
        paths = sorted(glob.glob(pattern, recursive=True))
        if not paths:
            raise DataError(f"--input_file {pattern}: there is no such file.")
        for path in paths:
            documents.extend(documents_of(Path(path)))
    if not documents:
        raise DataError(f"--input_file {patterns} has no text.")
    return documents


def documents_of(path: Path) -> Iterator[list[str]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError:
        raise DataError(f"{path} is not text in UTF-8.") from None
    document: list[str] = []
    for line in [*map(str.strip, lines), ""]:
        if line:
            document.append(line)
        elif document:
            yield document
            document = []


def train(documents: list[list[str]], arguments: argparse.Namespace) -> wordpieces.Vocabulary:
    texts = [sentence for document in documents for sentence in document]
    vocabulary = wordpieces.train_vocabulary(
        texts, arguments.train_vocab, lowercase=arguments.do_lower_case
    )
    wordpieces.write_vocabulary(arguments.vocab_file, vocabulary)
    print(f"{len(vocabulary):,} pieces in {arguments.vocab_file}")
    return vocabulary


def write(
    documents: list[list[str]],
    vocabulary: wordpieces.Vocabulary,
    recipe: Recipe,
    arguments: argparse.Namespace,
) -> None:
    encoded = [
        wordpieces.encode(vocabulary, document, lowercase=arguments.do_lower_case)
        for document in documents
    ]
    seed = arguments.random_seed
    messages = [
        records.encode(sample) for sample in make_samples(encoded, vocabulary, recipe, seed)
    ]
    order = np.random.default_rng([seed, 1]).permutation(len(messages))
    paths = arguments.output_file.split(",")
    for index, path in enumerate(paths):
        own = order[index :: len(paths)]
        count = records.write_file(Path(path), (messages[i] for i in own))
        print(f"{count:,} samples of {len(documents):,} documents in {path}")


if __name__ == "__main__":
    main()
