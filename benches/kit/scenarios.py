"""What is measured. A scenario runs one peer for some seconds, and gives a dictionary: `count` units
of work, the `cpu` seconds that the peer spent on them, and what else it saw."""

import http.client
import statistics
import time

from .clients import TOKEN_FIELD
from .processes import Failed
from .testbed import BODY, PRIVATE, PROXIES, PUBLIC, host_of

GIB = 1 << 30


class Scenario:
    """One row of the report. It is measured in turn with the scenario `beside` it, which it is compared with."""

    def __init__(self, name, title, unit, peers, run, meaning, once=False, beside=None):
        self.name, self.title, self.unit, self.peers = name, title, unit, peers
        self.run, self.meaning, self.once, self.beside = run, meaning, once, beside


class Bench:
    """The testbed, its clients, and how often, how long and how large."""

    def __init__(self, testbed, clients, options):
        self.testbed, self.clients, self.rounds, self.seconds = testbed, clients, options.rounds, options.seconds
        self.sandboxes, self.idle = options.sandboxes, options.idle
        # Requests a second of small_get, by peer.
        self.rates = {}

    def saturation(self, peer):
        """What a peer can do at most, in requests a second."""
        if peer.name not in self.rates:
            small_get(self, peer)
        return self.saturations()[peer.name]

    def saturations(self):
        """That of all that were measured so far."""
        return {name: statistics.median(rates) for name, rates in self.rates.items()}

    def measured(self, peer, work):
        """`work()` with the peer's clocks read before and after."""
        before = peer.process.cpu_seconds() if peer.process else 0.0
        result = work()
        result["cpu"] = peer.process.cpu_seconds() - before if peer.process else None
        if peer.process:
            result["resident"] = peer.process.resident_bytes()
        self.testbed.empty_logs()
        return result

    def wrk(self, peer, sandbox=PRIVATE, fields=(TOKEN_FIELD,), host=None, **options):
        host = host or host_of(sandbox)
        return self.measured(
            peer, lambda: self.clients.wrk(peer.http, host, self.seconds, fields=fields, **options))


def small_get(bench, peer):
    result = bench.wrk(peer)
    bench.rates.setdefault(peer.name, []).append(result["count"] / result["seconds"])
    return result


def at_rate(bench, peer, rate):
    child = bench.clients.paced(peer.http, host_of(PRIVATE), bench.seconds, rate)
    return bench.measured(peer, lambda: bench.clients.finished(child, bench.seconds))


def latency(bench, peer):
    """At the same rate for everyone."""
    return at_rate(bench, peer, bench.saturation(bench.testbed.peers["cube"]) / 2)


def latency_of_own(bench, peer):
    """At half of what the peer itself can do, with the direct way at that rate beside it."""
    rate = bench.saturation(peer) / 2
    direct = at_rate(bench, bench.testbed.peers["direct"], rate)
    result = at_rate(bench, peer, rate)
    return {**result, "rate": rate, "direct_p99": direct["p99"]}


def new_connections(bench, peer):
    return bench.wrk(peer, fields=(TOKEN_FIELD, "Connection: close"))


def public(bench, peer):
    return bench.wrk(peer, sandbox=PUBLIC, fields=())


def host_form_302(bench, peer):
    return bench.wrk(peer, sandbox=PUBLIC, fields=(), path="/moved")


def path_form_302(bench, peer):
    prefix = f"/sandbox/{PUBLIC}/8000"
    connection = http.client.HTTPConnection("127.0.0.1", peer.http, timeout=20)
    connection.request("GET", f"{prefix}/moved", headers={"Host": "127.0.0.1"})
    response = connection.getresponse()
    location, cookie = response.getheader("Location"), response.getheader("Set-Cookie")
    connection.close()
    if not location or not cookie or not location.startswith(f"{prefix}/login") or f"Path={prefix}/" not in cookie:
        raise Failed(f"the response was not rewritten: {location}, {cookie}")
    return bench.wrk(peer, fields=(), host="127.0.0.1", path=f"{prefix}/moved")


def tls(mode):
    def run(bench, peer):
        def work():
            child = bench.clients.handshakes(peer.https, mode, bench.seconds, host_of(PRIVATE))
            return bench.clients.finished(child, bench.seconds)
        return bench.measured(peer, work)
    return run


def h2(bench, peer):
    return bench.measured(peer, lambda: bench.clients.h2load(peer.https, host_of(PRIVATE), bench.seconds))


def download(bench, peer):
    result = bench.wrk(peer, path="/16MiB", connections=4)
    result["count"] = result["bytes"] / GIB
    return result


def upload(bench, peer):
    result = bench.wrk(peer, host=host_of(PRIVATE, 9000), path="/upload", connections=4, upload=BODY)
    result["count"] = result["count"] * BODY / GIB
    return result


def streams(what, connections):
    def run(bench, peer):
        child = bench.clients.streams(what, peer.http, host_of(PUBLIC, 9000), connections, bench.seconds)
        return bench.measured(peer, lambda: bench.clients.finished(child, bench.seconds))
    return run


def idle(kind):
    def run(bench, peer):
        # A process that has served nothing yet; a few connections first, for what is made once.
        fresh = getattr(bench.testbed, peer.name)()
        port = fresh.http if kind == "plain" else fresh.https
        try:
            few = bench.clients.idle(port, kind, 50, host_of(PRIVATE))
            few.communicate("")
            time.sleep(0.5)
            before = fresh.process.resident_bytes()
            many = bench.clients.idle(port, kind, bench.idle, host_of(PRIVATE))
            time.sleep(1)
            grown = fresh.process.resident_bytes() - before
            many.communicate("")
        finally:
            bench.testbed.group.stop(fresh.process)
        return {"count": bench.idle, "cpu": None, "kib": grown / bench.idle / 1024}
    return run


def many_sandboxes(bench, _):
    """Fills one proxy's cache by asking for each sandbox once, and compares it with one that has few."""
    testbed, clients, total = bench.testbed, bench.clients, bench.sandboxes
    testbed.populate(total)
    few, many = testbed.cube(), testbed.cube()
    entries = lambda: int(testbed.metric(many, "cube_proxy_cache_entries"))  # noqa: E731

    def asked(cube, sandboxes, step=1, first=0, seconds=bench.seconds, fields=(TOKEN_FIELD,), any_status=False):
        return bench.measured(cube, lambda: clients.wrk(
            cube.http, host_of(PRIVATE), seconds, fields=fields, any_status=any_status, sandboxes=sandboxes,
            step=step, first=first))

    refused = {"fields": (), "any_status": True}
    result = {"count": total, "cpu": None}
    try:
        asked(few, 1000)
        asked(many, 1000)
        cold = asked(many, total, first=1000)
        # The rest is asked for without the token: looked up, refused, and kept all the same.
        before, had, first, pieces = many.process.resident_bytes(), entries(), 1000 + cold["count"], []
        # Whatever is cached by then has to do; the report says how many.
        end = time.monotonic() + 240
        while first < total and time.monotonic() < end:
            # The last piece must not begin again with what is known.
            rate = pieces[-1]["count"] / pieces[-1]["seconds"] if pieces else 20_000
            seconds = max(1, min(5, int((total - first) / rate)))
            pieces.append(asked(many, total, first=first, seconds=seconds, **refused))
            first += pieces[-1]["count"]
        result["entries"] = entries()
        result["bytes"] = (many.process.resident_bytes() - before) / max(1, result["entries"] - had)
        result["cold"], result["cold_refused"] = [cold], pieces
        # The 1,000's connections to sandboxes had to make way for others'.
        asked(many, 1000)
        # Steps prime to the number of sandboxes: in no order that the processor could foresee.
        work = {
            "few": lambda: asked(few, 1000),
            "many": lambda: asked(many, 1000),
            "refused_few": lambda: asked(few, 1000, **refused),
            "refused_many": lambda: asked(many, total, step=610_639, **refused),
        }
        took = {name: [] for name in work}
        for number in range(bench.rounds):
            for name in turned(list(work), number):
                piece = work[name]()
                took[name].append(piece["cpu"] / piece["count"] * 1e6)
        spread = asked(many, total, step=610_639)
        result["spread"] = spread["cpu"] / spread["count"] * 1e6
        result |= {name: statistics.median(values) for name, values in took.items()}
    finally:
        testbed.group.stop(few.process)
        testbed.group.stop(many.process)
    return result


def turned(turns, number):
    """The same in another order, round by round: whatever drifts, drifts for all."""
    first = number % len(turns)
    return turns[first:] + turns[:first]


SCENARIOS = [
    Scenario("get", "small GET, keep-alive", "request", ("direct", *PROXIES, "other"), small_get,
             "64 connections, 12 bytes of response. nginx + Lua and Cube Proxy look up a private sandbox, check "
             "its token and log; the others only forward."),
    Scenario("latency", "the same at half of saturation", "request", ("direct", *PROXIES), latency,
             "As many requests a second for everyone as are half of what Cube Proxy did above, over 64 "
             "connections, at random times (exponentially distributed, the same for everyone). Latency counts "
             "from when a request is handed to its connection, where it may have to wait for the one before."),
    Scenario("latencyown", "at half of its own saturation", "request", PROXIES, latency_of_own,
             "The same, each at half of what it did itself."),
    Scenario("new", "new connection each", "request", PROXIES, new_connections,
             "As the first row, each request on a connection of its own."),
    Scenario("public", "public sandbox", "request", ("cube",), public,
             "As the first row without a token: what the token costs.", beside="get"),
    Scenario("host302", "host form, 302", "request", ("cube",), host_form_302,
             "A response with Location and Set-Cookie that nothing is changed in."),
    Scenario("path302", "path form, 302 rewritten", "request", ("cube",), path_form_302,
             "The same response, Location and the cookie's path moved under the prefix.", beside="host302"),
    Scenario("tlsfull", "TLS 1.3, full handshake", "handshake", ("nginx", "haproxy", "cube"), tls("full"),
             "ECDSA P-256 certificate, X25519; the connection ends after the handshake."),
    Scenario("tlsnew", "TLS 1.3, new connection each", "request", ("nginx", "haproxy", "cube"), tls("get"),
             "A full handshake and one small GET."),
    Scenario("tlsresumed", "TLS 1.3, resumed", "request", ("nginx", "haproxy", "cube"), tls("resumed"),
             "The same with the session of the connection before."),
    Scenario("h2", "HTTP/2, multiplexed", "request", ("nginx", "haproxy", "cube"), h2,
             "16 connections over TLS, 16 streams each, small GETs."),
    Scenario("down", "16 MiB down", "GiB", ("nginx", "haproxy", "noop", "cube"), download,
             "4 connections. nginx buffers, without temporary files; Cube Proxy buffers nothing."),
    Scenario("up", "16 MiB up", "GiB", ("nginx", "haproxy", "cube"), upload,
             "4 connections; nothing is buffered by anyone."),
    Scenario("ws", "WebSocket messages", "message", ("nginx", "lua", "haproxy", "cube"),
             streams("messages", 64), "64 connections, one message of 32 bytes under way on each; there and back."),
    Scenario("sse", "1,000 event streams", "event", ("nginx", "lua", "haproxy", "cube"),
             streams("events", 1000), "Ten events a second on each, a chunk each."),
    Scenario("idle", "idle connection, plain", "connection", ("nginx", "haproxy", "cube"), idle("plain"),
             "Resident memory of a connection after one request.", once=True),
    Scenario("idletls", "idle connection, TLS", "connection", ("nginx", "haproxy", "cube"), idle("tls"),
             "The same over TLS, HTTP/1.1.", once=True),
    Scenario("idleh2", "idle connection, HTTP/2", "connection", ("nginx", "haproxy", "cube"), idle("h2"),
             "The same over TLS, HTTP/2.", once=True),
    Scenario("many", "many cached sandboxes", "sandbox", ("cube",), many_sandboxes,
             "Each is asked for once, which fills the cache from Redis: first for some seconds with the token (a "
             "cold miss: a lookup, and a new connection to the sandbox), then without (a lookup, and a refusal). "
             "Then the same 1,000 are asked for in turn with a proxy that has cached no others.", once=True),
]
