"""Find the steps of a training and what belongs to them, by calls that every PyTorch training makes.

- A *step* is a step of the first optimizer that steps. Others, as of a GAN, add their losses to it: ``loss/2``, ``loss/3``, …
- The *next training* begins with an optimizer of another model once the first one has stopped: it is a run of its own.
- The *loss* is the scalar whose backward pass runs before a step: as `GradScaler` gets it, and with the division undone that
  accumulates gradients. Of several batches that a step accumulates, the last one counts; several losses of one batch, such
  as those of a discriminator, are summed.
- *Samples* and *tokens* are those of the batch that a backward pass follows: an evaluation's count for nothing.
- An *evaluation* is the time in which gradients are off, or batches come of a dataset other than the training's, or many of it
  without a backward pass.

In: calls of hooks. Out: `AutoRun`. It imports nothing of PyTorch, whose objects it gets.

Between the operations of a training the CPU caches hold nothing of this, so each function that is called costs a step more than
its instructions do. That is why the usual case of a hook is in one function, before the general one.
"""

from __future__ import annotations

import weakref
from collections import deque
from threading import get_ident
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from trackside.auto.hooks import LibraryHook, auto_run
from trackside.auto.succession import Succession
from trackside.drawn_batches import EARLY, BatchFollower
from trackside.limits import ROWS_WAITING
from trackside.numbers import read_number
from trackside.pytorch.batches import counts
from trackside.pytorch.overhead_budget import NEVER
from trackside.totals.loader_workers import times_of
from trackside.totals.phases import WAITED, WAITS, PhaseMark

if TYPE_CHECKING:
    from collections.abc import Callable

    from trackside.auto.models import Models
    from trackside.auto.run import AutoRun
    from trackside.auto.stages import AutoStages
    from trackside.row_queue import RowQueue
    from trackside.rows import Row
    from trackside.totals.loader_workers import WorkerTimes

OTHERS = 10  # steps of another optimizer after which it is the one whose steps count: the first one has stopped
AHEAD = 2  # number of batches that a training can have fetched, Accelerate's loader one ahead
CLOSE = 1e-3  # relative difference at which a divisor is a number of batches

_EVALUATES = PhaseMark(enters=True, phase="eval", automatic=True)
_EVALUATED = PhaseMark(enters=False, phase="eval", automatic=True)


class TrainingWatch:
    """The training of this process, or of a thread. One thread trains; others may call this at the cost of wrong values.

    Args:
        is_compiling: Returns whether PyTorch compiles the caller, so that nothing may be done.
        records_gradients: Returns whether gradients are recorded; evaluations turn that off.
        models: The modules of this process.

    Attributes:
        models: The modules whose stages can be timed.
        stages: Times the stages of the steps; None before the first step.
    """

    # Each step finds all of these in a few lines of the CPU caches, which a dictionary of them would not fit.
    __slots__ = (
        *("_asked", "_asks", "_batch_of_loss", "_batches", "_divisor", "_early", "_evaluated", "_fetched"),
        *("_first_loss", "_follower"),
        *("_guess", "_is_careful", "_is_compiling", "_is_evaluating", "_is_paused", "_is_waiting", "_iterator"),
        *("_loss", "_losses", "_of_workers", "_optimizer", "_others", "_others_stepped", "_queue"),
        *("_records_gradients", "_rows", "_run", "_samples", "_scaled", "_stepped", "_steps", "_steps_due"),
        *("_succession", "_thread", "_times", "_tokens", "_trains", "_usual_divisor"),
        *("_usual_run", "_workers", "_workers_due", "models", "stages"),
    )

    def __init__(self, is_compiling: Callable[[], bool], records_gradients: Callable[[], bool], models: Models) -> None:
        self.models = models
        self.stages: AutoStages | None = None
        self._times = LibraryHook("torch: stages of a step", self._time)
        self._stepped = LibraryHook("torch: optim.Optimizer", self.stepped)
        self._is_paused = False
        self._is_compiling = is_compiling
        self._records_gradients = records_gradients
        self._optimizer: Callable[[], Any] = _nothing
        self._others: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._others_stepped = 0
        self._succession = Succession(self.models, self._settle)
        self._is_waiting = False
        self._steps = 0
        self._usual_run: AutoRun | None = None
        """The run, while the next step of `_optimizer` may be as all others: see `after_step`."""
        self._steps_due = NEVER
        self._losses = 0
        self._first_loss: Any = None
        self._loss: Any = None
        self._divisor: float | None = None
        self._usual_divisor: float | None = None
        self._scaled: tuple[weakref.ref[Any], Any, float | None] | None = None
        self._batches = self._batch_of_loss = 0
        self._fetched: deque[tuple[int, int]] = deque(maxlen=AHEAD)
        self._iterator: Callable[[], Any] = _nothing
        self._samples = self._tokens = 0
        self._workers: WorkerTimes | None = None
        self._workers_due = NEVER
        self._of_workers: dict[str, float] = {}
        self._is_evaluating = False
        self._trains: set[int] = set()
        """Datasets whose batches a backward pass has followed, by their identities."""
        self._asks: dict[int, int] = {}
        """Batches of other datasets, and further ones of these, that the training has asked for since the last backward pass."""
        self._asked = 0
        self._evaluated: set[int] = set()
        self._guess = 0
        """The dataset whose batches are taken for an evaluation's now; 0 for none."""
        self._is_careful = False
        self._run = auto_run
        self._queue: RowQueue | None = None
        self._rows: deque[Row] | None = None
        self._early: deque[Row] = deque(maxlen=EARLY)
        """Rows of batches that came before the step that opens the run."""
        self._follower = BatchFollower(None)
        self._thread = 0

    @property
    def is_paused(self) -> bool:
        """A framework's callback pushes what this would find."""
        return self._is_paused

    def pause(self, *, on: bool) -> None:
        """Leave the training to a framework's callback, or no longer."""
        self._is_paused, self._usual_run = on, None
        if self.stages is not None:
            self.stages.stop()

    def scaled(self, loss: Any, product: Any) -> None:
        """Remember the loss from which a gradient scaler has made a product, whose backward pass follows."""
        if not self._is_paused and product is not loss and hasattr(loss, "numel") and loss.numel() == 1:
            self._scaled = weakref.ref(product), _value(loss), self._find_divisor(loss)

    def backward(self, tensors: Any) -> None:
        """Note the loss of a backward pass, before it runs; the first argument of `torch.autograd.backward`."""
        if self._is_paused:
            return
        self._asked = 0
        if self._asks:
            self._trains_on()
        stages = self.stages
        if stages is not None and stages.is_timing:
            stages.await_backward(tensors)
        if (
            not self._losses
            and self._scaled is None
            and self._usual_divisor is None
            and (type(tensors).__name__ == "Tensor" and tensors.is_cpu and not tensors.dim())
        ):
            if self._batch_of_loss != self._batches:
                self._batch_of_loss = self._batches
                self._count_batch()
            self._losses, self._divisor = 1, None
            self._first_loss = self._loss = tensors.tolist()
            return
        self._usual_run = None
        total, divided = None, None
        for loss in (tensors,) if hasattr(tensors, "numel") else tuple(tensors):
            if loss.numel() != 1:
                continue
            scaled = self._scaled
            if scaled is not None and scaled[0]() is loss:
                _, value, divided = scaled
                self._scaled = None
            else:
                value, divided = _value(loss), self._find_divisor(loss)
            total = value if total is None or value is None else total + value
        if total is not None:
            self._add_loss(total, divided)

    def after_step(self, optimizer: Any, args: Any, named: Any) -> None:
        """Note the step of an optimizer: the usual one in one piece, any other by `stepped`."""
        try:
            run = self._usual_run
            if (
                run is not None
                and (direct := run.direct) is not None
                and self._losses == 1
                and self._steps + 1 < self._steps_due
                and optimizer is self._optimizer()
                and len(args) == 1
                and not named
            ):
                rows, keys, queue, default = direct
                values = {"loss": self._loss, "learning_rate": optimizer.param_groups[0].get("lr")}
                if self._samples:
                    values["samples"] = self._samples
                if (
                    type(values["learning_rate"]) is float
                    and tuple(values) == keys
                    and queue is default.queue
                    and queue.is_open
                    and not queue.is_led
                    and len(rows) < ROWS_WAITING
                ):
                    rows.append((monotonic_ns(), run.step, values))
                    self._losses = self._samples = 0
                    self._steps += 1
                    run.step += 1
                    return
            if self._stepped.is_on:
                self._stepped.work(optimizer, args, named)
        except Exception as error:  # noqa: BLE001  training must go on
            self._usual_run = None
            self._stepped.fail(error)

    def stepped(self, optimizer: Any, args: Any = (), named: Any = None) -> None:
        """Note the step of an optimizer, after it; arguments of a hook of `torch.optim.Optimizer`."""
        self._usual_run = None
        if self._is_paused or self._is_compiling():
            return
        stages = self.stages
        if stages is not None and stages.is_timing:
            stages.optimizer_stepped()
        self._steps += 1
        losses, self._losses = self._losses, 0
        if (self._optimizer() is not optimizer or self._others_stepped) and not self._begins(optimizer, losses):
            return
        values: dict[str, Any] = {}
        if losses:  # a closure computes the loss again and again, first at the weights before the step
            has_closure = len(args) > 1 or (named and "closure" in named)
            loss = self._loss if self._divisor is None else self._whole_loss(losses, self._divisor)
            values["loss"] = self._first_loss if has_closure else loss
        if (rate := optimizer.param_groups[0].get("lr")) is not None:
            values["learning_rate"] = rate
        if self._samples:
            values["samples"], self._samples = self._samples, 0
        if self._tokens or self._of_workers:
            self._add_seldom(values)
        if self._is_evaluating:
            self._end_evaluation(trains=True)
        queue = self._wait(optimizer, values) if self._is_waiting else self._run().found(values)
        self._rows, self._thread = (None, 0) if queue is None else (queue.session.rows, queue.thread)
        if queue is not self._queue or self._steps >= self._steps_due:
            self._times(queue, optimizer)
        self._usual_run = None if self._is_waiting or self._others_stepped else self._run()

    def made(self, optimizer: Any, *_: Any, **__: Any) -> None:
        """Note a new optimizer."""
        self._succession.made(optimizer, self._steps)

    def _add_seldom(self, values: dict[str, Any]) -> None:
        """Add what few steps have."""
        if self._tokens:
            values["tokens"], self._tokens = self._tokens, 0
        values.update(self._of_workers)
        self._of_workers = {}

    def _begins(self, optimizer: Any, losses: int) -> bool:
        """Return whether a step counts that follows those of another optimizer: as the first one's, or the next training's."""
        run, succession = self._run(), self._succession
        if self._optimizer() is optimizer:
            self._others_stepped = 0
            self._count_as_other()
            return True
        if run.queue is not None and not run.is_new:
            if losses and run.has_steps and optimizer not in self._others and succession.may_follow(optimizer):
                if succession.waiting and succession.other is not optimizer:
                    if succession.accompanies(optimizer):
                        return False
                    self._settle(is_next=succession.is_third(optimizer))
                self._is_waiting = succession.may_follow(optimizer)
                return self._is_waiting
            if self._optimizer() is not None:
                if losses:
                    if succession.waiting and succession.other is not optimizer:
                        self._settle(is_next=False)  # this one is of the present training, which has not stopped
                    self._other_stepped(optimizer, losses)
                return False
        steps = succession.taken() if succession.other is optimizer else []
        self._begin(optimizer, self._steps)
        run.found_before(steps)
        return True

    def _begin(self, optimizer: Any, since: int) -> None:
        self._optimizer = _nothing if optimizer is None else weakref.ref(optimizer)
        self._usual_divisor = self._queue = None
        self._others_stepped = 0
        self._others.clear()
        self._succession.taken()
        self._succession.begins(optimizer, since)

    def _wait(self, optimizer: Any, values: dict[str, Any]) -> RowQueue | None:
        """Let a step wait until it is known whose it is, and return the run's queue."""
        self._is_waiting = False
        self._others_stepped += 1
        missing = self._succession.waits(optimizer, values, self._steps)
        if missing <= 0 or self._optimizer() is None:
            self._settle(is_next=True)
        return self._run().queue

    def _settle(self, *, is_next: bool | None = None) -> None:
        """Decide whether the steps that wait are the next training; None for by when their optimizer was made."""
        succession = self._succession
        if succession.is_later if is_next is None else is_next:
            other, run = succession.other, self._run()
            if succession.waiting and run.begin_next():
                steps = succession.taken()
                self._begin(other, succession.waits_since)
                run.found_before(steps)
                return
        self._count_as_other()

    def _count_as_other(self) -> None:
        """Count the steps that wait as those of an optimizer that takes turns with the first."""
        other, steps = self._succession.other, self._succession.taken()
        number = len(self._others) + 2
        if other is not None and steps:
            self._others[other] = number
            if self.stages is not None:
                self.stages.add_optimizer(other)
        for _, values in steps:
            self._run().found_in_step({f"loss/{number}": values["loss"]})
            self._samples += values.get("samples", 0)
            self._tokens += values.get("tokens", 0)

    def _time(self, queue: RowQueue | None, optimizer: Any) -> None:
        """Time the stages of a training's steps from now on, unless the training watches a model."""
        if queue is self._queue and self.stages is not None:
            self._steps_due = self.stages.finish_step(self._steps, optimizer)
            return
        self._queue, self._steps_due = queue, NEVER
        while self._early and self._rows is not None:
            self._rows.append(self._early.popleft())
        if self.stages is not None:
            self.stages.stop()
            self.stages = None
        if queue is not None and queue.thread == get_ident() and not any(timer.is_alive for timer in queue.timers):
            from trackside.auto.stages import AutoStages  # of which `import torch` by itself needs nothing

            self.stages = AutoStages(queue, self.models, optimizer)
            queue.register(self.stages)
            self._steps_due = 0

    def meets(self, *, begins: bool) -> None:
        """Note that a wait for a collective begins or ends."""
        if self.stages is not None and not self._is_compiling():
            if begins:
                self.stages.wait_begins()
            else:
                self.stages.wait_ends()

    def begin_anew(self) -> None:
        """Begin anew, as in a forked child: nothing sends the rows of its parent's run there."""
        self._rows, self._usual_run, self._losses, self._is_evaluating = None, None, 0, False
        self._early.clear()
        self.stages = self._queue = None
        self._succession.taken()

    def scaler_begins(self) -> int:
        """Return the number of steps before that of a gradient scaler, for `scaler_stepped`."""
        return self._steps

    def scaler_stepped(self, before: int, optimizer: Any) -> None:
        """Note the step of a gradient scaler, which skips the optimizer's if gradients overflow: a step all the same."""
        if self._steps == before:
            self.stepped(optimizer)

    def waits(self, iterator: Any) -> int:
        """Note that the training waits for a batch of a data loader, by its iterator.

        Returns:
            Since when, in monotonic nanoseconds; 0 for a wait that does not count.
        """
        if self._is_paused:
            return 0
        rows = self._rows if get_ident() == self._thread else None
        if not self._records_gradients():
            if rows is not None:
                self._begin_evaluation()
            return 0
        self._asked += 1
        dataset = id(iterator._dataset)  # noqa: SLF001  public only of the loader, which an iterator does not name
        if (dataset not in self._trains or self._asked > AHEAD) and self._evaluates(dataset):
            self._begin_evaluation()
        elif self._is_evaluating and rows is not None:
            self._end_evaluation()
        since = monotonic_ns()
        if rows is not None and len(rows) < ROWS_WAITING:
            rows.append((since, WAITS, None))
        return since

    def waited(self, since: int, iterator: Any, batch: Any) -> None:
        """Note that a batch has come.

        Args:
            since: Result of `waits`.
            iterator: The iterator of the data loader, which gets an attribute.
            batch: The batch.
        """
        if not since:
            if self._is_paused and self._records_gradients():
                self._join_workers(iterator)
            return
        self._batches += 1
        first = iterator._num_yielded == 1  # noqa: SLF001  public only by the iterator's length, which few have
        rows = self._rows
        if first or iterator is not self._iterator():
            if first:
                iterator.trackside_fetched = deque(maxlen=AHEAD), BatchFollower(iterator)
            self._fetched, self._follower = getattr(iterator, "trackside_fetched", (self._fetched, self._follower))
            self._iterator = weakref.ref(iterator)
            self._workers = times_of(iterator)
            self._workers_due = NEVER if self._workers is None else self._workers.due
        # The row of `waits` may have been the last one that the limit permits: then its end fits too.
        if rows is None or (len(rows) <= ROWS_WAITING and get_ident() == self._thread):
            batches = () if self._is_evaluating else self._follower.arrived(batch)
            now = monotonic_ns()
            row = now, PhaseMark(False, "data", now - since, first, True, False, 0, 0, batches), None
            (self._early if rows is None else rows).append(row)
        if since >= self._workers_due and self._workers is not None:
            self._of_workers, self._usual_run = self._workers.read(iterator), None
            self._workers_due = self._workers.due
        self._fetched.append(counts(batch))
        stages = self.stages
        if stages is not None and stages.is_timing and not self._is_evaluating:
            stages.batch_arrived()

    def _join_workers(self, iterator: Any) -> None:
        """Add the values of a loader's workers to the next push of a framework's callback."""
        workers = times_of(iterator)
        if workers is not None and monotonic_ns() >= workers.due and (queue := self._run().queue) is not None:
            queue.join_next_push(workers.read(iterator))

    def ran_out(self) -> None:
        """Note that a wait has ended without a batch."""
        if self._is_paused:
            return
        self._batches += 1
        self._asked = 0
        self._asks.clear()
        if self._is_evaluating:
            self._end_evaluation()
        elif (rows := self._rows) is not None and get_ident() == self._thread:
            rows.append((monotonic_ns(), WAITED._replace(batches=self._follower.ended()), None))

    def _evaluates(self, dataset: int) -> bool:
        """Return whether a batch seems to be one that no backward pass will follow."""
        asks = self._asks[dataset] = self._asks.get(dataset, 0) + 1
        if asks <= AHEAD and (not self._trains or self._is_careful or dataset in self._trains):
            return False
        self._guess = dataset
        return True

    def _trains_on(self) -> None:
        """Remember the datasets that a backward pass follows, after few batches of each."""
        if self._is_evaluating:
            self._end_evaluation(trains=True)
        self._trains.update(dataset for dataset, asks in self._asks.items() if asks <= AHEAD)
        self._trains -= self._evaluated
        self._asks.clear()

    def _begin_evaluation(self) -> None:
        if not self._is_evaluating and self._rows is not None:
            self._is_evaluating, self._usual_run = True, None
            self._rows.append((monotonic_ns(), _EVALUATES, None))

    def _end_evaluation(self, *, trains: bool = False) -> None:
        """End an evaluation; it was none if the training *trains* on its batches."""
        self._is_evaluating = False
        guess, self._guess = self._guess, 0
        if guess and trains:
            self._is_careful = True
            self._trains.add(guess)
            self._evaluated.discard(guess)
        elif guess and guess not in self._trains:
            self._evaluated.add(guess)
        if self._rows is not None:
            self._rows.append((monotonic_ns(), _EVALUATED, None))

    def _add_loss(self, value: Any, divided: float | None) -> None:
        losses = self._losses = self._losses + 1
        is_new_batch = self._batch_of_loss != self._batches
        if is_new_batch:
            self._count_batch()
        if losses == 1:
            self._first_loss = self._loss = value
        elif not is_new_batch and self._batches:
            self._loss = self._loss + value
        else:
            self._loss = value
        self._batch_of_loss, self._divisor = self._batches, divided

    def _count_batch(self) -> None:
        if self._fetched:
            count, length = self._fetched.popleft()
            self._samples += count
            if length:
                self._tokens, self._usual_run = self._tokens + length, None

    def _find_divisor(self, loss: Any) -> float | None:
        # The first loss of a step can be its only one, as nearly always.
        return divisor(loss) if self._losses or self._usual_divisor is not None else None

    def _whole_loss(self, losses: int, divisor: float) -> Any:
        """Return the loss of a step without the division by the number of batches that it accumulates."""
        if losses > 1 and abs(divisor - losses) < CLOSE * losses:
            self._usual_divisor = divisor
        # The last step of an epoch may accumulate fewer batches, and divide all the same.
        is_usual = self._usual_divisor is not None and abs(divisor - self._usual_divisor) < CLOSE * losses
        return self._loss * divisor if is_usual else self._loss

    def _other_stepped(self, optimizer: Any, losses: int) -> None:
        if optimizer not in self._others and self.stages is not None:
            self.stages.add_optimizer(optimizer)
        number = self._others.setdefault(optimizer, len(self._others) + 2)
        self._others_stepped += 1
        if self._others_stepped >= OTHERS:
            self._optimizer = _nothing
            self._samples = self._tokens = 0  # of the steps that count for none
        loss = self._loss if self._divisor is None else self._whole_loss(losses, self._divisor)
        self._run().found_in_step({f"loss/{number}": loss})


def _nothing() -> None:
    """Stand for a weak reference whose object has gone."""


def divisor(loss: Any) -> float | None:
    """Return the number by which the last operation of a loss has divided, or by whose inverse it has multiplied.

    None for another operation, and for a number that would have to be read from a device.
    """
    node = loss.grad_fn
    name = "" if node is None else node.name()
    if name not in {"DivBackward0", "MulBackward0"}:
        return None
    other = getattr(node, "_saved_other", None)  # PyTorch has no public way to the operands
    if other is None or not other.is_cpu or other.numel() != 1:
        return None
    number = float(other)
    if name == "MulBackward0":
        number = 1 / number if number else 0.0
    return number or None


def _value(loss: Any) -> Any:
    """Return a loss as a number; as a tensor without its graph if it is on a device; None while that captures a graph."""
    if (number := read_number(loss)) is not None:
        return number
    import torch

    return None if torch.cuda.is_current_stream_capturing() else loss.detach()
