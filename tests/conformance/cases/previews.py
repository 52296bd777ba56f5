"""Preview links: tickets in query and cookie, the redirect that takes them out, what passes across sites (previews.md)."""
import base64
import hashlib
import hmac
import time

from expect import Seen, cube, e2b, same
from kit import Sandbox, case, new_id, table

TOKEN = "tok-of-a-private-preview"
NAVIGATES = [("Sec-Fetch-Mode", "navigate"), ("Accept", "text/html,*/*;q=0.8")]


def ticket(box, seconds=600, port=None, token=TOKEN):
    """A ticket as the page says it is made, right for so many seconds from now on."""
    expiry, port = int(time.time()) + seconds, port or box.port
    text = f"cube-preview-v1\n{box.id}\n{port}\n{expiry}\n"
    mac = hmac.new(token.encode(), text.encode(), hashlib.sha256).digest()
    return f"v1.{expiry}.{port}." + base64.urlsafe_b64encode(mac).decode().rstrip("=")


def link(target, given):
    return f"{target}{'&' if '?' in target else '?'}cube_preview={given}"


def private(t, upstream=None, **more):
    return t.sandbox(upstream or t.upstream(), token=TOKEN, **more)


# "How it is presented": right in every form, and taken out of target, cookies and Referer
@table("cube", "previews/query", "previews.md", [("host", "host"), ("path", "path"), ("header", "header")])
def _(t, form):
    box = private(t)
    given = ticket(box)
    referer = f"http://{box.host()}{link('/page?x', given)}"
    crumbs = f"a=1; cube-preview={given}; __Host-cube-preview=x; b=2; __Secure-cube-preview=y"
    response = t.call(box, f"/p?a=%20&cube_preview={given}&&b", form, headers=[("Referer", referer), ("Cookie", crumbs)])
    seen = Seen(t, response)
    t.eq("target", seen.target, "/p?a=%20&&b")
    t.eq("Referer", seen.all("referer"), [f"http://{box.host()}/page?x"])
    t.eq("Cookie", seen.all("cookie"), ["a=1; b=2"])
    t.eq("Cache-Control", response.all("cache-control"), ["private"])


# "How it is presented": the name is compared after percent-decoding, the ticket is not decoded
@table("cube", "previews/query names", "previews.md", [
    ("escaped name", "/?%63ube%5fpreview={}", True),
    ("first of several pairs", "/?cube_preview={}&b", True),
    ("another case", "/?Cube_preview={}", False),
    ("behind a semicolon", "/?a;cube_preview={}", False),
    ("twice", "/?cube_preview={0}&cube_preview={0}", False),
    ("twice, once escaped", "/?cube_preview={0}&%63ube_preview={0}", False),
    ("blank behind it", "/?cube_preview={}+", False),
])
def _(t, target, right):
    box = private(t)
    response = t.call(box, target.format(ticket(box)))
    Seen(t, response) if right else cube(t, response, 310507)


# "The ticket": `any` is every port but envd's, and a ticket is for its port
@table("cube", "previews/port", "previews.md", [
    ("its own", 8080, 8080, True), ("another", 3000, 8080, False),
    ("any", "any", 8080, True), ("any at envd", "any", 49983, False), ("envd's own", 49983, 49983, False),
])
def _(t, written, port, right):
    box = private(t, port=port)
    response = t.call(box, link("/", ticket(box, port=written)))
    Seen(t, response) if right else cube(t, response, 310507)


# "A navigation": the same without the ticket, which becomes a cookie that opens what follows
@table("cube", "previews/navigation", "previews.md", [
    ("root", "/", "/"), ("query", "/p%2F?a=%20", "/p%2F?a=%20"),
    ("never another site", "//evil.example/x", "/.//evil.example/x"),
    ("nor with a backslash", "/\\evil.example", "/./\\evil.example"),
])
def _(t, target, location):
    upstream = t.upstream()
    box = private(t, upstream)
    given = ticket(box)
    shown = t.call(box, link(target, given), headers=NAVIGATES)
    t.eq("status, retcode", (shown.status, shown.retcode), (303, "310303"))
    t.eq("Location", shown.all("location"), [location])
    t.eq("Cache-Control", shown.all("cache-control"), ["no-store"])
    t.eq("Referrer-Policy", shown.all("referrer-policy"), ["no-referrer"])
    cookie, *attributes = shown.get("set-cookie").split("; ")
    t.eq("the cookie", cookie, f"cube-preview={given}")
    kept = [one for one in attributes if not one.startswith("Max-Age=")]
    t.eq("its attributes", kept, ["Path=/", "HttpOnly", "SameSite=Lax"])
    t.eq("requests at the upstream", len(upstream.seen()), 0)
    follows = t.call(box, "/x?y", headers=[("Cookie", cookie), *NAVIGATES])
    t.eq("target", Seen(t, follows).target, "/x?y")
    t.eq("Content-Security-Policy", follows.all("content-security-policy"), ["frame-ancestors 'self'"])


# "Cross-site requests"
@table("cube", "previews/cross-site", "previews.md", [
    ("page of its own", "GET", [("Sec-Fetch-Site", "same-origin")], True),
    ("navigation from elsewhere", "GET", [("Sec-Fetch-Mode", "navigate"), ("Sec-Fetch-Site", "cross-site")], True),
    ("form of a sibling", "POST", [("Sec-Fetch-Mode", "navigate"), ("Sec-Fetch-Site", "same-site")], False),
    ("fetch of a sibling", "GET", [("Sec-Fetch-Mode", "no-cors"), ("Sec-Fetch-Site", "same-site")], False),
    ("origin null", "POST", [("Origin", "null")], False),
    ("nothing said", "GET", [], False),
    ("said twice", "GET", [("Sec-Fetch-Site", "same-origin"), ("Sec-Fetch-Site", "same-origin")], False),
])
def _(t, method, headers, passes):
    box = private(t)
    response = t.call(box, method=method, headers=[("Cookie", f"cube-preview={ticket(box)}"), *headers])
    if passes:
        Seen(t, response)
    else:
        t.eq("status, retcode", (response.status, response.retcode), (404, "310507"))


# "How it is presented": the path and the header form read no cookie and set none
@table("cube", "previews/no cookie", "previews.md", [("path", "path"), ("header", "header")])
def _(t, form):
    box = private(t)
    given = ticket(box)
    shown = t.call(box, link("/x", given), form, headers=NAVIGATES)
    t.eq("target", Seen(t, shown).target, "/x")
    t.eq("Set-Cookie", shown.all("set-cookie"), [])
    cookies = "; ".join(f"{prefix}cube-preview={given}" for prefix in ("", "__Host-", "__Secure-"))
    cube(t, t.call(box, "/", form, headers=[("Cookie", cookies), ("Sec-Fetch-Site", "same-origin")]), 310507)


# "How it is presented": a sandbox cannot set one of the cookies
@case("cube", "previews/forged cookie", "previews.md")
def _(t):
    fields = ["a=1", "cube-preview=x; Path=/", " __Host-cube-preview =x", "=__Secure-cube-preview=x", "b=2"]
    box = t.sandbox(t.upstream(lambda x: x.reply(200, [("Set-Cookie", one) for one in fields], b"")))
    t.eq("Set-Cookie", t.passed(t.call(box)).all("set-cookie"), ["a=1", "b=2"])


# "An expired ticket": told to who had the link, and for so long as a ticket may live
@table("cube", "previews/expired", "previews.md", [("lately", -5, True), ("long ago", -86400 - 60, False),
                                                   ("lives too long", 86400 + 600, None)])
def _(t, seconds, told):
    box = private(t)
    response = t.call(box, link("/", ticket(box, seconds)))
    if told:
        cube(t, response, 310403, 403, "forbidden")
    else:
        cube(t, response, 310507)


@case("e2b", "previews/e2b expired", "previews.md")
def _(t):
    box = private(t)
    response = t.call(box, link("/", ticket(box, -5)))
    e2b(t, response, 310403, 403, sandboxId=box.id, message="This preview link has expired", code=403)


# "Wrong tickets and unknown sandboxes look alike"
@table("cube", "previews/masked", "previews.md", [
    ("no ticket", lambda box: "x"), ("empty", lambda box: ""),
    ("key of before", lambda box: ticket(box, token="tok-of-before-the-change")),
    ("of another sandbox", lambda box: ticket(Sandbox(new_id(), box.port))),
    ("wrong port", lambda box: ticket(box, port=3000)),
    ("too long", lambda box: ticket(box) + "A" * 200),
    ("escaped", lambda box: ticket(box).replace(".", "%2E")),
])
def _(t, made):
    box = private(t)
    missing = Sandbox(new_id(), box.port)
    given, rid = made(box), [("X-Cube-Request-Id", "same-id")]
    cookie = [("Cookie", f"cube-preview={given}"), ("Sec-Fetch-Site", "same-origin")]
    for form in ("host", "path", "header"):
        for target, headers in ((link("/p", given), []), (link("/p", given), NAVIGATES), ("/p", cookie)):
            unknown = t.call(missing, target, form, headers=rid + headers)
            refused = t.call(box, target, form, headers=rid + headers)
            refused.body = refused.body.replace(box.id.encode(), missing.id.encode())
            same(t, f"refused in the {form} form", refused, unknown)
            t.eq("retcode", refused.retcode, "310507")


# "How it is presented": a header is judged alone; a ticket is never written to the log
@case("cube", "previews/beside a header", "previews.md")
def _(t):
    box = private(t)
    target = link("/", ticket(box))
    cube(t, t.call(box, target, headers=[("e2b-traffic-access-token", "wrong")]), 310507)
    Seen(t, t.call(box, link("/", "x"), headers=[("e2b-traffic-access-token", TOKEN)]))


@case("cube", "previews/log", "previews.md")
def _(t):
    box = private(t)
    rid = new_id("preview")
    given = ticket(box)
    t.call(box, f"/p?a&%63ube_preview={given}&b", headers=[("X-Cube-Request-Id", rid)])
    fields = t.log(rid)
    t.has("the access log", "||".join(fields), "/p?a&cube_preview=-&b")
    t.lacks("the access log", "||".join(fields), given)


# "Making links"
@case("cube", "previews/admin", "previews.md")
def _(t):
    box = private(t)
    path = f"/admin/sandboxes/{box.id}/link"
    status, refused = t.admin("POST", path, {"port": 49983})
    t.eq("envd's port", (status, bool(refused.get("error"))), (409, True))
    t.eq("an unknown id", t.admin("POST", f"/admin/sandboxes/{new_id()}/link", {"port": 8080})[0], 404)
    t.eq("a malformed port", t.admin("POST", path, {"port": 0})[0], 400)


@case("options", "previews/admin link", "previews.md")
def _(t):
    box = private(t, t.upstream(host="127.0.0.3"))
    status, made = t.admin("POST", f"/admin/sandboxes/{box.id}/link", {"port": 8080, "path": "/p?q"})
    t.eq("status", status, 200)
    base = f"http://{box.host()}:{t.proxy.http}"
    t.eq("the link", made["url"], f"{base}/p?q&cube_preview={made['ticket']}")
    t.true("its end", abs(made["expires_at"] - time.time() - 3600) < 30, "an hour from now", made["expires_at"])
    t.eq("target", Seen(t, t.call(box, link("/p?q", made["ticket"]))).target, "/p?q")
