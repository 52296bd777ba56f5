"""Limits and timeouts, in a proxy where all of them are small (connections.md, errors.md)."""
import time

from expect import Seen, cube
from kit import case, table, wait_for


# errors.md, connections.md: limits (group: body 1 KiB)
@case("limits", "limit/body", "errors.md")
def _(t):
    upstream = t.upstream()
    box = t.sandbox(upstream)
    Seen(t, t.call(box, method="POST", body=b"x" * 1024))
    client = t.client()
    client.request("POST", "/big", [("Host", box.host()), ("Content-Length", "1025")])
    cube(t, client.body(client.head()), 310413)
    t.eq("large requests at the upstream", len(upstream.seen("/big")), 0)


# connections.md: limits of the head with 431, of the target with 414
@table("limits", "limit/head", "connections.md", [
    ("size", [("X-Long", "x" * 5000)], "/", 431),
    ("number of headers", [(f"X-{n}", "1") for n in range(25)], "/", 431),
    ("target", [], "/" + "t" * 600, 414),
])
def _(t, headers, target, status):
    box = t.sandbox(t.upstream())
    t.eq("status", t.call(box, target, headers=headers).status, status)
    Seen(t, t.call(box))


@case("limits", "limit/requests for one sandbox", "connections.md")
def _(t):
    upstream = t.upstream().on("/slow", lambda x: time.sleep(0.8) or x.reply(200))
    box, other = t.sandbox(upstream), t.sandbox(upstream)
    for _ in range(2):
        t.client().request("GET", "/slow", [("Host", box.host())])
    t.true("two requests at the upstream", wait_for(lambda: len(upstream.seen("/slow")) == 2, 2))
    cube(t, t.call(box), 310429)
    Seen(t, t.call(other))
    t.true("passes when they have ended", wait_for(lambda: t.call(box).status == 200, 3, 0.1))


# connections.md: client header deadline from the first byte (here 1 s), whatever trickles in
@case("limits", "limit/slow head", "connections.md")
def _(t):
    client = t.client()
    begin = time.monotonic()
    try:
        for byte in "GET / HTTP/1.1\r\nHost: x\r\nX-A: bcdefghijklmnop":
            client.send(byte)
            time.sleep(0.12)
    except OSError:
        pass
    client.some()
    t.true("ended", time.monotonic() - begin < 3, "after about 1 s", f"{time.monotonic() - begin:.1f} s")


# connections.md: keep-alive idle (here 1 s) and requests a connection (here 3)
@case("limits", "limit/keep-alive", "connections.md")
def _(t):
    box, client = t.sandbox(t.upstream()), t.client()
    for _ in range(2):
        t.eq("status", client.call("GET", "/", [("Host", box.host())]).status, 200)
    begin = time.monotonic()
    t.eq("idle connection", client.some(), b"")
    t.true("ended", 0.7 < time.monotonic() - begin < 3, "after about 1 s", f"{time.monotonic() - begin:.1f} s")
    client = t.client()
    for _ in range(3):
        client.call("GET", "/", [("Host", box.host())])
    begin = time.monotonic()
    t.eq("after three requests", client.some(), b"")
    t.true("ended", time.monotonic() - begin < 0.6, "at once", f"{time.monotonic() - begin:.1f} s")


# connections.md: an upstream that is silent for longer than the limit (here 1 s): 504
@case("limits", "limit/silent upstream", "connections.md")
def _(t):
    upstream = t.upstream(lambda x: x.gone_within(5))
    response = t.call(t.sandbox(upstream), method="POST", body=b"x")
    t.eq("status", response.status, 504)
    t.true("time", 0.8 < response.seconds < 2.5, "about 1 s", f"{response.seconds:.2f} s")


# connections.md: the head's deadline must not hit a slow upstream, nor a quiet stream a short limit
@case("limits", "limit/slow upstream is not a slow head", "connections.md")
def _(t):
    def handler(x):
        x.body()
        x.start(200, [("Transfer-Encoding", "chunked")])
        for _ in range(4):
            time.sleep(0.6)
            x.chunk(b"tick")
        x.end()
    response = t.call(t.sandbox(t.upstream(handler)))
    t.eq("status, body, clean end", (response.status, response.body, response.clean), (200, b"tick" * 4, True))
