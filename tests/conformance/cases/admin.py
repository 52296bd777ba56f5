"""The admin API, and last activity (lifecycle.md, "Admin API", "Last active")."""
import time

from expect import Seen
from kit import case, new_id, table


# lifecycle.md, Admin API: bodies and errors
@table("cube", "admin/error", "lifecycle.md", [
    ("empty body", "POST", "/admin/meta/upsert", b"", 400, "empty body"),
    ("array", "POST", "/admin/state", b"[1]", 400, "body must be a JSON object"),
    ("no id", "POST", "/admin/meta/delete", b"{}", 400, 'field "sandbox_id" must be a non-empty string'),
    ("empty id", "POST", "/admin/backend_cache/delete", b'{"sandbox_id":""}', 400,
     'field "sandbox_id" must be a non-empty string'),
    ("no route", "GET", "/admin/nothing", None, 404, "no route for GET /admin/nothing"),
    ("wrong method", "GET", "/admin/state", None, 404, "no route for GET /admin/state"),
])
def _(t, method, path, raw, status, text):
    t.eq("response", t.admin(method, path, raw=raw), (status, {"error": text}))


@case("cube", "admin/error/broken JSON", "lifecycle.md")
def _(t):
    status, response = t.admin("POST", "/admin/state", raw=b'{"sandbox_id":')
    t.eq("status, keys", (status, list(response)), (400, ["error"]))
    t.true("error", response["error"].startswith("invalid json: "), "invalid json: ...", response["error"])


@case("cube", "admin/error/unknown state names the six", "lifecycle.md")
def _(t):
    status, response = t.admin("POST", "/admin/state", {"sandbox_id": new_id(), "state": "asleep"})
    t.eq("status", status, 400)
    for name in ("running", "pausing", "paused", "resuming", "killing", "killed"):
        t.has("error", response["error"], name)


@case("cube", "admin/upsert", "lifecycle.md")
def _(t):
    body = {"sandbox_id": new_id(), "auto_pause": True, "auto_resume": False, "timeout_seconds": None, "other": {"x": 1}}
    t.eq("response", t.admin("POST", "/admin/meta/upsert", body), (200, {"ok": True}))


# lifecycle.md: one entry a sandbox, so a warm one counts 1 and an unknown one 0
@case("cube", "admin/delete counts", "lifecycle.md")
def _(t):
    box = t.sandbox(t.upstream())
    Seen(t, t.call(box))
    t.eq("warm", t.admin("POST", "/admin/backend_cache/delete", {"sandbox_id": box.id}), (200, {"ok": True, "deleted": 1}))
    t.eq("again", t.admin("POST", "/admin/backend_cache/delete", {"sandbox_id": box.id}), (200, {"ok": True, "deleted": 0}))
    Seen(t, t.call(box))
    t.eq("meta", t.admin("POST", "/admin/meta/delete", {"sandbox_id": box.id}),
         (200, {"ok": True, "backend_cache_deleted": 1}))


@case("cube", "admin/health", "lifecycle.md")
def _(t):
    status, response = t.admin("GET", "/admin/healthz")
    t.eq("status, ok", (status, response.get("ok")), (200, True))
    t.has("fields", response, "heartbeat_last_pushed_ms")
    t.eq("/healthz, /readyz", (t.proxy.probe("/healthz"), t.proxy.probe("/readyz")), (200, 200))


# lifecycle.md: X-Cube-Admin-Token
@case("resume", "admin/token", "lifecycle.md")
def _(t):
    for token in (False, "wrong", "kit-admin-toke"):
        t.eq("response", t.admin("POST", "/admin/meta/upsert", {"sandbox_id": "x"}, token=token),
             (403, {"error": "admin token mismatch"}))
    t.eq("right", t.admin("POST", "/admin/meta/upsert", {"sandbox_id": "x"}), (200, {"ok": True}))


@table("cube", "admin/error", "lifecycle.md", [
    ("number for id", "POST", "/admin/state", b'{"sandbox_id":7,"state":"paused"}', 400,
     'field "sandbox_id" must be a non-empty string'),
    ("null", "POST", "/admin/meta/upsert", b"null", 400, "body must be a JSON object"),
    ("no route for POST", "POST", "/admin/last_active", b"{}", 404, "no route for POST /admin/last_active"),
])
def _(t, method, path, raw, status, text):
    t.eq("response", t.admin(method, path, raw=raw), (status, {"error": text}))


# lifecycle.md: the record without its token
@case("cube", "admin/routes hide the token", "lifecycle.md")
def _(t):
    box = t.sandbox(t.upstream(), token="tok-very-secret")
    Seen(t, t.call(box, headers=[("cube-traffic-access-token", "tok-very-secret")]))
    status, body = t.proxy.ask(t.proxy.admin, "GET", f"/admin/routes/{box.id}")
    t.eq("status", status, 200)
    t.has("body", body.decode(), "127.0.0.1")
    t.lacks("body", body.decode(), "tok-very-secret")


# lifecycle.md, Last active
@case("cube", "active/stamped", "lifecycle.md")
def _(t):
    box = t.sandbox(t.upstream())
    before = int(time.time() * 1000)
    Seen(t, t.call(box))
    status, response = t.admin("GET", "/admin/last_active")
    t.eq("status, keys", (status, sorted(response)), (200, ["count", "entries", "now", "since"]))
    stamp = response["entries"].get(box.id)
    t.true("stamp", stamp and before - 5 <= stamp <= response["now"], f"{before}..{response['now']}", stamp)
    t.eq("strictly newer than since", box.id in t.admin("GET", f"/admin/last_active?since={stamp}")[1]["entries"], False)
    t.eq("newer", t.admin("GET", f"/admin/last_active?since={stamp - 1}")[1]["entries"].get(box.id), stamp)


@case("cube", "active/refused and unknown stamp nothing", "lifecycle.md")
def _(t):
    box, gone = t.sandbox(t.upstream(), token="tok"), new_id()
    t.call(box)
    t.raw("GET", "/", [("Host", f"8080-{gone}.cube.app")])
    entries = t.admin("GET", "/admin/last_active")[1]["entries"]
    t.eq("stamped", [sid for sid in (box.id, gone) if sid in entries], [])
