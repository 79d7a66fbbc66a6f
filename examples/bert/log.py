"""The log of a pretraining: blocks between dashes, and one line that shows the present step.

Only worker 0 writes it, on standard error.
"""

import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow.compat.v1 as v1
from plan import Plan, calls_in_graph, describe_graph, device_allocation
from tqdm import tqdm

RULE = "-" * 59
DEVICE_ALLOCATION = "-------------------- Device Allocation --------------------"
COMPILATION = "---------- Compilation/Loading from Cache Started ---------"
TRAINING = "--------------------- Training Started --------------------"
METRICS = "-------------------- Training Metrics ---------------------"
PREDICTIONS = "--------------------- Predicted Words ---------------------"

# The scalars of a step in the order of the line: names of summaries, labels, units.
SHOWN = (
    ("loss", "total loss", ""),
    ("mlm_loss", "mlm_loss", ""),
    ("nsp_loss", "nsp_loss", ""),
    ("mlm_acc", "mlm_acc", " %"),
    ("nsp_acc", "nsp_acc", " %"),
)
MICRO_BATCHES = "micro_batches"  # A variable that counts them.
MANY_CALLS = 1000  # Their graph takes seconds.
LONG_STEP_S, COUNT_EVERY_S = 2.0, 1.0  # The bar counts the micro-batches of a long step.


class Log:
    """Writes lines on worker 0, and nothing on others; `start` is that of the program."""

    def __init__(self, worker_index: int, start: float) -> None:
        self.is_shown = worker_index == 0
        self.start = start

    def __call__(self, *lines: str) -> None:
        if self.is_shown:
            for line in lines:
                tqdm.write(line, file=sys.stderr)  # Above a bar, if one is shown.
            sys.stderr.flush()


def describe_step(step: int, num_steps: int, rate: float, values: dict[str, float]) -> str:
    """Returns the description of a step: its number from 0, its learning rate, its means."""
    shown = [f"{label}: {values[name]:.3f}{unit}" for name, label, unit in SHOWN if name in values]
    return " - ".join([f"Step: {step} / {num_steps - 1}", f"LR: {rate:.2e}", *shown])


def what_fits(described: str, width: int) -> str:
    """Returns the parts of a step's description that fit: the loss, then the accuracies."""
    parts = described.split(" - ")
    for label in ("LR", "Step", "nsp_loss", "mlm_loss", "nsp_acc", "mlm_acc"):
        if len(" - ".join(parts)) > width:  # The bar counts the steps, too.
            parts = [part for part in parts if not part.startswith(label)]
    return " - ".join(parts)


class StepLog(v1.train.SessionRunHook):
    """Shows the compilation and each step, and keeps the figures for the end.

    Several weight updates make a step of the log, whose values are their means. `rate` is the
    learning rate's schedule; the devices are those of the first replica.
    """

    def __init__(
        self, plan: Plan, log: Log, rate: Callable[..., Any], device_names: Sequence[str]
    ) -> None:
        self._plan, self._log, self._schedule = plan, log, rate
        self._device_names = device_names
        self._has_bar = log.is_shown and not plan.settings.disable_progress_bar
        self._bar: Any = None
        self.graph_s = self.compile_s = self.to_first_step_s = self.training_s = 0.0
        self.last: dict[str, float] = {}
        self.step_times_s: list[float] = []

    def show_allocation(self) -> None:
        lines = [
            f"{part:<10} --> Device {device} ({self._device_names[device]})"
            for part, device in device_allocation(self._plan)
        ]
        self._log(DEVICE_ALLOCATION, *lines, RULE, COMPILATION)
        if calls_in_graph(self._plan) > MANY_CALLS:
            self._log(describe_graph(self._plan))
        self._start = time.perf_counter()
        self._compilation = tqdm(
            total=100,
            desc="Graph compilation",
            bar_format="{desc}: {percentage:3.0f}%|{bar:10}| {n_fmt}/{total_fmt} "
            "[{elapsed}<{remaining}]",
            file=sys.stderr,
            disable=not self._has_bar,
        )

    def begin(self) -> None:
        self._compilation.update(50)  # The graph is built; next are the session and first values.
        self.graph_s = time.perf_counter() - self._start
        graph = v1.get_default_graph()
        self._scalars = {name: _scalar(graph, name) for name, _, _ in SHOWN}
        self._step_of_rate = v1.placeholder_with_default(0, [])
        self._rate = v1.convert_to_tensor(self._schedule(self._step_of_rate))
        self._counter = [v for v in v1.global_variables() if v.op.name == MICRO_BATCHES]

    def after_create_session(self, session: Any, coord: Any) -> None:
        settings = self._plan.settings
        self._compilation.update(50)
        self._compilation.close()
        self.compile_s = time.perf_counter() - self._start
        self._log(f"Compiled/Loaded model in {self.compile_s} secs", RULE)
        self._updates = int(session.run(v1.train.get_global_step()))
        self._sums = dict.fromkeys(self._scalars, 0.0)
        if settings.compile_only:
            return
        self._log(TRAINING)
        self._training_start = self._step_start = time.perf_counter()
        self._bar = tqdm(
            total=settings.training_steps,
            initial=self._updates // settings.device_iterations,
            desc="Training",
            file=sys.stderr,
            mininterval=0,
            dynamic_ncols=True,
            disable=not self._has_bar,
        )
        self._is_over = threading.Event()
        if self._has_bar and settings.gradient_accumulation > 1 and self._counter:
            counted = session.run(self._counter[0])
            watch = threading.Thread(target=self._watch, args=(session, counted), daemon=True)
            watch.start()

    def before_run(self, run_context: Any) -> v1.train.SessionRunArgs:
        if self._plan.settings.compile_only:
            self._log(
                "Model successfully compiled. Exiting now as '--compile-only' argument was passed."
            )
            raise StopIteration  # Ends the training before its first step.
        return v1.train.SessionRunArgs(self._scalars)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        now = time.perf_counter()
        settings = self._plan.settings
        iterations = settings.device_iterations
        for name, value in run_values.results.items():
            self._sums[name] += float(value) / iterations
        self._updates += 1
        if self._updates == settings.num_updates:
            self._is_over.set()  # No count replaces what the bar shows of the last step.
        if self._updates % iterations == 0:
            step_s, self._step_start = now - self._step_start, now
            self.to_first_step_s = self.to_first_step_s or now - self._log.start
            self.step_times_s.append(step_s)
            rate = run_context.session.run(self._rate, {self._step_of_rate: self._updates - 1})
            self._show(self._updates // iterations - 1, float(rate), step_s)

    def _show(self, step: int, rate: float, step_s: float) -> None:
        settings = self._plan.settings
        self.last, self._sums = self._sums, dict.fromkeys(self._sums, 0.0)
        described = describe_step(step, settings.training_steps, rate, self.last)
        rate_of_samples = f"{self._plan.samples_per_step / step_s:.1f} samples/sec"
        if self._has_bar:
            for throughput in (f"throughput: {rate_of_samples}", rate_of_samples):
                self._bar.set_postfix_str(throughput, refresh=False)
                fitting = what_fits(described, self._width_of_description())
                if fitting == described:
                    break
            self._bar.set_description_str(fitting + ": ", refresh=False)
            self._bar.update(step + 1 - self._bar.n)
        else:
            self._log(f"{described}: throughput: {rate_of_samples}")

    def _width_of_description(self) -> int:
        """Returns the columns beside percentage, speed and time left, with a bar of 1 column."""
        shown = self._bar.format_dict
        if not shown["ncols"]:
            return sys.maxsize  # No screen.
        others = tqdm.format_meter(**{**shown, "prefix": ": ", "ncols": None, "ascii": True})
        return int(shown["ncols"]) - len(others) + 9

    def _watch(self, session: Any, counted: int) -> None:
        """Shows how many micro-batches of a long step are done, once a second, in a thread."""
        settings = self._plan.settings
        first = self._updates
        of_step = settings.gradient_accumulation * self._plan.layout.replicas
        while not self._is_over.wait(COUNT_EVERY_S):
            step = self._updates
            if time.perf_counter() - self._step_start < LONG_STEP_S:
                continue
            try:
                done = int(session.run(self._counter[0])) - counted - (step - first) * of_step
            except (v1.errors.OpError, RuntimeError):  # The session is closed.
                return
            if step == self._updates:
                number = min(max(done, 0), of_step) // self._plan.layout.replicas
                self._bar.set_postfix_str(
                    f"micro-batch {number}/{settings.gradient_accumulation}", refresh=True
                )

    def end(self, session: Any) -> None:
        if self._bar is None:
            return
        self._is_over.set()
        self.training_s = time.perf_counter() - self._training_start
        self._bar.close()
        settings = self._plan.settings
        self._log(
            RULE,
            METRICS,
            f"global_batch_size: {self._plan.layout.global_batch}",
            f"device_iterations: {settings.device_iterations}",
            f"training_steps: {settings.training_steps}",
            f"Training time: {self.training_s:.3f} secs",
            RULE,
        )

    def figures(self) -> dict[str, float]:
        """Returns the last step's means, and times; the first step is not part of the rate."""
        steady = self.step_times_s[1:] or self.step_times_s
        per_s = len(steady) * self._plan.samples_per_step / sum(steady) if steady else 0.0
        return {
            **{name: round(value, 6) for name, value in self.last.items()},
            "samples_per_s": round(per_s, 2),
            "graph_s": round(self.graph_s, 3),
            "compile_s": round(self.compile_s, 3),
            "first_step_s": round(self.step_times_s[0], 3) if steady else 0.0,
            "to_first_step_s": round(self.to_first_step_s, 3),
            "training_s": round(self.training_s, 3),
        }


class SavedNotes(v1.train.CheckpointSaverListener):
    """Writes a line for each checkpoint in a folder, with the step of the log."""

    def __init__(self, log: Log, folder: str, updates_per_step: int) -> None:
        self._log, self._folder, self._per_step = log, folder, updates_per_step

    def before_save(self, session: Any, global_step_value: int) -> None:
        path = f"{self._folder}/model.ckpt-{global_step_value}"
        step = global_step_value // self._per_step
        self._log(f"Saving checkpoint for step {step} to: {path}")


def _scalar(graph: Any, tag: str) -> Any:
    """Returns the tensor of a scalar summary."""
    for operation in graph.get_operations():
        if operation.type == "ScalarSummary":
            found = v1.get_static_value(operation.inputs[0])
            if found is not None and found.item().decode() == tag:
                return operation.inputs[1]
    raise ValueError(f"the graph has no scalar summary {tag!r}")
