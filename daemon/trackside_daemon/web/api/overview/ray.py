"""Ray in the overview: the values of its collector."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trackside_daemon.model.families import ray as f
from trackside_daemon.web.api.overview.machine import without_none

if TYPE_CHECKING:
    from trackside_daemon.model.state import State


def ray_json(state: State, now: float) -> dict[str, Any] | None:
    """Return the cluster and the nodes on this machine; None without Ray. *now* is in seconds of the monotonic clock."""
    up, parts, used, sizes, tasks, cluster, nodes, actors, restarts, infos = state.values(
        now, f.UP, f.RESOURCES, f.STORE_USED, f.STORE_SIZE, f.TASKS, f.CLUSTER, f.NODES, f.ACTORS, f.RESTARTS, f.ACTOR
    )
    if not up and not nodes:
        return None
    resources: dict[str, dict[str, dict[str, Any]]] = {}
    for (node, resource, kind), amount in parts.items():
        resources.setdefault(node, {}).setdefault(resource, {})[kind] = amount
    return {
        **{
            name: {labels[0]: value for labels, value in values.items()}
            for name, values in (("cluster", cluster), ("nodes", nodes), ("actors", actors), ("tasks", tasks))
        },
        **without_none(restarts=restarts.get(())),
        "local_nodes": [
            {
                "node": labels[0],
                "up": value == 1.0,
                "resources": resources.get(labels[0], {}),
                **without_none(store_used_bytes=used.get(labels), store_bytes=sizes.get(labels)),
            }
            for labels, value in sorted(up.items())
        ],
        "local_actors": [dict(zip(f.ACTOR.labels, labels, strict=True)) for labels in sorted(infos)],
    }
