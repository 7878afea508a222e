# Two nodes of Ray on this machine, a named actor, and a Ray Train job of two workers; prints what a test compares.
import json
import os
import signal
import sys
import time
from pathlib import Path

import ray
from ray.cluster_utils import Cluster
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

import trackside

PORT, FOLDER = int(sys.argv[1]), Path(sys.argv[2])


@ray.remote(num_cpus=1)
class RolloutWorker:
    def pid(self):
        return os.getpid()


def train(config):
    step = 0
    while not Path(config["folder"], "stop").exists():
        trackside.push(step=step, loss=1.0 / (step + 1))
        step += 1
        time.sleep(0.05)
    trackside.finish()


def say(**values):
    print(json.dumps(values), flush=True)


def main():
    store = {"object_store_memory": 100 * 2**20}
    head = {"num_cpus": 3, "include_dashboard": True, "dashboard_host": "127.0.0.1", "dashboard_port": PORT, **store}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    second = cluster.add_node(num_cpus=2, **store)
    ray.init(address=cluster.address, log_to_driver=False)
    actor = RolloutWorker.options(name="sampler-0").remote()
    say(resources=ray.cluster_resources(), pid=ray.get(actor.pid.remote()))
    if sys.stdin.readline().strip() == "train":
        TorchTrainer(
            train,
            train_loop_config={"folder": str(FOLDER)},
            scaling_config=ScalingConfig(num_workers=2, use_gpu=False),
            run_config=RunConfig(name="two-workers", storage_path=str(FOLDER)),
        ).fit()
        say(trained=True)
    sys.stdin.readline()
    os.kill(second.all_processes["raylet"][0].process.pid, signal.SIGKILL)
    say(killed=True)
    sys.stdin.readline()
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main()
