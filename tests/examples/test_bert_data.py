"""The data of examples/bert: samples from text, records, their order, and what is refused."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import create_pretraining_data
import data
import numpy as np
import options
import pytest
import records
import sample_text
import samples
import wordpieces
from hypothesis import given, settings
from hypothesis import strategies as st
from layout import Layout
from options import DataError

EXAMPLES = Path(__file__).parents[2] / "examples" / "bert"
SHAPE = data.SampleShape(sequence_length=16, mask_tokens=3, vocab_size=105)
VOCABULARY = wordpieces.Vocabulary(
    (*wordpieces.SPECIAL, *(f"w{i}" for i in range(50)), *(f"##w{i}" for i in range(50)))
)


def words_of(document: int, sentences: int = 40, length: int = 6) -> list[list[int]]:
    """Returns a document of 10 pieces that no other document has."""
    random = np.random.default_rng(document)
    first = 5 + 10 * document
    return random.integers(first, first + 10, size=[sentences, length]).tolist()


def make(recipe: samples.Recipe, documents: Any, seed: int = 1) -> list[dict[str, Any]]:
    return list(samples.make_samples(documents, VOCABULARY, recipe, seed))


def original(sample: dict[str, Any]) -> list[int]:
    """Returns the pieces of a sample as they were before masking."""
    ids = list(sample["input_ids"])
    for position, piece, weight in zip(
        sample["masked_lm_positions"],
        sample["masked_lm_ids"],
        sample["masked_lm_weights"],
        strict=True,
    ):
        if weight:
            ids[position] = piece
    return ids[: sum(sample["input_mask"])]


def segments(sample: dict[str, Any]) -> tuple[list[int], list[int]]:
    ids = original(sample)
    cut = sample["segment_ids"].index(1)
    assert (ids[0], ids[cut - 1], ids[-1]) == (2, 3, 3)
    return ids[1 : cut - 1], ids[cut:-1]


@settings(max_examples=60, deadline=None)
@given(
    documents=st.lists(
        st.lists(st.lists(st.integers(5, 104), max_size=30), max_size=6), min_size=2, max_size=4
    ).filter(lambda documents: sum(any(document) for document in documents) >= 2),
    length=st.integers(5, 20),
    masks=st.integers(1, 5),
    whole_words=st.booleans(),
)
def test_samples_of_any_text_are_well_formed(
    documents: list[list[list[int]]], length: int, masks: int, whole_words: bool
) -> None:
    recipe = samples.Recipe(
        sequence_length=length, mask_tokens=masks, dupe_factor=2, whole_words=whole_words
    )
    shape = data.SampleShape(sequence_length=length, mask_tokens=masks, vocab_size=105)
    for sample in make(recipe, documents):
        assert {name: len(values) for name, values in sample.items()} == shape.sizes()
        count = int(sum(sample["masked_lm_weights"]))
        positions = sample["masked_lm_positions"][:count]
        assert sorted(set(positions)) == positions  # No position twice.
        assert not {2, 3} & set(sample["masked_lm_ids"][:count])
        first, second = segments(sample)
        assert first
        assert second
        used = len(first) + len(second) + 3
        assert sample["input_mask"] == [1] * used + [0] * (length - used)
        assert sample["segment_ids"][used:] == sample["input_ids"][used:] == [0] * (length - used)


def test_fifteen_percent_are_predicted_of_which_eighty_are_masked() -> None:
    recipe = samples.Recipe(sequence_length=128, mask_tokens=40, dupe_factor=60)
    made = make(recipe, [words_of(i) for i in range(10)])
    shown, true, pieces = [], [], 0
    for sample in made:
        count = int(sum(sample["masked_lm_weights"]))
        shown += [sample["input_ids"][i] for i in sample["masked_lm_positions"][:count]]
        true += sample["masked_lm_ids"][:count]
        pieces += sum(sample["input_mask"])
    shown, true = np.array(shown), np.array(true)
    assert len(true) / pieces == pytest.approx(0.15, abs=0.003)
    assert np.mean(shown == 4) == pytest.approx(0.8, abs=0.01)
    # A random word is the true one in 1 of 100 cases.
    assert np.mean(shown == true) == pytest.approx(0.1 + 0.1 / 100, abs=0.01)
    others = shown[(shown != true) & (shown != 4)]
    assert len(others) / len(true) == pytest.approx(0.1, abs=0.01)
    assert set(others) == set(range(5, 105))  # Any word, and no special piece.


@pytest.mark.parametrize("sentence_length", [3, 200])  # 200: a sentence fills a sample alone.
def test_half_of_the_second_segments_follow_the_first(sentence_length: int) -> None:
    documents = [words_of(i, 600 // sentence_length, sentence_length) for i in range(10)]
    texts = [[piece for sentence in document for piece in sentence] for document in documents]
    recipe = samples.Recipe(sequence_length=24, mask_tokens=3, dupe_factor=30)
    made = make(recipe, documents)
    for sample in made[:200]:
        first, second = segments(sample)
        [of_first], [of_second] = ({(piece - 5) // 10 for piece in s} for s in (first, second))
        assert (of_first != of_second) == bool(sample["next_sentence_labels"][0])
        if of_first == of_second and sentence_length == 3:
            text = str(texts[of_first])[1:-1]
            assert str(first)[1:-1] in text
            assert str(second)[1:-1] in text
    labels = [sample["next_sentence_labels"][0] for sample in made]
    assert np.mean(labels) == pytest.approx(0.5, abs=0.05)


def test_the_sentences_of_a_document_are_used_in_turn() -> None:
    recipe = samples.Recipe(sequence_length=16, mask_tokens=1, dupe_factor=1, short_seq_prob=0.0)
    document = [[piece] for piece in range(5, 55)]
    pairs = samples.make_pairs([document, [[60]]], 0, recipe, np.random.default_rng(0))
    own = [p for pair in pairs for p in pair.first + pair.second if p != 60]
    assert own == list(range(5, 55))


def test_all_pieces_of_a_word_are_predicted_together() -> None:
    recipe = samples.Recipe(sequence_length=32, mask_tokens=6, dupe_factor=20, whole_words=True)
    word = [5, 55, 56]  # w0 ##w0 ##w1
    made = make(recipe, [[word * 3, word * 2] for _ in range(3)])
    predicted = 0
    for sample in made:
        count = int(sum(sample["masked_lm_weights"]))
        assert count % 3 == 0 or len(original(sample)) % 3 == 0  # Truncated words are shorter.
        ids = original(sample)
        chosen = set(sample["masked_lm_positions"][:count])
        for position in chosen:
            if ids[position] in (55, 56) and ids[position - 1] not in (2, 3):
                assert position - 1 in chosen
        predicted += count
    assert predicted


# Records


def small_records(folder: Path, count: int, files: int = 1) -> list[Path]:
    """Writes samples whose first piece is their number."""
    recipe = samples.Recipe(sequence_length=16, mask_tokens=3, dupe_factor=50)
    made = make(recipe, [words_of(0), words_of(1)])[:count]
    for number, sample in enumerate(made):
        sample["input_ids"][0] = number
    paths = [folder / f"{i}.tfrecord" for i in range(files)]
    for path, own in zip(paths, np.array_split(np.arange(count), files), strict=True):
        records.write_file(path, [records.encode(made[i]) for i in own])
    return paths


def test_tensorflow_reads_the_records_and_its_own_are_read(tmp_path: Path) -> None:
    import tensorflow as tf

    sample: dict[str, Any] = {"ids": [1, 300, -2], "weights": [0.5, 0.0]}
    message = records.encode(sample)
    records.write_file(tmp_path / "ours", [message, b"", b"third"])
    read = [bytes(one.numpy()) for one in tf.data.TFRecordDataset(str(tmp_path / "ours"))]
    assert read == [message, b"", b"third"]
    example = tf.train.Example.FromString(message)
    assert list(example.features.feature["ids"].int64_list.value) == [1, 300, -2]
    with tf.io.TFRecordWriter(str(tmp_path / "theirs")) as writer:
        writer.write(b"first")
        writer.write(example.SerializeToString())
    files = records.open_files([tmp_path / "ours", tmp_path / "theirs"])
    assert len(files) == 5
    assert files.read([3, 2]) == [b"first", b"third"]
    [again] = files.read([4])
    assert records.decode(again) == sample


def test_the_dataset_has_the_values_of_the_records(tmp_path: Path) -> None:
    import tensorflow as tf

    paths = small_records(tmp_path, 10, files=3)
    opened = data.open_dataset(
        "pretraining", SHAPE, seed=1, input_files=[str(tmp_path / "*.tfrecord")]
    )
    assert opened.num_samples == 10
    batches = list(opened.evaluation_input_fn(4)())
    assert [len(batch["input_ids"]) for batch in batches] == [4, 4, 2]
    expected = [records.decode(m) for m in records.open_files(paths).read(range(10))]
    for name, size in SHAPE.sizes().items():
        values = np.concatenate([batch[name].numpy() for batch in batches])
        assert values.dtype == ("float32" if name == "masked_lm_weights" else "int32")
        np.testing.assert_array_equal(
            values.reshape(10, size), [sample[name] for sample in expected]
        )
    training = data.open_dataset("pretraining", SHAPE, seed=1, input_files=[*map(str, paths)])
    spec = training.input_fn(Layout(micro_batch=4))().element_spec
    assert spec["input_ids"] == tf.TensorSpec([4, 16], tf.int32)
    assert spec["next_sentence_labels"] == tf.TensorSpec([4], tf.int32)


def test_training_begins_at_any_step(tmp_path: Path) -> None:
    paths = small_records(tmp_path, 10)
    opened = data.open_dataset("pretraining", SHAPE, seed=1, input_files=[*map(str, paths)])

    def numbers(first_step: int, steps: int) -> list[list[int]]:
        make_input = opened.input_fn(Layout(micro_batch=3, accumulation=2), first_step)
        batches = make_input().take(2 * steps)
        return [batch["input_ids"][:, 0].numpy().tolist() for batch in batches]

    undisturbed = numbers(0, 7)
    assert numbers(3, 4) == undisturbed[6:]
    in_order = np.concatenate(undisturbed).tolist()
    epochs = [in_order[:10], in_order[10:20], in_order[20:30]]
    assert [sorted(epoch) for epoch in epochs] == [list(range(10))] * 3
    assert epochs[0] != epochs[1] != epochs[2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input_ids": [105] * 16}, "has 105 in input_ids, not 0 to 104. Give the --vocab-size"),
        ({"masked_lm_ids": [1, -1, 2]}, "has -1 in masked_lm_ids, not 0 to 104. Give the --vocab"),
        ({"masked_lm_positions": [1, 2, 16]}, "has 16 in masked_lm_positions, not 0 to 15. Make"),
        ({"next_sentence_labels": [2]}, "has 2 in next_sentence_labels, not 0 to 1. Make the file"),
        ({"segment_ids": [0] * 15}, "has 15 tokens (segment_ids), the model 16. Give --sequence-"),
        ({"input_mask": [1.0] * 16}, "has no input_mask. Make records with create_pretraining"),
        (None, "is damaged: its checksum does not match. Copy or make the file again."),
    ],
)
def test_a_record_that_cannot_be_used_is_named_while_it_is_read(
    tmp_path: Path, capsys: Any, change: dict[str, Any] | None, message: str
) -> None:
    paths = small_records(tmp_path, 6, files=2)
    good = records.open_files(paths).read([3, 4, 5])
    if change is not None:
        good[1] = records.encode(records.decode(good[1]) | change)
        records.write_file(paths[1], good)
    opened = data.open_dataset("pretraining", SHAPE, seed=1, input_files=[*map(str, paths)])
    if change is None:
        assert opened.files is not None
        content = bytearray(paths[1].read_bytes())
        content[opened.files.offsets[1][1] + 40] ^= 1
        paths[1].write_bytes(content)
    with pytest.raises(SystemExit, match="2"), options.refusals():
        list(opened.evaluation_input_fn(2)())
    [line] = capsys.readouterr().err.splitlines()
    assert f"error: record 1 of {paths[1]} {message}" in line


def test_other_errors_of_an_input_stay_as_they_are() -> None:
    import tensorflow as tf

    with pytest.raises(tf.errors.OutOfRangeError), options.refusals():
        raise tf.errors.OutOfRangeError(None, None, "End of sequence")


# Generated


def test_the_generated_sample_is_repeated_and_its_masks_are_distinct() -> None:
    shape = data.SampleShape(sequence_length=128, mask_tokens=120, vocab_size=30522)
    opened = data.open_dataset("generated", shape, seed=3)
    assert opened.num_samples == 1
    make_input = opened.input_fn(Layout(micro_batch=2, workers=3, worker=1))
    batches = list(make_input().take(2))
    for name, size in shape.sizes().items():
        values = [batch[name].numpy().reshape(2, size) for batch in batches]
        assert len(np.unique(np.concatenate(values), axis=0)) == 1
    assert len(set(batches[0]["masked_lm_positions"][0].numpy())) == 120
    assert len(list(opened.evaluation_input_fn(2)())) == 1


# Text


@pytest.fixture(scope="module")
def real_sample(sample_cache: Path) -> Iterator[dict[str, data.Dataset]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TFDIST_CACHE_DIR", str(sample_cache))
        shape = data.SampleShape(sequence_length=64, mask_tokens=10, vocab_size=4000)
        yield {
            name: data.open_dataset("sample", shape, seed=5, evaluation=name == "held out")
            for name in ("training", "held out")
        }


def test_the_sample_is_english_of_the_usual_entropy(real_sample: dict[str, data.Dataset]) -> None:
    training, held_out = real_sample["training"], real_sample["held out"]
    assert 20_000 < training.num_samples < 60_000
    assert training.num_samples / 80 < held_out.num_samples < training.num_samples / 20
    known, evaluated = _word_counts(training) + 1.0, _word_counts(held_out)
    # The loss, in nats, of a model that knows only the words' frequencies.
    nats = -np.log(known / known.sum())
    assert np.sum(evaluated * nats) / evaluated.sum() == pytest.approx(6.2, abs=0.2)
    pieces = wordpieces.read_vocabulary(training.vocab_file).pieces
    assert len(pieces) == 4000
    assert {"the", "class", "##ing"} < set(pieces)


def _word_counts(dataset: data.Dataset) -> np.ndarray:
    """Returns how often each word is to be predicted in each twentieth sample, by id."""
    counts = np.zeros(dataset.shape.vocab_size)
    for message in dataset.files.read(range(0, dataset.num_samples, 20)):
        sample = records.decode(message)
        ids = np.array(sample["masked_lm_ids"], np.int64)
        counts += np.bincount(ids, sample["masked_lm_weights"], len(counts))
    return counts


def test_documents_are_topics_and_docstrings() -> None:
    sources = {
        "json/tool.py": b"'A tool. It works.'\ndef f():\n    '''Returns one\n    thing.'''\n",
        "pydoc_data/topics.py": b"topics = {'if': 'The if statement.\\n\\nIt is old.'}",
        "new.py": b"def (",
        "bare.py": b"x = 1",
    }
    assert sample_text.documents_of(sources) == {
        "json/tool.py": ["A tool.", "It works.", "Returns one thing."],
        "topic if": ["The if statement.", "It is old."],
    }


def test_a_tenth_of_the_documents_is_held_out() -> None:
    documents = {f"module {i}": [f"text {i}"] for i in range(50)}
    training, held_out = sample_text.split(documents)
    assert (len(training), len(held_out)) == (45, 5)
    assert sorted(training + held_out) == sorted(documents.values())
    backwards = dict(reversed(documents.items()))
    assert sample_text.split(backwards) == (training, held_out)


SMALL_SAMPLE = """
import sys
import data, sample_text
text = '"Some words of module {0}. They follow in turn, and {0} is its number." # {0}'
sample_text.library_sources = lambda: {f"m{i}.py": text.format(i).encode() for i in range(30)}
shape = data.SampleShape(sequence_length=16, mask_tokens=3, vocab_size=120)
opened = data.open_dataset("sample", shape, seed=int(sys.argv[1]))
assert "tensorflow" not in sys.modules
print(opened.files.paths[0], opened.num_samples)
"""


def start_python(cache: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *arguments],
        env={**os.environ, "TFDIST_CACHE_DIR": str(cache), "PYTHONPATH": paths_of_python()},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def paths_of_python() -> str:
    return os.pathsep.join(
        [str(EXAMPLES), str(EXAMPLES.parent / "application"), os.environ.get("PYTHONPATH", "")]
    )


def test_two_processes_make_the_sample_once(tmp_path: Path) -> None:
    pair = [start_python(tmp_path, "-c", SMALL_SAMPLE, "1") for _ in range(2)]
    ended = [process.communicate(timeout=60) for process in pair]
    assert [process.returncode for process in pair] == [0, 0], ended
    assert ended[0][0] == ended[1][0]
    assert "".join(err for _, err in ended).count("The sample was made in") == 1
    made = Path(ended[0][0].split()[0]).parent
    assert sorted(path.suffix for path in made.parent.iterdir()) == ["", ".lock"]

    # A killed process has left a part; another seed has other records.
    made.rename(made.with_suffix(".partial"))
    pair = [start_python(tmp_path, "-c", SMALL_SAMPLE, seed) for seed in ("1", "2")]
    again, other = (process.communicate(timeout=60)[0] for process in pair)
    assert again == ended[0][0]
    assert other.split()[0] != again.split()[0]
    assert sorted(path.suffix for path in made.parent.iterdir()) == ["", "", ".lock", ".lock"]


# create_pretraining_data.py


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    sentences = [f"Sentence {i} of the Naïve text, with words." for i in range(60)]
    blocks = ["\n".join(sentences[i : i + 10]) for i in range(0, 60, 10)]
    path.write_text("\n\n".join(blocks) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def create(text: Path, tmp_path: Path) -> Callable[..., list[Path]]:
    """Makes two files of records; the vocabulary is made at the first use."""

    def create(name: str, *options: str) -> list[Path]:
        vocabulary = tmp_path / "vocab.txt"
        paths = [tmp_path / f"{name}{i}.tfrecord" for i in range(2)]
        arguments = ["--input_file", str(text), "--vocab_file", str(vocabulary)]
        arguments += ["--output_file", ",".join(map(str, paths)), *options]
        if not vocabulary.exists():
            arguments += ["--train-vocab", "105"]
        create_pretraining_data.main(
            [*arguments, "--max_seq_length=16", "--max-predictions-per-seq=3"]
        )
        return paths

    return create


def test_the_same_seed_gives_the_same_bytes(
    create: Callable[..., list[Path]], capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = create("first"), create("second", "--random_seed", "12345")
    other = create("other", "--random-seed", "2", "--dupe_factor=1", "--do_whole_word_mask")
    contents = [[path.read_bytes() for path in paths] for paths in (first, second, other)]
    assert contents[0] == contents[1]
    assert contents[0][0] != contents[0][1]
    assert contents[1] != contents[2]
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("105 pieces in ")
    assert " samples of 6 documents in " in printed[1]
    opened = data.open_dataset(
        "pretraining",
        SHAPE,
        seed=1,
        input_files=[str(path) for path in first],
        vocab_file=first[0].with_name("vocab.txt"),
    )
    sizes = [len(records.open_files([path])) for path in first]
    assert opened.num_samples == sum(sizes)
    assert abs(sizes[0] - sizes[1]) <= 1


def test_every_process_finds_the_same_vocabulary(text: Path, tmp_path: Path) -> None:
    program = str(EXAMPLES / "create_pretraining_data.py")
    made = [tmp_path / f"{i}.txt" for i in range(3)]
    options = ["--input-file", str(text), "--train_vocab", "105", "--vocab-file"]
    started = [start_python(tmp_path, program, *options, str(path)) for path in made]
    assert [process.communicate(timeout=60)[1] for process in started] == [""] * 3
    assert len({path.read_bytes() for path in made}) == 1
    pieces = wordpieces.read_vocabulary(made[0]).pieces
    assert pieces[:5] == wordpieces.SPECIAL
    assert len(pieces) == 105
    assert "naive" in pieces or "##ive" in pieces or "##e" in pieces  # Lower case, no accents.


def test_rare_letters_are_left_out_of_the_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wordpieces, "_MOST_LETTERS", 3)
    vocabulary = wordpieces.train_vocabulary(["abc ab ab ax ay"], 15)
    assert vocabulary.pieces[5:12] == ("a", "b", "c", "##a", "##b", "##c", "ab")
    assert vocabulary.pieces[-1] == "[unused2]"
    assert wordpieces.encode(vocabulary, ["abc", "ax"]) == [[11, 10], [1]]


# Refusals


def refused(call: Callable[[], Any]) -> str:
    with pytest.raises(DataError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_records_that_do_not_fit_the_model_are_refused(tmp_path: Path) -> None:
    [path] = small_records(tmp_path, 3)
    sizes = {"sequence_length": 16, "mask_tokens": 3, "vocab_size": 105}

    def with_sizes(**other: int) -> str:
        shape = data.SampleShape(**{**sizes, **other})
        return refused(
            lambda: data.open_dataset("pretraining", shape, seed=1, input_files=[str(path)])
        )

    assert "has 16 tokens (input_ids), the model 32. Give --sequence-length 16" in with_sizes(
        sequence_length=32
    )
    assert "has 3 masked tokens (masked_lm_positions), the model 5. Give --mask-tokens 3" in (
        with_sizes(mask_tokens=5)
    )
    assert "in input_ids, not 0 to 6. Give the --vocab-size" in with_sizes(vocab_size=7)
    records.write_file(path, [records.encode({"input_ids": [1] * 16})])
    assert "has no input_mask, segment_ids" in with_sizes()
    records.write_file(path, [b"\xff no message"])
    assert "no tf.train.Example" in with_sizes()


def test_files_that_are_no_records_are_refused(tmp_path: Path) -> None:
    [path] = small_records(tmp_path, 3)
    good = path.read_bytes()

    def with_files(*patterns: str) -> str:
        return refused(
            lambda: data.open_dataset("pretraining", SHAPE, seed=1, input_files=patterns)
        )

    assert "Give them as --input-files" in with_files()
    assert "missing*.tfrecord: there is no such file" in with_files(
        str(tmp_path / "missing*.tfrecord")
    )
    assert "cannot be read: Is a directory" in with_files(str(tmp_path))
    path.write_bytes(b"")
    assert "is empty: it has no records" in with_files(str(path))
    path.write_bytes(good[:-1])
    assert "is cut off in record 2" in with_files(str(path))
    path.write_bytes(good + b"123")
    assert "is cut off in record 3" in with_files(str(path))
    path.write_bytes(b"some text that is no record")
    assert "has no TFRecord at byte 0" in with_files(str(path))


def test_options_that_do_not_fit_the_dataset_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vocabulary = tmp_path / "vocab.txt"
    wordpieces.write_vocabulary(vocabulary, VOCABULARY)
    small = data.SampleShape(sequence_length=16, mask_tokens=3, vocab_size=100)

    def opened(name: Any, shape: data.SampleShape = SHAPE, seed: int = 1, **options: Any) -> str:
        return refused(lambda: data.open_dataset(name, shape, seed=seed, **options))

    assert "has 105 pieces, the model 100. Give --vocab-size 105" in opened(
        "generated", small, vocab_file=vocabulary
    )
    assert "--dataset sample reads no --input-files" in opened("sample", input_files=["x"])
    assert "there is no dataset 'wiki'. Choose one of generated, sample" in opened("wiki")
    assert "the random seed is -1" in opened("generated", seed=-1)
    vocabulary.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\nthe\n")
    assert "vocab.txt: the vocabulary has no [MASK]" in opened("generated", vocab_file=vocabulary)
    vocabulary.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\nthe\n")
    assert "has 'the' twice" in opened("generated", vocab_file=vocabulary)
    assert "cannot be read: No such file" in opened("generated", vocab_file=tmp_path / "none")
    monkeypatch.setenv("TFDIST_CACHE_DIR", str(vocabulary))
    assert "Set TFDIST_CACHE_DIR to a folder" in opened("sample")


@pytest.mark.parametrize("package", ["tokenizers", "google_crc32c"])
def test_a_missing_package_is_named_with_its_command(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    records._crc32c.cache_clear()
    message = refused(
        lambda: (
            wordpieces.encode(VOCABULARY, ["word"]),
            records.write_file(tmp_path / "x", [b"message"]),
        )
    )
    assert package.replace("_", "-") in message
    assert "Run: pip install " in message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--input_file none.txt --output_file x", "none.txt: there is no such file"),
        ("--input_file empty.txt --output_file x", "empty.txt has no text"),
        ("--input_file one.txt --output_file x", "the text has 1 document, random pairs need two"),
        ("--input_file one.txt", "nothing to write. Give --output_file, --train-vocab"),
        ("--input_file one.txt --train-vocab 50", "vocab.txt is there already"),
        ("--input_file binary.txt --output_file x", "binary.txt is not text in UTF-8"),
        ("--input_file two.txt --output_file no/x", "no/x cannot be written: No such file"),
        ("--input_file two.txt --output_file x --max_seq_length 4", "length of 4 is too short"),
        (
            "--input_file two.txt --output_file x --max-predictions-per-seq 129",
            "129 words to predict do not fit a sequence of 128",
        ),
        ("--input_file two.txt --output_file x --dupe_factor 0", "the dupe factor is 0"),
        ("--input_file two.txt --output_file x --masked-lm-prob 2", "masked_lm_prob is 2.0"),
        ("--input_file two.txt --output_file x --random_seed -1", "--random_seed is -1"),
        (
            "--input_file two.txt --vocab_file new.txt --train-vocab 9",
            "a vocabulary of 9 is too small for this text",
        ),
        ("--input_file two.txt --do_lower_case maybe", "'maybe' is not true or false"),
        ("--input_file two.txt --max_seq 9", "unrecognized arguments: --max_seq 9"),
    ],
)
def test_create_pretraining_data_refuses_bad_input(
    options: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    wordpieces.write_vocabulary(Path("vocab.txt"), VOCABULARY)
    Path("empty.txt").write_text("\n\n")
    Path("one.txt").write_text("w0 w1\nw2")
    Path("two.txt").write_text("w0 w1\n\nw2")
    Path("binary.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(SystemExit) as ended:
        create_pretraining_data.main(["--vocab_file", "vocab.txt", *options.split()])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert message in said
    assert len(said.splitlines()) <= 2
