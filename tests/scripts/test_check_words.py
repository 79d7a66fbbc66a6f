from pathlib import Path

import check_words
import pytest


@pytest.mark.parametrize(
    ("source", "line", "found", "suggestion"),
    [
        ('"""What is known of a trace."""', 1, "docstring begins with 'What'", "a noun phrase"),
        ('"""traces a model."""', 1, "docstring begins with 'traces'", "a capital letter"),
        ('"""Lets what waits wait."""', 1, "'Lets what'", "name the object"),
        ('"""A file.\n\nMend it, whose\neach line ends."""', 3, "'Mend'", "fix"),
        ('"""A file of lines, whose\neach has an end."""', 1, "'whose each'", "a new sentence"),
        ("x = 1\n# Nobody reads it.", 2, "'Nobody'", "name the subject"),
        ("x = 1\ny.is_told = x", 2, "identifier is_told", "reported"),
        ("class ToldWorkers: ...", 1, "identifier ToldWorkers", "launched"),
        ('print(\n    f"{1} lasts for ever"\n)', 2, "'for ever'", "forever"),
    ],
)
def test_a_docstring_a_comment_and_a_message_are_checked(
    source: str, line: int, found: str, suggestion: str
) -> None:
    first = check_words.check_python(source)[0]
    assert (first.line, first.found) == (line, found)
    assert suggestion in first.suggestion


@pytest.mark.parametrize(
    "source",
    [
        '"""Returns the number of workers. It says what is missing, and how many."""',
        '"""`popdist`: names of the original."""',
        'def whoever(nobody: str = "nobody") -> str:\n    return nobody\n',
        '"""Amended, recommended, and shallow."""',
        "def test_it_is_told(amended: int) -> None: ...",
    ],
)
def test_names_and_plain_language_pass(source: str) -> None:
    assert check_words.check_python(source) == []


def test_code_in_documents_is_left_out() -> None:
    text = "Run `nobody`:\n\n```text\nsomebody stopped it\n```\n\nNobody\nreads it.\n"
    assert [(one.line, one.found) for one in check_words.check_text(text)] == [(7, "'Nobody'")]


def test_all_files_are_checked_unless_paths_are_given(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "a.py").write_text("# Made anew.\n")
    (tmp_path / "b.md").write_text("Plain.\n")
    monkeypatch.setattr(check_words, "ROOT", tmp_path)
    monkeypatch.setattr(check_words, "repository_files", lambda: ["b.md", "old/a.py"])
    assert check_words.main([]) == 1
    assert check_words.main([str(tmp_path / "old")]) == 1
    assert check_words.main([str(tmp_path / "b.md")]) == 0
    assert capsys.readouterr().out == "old/a.py:1: 'anew' -> again\n" * 2
