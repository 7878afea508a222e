"""The settings of costs and reports."""

from collections.abc import Sequence
from math import isfinite
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

from trackside_daemon.config.section import Section
from trackside_daemon.model.setting_types import Texts, bound, setting
from trackside_daemon.model.text import matches_wildcards


def _parse(entry: str) -> tuple[str, float]:
    """Return pattern and price of ``PATTERN=PRICE``."""
    pattern, _, price = entry.rpartition("=")
    return pattern, float(price)


def _prices(entries: tuple[str, ...]) -> tuple[str, ...]:
    for entry in entries:
        try:
            pattern, price = _parse(entry)
        except ValueError:
            pattern, price = "", 0.0
        if not pattern or not price >= 0 or not isfinite(price):
            raise ValueError(f"{entry!r}: each must be PATTERN=PRICE, such as *H100*=2.5")
    return entries


class CostSection(Section):
    """Prices, for the costs of runs. Without a price nothing is estimated."""

    gpu_hour: Annotated[Texts, AfterValidator(_prices)] = setting(
        "Price of a GPU hour by the GPU's name, its host or a tag of the run, with * and ?; the first match counts.",
        (),
        examples=["*H100*=2.5,*=1.2"],
    )
    currency: str = setting("Currency of the prices.", "", max_length=8, examples=["EUR"])
    kwh: float | None = bound("Price of a kilowatt hour.", None)
    carbon_grams_per_kwh: float | None = bound("Grams of CO2 for a kilowatt hour of your grid, such as 380.", None)
    pue: float = bound("Power usage effectiveness: energy of the whole site over that of its machines.", 1.0, least=1.0)
    source: str = setting("Source of these numbers, such as: contract of 2026.", "", max_length=200)

    def price(self, names: Sequence[str]) -> float | None:
        """Return the price of a GPU for an hour, by names of GPUs, of their host, and tags; None if it has none."""
        prices = (
            price
            for pattern, price in map(_parse, self.gpu_hour)
            if any(matches_wildcards(name, pattern) for name in names)
        )
        return next(prices, None)


def _steps(value: object) -> object:
    return value.removesuffix("steps").strip() if isinstance(value, str) else value


class ReportsSection(Section):
    """Reports that the daemon writes at the end of each run."""

    path: str = setting(
        "Directory for a report of each run at its end, RUN.html; the daemon deletes none.",
        "",
        examples=["/srv/trackside/reports"],
    )
    every: Annotated[int, BeforeValidator(_steps), Field(ge=0)] = setting(
        "Steps between two writes of a run's files in storage.experiment-directory, at most one a minute; 0 for its "
        "end alone.",
        0,
    )
