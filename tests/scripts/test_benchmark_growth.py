import dataclasses
import itertools

import growth_figures
import growth_model
import pytest
from growth_model import Point, Shape, StepModel
from results import Part

CORES = 2
TRUE = StepModel(
    shape=Shape.RING,
    wait_s=0.01,
    overhead_s=0.0012,
    local_s_per_byte=2e-10,
    latency_s=0.0003,
    wire_s_per_byte=1 / 0.8e9,
)
SIZES = (100_000, 1_400_000, 8_000_000, 33_000_000)


def points_of(model: StepModel, *errors: float) -> list[Point]:
    """Times as measured on two cores; each step is wrong by the next of the errors."""
    boxes = itertools.product((1, 2, 3, 4, 8), SIZES)
    return [
        Point(num_workers=n, num_bytes=size, seconds=model.step_s(n, size, CORES) * (1 + error))
        for (n, size), error in zip(boxes, itertools.cycle(errors or (0.0,)), strict=False)
    ]


def test_the_formula_is_that_of_a_ring() -> None:
    # 4 workers: 6 messages of 2 MB each.
    expected = 0.01 + 0.0012 + 8e6 * 2e-10 + 6 * 0.0003 + 6 * 2e6 / 0.8e9
    assert TRUE.step_s(4, 8_000_000) == pytest.approx(expected)
    assert TRUE.efficiency(1, 8_000_000) == 1.0


def test_workers_that_share_cores_take_turns_on_them() -> None:
    alone = TRUE.step_s(4, 8_000_000) - TRUE.wait_s
    assert TRUE.step_s(4, 8_000_000, num_cores=2) == pytest.approx(TRUE.wait_s + 2 * alone)
    alone = TRUE.step_s(3, 8_000_000) - TRUE.wait_s  # Two on one core, and all wait for them.
    assert TRUE.step_s(3, 8_000_000, num_cores=2) == pytest.approx(TRUE.wait_s + 2 * alone)
    assert TRUE.step_s(4, 8_000_000, num_cores=8) == TRUE.step_s(4, 8_000_000)


@pytest.mark.parametrize(
    ("shape", "messages", "moved"),
    [
        (Shape.RING, [0, 2, 4, 6, 14], [0, 1, 4 / 3, 3 / 2, 7 / 4]),
        (Shape.OWNERS, [0, 2, 2, 2, 2], [0, 1, 4 / 3, 3 / 2, 7 / 4]),
        (Shape.DOUBLING, [0, 1, 3, 2, 3], [0, 1, 3, 2, 3]),
    ],
)
def test_a_shape_has_its_messages_and_bytes(
    shape: Shape, messages: list[int], moved: list[float]
) -> None:
    workers = (1, 2, 3, 4, 8)
    assert [shape.messages(n) for n in workers] == messages
    assert [shape.moved(n) for n in workers] == pytest.approx(moved)


@pytest.mark.parametrize("shape", Shape)
def test_the_shape_that_predicts_what_it_has_not_seen_is_taken(shape: Shape) -> None:
    points = points_of(dataclasses.replace(TRUE, shape=shape))
    found = growth_model.best_fit(points, TRUE.wait_s, CORES, Shape)
    assert found.model.shape is shape
    assert found.holds and found.left_out_error < 1e-6


def test_known_constants_are_found_again() -> None:
    found = growth_model.fit(points_of(TRUE), TRUE.wait_s, CORES, Shape.RING)
    assert found.model.latency_s == pytest.approx(TRUE.latency_s, rel=1e-6)
    assert found.model.wire_s_per_byte == pytest.approx(TRUE.wire_s_per_byte, rel=1e-6)
    assert found.model.overhead_s == pytest.approx(TRUE.overhead_s, rel=1e-6)
    assert found.model.local_s_per_byte == pytest.approx(TRUE.local_s_per_byte, rel=1e-6)
    assert found.median_error < 1e-9


def test_the_errors_of_the_fit_are_those_of_the_points() -> None:
    points = points_of(TRUE, 0.02, -0.02, -0.02, 0.02, 0.0, 0.01)
    found = growth_model.fit(points, TRUE.wait_s, CORES, Shape.RING)
    assert found.model.wire_s_per_byte == pytest.approx(TRUE.wire_s_per_byte, rel=0.05)
    assert 0.005 < found.median_error <= 0.02 < found.left_out_error < 0.1
    # One number of workers that is far from what the others tell: the formula is not shown.
    slow = [
        dataclasses.replace(one, seconds=one.seconds * (2 if one.num_workers == 8 else 1))
        for one in points
    ]
    assert not growth_model.fit(slow, TRUE.wait_s, CORES, Shape.RING).holds


def test_no_constant_is_negative() -> None:
    # More workers are faster here: only a negative latency would follow that.
    points = [
        Point(num_workers=n, num_bytes=size, seconds=0.02 - 0.001 * n)
        for n in (1, 2, 3)
        for size in SIZES
    ]
    model = growth_model.fit(points, 0.01, 3, Shape.RING).model
    assert model.latency_s == model.wire_s_per_byte == 0.0
    assert model.overhead_s > 0 and model.local_s_per_byte == pytest.approx(0.0, abs=1e-12)


def test_one_number_of_workers_is_not_enough() -> None:
    points = [one for one in points_of(TRUE) if one.num_workers == 2]
    with pytest.raises(ValueError, match=r"1 number\(s\) of workers and 4 size\(s\)"):
        growth_model.fit(points, TRUE.wait_s, CORES, Shape.RING)


def part_of(*workers: int, cores: int = 2) -> Part:
    times = {size: {n: [TRUE.step_s(n, size, cores)] * 3 for n in workers} for size in SIZES}
    return growth_figures.make_part({"horovod": times}, cores, ("gRPC: not there. Fix it.",))


def test_the_part_says_what_was_measured_and_what_the_formula_gives() -> None:
    part = part_of(1, 2, 3, 4, cores=4)
    measured, constants, drawn = part.tables
    assert measured.header[2:] == ("1 worker", "2 workers", "3 workers", "4 workers")
    assert measured.rows[1][:3] == ("Horovod", "1.4 MB", "11.5 (11.5 to 11.5); 11.5")
    assert constants.rows[0][1:] == (
        "ring", "1.20 ms", "0.20 ms", "0.300 ms", "0.80 GB/s", "0.0 %", "0.0 %",
    )  # fmt: skip
    assert drawn.header[-1] == "1,024"
    ratio = part.ratios[1]
    assert ratio.name == "Horovod, 1.4 MB: step of 4 workers against 1"
    assert ratio.value == pytest.approx(1 / TRUE.efficiency(4, 1_400_000))
    assert part.data["drawn_seconds"]["horovod"][8_000_000][1024] == pytest.approx(
        TRUE.step_s(1024, 8_000_000)
    )


@pytest.mark.parametrize(
    ("cores", "said"), [(2, "3 and 4 workers shared 2 cores"), (3, "4 workers shared 3 cores")]
)
def test_workers_that_shared_cores_are_told_of(cores: int, said: str) -> None:
    assert part_of(1, 2, 3, 4, cores=cores).tables[0].note.startswith(said)
    assert part_of(1, 2, cores=cores).tables[0].note == ""


def test_a_formula_that_does_not_hold_is_not_shown() -> None:
    times = {size: {n: [0.01 + 0.001 * n**4] for n in (1, 2, 3, 8)} for size in SIZES}
    part = growth_figures.make_part({"horovod": times}, 2, ())
    measured, constants = part.tables
    assert measured.rows[0][2:] == (
        "11.0 (11.0 to 11.0)", "26.0 (26.0 to 26.0)", "91.0 (91.0 to 91.0)",
        "4106.0 (4106.0 to 4106.0)",
    )  # fmt: skip
    assert part.data["drawn_seconds"] == {}
    assert constants.header[-1] == "largest error, left out"
