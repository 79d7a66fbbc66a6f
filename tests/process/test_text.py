"""Pieces of the lines that a user reads."""

import pytest

from tfdist.process.text import did_you_mean, listed, printable, shown


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([], "nothing"),
        (["a"], "a"),
        (["a", "b"], "a and b"),
        (["a", "b", "c", "d", "e"], "a, b, c, d and e"),
        (list("abcdefg"), "a, b, c, d, ... and g"),
    ],
)
def test_a_list_of_names_is_short_and_ends_with_and(names: list[str], expected: str) -> None:
    assert listed(names) == expected
    assert listed(names, "or") == expected.replace(" and ", " or ")


def test_the_nearest_name_is_proposed_in_any_case_and_for_other_names() -> None:
    assert did_you_mean("WORKR", ["chief", "worker"]) == ' Did you mean "worker"?'
    assert did_you_mean("np", ["num"], {"np": "num"}) == ' Did you mean "num"?'
    assert did_you_mean("xyz", ["chief", "worker"]) == ""


def test_values_and_text_of_unknown_origin_stay_one_short_safe_line() -> None:
    assert shown({"a": [1, "\n"]}) == '{"a": [1, "\\n"]}'
    assert len(shown("x" * 1000)) == 70 and shown("x" * 1000).endswith("...")
    assert printable("a\x1b[2J\n\u202eb") == r"a\x1b[2J\n\u202eb"
    assert printable("x" * 400) == "x" * 300 + "..."
