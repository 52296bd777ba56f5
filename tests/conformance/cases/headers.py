"""What the sandbox sees (routing.md, "What the sandbox sees")."""
import re

from expect import Seen
from kit import case, table


# routing.md: Host is the client's Host in every form; X-Forwarded-Host the same, one value
@table("cube", "headers/host", "routing.md", [("host form", "host"), ("path form", "path")])
def _(t, form):
    box = t.sandbox(t.upstream())
    seen = Seen(t, t.call(box, form=form, headers=[("X-Forwarded-Host", "evil.example")]))
    want = dict(t.naming(box, form)[1])["Host"]
    t.eq("Host", seen.all("host"), [want])
    t.eq("X-Forwarded-Host", seen.all("x-forwarded-host"), [want])


# routing.md: MaskRequestHost with each ${PORT} replaced by the container port
@table("cube", "headers/mask", "routing.md", [
    ("port", "localhost:${PORT}", "localhost:8080"),
    ("twice", "x-${PORT}:${PORT}", "x-8080:8080"),
    ("constant", "app.internal", "app.internal"),
])
def _(t, mask, want):
    box = t.sandbox(t.upstream(), fields={"MaskRequestHost": mask})
    seen = Seen(t, t.call(box))
    t.eq("Host", seen.all("host"), [want])
    t.eq("X-Forwarded-Host", seen.all("x-forwarded-host"), [box.host()])


# routing.md: never masked on port 49983
@case("cube", "headers/mask/not on 49983", "routing.md")
def _(t):
    box = t.sandbox(t.upstream(), port=49983, fields={"MaskRequestHost": "localhost:${PORT}"})
    t.eq("Host", Seen(t, t.call(box)).all("host"), [box.host()])


# routing.md: with no trusted proxy a client's own forwarding headers are replaced
@table("cube", "headers/forged", "routing.md", [
    ("X-Forwarded-For", "X-Forwarded-For", "1.2.3.4", "127.0.0.1"),
    ("X-Real-IP", "X-Real-IP", "1.2.3.4", "127.0.0.1"),
    ("X-Forwarded-Proto", "X-Forwarded-Proto", "https", "http"),
])
def _(t, name, sent, want):
    box = t.sandbox(t.upstream())
    t.eq(name, Seen(t, t.call(box, headers=[(name, sent)])).all(name), [want])


# routing.md: set also when the client sends none
@case("cube", "headers/forwarding set", "routing.md")
def _(t):
    box = t.sandbox(t.upstream())
    seen = Seen(t, t.call(box))
    got = [seen.all(n) for n in ("x-real-ip", "x-forwarded-for", "x-forwarded-proto", "x-forwarded-host")]
    t.eq("X-Real-IP, -For, -Proto, -Host", got, [["127.0.0.1"], ["127.0.0.1"], ["http"], [box.host()]])
    t.eq("X-Forwarded-Prefix in the host form", seen.all("x-forwarded-prefix"), [])


# routing.md: X-Forwarded-Prefix in the path form
@case("cube", "headers/prefix", "routing.md")
def _(t):
    box = t.sandbox(t.upstream())
    seen = Seen(t, t.call(box, "/a", form="path", headers=[("X-Forwarded-Prefix", "/evil")]))
    t.eq("X-Forwarded-Prefix", seen.all("x-forwarded-prefix"), [box.prefix()])


# routing.md: X-Cube-Request-Id is the client's when it is 1..=128 visible ASCII, else a new one
@table("cube", "headers/request id", "routing.md", [
    ("kept", "req-1/abc:def", True),
    ("128", "r" * 128, True),
    ("129", "r" * 129, False),
    ("with space", "a b", False),
])
def _(t, sent, kept):
    box = t.sandbox(t.upstream())
    response = t.call(box, headers=[("X-Cube-Request-Id", sent)])
    seen = Seen(t, response)
    t.eq("same to both sides", seen.all("x-cube-request-id"), response.all("x-cube-request-id"))
    got = response.get("x-cube-request-id") or ""
    t.true("request id", (got == sent) if kept else (got != sent and re.fullmatch(r"[!-~]{1,128}", got)),
           sent if kept else "a new one", got)


@case("cube", "headers/request id/new ones differ", "routing.md")
def _(t):
    box = t.sandbox(t.upstream())
    ids = {t.call(box).get("x-cube-request-id") for _ in range(5)}
    t.eq("distinct ids in 5 responses", len(ids - {None}), 5)


# routing.md: the proxy's own credentials are removed, the application's are not
@case("cube", "headers/credentials", "routing.md")
def _(t):
    box = t.sandbox(t.upstream(), token="tok-1")
    seen = Seen(t, t.call(box, form="header", headers=[
        ("e2b-traffic-access-token", "tok-1"), ("cube-traffic-access-token", "tok-1"),
        ("X-Access-Token", "app-1"), ("Authorization", "Bearer app-2"), ("Cookie", "a=b")]))
    for name in ("e2b-traffic-access-token", "cube-traffic-access-token", "e2b-sandbox-id", "e2b-sandbox-port"):
        t.eq(name, seen.all(name), [])
    t.eq("X-Access-Token, Authorization, Cookie",
         [seen.get("x-access-token"), seen.get("authorization"), seen.get("cookie")], ["app-1", "Bearer app-2", "a=b"])


# routing.md: Connection and Upgrade are sent only for a real upgrade
@table("cube", "headers/hop by hop", "routing.md", [
    ("keep-alive", [("Connection", "keep-alive")]),
    ("upgrade without Upgrade", [("Connection", "upgrade")]),
])
def _(t, headers):
    box = t.sandbox(t.upstream())
    seen = Seen(t, t.call(box, headers=headers))
    t.eq("Connection, Upgrade", (seen.all("connection"), seen.all("upgrade")), ([], []))


# routing.md: headers that the proxy vouches for survive a client's Connection header
@case("cube", "headers/forged connection/x-real-ip", "routing.md")
def _(t):
    box = t.sandbox(t.upstream())
    seen = Seen(t, t.call(box, headers=[("Connection", "x-real-ip, X-Forwarded-For"), ("X-Real-IP", "6.6.6.6")]))
    t.eq("X-Real-IP, X-Forwarded-For", (seen.all("x-real-ip"), seen.all("x-forwarded-for")),
         (["127.0.0.1"], ["127.0.0.1"]))


# routing.md: everything else is unchanged, and nothing is added but what the table names
@case("cube", "headers/everything else", "routing.md")
def _(t):
    box = t.sandbox(t.upstream())
    sent = [("Accept-Encoding", "br;q=1.0, gzip"), ("X-Multi", "one"), ("X_Under", "u"), ("X-Multi", "two"),
            ("Accept", "text/event-stream"), ("X-Empty", "")]
    seen = Seen(t, t.call(box, headers=sent))
    for name in ("Accept-Encoding", "X_Under", "Accept", "X-Multi", "X-Empty"):
        t.eq(name, seen.all(name), [v for n, v in sent if n == name])
    ours = {"host", "x-forwarded-host", "x-forwarded-proto", "x-forwarded-for", "x-real-ip", "x-cube-request-id"}
    t.eq("added headers", sorted(seen.names() - ours - {n.lower() for n, _ in sent}), [])


# routing.md: a client's X-Forwarded-For is appended to when the peer is in trusted_proxies
@case("options", "headers/trusted/appended", "routing.md")
def _(t):
    box = t.sandbox(t.upstream(host="127.0.0.3"))
    seen = Seen(t, t.call(box, headers=[("X-Forwarded-For", "203.0.113.7"), ("X-Forwarded-Proto", "https")]))
    t.eq("X-Forwarded-For", [v.replace(" ", "") for v in seen.all("x-forwarded-for")], ["203.0.113.7,127.0.0.1"])
    t.eq("X-Forwarded-Proto", seen.all("x-forwarded-proto"), ["https"])


# routing.md: forward_credentials: true keeps them
@case("options", "headers/credentials forwarded", "routing.md")
def _(t):
    box = t.sandbox(t.upstream(host="127.0.0.3"), token="tok-1")
    seen = Seen(t, t.call(box, headers=[("e2b-traffic-access-token", "tok-1")]))
    t.eq("token", seen.all("e2b-traffic-access-token"), ["tok-1"])


# routing.md: listener port stays in Host as the client sent it
@case("cube", "headers/host/with port", "routing.md")
def _(t):
    box = t.sandbox(t.upstream())
    host = box.host() + ":8081"
    seen = Seen(t, t.raw("GET", "/", [("Host", host)]))
    t.eq("Host, X-Forwarded-Host", (seen.all("host"), seen.all("x-forwarded-host")), ([host], [host]))


@case("cube", "headers/mask/local sandbox", "routing.md")
def _(t):
    box = t.sandbox(t.upstream(), local=True, fields={"MaskRequestHost": "localhost:${PORT}"})
    t.eq("Host", Seen(t, t.call(box)).all("host"), [f"localhost:{box.port}"])


# routing.md: X-Forwarded-Proto of a trusted proxy: any case, ws and wss as http and https, of a list the first
@table("options", "headers/trusted/proto", "routing.md", [
    ("upper case", "HTTPS", "https"), ("wss", "wss", "https"), ("ws", "ws", "http"), ("list", "https, http", "https"),
])
def _(t, sent, want):
    box = t.sandbox(t.upstream(host="127.0.0.3"))
    seen = Seen(t, t.call(box, headers=[("X-Forwarded-Proto", sent)]))
    t.eq("X-Forwarded-Proto", seen.all("x-forwarded-proto"), [want])


# routing.md, "The masked host": an Origin and a Referer that are the client's own host say the mask; others stay
@table("cube", "headers/mask/Origin", "routing.md", [
    ("own", "http://HOST", "http://localhost:8080"), ("other", "http://other.example", "http://other.example"),
    ("null", "null", "null"),
])
def _(t, sent, want):
    box = t.sandbox(t.upstream(), fields={"MaskRequestHost": "localhost:${PORT}"})
    seen = Seen(t, t.call(box, headers=[("Origin", sent.replace("HOST", box.host()))]))
    t.eq("Origin", seen.all("origin"), [want])


@table("cube", "headers/mask/Referer", "routing.md", [
    ("own", "http://HOST/a?b=c", "http://localhost:8080/a?b=c"), ("other", "http://other.example/a", "http://other.example/a"),
])
def _(t, sent, want):
    box = t.sandbox(t.upstream(), fields={"MaskRequestHost": "localhost:${PORT}"})
    seen = Seen(t, t.call(box, headers=[("Referer", sent.replace("HOST", box.host()))]))
    t.eq("Referer", seen.all("referer"), [want])


# routing.md, path form: a Destination (WebDAV) under the prefix loses it
@table("cube", "headers/Destination", "routing.md", [
    ("under the prefix", "http://HOST/sandbox/ID/8080/b", "http://HOST/b"), ("elsewhere", "http://HOST/b", "http://HOST/b"),
])
def _(t, sent, want):
    box, host = t.sandbox(t.upstream()), f"127.0.0.1:{t.proxy.http}"
    sent, want = (text.replace("HOST", host).replace("ID", box.id) for text in (sent, want))
    seen = Seen(t, t.call(box, "/a", form="path", method="MOVE", headers=[("Destination", sent)]))
    t.eq("Destination", seen.all("destination"), [want])
