"""The families of the Ray collector."""

from trackside_daemon.model.metric import define

NODE = ("ray_node",)

UP = define(
    "trackside_ray_node_up",
    "1 while the raylet of a node on this machine runs, 0 for ten minutes after it ended, from /proc.",
    *NODE,
)
RESOURCES = define(
    "trackside_ray_node_resources",
    "Resources of a node on this machine by state, used or available, from its metrics port; memory in bytes.",
    *("ray_node", "resource", "state"),
)
STORE_USED = define(
    "trackside_ray_object_store_used_bytes",
    "Memory of a local node's object store in use, from its metrics port.",
    *NODE,
)
STORE_SIZE = define(
    "trackside_ray_object_store_size_bytes", "Memory of a local node's object store, from its metrics port.", *NODE
)
TASKS = define("trackside_ray_tasks", "Tasks that workers of the local nodes report, by state, not finished.", "state")
CLUSTER = define(
    "trackside_ray_cluster_resources",
    "Resources of all live nodes, as ray.cluster_resources(), from the dashboard; memory in bytes.",
    "resource",
)
NODES = define("trackside_ray_nodes", "Nodes of the cluster by state, from the dashboard.", "state")
DEATHS = define(
    "trackside_ray_node_deaths_total",
    "Nodes that ended unexpectedly since the daemon began; Ray says so, or their process on this machine is gone.",
)
ACTORS = define("trackside_ray_actors", "Actors of the cluster by state, from the dashboard.", "state")
RESTARTS = define("trackside_ray_actor_restarts_total", "Restarts of all actors that the dashboard lists.")
ACTOR = define(
    "trackside_ray_actor_info",
    "An actor's process on this machine, to be joined by pid with processes and GPUs; its name and job from the dashboard, "
    "otherwise its class from the title of the process. role is what actors of such a name do: generate, reward or train.",
    *("pid", "ray_actor", "ray_class", "role", "ray_job", "ray_node"),
)
