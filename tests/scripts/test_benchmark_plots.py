from pathlib import Path

import application_figures
import growth_figures
import peers
import pipeline_peer_figures
import plots
import slow_link_figures
import step_figures
from record import Record, read_records, write_records
from results import Part
from slow_link_figures import Found
from turn_taking import Turn

NUM_ROUNDS = 3


def turns_of(seconds: float) -> list[Turn]:
    return [Turn(seconds=seconds * (1 + 0.1 * n), cpu_seconds=0.0, peak_bytes=0) for n in range(3)]


def record_of(part: Part) -> Record:
    return Record(part=part, date="", rounds=NUM_ROUNDS, machine={}, cores_taken=0.0)


def step_part() -> Part:
    names = (step_figures.IDEAL, *step_figures.BARE.values(), *peers.OURS.values())
    found = {
        name: turns_of(0.001 * row) for row, name in enumerate((*names, *step_figures.PEERS), 1)
    }
    return step_figures.make_part({"cnn": found, "mlp": found}, {"cnn": "CNN", "mlp": "MLP"}, ())


def application_part() -> Part:
    libraries = application_figures.LIBRARIES
    found = {name: turns_of(0.1 + 0.01 * row) for row, name in enumerate(libraries)}
    models = {"resnet-20": "ResNet-20", "bert-mini": "BERT mini"}
    sizes = dict.fromkeys(models, 8)
    return application_figures.make_part({key: [found] for key in models}, sizes, models, ())


def pipeline_part() -> Part:
    times = {name: [0.1, 0.11] for name in pipeline_peer_figures.CONTENDERS}
    of_all = dict.fromkeys(pipeline_peer_figures.MICRO_BATCHES, times)
    found = pipeline_peer_figures.Found(title="MLP", step_seconds=of_all, step_bytes={})
    return pipeline_peer_figures.make_part([found], ())


def slow_link_part(*, has_link: bool) -> Part:
    found = [
        Found(
            model="cnn",
            engine=engine,
            rate_bits=1e9,
            step=[1.1] * 3,
            computation=[1.0] * 3,
            communication=[0.5] * 3,
        )
        for engine in slow_link_figures.ENGINES
    ]
    return slow_link_figures.make_part(found if has_link else [], ())


def growth_part() -> Part:
    times = {size: {n: [0.011 + 1e-9 * n * size] for n in (1, 2)} for size in growth_figures.SIZES}
    return growth_figures.make_part({"grpc": times, "horovod": times}, 2, ())


def test_what_was_written_can_be_drawn_into_small_pictures(tmp_path: Path) -> None:
    parts = (
        step_part(),
        application_part(),
        pipeline_part(),
        slow_link_part(has_link=True),
        growth_part(),
    )
    write_records(tmp_path / "all.json", {part.name: record_of(part) for part in parts})
    drawn = plots.draw(read_records(tmp_path / "all.json"), tmp_path)
    assert {name: [path.name for path, _ in pictures] for name, pictures in drawn.items()} == {
        "steps": ["benchmarks-steps.png"],
        "applications": ["benchmarks-applications.png"],
        "pipelines": ["benchmarks-pipelines.png"],
        "slow-link": ["benchmarks-slow-link.png"],
        "growth": ["benchmarks-growth.png"],
    }
    for path in tmp_path.glob("*.png"):
        assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size < 80_000


def test_without_a_link_nothing_is_drawn_of_it(tmp_path: Path) -> None:
    drawn = plots.draw({"slow-link": record_of(slow_link_part(has_link=False))}, tmp_path)
    assert drawn == {"slow-link": []} and not list(tmp_path.iterdir())
