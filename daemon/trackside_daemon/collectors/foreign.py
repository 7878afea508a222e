"""Families of other programs: merged from several parts, such as files, and checked as node_exporter checks them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from trackside_daemon.model.metric import ForeignMetric, Kind, Sample

SERIES = 20_000  # most series of all parts
# Most labels of a family, and characters of their names together: each of its series has them all on the page.
LABELS, LABEL_LETTERS = 64, 1024
# Names of the page that are the daemon's own.
RESERVED = ("trackside_", "process_", "python_")

Labels = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class ForeignFamily:
    """A family of one part."""

    # ``counter``, ``gauge`` or ``unknown``: a histogram's and a summary's series are families of their own.
    kind: Kind = "unknown"
    help: str | None = None  # its help text; None without one
    series: dict[Labels, float] = field(default_factory=dict)  # the values by the pairs of label and value, sorted
    declared: str = "untyped"  # its type as it was written


Part = Mapping[str, ForeignFamily]


def _labels(family: ForeignFamily) -> frozenset[str]:
    return frozenset([label for pairs in family.series for label, _ in pairs])


def _too_many(labels: Mapping[str, frozenset[str]]) -> str:
    """Return which family has too many labels; empty if none has."""
    for name, found in labels.items():
        if len(found) > LABELS or sum(map(len, found)) > LABEL_LETTERS:
            return f"{name} has more than {LABELS} labels, or {LABEL_LETTERS:,} characters of their names"
    return ""


class ForeignFamilies:
    """The names of all families of others, each of which one collector has at a time."""

    def __init__(self) -> None:
        self._owners: dict[str, str] = {}
        # Of each owner; the state knows a family by its identity.
        self._metrics: dict[str, dict[tuple[str, Kind, str, tuple[str, ...]], ForeignMetric]] = {}

    def merge(self, owner: str, parts: Iterable[tuple[str, Part]]) -> tuple[list[Sample], dict[str, str]]:
        """Return the samples of a collector's parts, and what is wrong, by part; only another help text costs nothing.

        As in node_exporter, a label that some series of a family lack is empty there.
        """
        self._owners = {name: one for name, one in self._owners.items() if one != owner}
        merged: dict[str, ForeignFamily] = {}
        sources: dict[str, list[str]] = {}
        wrong: dict[str, str] = {}
        labels: dict[str, frozenset[str]] = {}
        count = 0
        for part, families in parts:
            of_part = {name: _labels(family) | labels.get(name, frozenset()) for name, family in families.items()}
            problem = self._problem(families, merged) or _too_many(of_part)
            more = sum(len(family.series) for family in families.values())
            if problem or count + more > SERIES:
                wrong[part] = problem or f"with it, there are more than {SERIES:,} series"
                continue
            count += more
            labels |= of_part
            for name, family in families.items():
                known = merged.setdefault(name, ForeignFamily(family.kind, family.help, {}, family.declared))
                if known.help is None:
                    known.help = family.help
                elif family.help is not None and family.help != known.help:
                    wrong[part] = f"{name} has another help text in {', '.join(sources[name])}"
                known.series |= family.series
                sources.setdefault(name, []).append(part)
        self._owners |= dict.fromkeys(merged, owner)
        found = []
        before = self._metrics.get(owner, {})
        self._metrics[owner] = metrics = {}
        for name, family in merged.items():
            text = family.help if family.help is not None else f"Metric read from {', '.join(sources[name])}"
            key = name, family.kind, text, tuple(sorted(labels[name]))
            metric = metrics[key] = before.get(key) or ForeignMetric(*key)
            for pairs, value in family.series.items():
                values = dict(pairs)
                found.append(Sample(metric, tuple([values.get(label, "") for label in metric.labels]), value))
        return found, wrong

    def _problem(self, families: Part, merged: Part) -> str:
        """Return why a part cannot be served beside the others; empty if it can."""
        for name, family in families.items():
            if name.startswith(RESERVED):
                return f"{name} is a name of the daemon itself"
            if name in self._owners:
                return f"{name} comes from the collector {self._owners[name]} already"
            if known := merged.get(name):
                if known.declared != family.declared:
                    return f"{name} is a {family.declared}, and elsewhere a {known.declared}"
                if known.series.keys() & family.series.keys():
                    return f"{name} has a series that another file has"
        return ""
