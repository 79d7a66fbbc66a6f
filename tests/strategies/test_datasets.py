"""Changes of a distributed dataset to the user's."""

import pytest
import tensorflow as tf

from tfdist.strategies.eager.datasets import tuned_for_cores


@pytest.mark.parametrize(
    ("cores", "chosen", "expected"),
    [
        ({0}, None, False),
        ({0}, True, True),
        ({0, 1}, None, None),
        ({0, 1}, False, False),
    ],
)
def test_on_a_single_core_tf_data_tunes_only_what_the_user_wants(
    cores: set[int], chosen: bool | None, expected: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: cores)
    dataset = tf.data.Dataset.range(4).batch(2)
    if chosen is not None:
        options = tf.data.Options()
        options.autotune.enabled = chosen
        dataset = dataset.with_options(options)
    tuned = tuned_for_cores(dataset)
    assert tuned.options().autotune.enabled is expected
    assert [row.tolist() for row in tuned.as_numpy_iterator()] == [[0, 1], [2, 3]]
