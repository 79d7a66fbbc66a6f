"""The example in the docstring of each public class of tfdist.training runs as it is shown."""

import doctest

import pytest
import tensorflow as tf

from tfdist import training

CLASSES = [one for one in vars(training).values() if isinstance(one, type)]


@pytest.mark.parametrize("public", CLASSES, ids=lambda public: public.__name__)
def test_the_example_of_a_class_runs(public: type, capsys: pytest.CaptureFixture[str]) -> None:
    finder = doctest.DocTestFinder(recurse=False)
    [example] = finder.find(public, globs={"tf": tf, "training": training})
    assert example.examples, f"{public.__name__} has no example"
    result = doctest.DocTestRunner().run(example)
    assert result.failed == 0, capsys.readouterr().out
