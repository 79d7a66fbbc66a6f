"""The checkpoints of a run: which there are, where a run goes on, and means of several."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np


def list_checkpoints(path: Path) -> list[str]:
    """Returns the checkpoints of a folder in the order of their steps, or the one named.

    That of step 0, whose weights are not trained, is left out.
    """
    if not path.is_dir():
        return [str(path)]
    found = [str(index.with_suffix("")) for index in path.glob("model.ckpt-*.index")]
    return sorted((one for one in found if step_of(one) > 0), key=step_of)


def step_of(checkpoint: str) -> int:
    """Returns the step in the name of a checkpoint."""
    return int(checkpoint.rpartition("-")[2])


def copy_checkpoint(checkpoint: str, folder: Path) -> None:
    """Makes a checkpoint the newest one of another folder."""
    import tensorflow.compat.v1 as v1

    source = Path(checkpoint)
    for file in source.parent.glob(f"{source.name}.*"):
        shutil.copy(file, folder / file.name)
    v1.train.update_checkpoint_state(str(folder), str(folder / source.name))


def mean_of_last(number: int, count: int) -> list[float]:
    """Returns the weights of a mean over the last `number` of `count` checkpoints."""
    number = min(number, count)
    return [0.0] * (count - number) + [1 / number] * number


def exponential_mean(decay: float, count: int) -> list[float]:
    """Returns the weights of an exponential mean: new = decay x old + (1 - decay) x checkpoint."""
    weights = [decay ** (count - 1)]
    return weights + [(1 - decay) * decay ** (count - 1 - i) for i in range(1, count)]


def write_mean(checkpoints: Sequence[str], weights: Sequence[float], path: str) -> None:
    """Writes a checkpoint with the weighted means of variables; the step is the last one's."""
    import tensorflow as tf
    import tensorflow.compat.v1 as v1

    readers = [tf.train.load_checkpoint(checkpoint) for checkpoint in checkpoints]
    with tf.Graph().as_default(), v1.Session() as session:
        feeds, initializers, variables = {}, [], []
        for name, shape in readers[-1].get_variable_to_shape_map().items():
            value = readers[-1].get_tensor(name)
            if np.issubdtype(value.dtype, np.floating):
                values = [
                    w * reader.get_tensor(name) for w, reader in zip(weights, readers, strict=True)
                ]
                value = np.sum(values, axis=0, dtype=np.float64).astype(value.dtype)
            first = v1.placeholder(value.dtype, shape)
            variables.append(v1.get_variable(name, initializer=first, use_resource=True))
            feeds[first] = value
            initializers.append(variables[-1].initializer)
        session.run(initializers, feeds)
        v1.train.Saver(variables).save(session, path, write_meta_graph=False, write_state=False)
