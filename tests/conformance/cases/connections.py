"""Streaming, cut streams, upgrades, pool and retries (connections.md, errors.md)."""
import hashlib
import threading
import time

from expect import Seen, cube
from kit import case, make_frame, read_frame, reply, table, wait_for, websocket

UPGRADE = [("Connection", "Upgrade"), ("Upgrade", "websocket"), ("Sec-WebSocket-Version", "13"),
           ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==")]


def gated(kind, headers=()):
    """A handler that sends each piece when told to, and the list of events that tell it."""
    gates = [threading.Event() for _ in range(3)]

    def handler(x):
        x.body()
        size = [("Transfer-Encoding", "chunked")] if kind == "chunked" else [("Content-Length", "15")] \
            if kind == "length" else [("Connection", "close")]
        x.start(200, size + list(headers))
        for number, gate in enumerate(gates):
            gate.wait(8)
            piece = b"part%d" % number
            x.chunk(piece) if kind == "chunked" else x.send(piece)
        x.end() if kind == "chunked" else x.close() if kind == "close" else None
    return handler, gates


# connections.md: a chunk is at the client at once, in all three forms, for any type, with a known length too
@table("cube", "stream/down", "connections.md", [
    ("host chunked", "host", "chunked", "application/octet-stream"),
    ("path chunked", "path", "chunked", "text/html"),
    ("host known length", "host", "length", "application/json"),
    ("header events", "header", "chunked", "text/event-stream"),
])
def _(t, form, kind, content):
    handler, gates = gated(kind, [("Content-Type", content)])
    box, client = t.sandbox(t.upstream(handler)), t.client()
    prefix, named = t.naming(box, form)
    client.request("GET", prefix + "/s", named)
    head = client.head()
    t.eq("head before the first byte of the body", (head.status, head.retcode), (200, "310200"))
    for number, gate in enumerate(gates):
        begin = time.monotonic()
        gate.set()
        piece = client.chunk_in() if kind == "chunked" else client.file.read(5)
        t.eq("piece", piece, b"part%d" % number)
        t.true("latency", time.monotonic() - begin < 0.5, "at once", f"{time.monotonic() - begin:.2f} s")
    if kind == "chunked":
        t.eq("end", client.chunk_in(), b"")


# connections.md: a chunk that the client writes is at the upstream at once, also before the response starts
@table("cube", "stream/up", "connections.md", [
    ("host chunked", "host", True), ("path chunked", "path", True), ("host known length", "host", False),
])
def _(t, form, chunked):
    got, arrived = [], threading.Semaphore(0)

    def handler(x):
        while True:
            piece = x.piece()
            if not piece:
                break
            got.append(piece)
            arrived.release()
        x.reply(200, [], b"".join(got))
    box, client = t.sandbox(t.upstream(handler)), t.client()
    prefix, named = t.naming(box, form)
    size = [("Transfer-Encoding", "chunked")] if chunked else [("Content-Length", "15")]
    client.request("POST", prefix + "/up", named + size)
    for number in range(3):
        piece = b"part%d" % number
        client.chunk(piece) if chunked else client.send(piece)
        t.true(f"piece {number} at the upstream while the request is open", arrived.acquire(timeout=2))
    if chunked:
        client.send("0\r\n\r\n")
    t.eq("body", client.body(client.head()).body, b"part0part1part2")


# connections.md: 100-continue
@case("cube", "stream/100-continue", "connections.md")
def _(t):
    def handler(x):
        if x.request.get("expect"):
            x.send("HTTP/1.1 100 Continue\r\n\r\n")
        x.reply(200, [], x.body())
    box, client = t.sandbox(t.upstream(handler)), t.client()
    client.request("POST", "/", [("Host", box.host()), ("Expect", "100-continue"), ("Content-Length", "5")])
    t.true("100 before the body", client.file.readline().startswith(b"HTTP/1.1 100"))
    client.file.readline()
    client.send("hello")
    t.eq("body", client.body(client.head()).body, b"hello")


# errors.md: an upstream that dies in mid-body must not look like a clean end
@table("cube", "stream/cut", "errors.md", [("chunked", "chunked"), ("known length", "length")])
def _(t, kind):
    def handler(x):
        x.body()
        x.start(200, [("Transfer-Encoding", "chunked") if kind == "chunked" else ("Content-Length", "1000")])
        x.chunk(b"half") if kind == "chunked" else x.send(b"half")
        time.sleep(0.1)
        x.close()
    response = t.call(t.sandbox(t.upstream(handler)))
    t.eq("status, body, clean end", (response.status, response.body, response.clean), (200, b"half", False))


# connections.md: a client that leaves closes its upstream request within 1 s
@case("cube", "stream/client leaves", "connections.md")
def _(t):
    seen = []

    def handler(x):
        x.body()
        x.start(200, [("Transfer-Encoding", "chunked")])
        x.chunk(b"first")
        begin = time.monotonic()
        seen.append((x.gone_within(6), time.monotonic() - begin))
        x.close()
    box, client = t.sandbox(t.upstream(handler)), t.client()
    client.request("GET", "/", [("Host", box.host())])
    client.head()
    client.chunk_in()
    client.close()
    t.true("end seen at the upstream", wait_for(lambda: seen, 7))
    t.true("within 1 s", seen[0][0] and seen[0][1] < 1.5, "closed in 1 s", seen)


# connections.md: large bodies pass both ways, byte for byte
@case("cube", "stream/large", "connections.md")
def _(t):
    data = bytes(range(256)) * 32768

    def handler(x):
        x.reply(200, [("X-Sum", hashlib.sha256(x.body()).hexdigest())], data)
    response = t.call(t.sandbox(t.upstream(handler)), method="POST", body=data)
    t.passed(response)
    t.eq("sum of what arrived", response.get("x-sum"), hashlib.sha256(data).hexdigest())
    t.true("body equal", response.body == data, f"{len(data)} bytes", f"{len(response.body)} bytes")


# connections.md: 1xx responses pass
@case("cube", "stream/103", "connections.md")
def _(t):
    def handler(x):
        x.body()
        x.send("HTTP/1.1 103 Early Hints\r\nLink: </a.css>; rel=preload\r\n\r\n")
        x.reply(200, [], b"ok")
    response = t.call(t.sandbox(t.upstream(handler)))
    t.eq("status, body", (response.status, response.body), (200, b"ok"))
    t.eq("1xx before it", [(a.status, a.get("link")) for a in response.informational], [(103, "</a.css>; rel=preload")])


# connections.md: both directions at once
@case("cube", "stream/both ways at once", "connections.md")
def _(t):
    def handler(x):
        x.start(200, [("Transfer-Encoding", "chunked")])
        while True:
            piece = x.piece()
            if not piece:
                break
            x.chunk(piece.upper())
        x.end()
    box, client = t.sandbox(t.upstream(handler)), t.client()
    client.request("POST", "/", [("Host", box.host()), ("Transfer-Encoding", "chunked")])
    client.chunk(b"first")
    client.head()
    t.eq("response to the first chunk", client.chunk_in(), b"FIRST")
    client.chunk(b"second")
    t.eq("response to the second chunk", client.chunk_in(), b"SECOND")
    client.send("0\r\n\r\n")
    t.eq("end", client.chunk_in(), b"")


def open_socket(t, box, form="host", target="/ws", headers=()):
    client = t.client()
    prefix, named = t.naming(box, form)
    client.request("GET", prefix + target, named + UPGRADE + list(headers))
    return client, client.head()


# connections.md: WebSocket passes in host, header and path form; frames pass at once
@table("cube", "websocket/echo", "connections.md", [("host", "host"), ("path", "path"), ("header", "header")])
def _(t, form):
    upstream = t.upstream(websocket)
    client, head = open_socket(t, t.sandbox(upstream), form, "/ws?a=1", [("Sec-WebSocket-Protocol", "chat")])
    t.eq("status, accept, protocol", (head.status, head.get("sec-websocket-accept"), head.get("sec-websocket-protocol")),
         (101, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=", "chat"))
    t.eq("Upgrade", (head.get("upgrade") or "").lower(), "websocket")
    t.eq("target", upstream.seen()[0].target, "/ws?a=1")
    for data in (b"one", b"", b"x" * 70000):
        client.send(make_frame(2, data))
        t.true("echo", read_frame(client.file) == (2, data), f"{len(data)} bytes", "something else")
    client.send(make_frame(8, b"\x03\xe8"))
    t.eq("close", read_frame(client.file), (8, b"\x03\xe8"))


@case("cube", "websocket/private", "connections.md")
def _(t):
    box = t.sandbox(t.upstream(websocket), token="tok")
    client, head = open_socket(t, box)
    cube(t, client.body(head), 310507)
    client, head = open_socket(t, box, "path", headers=[("e2b-traffic-access-token", "tok")])
    t.eq("status", head.status, 101)
    client.send(make_frame(1, b"hello"))
    t.eq("echo", read_frame(client.file), (1, b"hello"))


# routing.md: Connection and Upgrade are sent for a real upgrade; the proxy's headers are there too
@case("cube", "websocket/headers at the sandbox", "connections.md")
def _(t):
    upstream = t.upstream(websocket)
    box = t.sandbox(upstream, fields={"MaskRequestHost": "localhost:${PORT}"})
    _, head = open_socket(t, box)
    t.eq("status", head.status, 101)
    request = upstream.seen()[0]
    t.eq("Upgrade, Connection", (request.get("upgrade"), (request.get("connection") or "").lower()), ("websocket", "upgrade"))
    t.eq("Host, X-Forwarded-Host", (request.all("host"), request.all("x-forwarded-host")),
         (["localhost:8080"], [box.host()]))


# connections.md: an application that does not upgrade responses as usual
@case("cube", "websocket/declined", "connections.md")
def _(t):
    client, head = open_socket(t, t.sandbox(t.upstream()))
    t.eq("status, retcode", (head.status, head.retcode), (200, "310200"))
    t.eq("target", client.body(head).json()["target"], "/ws")


# connections.md: Upgrade of any protocol; bytes that come with the handshake are not lost
@case("cube", "websocket/other protocol", "connections.md")
def _(t):
    def handler(x):
        x.start(101, [("Upgrade", "raw-echo/1"), ("Connection", "Upgrade")])
        x.send(b"hello from the server\n")
        while True:
            data = x.file.read1(4096)
            if not data:
                break
            x.send(data[::-1])
        x.close()
    box, client = t.sandbox(t.upstream(handler)), t.client()
    client.request("GET", "/raw", [("Host", box.host()), ("Connection", "upgrade"), ("Upgrade", "raw-echo/1")])
    head = client.head()
    t.eq("status, Upgrade", (head.status, head.get("upgrade")), (101, "raw-echo/1"))
    t.eq("first line", client.file.readline(), b"hello from the server\n")
    client.send(b"abc")
    t.eq("echo", client.file.read(3), b"cba")


# connections.md, Retries: connect refused: the route is read afresh, the new one is tried
@table("blind", "retry/route read again", "connections.md", [("GET", "GET", None), ("POST", "POST", b"body")])
def _(t, method, body):
    old, new = t.upstream(name="old"), t.upstream(name="new")
    box = t.sandbox(old)
    Seen(t, t.call(box))
    old.stop()
    t.redis("HSET", t.key(box.id), "8080", new.port)
    seen = Seen(t, t.call(box, method=method, body=body))
    t.eq("upstream, body", (seen.upstream, seen.body), ("new", body or b""))


# connections.md: a POST that was sent is never sent twice
@case("cube", "retry/POST once", "connections.md")
def _(t):
    def handler(x):
        x.body()
        x.close()
    upstream = t.upstream(handler)
    cube(t, t.call(t.sandbox(upstream), method="POST", body=b"pay 5"), 310509)
    time.sleep(0.3)
    t.eq("requests at the upstream", len(upstream.seen()), 1)


# connections.md: a pooled connection that is dead before the first byte: an idempotent request is tried again
@case("cube", "retry/stale connection", "connections.md")
def _(t):
    def handler(x):
        x.body()
        if sum(r.connection == x.request.connection for r in x.upstream.seen()) > 1:
            x.close()
        else:
            x.reply(200, [], b"ok")
    box = t.sandbox(t.upstream(handler))
    for _ in range(4):
        t.eq("status", t.call(box).status, 200)


# connections.md: a response, whatever its status, is never retried
@table("cube", "retry/responses are final", "connections.md", [("502", 502), ("503", 503), ("504", 504)])
def _(t, status):

    upstream = t.upstream(reply(status, [], b"mine"))
    response = t.passed(t.call(t.sandbox(upstream)), status)
    t.eq("body, requests", (response.body, len(upstream.seen())), (b"mine", 1))


# connections.md: connections to a sandbox are kept
@case("cube", "pool/kept alive", "connections.md")
def _(t):
    upstream = t.upstream()
    box = t.sandbox(upstream)
    for _ in range(12):
        Seen(t, t.call(box))
    t.true("connections for 12 requests", upstream.connections < 8, "fewer than requests", upstream.connections)
