"""HTTP/1.0 and HTTP/1.1 on the wire (connections.md, "Framing")."""
from expect import Seen
from kit import case, table


def old_request(t, box, headers=""):
    """A request as an HTTP/1.0 client sends it, on a connection of its own."""
    client = t.client()
    client.send(f"POST / HTTP/1.0\r\nHost: {box.host()}\r\nContent-Length: 4\r\n{headers}\r\nbody")
    return client.body(client.head())


# connections.md: an HTTP/1.0 client gets no 1xx response, and its Expect stays at the proxy
@case("cube", "http1/1.0 client/no interim response", "connections.md")
def _(t):
    def handler(x):
        x.send("HTTP/1.1 103 Early Hints\r\nLink: </a.css>; rel=preload\r\n\r\n")
        x.send("HTTP/1.1 100 Continue\r\n\r\n")
        x.reply(200, [], x.body())
    upstream = t.upstream(handler)
    response = old_request(t, t.sandbox(upstream), "Expect: 100-continue\r\n")
    t.eq("status, body", (response.status, response.body), (200, b"body"))
    t.eq("1xx before it", [early.status for early in response.informational], [])
    t.eq("Expect at the upstream", upstream.seen()[0].all("expect"), [])


# connections.md: it gets no chunks either, whatever the upstream sends
@case("cube", "http1/1.0 client/no chunks", "connections.md")
def _(t):
    def handler(x):
        x.body()
        x.start(200, [("Transfer-Encoding", "chunked")])
        x.chunk(b"one")
        x.chunk(b"two")
        x.end()
    response = old_request(t, t.sandbox(t.upstream(handler)))
    t.eq("Transfer-Encoding, body", (response.all("transfer-encoding"), response.body), ([], b"onetwo"))


# connections.md: the version of a response is the proxy's, whatever the upstream speaks
@table("cube", "http1/1.0 upstream", "connections.md", [
    ("kept alive", "Connection: keep-alive\r\nContent-Length: 2\r\n"), ("closed", ""),
])
def _(t, headers):
    def handler(x):
        x.body()
        x.send(f"HTTP/1.0 200 OK\r\n{headers}\r\nok")
        x.close()
    response = t.call(t.sandbox(t.upstream(handler)))
    t.eq("version, status, body", (response.version, response.status, response.body), ("HTTP/1.1", 200, b"ok"))


# connections.md: an empty line before a request is ignored: it is no head that has begun (here 1 s for a head)
@case("limits", "http1/empty line starts no clock", "connections.md")
def _(t):
    client, box = t.client(), t.sandbox(t.upstream())
    client.request("POST", "/", [("Host", box.host())], b"body")
    client.send("\r\n")
    Seen(t, client.body(client.head()))
    t.eq("until the idle connection is closed", client.some(), b"")


@case("cube", "http1/empty line before a request", "connections.md")
def _(t):
    client, box = t.client(), t.sandbox(t.upstream())
    client.send("\r\n")
    Seen(t, client.call("GET", "/", [("Host", box.host())]))


# connections.md: two ways to say a length: 400
@table("cube", "http1/two lengths", "connections.md", [
    ("chunked and a length", ["Transfer-Encoding: chunked", "Content-Length: 4"]),
    ("different lengths", ["Content-Length: 4", "Content-Length: 5"]),
    ("another coding", ["Transfer-Encoding: gzip, chunked"]),
])
def _(t, headers):
    client, upstream = t.client(), t.upstream()
    box = t.sandbox(upstream)
    client.send("\r\n".join(["POST / HTTP/1.1", f"Host: {box.host()}"] + headers) + "\r\n\r\n0\r\n\r\n")
    t.eq("status", client.head().status, 400)
    t.eq("requests at the upstream", len(upstream.seen()), 0)
