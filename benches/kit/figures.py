"""Medians, ratios, and what must hold, out of the results of a run."""

import statistics

# How a processor's seconds a unit are written.
UNITS = {"GiB": (1e3, "ms"), None: (1e6, "us")}


def cost(scenario_unit, seconds):
    """Processor time of one unit as text."""
    factor, name = UNITS.get(scenario_unit, UNITS[None])
    value = seconds * factor
    return f"{value:.0f} {name}" if value >= 100 else f"{value:.1f} {name}"


def a(unit):
    """`a request`, `an event`."""
    return f"an {unit}" if unit[0] in "aeio" else f"a {unit}"


class Figures:
    """Looks into {scenario: {peer: [result, ...]}}; whatever was not measured is None."""

    def __init__(self, data):
        self.data, self.results = data, data["results"]

    def _median(self, scenario, peer, value):
        found = [value(result) for result in self.results.get(scenario, {}).get(peer, [])]
        found = [one for one in found if one is not None]
        return statistics.median(found) if found else None

    def cpu(self, scenario, peer):
        """Seconds of processor time a unit."""
        return self._median(scenario, peer, lambda r: r["cpu"] / r["count"] if r.get("cpu") else None)

    def rate(self, scenario, peer):
        """Units a second."""
        return self._median(scenario, peer, lambda r: r["count"] / r["seconds"] if r.get("seconds") else None)

    def value(self, scenario, peer, name):
        """Any other value of a result."""
        return self._median(scenario, peer, lambda r: r.get(name))

    def ratio(self, scenario, peer, against, against_scenario=None):
        """Processor time a unit of one against another."""
        one, other = self.cpu(scenario, peer), self.cpu(against_scenario or scenario, against)
        return one / other if one and other else None

    def added_p99(self):
        """What Cube Proxy adds to the direct p99, against what nginx adds."""
        direct, nginx, cube = (self.value("latency", peer, "p99") for peer in ("direct", "nginx", "cube"))
        if None in (direct, nginx, cube) or nginx <= direct:
            return None
        return (cube - direct) / (nginx - direct)

    def added_p99_of_own(self):
        """The same, each at half of what it can do itself, against direct at that rate."""
        added = {}
        for peer in ("nginx", "cube"):
            values = [self.value("latencyown", peer, name) for name in ("p99", "direct_p99")]
            if None in values:
                return None
            added[peer] = values[0] - values[1]
        return added["cube"] / added["nginx"] if added["nginx"] > 0 else None

    def cold(self, name="cold"):
        """Processor seconds a cold miss, and how many a second; `cold_refused`: the lookup alone."""
        pieces = (self.results.get("many", {}).get("cube") or [{}])[0].get(name)
        if not pieces:
            return None, None
        cpu = statistics.median(piece["cpu"] / piece["count"] for piece in pieces)
        return cpu, statistics.median(piece["count"] / piece["seconds"] for piece in pieces)

    def micro(self, name):
        """Nanoseconds of a micro benchmark."""
        return self.data.get("micro", {}).get(name)

    def must_hold(self):
        """(what, the bound as text, what was measured as text, whether it holds)."""
        def row(what, value, bound, unit="", least=False, digits=2):
            sign = ">=" if least else "<="
            text = None if value is None else f"{value:.{digits}f}{unit}"
            holds = None if value is None else (value >= bound if least else value <= bound)
            return what, f"{sign} {bound:g}{unit}", text, holds

        many = (self.results.get("many", {}).get("cube") or [{}])[0]
        few_many = many["many"] / many["few"] if many.get("few") else None
        bodies = [self.ratio(name, "cube", "nginx") for name in ("down", "up")]
        handshakes = self.ratio("tlsfull", "nginx", "cube")
        allocations = self.data.get("memory", {}).get("allocations")
        count = sum(allocations[name] for name in ("lookup", "token", "route")) if allocations else None
        resolve = self.micro("cached_resolve/lookup_token_route/1000")
        return [
            row("CPU a request, small GET, everything on, against nginx + Lua", self.ratio("get", "cube", "lua"),
                0.70),
            row("the same, against the no-op Pingora proxy", self.ratio("get", "cube", "noop"), 1.10),
            row("p99 added to direct at half of saturation, against nginx: each at half of its own",
                self.added_p99_of_own(), 1.3),
            row("the same, both at half of Cube Proxy's", self.added_p99(), 1.3),
            row("path form with rewriting, against host form", self.ratio("path302", "cube", "cube", "host302"),
                1.08),
            row("private sandbox, against public", self.ratio("get", "cube", "cube", "public"), 1.02),
            row("cached resolve: lookup, token, route, of 1,000 sandboxes in turn", resolve, 500, " ns", digits=0),
            row("allocations of a cached resolve", count, 0, digits=0),
            row("resident memory of a cached sandbox", many.get("bytes"), 600, " bytes", digits=0),
            row("CPU a request with all those cached, against 1,000", few_many, 1.10),
            row("idle connection, plain", self.value("idle", "cube", "kib"), 14, " KiB", digits=1),
            row("idle connection, TLS", self.value("idletls", "cube", "kib"), 26, " KiB", digits=1),
            row("idle connection, HTTP/2", self.value("idleh2", "cube", "kib"), 56, " KiB", digits=1),
            row("16 MiB down, CPU a GiB, against nginx", bodies[0], 0.85),
            row("16 MiB up, CPU a GiB, against nginx", bodies[1], 0.85),
            row("TLS full handshakes a CPU second, against nginx", handshakes, 0.9, least=True),
        ]
