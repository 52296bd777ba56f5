"""The traffic token, and that a refused caller cannot tell a sandbox from none (metadata.md, errors.md)."""
from expect import TOKEN_MISSING, TOKEN_WRONG, Seen, cube, e2b, e2b_not_found, same
from kit import Sandbox, case, new_id, table

E2B, CUBE = "e2b-traffic-access-token", "cube-traffic-access-token"


# metadata.md: either header, right if either is; missing or wrong: refused, on the wire 310507 (errors.md)
@table("cube", "token/matrix", "metadata.md", [
    ("none", [], False),
    ("e2b right", [(E2B, "tok-A")], True),
    ("cube right", [(CUBE, "tok-A")], True),
    ("e2b wrong", [(E2B, "tok-B")], False),
    ("e2b wrong cube right", [(E2B, "tok-B"), (CUBE, "tok-A")], True),
    ("empty", [(E2B, "")], False),
    ("prefix of it", [(E2B, "tok-")], False),
])
def _(t, headers, good):
    box = t.sandbox(t.upstream(), token="tok-A")
    for state in ("cold", "warm"):
        response = t.call(box, headers=headers)
        if good:
            Seen(t, response)
        else:
            cube(t, response, 310507)


# metadata.md: checked on every request, cached or not
@case("cube", "token/checked when warm", "metadata.md")
def _(t):
    upstream = t.upstream()
    box = t.sandbox(upstream, token="tok-A")
    Seen(t, t.call(box, headers=[(E2B, "tok-A")]))
    cube(t, t.call(box), 310507)
    cube(t, t.call(box, headers=[(CUBE, "tok-a")]), 310507)
    t.eq("requests at the upstream", len(upstream.seen()), 1)


# metadata.md: "true", or absent in a record without a token: public; everything else needs the token
@table("cube", "token/public", "metadata.md", [
    ("true with a token", {"AllowPublicTraffic": "true", "TrafficAccessToken": "tok-A"}, True),
    ("absent, no token", {}, True),
    ("absent with a token", {"TrafficAccessToken": "tok-A"}, False),
    ("False", {"AllowPublicTraffic": "False", "TrafficAccessToken": "tok-A"}, False),
])
def _(t, fields, public):
    box = t.sandbox(t.upstream(), fields=fields)
    if public:
        Seen(t, t.call(box))
    else:
        cube(t, t.call(box), 310507)
        Seen(t, t.call(box, headers=[(CUBE, "tok-A")]))


# metadata.md: no token in the record: refused whatever is presented
@case("cube", "token/none in the record", "metadata.md")
def _(t):
    box = t.sandbox(t.upstream(), fields={"AllowPublicTraffic": "false"})
    cube(t, t.call(box, headers=[(E2B, "x")]), 310507)
    cube(t, t.call(box, headers=[(E2B, "")]), 310507)


def compare(t, method, form, headers, body=None):
    """Unknown sandbox and refused token, cold and warm: the same response byte for byte but for the id asked for."""
    box = t.sandbox(t.upstream(), token="tok-A")
    missing = Sandbox(new_id(), box.port)
    for state in ("cold", "warm"):
        rid = [("X-Cube-Request-Id", "same-id")]
        unknown = t.call(missing, "/p", form, method, rid + headers, body)
        refused = t.call(box, "/p", form, method, rid + headers, body)
        refused.body = refused.body.replace(box.id.encode(), missing.id.encode())     # the page says the address
        same(t, f"refused, {state}, as unknown", refused, unknown)
    return unknown


# metadata.md: indistinguishable from a sandbox that does not exist: same status, headers, body, return code
@table("cube", "token/masked", "metadata.md", [
    ("GET", "GET", "host", []),
    ("path form", "GET", "path", []),
    ("wrong token", "GET", "header", [(E2B, "tok-B")]),
])
def _(t, method, form, headers):
    cube(t, compare(t, method, form, headers), 310507)


# errors.md: for a browser the page of a refused token is that of an unknown sandbox
@case("cube", "token/masked/page", "errors.md")
def _(t):
    compare(t, "GET", "host", [("Sec-Fetch-Mode", "navigate"), ("Accept", "text/html")])


# routing.md: parse, resolve, token, gate: without the token the state stays hidden
@table("cube", "token/before the gate", "routing.md", [("paused", "paused"), ("killed", "killed")])
def _(t, state):
    box = t.sandbox(t.upstream(), token="tok-A")
    t.state(box, state)
    cube(t, t.call(box), 310507)
    response = t.call(box, headers=[(E2B, "tok-A")])
    t.eq("retcode with the token", response.retcode, {"paused": "310503", "killed": "310410"}[state])


# metadata.md: cube has no exempt port
@case("cube", "token/no exempt port in cube", "metadata.md")
def _(t):
    cube(t, t.call(t.sandbox(t.upstream(), port=49983, token="tok-A")), 310507)


# errors.md, e2b: 403 with these bodies; metadata.md: 49983 is exempt there
@case("e2b", "token/e2b/missing", "errors.md")
def _(t):
    box = t.sandbox(t.upstream(), token="tok-A")
    e2b(t, t.call(box), 310403, 403, sandboxId=box.id, message=TOKEN_MISSING, code=403)


@case("e2b", "token/e2b/wrong", "errors.md")
def _(t):
    box = t.sandbox(t.upstream(), token="tok-A")
    e2b(t, t.call(box, headers=[(E2B, "tok-B")]), 310403, 403, sandboxId=box.id, message=TOKEN_WRONG, code=403)
    Seen(t, t.call(box, headers=[(CUBE, "tok-A")]))


@case("e2b", "token/e2b/49983 exempt", "metadata.md")
def _(t):
    Seen(t, t.call(t.sandbox(t.upstream(), port=49983, token="tok-A"), form="header"))


# errors.md: mask_existence true in the e2b dialect: answered as an unknown sandbox is there
@case("options", "token/e2b masked", "errors.md")
def _(t):
    box = t.sandbox(t.upstream(host="127.0.0.3"), token="tok-A")
    e2b_not_found(t, t.call(box), box.id)


# metadata.md: traffic_token.exempt_ports (here: 9000)
@case("options", "token/exempt port", "metadata.md")
def _(t):
    Seen(t, t.call(t.sandbox(t.upstream(host="127.0.0.3"), port=9000, token="tok-A")))


# metadata.md: the token of one sandbox is nothing at another
@case("cube", "token/of another sandbox", "metadata.md")
def _(t):
    one, two = t.sandbox(t.upstream(), token="tok-A"), t.sandbox(t.upstream(), token="tok-B")
    Seen(t, t.call(one, headers=[(E2B, "tok-A")]))
    cube(t, t.call(two, headers=[(E2B, "tok-A")]), 310507)


@table("cube", "token/closed", "metadata.md", [("empty", ""), ("zero", "0"), ("spaced", " false")])
def _(t, value):
    box = t.sandbox(t.upstream(), fields={"AllowPublicTraffic": value, "TrafficAccessToken": "tok-A"})
    cube(t, t.call(box), 310507)
    Seen(t, t.call(box, headers=[(E2B, "tok-A")]))


# metadata.md: the same header twice with different values is refused
@case("cube", "token/twice", "metadata.md")
def _(t):
    box = t.sandbox(t.upstream(), token="tok-A")
    cube(t, t.call(box, headers=[(E2B, "tok-A"), (E2B, "tok-B")]), 310507)
