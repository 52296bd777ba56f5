"""The report: tables for the terminal, and docs/performance.md with its plot."""

import json
import os
import platform
from pathlib import Path

from . import plot
from .figures import Figures, a, cost as cost_of
from .scenarios import SCENARIOS

TITLES = {"direct": "direct", "nginx": "nginx", "lua": "nginx + Lua", "haproxy": "HAProxy",
          "noop": "Pingora, no-op", "cube": "Cube Proxy", "other": "Cube Proxy, other build"}

CEILING = Path(__file__).resolve().parents[1] / "ceiling.json"

COLD = {"cold": "cold miss", "cold_refused": "cold miss, refused"}


def cost(scenario, seconds):
    """Processor time of one unit of a scenario, for the terminal."""
    return f"{cost_of(scenario.unit, seconds)} CPU {a(scenario.unit)}"


def machine():
    """What this runs on."""
    model = next((line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
                  if line.startswith("model name")), platform.machine())
    memory = int(Path("/proc/meminfo").read_text().split()[1]) / 1024 / 1024
    return {"processor": model, "processors": len(os.sched_getaffinity(0)), "memory_gib": round(memory)}


def other_benches(target):
    """What `just bench-micro` and `just bench-instructions` left behind."""
    found = {"micro": {}}
    for description in sorted((target / "criterion").glob("**/new/benchmark.json")):
        name = json.loads(description.read_text())["full_id"]
        estimates = json.loads((description.parent / "estimates.json").read_text())
        found["micro"][name] = estimates["median"]["point_estimate"]
    # What is recorded is what CI holds; `just bench-instructions` leaves some out.
    for name, path in (("memory", target / "bench" / "memory.json"), ("instructions", CEILING)):
        if path.exists():
            found[name] = json.loads(path.read_text())
    return found


def present(figures, without=()):
    """The peers that something was measured of, with their titles."""
    return {peer: title for peer, title in TITLES.items()
            if peer not in without and any(found.get(peer) for found in figures.results.values())}


def table(head, rows):
    """Markdown; the first column is text, the others are figures."""
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def cell(value, form):
    return "" if value is None else form(value)


def must_hold(figures):
    rows = []
    for what, bound, value, holds in figures.must_hold():
        verdict = {True: "holds", False: "**missed**", None: ""}[holds]
        rows.append((what, bound, value or "not measured", verdict))
    return table(("figure", "must be", "measured", ""), rows)


def costs(figures):
    """Processor time a unit, by peer."""
    peers = present(figures, without=("direct",))
    rows = []
    for scenario in SCENARIOS:
        if not any(figures.cpu(scenario.name, peer) for peer in peers):
            continue
        cells = [cell(figures.cpu(scenario.name, peer), lambda v: cost_of(scenario.unit, v)) for peer in peers]
        against = [cell(figures.ratio(scenario.name, "cube", peer), "{:.2f}".format)
                   for peer in ("nginx", "lua", "noop")]
        rows.append((f"{scenario.title}, {a(scenario.unit)}", *cells, *against))
    for name, title in COLD.items():
        cpu, _ = figures.cold(name)
        if cpu:
            cells = [cost_of("request", cpu) if peer == "cube" else "" for peer in peers]
            rows.append((f"{title}, a request", *cells, "", "", ""))
    return table(("", *peers.values(), "Cube / nginx", "Cube / Lua", "Cube / no-op"), rows)


def rates(figures):
    """Units a second, by peer: the proxy has one processor, and clients and origin share another."""
    peers, rows = present(figures), []
    for scenario in SCENARIOS:
        form = "{:.2f}".format if scenario.unit == "GiB" else "{:,.0f}".format
        cells = [cell(figures.rate(scenario.name, peer), form) for peer in peers]
        if any(cells) and scenario.name not in ("latency", "latencyown", "sse"):
            rows.append((f"{scenario.title}, {scenario.unit}s a second", *cells))
    for name, title in COLD.items():
        _, rate = figures.cold(name)
        if rate:
            cells = [f"{rate:,.0f}" if peer == "cube" else "" for peer in peers]
            rows.append((f"{title}, requests a second", *cells))
    return table(("", *peers.values()), rows)


def latencies(figures):
    peers, rows = present(figures), []
    for scenario in SCENARIOS:
        cells = []
        for peer in peers:
            values = [figures.value(scenario.name, peer, name) for name in ("p50", "p99", "p999")]
            cells.append(" / ".join(f"{value:,.0f}" for value in values) if None not in values else "")
        if any(cells) and scenario.unit in ("request", "message"):
            rows.append((scenario.title, *cells))
        if scenario.name == "latencyown":
            direct = [figures.value(scenario.name, peer, "direct_p99") for peer in peers]
            rows.append(("direct at that rate, p99", *(cell(value, "{:,.0f}".format) for value in direct)))
    return table(("p50 / p99 / p99.9, us", *peers.values()), rows)


def memory(figures):
    peers = present(figures, without=("direct",))
    rows = []
    for name, title in (("get", "after small GETs, MiB"), ("sse", "with 1,000 event streams, MiB")):
        cells = [cell(figures.value(name, peer, "resident"), lambda v: f"{v / 1048576:.0f}") for peer in peers]
        rows.append((title, *cells))
    for scenario in SCENARIOS:
        if scenario.unit == "connection":
            cells = [cell(figures.value(scenario.name, peer, "kib"), "{:.1f}".format) for peer in peers]
            rows.append((f"{scenario.title}, KiB", *cells))
    return table(("resident", *peers.values()), [row for row in rows if any(row[1:])])


def sandboxes(figures):
    many = (figures.results.get("many", {}).get("cube") or [None])[0]
    if not many:
        return ""
    us = "{:.1f} us".format
    return table(("many cached sandboxes, CPU a request", "1,000 cached", f"{many['entries']:,} cached"), [
        ("asked: the same 1,000", us(many["few"]), us(many["many"])),
        ("asked without the token, refused: the same 1,000, then all", us(many["refused_few"]),
         us(many["refused_many"])),
        ("asked: all, a new connection to the sandbox each", "", us(many["spread"])),
    ])


def instructions(figures):
    counts = figures.data.get("instructions")
    if not counts:
        return ""
    rows = [(name, f"{count:,}", cell(counts.get("noop"), lambda noop: f"{count / noop:.2f}"))
            for name, count in counts.items()]
    return table(("instructions a request", "", "against no-op"), rows)


def micros(figures):
    rows = [(f"`{name}`", f"{value:,.0f} ns" if value < 1e5 else f"{value / 1e6:,.2f} ms")
            for name, value in sorted(figures.data.get("micro", {}).items())]
    return table(("micro", "median"), rows) if rows else ""


def allocations(figures):
    found = figures.data.get("memory")
    if not found:
        return ""
    rows = [(f"allocations: {name}", str(count)) for name, count in found["allocations"].items()]
    rows.append((f"heap bytes a sandbox, {found['entries']:,} cached", f"{found['heap_bytes_an_entry']:,}"))
    return table(("a cached request, piece by piece", ""), rows)


def text(data):
    """All tables, for the terminal."""
    figures = Figures(data)
    parts = [part(figures) for part in (costs, rates, latencies, memory, sandboxes, must_hold)]
    return "\n".join(part for part in parts if part.count("\n") > 2)


def setting(data):
    versions = ", ".join(f"{name} {version}" for name, version in data["versions"].items())
    box = data["machine"]
    return (f"Machine: {box['processors']} processors ({box['processor']}), {box['memory_gib']} GiB; load before "
            f"the run {data['load_before']:.2f}. Versions: {versions}. Rounds: {data['rounds']}, "
            f"{data['seconds']:g} s each; the whole run took {data['took'] / 60:.0f} minutes.")


BUILDS = ("Cube Proxy and the no-op Pingora are the builds of `scripts/release --bench`, laid out by recorded load "
          "([decision 7](decisions/0007-profile-guided-build.md)); *other build* is Cube Proxy as "
          "`cargo build --release` makes it.")
ONE_BUILD = "Cube Proxy and the no-op Pingora are builds that were named by hand (`--bin`)."


def write(data, directory):
    """docs/performance.md and docs/performance.svg."""
    figures = Figures(data)
    meanings = "\n".join(f"- **{scenario.title}**: {scenario.meaning}" for scenario in SCENARIOS)
    frame = (Path(__file__).resolve().parent / "performance.md").read_text()
    parts = {
        "SETTING": setting(data), "BUILDS": BUILDS if data["beside"] else ONE_BUILD,
        "MUST_HOLD": must_hold(figures), "COSTS": costs(figures), "RATES": rates(figures),
        "LATENCIES": latencies(figures), "MEMORY": memory(figures), "SANDBOXES": sandboxes(figures),
        "INSTRUCTIONS": instructions(figures), "MICRO": micros(figures), "ALLOCATIONS": allocations(figures),
        "MEANINGS": meanings, "RATE": f"{data['saturation'].get('cube', 0) / 2:,.0f}", "IDLE": f"{data['idle']:,}",
    }
    for name, part in parts.items():
        frame = frame.replace(f"@{name}@", part.strip())
    (directory / "performance.md").write_text(frame)
    (directory / "performance.svg").write_text(plot.bars(figures, SCENARIOS, present(figures)))
