"""Trackers that the training reports to: their numbers are pushed too, with the trackers' own keys and steps.

Accelerate is one of them: what a training logs with its `Accelerator`. `TrainingWatch` finds the rest.
"""

from __future__ import annotations

import os
import sys
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trackside.auto.hooks import auto_run
from trackside.auto.method_wrapping import after
from trackside.environment.config import as_mapping

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class TrackerSteps:
    """The steps of trackers that count them by themselves, by the tracker's run."""

    def __init__(self) -> None:
        self._next: weakref.WeakKeyDictionary[Any, dict[str, int]] = weakref.WeakKeyDictionary()

    def step(self, run: Any, given: Any, *, ends: bool, key: str = "", first: int = 0) -> int:
        """Return the step of a report.

        Args:
            run: The tracker's run.
            given: The step that the training code gives, or None.
            ends: The step ends with the report.
            key: What is counted, for a tracker that counts each key.
            first: The first step.
        """
        counts = self._next.setdefault(run, {})
        now = max(counts.get(key, first), first if given is None else int(given))
        counts[key] = now + ends
        return now if given is None else int(given)

    def is_new(self, run: Any) -> bool:
        """Return whether a run has reported nothing yet."""
        return run not in self._next


_steps = TrackerSteps()


@after
def log_wandb(run: Any, data: Mapping[str, Any], step: int | None = None, commit: bool | None = None, **_: Any) -> None:
    if _steps.is_new(run):
        auto_run().describe(config=dict(run.config))  # it may have grown
    ends = (step is None and commit is None) or bool(commit)
    auto_run().tracked(data, _steps.step(run, step, ends=ends, first=getattr(run, "starting_step", 0)), ".")


@after
def end_run(*_: Any, **__: Any) -> None:
    """Note that a tracker's run has ended: its next one is a run of its own."""
    auto_run().end_tracked()


@after
def init_wandb(*_: Any, name: str | None = None, **__: Any) -> None:
    run = getattr(sys.modules["wandb"], "run", None)
    if run is not None:
        auto_run().begin_tracked()
        auto_run().describe(name=name or os.environ.get("WANDB_NAME"), config=dict(run.config), tags=run.tags)


class Writers:
    """The directories of the summary writers of a run, and the tags that each has written first."""

    def __init__(self) -> None:
        self._owners: dict[str, str] = {}
        self._run: Any = None

    def key(self, place: str, tag: str) -> str:
        """Return the key of a tag: of a second writer that has it, with what its directory has beyond the first one's."""
        run = auto_run().queue
        if run is not self._run:
            self._owners = {} if self._run is not None else self._owners  # the first value opens the run
            self._run = run
        owner = self._owners.setdefault(tag, place)
        if owner == place or Path(owner) == Path(place):  # each scalar comes here, and a path takes 3 µs
            return tag
        theirs = Path(owner).parts
        own = [part for part in Path(place).parts if part not in theirs] or [Path(place).name]
        return "/".join((*own, tag))


_writers = Writers()
_tf_places: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
"""The directories of TensorFlow's writers, which they do not state."""


def _place(writer: Any) -> str:
    return str(getattr(writer, "log_dir", None) or getattr(writer, "logdir", ""))


@after
def add_scalar(writer: Any, tag: str, scalar_value: Any, global_step: Any = None, *__: Any, **___: Any) -> None:
    auto_run().tracked({_writers.key(_place(writer), tag): scalar_value}, int(global_step or 0))


@after
def add_scalars(
    writer: Any, main_tag: str, tag_scalar_dict: Mapping[str, Any], global_step: Any = None, *__: Any, **___: Any
) -> None:
    values = {_writers.key(_place(writer), f"{main_tag}/{tag}"): value for tag, value in tag_scalar_dict.items()}
    auto_run().tracked(values, int(global_step or 0))


@after
def add_hparams(_: Any, hparam_dict: Any, *__: Any, **___: Any) -> None:
    auto_run().describe(config=as_mapping(hparam_dict))


@after
def write_hparams(_: Any, hparams: Mapping[str, Any]) -> None:
    auto_run().describe(config=hparams)


@after
def init_tf_writer(writer: Any, create_fn: Any = None, init_op_fn: Any = None, *_: Any, **__: Any) -> None:
    _tf_places[writer] = init_op_fn.keywords["logdir"].numpy().decode()


@after
def write_tf_scalar(name: str, data: Any, step: Any = None, *_: Any, **__: Any) -> None:
    """Push what `tf.summary.scalar` writes; in a graph it has no value yet."""
    tf = sys.modules.get("tensorflow")
    if tf is None or not tf.executing_eagerly() or not tf.summary.should_record_summaries():
        return
    writer = sys.modules["tensorflow.python.ops.summary_ops_v2"]._summary_state.writer  # noqa: SLF001  no public name
    scope = tf.get_current_name_scope()
    key = _writers.key(_tf_places.get(writer, ""), f"{scope}/{name}" if scope else name)
    auto_run().tracked({key: data}, int(tf.summary.experimental.get_step() if step is None else step))


@after
def create_run(
    _: Any, experiment_id: str, start_time: Any = None, tags: Any = None, run_name: str | None = None, **__: Any
) -> None:
    auto_run().begin_tracked()
    _describe_mlflow({}, [*(tags or {}).items(), *([("mlflow.runName", run_name)] if run_name else [])])


@after
def log_metric(
    _: Any, run_id: str, key: str, value: Any, timestamp: Any = None, step: Any = None, *__: Any, **___: Any
) -> None:
    auto_run().tracked({key: value}, int(step or 0))


@after
def log_batch(_: Any, run_id: str, metrics: Any = (), params: Any = (), tags: Any = (), *__: Any, **___: Any) -> None:
    by_step: dict[int, dict[str, Any]] = {}
    for metric in metrics:
        by_step.setdefault(int(metric.step), {})[metric.key] = metric.value
    if params or tags:
        _describe_mlflow({one.key: one.value for one in params}, [(one.key, one.value) for one in tags])
    for step, values in by_step.items():
        auto_run().tracked(values, step)


@after
def log_param(_: Any, run_id: str, key: str, value: Any, *__: Any, **___: Any) -> None:
    _describe_mlflow({key: value})


@after
def set_tag(_: Any, run_id: str, key: str, value: Any, *__: Any, **___: Any) -> None:
    _describe_mlflow({}, [(key, value)])


def _describe_mlflow(params: Mapping[str, Any], tags: Iterable[tuple[str, Any]] = ()) -> None:
    """Describe the run by MLflow's parameters and tags; those of MLflow itself have its name."""
    every = dict(tags)
    ours = [f"{key}={value}" for key, value in every.items() if not key.startswith("mlflow.")]
    auto_run().describe(name=every.get("mlflow.runName"), config=params, tags=ours)


@after
def log_trackio(run: Any, metrics: Mapping[str, Any], step: int | None = None) -> None:
    auto_run().tracked(metrics, _steps.step(run, step, ends=True))


@after
def log_swanlab(run: Any, data: Mapping[str, Any], step: int | None = None) -> None:
    if _steps.is_new(run):
        auto_run().describe(config=dict(run.config))  # it may have grown
    auto_run().tracked(data, _steps.step(run, step, ends=step is None), "/")


@after
def init(
    *_: Any, name: str | None = None, experiment_name: str | None = None, config: Any = None, tags: Any = (), **__: Any
) -> None:
    """Describe the run as trackio's and swanlab's `init` does; a name that they make up is left out."""
    config = config if hasattr(config, "items") else {}
    auto_run().begin_tracked()
    auto_run().describe(name=name or experiment_name, config=config, tags=tags)


@after
def track(run: Any, value: Any, name: str = "", step: Any = None, *_: Any, context: Any = None, **__: Any) -> None:
    values = value if hasattr(value, "items") else {name: value}
    prefix = "".join(f"{part}/" for part in (context or {}).values())  # such as {"subset": "train"}
    for key, number in values.items():
        whole = f"{prefix}{key}"
        auto_run().tracked({whole: number}, _steps.step(run, step, ends=True, key=whole))


@after
def add_tag(_: Any, value: str) -> None:
    auto_run().describe(tags=(value,))


@after
def set_item(_: Any, key: str, value: Any) -> None:
    auto_run().describe(config=value if hasattr(value, "items") else {key: value})


@after
def init_accelerate(_: Any, project_name: str, config: Any = None, *__: Any, **___: Any) -> None:
    auto_run().describe(name=project_name, config=config if hasattr(config, "items") else None)


@after
def log_accelerate(_self: Any, values: Mapping[str, Any], step: int | None = None, *_: Any, **__: Any) -> None:
    auto_run().tracked(values, auto_run().step if step is None else step)


@after
def log_values(_: Any, values: Mapping[str, Any], step: int) -> None:
    auto_run().tracked(values, step)


@after
def log_composer(logger: Any, metrics: Mapping[str, Any], step: int | None = None) -> None:
    now = logger._state.timestamp.batch.value  # noqa: SLF001  Composer has no public name for it
    auto_run().tracked(metrics, now if step is None else step)
