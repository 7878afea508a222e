"""Versions of the frameworks that the integrations are tested with: the newest, and the oldest of tests/oldest.txt."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

FRAMEWORKS = ("accelerate", "lightning", "pytorch-ignite", "torch", "transformers")


def pytest_report_header() -> str:
    return "frameworks: " + ", ".join(f"{name} {_version(name)}" for name in FRAMEWORKS)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "none"
