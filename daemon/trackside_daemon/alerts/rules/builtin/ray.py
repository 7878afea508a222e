"""Rules for Ray.

| alert | why this threshold |
|---|---|
| RayNodeDead | a node ended in the last ten minutes without having been stopped; Ray starts its actors again elsewhere, or waits |
| RayObjectStoreFull | near its size, the store writes objects to disk, which makes every task slow |
| RayActorsRestarting | one restart heals a fault; several in ten minutes are a fault that comes again |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside_daemon.alerts.rules.query import Query
from trackside_daemon.alerts.rules.rule import Rule
from trackside_daemon.model.families import ray

if TYPE_CHECKING:
    from trackside_daemon.alerts.settings import ThresholdsSection

LATELY = 600.0


def rules(thresholds: ThresholdsSection) -> list[Rule]:
    """Return the rules in the order of the table."""
    store = Query(ray.STORE_SIZE)
    return [
        Rule(
            "RayNodeDead",
            "warning",
            Query(ray.DEATHS, function="change", window=LATELY, above=0.0),
            "{value:whole} nodes of Ray ended unexpectedly in the last {window}",
        ),
        Rule(
            "RayObjectStoreFull",
            "warning",
            Query(
                ray.STORE_USED,
                over=store,
                on=("ray_node",),
                above=thresholds.ray_object_store_ratio,
            ),
            "the object store of Ray's node {ray_node} is {value:percent} full",
            lasting=60.0,
            keep_firing=60.0,
        ),
        Rule(
            "RayActorsRestarting",
            "warning",
            Query(
                ray.RESTARTS,
                function="change",
                window=LATELY,
                above=thresholds.ray_actor_restarts,
            ),
            "Ray restarted actors {value:whole} times in the last {window}",
        ),
    ]
