"""The committed dashboards are the generator's output."""

from __future__ import annotations

import warnings

import pytest
from grafana.boards import DASHBOARDS

pytest.importorskip("grafana_foundation_sdk", reason="the generator's library needs Python 3.11")
with warnings.catch_warnings():
    # The library would have us take a schema that Grafana before 13 cannot read.
    warnings.simplefilter("ignore", DeprecationWarning)
    from grafana.generate import dashboards

MADE = dashboards()


def test_there_are_no_others() -> None:
    assert {file.name for file in DASHBOARDS.glob("*.json")} == set(MADE)


@pytest.mark.parametrize("name", MADE)
def test_a_dashboard_is_as_its_generator_writes_it(name: str) -> None:
    written = (DASHBOARDS / name).read_text(encoding="utf-8")
    assert written == MADE[name], "run: python -m grafana.generate"


def test_the_label_of_the_cluster_can_be_chosen() -> None:
    for text in dashboards("site").values():
        assert 'site=~\\"$cluster\\"' in text
        assert "cluster=~" not in text
