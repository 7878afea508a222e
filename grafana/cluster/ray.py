"""Panels about Ray."""

from __future__ import annotations

from grafana.board import Row
from grafana.panels import Query, above, lines

from trackside_daemon.alerts.settings import ThresholdsSection

LIMITS = ThresholdsSection()
NONE = "no collector ray"


def row() -> Row:
    """Return the row, which is empty without the collector ray."""
    return Row("Ray", _nodes(), _actors(), _restarts(), _used(), _store())


def _nodes() -> object:
    return lines(
        "Ray nodes",
        "Nodes of the cluster by state, from its dashboard. One that ended and that nobody had stopped is RayNodeDead.",
        "none",
        Query("max by (state) (trackside_ray_nodes{HERE})", "{{state}}"),
        empty=NONE,
        minimum=0,
        width=8,
    )


def _actors() -> object:
    return lines(
        "Ray actors and tasks",
        "Actors of the cluster and unfinished tasks, by state. Actors that restart again and again are RayActorsRestarting.",
        "none",
        Query("max by (state) (trackside_ray_actors{HERE})", "actors {{state}}"),
        Query("sum by (state) (trackside_ray_tasks{HERE})", "tasks {{state}}"),
        empty=NONE,
        minimum=0,
        width=8,
    )


def _restarts() -> object:
    return lines(
        "Ray actor restarts",
        "Restarts of actors in the last ten minutes. Several are RayActorsRestarting: `ray list actors` has the reason.",
        "none",
        Query("max(increase(trackside_ray_actor_restarts_total{HERE}[10m]))", "restarts"),
        levels=above(LIMITS.ray_actor_restarts),
        empty=NONE,
        minimum=0,
        width=8,
    )


def _used() -> object:
    used = 'sum by (resource) (trackside_ray_node_resources{HERE, state="used"})'
    return lines(
        "Ray resources in use",
        "Share of each resource that Ray has given to tasks and actors, over all nodes with a daemon. It is a booking, not a use.",
        "percentunit",
        Query(f"{used} / (sum by (resource) (trackside_ray_node_resources{{HERE}}) > 0)", "{{resource}}"),
        empty=NONE,
        minimum=0,
        maximum=1,
        width=12,
    )


def _store() -> object:
    return lines(
        "Ray object stores",
        "Share of each node's object store in use. From 0.9 on, objects go to disk: RayObjectStoreFull.",
        "percentunit",
        Query(
            "trackside_ray_object_store_used_bytes{HERE} / (trackside_ray_object_store_size_bytes{HERE} > 0)",
            "{{ray_node}}",
        ),
        levels=above(LIMITS.ray_object_store_ratio),
        empty=NONE,
        minimum=0,
        maximum=1,
        width=12,
    )
