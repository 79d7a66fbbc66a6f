"""The guides' words about speed give the ranges of the tables of docs/benchmarks.md."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
TENSORFLOW = ("MultiWorkerMirroredStrategy, Keras fit", "MultiWorkerMirroredStrategy, tf.function")
HOROVOD = ("Horovod, Keras fit with DistributedOptimizer", "Horovod, DistributedGradientTape")
FIT, ESTIMATOR = "Keras 3 / tf_keras", "Horovod / gRPC"


def figures(heading: str, *names: str) -> dict[str, list[tuple[float, float]]]:
    """Returns by model the two figures of each named row, of the table with this heading."""
    text = (DOCS / "benchmarks.md").read_text()
    table = text[text.index(f"| {heading} ") :].partition("\n\n")[0]
    header, _, *rows = [
        [one.strip() for one in line.split("|")[1:-1]] for line in table.split("\n")
    ]
    found: dict[str, list[tuple[float, float]]] = {model: [] for model in header[1:]}
    for name, *cells in rows:
        for model, cell in zip(header[1:], cells, strict=True):
            if name in names and cell:
                left, right = cell.split(" / ")
                found[model].append((float(left), float(right)))
    return found


def span(values: list[float]) -> str:
    return f"{min(values):.2f} to {max(values):.2f}"


def times_as_long(values: list[float]) -> str:
    return span([1 / value for value in values])


def words(page: str) -> str:
    return re.sub(r"\s+", " ", (DOCS / page).read_text())


def test_the_page_of_keras_gives_the_ranges_with_resnet_beside_those_of_the_others() -> None:
    for names in (TENSORFLOW, HOROVOD):
        of_models = figures(FIT, *names)
        resnet = of_models.pop("ResNet-20")
        keras_3 = span([first for ratios in of_models.values() for first, _ in ratios])
        tf_keras = [second for ratios in of_models.values() for _, second in ratios]
        tf_keras += [second for _, second in resnet]
        of_resnet = span([first for first, _ in resnet])
        said = f"| {keras_3}, and {of_resnet} for ResNet-20 | {span(tf_keras)} |"
        assert said in words("keras.md")


def test_the_page_of_alternatives_gives_the_ranges_beside_each_of_them() -> None:
    page = words("alternatives.md")
    tape = figures(ESTIMATOR, HOROVOD[1])
    on_tape = [first for model in ("MLP", "CNN") for first, _ in tape[model]]
    fit = [first for ratios in figures(FIT, *HOROVOD).values() for first, _ in ratios]
    plain = [second for ratios in figures(FIT, TENSORFLOW[0]).values() for _, second in ratios]
    torch = figures(ESTIMATOR, "PyTorch DDP, gloo")
    for said in (
        f"Estimator over Horovod takes {times_as_long(on_tape)} times as long",
        f"`fit` of Keras 3 takes {times_as_long(fit)} times as long",
        f"`fit` of tf_keras is {span(plain)} times as fast",
        f"take {span([first for r in torch.values() for first, _ in r])} times as long as the Est",
    ):
        assert said in page, said
