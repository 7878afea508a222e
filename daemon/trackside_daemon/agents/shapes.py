"""The shapes of answers to agents, of which the tools' output schemas are made; every field may be absent. Entries of lists name their fields."""

from typing import Any, Literal, TypedDict

Number = float | Literal["nan", "inf", "-inf"]
Entry = dict[str, Any]
Health = Literal["ok", "slow", "broken"]


class Answer(TypedDict, total=False):
    """What any answer may have."""

    left_out: dict[str, int]
    next: int
    now: float


class Overview(Answer, total=False):
    """The answer of ``overview``."""

    health: Health
    runs: list[Entry]
    more_alive: int
    machine_alerts: list[Entry]
    ended: list[Entry]


class Runs(Answer, total=False):
    """The answer of ``runs``."""

    runs: list[Entry]
    hint: str


class Why(Answer, total=False):
    """The answer of ``why``."""

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
    health: Health
    verdict: str | None
    hang: str | None
    run: Entry
    wall_seconds: float
    ledger: dict[str, float]
    further_causes: list[Entry]


class Changes(Answer, total=False):
    """The answer of ``changes``."""

    since: float
    states: dict[str, int]
    began_alerts: int
    settings: list[Entry]
    alerts: list[Entry]
    runs: list[Entry]


class Rank(Answer, total=False):
    """The answer of ``rank``."""

    best: str | None
    tied_with: list[str]
    key: str
    ranked: list[Entry]
    not_ranked: list[dict[str, str]]
    note: str


class Checkpoints(Answer, total=False):
    """The answer of ``checkpoints``."""

    resume_from: Entry | None
    best: Entry | None
    metric: str
    run: str
    check: str
    checkpoints: list[Entry]


class Alerts(Answer, total=False):
    """The answer of ``alerts``."""

    alerts: list[Entry]


class Compare(Answer, total=False):
    """The answer of ``compare``."""

    effects: list[Entry]
    runs: list[str]
    baseline: list[str]
    chosen: str
    missing: str


class Series(Answer, total=False):
    """The answer of ``series``: the keys, or curves with points of the columns."""

    keys: list[Entry]
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
    alerts: list[Entry]


class Capture(Answer, total=False):
    """The answer of ``capture``."""

    state: str
    id: str
    reason: str
    text: list[str]
