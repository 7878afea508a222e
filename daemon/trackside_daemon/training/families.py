"""The families of a training run, and which keys are exported under their own names."""

from __future__ import annotations

from trackside.wire import DURATION_BUCKETS
from trackside_daemon.model.metric import Metric

RANK = ("run", "rank")
STATES = ("starting", "running", "stalled", "finished", "stopped", "failed", "lost")

RUN_INFO = Metric(
    "trackside_training_run_info",
    "info",
    "What is known of a run, to be joined by its name; always 1.",
    ("run", "run_id", "attempt", "world_size", "host", "git_commit", "framework", "job_id"),
)
STATE = Metric(
    "trackside_training_state",
    "gauge",
    "1 for the state that the run is in, 0 for the others; held for 15 minutes after its end.",
    ("run", "state"),
)
RANK_STATE = Metric(
    "trackside_training_rank_state",
    "gauge",
    "1 for the state that the rank is in, 0 for the others.",
    (*RANK, "state"),
)
STARTED = Metric(
    "trackside_training_start_timestamp_seconds",
    "gauge",
    "When the rank opened the run, in Unix time.",
    RANK,
    "seconds",
)
ENDED_AT = Metric(
    "trackside_training_end_timestamp_seconds",
    "gauge",
    "When the rank ended, in Unix time; held for 15 minutes.",
    RANK,
    "seconds",
)
STEPS = Metric(
    "trackside_training_steps_total", "counter", "Steps made: the increase of step over this attempt's highest.", RANK
)
SAMPLES = Metric("trackside_training_samples_total", "counter", "Sum of the pushed amounts of samples.", RANK)
TOKENS = Metric("trackside_training_tokens_total", "counter", "Sum of the pushed amounts of tokens.", RANK)
STEP = Metric("trackside_training_step", "gauge", "The step that was pushed last.", RANK)
VALUE = Metric(
    "trackside_training_value",
    "gauge",
    "The last pushed value of a key that has no family of its own, the key exactly as the user wrote it.",
    (*RANK, "key"),
)
NONFINITE = Metric(
    "trackside_training_nonfinite_total", "counter", "How often the pushed value was NaN or infinite.", (*RANK, "key")
)
STEP_DURATION = Metric(
    "trackside_training_step_duration_seconds",
    "histogram",
    "Host time from the first push of a step to the first push of the next, over their difference.",
    RANK,
    "seconds",
    DURATION_BUCKETS,
)
DATA_WAIT = Metric(
    "trackside_training_data_wait_seconds",
    "histogram",
    "How long the training waited for each batch of data but an epoch's first, where the loader is wrapped in data().",
    RANK,
    "seconds",
    DURATION_BUCKETS,
)
FIRST_WAIT = Metric(
    "trackside_training_first_batch_wait_seconds",
    "histogram",
    "How long the training waited for the first batch of each epoch, where the loader is wrapped in data().",
    RANK,
    "seconds",
    DURATION_BUCKETS,
)
PHASE_SECONDS = Metric(
    "trackside_training_phase_seconds_total",
    "counter",
    "Time by phase, each without those nested in it; what is in none is other, and all sum to the time since the start.",
    (*RANK, "phase"),
    "seconds",
)
LOST = Metric(
    "trackside_training_lost_seconds_total",
    "counter",
    "Time in which nothing is trained, over all attempts, by cause: data, checkpoint and eval by the phases of that kind; "
    "restart from an attempt's end to the next one's first step beyond; stall while the rank's state is stalled; each without "
    "the others.",
    (*RANK, "cause"),
    "seconds",
)
DEVICE_PHASE_SECONDS = Metric(
    "trackside_training_device_phase_seconds_total",
    "counter",
    "Time that the rank's GPU worked on a phase, by CUDA events, where the model is watched.",
    (*RANK, "phase"),
    "seconds",
)
CHECKPOINTS = Metric(
    "trackside_training_checkpoints_total", "counter", "Checkpoints written, by phase or event checkpoint.", RANK
)
CHECKPOINT_DURATION = Metric(
    "trackside_training_checkpoint_duration_seconds",
    "histogram",
    "How long each checkpoint took: the phase checkpoint, or what its event said.",
    RANK,
    "seconds",
    DURATION_BUCKETS,
)
CHECKPOINT_BYTES = Metric(
    "trackside_training_checkpoint_bytes", "gauge", "Size of the last checkpoint, as its event said.", RANK, "bytes"
)
CHECKPOINT_AT = Metric(
    "trackside_training_last_checkpoint_timestamp_seconds",
    "gauge",
    "When the last checkpoint was written, in Unix time.",
    RANK,
    "seconds",
)
MODEL_FLOPS = Metric(
    "trackside_training_model_flops_total",
    "counter",
    "Floating-point operations of the model that the rank has made, where the run says how many a step or token takes.",
    RANK,
)
MEMORY = {
    "allocated": Metric(
        "trackside_training_device_memory_allocated_bytes",
        "gauge",
        "Memory of a GPU that tensors of the rank use, from torch.cuda.memory_stats.",
        (*RANK, "uuid"),
        "bytes",
    ),
    "reserved": Metric(
        "trackside_training_device_memory_reserved_bytes",
        "gauge",
        "Memory of a GPU that the rank's allocator holds, from torch.cuda.memory_stats.",
        (*RANK, "uuid"),
        "bytes",
    ),
    "peak": Metric(
        "trackside_training_device_memory_peak_bytes",
        "gauge",
        "The most that tensors of the rank have used of a GPU since the run began, as it was seen at steps.",
        (*RANK, "uuid"),
        "bytes",
    ),
    "out_of_memory": Metric(
        "trackside_training_device_out_of_memory_total",
        "counter",
        "Allocations on a GPU that have failed, from torch.cuda.memory_stats.",
        (*RANK, "uuid"),
    ),
}
"""The families of a `trackside.wire.Memory`, by its fields."""
LAST_STEP = Metric(
    "trackside_training_last_step_timestamp_seconds",
    "gauge",
    "When the last push was made, in Unix time.",
    RANK,
    "seconds",
)
PROGRESS = Metric(
    "trackside_training_progress_ratio", "gauge", "Share of the run's total_steps that is done.", RANK, "ratio"
)
REMAINING = Metric(
    "trackside_training_remaining_seconds",
    "gauge",
    "Steps that are left times the step duration of late; only while total_steps is known.",
    RANK,
    "seconds",
)
PUSHES = Metric("trackside_training_client_pushes_total", "counter", "Calls of push.", RANK)
DROPPED = Metric(
    "trackside_training_client_dropped_total",
    "counter",
    "Pushed values that the client could not keep: not a number, or no room while no daemon was there.",
    RANK,
)
RESENT = Metric("trackside_training_client_resent_total", "counter", "Batches that the client sent again.", RANK)
SPOOLED = Metric(
    "trackside_training_client_spooled_total",
    "counter",
    "Messages that the client wrote to disk, since no daemon had acknowledged them for a second.",
    RANK,
)
OVERHEAD = Metric(
    "trackside_training_client_overhead_seconds_total",
    "counter",
    "CPU time of the client's sender thread.",
    RANK,
    "seconds",
)
SHM_SIZE = Metric(
    "trackside_training_shm_size_bytes",
    "gauge",
    "Size of /dev/shm as the training process sees it, also in a container with one of its own, from statvfs(3).",
    RANK,
    "bytes",
)
SHM_USED = Metric(
    "trackside_training_shm_used_bytes",
    "gauge",
    "What is used of /dev/shm as the training process sees it, by whichever process; from statvfs(3).",
    RANK,
    "bytes",
)
SHM_PEAK = Metric(
    "trackside_training_shm_peak_bytes",
    "gauge",
    "The most that was used of /dev/shm since the client told before, 10 s ago at most; from statvfs(3).",
    RANK,
    "bytes",
)
OPEN_FDS = Metric(
    "trackside_training_open_fds", "gauge", "Open file descriptors of the training process, from /proc/self/fd.", RANK
)
MAX_FDS = Metric(
    "trackside_training_max_fds",
    "gauge",
    "File descriptors that the training process may have open, the soft limit of RLIMIT_NOFILE; absent without one.",
    RANK,
)
ROOM = {
    "shm_size": SHM_SIZE,
    "shm_used": SHM_USED,
    "shm_peak": SHM_PEAK,
    "open_fds": OPEN_FDS,
    "max_fds": MAX_FDS,
}
"""The families of a `trackside.wire.Room`, by its fields."""

SERIES_REJECTED = Metric(
    "trackside_series_rejected_total",
    "counter",
    "Series that are over a limit and so not on this page.",
    ("reason",),
)
REJECTIONS = ("runs", "sessions", "keys", "series", "label_length")

_GAUGES = {
    "loss": "Training loss, as pushed.",
    "accuracy": "Accuracy, as pushed.",
    "learning_rate": "Learning rate, as pushed under learning_rate or lr.",
    "grad_norm": "Norm of the gradients, as pushed, or as the daemon makes it of the parts that all ranks have told.",
    "epoch": "Epoch, as pushed.",
    "grad_norm_local_squared": "Sum of the squares of this rank's own part of the gradients, where they are sharded.",
}
KNOWN = {key: Metric(f"trackside_training_{key}", "gauge", text, RANK) for key, text in _GAUGES.items()}
KNOWN["lr"] = KNOWN["learning_rate"]
AMOUNTS = frozenset(("samples", "tokens"))
"""Keys whose values are amounts of one step: they are summed by the client and not exported one by one."""


def is_loss(key: str) -> bool:
    """Whether a key is a loss by its name: ``loss``, ``*/loss``, ``*_loss``, ``loss/*``."""
    return key == "loss" or key.endswith(("/loss", "_loss")) or key.startswith("loss/")


NAMES = {"lr": "learning_rate"}
"""Keys that are another's short form: they give way once the other is pushed."""
