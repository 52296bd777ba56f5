"""The access log: one line a request, every field in its place (operations.md, "Access log")."""
import re

from expect import Seen, cube
from kit import case, new_id, reply

FIELDS = ["access_time", "host", "x_real_ip", "x_forwarded_for", "server_addr", "x_forwarded_proto", "method",
          "request_uri", "args", "protocol", "uri", "status", "body_bytes_sent", "request_time", "connection_requests",
          "upstream_addr", "upstream_status", "upstream_response_time", "user_agent", "request_id", "instance_id",
          "backend_ip", "retcode", "sandbox_id", "port", "reason"]


def logged(t, rid):
    return dict(zip(FIELDS, t.log(rid)))


# operations.md, Access log: 22 fields in order, then retcode, sandbox id, container port, reason
@case("cube", "log/fields", "operations.md")
def _(t):
    upstream, rid = t.upstream(reply(201, [], b"12345")), new_id("rid")
    box = t.sandbox(upstream)
    t.call(box, "/a%20b?x=1&y=2", method="POST", body=b"hi", headers=[("X-Cube-Request-Id", rid), ("User-Agent", "kit/1")])
    got = logged(t, rid)
    t.true("access_time", re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}", got["access_time"]),
           "YYYY-MM-DDTHH:MM:SS.mmm", got["access_time"])
    want = {"host": box.host(), "method": "POST", "request_uri": "/a%20b?x=1&y=2", "args": "x=1&y=2",
            "protocol": "HTTP/1.1", "status": "201", "body_bytes_sent": "5", "connection_requests": "1",
            "upstream_addr": f"127.0.0.1:{upstream.port}", "upstream_status": "201", "user_agent": "kit/1",
            "request_id": rid, "backend_ip": "127.0.0.1", "retcode": "330201", "sandbox_id": box.id, "port": "8080"}
    t.eq("values", {k: got[k] for k in want}, want)


# operations.md: an absent value is -
@case("cube", "log/absent values", "operations.md")
def _(t):
    rid = new_id("rid")
    cube(t, t.raw("GET", "/x", [("Host", "nothing.example"), ("X-Cube-Request-Id", rid)]), 310400)
    got = logged(t, rid)
    names = ("args", "user_agent", "upstream_addr", "upstream_status", "backend_ip", "sandbox_id", "port", "instance_id")
    t.eq("values", [got[n] for n in names], ["-"] * len(names))
    t.eq("status, retcode", (got["status"], got["retcode"]), ("400", "310400"))


# errors.md: a refused token is 310403 in the log, 310507 on the wire
@case("cube", "log/refused token", "metadata.md")
def _(t):
    box, rid = t.sandbox(t.upstream(), token="tok-secret-7"), new_id("rid")
    cube(t, t.call(box, headers=[("X-Cube-Request-Id", rid), ("cube-traffic-access-token", "bad-secret-8")]), 310507)
    line = t.log(rid)
    t.eq("retcode, sandbox", (line[22], line[23]), ("310403", box.id))
    t.lacks("line", "||".join(line), "secret")


# operations.md: separator and control bytes inside a value are escaped
@case("cube", "log/cannot be forged", "operations.md")
def _(t):
    rid = new_id("rid")
    box = t.sandbox(t.upstream())
    t.call(box, "/a||b?c||d", headers=[("X-Cube-Request-Id", rid), ("User-Agent", "x||200||y")])
    got = logged(t, rid)
    t.eq("status, retcode", (got["status"], got["retcode"]), ("200", "310200"))


# operations.md: values of secret query keys are replaced
@case("cube", "log/redacted query", "operations.md")
def _(t):
    rid = new_id("rid")
    seen = Seen(t, t.call(t.sandbox(t.upstream()), "/p?token=hush1&a=shown&access_token=hush2&password=hush3",
                          headers=[("X-Cube-Request-Id", rid)]))
    t.has("target at the sandbox", seen.target, "hush1")
    got = logged(t, rid)
    t.lacks("line", repr(got), "hush")
    t.has("args", got["args"], "a=shown")


# operations.md: a retried request lists both upstreams
@case("blind", "log/both upstreams", "operations.md")
def _(t):
    old, new, rid = t.upstream(), t.upstream(), new_id("rid")
    box = t.sandbox(old)
    Seen(t, t.call(box))
    old.stop()
    t.redis("HSET", t.key(box.id), "8080", new.port)
    Seen(t, t.call(box, headers=[("X-Cube-Request-Id", rid)]))
    upstream = logged(t, rid)["upstream_addr"]
    for port in (old.port, new.port):
        t.has("upstream_addr", upstream, f"127.0.0.1:{port}")


# operations.md: every response is logged once, also those of requests on one connection
@case("cube", "log/one line a request", "operations.md")
def _(t):
    box, client = t.sandbox(t.upstream()), t.client()
    ids = [new_id("rid") for _ in range(3)]
    for rid in ids:
        client.call("GET", "/", [("Host", box.host()), ("X-Cube-Request-Id", rid)])
    t.eq("connection_requests", [t.log(rid)[14] for rid in ids], ["1", "2", "3"])
    text = (t.run.directory / "access.log").read_text(errors="replace")
    t.eq("lines", [text.count(rid) for rid in ids], [1, 1, 1])
