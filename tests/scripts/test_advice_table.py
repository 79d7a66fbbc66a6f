import advice_table
import pytest


def test_the_table_in_the_docs_is_the_launchers_advice() -> None:
    page = advice_table.PAGE.read_text()
    assert advice_table.with_table(page) == page, "run scripts/advice_table.py"


def test_every_example_has_advice() -> None:
    rows = advice_table.table().splitlines()
    assert [row for row in rows if row.endswith("|  |")] == []


def test_a_page_without_a_place_for_the_table_is_refused() -> None:
    with pytest.raises(ValueError, match="<!-- advice -->"):
        advice_table.with_table("# Troubleshooting")
