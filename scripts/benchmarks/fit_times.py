"""TensorFlow 2: Keras' `fit` and loops of one's own, against their bound and their peers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from contender import Contender, over_grpc, over_mpi, separate
from peers import HOROVOD_FIT, HOROVOD_TAPE, MIRRORED_FIT, MIRRORED_STEP, OURS, why_missing
from results import Options, Part, Ratio, Table, quartiles, ratio_of
from rounds import Race, take_rounds
from turn_taking import Turn
from work import WORKS

IDEAL = "ideal"
MODELS = ("cnn", "mlp")
ENGINES = {"gRPC": "grpc", "Horovod": "horovod"}
LIBRARIES = {"Keras 3": "keras", "tf_keras": "tf_keras"}
ESTIMATORS = {engine: f"tfdist, Estimator, {engine}" for engine in OURS}
FITS = {
    (engine, library): f"tfdist, fit of {library}, {engine}"
    for engine in ENGINES
    for library in LIBRARIES
}
LOOPS = {engine: f"tfdist, loop with tf_keras, {engine}" for engine in ENGINES}
# The worst ratio to the ideal over Horovod, and the least times as fast as a stock `fit` over gRPC.
MOST_OVER_IDEAL = {"cnn": 1.5, "mlp": 1.45}
TIMES_AS_FAST = {"cnn": 1.6, "mlp": 2.2}
OF_TF_KERAS = 1.1

ABOUT = (
    "The models, batches and the ideal are those of the step times. `fit` has no metrics and no "
    "callbacks but the one that takes turns; a loop is a tf.function over strategy.run. Keras 3's "
    "fit fails under MultiWorkerMirroredStrategy, and reduces nothing under Horovod's "
    "DistributedOptimizer, so these have tf_keras."
)


def measure(options: Options) -> Part:
    """Measures one model after the other.

    Raises:
      ContenderError: If the ideal fails.
    """
    found: dict[str, dict[str, list[Turn]]] = {}
    missing: list[str] = []
    for model in (one for one in options.models if one in MODELS):
        race = Race(
            label=f"TensorFlow 2, {model}",
            contenders=_contenders(model),
            steps=WORKS[model].steps_per_turn,
            needed=IDEAL,
            why_missing=why_missing,
        )
        measured = take_rounds(race, options)
        found[model] = measured.turns
        missing += measured.missing
    seconds = {
        model: {name: [turn.seconds for turn in own] for name, own in turns.items()}
        for model, turns in found.items()
    }
    titles = {model: WORKS[model].title for model in found}
    return Part(
        name="fit",
        title="TensorFlow 2: `fit` and loops",
        about=ABOUT,
        tables=tuple(_table(titles[model], times) for model, times in seconds.items()),
        ratios=tuple(one for model, times in seconds.items() for one in _ratios(model, times)),
        missing=tuple(dict.fromkeys(missing)),
        data={"titles": titles, "step_seconds": seconds},
    )


def _contenders(work: str) -> Iterator[Contender]:
    yield separate(IDEAL, "plain.py", work)
    for (engine, library), name in FITS.items():
        yield _of_tfdist(name, work, engine, LIBRARIES[library], "fit")
    for engine, name in LOOPS.items():
        yield _of_tfdist(name, work, engine, "tf_keras", "loop")
    yield over_grpc(ESTIMATORS["gRPC"], "host_call.py", work, "grpc")
    yield over_mpi(ESTIMATORS["Horovod"], "host_call.py", work, "0", "horovod")
    yield over_mpi(HOROVOD_FIT, "horovod_fit.py", work)
    yield over_mpi(HOROVOD_TAPE, "horovod_tape.py", work)
    yield over_grpc(MIRRORED_FIT, "mirrored_fit.py", work)
    yield over_grpc(MIRRORED_STEP, "mirrored_step.py", work)


def _of_tfdist(name: str, work: str, engine: str, library: str, way: str) -> Contender:
    if engine == "Horovod":
        return over_mpi(name, "keras_fit.py", work, "0", "horovod", library, way)
    return over_grpc(name, "keras_fit.py", work, "grpc", library, way)


def _table(title: str, times: Mapping[str, Sequence[float]]) -> Table:
    rows = []
    for name, own in times.items():
        low, middle, high = (f"{1e3 * one:.2f}" for one in quartiles(own))
        against = ratio_of(own, times[IDEAL], name="").value
        rows.append((name, middle, f"{low} - {high}", f"{against:.2f}"))
    header = ("contender", "ms a step", "quartiles", "x ideal")
    return Table(title=title, header=header, rows=tuple(rows))


def _ratios(model: str, times: Mapping[str, Sequence[float]]) -> Iterator[Ratio]:
    """Yields what is asked for a model, leaving out who did not take part."""
    title = WORKS[model].title.split(",")[0]

    def ratio(above: str, below: str, name: str, **asked: object) -> Iterator[Ratio]:
        if above in times and below in times:
            yield ratio_of(times[above], times[below], name=f"{title}, {name}", **asked)

    for library in LIBRARIES:
        ours = FITS["Horovod", library]
        most = MOST_OVER_IDEAL[model]
        yield from ratio(ours, IDEAL, f"Horovod, {library}: fit against ideal", target=most)
        for peer in (HOROVOD_FIT, HOROVOD_TAPE):
            what = f"Horovod, {library}: fit, times as fast as {peer}"
            yield from ratio(peer, ours, what, target=1.0, at_most=False)
        ours = FITS["gRPC", library]
        for peer, least in ((MIRRORED_FIT, TIMES_AS_FAST[model]), (MIRRORED_STEP, 1.0)):
            what = f"gRPC, {library}: fit, times as fast as {peer}"
            yield from ratio(peer, ours, what, target=least, at_most=False)
    for engine in ENGINES:
        stock, new = FITS[engine, "tf_keras"], FITS[engine, "Keras 3"]
        what = f"{engine}: Keras 3's fit against tf_keras'"
        yield from ratio(new, stock, what, target=OF_TF_KERAS)
        what = f"{engine}, tf_keras: fit against a loop"
        yield from ratio(stock, LOOPS[engine], what, target=1.1 if model == "cnn" else None)
