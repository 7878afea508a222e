"""A run, as the training code uses it."""

from __future__ import annotations

from functools import cache, wraps
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, TypeVar, cast

from trackside.environment.exit_status import checked_status, exception_fields, outcome
from trackside.limits import ROWS_WAITING
from trackside.media.pixels import read
from trackside.media.tables import histogram_json, table_json
from trackside.media.unsent import text_bytes
from trackside.numbers import read_number
from trackside.totals.phases import Phase, TimedLoader
from trackside.training_log import warn
from trackside.transport.session import MAX_LIGHT_VALUES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from types import TracebackType

    from trackside.environment.exit_status import Status
    from trackside.pytorch.watcher import Watcher
    from trackside.row_queue import RowQueue, Severity

T = TypeVar("T")
F = TypeVar("F", bound="Callable[..., Any]")


class Unwatched:
    """The watcher of a model that cannot be watched, since no file descriptor was left for the import."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None


def _watching() -> tuple[type[Watcher], Callable[..., Any]] | None:
    """Import what watches models and return it, since other runs do not pay its 6 ms; None if that fails."""
    try:
        from trackside.pytorch.observer import choice
        from trackside.pytorch.watcher import Watcher
    except (ImportError, OSError) as error:
        warn(f"the model is not watched, training goes on: {error}")
        return None
    return Watcher, choice


def by_position_too(function: F) -> F:
    """Let a method accept its keyword-only arguments by position too, with a warning: a training must not end by them."""
    places = function.__code__.co_argcount
    names = function.__code__.co_varnames[places : places + function.__code__.co_kwonlyargcount]

    @wraps(function)
    def call(*given: Any, **named: Any) -> Any:
        if len(given) > places:
            _warn_position(function.__name__, names[0])
            named, given = dict(zip(names, given[places:], strict=False)) | named, given[:places]
        return function(*given, **named)

    return call  # type: ignore[return-value]


@cache  # so that a line is logged once
def _warn_position(function: str, name: str) -> None:
    warn(f"{function}: write {name}=... in place of {name} by position")


class Run:
    """One process's part in a training run. `init` or the first push creates it.

    It is a context manager, and ends with the block, as failed if that raises::

        with trackside.init("baseline") as run:
            run.push(step=0, loss=2.3)

    A pickled run is the default run of the process that unpickles it, or does nothing there if it was not open. A copy
    is the same run. Integrations use its ``queue``; training code does not need it.
    """

    __slots__ = ("__weakref__", "queue")

    def __init__(self, queue: RowQueue) -> None:
        self.queue = queue

    def __reduce__(self) -> tuple[type[Run], tuple[RowQueue]]:
        return Run, (self.queue,)

    def __repr__(self) -> str:
        return f"<trackside run {self.name!r} ({self.id}), rank {self.rank}{'' if self.is_open else ', closed'}>"

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name != "queue"]

    @property
    def id(self) -> str:
        """Identifier of the run, the same on all ranks."""
        return self.queue.session.identity.run

    @property
    def name(self) -> str:
        """Name that people see."""
        return self.queue.session.identity.name

    @property
    def rank(self) -> int:
        """Global rank; 0 if the run is not distributed."""
        return self.queue.session.identity.rank

    @property
    def is_open(self) -> bool:
        """True while pushes are sent: the run has not ended, and trackside is not disabled."""
        return self.queue.is_open

    def push(self, values: Mapping[str, Any] | None = None, /, *, step: int | None = None, **named: Any) -> None:
        """Record one step's numbers. The call returns at once and never raises; after the run's end it does nothing.

        A value is an int, a float, or anything with ``__float__``. A mapping among the values is flattened:
        ``{"eval": {"bleu": 31.2}}`` has the key ``eval.bleu``. A CUDA tensor of one element is copied without waiting,
        and recorded at a later push or the run's end; an array of JAX once it is computed; of a DTensor the local part.
        NaN and infinities are recorded. What is not a number is dropped and counted, with one warning per key.

        Args:
            values: Numbers by key, for keys that are not Python names: ``{"eval/bleu": 31.2}``.
            step: Step that the numbers belong to. Without it they join the current step, or begin the next one if one
                of the keys was already pushed in the current step.
            named: Numbers by key: ``loss=loss``.

        Example:
            >>> run.push({"eval/bleu": 31.2}, step=step, loss=loss)
        """
        # Between two steps of a training the CPU caches are cold, and each object touched is a cache miss. So the usual
        # push is in one piece here, and `RowQueue.push` has everything else.
        rows = self.queue.direct_rows
        if (
            rows is not None
            and values is None
            and (type(step) is int or step is None)
            and len(rows) < ROWS_WAITING
            and len(named) <= MAX_LIGHT_VALUES
        ):
            try:
                for key, value in named.items():
                    if type(value) is not float and type(value) is not int:
                        if (number := read_number(value)) is None:
                            break
                        named[key] = number
                else:
                    rows.append((monotonic_ns(), step, named))  # without a lock: a deque's append is atomic
                    return
            except Exception:  # noqa: BLE001, S110  of a value that is not a number; it is counted and named below
                pass
        self.queue.push(values, step, named)

    def log(self, values: Mapping[str, Any], step: int | None = None, commit: bool | None = None) -> None:
        """Push numbers as ``wandb.log`` counts steps: each call is a step, unless it says otherwise.

        Args:
            values: Numbers by key.
            step: Step that the numbers belong to. Without it they belong to the current step until that has ended.
            commit: End the step. Default: True without a *step*, else False.

        Example:
            >>> run.log({"loss": loss}, commit=False)
            >>> run.log({"accuracy": accuracy})
        """
        self.queue.log(values, step, ends=step is None if commit is None else bool(commit))

    def phase(self, name: str) -> Phase:
        """Time a phase of the training, as a context manager or a decorator of functions and coroutines.

        The time of a phase excludes the phases nested in it. ``eval`` and ``checkpoint`` are no part of the step
        duration. Only the thread that opened the run has phases: in other threads this does nothing.

        Args:
            name: ``data``, ``forward``, ``backward``, ``optimizer``, ``eval``, ``checkpoint`` or any other name.

        Raises:
            TypeError: The name is not a string, or the decorated function is a generator function.

        Example:
            >>> with run.phase("eval"):
            ...     evaluate(model)
        """
        return Phase(self.queue.mark, name)

    def data(self, loader: Iterable[T], describe: Callable[[Any], object] | None = None) -> TimedLoader[T]:
        """Wrap a data loader so that the wait for each batch is timed, as phase ``data``.

        The first batch of each iteration, with the start of workers, is counted apart. What the workers of a
        ``DataLoader`` do is measured too (``data/transform_seconds`` and more), and joins a push each second. The
        result has the length and the attributes of the loader.

        Which samples the batches of the last steps had is kept here, in 1 MiB at most. A daemon asks for those of a
        step in which the loss or the gradients go wrong, and its alert names them. No random number is drawn for that.

        Args:
            loader: A ``DataLoader``, a generator, or any other iterable.
            describe: Turns the index of a sample into a name, such as its path; called in a thread of its own for some
                samples that a daemon asks for, a second at most. Default: ``samples``, ``imgs`` or ``files`` of the
                data set.

        Example:
            >>> for batch in run.data(loader, describe=lambda index: paths[index]):
            ...     train(batch)
        """
        return TimedLoader(self.queue.mark, loader, self.queue.join_next_push, describe)

    def watch(
        self,
        model: Any,
        optimizer: Any = None,
        *,
        layers: str | Sequence[str] | None = None,
        distributions: bool = False,
        replicas: bool | None = None,
        replicas_except: str | Sequence[str] = (),
    ) -> Watcher:
        """Measure a PyTorch model and time its steps. The measured values join the next push.

        Values: ``grad_norm``, ``param_norm`` and ``update_ratio`` (norm of a step's weight change over the norm of the
        weights, from a sample of them). Of a sharded model the ranks send ``grad_norm_local_squared``, from which the
        daemon computes ``grad_norm``. Events: ``model``, with the parameters by module, and ``nonfinite_gradients``,
        with the first such layer. Phases: ``forward``, ``backward`` and ``optimizer``, on a GPU also by its own clock,
        and its memory.

        Ranks that must have the same parameters send a hash of a part of them at some steps, and the daemon reports
        ``ReplicasDiffer`` once the bits of one differ. Batch norm's statistics are not compared.

        Nothing waits for a device, and no collective is started. Norms are sampled every 2ⁿ steps and short steps are
        timed at random, so that all of it costs about 0.3 % of the time.

        Args:
            model: A ``torch.nn.Module``, also compiled, or wrapped by DDP or FSDP. It is not kept alive.
            optimizer: Optimizer whose steps are measured; by default the first one that steps with the model's
                parameters.
            layers: Names of layers, or patterns such as ``"*.attn"``, whose norms are pushed as ``grad_norm/LAYER``.
            distributions: Also measure weights and gradients as distributions, as `observe` does.
            replicas: None compares what DDP replicates, and DTensors between the ranks with the same part, as of HSDP
                and tensor parallelism. True compares all other parameters and buffers between all ranks, too; False
                nothing.
            replicas_except: Names, or patterns, of parameters and buffers that may differ between the ranks.

        Returns:
            A watcher. ``layers_for(steps)`` pushes the norms of all layers for a while, ``stop()`` ends the
            measurements.

        Raises:
            TypeError: The model is not a ``torch.nn.Module``.

        Example:
            >>> run.watch(model, optimizer, layers="*.attn")
        """
        if (found := _watching()) is None:
            return cast("Watcher", Unwatched())
        watcher_class, choice = found
        observed = choice() if distributions else None
        return watcher_class(
            self.queue, model, optimizer, layers, observed, replicas=replicas, excluded=replicas_except
        )

    def observe(
        self,
        model: Any,
        optimizer: Any = None,
        *,
        weights: bool = True,
        gradients: bool = True,
        activations: str | Sequence[str] = (),
        attention: str | Sequence[str] = (),
        every: int | str = "auto",
    ) -> Watcher:
        """Measure what happens inside a PyTorch model, as distributions by layer; watch the model, too.

        At some steps the values of each layer's weights and gradients, and of the outputs of chosen modules, are
        counted on their device in buckets that grow by powers of two. With them: sum, squares and the largest value;
        how far the optimizer moves each layer, and in how many directions; of attention the entropy and the largest
        logit of each head. Hooks exist in these steps only. Modules in compiled code cannot be observed.

        Args:
            model: A ``torch.nn.Module``. If it is watched already, that goes on.
            optimizer: As in `watch`.
            weights: Measure the weights and their changes.
            gradients: Measure the gradients.
            activations: Names of modules, or patterns such as ``"*.mlp"``, whose outputs are measured.
            attention: Names of modules, or patterns such as ``"*.attn"``, whose attention is measured.
            every: Steps between measurements, or ``auto`` for so many that all costs 0.3 % of the time at most, after
                some measurements in the first 256 steps.

        Returns:
            As `watch`.

        Raises:
            TypeError: The model is not a ``torch.nn.Module``.
            ValueError: *every* is neither ``auto`` nor a positive number.

        Example:
            >>> run.observe(model, activations="*.mlp", attention="*.attn")
        """
        if (found := _watching()) is None:
            return cast("Watcher", Unwatched())
        watcher_class, choice = found
        wanted = choice(weights=weights, gradients=gradients, activations=activations, attention=attention, every=every)
        watcher = watcher_class.of(self.queue, model)
        if watcher is None:
            return watcher_class(self.queue, model, optimizer, None, wanted)
        watcher.observe(model, wanted)
        return watcher

    @by_position_too
    def log_image(self, key: str, image: Any, *, step: int | None = None) -> None:
        """Record an image, for the page of the run and for reports. The call copies it and returns; it never raises.

        Args:
            key: Its name, such as ``samples``; what has one name is a series over steps, here and in the next three.
            image: An array or tensor of height x width, with one to four channels last or first: whole numbers are 0 to
                255, others 0 to 1. Or a Pillow image, a Matplotlib figure, or a PNG file as bytes, at most 1 MiB. A
                tensor on a device is waited for. Of a side above 1,024 pixels each second, third, … is taken.
            step: Its step; None for the current one.

        Example:
            >>> run.log_image("samples", images[0], step=step)
        """
        self.queue.append_media("image", key, step, lambda: read(image))

    @by_position_too
    def log_text(self, key: str, text: str, *, step: int | None = None) -> None:
        """Record a text of at most 65,536 characters, without what looks like a secret.

        Example:
            >>> run.log_text("completion", tokenizer.decode(tokens), step=step)
        """
        self.queue.append_media("text", key, step, lambda: text_bytes(str(text)))

    @by_position_too
    def log_table(self, key: str, rows: Any, *, step: int | None = None, columns: Sequence[str] | None = None) -> None:
        """Record a table of at most 1,000 rows, 64 columns and 256 KiB; further rows are left out and counted.

        Args:
            key: Its name.
            rows: Rows as sequences or as mappings by column, columns by name, or a data frame.
            step: Its step; None for the current one.
            columns: Names of the columns, if the rows are sequences.

        Example:
            >>> run.log_table("errors", [{"input": text, "loss": 3.2}], step=step)
        """
        self.queue.append_media("table", key, step, lambda: table_json(rows, columns))

    @by_position_too
    def log_histogram(self, key: str, values: Any, *, step: int | None = None) -> None:
        """Record the distribution of numbers, in 64 bins of equal width.

        Args:
            key: Its name.
            values: An array, a tensor, which is waited for, or numbers. Of more than a million each second, third, …
                counts.
            step: Its step; None for the current one.
        """
        self.queue.append_media("histogram", key, step, lambda: histogram_json(values))

    def event(self, kind: str, /, **fields: Any) -> None:
        """Record that something happened, at the current step.

        Args:
            kind: ``checkpoint``, ``resume`` or any other word.
            fields: Details. Values that JSON does not have become text. Of an event of more than 4,096 characters they
                are left out, with one warning.

        Example:
            >>> run.event("checkpoint", path=path, seconds=12.5)
        """
        self.queue.event(kind, fields)

    def summary(self, values: Mapping[str, Any] | None = None, /, **named: Any) -> None:
        """Set results of the run, which lists and comparisons show. The last value of each key wins; None removes it.

        Args:
            values: Results by key, for keys that are not Python names: numbers, texts, or anything that JSON has. A
                tensor without dimensions is read at once, which waits for its device.
            named: Results by key.

        Example:
            >>> run.summary(best_eval_loss=1.83)
        """
        self.queue.summary(values, named)

    def benchmark(
        self,
        model: Any,
        inputs: Any = None,
        *,
        variants: Sequence[str] = (),
        batch_sizes: Sequence[int] = (),
        lengths: Sequence[int] = (),
        seconds: float = 5.0,
    ) -> dict[str, Any]:
        """Measure latency, throughput and agreement of a model in this process, and add the results to the run.

        Copies of the model are measured. `trackside benchmark` measures in processes of their own, and so also shows
        the differences between processes, the time to load and the peak memory.

        Args:
            model: A ``torch.nn.Module``, or a function.
            inputs: Its arguments: a mapping by name, a tuple by place, anything else as the only one; or a function of
                a batch size, and a length, that returns them; *batch_sizes* and *lengths* need such a function.
            variants: ``fp32``, ``bf16``, ``int8-dynamic`` and others; the first is the reference.
            batch_sizes: Inputs in a call.
            lengths: Lengths of each input.
            seconds: Seconds for each combination of those.

        Returns:
            ``variants`` and ``comparisons``, each value with its 95 % interval, and ``sentences``. See
            docs/benchmark.md.

        Raises:
            TypeError: *variants* are given for a function.

        Example:
            >>> run.benchmark(model, inputs, variants=["fp32", "int8-dynamic"])["sentences"]
            ['int8-dynamic is 1.42 to 1.51 times faster than fp32']
        """
        from trackside.benchmark.in_process import benchmark
        from trackside.benchmark.messages import Load

        loads = [Load(batch, length) for batch in batch_sizes or (0,) for length in lengths or (0,)]
        return benchmark(self, model, inputs, loads, variants=variants, seconds=seconds)

    @by_position_too
    def alert(self, title: str, text: str = "", *, severity: Severity = "warning") -> None:
        """Raise an alert from the training code.

        Args:
            title: What is wrong. The same title is the same alert.
            text: Details, at most 4,096 characters.
            severity: ``info``, ``warning`` or ``critical``; another value counts as ``warning``, with one warning.

        Example:
            >>> run.alert("loss is not falling", f"{loss:.3f} for 1000 steps")
        """
        self.queue.alert(title, text, severity)

    def finish(self, status: Status = "finished") -> None:
        """End the run: send everything, and wait at most ``$TRACKSIDE_FLUSH_TIMEOUT`` seconds (default 2).

        What the daemon has not acknowledged by then goes to the spool. A second call does nothing.

        Args:
            status: ``finished``, ``stopped`` or ``failed``. Any other value counts as ``stopped``, with one warning.
        """
        self.queue.close(checked_status(status))

    def __enter__(self) -> Run:  # noqa: PYI034  Self came with Python 3.11
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.queue.exception(exception_fields(error, traceback))
        self.queue.close(*outcome(kind, error))
