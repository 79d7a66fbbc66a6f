"""Runs of `examples/bert/run_pretraining.py`: predictions, half precision, profile, counts."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from application_runs import load, modules_of
from bert_program import LENGTH, ONE_DEVICE, TINY, BertRun, run_bert, write_records

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz"]


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of a vocabulary of letters, with as many pieces as TINY's model."""
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    unused = [f"[unused{i}]" for i in range(100 - len(PIECES))]
    path.write_text("\n".join([*PIECES, *unused]) + "\n")
    return str(path)


@pytest.fixture(scope="module")
def half(vocabulary: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[BertRun, Path]:
    """A run with weights of 16 bits whose loss scale adapts, and its folder."""
    folder = tmp_path_factory.mktemp("half")
    options = ["--precision", "16.16", "--auto-loss-scaling", "--training-steps", "8"]
    options += ["--profile-dir", str(folder / "profile"), "--vocab-file", vocabulary]
    options += ["--checkpoint-output-dir", str(folder / "model"), "--predict", "a [MASK] c"]
    # Smaller graphs.
    options += ["--recompute-checkpoint-every-layer", "false", "--stochastic-rounding", "false"]
    options += ["--evaluate"]
    return run_bert(*TINY, *ONE_DEVICE, *options), folder


def test_weights_of_16_bits_learn_while_their_loss_scale_rises(
    half: tuple[BertRun, Path],
) -> None:
    import tensorflow as tf

    run, folder = half
    losses = [step["mlm_loss"] for step in run.steps]
    assert len(losses) == 8
    assert losses == sorted(losses, reverse=True)
    newest = tf.train.load_checkpoint(str(folder / "model"))
    saved = newest.get_variable_to_dtype_map()
    assert saved["bert/pooler/dense/kernel"] == tf.float16
    assert newest.get_tensor("loss_scale/scale") > 1.0
    assert run.figures["held_out_mlm_loss"] < losses[0]


def test_weights_of_16_bits_are_rounded_by_chance_unless_told_otherwise(modules: None) -> None:
    for options, by_chance in (([], True), (["--stochastic-rounding", "false"], False)):
        settings = load("arguments").parse([*TINY, "--precision", "16.16", *options])[0]
        assert load("pretraining").device_config(settings).stochastic_rounding is by_chance


def test_a_profile_shows_some_steps(half: tuple[BertRun, Path]) -> None:
    folder = half[1] / "profile"
    assert {path.name for path in folder.iterdir()} == {"profile.txt", "profile.png", "trace.json"}


def test_words_are_predicted_after_the_training_and_from_its_checkpoint(
    half: tuple[BertRun, Path], vocabulary: str
) -> None:
    trained, folder = half
    [start] = [i for i, line in enumerate(trained.lines) if " Predicted Words " in line]
    assert re.fullmatch(r'a \[MASK\] c -> ("\S+" \d+\.\d %(, )?){3}', trained.lines[start + 1])
    options = [*TINY, *ONE_DEVICE, "--precision", "16.16", "--vocab-file", vocabulary]
    resumed = ["--resume-training-from-checkpoint", "--checkpoint-output-dir", f"{folder}/model"]
    started = ["--checkpoint-input-dir", f"{folder}/model", "--training-steps", "0"]
    texts = ["--predict", "a [MASK] c", "[MASK] b [MASK]"]
    with modules_of("bert"):  # The training has seen these words only.
        shape = load("data").SampleShape(sequence_length=LENGTH, mask_tokens=4, vocab_size=100)
        learnt = load("data").generated_sample(shape, 5)["masked_lm_ids"]
    pieces = Path(vocabulary).read_text().split("\n")
    assert trained.figures["predicted"][0][0] in [pieces[word] for word in learnt]
    again = run_bert(*options, "--auto-loss-scaling", "--training-steps", "8", *resumed, *texts)
    assert "All 8 training steps are done: nothing is left to train." in again.lines
    assert [len(words) for words in again.figures["predicted"]] == [1, 2]
    assert trained.lines[start + 1] in again.lines
    other = run_bert(*options, *started, *texts)
    assert other.figures["predicted"] == again.figures["predicted"]


@pytest.fixture
def modules() -> Iterator[None]:
    with modules_of("bert"):
        yield


def _read(texts: list[str], vocabulary: str, **sizes: int) -> Any:
    sizes = {"sequence_length": LENGTH, "mask_tokens": 4, "vocab_size": 100, **sizes}
    shape = load("data").SampleShape(**sizes)
    return load("masked_text").read_masked_texts(texts, Path(vocabulary), shape)


def test_masked_words_are_found_where_they_stand(modules: None, vocabulary: str) -> None:
    features = _read(["A [MASK] c [MASK]", "[MASK]"], vocabulary).features
    a, c = PIECES.index("a"), PIECES.index("c")
    assert features["input_ids"][0].tolist() == [2, a, 4, c, 4, 3] + [0] * (LENGTH - 6)
    assert features["input_mask"].sum(axis=1).tolist() == [6, 3]
    assert features["masked_lm_positions"].tolist() == [[2, 4, 0, 0], [1, 0, 0, 0]]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a b", r"has no \[MASK\]"),
        ("[MASK] " * 5, "has 5 times"),
        ("[MASK]" + " a" * 14, "has 17 pieces with"),
    ],
)
def test_a_text_that_the_model_cannot_read_is_refused(
    modules: None, vocabulary: str, text: str, said: str
) -> None:
    with pytest.raises(load("options").DataError, match=said):
        _read([text], vocabulary)


def test_the_bar_counts_the_micro_batches_of_a_long_step_and_ends_full(
    modules: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LONG_STEP_S", "COUNT_EVERY_S"):
        monkeypatch.setattr(load("log"), name, 0.01)
    options = [value for value in TINY if value != "--disable-progress-bar"]
    many = ["--gradient-accumulation", "100", "--training-steps", "1"]
    run = run_bert(*options, *ONE_DEVICE, *many)
    counted = [int(found[1]) for found in re.finditer(r"micro-batch (\d+)/100", str(run.lines))]
    assert counted == sorted(counted)
    assert any(0 < number < 100 for number in counted)
    assert re.search(r"100%\|.{10}\| 1/1 \[.*throughput: ", run.lines[-8])
    assert any(re.match(r"Graph compilation: 100%\|.{10}\| 100/100 \[", one) for one in run.lines)


def test_the_time_to_the_first_step_is_that_of_import_graph_and_step(
    half: tuple[BertRun, Path],
) -> None:
    figures = half[0].figures
    assert 0 < figures["graph_s"] < figures["compile_s"]
    parts = figures["import_s"] + figures["compile_s"] + figures["first_step_s"]
    assert parts <= figures["to_first_step_s"] + 0.01


def test_a_resume_without_a_checkpoint_says_that_it_begins(tmp_path: Path) -> None:
    options = ["--checkpoint-output-dir", str(tmp_path), "--resume-training-from-checkpoint"]
    run = run_bert(*TINY, *ONE_DEVICE, *options, "--training-steps", "0")
    assert f"There is no checkpoint in {tmp_path}: the training begins with step 0." in run.lines


def test_a_damaged_record_ends_a_training_with_one_line(tmp_path: Path) -> None:
    file = tmp_path / "damaged.tfrecord"
    write_records(file, 16)
    content = bytearray(file.read_bytes())
    content[-20] ^= 1
    file.write_bytes(content)
    data = ["--dataset", "pretraining", "--input-files", str(file)]
    run = run_bert(*TINY, *ONE_DEVICE, *data)
    assert run.code == 2
    assert run.lines[-1].endswith(
        f"error: record 15 of {file} is damaged: its checksum does not match. Copy or make the "
        "file again."
    )
    assert not any("Traceback" in line for line in run.lines)
