"""The families of the Ray collector."""

from __future__ import annotations

from trackside_daemon.model.metric import Metric

NODE = ("ray_node",)

UP = Metric(
    "trackside_ray_node_up",
    "gauge",
    "1 while the raylet of a node on this machine runs, 0 for ten minutes after it ended, from /proc.",
    NODE,
)
RESOURCES = Metric(
    "trackside_ray_node_resources",
    "gauge",
    "Resources of a node on this machine by state, used or available, from its metrics port; memory in bytes.",
    ("ray_node", "resource", "state"),
)
STORE_USED = Metric(
    "trackside_ray_object_store_used_bytes",
    "gauge",
    "Memory of a local node's object store in use, from its metrics port.",
    NODE,
    "bytes",
)
STORE_SIZE = Metric(
    "trackside_ray_object_store_size_bytes",
    "gauge",
    "Memory of a local node's object store, from its metrics port.",
    NODE,
    "bytes",
)
TASKS = Metric(
    "trackside_ray_tasks", "gauge", "Tasks that workers of the local nodes report, by state, not finished.", ("state",)
)
CLUSTER = Metric(
    "trackside_ray_cluster_resources",
    "gauge",
    "Resources of all live nodes, as ray.cluster_resources(), from the dashboard; memory in bytes.",
    ("resource",),
)
NODES = Metric("trackside_ray_nodes", "gauge", "Nodes of the cluster by state, from the dashboard.", ("state",))
DEATHS = Metric(
    "trackside_ray_node_deaths_total",
    "counter",
    "Nodes that ended unexpectedly since the daemon began: Ray says so, or their process on this machine is gone.",
)
ACTORS = Metric("trackside_ray_actors", "gauge", "Actors of the cluster by state, from the dashboard.", ("state",))
RESTARTS = Metric(
    "trackside_ray_actor_restarts_total", "counter", "Restarts of all actors that the dashboard lists.", ()
)
ACTOR = Metric(
    "trackside_ray_actor_info",
    "info",
    "An actor's process on this machine, to be joined by pid with processes and GPUs; its name and job from the dashboard, "
    "otherwise its class from the title of the process. role is what actors of such a name do: generate, reward or train.",
    ("pid", "ray_actor", "ray_class", "role", "ray_job", "ray_node"),
)

FAMILIES = (UP, RESOURCES, STORE_USED, STORE_SIZE, TASKS, CLUSTER, NODES, DEATHS, ACTORS, RESTARTS, ACTOR)
