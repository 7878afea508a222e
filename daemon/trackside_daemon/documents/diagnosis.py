"""Diagnoses of runs: in at most 25 lines for a terminal, and in tables that have all of it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from trackside_daemon.diagnosis.costs import JOULES_PER_KWH
from trackside_daemon.documents import run
from trackside_daemon.documents.elements import Bar, Cell, Document, Lines, Table, columns, listing
from trackside_daemon.model.text import duration, measured, percent, shown
from trackside_daemon.model.time_ledger import ACCOUNTS

LINES = 25  # most lines
RESUMES = 2  # most verdicts on resumes, the newest
PROVEN = 2  # lines of evidence of a cause, of the first one
WORDS = {"step_time": "step time", "gpu_memory": "GPU memory", "host_memory": "host memory"}
STEPS = "1000_steps"
UNITS = {STEPS: "1,000 steps", "million_tokens": "million tokens", "wasted_hour": "wasted hour"}
STATISTICS = ("mean", "std", "min", "max", "p50", "p95")
COLORS = 8  # of accounts
NOTHING_COSTLY = "nothing cost more than 5 % of the time or a minute"
LIMITS = listing("", ["Times lost are upper limits."])


def lines(diagnosis: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of `trackside why`: where the time went, then the causes, the costliest first, and the rest."""
    head = list(_head(diagnosis))
    tail = list(_brief(diagnosis))
    yield from head
    causes = listed_causes(diagnosis)
    if not causes and diagnosis.get("health", "ok") == "ok":
        yield NOTHING_COSTLY
    room = LINES - len(head) - len(tail) - 1
    listed = 0
    for place, cause in enumerate(causes, 1):
        block = list(_cause(place, cause, diagnosis["costs"]))
        if len(block) > room:
            break
        yield from block
        room -= len(block)
        listed = place
    if len(causes) > listed:
        yield f"{len(causes) - listed} more: {', '.join(cause['cause'] for cause in causes[listed:])} (--json)"
    yield from tail


def _head(diagnosis: Mapping[str, Any]) -> Iterator[str]:
    wall = diagnosis["wall_seconds"]
    ranks = diagnosis["ranks"]
    yield f"{shown(diagnosis['name'])}: {duration(wall)}" + (f" on {ranks} ranks" if ranks > 1 else "")
    yield from (f"{name}: {shown(text)}" for name, text in _verdicts(diagnosis))
    shares = [(ACCOUNTS[name], seconds / wall) for name, seconds in diagnosis["ledger"].items() if wall]
    yield "time: " + ", ".join(f"{name} {percent(share)}" for name, share in shares if share >= 0.001)
    for title, found in (("energy", _energy(diagnosis)), ("cost", _cost(diagnosis))):
        if found:
            yield f"{title}: " + ", ".join(f"{name} {shown(text)}" for name, text in found.items())


def _verdicts(diagnosis: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the health of the run with what stops it, and how it went on after restarts."""
    if health := diagnosis.get("health"):  # older daemons do not report it
        yield "health", ": ".join(filter(None, (health, diagnosis["verdict"])))
    for resume in diagnosis.get("resumes", ())[-RESUMES:]:
        yield "resumed", resume.get("text", "")
    if (since := diagnosis.get("restarted_since")) is not None:
        yield "without restarts", f"it would have ended, or stood still, {duration(since)} earlier"


def listed_causes(diagnosis: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the causes that are worth a line; older daemons mark none."""
    return [cause for cause in diagnosis["causes"] if cause.get("listed", True)]


def _cause(place: int, cause: Mapping[str, Any], costs: Mapping[str, Any]) -> Iterator[str]:
    cost = "" if cause["cost"] is None else f", {_money(cause['cost'], costs)}"
    yield f"{place}. {cause['cause']}: {shown(cause['summary'])}{cost}"
    if cause["lost_seconds"] is not None:
        yield f"   expected gain: {_gain(cause)}"
    proven = [shown(one["text"]) for one in cause["evidence"] if cause["summary"] not in one["text"]]
    yield from (f"   {text}" for text in proven[: PROVEN if place == 1 else 1])
    yield f"   try: {cause['advice']}"
    yield f"   check: {cause['check']}"


def _brief(diagnosis: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line each of advice, of the comparison, of trends, and of what is not known."""
    comparison = diagnosis["comparison"]
    which = {"name": "the run before of this name"}.get(comparison["chosen"], comparison["chosen"])
    effects = [one for one in comparison["effects"] if one["ratio"] is not None and one["quantity"] != "step_time_p25"]
    trends = list(run.trend_lines(one for one in diagnosis["trends"] if one["low"] * one["high"] > 0))
    parts = (
        ("next time", 1, [f"{one['summary']}: {one['advice']}" for one in diagnosis["suggestions"]]),
        (
            f"against {', '.join(comparison['baseline'][:3])} ({which})",
            5,
            [f"{_named(one)} {change(one)}" for one in effects],
        ),
        ("slower steps", 1, [comparison["conclusion"]] if comparison["conclusion"] else []),
        ("trend per 1,000 steps", 3, trends),
        ("unknown", 3, [f"{one['what']} ({one['why']})" for one in diagnosis["unknown"]]),
    )
    for title, most, texts in parts:
        if texts:
            more = f"; {len(texts) - most} more: --json" if len(texts) > most else ""
            yield shown(f"{title}: {'; '.join(texts[:most])}{more}")


def _named(effect: Mapping[str, Any]) -> str:
    """Return the name of what an effect is about."""
    return WORDS.get(effect["quantity"], shown(effect["quantity"]).replace("_at_tokens", " at equal tokens"))


def change(effect: Mapping[str, Any]) -> str:
    """Return the difference from the baseline, with its interval; ``-`` if there is none."""
    if effect.get("nonfinite"):  # older daemons do not report it
        return "NaN"
    ratio, *ends = (effect.get(name) for name in ("ratio", "low", "high"))
    known = [percent(end - 1, "+") for end in ends if end is not None]
    return "-" if ratio is None else percent(ratio - 1, "+") + (f" ({' to '.join(known)})" if known else "")


def document(diagnosis: Mapping[str, Any]) -> Document:
    """Return all of a diagnosis."""
    about = [diagnosis["name"]], [diagnosis]
    verdicts = Table("", (), list(_verdicts(diagnosis)))
    return Document(f"Where the time of {diagnosis['name']} went", [verdicts, *where(*about), *more(*about), LIMITS])


def summary(diagnosis: Mapping[str, Any]) -> Document:
    """Return the most important parts of a diagnosis, in `lines`."""
    return Document("", [listing("", lines(diagnosis))])


def where(labels: Sequence[str], diagnoses: Sequence[Mapping[str, Any]]) -> Iterator[Table]:
    """Yield where the time, the energy and the money went, why, and what to try; *labels* are the names of the runs."""
    accounts = list(dict.fromkeys(name for one in diagnoses for name in one["ledger"]))
    yield columns("where the time went", labels, [_ledger(one, accounts) for one in diagnoses])
    header = ("cause", "expected gain", "evidence", "try", "check")
    yield labelled("causes, and what to try", header, labels, map(_causes, diagnoses))
    yield labelled("for the next run", ("what", "evidence", "try"), labels, map(_advice, diagnoses))
    compared = ("quantity", "this run", "baseline", "difference")
    yield labelled("against the baseline", compared, labels, map(_effects, diagnoses))
    yield columns("energy", labels, map(_energy, diagnoses))
    yield columns("cost", labels, map(_cost, diagnoses))


def more(labels: Sequence[str], diagnoses: Sequence[Mapping[str, Any]]) -> Iterator[Table]:
    """Yield trends, resources, and what is not known."""
    rows_of = [run.trend_rows(one["trends"]) for one in diagnoses]
    yield labelled("trends", run.TRENDS, labels, rows_of, "<>>>>>>")
    yield resources("resources", labels, diagnoses)
    rows = [[(one["what"], one["why"]) for one in diagnosis["unknown"]] for diagnosis in diagnoses]
    yield labelled("what is not known", ("what", "why"), labels, rows)


def resources(title: str, labels: Sequence[str], diagnoses: Iterable[Mapping[str, Any]]) -> Table:
    """Return a row for each quantity of a GPU, a process or the host."""
    rows = ([list(_quantity(row)) for row in one["resources"]] for one in diagnoses)
    return labelled(title, ("quantity", "of", "ranks", *STATISTICS), labels, rows, "<<<>>>>>>")


def used(diagnosis: Mapping[str, Any]) -> Document:
    """Return the resources of a run, and what the next one may need."""
    advice = [f"next time: {one['summary']}: {one['advice']}" for one in diagnosis["suggestions"]]
    found = resources("", [diagnosis["name"]], [diagnosis])
    nothing = [] if found.rows else ["no GPU, host or process was read in the time of this run"]
    return Document(f"Resources of {diagnosis['name']}", [found, listing("", [*nothing, *advice])])


def labelled(
    title: str, header: Sequence[str], labels: Sequence[str], parts: Iterable[Iterable[Sequence[Cell]]], right: str = ""
) -> Table:
    """Return a table with the rows of all runs; those of several begin with the run's name."""
    flexible = "~" if right else " " * (len(header) - 1) + "="  # numbers are short; the last of other cells is a text
    if len(labels) == 1:
        return Table(title, header, [row for part in parts for row in part], right, flexible)
    rows = [(label, *row) for label, part in zip(labels, parts, strict=True) for row in part]
    return Table(title, ("run", *header), rows, f"<{right}", f"~{flexible}")


def _ledger(diagnosis: Mapping[str, Any], accounts: Sequence[str]) -> dict[str, Cell]:
    """Return a bar for each account; *accounts* are those of all runs, so that an account has one color."""
    wall = diagnosis["wall_seconds"] or 1.0
    entries: dict[str, Cell] = {}
    parts: list[tuple[float, float, str]] = []
    for account, seconds in diagnosis["ledger"].items():
        begin = parts[-1][1] if parts else 0.0
        parts.append((begin, begin + seconds / wall, f"c{accounts.index(account) % COLORS}"))
        entries[ACCOUNTS[account]] = Bar(f"{percent(seconds / wall)}, {duration(seconds)}", parts[-1:])
    return {"all": Bar(duration(wall), parts), **entries} if parts else entries


def _causes(diagnosis: Mapping[str, Any]) -> Iterator[Sequence[Cell]]:
    for cause in listed_causes(diagnosis):
        gain = [] if cause["lost_seconds"] is None else [_gain(cause)]
        gain += [] if cause["cost"] is None else [f"at most {_money(cause['cost'], diagnosis['costs'])}"]
        evidence = Lines([one["text"] for one in cause["evidence"]])
        yield cause["summary"], ", ".join(gain) or "-", evidence, cause["advice"], cause["check"]


def _advice(diagnosis: Mapping[str, Any]) -> Iterator[Sequence[Cell]]:
    for one in diagnosis["suggestions"]:
        yield one["summary"], "; ".join(part["text"] for part in one["evidence"]), one["advice"]


def _effects(diagnosis: Mapping[str, Any]) -> Iterator[Sequence[Cell]]:
    for effect in diagnosis["comparison"]["effects"]:
        if effect["ratio"] is not None:
            values = (measured(effect[name], effect["unit"]) for name in ("value", "baseline"))
            yield _named(effect), *values, change(effect)


def _quantity(row: Mapping[str, Any]) -> Iterator[str]:
    yield row["quantity"].replace("_", " ")
    yield row["of"] or ("all" if row["ranks"] else "host")
    yield ",".join(map(str, row["ranks"])) if len(row["ranks"]) < 9 else f"{len(row['ranks'])} ranks"
    yield from (measured(row[name], row["unit"]) for name in STATISTICS)


def _energy(diagnosis: Mapping[str, Any]) -> dict[str, str]:
    """Return the energy, if a counter measured it."""
    energy, costs = diagnosis["energy"], diagnosis["costs"]
    if costs["energy_kwh"] is None:
        return {}
    idle = {"of it idle": _kwh(energy["gpu_idle_joules"])} if energy["gpu_idle_joules"] else {}
    found = {"GPUs": _kwh(energy["gpu_joules"]), **idle, "CPUs": _kwh(energy["cpu_joules"])}
    if STEPS in costs["per"]:
        found[f"per {UNITS[STEPS]}"] = f"{costs['per'][STEPS]['energy_kwh']:.3g} kWh"
    return found | ({} if costs["carbon_kg"] is None else {"CO2": f"{costs['carbon_kg']:.3g} kg"})


def _cost(diagnosis: Mapping[str, Any]) -> dict[str, str]:
    """Return the costs, if there are prices."""
    costs = diagnosis["costs"]
    prices = {"GPUs": costs["gpu_cost"], "energy": costs["energy_cost"]}
    prices |= {f"per {word}": costs["per"].get(unit, {}).get("cost") for unit, word in UNITS.items()}
    found = {name: _money(value, costs) for name, value in prices.items() if value is not None}
    more = {"GPU hours": f"{costs['gpu_hours']:.3g}", "prices": costs["source"] or "without a stated source"}
    return found and {**found, **more}


def _gain(cause: Mapping[str, Any]) -> str:
    return f"{duration(cause['low'])} to {duration(cause['high'])}"


def _kwh(joules: float | None) -> str:
    return "unknown" if joules is None else f"{joules / JOULES_PER_KWH:.3g} kWh"


def _money(value: float, costs: Mapping[str, Any]) -> str:
    amount = f"{value:,.2f}" if value >= 0.1 or not value else f"{value:.2g}"
    return f"{amount} {shown(costs['currency'])}".rstrip()
