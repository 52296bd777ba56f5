"""Responses of the proxy itself: status, return code, body, in two dialects (errors.md)."""
import json
import threading
import time

from expect import CHANGING, Seen, cube, e2b, e2b_not_found, e2b_not_open, e2b_other
from kit import OUTSIDE, Sandbox, case, new_id, table, wait_for

CHROME = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/130.0 Safari/537.36"
PREFLIGHT = [("Origin", "https://a.example"), ("Access-Control-Request-Method", "PUT"),
             ("Access-Control-Request-Headers", "x-one")]


def nobody():
    return Sandbox(new_id(), 8080)


# errors.md, cube: exact bodies
@case("cube", "errors/cube/unknown", "errors.md")
def _(t):
    for form in ("host", "header", "path"):
        cube(t, t.call(nobody(), form=form), 310507)


@case("cube", "errors/cube/refused", "errors.md")
def _(t):
    response = t.call(t.sandbox(None, fields={"8080": t.refused_port()}))
    cube(t, response, 310509)
    t.true("time", response.seconds < 1.0, "at once", f"{response.seconds:.2f} s")


# errors.md: cut before a response: 502
@case("cube", "errors/cube/cut before a response", "errors.md")
def _(t):
    cube(t, t.call(t.sandbox(t.upstream(lambda x: x.close())), method="POST", body=b"x"), 310509)


# errors.md: connecting timed out: 504
@case("cube", "errors/cube/connect timeout", "errors.md")
def _(t):
    hole = t.black_hole()
    response = t.call(t.sandbox(None, fields={"8080": hole.port}))
    cube(t, response, 310509, 504, "gateway timeout")
    t.true("time", 0.4 < response.seconds < 3, "one or two times 500 ms", f"{response.seconds:.2f} s")


@table("cube", "errors/cube/state", "errors.md", [
    ("killed", "killed", 310410, None, None, None),
    ("paused", "paused", 310503, 503, "service unavailable", "5"),
])
def _(t, state, retcode, status, text, retry):
    box = t.sandbox(t.upstream())
    t.state(box, state)
    cube(t, t.call(box), retcode, status, text, retry)


# errors.md: HEAD has the status and no body
@case("cube", "errors/cube/HEAD", "errors.md")
def _(t):
    client = t.client()
    response = client.call("HEAD", "/", [("Host", nobody().host())])
    t.eq("status, retcode", (response.status, response.retcode), (404, "310507"))
    again = client.call("HEAD", "/", [("Host", nobody().host())])
    t.eq("the connection still works", again.status, 404)


# errors.md: X-Cube-Request-Id on each of them, the client's own where it is good (routing.md)
@case("cube", "errors/cube/request id", "errors.md")
def _(t):
    response = t.call(nobody(), headers=[("X-Cube-Request-Id", "mine-7")])
    t.eq("X-Cube-Request-Id", response.all("x-cube-request-id"), ["mine-7"])


# errors.md, CORS
@case("cube", "errors/cors/with Origin", "errors.md")
def _(t):
    response = t.call(nobody(), headers=[("Origin", "https://a.example")])
    cube(t, response, 310507)
    t.eq("Access-Control-Allow-Origin", response.all("access-control-allow-origin"), ["*"])
    shown = (response.get("access-control-expose-headers") or "").lower()
    t.true("exposed headers", "x-cube-request-id" in shown and "x-cube-retcode" in shown, "both X-Cube- headers", shown)
    t.eq("without Origin", t.call(nobody()).all("access-control-allow-origin"), [])


@case("cube", "errors/cors/preflight to nobody", "errors.md")
def _(t):
    response = t.call(nobody(), method="OPTIONS", headers=PREFLIGHT)
    t.eq("status, Allow-Origin", (response.status, response.get("access-control-allow-origin")), (204, "*"))
    methods = response.get("access-control-allow-methods") or ""
    t.true("allowed methods", "*" in methods or "PUT" in methods, "PUT or *", methods)


@case("cube", "errors/cors/preflight to a paused sandbox", "errors.md")
def _(t):
    box = t.sandbox(t.upstream())
    t.state(box, "paused")
    t.eq("status", t.call(box, method="OPTIONS", headers=PREFLIGHT).status, 204)


# errors.md, e2b: exact bodies
@case("e2b", "errors/e2b/unknown", "errors.md")
def _(t):
    box = nobody()
    for form in ("host", "header", "path"):
        e2b_not_found(t, t.call(box, form=form), box.id)


@case("e2b", "errors/e2b/no mapping", "errors.md")
def _(t):
    box = t.sandbox(t.upstream())
    e2b_not_open(t, t.call(box, port=3000), box.id, 3000, 310507)


@case("e2b", "errors/e2b/no HostIP", "errors.md")
def _(t):
    box = t.sandbox(t.upstream(), drop=["HostIP"])
    e2b_not_found(t, t.call(box), box.id)


@case("e2b", "errors/e2b/refused", "errors.md")
def _(t):
    box = t.sandbox(None, fields={"8080": t.refused_port()})
    e2b_not_open(t, t.call(box), box.id, 8080, 310509)


# connections.md: port_open_wait is 1 s in the e2b dialect: a port that opens in that time is reached
@case("e2b", "errors/e2b/port opens late", "connections.md")
def _(t):
    port = t.refused_port()
    box = t.sandbox(None, fields={"8080": port})
    timer = threading.Timer(0.4, lambda: t.upstream(port=port, name="late"))
    timer.start()
    t.eq("upstream", Seen(t, t.call(box)).upstream, "late")


@case("e2b", "errors/e2b/killed", "errors.md")
def _(t):
    box = t.sandbox(t.upstream())
    t.state(box, "killed")
    e2b_not_found(t, t.call(box), box.id, 310410)


@case("e2b", "errors/e2b/still changing", "errors.md")
def _(t):
    box = t.sandbox(t.upstream())
    t.state(box, "pausing")
    e2b(t, t.call(box), 310503, 409, "2", sandboxId=box.id, message=CHANGING, code=409)


@case("e2b", "errors/e2b/paused", "errors.md")
def _(t):
    box = t.sandbox(t.upstream())
    t.state(box, "paused")
    e2b_other(t, t.call(box), box.id, 310503, 503, "5")


@case("e2b", "errors/e2b/forbidden address", "errors.md")
def _(t):
    box = t.sandbox(t.upstream(host=OUTSIDE))
    e2b_not_found(t, t.call(box), box.id, 310508)


def reserved(t, response, path):
    t.eq("status, retcode", (response.status, response.retcode), (404, "310404"))
    text = "This endpoint is reserved for the control plane and is not reachable through the sandbox URL"
    t.eq("body", response.body, json.dumps({"message": text, "path": path, "code": 404}, separators=(",", ":")).encode())


# errors.md: reserved envd routes on 49983
@table("e2b", "errors/e2b/reserved", "errors.md", [
    ("init", "host", "/init", "/init"),
    ("freeze with query", "host", "/freeze?x=1", "/freeze"),
    ("encoded", "host", "/%69nit", "/init"),
    ("path form", "path", "/upgrade", "/upgrade"),
])
def _(t, form, target, path):
    upstream = t.upstream()
    reserved(t, t.call(t.sandbox(upstream, port=49983), target, form, "POST"), path)
    t.eq("requests at the upstream", len(upstream.seen()), 0)


@table("e2b", "errors/e2b/not reserved", "errors.md", [
    ("other port", 8080, "/init"), ("longer name", 49983, "/initialise"), ("below", 49983, "/init/x"),
])
def _(t, port, target):
    t.eq("target", Seen(t, t.call(t.sandbox(t.upstream(), port=port), target)).target, target)


# errors.md: only in the e2b dialect: the control plane itself calls /init through a cube listener
@case("cube", "errors/cube/init is not reserved", "errors.md")
def _(t):
    t.eq("target", Seen(t, t.call(t.sandbox(t.upstream(), port=49983), "/init", "path", "POST")).target, "/init")


# errors.md: who gets a page instead of JSON
@table("e2b", "errors/e2b/page", "errors.md", [
    ("browser", [("User-Agent", CHROME), ("Accept", "text/html,*/*;q=0.8")], True),
    ("navigate", [("User-Agent", CHROME), ("Sec-Fetch-Mode", "navigate"), ("Accept", "text/html")], True),
    ("curl", [("User-Agent", "curl/8.5.0"), ("Accept", "*/*")], False),
    ("prefers json", [("User-Agent", CHROME), ("Accept", "application/json")], False),
    ("fetch", [("User-Agent", CHROME), ("Sec-Fetch-Mode", "cors"), ("Accept", "*/*")], False),
])
def _(t, headers, page):
    response = t.call(nobody(), headers=headers)
    kind = (response.get("content-type") or "").split(";")[0]
    t.eq("status, retcode, type", (response.status, response.retcode, kind),
         (502, "310507", "text/html" if page else "application/json"))
    t.true("body", b"<html" in response.body.lower() if page else response.json(), "a page" if page else "JSON", response.body)


# errors.md: a Connect request gets a Connect error
@case("e2b", "errors/e2b/connect unary", "errors.md")
def _(t):
    response = t.call(nobody(), "/process.Process/SendInput", method="POST", body=b"{}", headers=[
        ("Connect-Protocol-Version", "1"), ("Content-Type", "application/json")])
    t.eq("status, retcode", (response.status, response.retcode), (502, "310507"))
    fields = response.json()
    t.eq("keys, code", (list(fields), fields["code"]), (["code", "message"], "unavailable"))


@case("e2b", "errors/e2b/connect stream", "errors.md")
def _(t):
    response = t.call(nobody(), "/process.Process/Start", method="POST", body=b"\0\0\0\0\2{}", headers=[
        ("Connect-Protocol-Version", "1"), ("Content-Type", "application/connect+json")])
    t.eq("status, retcode", (response.status, response.retcode), (200, "310507"))
    t.eq("flags, length", (response.body[:1], int.from_bytes(response.body[1:5], "big")), (b"\2", len(response.body) - 5))
    fields = json.loads(response.body[5:])
    t.eq("keys, code", (list(fields), fields["error"]["code"]), (["error"], "unavailable"))


# errors.md: too many for one sandbox (here: 3)
@case("e2b", "errors/e2b/too many", "errors.md")
def _(t):
    upstream = t.upstream().on("/slow", lambda x: time.sleep(1.5) or x.reply(200))
    box = t.sandbox(upstream)
    for _ in range(3):
        t.client().request("GET", "/slow", [("Host", box.host())])
    t.true("three requests at the upstream", wait_for(lambda: len(upstream.seen("/slow")) == 3, 2))
    text = "The sandbox has too many concurrent incoming connections (limit: 3)"
    e2b(t, t.call(box), 310429, 429, "1", sandboxId=box.id, message=text, code=429, connectionLimit=3)


# errors.md: a node in the faulty set: 340500
@case("cube", "faulty/refused", "lifecycle.md")
def _(t):
    upstream = t.upstream(host="127.0.0.41")
    box = t.sandbox(upstream)
    Seen(t, t.call(box))
    t.redis("SADD", "faulty_backend_set", "127.0.0.41")
    try:
        t.true("refused within 2 s", wait_for(lambda: t.call(box).status == 500, 2))
        count = len(upstream.seen())
        cube(t, t.call(box), 340500)
        t.eq("further requests at the upstream", len(upstream.seen()) - count, 0)
        Seen(t, t.call(t.sandbox(t.upstream(host="127.0.0.42"))))
    finally:
        t.redis("SREM", "faulty_backend_set", "127.0.0.41")
    t.true("passes again", wait_for(lambda: t.call(box).status == 200, 2))


@case("e2b", "faulty/e2b", "errors.md")
def _(t):
    box = t.sandbox(t.upstream(host="127.0.0.43"))
    t.redis("SADD", "faulty_backend_set", "127.0.0.43")
    try:
        t.true("refused within 2 s", wait_for(lambda: t.call(box).status == 503, 2))
        e2b_other(t, t.call(box), box.id, 340500, 503, "1")
    finally:
        t.redis("SREM", "faulty_backend_set", "127.0.0.43")


# errors.md: in Connect shape an outage is aborted, never unavailable
@case("e2b", "faulty/connect stream", "errors.md")
def _(t):
    box = t.sandbox(t.upstream(host="127.0.0.44"))
    t.redis("SADD", "faulty_backend_set", "127.0.0.44")
    try:
        t.true("refused within 2 s", wait_for(lambda: t.call(box).status == 503, 2))
        response = t.call(box, "/process.Process/Start", method="POST", body=b"\0\0\0\0\2{}", headers=[
            ("Connect-Protocol-Version", "1"), ("Content-Type", "application/connect+json")])
        t.eq("status, retcode", (response.status, response.retcode), (200, "340500"))
        t.eq("code", json.loads(response.body[5:])["error"]["code"], "aborted")
    finally:
        t.redis("SREM", "faulty_backend_set", "127.0.0.44")


# errors.md: exactly one body, and the connection can be used after an error
@case("cube", "errors/cube/connection goes on", "errors.md")
def _(t):
    box, client = t.sandbox(t.upstream()), t.client()
    cube(t, client.call("GET", "/", [("Host", nobody().host())]), 310507)
    cube(t, client.call("GET", "/sandbox/x", [("Host", "127.0.0.1")]), 310400)
    Seen(t, client.call("GET", "/", [("Host", box.host())]))


# errors.md: OPTIONS that is no preflight gets the ordinary response
@case("cube", "errors/cors/plain OPTIONS", "errors.md")
def _(t):
    cube(t, t.call(nobody(), method="OPTIONS"), 310507)


# errors.md: Connect errors belong to the e2b dialect
@table("cube", "errors/cube/stays JSON", "errors.md", [
    ("script", [("User-Agent", CHROME), ("Accept", "application/json, text/html")]),
    ("connect", [("Connect-Protocol-Version", "1"), ("Content-Type", "application/json")]),
    ("gRPC-Web", [("Content-Type", "application/grpc-web+proto")]),
    ("not quite gRPC", [("Content-Type", "application/grpcfoo")]),
])
def _(t, headers):
    cube(t, t.call(nobody(), method="POST", headers=headers, body=b"{}"), 310507)


# errors.md: a browser that navigates gets a page in this dialect too
@case("cube", "errors/cube/page for a navigation", "errors.md")
def _(t):
    response = t.call(nobody(), headers=[("User-Agent", CHROME), ("Accept", "text/html"), ("Sec-Fetch-Mode", "navigate")])
    kind = (response.get("content-type") or "").split(";")[0]
    t.eq("status, retcode, type", (response.status, response.retcode, kind), (404, "310507", "text/html"))


# errors.md: a connection that is reset before a response is a 502, not a hang
@case("cube", "errors/cube/reset before a response", "errors.md")
def _(t):
    cube(t, t.call(t.sandbox(t.upstream(lambda x: x.close(reset=True))), method="POST", body=b"x"), 310509)


@case("limits", "breaker/one dead sandbox is not a node", "lifecycle.md")
def _(t):
    good = t.sandbox(t.upstream(host="127.0.0.53"))
    hole = t.black_hole("127.0.0.53")
    dead = t.sandbox(None, fields={"HostIP": "127.0.0.53", "8080": hole.port})
    for _ in range(3):
        t.eq("dead one", t.call(dead).status, 504)
    Seen(t, t.call(good))
