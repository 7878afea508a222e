"""The families of a training run, and which keys are exported under their own names."""

from trackside.wire import DURATION_BUCKETS
from trackside_daemon.model.metric import Metric, define

PREFIX = "trackside_training_"
RANK = ("run", "rank")
STATES = ("starting", "running", "stalled", "finished", "stopped", "failed", "lost")

RUN_INFO = define(
    "trackside_training_run_info",
    "Facts about a run, to be joined by its name; always 1; source is auto if trackside has found values by itself.",
    *("run", "run_id", "attempt", "world_size", "host", "git_commit", "framework", "job_id", "source", "user"),
)
STATE = define(
    "trackside_training_state",
    "1 for the current state of the run, 0 for the others; stays for 15 minutes after its end.",
    "run",
    "state",
)
RANK_STATE = define(
    "trackside_training_rank_state", "1 for the current state of the rank, 0 for the others.", *RANK, "state"
)
STARTED = define("trackside_training_start_timestamp_seconds", "When the rank opened the run, in Unix time.", *RANK)
ENDED_AT = define(
    "trackside_training_end_timestamp_seconds", "When the rank ended, in Unix time; stays for 15 minutes.", *RANK
)
STEPS = define("trackside_training_steps_total", "Steps: the increase of step over the highest of this attempt.", *RANK)
SAMPLES = define("trackside_training_samples_total", "Sum of the pushed amounts of samples.", *RANK)
TOKENS = define("trackside_training_tokens_total", "Sum of the pushed amounts of tokens.", *RANK)
STEP = define("trackside_training_step", "The last pushed step.", *RANK)
VALUE = define(
    "trackside_training_value",
    "The last pushed value of a key without its own family; the label is the key as the user wrote it.",
    *RANK,
    "key",
)
NONFINITE = define("trackside_training_nonfinite_total", "Pushed values that were NaN or infinite.", *RANK, "key")
STEP_DURATION = Metric(
    "trackside_training_step_duration_seconds",
    "histogram",
    "Host time from the first push of a step to that of the next; divided by their difference.",
    RANK,
    "seconds",
    DURATION_BUCKETS,
)
STEP_PERCENTILES = define(
    "trackside_training_step_duration_percentile_seconds",
    "Quantiles of the step durations of the last 5 minutes, over the daemon's ranks, within 5 %.",
    "run",
    "percentile",
)
DATA_WAIT = Metric(
    "trackside_training_data_wait_seconds",
    "histogram",
    "Wait for each batch except an epoch's first; if the loader is wrapped in data().",
    RANK,
    "seconds",
    DURATION_BUCKETS,
)
FIRST_WAIT = Metric(
    "trackside_training_first_batch_wait_seconds",
    "histogram",
    "Wait for the first batch of each epoch; if the loader is wrapped in data().",
    RANK,
    "seconds",
    DURATION_BUCKETS,
)
PHASE_SECONDS = define(
    "trackside_training_phase_seconds_total",
    "Time by phase, without nested phases; time outside all phases is other, and the sum is the time since the start.",
    *RANK,
    "phase",
)
LOST = define(
    "trackside_training_lost_seconds_total",
    "Time in which nothing is trained, by cause; over all attempts; data, checkpoint and eval from phases of that "
    "kind; restart from an attempt's end to the next attempt's first step beyond it: gap, start, idle_before and "
    "repeated of the ledger; stall while the rank's state is stalled. No time counts twice.",
    *RANK,
    "cause",
)
GOODPUT = define(
    "trackside_training_goodput_ratio",
    "Share of useful compute in the rank's time; since its run began, over all attempts, as trackside show has it; "
    "read from the history every 15 s.",
    *RANK,
)
DEVICE_PHASE_SECONDS = define(
    "trackside_training_device_phase_seconds_total",
    "Time that the rank's GPU worked on a phase, from CUDA events, if the model is watched.",
    *RANK,
    "phase",
)
CHECKPOINTS = define(
    "trackside_training_checkpoints_total", "Checkpoints written, from the phase or the event checkpoint.", *RANK
)
CHECKPOINT_DURATION = Metric(
    "trackside_training_checkpoint_duration_seconds",
    "histogram",
    "Duration of each checkpoint, from the phase checkpoint or its event.",
    RANK,
    "seconds",
    DURATION_BUCKETS,
)
CHECKPOINT_BYTES = define("trackside_training_checkpoint_bytes", "Size of the last checkpoint, from its event.", *RANK)
CHECKPOINT_AT = define(
    "trackside_training_last_checkpoint_timestamp_seconds", "When the last checkpoint was written, in Unix time.", *RANK
)
STORED_CHECKPOINTS = define(
    "trackside_training_stored_checkpoints",
    "Checkpoints on disk by state (writing, complete, damaged), as the daemon's audits find them.",
    "run",
    "state",
)
LAST_GOOD_CHECKPOINT = define(
    "trackside_training_last_good_checkpoint_timestamp_seconds",
    "When the newest checkpoint that an audit has found intact was written, in Unix time.",
    "run",
)
LAST_GOOD_STEP = define(
    "trackside_training_last_good_checkpoint_step",
    "Step of the newest checkpoint that an audit has found intact.",
    "run",
)
NEXT_CHECKPOINT_BYTES = define(
    "trackside_training_next_checkpoint_bytes", "Expected size of the next checkpoint: that of the last one.", "run"
)
CHECKPOINT_ROOM = define(
    "trackside_training_checkpoint_room_ratio",
    "Free space of the checkpoints' directory over the expected size of the next; within the user's quota.",
    "run",
    "directory",
)
# The families that the daemon's audits of checkpoints export.
AUDITED = (STORED_CHECKPOINTS, LAST_GOOD_CHECKPOINT, LAST_GOOD_STEP, NEXT_CHECKPOINT_BYTES, CHECKPOINT_ROOM)
MODEL_FLOPS = define(
    "trackside_training_model_flops_total",
    "Floating-point operations of the model on the rank; if the run sets how many a step or token needs.",
    *RANK,
)
ENERGY = define(
    "trackside_training_energy_joules_total",
    "Energy of the rank's GPUs since its run began; the difference of nvmlDeviceGetTotalEnergyConsumption; a GPU that "
    "several ranks share is divided; absent if a GPU of the rank has no counter.",
    *RANK,
)
COST = define(
    "trackside_training_cost_total",
    "Costs of the rank since its run began, by the configured prices; its GPUs by time, and their energy with PUE; "
    "absent without a price.",
    *RANK,
    "currency",
)
# The families of a `trackside.wire.Memory`, by its fields.
MEMORY = {
    "allocated": define(
        "trackside_training_device_memory_allocated_bytes",
        "Memory of a GPU that tensors of the rank use, from torch.cuda.memory_stats.",
        *RANK,
        "uuid",
    ),
    "reserved": define(
        "trackside_training_device_memory_reserved_bytes",
        "Memory of a GPU that the rank's allocator has reserved, from torch.cuda.memory_stats.",
        *RANK,
        "uuid",
    ),
    "peak": define(
        "trackside_training_device_memory_peak_bytes",
        "The most memory of a GPU that tensors of the rank have used; since the run began, as sampled at steps.",
        *RANK,
        "uuid",
    ),
    "out_of_memory": define(
        "trackside_training_device_out_of_memory_total",
        "Failed allocations on a GPU, from torch.cuda.memory_stats.",
        *RANK,
        "uuid",
    ),
}
LAST_STEP = define(
    "trackside_training_last_step_timestamp_seconds", "When the last push happened, in Unix time.", *RANK
)
PROGRESS = define("trackside_training_progress_ratio", "Completed share of the run's total_steps.", *RANK)
REMAINING = define(
    "trackside_training_remaining_seconds",
    "Remaining steps times the recent step duration; only if total_steps is known.",
    *RANK,
)
PUSHES = define("trackside_training_client_pushes_total", "Calls of push.", *RANK)
DROPPED = define(
    "trackside_training_client_dropped_total",
    "Pushed values that the client dropped; not a number, or no room while no daemon was running.",
    *RANK,
)
RESENT = define("trackside_training_client_resent_total", "Batches that the client resent.", *RANK)
SPOOLED = define(
    "trackside_training_client_spooled_total",
    "Messages that the client wrote to disk; because no daemon had acknowledged them for a second.",
    *RANK,
)
OVERHEAD = define("trackside_training_client_overhead_seconds_total", "CPU time of the client's sender thread.", *RANK)
SHM_SIZE = define(
    "trackside_training_shm_size_bytes",
    "Size of /dev/shm as the training process sees it; also in a container with a separate one, from statvfs(3).",
    *RANK,
)
SHM_USED = define(
    "trackside_training_shm_used_bytes",
    "Used bytes of /dev/shm as the training process sees it; of all processes; from statvfs(3).",
    *RANK,
)
SHM_PEAK = define(
    "trackside_training_shm_peak_bytes",
    "The most used bytes of /dev/shm since the client's last report; at most 10 s ago; from statvfs(3).",
    *RANK,
)
OPEN_FDS = define(
    "trackside_training_open_fds", "Open file descriptors of the training process, from /proc/self/fd.", *RANK
)
MAX_FDS = define(
    "trackside_training_max_fds",
    "Limit of open file descriptors of the training process; the soft RLIMIT_NOFILE; absent if there is none.",
    *RANK,
)
# The families of a `trackside.wire.Room`, by its fields.
ROOM = {
    "shm_size": SHM_SIZE,
    "shm_used": SHM_USED,
    "shm_peak": SHM_PEAK,
    "open_fds": OPEN_FDS,
    "max_fds": MAX_FDS,
}

PEAK_FLOPS = define(
    "trackside_training_peak_flops_per_second",
    "Peak FLOP/s of the rank's GPUs; the run's own value, else dense tensor operations in bfloat16 (float16 before "
    "Ampere) by their data sheets; a GPU that several ranks share is divided; absent where one is unknown, with MIG, "
    "or while no process of the rank is on a GPU.",
    *RANK,
)
STRAGGLER_RATIO = define(
    "trackside_training_straggler_ratio",
    "Own time per step over that of the machine's median rank; in phases in which it waits for no other rank, over 20 "
    "steps and 10 s or more. Absent if the run has one rank on this machine, or pushes no phases.",
    *RANK,
)
SERIES_REJECTED = define(
    "trackside_series_rejected_total", "Series over a limit, which are not on this page.", "reason"
)
REJECTIONS = ("runs", "sessions", "keys", "series", "label_length")

_GAUGES = {
    "loss": "Training loss, as pushed.",
    "accuracy": "Accuracy, as pushed.",
    "learning_rate": "Learning rate, as pushed under learning_rate or lr.",
    "grad_norm": "Norm of the gradients, as pushed; or computed by the daemon from the parts that all ranks push.",
    "epoch": "Epoch, as pushed.",
    "grad_norm_local_squared": "Sum of the squares of this rank's part of the gradients, if they are sharded.",
}
KNOWN = {key: define(PREFIX + key, text, *RANK) for key, text in _GAUGES.items()}
KNOWN["lr"] = KNOWN["learning_rate"]
# Keys whose values are amounts of one step: the client sums them, and they have no series of their own.
AMOUNTS = frozenset(("samples", "tokens"))

NAMES = {"lr": "learning_rate"}  # short forms of keys, each with the long form that replaces it once that is pushed
LOSS_ENDS, LOSS_BEGINS = ("/loss", "_loss"), "loss/"

_LAYER_GAUGES = {
    "norm": ("norm", "Norm of a layer's values"),
    "mean": ("mean", "Mean of a layer's values"),
    "std": ("std", "Standard deviation of a layer's values"),
    "largest": ("largest", "Largest magnitude of a layer's values"),
    "zeros": ("zeros_ratio", "Share of zeros among a layer's values"),
    "nonfinite": ("nonfinite_ratio", "Share of NaN and infinities among a layer's values"),
    "saturated": ("saturated_ratio", "Share of outputs within 2 % of a layer's largest"),
    "update_ratio": ("update_ratio", "Norm of the last step's change of a layer's weights over their norm"),
    "rank": ("update_rank", "Effective rank of the last step's change of a layer's weights"),
    "entropy": (
        "attention_entropy_ratio",
        "Entropy of a head's attention, 1 if it attends to all keys equally",
    ),
    "logit": ("attention_largest_logit", "Largest magnitude of a head's attention logits"),
}
_LAYER_AT = "as last measured by run.observe on the rank; only of layers that limits.layers selects."

LAYER_COLUMNS = {
    column: define(f"trackside_layer_{name}", f"{text}, {_LAYER_AT}", *RANK, "kind", "layer")
    for column, (name, text) in _LAYER_GAUGES.items()
}
"""The family of each column; ``size``, which never changes, has none."""


def is_loss(key: str) -> bool:
    """Return whether a key is a loss by its name: ``loss``, ``*/loss``, ``*_loss``, ``loss/*``."""
    return key == "loss" or key.endswith(LOSS_ENDS) or key.startswith(LOSS_BEGINS)


_VARIANT = (*RANK, "variant")
_LOAD = (*_VARIANT, "load")


def _gauge(name: str, text: str, labels: tuple[str, ...] = _VARIANT) -> Metric:
    return define(f"trackside_model_{name}", f"{text}, as trackside benchmark measured it.", *labels)


_TIMES = {
    "latency": "Duration of a call or a request",
    "ttft": "Time to first token",
    "tpot": "Time per output token after the first",
}
_AGREEMENT = _gauge("agreement", "Agreement of the outputs with those of the first variant", (*_VARIANT, "measure"))
_SPEEDUP = _gauge("speedup_ratio", "How many times as fast as the first variant", (*_LOAD, "bound"))
_PERCENTILES = {"p50": "50", "p90": "90", "p99": "99"}

MODEL_SERIES: dict[str, tuple[Metric, tuple[str, ...]]] = {
    "throughput": (_gauge("throughput_per_second", "Inputs, tokens or calls per second", _LOAD), ()),
    "requests_per_second": (_gauge("requests_per_second", "Completed requests per second", _LOAD), ()),
    "parameters": (_gauge("parameters", "Number of parameters"), ()),
    "weights_bytes": (_gauge("weights_bytes", "Weights in memory"), ()),
    "memory_bytes": (_gauge("memory_bytes", "Peak host memory of loading and one call"), ()),
    "device_memory_bytes": (_gauge("device_memory_bytes", "Peak device memory"), ()),
    "load_seconds": (_gauge("load_seconds", "Time to load"), ()),
    "first_call_seconds": (_gauge("first_call_seconds", "Duration of the first call"), ()),
    "speedup": (_SPEEDUP, ("value",)),
    "speedup_low": (_SPEEDUP, ("low",)),
    "speedup_high": (_SPEEDUP, ("high",)),
    **{name: (_AGREEMENT, (name,)) for name in ("largest_difference", "cosine", "top1", "kl")},
}
"""By the last part of a key: the family, and the values of its labels after variant and load."""

for _name, _text in _TIMES.items():
    _percentile = _gauge(f"{_name}_seconds", _text, (*_LOAD, "percentile"))
    _mean = _gauge(f"{_name}_mean_seconds", f"Mean: {_text[0].lower()}{_text[1:]}", _LOAD)
    MODEL_SERIES |= {f"{_name}_{part}_seconds": (_percentile, (value,)) for part, value in _PERCENTILES.items()}
    MODEL_SERIES[f"{_name}_mean_seconds"] = (_mean, ())

MODEL_KEY = "model/"


def model_series(key: str, rank: tuple[str, ...]) -> tuple[Metric, tuple[str, ...]] | None:
    """Return the series of a key ``model/VARIANT/MEASURE`` or ``model/VARIANT/LOAD/MEASURE``; None for other keys."""
    if not key.startswith(MODEL_KEY):
        return None
    variant, _, rest = key.removeprefix(MODEL_KEY).partition("/")
    load, _, measure = rest.rpartition("/")
    if not variant or measure not in MODEL_SERIES:
        return None
    metric, more = MODEL_SERIES[measure]
    return metric, (*rank, variant, *((load,) if "load" in metric.labels else ()), *more)
