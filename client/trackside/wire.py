"""What a training process and the daemon say to each other: the format's only definition, imported by both.

It is longer than other files since all of the format stands in one place.

A message is three ZeroMQ frames, DEALER to ROUTER::

    b"trackside/1"                          protocol and schema version
    msgpack ["batch", b"<session>", 17]     the `Envelope`
    msgpack {"clock": …, "blocks": …}       the body that the envelope's kind names; empty for the kinds without one

The envelope is apart so that a body that cannot be read can still be refused by its number. Bodies are maps without
the fields that have their default value, and a reader ignores fields that it does not know: a new field with a default
changes no byte of an old message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from trackside.packing import unpack

if TYPE_CHECKING:
    from array import array

VERSION = 1
PROTOCOL = b"trackside/%d" % VERSION

#: Upper bounds of the step duration buckets, in seconds. They never change: a histogram's past could not be read.
DURATION_BUCKETS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0),
)

Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Amount = Annotated[float, msgspec.Meta(ge=0.0)]

MESSAGE_BYTES = 4 * 1024 * 1024
"""The largest frame a daemon takes; a client's batches are far smaller."""


class WireError(ValueError):
    """A message that is not one of ours.

    Attributes:
        reason: ``frames``, ``version``, ``size``, ``envelope``, ``body`` or ``block``: the label that refusals are
            counted by, so the set is small and does not change.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason


REASONS = ("frames", "version", "size", "envelope", "body", "block")


class Envelope(msgspec.Struct, array_like=True, frozen=True):
    """Who speaks, and which of its messages this is.

    Attributes:
        kind: From the client ``hello``, ``batch``, ``skip``, ``beat``, ``bye``, ``stacks``, ``pong``; from the daemon
            ``welcome``, ``hello?``, ``ack``, ``nack``, ``refused``, and the commands ``stacks?``, ``ping`` and
            ``layers?``, which is not answered: a client that does not know it passes over it.
        session: 16 random bytes that name one `Run` of one process.
        number: Sequence number of a batch, from 1; of a skip and of an ack the last one it covers; of a command and its
            answer what tells them from others; of ``layers?`` for how many steps; else 0.
    """

    kind: str
    session: bytes
    number: Count = 0


class Clock(msgspec.Struct, frozen=True, omit_defaults=True):
    """One moment by two clocks of the sender, in nanoseconds: the wall's, since 1970, and the monotonic one."""

    wall: int
    monotonic: int

    def wall_seconds(self, monotonic: int) -> float:
        """The wall time, in seconds, at a *monotonic* time in nanoseconds of the same sender."""
        return (self.wall + monotonic - self.monotonic) / 1e9


class Identity(msgspec.Struct, frozen=True, omit_defaults=True):
    """Which run this is and which process of it.

    Attributes:
        run: The run's id, the same for all ranks on all nodes and, with ``attempt``, unique.
        name: What people see.
        attempt: 0, or how often the launcher has restarted the run.
        rank: Global rank; 0 when not distributed.
        world: Number of ranks; ``local_world`` of those are on this machine.
        pid: As this process sees itself; ``start`` is its start time in clock ticks since boot (/proc/self/stat,
            field 22; 0 where there is no /proc).
        boot: The machine's boot id (/proc/sys/kernel/random/boot_id).
        gpus: Used, or given: UUIDs, also cut or of MIG devices, indexes as CUDA's or, by the bus, ``PCI-0``, or ``none``.
    """

    run: str
    name: str
    attempt: int = 0
    rank: int = 0
    local_rank: int = 0
    world: int = 1
    local_world: int = 1
    host: str = ""
    pid: int = 0
    start: int = 0
    boot: str = ""
    gpus: tuple[str, ...] = ()
    job_id: str = ""
    git_commit: str = ""
    framework: str = ""


class Histogram(msgspec.Struct, omit_defaults=True):
    """Observations per bucket of `DURATION_BUCKETS`, the last count above all bounds, and their sum in seconds."""

    counts: Annotated[
        list[Count], msgspec.Meta(min_length=len(DURATION_BUCKETS) + 1, max_length=len(DURATION_BUCKETS) + 1)
    ]
    sum: Amount


class DataWaits(Histogram, omit_defaults=True):
    """Waits for batches of data; *first* are those for the first batch of each epoch, which are none of the others."""

    first: Histogram | None = None


class Memory(msgspec.Struct, omit_defaults=True):
    """A GPU's memory as PyTorch's allocator in this process has it (torch.cuda.memory_stats), in bytes.

    Attributes:
        allocated: In use by tensors; ``reserved`` is what the allocator holds.
        peak: The most that was allocated since the session began, as it was seen at steps.
        out_of_memory: How often an allocation has failed.
    """

    allocated: Count = 0
    reserved: Count = 0
    peak: Count = 0
    out_of_memory: Count = 0


class Device(msgspec.Struct, omit_defaults=True):
    """What the GPUs of a rank did.

    Attributes:
        phases: Seconds by phase that they worked on it, by CUDA events.
        memory: By the GPU's UUID; a state and no total.
        flops: Floating-point operations of the model, where the run knows how many a step or a token takes.
        peak_flops: What they could do at most, in FLOP/s, if the user has said.
    """

    phases: dict[str, Amount] = {}
    memory: dict[str, Memory] = {}
    flops: Amount | None = None
    peak_flops: Amount | None = None


class CheckpointTotals(msgspec.Struct, omit_defaults=True):
    """Checkpoints.

    Attributes:
        count: How many were written.
        duration: How long each took of which it is known.
        bytes: The last one's size, if it was told.
        at: When the last one was written, in Unix seconds.
    """

    count: Count = 0
    duration: Histogram | None = None
    bytes: Count | None = None
    at: Amount | None = None


class Totals(msgspec.Struct, omit_defaults=True):
    """A session's cumulative totals: sent whole with every batch, so that a daemon restart is a gap and not a reset.

    Attributes:
        pushes: Calls of `push`.
        dropped: Values and pushes that could not be kept: not a number, or no room while the daemon was away.
        resent: Batches sent more than once.
        spooled: Messages written to disk, since they had waited for long.
        overhead: CPU seconds of the sender thread.
        steps: Increase of ``step`` over the attempt's highest.
        samples: Sum of the key ``samples``; None until it is pushed. ``tokens`` likewise.
        nonfinite: How often a key was NaN or infinite; keys that never were are absent.
        step_duration: Host time from the first push of a step to the first push of the next, over their difference,
            without evaluation and checkpoints.
        phases: Seconds by phase, each without those nested in it; empty until a phase was entered, and from then on
            they sum to the time since the session began.
        data_wait: How long the training waited for each batch of data, the first one of each epoch apart.
        paused: Seconds of evaluation and checkpoints, and of what was nested in them, up to the first push of the step.
        device: What its GPUs did; None where nothing is known of it.
        saves: Its checkpoints; None before the first.

    It has 15 fields, which is all that a map of the old bytes has room for: what more there is goes into one of them.
    """

    pushes: Count = 0
    dropped: Count = 0
    resent: Count = 0
    spooled: Count = 0
    overhead: Amount = 0.0
    steps: Count = 0
    samples: Amount | None = None
    tokens: Amount | None = None
    nonfinite: dict[str, Count] = {}
    step_duration: Histogram | None = None
    phases: dict[str, Amount] = {}
    data_wait: DataWaits | None = None
    paused: Amount = 0.0
    device: Device | None = None
    saves: CheckpointTotals | None = None


class ProcessInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the process runs, as it was when its first session began; what could not be found out is absent.

    Attributes:
        command: The interpreter and all its arguments (sys.orig_argv), cut after 16 KiB.
        directory: The working directory.
        python: The interpreter's version.
        platform: ``Linux 6.1.0 x86_64``: the kernel, its release, the machine.
        packages: Versions by name of the packages that were imported by then, sorted by name, at most 200.
        git_dirty: A tracked file of the repository around the script differs from what was last added; None: unknown.
        k8s_pod: Where it runs, by the name that Kubernetes has for it; so ``k8s_namespace`` and ``k8s_container``.
        launch: The ``trackside run`` that has started it (``$TRACKSIDE_LAUNCH``).
    """

    command: tuple[str, ...] = ()
    directory: str = ""
    python: str = ""
    platform: str = ""
    packages: dict[str, str] = {}
    git_dirty: bool | None = None
    k8s_pod: str = ""
    k8s_namespace: str = ""
    k8s_container: str = ""
    launch: str = ""


class ResourceUsage(msgspec.Struct, frozen=True, omit_defaults=True):
    """What only the process itself sees for sure of what it can run out of; None where there is none or it cannot tell.

    Attributes:
        shm_size: Bytes of /dev/shm (statvfs(3)); ``shm_used`` of those are used.
        shm_peak: The most that was used since this was told last.
        open_fds: Its open file descriptors; ``max_fds`` is the soft limit of those (RLIMIT_NOFILE), None for no limit.
    """

    shm_size: Count | None = None
    shm_used: Count | None = None
    shm_peak: Count | None = None
    open_fds: Count | None = None
    max_fds: Count | None = None


class Hello(msgspec.Struct, omit_defaults=True):
    """Opens a session, or repeats all that a daemon must know of it after a restart.

    Attributes:
        clock: When this was said.
        started: When the session began, in nanoseconds since 1970.
        acked: The highest sequence number that a daemon has acknowledged to this client.
        config: The run's configuration, as a JSON text; empty when none was given.
        last: The last value of each key.
        step: The last step; None before the first push.
        progress_age: Nanoseconds since the last push; None before the first.
        about: What the process runs; None from a client that does not tell.
        phase: The evaluation or checkpoint that the training is in, else the innermost phase; empty outside.
        late: Told for a process that is gone, by whoever found its spool.
        room: As it is now.
    """

    identity: Identity
    clock: Clock
    started: int
    totals: Totals
    acked: int = 0
    config: str = ""
    tags: tuple[str, ...] = ()
    total_steps: int | None = None
    last: dict[str, float] = {}
    step: int | None = None
    progress_age: int | None = None
    about: ProcessInfo | None = None
    phase: str = ""
    late: bool = False
    room: ResourceUsage | None = None


class Block(msgspec.Struct, omit_defaults=True):
    """Consecutive pushes that have the same keys, as columns.

    Attributes:
        keys: The keys, each once, exactly as the user wrote them.
        steps: Little-endian int64, one a row.
        times: Little-endian int64, one a row: nanoseconds of the client's monotonic clock.
        values: Little-endian float64, row after row, a value for each key.
    """

    keys: list[str]
    steps: bytes
    times: bytes
    values: bytes

    def columns(self) -> tuple[array[int], array[int], array[float]]:
        """Steps, times and values as arrays.

        Raises:
            WireError: The lengths do not fit each other, or a key comes twice.
        """
        rows = len(self.steps) // 8
        if not rows or not self.keys or len(set(self.keys)) != len(self.keys):
            raise WireError("block", f"{rows} rows of {len(self.keys)} keys, which must be some and differ")
        if (len(self.steps), len(self.times), len(self.values)) != (8 * rows, 8 * rows, 8 * rows * len(self.keys)):
            raise WireError("block", "steps, times and values differ in length")
        return unpack("q", self.steps), unpack("q", self.times), unpack("d", self.values)


class TrainingEvent(msgspec.Struct, omit_defaults=True):
    """Something that the training code says has happened.

    Attributes:
        kind: ``checkpoint``, ``resume`` or any word.
        time: Nanoseconds of the client's monotonic clock.
        step: The step then; None before the first push.
        fields: What more is said, as a JSON object; empty for none.
    """

    kind: str
    time: int
    step: int | None = None
    fields: str = ""


class TrainingAlert(msgspec.Struct, omit_defaults=True):
    """An alert from the training code; *time* and *step* as in `TrainingEvent`.

    Attributes:
        severity: ``info``, ``warning`` or ``critical``.
    """

    title: str
    time: int
    text: str = ""
    severity: str = "warning"
    step: int | None = None


class Pushes(msgspec.Struct, omit_defaults=True):
    """The body of a ``batch``: pushed steps in order, what was said beside them, and the session's totals after them.

    Attributes:
        room: Told with a batch or a beat each 10 s, and sooner when shared memory fills up; else None.
    """

    clock: Clock
    totals: Totals
    blocks: list[Block]
    events: list[TrainingEvent] = []
    alerts: list[TrainingAlert] = []
    phase: str = ""
    room: ResourceUsage | None = None


class Skip(msgspec.Struct, omit_defaults=True):
    """The batches from ``first`` to the envelope's number had to be dropped by the client: a known gap."""

    first: int
    totals: Totals


class Heartbeat(msgspec.Struct, omit_defaults=True):
    """Says alive, once a second when nothing else does, and also when messages wait long for their acknowledgement.

    Attributes:
        progress_age: As in `Hello`; so is ``phase``.
        totals: As in `Hello`, while a message has waited for more than a second, or a phase goes on; else None.
        last: As in `Hello`, while a message has waited for so long; so is ``step``.
        room: As in `Pushes`.
    """

    clock: Clock
    progress_age: int | None = None
    totals: Totals | None = None
    last: dict[str, float] = {}
    step: int | None = None
    phase: str = ""
    room: ResourceUsage | None = None


class Bye(msgspec.Struct, omit_defaults=True):
    """The end as the client sees it.

    Attributes:
        status: ``finished``, ``stopped`` or ``failed``.
        cause: The exception's type, and more where that is known to help; or the signal; empty when there is nothing
            to say.
        provisional: Said by atexit, which does not know the exit status.
    """

    clock: Clock
    totals: Totals
    status: str
    cause: str = ""
    provisional: bool = False


class Nack(msgspec.Struct, omit_defaults=True):
    """A batch that is refused for good: counted by the client and never sent again."""

    reason: str


class Stacks(msgspec.Struct, omit_defaults=True):
    """Where each thread of the process is, by the name of the thread: ``FILE:LINE FUNCTION``, the innermost call last."""

    threads: dict[str, list[str]]


class Refused(msgspec.Struct, omit_defaults=True):
    """A message in a version that this daemon does not read."""

    reads: list[int]


Body = Hello | Pushes | Skip | Heartbeat | Bye | Stacks | Nack | Refused | None

BODIES: dict[str, type[msgspec.Struct] | None] = {
    "hello": Hello,
    "batch": Pushes,
    "skip": Skip,
    "beat": Heartbeat,
    "bye": Bye,
    "stacks": Stacks,
    "pong": None,
    "welcome": None,
    "hello?": None,
    "ack": None,
    "nack": Nack,
    "refused": Refused,
    "stacks?": None,
    "ping": None,
    "layers?": None,
}

_encode = msgspec.msgpack.Encoder().encode
_decode_envelope = msgspec.msgpack.Decoder(Envelope).decode
_decode_body = {kind: msgspec.msgpack.Decoder(body).decode for kind, body in BODIES.items() if body is not None}


def encode(envelope: Envelope, body: Body = None) -> list[bytes]:
    """The frames of a message."""
    return [PROTOCOL, _encode(envelope), b"" if body is None else _encode(body)]


def open_envelope(frames: list[bytes]) -> Envelope:
    """Who speaks, with the body left unread.

    Raises:
        WireError: Not three frames, not this version, or no envelope of a known kind.
    """
    if not frames or not frames[0].startswith(b"trackside/"):
        raise WireError("frames", "the first frame is not trackside/VERSION")
    if frames[0] != PROTOCOL:
        raise WireError("version", f"got {frames[0][:32]!r}, this side reads {PROTOCOL!r}")
    if len(frames) != 3:
        raise WireError("frames", f"expected 3, got {len(frames)}")
    envelope: Envelope = _guarded("envelope", _decode_envelope, frames[1])
    if envelope.kind not in BODIES or len(envelope.session) != 16:
        raise WireError("envelope", f"kind {envelope.kind[:32]!r}, a session of {len(envelope.session)} bytes")
    return envelope


def decode_body(kind: str, frame: bytes) -> Any:
    """The body of a message of this *kind*; None for the kinds without one.

    Raises:
        WireError: It is too large, is not msgpack, or does not fit the schema.
    """
    return _guarded("body", _decode_body[kind], frame) if kind in _decode_body else None


def _guarded(reason: str, decode: Any, frame: bytes) -> Any:
    if len(frame) > MESSAGE_BYTES:
        raise WireError("size", f"{len(frame)} bytes, at most {MESSAGE_BYTES}")
    try:
        return decode(frame)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError, OverflowError) as error:
        raise WireError(reason, str(error)[:200]) from error
