"""Metrics: the names, and that they add up (operations.md, "Metrics")."""
import time

from kit import Sandbox, case, new_id, reply, table, wait_for


# operations.md, Metrics: the old gateway's names
@case("cube", "metrics/names", "operations.md")
def _(t):
    box = t.sandbox(t.upstream())
    t.call(box, "/files?path=/x")
    t.call(box, "/process.Process/Start", "path", "POST", body=b"")
    got = t.metrics()
    names = {name for name, _ in got}
    for name in ("cube_proxy_request_total", "cube_proxy_inflight_requests", "cube_proxy_request_duration_seconds_bucket",
                 "cube_proxy_request_duration_seconds_sum", "cube_proxy_request_duration_seconds_count"):
        t.has("names", names, name)
    buckets = sorted({float(dict(l)["le"]) for n, l in got if n == "cube_proxy_request_duration_seconds_bucket"})
    t.eq("buckets", buckets[:-1], [0.001 * 2 ** n for n in range(14)])


def total(t, **labels):
    want = {(k, v) for k, v in labels.items()}
    return sum(v for (n, l), v in t.metrics().items() if n == "cube_proxy_request_total" and want <= set(l))


@table("cube", "metrics/labels", "operations.md", [
    ("exec", "path", "POST", "/process.Process/Start", dict(route="sandbox_exec", method="POST", result="success")),
    ("files", "host", "GET", "/files?path=/a", dict(route="sandbox_files", method="GET", result="success")),
    ("other", "host", "DELETE", "/files/x", dict(route="other", method="other", result="success")),
])
def _(t, form, method, target, labels):
    box = t.sandbox(t.upstream())
    before = total(t, **labels)
    for _ in range(3):
        t.call(box, target, form, method)
    t.true("increase", wait_for(lambda: total(t, **labels) - before == 3, 2), "3", total(t, **labels) - before)


def by_retcode(t):
    """{retcode: number} of the counter with labels retcode, reason, form."""
    out = {}
    for (name, labels), value in t.metrics().items():
        keys = dict(labels)
        if {"retcode", "reason", "form"} == set(keys):
            out[keys["retcode"]] = out.get(keys["retcode"], 0) + value
    return out


# operations.md: requests sent by a client = sum over retcodes
@case("cube", "metrics/add up", "operations.md")
def _(t):
    good, bad = t.sandbox(t.upstream()), t.sandbox(t.upstream(reply(500)))
    private = t.sandbox(t.upstream(), token="tok")
    before = by_retcode(t)
    for _ in range(20):            # requests of earlier cases that are still ending
        time.sleep(0.2)
        last, before = before, by_retcode(t)
        if last == before:
            break
    sent = 0
    for box, number in ((good, 5), (bad, 3), (private, 2), (Sandbox(new_id(), 8080), 4)):
        for _ in range(number):
            t.call(box, form=("host", "path")[sent % 2])
            sent += 1
    want = {"310200": 5, "330500": 3, "310403": 2, "310507": 4}

    def grown():
        now = by_retcode(t)
        return {k: now[k] - before.get(k, 0) for k in now if now[k] != before.get(k, 0)}
    wait_for(lambda: grown() == want, 2)
    t.eq("increase by retcode", grown(), want)


# operations.md: no label takes a value a client can choose without bound
@case("cube", "metrics/bounded labels", "operations.md")
def _(t):
    box = t.sandbox(t.upstream())
    t.call(box, "/very-own-path", method="BREW")
    t.raw("GET", "/", [("Host", "very-own-host.example")])
    status, text = t.proxy.ask(t.proxy.metrics, "GET", "/metrics")
    for part in (box.id, "very-own", "BREW"):
        t.lacks("metrics", text.decode(), part)
