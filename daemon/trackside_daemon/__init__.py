"""The daemon beside a training job: samples, takes pushes, and tells Prometheus."""

from __future__ import annotations

__version__ = "0.1.0"
