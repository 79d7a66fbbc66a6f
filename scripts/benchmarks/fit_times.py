"""TensorFlow 2: Keras' `fit` and loops of one's own, against their bound and their peers."""

from __future__ import annotations

from collections.abc import Iterator

from contender import Contender, over_gloo, over_grpc, over_mpi, separate
from peers import (
    HOROVOD_FIT,
    HOROVOD_TAPE,
    IDEAL,
    MIRRORED_FIT,
    MIRRORED_STEP,
    OURS,
    TORCH_DDP,
    torch_python,
)
from results import Options, Part
from rounds import Race, chosen_models, measure_models
from work import BERT_MINI, RESNET_20, WORKS

MODELS = ("cnn", "mlp", RESNET_20, BERT_MINI)
LIBRARIES = {"Keras 3": "keras", "tf_keras": "tf_keras"}
ESTIMATORS = {engine: f"tfdist, Estimator, {engine}" for engine in OURS}
LOOPS = {engine: f"tfdist, loop with tf_keras, {engine}" for engine in OURS}
FITS = {
    (engine, library): f"tfdist, fit of {library}, {engine}"
    for engine in OURS
    for library in LIBRARIES
}
PLAIN_FIT = "Keras 3, fit of each worker alone"
PEERS = {"Horovod": (HOROVOD_FIT, HOROVOD_TAPE), "gRPC": (MIRRORED_FIT, MIRRORED_STEP)}

ABOUT = (
    "The models and batches are those of the step times and of the real models; ideal is two "
    "workers with tf_keras that reduce nothing. `fit` has no metrics and no callbacks but the one "
    "that takes turns; a loop is a tf.function over strategy.run. Keras 3's fit fails under "
    "MultiWorkerMirroredStrategy, and reduces nothing under Horovod's DistributedOptimizer, so "
    "these have tf_keras. Beside them is what a step of Keras 3's fit takes by itself. Since all "
    "contenders at once do not fit into 24 GB, those over Horovod take turns first, then those "
    "over gRPC, then the Estimators and PyTorch, each time with the ideal."
)


def measure(options: Options) -> Part:
    """Measures one model after the other.

    Raises:
      ValueError: If no model of this part was asked for.
      ContenderError: If the ideal fails.
    """
    races = {
        WORKS[model].title: [
            Race(
                label=f"TensorFlow 2, {model}",
                contenders=contenders,
                steps=WORKS[model].steps_per_turn,
                needed=IDEAL,
            )
            for contenders in (over_horovod(model), over_tensorflow(model), others(model))
        ]
        for model in chosen_models(options, MODELS)
    }
    title = "TensorFlow 2: `fit` and loops"
    return measure_models(races, IDEAL, pairs, options, title=title, about=ABOUT)


def pairs(model: str) -> Iterator[tuple[str, str, str]]:
    """Yields what is compared of a model: fits with the ideal, a loop, and the peers."""
    for (engine, library), ours in FITS.items():
        yield f"{model}, {engine}, {library}: fit over ideal", ours, IDEAL
        for peer in PEERS[engine]:
            yield f"{model}, {library}: times as fast as {peer}", peer, ours
    yield f"{model}, Horovod, Keras 3: fit over plain fit", FITS["Horovod", "Keras 3"], PLAIN_FIT
    for engine, loop in LOOPS.items():
        stock, new = FITS[engine, "tf_keras"], FITS[engine, "Keras 3"]
        yield f"{model}, {engine}: fit of Keras 3 over that of tf_keras", new, stock
        yield f"{model}, {engine}: fit of tf_keras over a loop", stock, loop


def over_horovod(work: str) -> Iterator[Contender]:
    """Yields tfdist over Horovod and Horovod's own ways, in the order of their turns.

    Start each before the next one is asked for: its ports may be taken later.
    """
    yield _ideal(work)
    yield separate(PLAIN_FIT, "keras_fit.py", work, "none", "keras", "fit")
    for library, name in LIBRARIES.items():
        words = ("keras_fit.py", work, "0", "horovod", name, "fit")
        yield over_mpi(FITS["Horovod", library], *words)
    words = ("keras_fit.py", work, "0", "horovod", "tf_keras", "loop")
    yield over_mpi(LOOPS["Horovod"], *words)
    yield over_mpi(HOROVOD_FIT, "horovod_keras.py", work, "fit")
    yield over_mpi(HOROVOD_TAPE, "horovod_keras.py", work, "tape")


def over_tensorflow(work: str) -> Iterator[Contender]:
    """Yields tfdist over gRPC and TensorFlow's own ways; see `over_horovod`."""
    yield _ideal(work)
    for library, name in LIBRARIES.items():
        yield over_grpc(FITS["gRPC", library], "keras_fit.py", work, "grpc", name, "fit")
    yield over_grpc(LOOPS["gRPC"], "keras_fit.py", work, "grpc", "tf_keras", "loop")
    yield over_grpc(MIRRORED_FIT, "keras_fit.py", work, "mirrored", "tf_keras", "fit")
    yield over_grpc(MIRRORED_STEP, "keras_fit.py", work, "mirrored", "tf_keras", "loop")


def others(work: str) -> Iterator[Contender]:
    """Yields tfdist's Estimator over both engines, and PyTorch; see `over_horovod`."""
    yield _ideal(work)
    yield over_grpc(ESTIMATORS["gRPC"], "estimator.py", work, "grpc")
    yield over_mpi(ESTIMATORS["Horovod"], "estimator.py", work, "0", "horovod")
    yield over_gloo(TORCH_DDP, "torch_ddp.py", work, python=torch_python())


def _ideal(work: str) -> Contender:
    if work in (RESNET_20, BERT_MINI):
        return separate(IDEAL, "estimator.py", work, "none")
    return separate(IDEAL, "own_loop.py", work, "plain")
