"""Define the wire format between a training process and the daemon, which both import.

The file is longer than others, so that the whole format is in one place.

A message is three ZeroMQ frames, DEALER to ROUTER::

    b"trackside/1"                          protocol and schema version
    msgpack ["batch", b"<session>", 17]     the `Envelope`
    msgpack {"clock": …, "blocks": …}       the body that the envelope's kind names; empty for the kinds without one

The envelope is a frame of its own, so that a body that cannot be decoded can be refused by its number. Bodies are maps
without the fields that have their default value, and a reader ignores unknown fields: a new field with a default changes
no byte of an old message.
"""

from __future__ import annotations

from array import array
from functools import cache
from typing import Annotated, Any

import msgspec

from trackside.buckets import DURATION_INDEXES, Buckets
from trackside.packing import unpack
from trackside.patterns import pattern

VERSION = 1
PROTOCOL = b"trackside/%d" % VERSION

# fmt: off
# Upper bounds of the duration buckets, in seconds. They never change, or stored histograms could not be read.
DURATION_BUCKETS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
    1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0,
)

Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Amount = Annotated[float, msgspec.Meta(ge=0.0)]

HOOK_FAILED = "hook_failed"  # kind of the event of a hook that `trackside.auto` has turned off

GATHER_SECONDS = 0.2  # for how long a client collects rows in a batch, unless the daemon requests another time
LONGEST_GATHER = 2.0  # limit of what a daemon can request: a process that is killed loses what it has collected

MESSAGE_BYTES = 4 * 1024 * 1024  # limit of a frame that a daemon accepts; a client's batches are far smaller


class WireError(ValueError):
    """A message that does not have the wire format.

    Attributes:
        reason: ``frames``, ``version``, ``size``, ``envelope``, ``body`` or ``block``: the label of the counter of
            rejected messages, so the set is small and never changes.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason


REASONS = ("frames", "version", "size", "envelope", "body", "block")


class Envelope(msgspec.Struct, array_like=True, frozen=True):
    """Session, kind and number of a message.

    Attributes:
        kind: From the client ``hello``, ``batch``, ``skip``, ``beat``, ``bye``, ``stacks``, ``flight``, ``steps``,
            ``profile``, ``memory``, ``modules``, ``batches``, ``pong``; from the daemon ``welcome``, ``hello?``, ``ack``, ``nack``, ``refused``, and the
            commands ``stacks?``, ``flight?``, ``steps?``, ``profile?``, ``memory?``, ``modules?``, ``batches?``, ``ping``, ``layers?``, ``pace`` and
            ``cancel?``, which ends a profile or ``modules``. The last three have no answer, and older clients ignore them.
        session: 16 random bytes that identify one `Run` of one process.
        number: By the kind. ``batch``, ``bye``, ``nack``: the sequence number of the message, from 1. ``skip``, ``ack``,
            ``welcome``: the last sequence number that it covers. A command and its answer: what links the two.
            ``layers?``: a number of steps. ``pace``: milliseconds for which a client collects rows. Others: 0.
    """

    kind: str
    session: bytes
    number: Count = 0


class Clock(msgspec.Struct, frozen=True, omit_defaults=True):
    """One moment by two clocks of the sender, in nanoseconds: wall time since 1970, and monotonic time."""

    wall: int
    monotonic: int

    def wall_seconds(self, monotonic: int) -> float:
        """Return the wall time in seconds at a *monotonic* time in nanoseconds of the same sender."""
        return (self.wall + monotonic - self.monotonic) / 1e9


_COMMIT = pattern("[0-9a-f]{40}|[0-9a-f]{64}")


def is_commit(text: str) -> bool:
    """Return whether a text is the full hash of a commit, SHA-1 or SHA-256."""
    return _COMMIT.fullmatch(text) is not None


class Identity(msgspec.Struct, frozen=True, omit_defaults=True):
    """Run, rank and process of a session.

    Attributes:
        run: Id of the run, the same for all ranks on all nodes and, with ``attempt``, unique.
        name: Name that people see.
        attempt: Number of restarts by the launcher.
        rank: Global rank; 0 if the run is not distributed.
        local_rank: Rank among those on this machine.
        world: Number of ranks.
        local_world: Number of ranks on this machine.
        host: Name of the machine.
        pid: Process id in the process's own pid namespace.
        start: Start time in clock ticks since boot (/proc/self/stat, field 22); 0 without /proc.
        boot: Boot id of the machine (/proc/sys/kernel/random/boot_id).
        gpus: GPUs in use, or visible: UUIDs, also truncated or of MIG devices, CUDA's indexes or, by the bus, ``PCI-0``,
            or ``none``.
        job_id: Id of the cluster's job.
        git_commit: Commit that is checked out (`is_commit`), else empty.
        framework: Framework and its version, such as ``torch 2.13.0``.
    """

    run: str
    name: str
    attempt: Count = 0
    rank: Count = 0
    local_rank: Count = 0
    world: Count = 1
    local_world: Count = 1
    host: str = ""
    pid: Count = 0
    start: Count = 0
    boot: str = ""
    gpus: tuple[str, ...] = ()
    job_id: str = ""
    git_commit: str = ""
    framework: str = ""


class Histogram(msgspec.Struct, omit_defaults=True):
    """Observations per bucket of `DURATION_BUCKETS`, a last count above all bounds, and their sum in seconds.

    ``fine`` has the same observations by `trackside.buckets.duration_index`, without those that have none; empty from older
    clients.
    """

    counts: Annotated[
        list[Count], msgspec.Meta(min_length=len(DURATION_BUCKETS) + 1, max_length=len(DURATION_BUCKETS) + 1)
    ]
    sum: Amount
    fine: dict[Annotated[int, msgspec.Meta(ge=DURATION_INDEXES.start, lt=DURATION_INDEXES.stop)], Count] = {}


class DataWaits(Histogram, omit_defaults=True):
    """Waits for batches of data; *first* has those for the first batch of each epoch, which are not in the others."""

    first: Histogram | None = None


class Memory(msgspec.Struct, omit_defaults=True):
    """GPU memory in bytes from PyTorch's allocator in this process (torch.cuda.memory_stats).

    Attributes:
        allocated: Memory in use by tensors.
        reserved: Memory that the allocator has reserved.
        peak: Maximum of ``allocated`` since the session began, as sampled at steps.
        out_of_memory: Number of failed allocations.
    """

    allocated: Count = 0
    reserved: Count = 0
    peak: Count = 0
    out_of_memory: Count = 0


class Device(msgspec.Struct, omit_defaults=True):
    """Work of a rank, and memory of its GPUs.

    Attributes:
        phases: Seconds of work by phase, from CUDA events.
        memory: Memory by the GPU's UUID; a state, not a total.
        flops: Floating-point operations of the model, if the user has stated those of a step or a token.
        peak_flops: Peak FLOP/s of the GPUs, if the user has stated it.
        amounts: Sums of the keys in `trackside.rl_keys.AMOUNT_KEYS`, by quantity.
    """

    phases: dict[str, Amount] = {}
    memory: dict[str, Memory] = {}
    flops: Amount | None = None
    peak_flops: Amount | None = None
    amounts: dict[str, Amount] = {}


class CheckpointTotals(msgspec.Struct, omit_defaults=True):
    """Checkpoints of a session.

    Attributes:
        count: Number of checkpoints.
        duration: Durations of those whose duration is known.
        bytes: Size of the last one, if it is known.
        at: Time of the last one, in Unix seconds.
    """

    count: Count = 0
    duration: Histogram | None = None
    bytes: Count | None = None
    at: Amount | None = None


class Totals(msgspec.Struct, omit_defaults=True):
    """Cumulative totals of a session: sent whole with every batch, so that a daemon restart is a gap, not a reset.

    The msgpack header of the map has room for these 15 fields without a change of its length: a new one goes into one of
    the nested structs.

    Attributes:
        pushes: Calls of `push`.
        dropped: Values and pushes that were lost: not a number, or no room while the daemon was away.
        resent: Batches sent more than once.
        spooled: Messages written to disk, since they had waited long.
        overhead: CPU seconds of the sender thread.
        steps: Increase of ``step`` over the attempt's highest.
        samples: Sum of the key ``samples``; None until it is pushed.
        tokens: Sum of the key ``tokens``; None until it is pushed.
        nonfinite: Number of NaN and infinite values by key, without keys that had none.
        step_duration: Host time from the first push of a step to the first push of the next, over their difference,
            without evaluation and checkpoints.
        phases: Seconds by phase, each without the phases nested in it. Empty until a phase is entered; from then on they
            sum to the time since the session began.
        data_wait: Waits for batches of data, with the first batch of each epoch apart.
        paused: Seconds of evaluation and checkpoints, and of phases nested in them, up to the first push of the step.
        device: Its work, and the memory of its GPUs; None if nothing is known.
        saves: Its checkpoints; None before the first.
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


class ProfilePlan(msgspec.Struct, omit_defaults=True, frozen=True):
    """A plan of profiles: *steps* optimizer steps, *warmup* steps after each of *epochs* has begun, or the run without them.

    The other fields are those of `trackside_daemon.model.capture.ProfileOptions`.
    """

    steps: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 10
    warmup: Count = 0
    epochs: Annotated[tuple[Count, ...], msgspec.Meta(max_length=1000)] = ()
    shapes: bool = False
    stacks: bool = False
    memory: bool = False


class ProcessInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """State of the process when its first session began, and what it states of the run; unknown fields are absent.

    Attributes:
        command: Interpreter and all its arguments (sys.orig_argv), cut after 16 KiB, without what looks like a secret.
        directory: Working directory.
        python: Version of the interpreter.
        platform: Kernel, its release and the machine: ``Linux 6.1.0 x86_64``.
        packages: Versions of the imported packages by name, sorted by name, at most 200.
        git_dirty: A tracked file of the repository around the script differs from the index; None if unknown.
        k8s_pod: Name of the Kubernetes pod.
        k8s_namespace: Name of its namespace.
        k8s_container: Name of the container in it.
        partition: Slurm's partition.
        launch: Id of the ``trackside run`` that has started it (``$TRACKSIDE_LAUNCH``).
        daemonic: It is a daemon process of `multiprocessing`, such as a worker of a pool: its parent ends it by SIGTERM.
        roles: Roles that the user states for keys of the run (`trackside.roles`).
        auto: Keys whose values trackside found without the training code's help (`trackside.auto.training`).
        correlation: Id by which other systems refer to the job (``$TRACKSIDE_CORRELATION_ID``, ``$TRACEPARENT``).
        environ: Environment variables that change the speed of a training, without what looks like a secret, at most 64.
        profile: When to profile the run; None for the daemon's plan.
        parents: Pid and start time, as in `Identity`, of its parent, that one's parent and so on, at most 16; None if unknown.
        startup: Nanoseconds from the start of the process to the session's, if they were spent on the start of the run.
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
    partition: str = ""
    launch: str = ""
    daemonic: bool = False
    roles: dict[str, str] = {}
    auto: tuple[str, ...] = ()
    correlation: str = ""
    environ: dict[str, str] = {}
    profile: ProfilePlan | None = None
    parents: tuple[tuple[Count, Count], ...] | None = None
    startup: Count = 0


class ResourceUsage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Resources that the process can run out of and only it sees reliably; None if absent or unknown.

    Attributes:
        shm_size: Size of /dev/shm in bytes (statvfs(3)).
        shm_used: Used bytes of it.
        shm_peak: Maximum of the used bytes since the last report.
        open_fds: Open file descriptors of the process.
        max_fds: Soft limit of them (RLIMIT_NOFILE); None for no limit.
    """

    shm_size: Count | None = None
    shm_used: Count | None = None
    shm_peak: Count | None = None
    open_fds: Count | None = None
    max_fds: Count | None = None


class Hello(msgspec.Struct, omit_defaults=True):
    """The first message of a session, repeated with its whole state after a restart of the daemon.

    Attributes:
        identity: Run, rank and process.
        clock: Time of this message.
        started: Begin of the session, in nanoseconds since 1970.
        totals: Totals of the session.
        acked: Highest sequence number that a daemon has acknowledged to this client.
        config: Configuration of the run, as JSON text, without what looks like a secret; empty if there is none.
        tags: Words to find the run by.
        total_steps: Number of steps of the run, if it is known.
        last: Last value of each key.
        step: Last step; None before the first push.
        progress_age: Nanoseconds since the last push; None before the first.
        about: State of the process; None from older clients.
        phase: Evaluation or checkpoint that the training is in, else the innermost phase; empty outside of any.
        late: The process has ended, and another one sends its spool.
        room: Resources of the process now.
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
    """Consecutive pushes with the same keys, as columns.

    Attributes:
        keys: Keys, each once, exactly as the user wrote them.
        steps: Little-endian int64, one a row.
        times: Little-endian int64, one a row: nanoseconds of the client's monotonic clock.
        values: Little-endian float64, row after row, a value for each key.
        aside: The steps are of another count than the training's, as of epochs.
    """

    keys: list[str]
    steps: bytes
    times: bytes
    values: bytes
    aside: bool = False

    def columns(self) -> tuple[array[int], array[int], array[float]]:
        """Return steps, times and values as arrays.

        Raises:
            WireError: The lengths do not match, or a key occurs twice.
        """
        rows = len(self.steps) // 8
        if not rows or not self.keys or len(set(self.keys)) != len(self.keys):
            raise WireError("block", f"{rows} rows of {len(self.keys)} keys, which must be some and differ")
        if (len(self.steps), len(self.times), len(self.values)) != (8 * rows, 8 * rows, 8 * rows * len(self.keys)):
            raise WireError("block", "steps, times and values differ in length")
        return unpack("q", self.steps), unpack("q", self.times), unpack("d", self.values)


# Columns of distributions by kind: the first ones of every layer, the others where they apply.
_OF_VALUES = ("size", "mean", "std", "norm", "largest", "zeros", "nonfinite")
_OF_UPDATES = ("update_ratio", "rank")  # only if the optimizer has moved weights
DISTRIBUTION_COLUMNS = {
    "weights": (*_OF_VALUES, *_OF_UPDATES),
    "gradients": _OF_VALUES,
    "activations": (*_OF_VALUES, "saturated"),
    "attention": ("entropy", "logit"),
}
LAYER_NAMES = 1024  # limit of the layers, or heads, of a frame
LAYER_NAME_BYTES = 512


class DistributionFrame(msgspec.Struct, omit_defaults=True):
    """Distributions of one kind of tensors of a rank at one step, one for each layer, as columns.

    Attributes:
        kind: ``weights``, ``gradients``, ``activations`` or ``attention``.
        time: Nanoseconds of the client's monotonic clock.
        names: Names of the layers; of attention ``LAYER/HEAD``.
        columns: Numbers by name, those of `DISTRIBUTION_COLUMNS`, one a layer, little-endian float32, NaN for none: the
            ``size`` or number of values, their ``mean``, ``std``, ``norm`` and ``largest`` magnitude; the shares of ``zeros``,
            of ``nonfinite`` and, of activations, of ``saturated`` values, those within 2 % of the largest; of weights
            ``update_ratio``, the norm of a step's change over their norm, and the effective ``rank`` of that change; of
            attention the mean ``entropy``, 1 if all keys are attended equally, and the largest ``logit`` magnitude.
        buckets: Distributions as `trackside.buckets.Buckets.packed` has them, one a layer; none of attention.
        step: The step of the next push.
    """

    kind: str
    time: int
    names: list[str]
    columns: dict[str, bytes] = {}
    buckets: list[bytes] = []
    step: int = 0

    def check(self) -> None:
        """Check names, columns and distributions.

        Raises:
            WireError: One of them does not have its format.
        """
        rows = len(self.names)
        if not 0 < rows <= LAYER_NAMES or len(set(self.names)) != rows:
            raise WireError("block", f"distributions of {rows} layers, which must be some and differ")
        if any(len(name.encode("utf-8", "replace")) > LAYER_NAME_BYTES for name in self.names):
            raise WireError("block", "a layer's name is too long")
        known = DISTRIBUTION_COLUMNS.get(self.kind, ())
        if set(known) - set(_OF_UPDATES) - set(self.columns) or set(self.columns) - set(known) or not known:
            raise WireError("block", f"distributions of {self.kind[:40]!r} have other columns")
        lengths = {len(column) for column in self.columns.values()} | {4 * (len(self.buckets) or rows)}
        if lengths != {4 * rows} or not -(2**63) <= self.step < 2**63:
            raise WireError("block", "the columns of distributions differ in length")
        if any(value < 0 for name, column in self.columns.items() if name != "mean" for value in unpack("f", column)):
            raise WireError("block", "a column of distributions has negative numbers")
        try:
            for one in self.buckets:
                Buckets.unpacked(one)
        except ValueError as error:
            raise WireError("block", str(error)) from None




class TensorHash(msgspec.Struct, array_like=True, omit_defaults=True):
    """A hash of a part of one tensor of a rank's model, which is equal on ranks whose bits are equal.

    Attributes:
        name: Name of the parameter or buffer.
        part: Number of the part, of so many *parts* of the tensor.
        count: Steps of the optimizer since the model is watched: ranks hash the same part at the same one.
        group: A number for the ranks that share the tensor, its shape and the watched model.
        ranks: How many ranks these are.
        value: The hash.
        time: Nanoseconds of the client's monotonic clock.
        buffer: It is a buffer, and no parameter.
        step: The step of the next push.
    """

    name: str
    part: Count
    parts: Count
    count: Count
    group: Count
    ranks: Count
    value: int
    time: int
    buffer: bool = False
    step: int = 0

    def check(self) -> None:
        """Raise `WireError` if the name is too long."""
        if len(self.name.encode("utf-8", "replace")) > LAYER_NAME_BYTES:
            raise WireError("block", "the name of a tensor is too long")


class MediaItem(msgspec.Struct, omit_defaults=True):
    """An image, a text or a table of a step.

    Attributes:
        kind: One of those of `trackside.limits.MEDIA_BYTES`.
        key: Name, as the user wrote it, at most 256 characters.
        time: Nanoseconds of the client's monotonic clock.
        data: A PNG file; UTF-8; JSON with ``columns``, ``rows`` and ``omitted``, the number of rows left out; or JSON with
            ``edges``, ``counts`` and ``nonfinite``, the number of NaN and infinities.
        step: Step; None before the first push.
    """

    kind: str
    key: str
    time: int
    data: bytes
    step: int | None = None


SUMMARY = "summary"
"""The kind of an event whose fields are results of the run."""


EXCEPTION = "exception"
"""The kind of an event with the exception that ends a run: its ``type``, ``text`` and ``traceback``."""

CLOSED = "Connection closed by peer in collective "
"""Begin of the cause of a rank's end that Gloo reports to it: number and group, a colon, and the rank's own call follow."""


class TrainingEvent(msgspec.Struct, omit_defaults=True):
    """An event that the training code reports.

    Attributes:
        kind: ``checkpoint``, ``resume``, `SUMMARY` or any word.
        time: Nanoseconds of the client's monotonic clock.
        step: Current step; None before the first push.
        fields: Details, as a JSON object; empty for none.
    """

    kind: str
    time: int
    step: int | None = None
    fields: str = ""


class TrainingAlert(msgspec.Struct, omit_defaults=True):
    """An alert from the training code.

    Attributes:
        title: What is wrong; the same title is the same alert.
        time: Nanoseconds of the client's monotonic clock.
        text: Details.
        severity: ``info``, ``warning`` or ``critical``.
        step: Current step; None before the first push.
    """

    title: str
    time: int
    text: str = ""
    severity: str = "warning"
    step: int | None = None


class Pushes(msgspec.Struct, omit_defaults=True):
    """The body of a ``batch``: pushes in order, events and alerts, and the session's totals after them.

    Attributes:
        clock: Time of this message.
        totals: Totals of the session.
        blocks: Pushes.
        events: Events.
        alerts: Alerts.
        phase: As in `Hello`.
        room: Resources, with a batch or a heartbeat each 10 s, and sooner if shared memory fills up; else None.
        distributions: Distributions of the layers of a model.
        media: Images, texts and tables.
        hashes: Hashes of parts of the model, which the ranks that share them have in common.
    """

    clock: Clock
    totals: Totals
    blocks: list[Block]
    events: list[TrainingEvent] = []
    alerts: list[TrainingAlert] = []
    phase: str = ""
    room: ResourceUsage | None = None
    distributions: list[DistributionFrame] = []
    media: list[MediaItem] = []
    hashes: list[TensorHash] = []


class Skip(msgspec.Struct, omit_defaults=True):
    """A known gap: the client had to drop the batches from ``first`` to the envelope's number.

    Attributes:
        values: Number of values in them; 0 if it is unknown.
        steps: Their lowest and highest step; None if they are unknown.
    """

    first: int
    totals: Totals
    values: Count = 0
    steps: tuple[int, int] | None = None


class Heartbeat(msgspec.Struct, omit_defaults=True):
    """A sign of life once a second, if no other message is sent or messages wait long for their acknowledgement.

    Attributes:
        clock: Time of this message.
        progress_age: As in `Hello`.
        totals: As in `Hello`, if a message has waited for more than a second or a phase was entered; else None.
        last: As in `Hello`, if a message has waited for more than a second.
        step: As in `Hello`, if a message has waited for more than a second.
        phase: As in `Hello`.
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
    """The end of a session as the client sees it.

    Attributes:
        clock: Time of this message.
        totals: Totals of the session.
        status: ``finished``, ``stopped`` or ``failed``.
        cause: Type of the exception with a known reason, or the signal; empty if there is none.
        provisional: Sent by atexit, where the exit status is unknown.
        requested: What the process has called `sys.exit` with, such as ``exit status 1: no data``; empty for 0 and for no call.
    """

    clock: Clock
    totals: Totals
    status: str
    cause: str = ""
    provisional: bool = False
    requested: str = ""


class Welcome(msgspec.Struct, omit_defaults=True):
    """The acceptance of a hello; older daemons send no body.

    Attributes:
        stores: What this daemon stores of `Pushes` besides rows, events and alerts: names of its fields.
        run: Id of the run that the session belongs to; empty if it is that of its hello.
        why: Why it is another one, in one line; empty if that is unknown.
    """

    stores: tuple[str, ...] = ()
    run: str = ""
    why: str = ""


class Nack(msgspec.Struct, omit_defaults=True):
    """The refusal of a batch, whose values the client counts as dropped; by number 0, of the hello of an ended process."""

    reason: str


class Stacks(msgspec.Struct, omit_defaults=True):
    """The stack of each thread by its name, as lines ``FILE:LINE FUNCTION``, the innermost call last.

    Those of the processes below follow, by the name and number of each and of its thread.
    """

    threads: dict[str, list[str]]


class FlightEntry(msgspec.Struct, array_like=True, frozen=True):
    """A collective, or a send or receive, in PyTorch's flight recorder.

    Attributes:
        sequence: Its number in its group, from 1; sends and receives count apart.
        operation: Such as ``all_reduce``.
        state: ``scheduled``, ``started`` or ``completed``.
        shape: Shapes and types of the inputs, to be read by people.
        elements: Number of elements of all inputs.
        age: Seconds since the call.
        p2p: A send or a receive.
    """

    sequence: int
    operation: str
    state: str
    shape: str = ""
    elements: int = 0
    age: float = 0.0
    p2p: bool = False


class FlightGroup(msgspec.Struct, omit_defaults=True):
    """The newest entries of a process group, oldest first; *ranks* are its global ranks, if they are known."""

    backend: str
    name: str
    description: str = ""
    ranks: list[int] = []
    entries: list[FlightEntry] = []


class Child(msgspec.Struct, omit_defaults=True):
    """A process below a rank, such as a worker of a data loader.

    Attributes:
        pid: Its process id, as the rank sees it, and that of its *parent*.
        name: Name of its main thread.
        state: State of its main thread, a letter as in /proc/PID/stat.
        waits: The kernel's function that it waits in; empty if unknown.
        ended: Wait status of one that has ended, and for which its parent has not waited.
        cpu: CPU seconds of all its threads.
        threads: Its stacks as in `Stacks`, the main thread first; empty if it does not report them.
    """

    pid: int
    name: str
    state: str
    waits: str = ""
    parent: int = 0
    ended: int = 0
    cpu: float = 0.0
    threads: dict[str, list[str]] = {}


class Flight(msgspec.Struct, omit_defaults=True):
    """Present activity of a process.

    Attributes:
        threads: Its threads as in `Stacks`, the main thread first.
        groups: The tail of its flight recorder.
        children: The processes below it.
    """

    threads: dict[str, list[str]]
    groups: list[FlightGroup] = []
    children: list[Child] = []


class OptimizerSteps(msgspec.Struct, omit_defaults=True):
    """Optimizer steps of a process, and those among them that PyTorch's profiler has not counted; 0 if it is not in use."""

    count: Count = 0
    skipped: Count = 0


class StepsQuestion(msgspec.Struct):
    """A question for the optimizer steps of a process, whose PyTorch then counts them for so many *seconds*."""

    seconds: Amount


class ProfileQuestion(msgspec.Struct, omit_defaults=True):
    """A request for a profile of the next *seconds*, by options as in `trackside_daemon.model.capture.ProfileOptions`."""

    seconds: Amount
    shapes: bool = False
    stacks: bool = False
    memory: bool = False


class Profile(msgspec.Struct, omit_defaults=True):
    """A trace of PyTorch's profiler, compressed by gzip; or why there is none, in one line."""

    trace: bytes = b""
    error: str = ""


class AllocationSite(msgspec.Struct, array_like=True, frozen=True):
    """Allocations by one stack, as lines ``FILE:LINE FUNCTION``, the innermost call first; empty if it was not recorded."""

    frames: list[str]
    bytes: int
    count: int


class Allocator(msgspec.Struct, omit_defaults=True):
    """An allocator such as ``cuda:0`` or ``tracemalloc``: bytes in use, bytes that it holds, and its largest sites."""

    name: str
    allocated: int
    reserved: int
    sites: list[AllocationSite] = []


class MemorySnapshot(msgspec.Struct, omit_defaults=True):
    """The memory of a process; *errors* are the reasons for which allocators are missing."""

    allocators: list[Allocator]
    errors: list[str] = []


class ModulesQuestion(msgspec.Struct):
    """A request for the calls of a watched model's modules during the next *steps*, within so many *seconds*."""

    steps: Count
    seconds: Amount


class ModuleCall(msgspec.Struct, array_like=True, frozen=True):
    """A call of a module.

    Attributes:
        place: The module's place among the names.
        step: Number of the step, from 0.
        thread: The thread that called it.
        begin: When, in seconds of an arbitrary clock.
        seconds: Duration on the host, with the modules that it calls.
        output_bytes: Memory of what it and the modules that it calls put out.
        allocated: Growth of a GPU's memory in use in bytes.
        gpu_begin: Seconds from the begin of the recording until a GPU began with it.
        gpu_seconds: Duration on the GPU.
    """

    place: Count
    step: Count
    thread: Count
    begin: float
    seconds: Amount
    output_bytes: Count = 0
    allocated: int = 0
    gpu_begin: float = 0.0
    gpu_seconds: Amount = 0.0


class ModuleCalls(msgspec.Struct, omit_defaults=True):
    """Calls of a model's modules in whole *steps*: by name and class; *compiled* ones are left out. Or why there are none."""

    names: list[str] = []
    classes: list[str] = []
    steps: Count = 0
    calls: list[ModuleCall] = []
    compiled: Count = 0
    error: str = ""


class BatchesQuestion(msgspec.Struct, omit_defaults=True):
    """A question for the batches of a *step*, and of so many kept steps *before* it."""

    step: int
    before: Count = 0


class BatchSamples(msgspec.Struct, omit_defaults=True):
    """The samples of a batch.

    Attributes:
        samples: Their indices in the data set, or its own ids; not all of a large batch.
        count: Their number; 0 if it is unknown.
        names: What some of them are called, by sample.
        by: What has named them: ``describe``, or an attribute such as ``samples``.
        dataset: Class of the data set.
        number: Number of the batch in its iteration over the loader, from 1.
        iteration: Number of that iteration in the process; 0 if it is not counted.
        worker: The worker that has made the batch; None if none has, or it is unknown.
        why: Why samples are unknown, or have no names, in one line.
    """

    samples: list[int | str] = []
    count: Count = 0
    names: dict[str, str] = {}
    by: str = ""
    dataset: str = ""
    number: Count = 0
    iteration: Count = 0
    worker: Count | None = None
    why: str = ""


class Batches(msgspec.Struct, omit_defaults=True):
    """The batches of *steps*, as far as they are kept, from step *first* on; None if none is."""

    steps: dict[int, list[BatchSamples]] = {}
    first: int | None = None


class Refused(msgspec.Struct, omit_defaults=True):
    """The refusal of a message in a version that this daemon does not read; *reads* has those that it reads."""

    reads: list[int]


Body = (
    Hello
    | Pushes
    | Skip
    | Heartbeat
    | Bye
    | Stacks
    | Flight
    | OptimizerSteps
    | StepsQuestion
    | ProfileQuestion
    | Profile
    | MemorySnapshot
    | ModulesQuestion
    | ModuleCalls
    | BatchesQuestion
    | Batches
    | Welcome
    | Nack
    | Refused
    | None
)

BODIES: dict[str, type[msgspec.Struct] | None] = {
    "hello": Hello,
    "batch": Pushes,
    "skip": Skip,
    "beat": Heartbeat,
    "bye": Bye,
    "stacks": Stacks,
    "flight": Flight,
    "steps": OptimizerSteps,
    "profile": Profile,
    "memory": MemorySnapshot,
    "modules": ModuleCalls,
    "batches": Batches,
    "pong": None,
    "welcome": Welcome,
    "hello?": None,
    "ack": None,
    "nack": Nack,
    "refused": Refused,
    "stacks?": None,
    "flight?": None,
    "steps?": StepsQuestion,
    "profile?": ProfileQuestion,
    "memory?": None,
    "modules?": ModulesQuestion,
    "batches?": BatchesQuestion,
    "ping": None,
    "layers?": None,
    "pace": None,
    "cancel?": None,
}

_encode = msgspec.msgpack.Encoder().encode
_decode_envelope = msgspec.msgpack.Decoder(Envelope).decode


@cache
def _decoder(kind: str) -> Any:
    """Return the decoder of a kind of message, which takes as long to make as a module to import; None for one without a body."""
    body = BODIES[kind]
    return None if body is None else msgspec.msgpack.Decoder(body).decode


def encode(envelope: Envelope, body: Body = None) -> list[bytes]:
    """Return the frames of a message."""
    return [PROTOCOL, _encode(envelope), b"" if body is None else _encode(body)]


def open_envelope(frames: list[bytes]) -> Envelope:
    """Return the envelope of a message, without decoding the body.

    Raises:
        WireError: There are not three frames, the version is another one, or the envelope has no known kind.
    """
    if not frames or not frames[0].startswith(b"trackside/"):
        raise WireError("frames", "the first frame is not trackside/VERSION")
    # Before the number of frames, which another version may have changed.
    if frames[0] != PROTOCOL:
        raise WireError("version", f"got {frames[0][:32]!r}, this side reads {PROTOCOL!r}")
    if len(frames) != 3:
        raise WireError("frames", f"expected 3, got {len(frames)}")
    envelope: Envelope = _guarded("envelope", _decode_envelope, frames[1])
    if envelope.kind not in BODIES or len(envelope.session) != 16:
        raise WireError("envelope", f"kind {envelope.kind[:32]!r}, a session of {len(envelope.session)} bytes")
    return envelope


def decode_body(kind: str, frame: bytes) -> Any:
    """Return the body of a message of this *kind*; None for the kinds without one, and for the welcome of an older daemon.

    Raises:
        WireError: The body is too large, is not msgpack, or does not match the schema.
    """
    decode = _decoder(kind)
    return None if decode is None or (kind == "welcome" and not frame) else _guarded("body", decode, frame)


def _guarded(reason: str, decode: Any, frame: bytes) -> Any:
    if len(frame) > MESSAGE_BYTES:
        raise WireError("size", f"{len(frame)} bytes, at most {MESSAGE_BYTES}")
    try:
        return decode(frame)
    # All that malformed bytes can raise: a client must not end the daemon's thread.
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError, OverflowError) as error:
        raise WireError(reason, str(error)[:200]) from error
