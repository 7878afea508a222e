"""Generator of the dashboards' JSON files: python -m grafana.generate."""

from __future__ import annotations

import argparse
from pathlib import Path

from grafana import daemons, fleet, gpus, training

DASHBOARDS = Path(__file__).parent / "dashboards"


def dashboards(cluster: str = "cluster") -> dict[str, str]:
    """Return the text of each file by its name; *cluster* is the label of the cluster."""
    texts = {f"{module.UID}.json": module.dashboard() for module in (training, gpus, fleet, daemons)}
    return {name: text.replace("CLUSTER", cluster) for name, text in texts.items()}


def main() -> None:
    """Write all files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cluster-label", metavar="NAME", default="cluster", help="label of the cluster")
    for name, text in dashboards(parser.parse_args().cluster_label).items():
        (DASHBOARDS / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
