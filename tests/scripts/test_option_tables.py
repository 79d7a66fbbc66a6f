import option_tables
import pytest

from tfdist.launch.options.command_line import CommandLine


@pytest.mark.parametrize("line", option_tables.COMMANDS, ids=lambda line: line.prog)
def test_the_table_in_the_docs_is_the_one_that_follows_from_the_declarations(
    line: CommandLine,
) -> None:
    page = option_tables.PAGE.read_text()
    assert option_tables.with_table(page, line) == page, "run scripts/option_tables.py"
    for option in line.declared:
        assert not option.help or f"`{option.long_name}" in page


def test_a_page_without_a_place_for_the_table_is_refused() -> None:
    with pytest.raises(ValueError, match="options of tfdist run"):
        option_tables.with_table("# Launching", option_tables.RUN)
