"""Renders deploy/helm in a process of its own, since Helm's library starts Go's threads: ``helm_chart.py VALUES…``, as JSON."""

import json
import sys
from pathlib import Path

import helm_python as helm

CHART = Path(__file__).parents[2] / "deploy" / "helm"


def rendered(values: dict[str, object]) -> dict[str, object]:
    """Return the files that Helm makes of the chart, or its error."""
    try:
        with helm.Chart.load(str(CHART)) as chart:
            chart.validate_schema(values)
            return {"files": chart.render(values, name="trackside", namespace="trackside")}
    except helm.HelmError as error:
        return {"error": str(error)}


if __name__ == "__main__":
    findings = helm.lint(str(CHART), strict=True)
    json.dump({"lint": findings, "made": [rendered(json.loads(text)) for text in sys.argv[1:]]}, sys.stdout)
