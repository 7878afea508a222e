"""The table of all questions."""

from trackside_daemon.questions.alerts import Alert, Alerts, Batches, Silences
from trackside_daemon.questions.artifacts import Capture, Captures, Checkpoints, Code, Console, Media, RunCaptures
from trackside_daemon.questions.diagnosis import Comparison, Diagnosis, Performance, Report
from trackside_daemon.questions.runs import Events, Fleet, Keys, Run, Runs
from trackside_daemon.questions.series import Layer, LayerMap, LayerValues, OneSeries, Series

__all__ = [
    "Alert",
    "Alerts",
    "Batches",
    "Capture",
    "Captures",
    "Checkpoints",
    "Code",
    "Comparison",
    "Console",
    "Diagnosis",
    "Events",
    "Fleet",
    "Keys",
    "Layer",
    "LayerMap",
    "LayerValues",
    "Media",
    "OneSeries",
    "Performance",
    "Report",
    "Run",
    "RunCaptures",
    "Runs",
    "Series",
    "Silences",
]
