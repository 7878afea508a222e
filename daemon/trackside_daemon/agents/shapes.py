"""The shapes of answers to agents, of which the tools' output schemas are made; every field may be absent."""

from typing import Any, Literal, TypedDict

Number = float | Literal["nan", "inf", "-inf"]
Health = Literal["ok", "slow", "broken"]


class Answer(TypedDict, total=False):
    """What any answer may have."""

    left_out: dict[str, int]
    next: int
    now: float


class Alert(TypedDict, total=False):
    """An alert; ``ended`` is absent while it fires."""

    id: int
    alert: str
    severity: str
    started: float
    ended: float
    silenced_until: float
    run: str
    summary: str
    advice: str


class Checkpoint(TypedDict, total=False):
    """A checkpoint; ``good``: an audit has found it intact."""

    path: str
    step: int
    state: str
    good: bool
    reason: str
    age_seconds: float
    checked: float
    value: Number
    attempt: int


class Run(TypedDict, total=False):
    """A run; ``summary`` has its results as pairs."""

    id: str
    name: str
    state: str
    cause: str
    started: float
    ended: float
    attempt: int
    step: int
    loss: Number
    tags: list[str]
    summary: list[list[str | float | bool]]


class Standing(Run, total=False):
    """A run, and how it stands."""

    health: Health
    verdict: str
    total_steps: int
    remaining_seconds: Number
    unsaved_seconds: float
    checkpoint: Checkpoint | None
    firing: list[Alert]


class Cause(TypedDict, total=False):
    """A cause of lost time or trouble."""

    cause: str
    summary: str
    lost_seconds: float
    low: float
    high: float
    gpu_hours: float
    cost: float
    advice: str
    check: str
    evidence: list[str]


class Overview(Answer, total=False):
    """The answer of ``overview``."""

    health: Health
    runs: list[Standing]
    more_alive: int
    machine_alerts: list[Alert]
    ended: list[Run]


class Runs(Answer, total=False):
    """The answer of ``runs``."""

    runs: list[Run]
    hint: str


class Why(Cause, Answer, total=False):
    """The answer of ``why``."""

    health: Health
    verdict: str | None
    hang: str | None
    run: Run
    wall_seconds: float
    ledger: dict[str, float]
    further_causes: list[Cause]


class Changes(Answer, total=False):
    """The answer of ``changes``."""

    since: float
    states: dict[str, int]
    began_alerts: int
    settings: list[dict[str, Any]]
    alerts: list[Alert]
    runs: list[Run]


class Rank(Answer, total=False):
    """The answer of ``rank``."""

    best: str | None
    tied_with: list[str]
    key: str
    ranked: list[dict[str, Any]]
    not_ranked: list[dict[str, str]]
    note: str


class Checkpoints(Answer, total=False):
    """The answer of ``checkpoints``."""

    resume_from: Checkpoint | None
    best: Checkpoint | None
    metric: str
    run: str
    check: str
    checkpoints: list[Checkpoint]


class Alerts(Answer, total=False):
    """The answer of ``alerts``."""

    alerts: list[Alert]


class Compare(Answer, total=False):
    """The answer of ``compare``."""

    effects: list[dict[str, Any]]
    runs: list[str]
    baseline: list[str]
    chosen: str
    missing: str


class Series(Answer, total=False):
    """The answer of ``series``: the keys, or curves with points of the columns."""

    keys: list[dict[str, Any]]
    columns: list[str]
    series: Any
    missing: list[str]


class Wait(Answer, total=False):
    """The answer of ``wait``."""

    reason: Literal["alert", "end", "step", "timeout", "stopping"]
    step: int | None
    state: str
    cause: str
    loss: Number
    run: str
    alerts: list[Alert]


class Capture(Answer, total=False):
    """The answer of ``capture``."""

    state: str
    id: str
    reason: str
    text: list[str]
