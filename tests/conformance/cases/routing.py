"""Which sandbox and port a request names: host, headers, path (routing.md)."""
from expect import Seen, cube
from kit import case, new_id, table


# routing.md, Host form: <port>-<sandbox-id>[.<domain>][:<listener port>]
@table("cube", "routing/host", "routing.md", [
    ("with domain", "8080-{id}.cube.app"),
    ("no domain", "8080-{id}"),
    ("listener port", "8080-{id}.cube.app:8081"),
    ("deep domain", "8080-{id}.a.b.example.org"),
    ("upper case domain", "8080-{id}.CUBE.App"),
])
def _(t, host):
    upstream = t.upstream()
    box = t.sandbox(upstream)
    seen = Seen(t, t.raw("GET", "/a/b?c=d", [("Host", host.replace("{id}", box.id))]))
    t.eq("target", seen.target, "/a/b?c=d")


# routing.md: host names are folded to lower case
@case("cube", "routing/host/upper case id", "routing.md")
def _(t):
    box = t.sandbox(t.upstream(), sid=new_id("abc"))
    Seen(t, t.raw("GET", "/", [("Host", f"8080-{box.id.upper()}.cube.app")]))


# routing.md: the port of the host picks the mapping
@case("cube", "routing/host/port picks mapping", "routing.md")
def _(t):
    one, two = t.upstream(name="one"), t.upstream(name="two")
    box = t.sandbox(one, fields={"3000": two.port})
    t.eq("upstream", Seen(t, t.call(box, port=8080)).upstream, "one")
    t.eq("upstream", Seen(t, t.call(box, port=3000)).upstream, "two")


# routing.md: id [A-Za-z0-9_-]{1,128}; port 1..=65535 without sign or leading zero; else 310400
@table("cube", "routing/host/bad", "routing.md", [
    ("port 0", "0-abc.cube.app"),
    ("port 65536", "65536-abc.cube.app"),
    ("leading zero", "08080-abc.cube.app"),
    ("no id", "8080-.cube.app"),
    ("id of 129", "8080-" + "a" * 129 + ".cube.app"),
])
def _(t, host):
    cube(t, t.raw("GET", "/", [("Host", host)]), 310400)


# routing.md: anything else is a 400
@table("cube", "routing/none", "routing.md", [
    ("plain domain", "cube.app"),
    ("underscore", "8080_abc.cube.app"),
    ("ip", "127.0.0.1"),
])
def _(t, host):
    cube(t, t.raw("GET", "/", [("Host", host)]), 310400)


# routing.md: E2b-Sandbox-Id and E2b-Sandbox-Port when Host is an IP literal, localhost or sandbox.<domain>
@table("cube", "routing/headers", "routing.md", [
    ("ipv4", "127.0.0.1"),
    ("ipv4 and port", "127.0.0.1:8081"),
    ("localhost", "localhost:8081"),
    ("sandbox domain", "sandbox.cube.app"),
])
def _(t, host):
    box = t.sandbox(t.upstream())
    seen = Seen(t, t.raw("GET", "/x%20y?q", [("Host", host), ("E2b-Sandbox-Id", box.id), ("E2b-Sandbox-Port", "8080")]))
    t.eq("target", seen.target, "/x%20y?q")


# routing.md: on a per-sandbox host these headers are ignored
@case("cube", "routing/headers/ignored on sandbox host", "routing.md")
def _(t):
    one = t.sandbox(t.upstream(name="one"))
    two = t.sandbox(t.upstream(name="two"))
    seen = Seen(t, t.call(one, headers=[("E2b-Sandbox-Id", two.id), ("E2b-Sandbox-Port", "8080")]))
    t.eq("upstream", seen.upstream, "one")


# routing.md: one without the other is a 400; ids and ports are checked before anything is looked up
@table("cube", "routing/headers/bad", "routing.md", [
    ("id only", [("E2b-Sandbox-Id", "abc")]),
    ("port only", [("E2b-Sandbox-Port", "8080")]),
    ("id with colon", [("E2b-Sandbox-Id", "a:b"), ("E2b-Sandbox-Port", "8080")]),
    ("id with dot", [("E2b-Sandbox-Id", "a.b"), ("E2b-Sandbox-Port", "8080")]),
    ("port 0", [("E2b-Sandbox-Id", "abc"), ("E2b-Sandbox-Port", "0")]),
    ("port with sign", [("E2b-Sandbox-Id", "abc"), ("E2b-Sandbox-Port", "+80")]),
])
def _(t, headers):
    cube(t, t.raw("GET", "/", [("Host", "127.0.0.1")] + headers), 310400)


# routing.md, Path form: /sandbox/<id>/<port>[/<rest>]; the sandbox gets /<rest> (or /) and the query as it came
@table("cube", "routing/path", "routing.md", [
    ("rest and query", "/api/v1?x=1&y=2", "/api/v1?x=1&y=2"),
    ("bare", "", "/"),
    ("slash", "/", "/"),
    ("bare with query", "?x=1", "/?x=1"),
    ("percent encoding", "/a%2Fb/%40/c%20d", "/a%2Fb/%40/c%20d"),
    ("double slash", "//a//b", "//a//b"),
    ("dot segments", "/../../etc/passwd", "/../../etc/passwd"),
])
def _(t, rest, want):
    box = t.sandbox(t.upstream())
    t.eq("target", Seen(t, t.call(box, rest, form="path")).target, want)


# routing.md: a browser that navigates to the bare form is sent to the one with a slash, where relative links work
@table("cube", "routing/path/navigation", "routing.md", [("bare", "", "/"), ("with query", "?x=1", "/?x=1")])
def _(t, rest, want):
    box = t.sandbox(t.upstream())
    response = t.call(box, rest, form="path", headers=[("Sec-Fetch-Mode", "navigate"), ("Accept", "text/html")])
    t.true("status", response.status in (301, 302, 303, 307, 308), "a redirect", response.status)
    t.eq("Location", response.all("location"), [box.prefix() + want])


# routing.md: such a path does not parse: 400
@table("cube", "routing/path/bad", "routing.md", [
    ("junk after port", "/sandbox/x/80foo"),
    ("no port", "/sandbox/x"),
    ("word for port", "/sandbox/x/abc"),
    ("empty id", "/sandbox//80/"),
    ("port 65536", "/sandbox/x/65536/"),
    ("percent in id", "/sandbox/a%41/80/"),
])
def _(t, target):
    cube(t, t.raw("GET", target, [("Host", "127.0.0.1")]), 310400)


# routing.md: path and query are byte-exact in all three forms
@table("cube", "routing/exact", "routing.md", [
    ("host encoded slash", "host", "/a%2Fb//c%40d"),
    ("host query order", "host", "/q?b=2&a=1&b=3&c[]=x"),
    ("header brackets", "header", "/a[1]/~x;y=,z?u=[::1]"),
    ("path query", "path", "/q?b=2&a=%2f&b=3&&=&x"),
])
def _(t, form, target):
    box = t.sandbox(t.upstream())
    t.eq("target", Seen(t, t.call(box, target, form=form)).target, target)


# routing.md: a host that names a sandbox wins over a path that looks like the path form
@case("cube", "routing/order/host wins over path", "routing.md")
def _(t):
    one = t.sandbox(t.upstream(name="one"))
    two = t.sandbox(t.upstream(name="two"))
    target = f"/sandbox/{two.id}/8080/x?y"
    seen = Seen(t, t.raw("GET", target, [("Host", one.host())]))
    t.eq("upstream, target", (seen.upstream, seen.target), ("one", target))


# routing.md: the first that applies decides; if it does not parse the response is 400
@case("cube", "routing/order/bad host is not rescued by path", "routing.md")
def _(t):
    box = t.sandbox(t.upstream())
    cube(t, t.raw("GET", f"/sandbox/{box.id}/8080/", [("Host", "0-abc.cube.app")]), 310400)


# routing.md: Host against an absolute-form target: 400; routing.md: absolute form is turned into origin form
@case("cube", "routing/absolute/same host", "routing.md")
def _(t):
    box = t.sandbox(t.upstream())
    seen = Seen(t, t.raw("GET", f"http://{box.host()}/a%2Fb?c", [("Host", box.host())]))
    t.eq("target", seen.target, "/a%2Fb?c")


@case("cube", "routing/absolute/other host", "routing.md")
def _(t):
    box, other = t.sandbox(t.upstream()), t.sandbox(t.upstream())
    cube(t, t.raw("GET", f"http://{box.host()}/", [("Host", other.host())]), 310400)


# routing.md: two different values for Host: 400
@case("cube", "routing/host/two values", "routing.md")
def _(t):
    box, other = t.sandbox(t.upstream()), t.sandbox(t.upstream())
    response = t.raw("GET", "/", [("Host", box.host()), ("Host", other.host())])
    t.eq("status", response.status, 400)


# routing.md: missing Host and a target without a slash: 400
@table("cube", "routing/malformed", "routing.md", [
    ("no host", "GET", "/", []),
    ("target without slash", "GET", "a/b", [("Host", "8080-abc.cube.app")]),
    ("host with space", "GET", "/", [("Host", "8080-a b.cube.app")]),
])
def _(t, method, target, headers):
    t.eq("status", t.raw(method, target, headers).status, 400)


# connections.md, routing.md: any method passes with its body
@table("cube", "routing/method", "routing.md", [
    ("PUT", "PUT"), ("OPTIONS", "OPTIONS"), ("own method", "PROPFIND"),
])
def _(t, method):
    box = t.sandbox(t.upstream())
    seen = Seen(t, t.call(box, "/m", method=method, body=b"hello"))
    t.eq("method, body", (seen.method, seen.body), (method, b"hello"))


# routing.md: in the e2b dialect a trailing -<client id> is dropped from the host form
@case("e2b", "routing/e2b/client id dropped", "routing.md")
def _(t):
    box = t.sandbox(t.upstream())
    Seen(t, t.raw("GET", "/", [("Host", f"8080-{box.id}-6532622b.e2b.app")]))


# errors.md: 400 has the same status in both dialects and a message of its own
@case("e2b", "routing/e2b/bad host is 400", "errors.md")
def _(t):
    response = t.raw("GET", "/", [("Host", "0-abc.e2b.app")])
    t.eq("status, retcode", (response.status, response.retcode), (400, "310400"))
    t.eq("Content-Type", response.get("content-type"), "application/json; charset=utf-8")


# routing.md: the domain may be anything unless domains is configured (here: cube.test)
@table("options", "routing/domains", "routing.md", [
    ("listed", ".cube.test", True),
    ("not listed", ".other.test", False),
])
def _(t, domain, good):
    box = t.sandbox(t.upstream(host="127.0.0.3"))
    response = t.raw("GET", "/", [("Host", box.host(domain=domain))])
    t.eq("status, retcode", (response.status, response.retcode), (200, "310200") if good else (400, "310400"))


# routing.md: in the cube dialect nothing is dropped from the id
@case("cube", "routing/host/no client id in cube", "routing.md")
def _(t):
    box = t.sandbox(t.upstream())
    cube(t, t.raw("GET", "/", [("Host", f"8080-{box.id}-6532622b.cube.app")]), 310507)


# routing.md: Host is [v6]
@case("cube", "routing/headers/ipv6", "routing.md")
def _(t):
    box = t.sandbox(t.upstream())
    Seen(t, t.raw("GET", "/", [("Host", "[::1]:8081"), ("e2b-sandbox-id", box.id), ("E2B-SANDBOX-PORT", "8080")]))


# routing.md: headers on any other host do not apply; the path form then decides
@case("cube", "routing/order/headers on other host", "routing.md")
def _(t):
    one = t.sandbox(t.upstream(name="one"))
    two = t.sandbox(t.upstream(name="two"))
    seen = Seen(t, t.raw("GET", f"/sandbox/{two.id}/8080/x", [
        ("Host", "proxy.example.org"), ("E2b-Sandbox-Id", one.id), ("E2b-Sandbox-Port", "8080")]))
    t.eq("upstream, target", (seen.upstream, seen.target), ("two", "/x"))
