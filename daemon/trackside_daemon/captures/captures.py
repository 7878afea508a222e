"""The captures of the daemon: who asks, who records, and how far each is."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter, OrderedDict
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from trackside.os_errors import os_error_text
from trackside_daemon.captures.store import NoRoomError
from trackside_daemon.model.capture import FINAL, PROFILE, TRIGGERS, Capture
from trackside_daemon.model.families import daemon
from trackside_daemon.model.metric import Batch, Sample

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from trackside_daemon.captures.kinds.kind import CaptureKind, Summarize
    from trackside_daemon.captures.store import CaptureStore
    from trackside_daemon.model.capture import AlertLink, ProfileOptions
    from trackside_daemon.model.finding import Finding

# The alerts that a capture can cause, and for how many seconds after it: the last steps and the written files disturb.
DISTURBED = frozenset(("SlowStep", "ThroughputRegression", "StragglerRank"))
DISTURBED_SECONDS = 5.0
STOP_SECONDS = 5.0  # the longest delay of the daemon's end
AT_ONCE = 4  # captures that run at the same time
AUTOMATIC = frozenset(("alert", "plan"))  # the triggers of captures that no person asked for
MAX_REMEMBERED = 64  # ended captures that are kept here until the history surely has them
NO_PROCESS_CONNECTED = "no process of the run is connected to this daemon"
ENDED = "only a run that trains can be recorded"
NOT_CONNECTED = "it is not connected to this daemon"
DAEMON_STOPPED = "the daemon stopped before it was complete"

log = logging.getLogger("trackside")


class CaptureError(Exception):
    """A capture that cannot begin; the message states why, in one line."""


class CaptureRequest(NamedTuple):
    """A request for a capture; the fields are those of `Capture`."""

    run: str
    attempt: int
    kind: str = "profile"
    trigger: str = "api"
    ranks: tuple[int, ...] = ()
    options: ProfileOptions = PROFILE
    cause: AlertLink | None = None
    step: int | None = None


class Captures:
    """All captures. Every change of one is published as a record.

    Args:
        store: Their files.
        kinds: What can be captured.
        ranks: Returns the ranks of a run, by its id, that are connected.
        publish: Receives batches of records.
        stored: Returns all captures that the history has.
        ends: Returns how the ranks of a run, by its id, have ended since a Unix time; with the key None how the run has.
        finished: Completes the summary of a capture that was summarised; returns it and others that change with it.
        owner: Returns the owner of a run, by its id.
    """

    def __init__(
        self,
        store: CaptureStore,
        kinds: Iterable[CaptureKind],
        ranks: Callable[[str], Iterable[int]],
        publish: Callable[[Batch], object],
        stored: Callable[[], Sequence[Capture]],
        *,
        ends: Callable[[str, float], Mapping[int | None, str]] = lambda *_: {},
        finished: Callable[[Capture], Iterable[Capture]] = lambda capture: [capture],
        owner: Callable[[str], str] = lambda _: "",
    ) -> None:
        self.store = store
        self._kinds = {kind.name: kind for kind in kinds}
        self._ranks = ranks
        self._publish = publish
        self._stored = stored
        self._ends = ends
        self._finished = finished
        self._owner = owner
        self._lock = threading.Lock()
        self._known: OrderedDict[str, Capture] = OrderedDict()
        self._threads: dict[str, threading.Thread] = {}
        self._automatic: dict[str, str] = {}  # the owner of each that no person asked for
        self._busy: dict[tuple[str, int], str] = {}  # the capture that records each rank, by run and rank
        self._disturbed_until: dict[str, float] = {}  # by run, in monotonic seconds
        self._cancelled = threading.Event()
        self._ended: Counter[tuple[str, str]] = Counter()

    def start(self) -> None:
        """End the captures that an earlier daemon left unfinished, and delete files that belong to no capture."""
        for capture in self._stored():
            if capture.state not in FINAL:
                self._end(capture, DAEMON_STOPPED)
        self.sweep()

    def sweep(self) -> None:
        """Delete the files of deleted runs."""
        # Those that begin now are read last, so that they cannot be missed.
        stored = [capture.id for capture in self._stored()]
        self.store.keep([*stored, *(capture.id for capture in self.known())])

    def stop(self, seconds: float = STOP_SECONDS) -> None:
        """Cancel what is recorded, and wait for it, but not for a long summary: the next daemon ends those captures."""
        self._cancelled.set()
        until = time.monotonic() + seconds
        for thread in list(self._threads.values()):
            thread.join(max(0.0, until - time.monotonic()))

    def begin(self, request: CaptureRequest) -> Capture:
        """Begin a capture, and return it at once.

        Raises:
            CaptureError: Too many run at once; of those that no person asked for, one of each owner, and never all.
        """
        owner = self._owner(request.run)
        capture = Capture(id=os.urandom(6).hex(), asked=time.time(), **request._asdict())
        with self._lock:
            if len(self._threads) >= AT_ONCE:
                raise CaptureError(f"{AT_ONCE} captures run already; try again when one has ended")
            if request.trigger in AUTOMATIC:
                others = self._automatic.values()
                if owner in others or len(others) >= AT_ONCE - 1:
                    raise CaptureError("another automatic capture runs already")
                self._automatic[capture.id] = owner
            thread = threading.Thread(target=self._run, args=(capture,), name="trackside-capture", daemon=True)
            self._threads[capture.id] = thread
        self._change(capture, stored=False)
        thread.start()
        return capture

    def disturbs(self, finding: Finding) -> bool:
        """Return whether a capture may have caused a finding: it records the run now, or did seconds ago."""
        if finding.alert not in DISTURBED:
            return False
        with self._lock:
            recorded = any(run == finding.run for run, _ in self._busy)
            return recorded or time.monotonic() < self._disturbed_until.get(finding.run, 0.0)

    def known(self) -> list[Capture]:
        """Return the captures that run or ended lately, as of now."""
        with self._lock:
            return list(self._known.values())

    def samples(self) -> Batch:
        """Return the counters."""
        states = [(trigger, state) for trigger in TRIGGERS for state in sorted(FINAL)]
        return Batch("captures", [Sample(daemon.CAPTURES, labels, self._ended[labels]) for labels in states])

    def _run(self, capture: Capture) -> None:
        try:
            known = tuple(self._ranks(capture.run))
            wanted = capture.ranks or known
            ranks, busy = self._reserve(capture, [rank for rank in wanted if rank in known])
            if busy and not ranks:  # an answer to who asks, and no capture of the run
                self._change(replace(capture, state="failed", reason=_reasons(busy), ended=time.time()), stored=False)
                return
            busy |= dict.fromkeys(set(wanted) - set(known), NOT_CONNECTED)
            self._change(capture)
            if not ranks:
                self._end(capture, _reasons(busy) if known else self._why_no_ranks(capture.run))
                return
            kind = self._kinds[capture.kind]
            with kind.prepared_summary(capture) as prepared:
                try:
                    directory = self.store.make(capture.id, kind)
                    capture = self._change(replace(capture, state="recording"))
                    capture, outcomes = self._record(capture, ranks, directory)
                finally:
                    self._release(capture)
                summarize = prepared if capture.kind == kind.name else self._kinds[capture.kind].summarize
                self._complete(replace(capture, reason=_reasons(outcomes | busy)), outcomes, directory, summarize)
        except NoRoomError as error:
            self._end(capture, str(error))
        except OSError as error:
            self._end(capture, f"{error.filename or capture.id}: {os_error_text(error)}")
        except Exception as error:  # whatever a recording contains: the daemon must go on
            log.exception("capture %s failed", capture.id)
            self._end(capture, f"{type(error).__name__}: {error}")
        finally:
            with self._lock:
                del self._threads[capture.id]
                self._automatic.pop(capture.id, None)
                self._free(capture)  # also if its summary could not begin

    def _why_no_ranks(self, run: str) -> str:
        ended = self._ends(run, 0.0).get(None)
        return f"it {ended}; {ENDED}" if ended else NO_PROCESS_CONNECTED

    def _record(self, capture: Capture, ranks: Sequence[int], directory: Path) -> tuple[Capture, dict[int, Path | str]]:
        """Record the ranks; where nothing profiles any of them, their stacks if those were asked for and they live."""
        outcomes = self._record_kind(capture, ranks, directory)
        ends = self._ends_of(capture, outcomes)
        outcomes |= ends
        left = [rank for rank in ranks if rank not in ends]
        if capture.kind == "profile" and capture.options.stacks and left and not _has_files(outcomes):
            instead = replace(capture, kind="stacks")
            stacks = self._record_kind(instead, left, directory)
            if _has_files(stacks):
                return instead, {**outcomes, **stacks}
        return capture, outcomes

    def _ends_of(self, capture: Capture, outcomes: Mapping[int, Path | str]) -> dict[int, Path | str]:
        """Return how the ranks that were not recorded have ended, as far as they have: a better reason than their silence."""
        failed = [rank for rank, outcome in outcomes.items() if not isinstance(outcome, Path)]
        ends = self._ends(capture.run, capture.asked) if failed and not self._cancelled.is_set() else {}
        return {rank: f"while it was recorded, it {ends[rank]}" for rank in failed if rank in ends}

    def _record_kind(self, capture: Capture, ranks: Sequence[int], directory: Path) -> dict[int, Path | str]:
        outcomes: dict[int, Path | str] = {}
        for number, recorder in enumerate(self._kinds[capture.kind].recorders):
            left = [rank for rank in ranks if not isinstance(outcomes.get(rank), Path)]
            refused = recorder.refuse(capture, left)
            # The first recorder's reason says what to do; a later one that refuses as well adds nothing.
            outcomes = {**refused, **outcomes}
            accepted = [rank for rank in left if rank not in refused]
            if accepted:
                own = directory / f"{capture.kind}{number}"
                own.mkdir(mode=0o700)
                outcomes |= recorder.record(capture, accepted, own, self._cancelled)
        return outcomes

    def _complete(
        self, capture: Capture, outcomes: Mapping[int, Path | str], directory: Path, summarize: Summarize
    ) -> None:
        """Move the recorded files to the capture's directory, and summarise them."""
        recorded = {rank: path for rank, path in outcomes.items() if isinstance(path, Path)}
        if not recorded:
            self._end(capture, capture.reason)
            return
        paths = {rank: path.rename(directory / path.name) for rank, path in recorded.items()}
        self._change(replace(capture, state="written"))
        summary = summarize(paths)
        # That of a profile replaces a trace by a compressed one with marks.
        paths |= {int(rank): paths[int(rank)].with_name(name) for rank, name in summary.get("files", {}).items()}
        files = self.store.pack(self._kinds[capture.kind], paths)
        capture = self._change(replace(capture, state="written", files=files))
        if summary.get("ranks"):
            ended = replace(capture, state="summarised", summary=summary, ended=time.time())
            ended, *others = self._finished(ended)
            self._change(ended)
            for other in others:
                self._replace(other)
        else:
            self._end(capture, _reasons({int(rank): why for rank, why in summary.get("failed", {}).items()}))
        self._make_room()

    def _end(self, capture: Capture, reason: str) -> None:
        """End a capture that has failed."""
        self._change(replace(capture, state="failed", reason=reason, ended=time.time()))
        if not capture.files:
            self.store.remove(capture.id)

    def _change(self, capture: Capture, *, stored: bool = True) -> Capture:
        with self._lock:
            self._known[capture.id] = capture
            ended = [id_ for id_, known in self._known.items() if known.state in FINAL]
            for id_ in ended[:-MAX_REMEMBERED]:
                del self._known[id_]
            if capture.state in FINAL and stored:
                self._ended[capture.trigger, capture.state] += 1
        if stored:
            self._publish(Batch("captures", records=[capture]))
        return capture

    def _make_room(self) -> None:
        """Delete files until the quotas are kept; their captures stay, with their summaries."""
        current = {**{capture.id: capture for capture in self._stored()}, **{one.id: one for one in self.known()}}
        for capture in self.store.surplus(list(current.values())):
            self.store.remove(capture.id)
            gone = replace(
                capture, files=(), reason="its files made room for others: capture.quota_mib, capture.quota_run_mib"
            )
            self._replace(gone)

    def _replace(self, capture: Capture) -> None:
        """Publish a capture that had ended before, with something changed."""
        with self._lock:
            self._known[capture.id] = capture
        self._publish(Batch("captures", records=[capture]))

    def _reserve(self, capture: Capture, ranks: Sequence[int]) -> tuple[list[int], dict[int, Path | str]]:
        """Return the ranks that are this capture's until `_release`, and why the others are not."""
        with self._lock:
            others = {rank: id_ for rank in ranks if (id_ := self._busy.get((capture.run, rank)))}
            free = [rank for rank in ranks if rank not in others]
            self._busy.update({(capture.run, rank): capture.id for rank in free})
        return free, {rank: f"capture {id_} records it" for rank, id_ in others.items()}

    def _release(self, capture: Capture) -> None:
        """Make its ranks free for others, before it ends for those who wait for it."""
        now = time.monotonic()
        with self._lock:
            self._disturbed_until = {run: until for run, until in self._disturbed_until.items() if until > now}
            self._disturbed_until[capture.run] = now + DISTURBED_SECONDS
            self._free(capture)

    def _free(self, capture: Capture) -> None:
        self._busy = {key: id_ for key, id_ in self._busy.items() if id_ != capture.id}


def _has_files(outcomes: Mapping[int, object]) -> bool:
    return any(isinstance(outcome, Path) for outcome in outcomes.values())


def _reasons(outcomes: Mapping[int, object]) -> str:
    """Return the reasons among outcomes by rank, in one line."""
    ranks: dict[str, list[int]] = {}
    for rank, outcome in sorted(outcomes.items()):
        if isinstance(outcome, str):
            ranks.setdefault(outcome, []).append(rank)
    named = (f"rank{'s' * (len(of) > 1)} {', '.join(map(str, of))}: {reason}" for reason, of in ranks.items())
    return "; ".join(named)
