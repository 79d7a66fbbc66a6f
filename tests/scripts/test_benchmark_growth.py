import itertools

import growth_figures
import growth_model
import pytest
from growth_model import Point, RingModel
from results import Part

TRUE = RingModel(
    wait_s=0.01,
    overhead_s=0.0012,
    local_s_per_byte=2e-10,
    latency_s=0.0003,
    wire_s_per_byte=1 / 0.8e9,
)
SIZES = (100_000, 1_400_000, 8_000_000, 33_000_000)


def points_of(model: RingModel, *errors: float) -> list[Point]:
    """Times as they would be measured; each step is wrong by the next of the errors."""
    boxes = itertools.product((1, 2, 3, 4), SIZES)
    return [
        Point(num_workers=n, num_bytes=size, seconds=model.step_s(n, size) * (1 + error))
        for (n, size), error in zip(boxes, itertools.cycle(errors or (0.0,)), strict=False)
    ]


def test_the_formula_is_that_of_a_ring() -> None:
    # 4 workers: 6 messages of 2 MB each.
    expected = 0.01 + 0.0012 + 8e6 * 2e-10 + 6 * 0.0003 + 6 * 2e6 / 0.8e9
    assert TRUE.step_s(4, 8_000_000) == pytest.approx(expected)
    assert TRUE.efficiency(1, 8_000_000) == 1.0


def test_known_constants_are_found_again() -> None:
    found = growth_model.fit(points_of(TRUE), TRUE.wait_s)
    assert found.model.latency_s == pytest.approx(TRUE.latency_s, rel=1e-6)
    assert found.model.wire_s_per_byte == pytest.approx(TRUE.wire_s_per_byte, rel=1e-6)
    assert found.model.overhead_s == pytest.approx(TRUE.overhead_s, rel=1e-6)
    assert found.model.local_s_per_byte == pytest.approx(TRUE.local_s_per_byte, rel=1e-6)
    assert found.largest_error < 1e-9


def test_the_errors_of_the_fit_are_those_of_the_points() -> None:
    found = growth_model.fit(points_of(TRUE, 0.02, -0.02, -0.02, 0.02, 0.0), TRUE.wait_s)
    assert found.model.wire_s_per_byte == pytest.approx(TRUE.wire_s_per_byte, rel=0.05)
    assert 0.005 < found.median_error <= 0.02 < found.largest_error < 0.03


def test_no_constant_is_negative() -> None:
    # More workers are faster here: only a negative latency would follow that.
    points = [
        Point(num_workers=n, num_bytes=size, seconds=0.02 - 0.001 * n)
        for n in (1, 2, 3)
        for size in SIZES
    ]
    model = growth_model.fit(points, 0.01).model
    assert model.latency_s == model.wire_s_per_byte == 0.0
    assert model.overhead_s > 0 and model.local_s_per_byte == pytest.approx(0.0, abs=1e-12)


def test_one_number_of_workers_is_not_enough() -> None:
    points = [one for one in points_of(TRUE) if one.num_workers == 2]
    with pytest.raises(ValueError, match=r"1 number\(s\) of workers and 4 size\(s\)"):
        growth_model.fit(points, TRUE.wait_s)


def part_of(*workers: int, cores: int = 2) -> Part:
    times = {size: {n: [TRUE.step_s(n, size)] * 3 for n in workers} for size in SIZES}
    return growth_figures.make_part({"horovod": times}, cores, ("gRPC: not there. Fix it.",))


def test_the_part_says_what_was_measured_and_what_the_formula_gives() -> None:
    part = part_of(1, 2, 3, 4)
    measured, constants, drawn = part.tables
    assert measured.header[2:] == ("1 worker", "2 workers", "3 workers", "4 workers")
    assert measured.rows[1][:3] == ("Horovod", "1.4 MB", "11.5 (11.5 to 11.5); 11.5")
    assert constants.rows[0][1:] == (
        "1.20 ms", "0.20 ms", "0.300 ms", "0.80 GB/s", "0.0 %", "0.0 %",
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
