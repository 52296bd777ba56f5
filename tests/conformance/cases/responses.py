"""What the client gets back: return codes, Location and cookies in the path form, untouched bodies (routing.md)."""
import gzip

from kit import case, reply, table


def respond_with(t, headers, status=200, form="path", body=b"ok"):
    """(response, prefix) of a request whose upstream responses with these headers; HOST stands for the client's Host."""
    upstream = t.upstream()
    box = t.sandbox(upstream)
    host = f"127.0.0.1:{t.proxy.http}"
    filled = [(n, v.replace("HOST", host).replace("PREFIX", box.prefix())) for n, v in headers]
    upstream.on("/x", reply(status, filled, body))
    return t.call(box, "/x", form=form), box.prefix(), host


# routing.md, errors.md: 310200 for a 200, 330<status> for everything else, on every response
@table("cube", "response/retcode", "routing.md", [("200", 200), ("201", 201), ("404", 404), ("503", 503), ("302", 302)])
def _(t, status):
    upstream = t.upstream(reply(status, [("X-App", "1")], b"body"))
    response = t.passed(t.call(t.sandbox(upstream)), status)
    t.eq("body, X-App", (response.body, response.get("x-app")), (b"body", "1"))
    t.eq("number of X-Cube-Request-Id", len(response.all("x-cube-request-id")), 1)
    t.eq("requests at the upstream", len(upstream.seen()), 1)


# routing.md: root-relative, or absolute to the very host the client used: moved under the prefix; others not
@table("cube", "response/location", "routing.md", [
    ("root relative", "Location", "/login?next=/a#top", "PREFIX/login?next=/a#top"),
    ("root", "Location", "/", "PREFIX/"),
    ("relative", "Location", "login", "login"),
    ("other host", "Location", "http://other.example/x", "http://other.example/x"),
    ("already under the prefix", "Location", "PREFIX/x", "PREFIX/x"),
    ("Content-Location", "Content-Location", "/doc/1", "PREFIX/doc/1"),
    ("Refresh", "Refresh", "5; url=/next", "5; url=PREFIX/next"),
])
def _(t, name, sent, want):
    response, prefix, host = respond_with(t, [(name, sent)], 302 if name == "Location" else 200)
    t.eq(name, response.all(name), [want.replace("PREFIX", prefix)])


@case("cube", "response/location/same host", "routing.md")
def _(t):
    response, prefix, host = respond_with(t, [("Location", "http://HOST/x")], 301)
    t.true("Location", response.get("location") in (f"http://{host}{prefix}/x", f"{prefix}/x"),
           f"http://{host}{prefix}/x", response.get("location"))


# routing.md: rewriting belongs to the path form
@table("cube", "response/location/not in form", "routing.md", [("host", "host"), ("header", "header")])
def _(t, form):
    response, _, _ = respond_with(t, [("Location", "/login"), ("Set-Cookie", "a=1; Path=/")], 302, form)
    t.eq("Location, Set-Cookie", (response.all("location"), response.all("set-cookie")), (["/login"], ["a=1; Path=/"]))


# routing.md: Path=/p gets the prefix, a cookie without Path none; order and case of attributes stay
@table("cube", "response/cookie", "routing.md", [
    ("root", "a=1; Path=/", "a=1; Path=PREFIX/"),
    ("path", "a=1; Path=/p/q", "a=1; Path=PREFIX/p/q"),
    ("no path", "a=1; HttpOnly", "a=1; HttpOnly"),
    ("order and case", "b=2; HttpOnly; path=/q; Secure; SameSite=Lax", "b=2; HttpOnly; path=PREFIX/q; Secure; SameSite=Lax"),
])
def _(t, sent, want):
    response, prefix, _ = respond_with(t, [("Set-Cookie", sent)])
    t.eq("Set-Cookie", response.all("set-cookie"), [want.replace("PREFIX", prefix)])


# routing.md: several Set-Cookie headers stay several
@case("cube", "response/cookie/several", "routing.md")
def _(t):
    response, prefix, _ = respond_with(t, [("Set-Cookie", "a=1; Path=/"), ("Set-Cookie", "b=2"), ("Set-Cookie", "c=3; Path=/c")])
    t.eq("Set-Cookie", response.all("set-cookie"), [f"a=1; Path={prefix}/", "b=2", f"c=3; Path={prefix}/c"])


# routing.md: bodies are never rewritten or recompressed
@case("cube", "response/body untouched", "routing.md")
def _(t):
    page = b'<a href="/login">x</a>' * 200
    packed = gzip.compress(page)
    upstream = t.upstream().on("/plain", reply(200, [("Content-Type", "text/html")], page)) \
        .on("/gzip", reply(200, [("Content-Type", "text/html"), ("Content-Encoding", "gzip")], packed))
    box = t.sandbox(upstream)
    plain = t.call(box, "/plain", form="path", headers=[("Accept-Encoding", "gzip, br")])
    t.eq("plain body", (plain.body, plain.get("content-encoding"), plain.get("content-length")),
         (page, None, str(len(page))))
    t.eq("gzip body", t.call(box, "/gzip", form="path").body, packed)


# connections.md: 204 and 304 stay without a body, Content-Length: 0 stays
@table("cube", "response/no body", "connections.md", [("204", 204), ("304", 304)])
def _(t, status):
    box = t.sandbox(t.upstream(reply(status, [("ETag", '"1"')])))
    client = t.client()
    first = client.call("GET", "/", [("Host", box.host())])
    t.passed(first, status)
    t.eq("the connection still works", client.call("GET", "/", [("Host", box.host())]).status, status)


@case("cube", "response/no body/length 0", "connections.md")
def _(t):
    response = t.passed(t.call(t.sandbox(t.upstream(reply(200)))))
    t.eq("Content-Length, body", (response.all("content-length"), response.body), (["0"], b""))


# errors.md, CORS: what an application responses is left alone: never a second CORS header
@case("cube", "response/cors of the application", "errors.md")
def _(t):
    upstream = t.upstream(reply(200, [("Access-Control-Allow-Origin", "https://app.example")], b"x"))
    response = t.call(t.sandbox(upstream), headers=[("Origin", "https://app.example")])
    t.eq("Access-Control-Allow-Origin", response.all("access-control-allow-origin"), ["https://app.example"])


# routing.md: the response to HEAD keeps the upstream's Content-Length and has no body
@case("cube", "response/no body/HEAD", "connections.md")
def _(t):
    box = t.sandbox(t.upstream(reply(200, [("ETag", '"7"')], b"twelve bytes")))
    client = t.client()
    response = client.call("HEAD", "/", [("Host", box.host())])
    t.eq("status, Content-Length", (response.status, response.get("content-length")), (200, "12"))
    t.eq("the connection still works", client.call("GET", "/", [("Host", box.host())]).body, b"twelve bytes")


# errors.md, CORS: the application's preflight response passes as it is
@case("cube", "response/preflight of the application", "errors.md")
def _(t):
    upstream = t.upstream(reply(200, [("Access-Control-Allow-Origin", "https://a.example"),
                                  ("Access-Control-Allow-Methods", "PUT")], b"pre"))
    response = t.call(t.sandbox(upstream), method="OPTIONS", headers=[
        ("Origin", "https://a.example"), ("Access-Control-Request-Method", "PUT")])
    t.passed(response)
    t.eq("CORS, body", (response.all("access-control-allow-origin"), response.all("access-control-allow-methods"),
                        response.body), (["https://a.example"], ["PUT"], b"pre"))


# connections.md: a 426 says to which protocol (RFC 9110, 15.5.22)
@case("cube", "response/upgrade required", "connections.md")
def _(t):
    headers = [("Upgrade", "websocket"), ("Connection", "Upgrade")]
    response = t.passed(t.call(t.sandbox(t.upstream(reply(426, headers, b"upgrade")))), 426)
    t.eq("Upgrade, Connection", (response.all("upgrade"), "upgrade" in (response.get("connection") or "").lower()),
         (["websocket"], True))
