"""States, the gate, resume, registry (lifecycle.md)."""
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from expect import Seen, cube, e2b_other
from kit import case, table, wait_for


# lifecycle.md, The gate
@table("cube", "gate", "lifecycle.md", [
    ("running", "running", 200, "310200", None),
    ("paused", "paused", 503, "310503", "5"),
    ("killing", "killing", 410, "310410", None),
    ("killed", "killed", 410, "310410", None),
])
def _(t, state, status, retcode, retry):
    upstream = t.upstream()
    box = t.sandbox(upstream)
    t.state(box, state)
    response = t.call(box)
    t.eq("status, retcode, Retry-After", (response.status, response.retcode, response.get("retry-after")), (status, retcode, retry))
    t.eq("requests at the upstream", len(upstream.seen()), 1 if status == 200 else 0)


# lifecycle.md: pausing: held for pause_wait (here 600 ms), then 310503 with Retry-After 2
@case("resume", "gate/pausing ends in refusal", "lifecycle.md")
def _(t):
    box = t.sandbox(t.upstream())
    t.state(box, "pausing")
    response = t.call(box)
    cube(t, response, 310503, 503, "service unavailable", "2")
    t.true("held", 0.5 < response.seconds < 2, "about 600 ms", f"{response.seconds:.2f} s")


@case("resume", "gate/pausing ends in running", "lifecycle.md")
def _(t):
    box = t.sandbox(t.upstream())
    t.state(box, "pausing")
    threading.Timer(0.2, lambda: t.state(box, "running")).start()
    response = t.call(box)
    Seen(t, response)
    t.true("held until the change", 0.15 < response.seconds < 1.0, "about 200 ms", f"{response.seconds:.2f} s")


# lifecycle.md: the record's Status is a source of the state
@table("cube", "gate/record", "lifecycle.md", [
    ("paused", "paused", "310503"), ("killed", "killed", "310410"), ("unknown passes", "hibernated", "310200"),
])
def _(t, state, retcode):
    t.eq("retcode", t.call(t.sandbox(t.upstream(), fields={"Status": state})).retcode, retcode)


# lifecycle.md: meta/delete forgets the state
@case("cube", "gate/meta delete clears the state", "lifecycle.md")
def _(t):
    box = t.sandbox(t.upstream())
    t.state(box, "killed")
    cube(t, t.call(box), 310410)
    t.admin("POST", "/admin/meta/delete", {"sandbox_id": box.id})
    Seen(t, t.call(box))


# lifecycle.md: with follow_redis the state string is read and followed
@case("options", "gate/redis followed", "lifecycle.md")
def _(t):
    box = t.sandbox(t.upstream(host="127.0.0.3"))
    key = f"cube:v1:shared:sandbox:lifecycle:state:{box.id}"
    t.redis("SET", key, "paused")
    e2b_other(t, t.call(box), box.id, 310503, 503, "5")
    t.redis("SET", key, "running")
    t.true("followed within 1 s", wait_for(lambda: t.call(box).status == 200, 1))


# lifecycle.md: a state is read when it is set, whether or not anybody asks before it expires
@table("options", "gate/redis unasked", "lifecycle.md", [("paused", "paused", "310503"), ("killed", "killed", "310410")])
def _(t, state, retcode):
    box = t.sandbox(t.upstream(host="127.0.0.3"))
    t.redis("SET", f"cube:v1:shared:sandbox:lifecycle:state:{box.id}", state, "PX", "500")
    time.sleep(1)
    t.eq("retcode after it expired", t.call(box).retcode, retcode)


# lifecycle.md: a SET of the same word is an event too
@case("options", "gate/redis same word again", "lifecycle.md")
def _(t):
    box = t.sandbox(t.upstream(host="127.0.0.3"))
    key = f"cube:v1:shared:sandbox:lifecycle:state:{box.id}"
    for _ in range(2):
        t.redis("SET", key, "paused")
        t.true("paused within 1 s", wait_for(lambda: t.call(box).retcode == "310503", 1))
        t.state(box, "running")
        t.eq("retcode after the push", t.call(box).retcode, "310200")


# lifecycle.md: the last push decides; a push of running opens the gate again
@case("cube", "gate/pushes in sequence", "lifecycle.md")
def _(t):
    box = t.sandbox(t.upstream())
    for state, retcode in (("paused", "310503"), ("running", "310200"), ("killed", "310410"), ("running", "310200")):
        t.state(box, state)
        t.eq(f"retcode after {state}", t.call(box).retcode, retcode)


# lifecycle.md, Resume: the call
@case("resume", "resume/the call", "lifecycle.md")
def _(t):
    box = t.sandbox(t.upstream())
    t.state(box, "paused")
    response = t.call(box, "/work", headers=[("X-Cube-Request-Id", "rid-77"), ("Authorization", "Bearer client"),
                                           ("Cookie", "a=b"), ("X-Own", "1")], method="POST", body=b"payload")
    t.eq("body at the sandbox", Seen(t, response).body, b"payload")
    calls = t.manager.calls(box.id)
    t.eq("number of calls", len(calls), 1)
    t.eq("method, target", (calls[0].method, calls[0].target),
         ("POST", f"/internal/resume?sandbox_id={box.id}&request_id=rid-77"))
    t.eq("Content-Length, Authorization", (calls[0].all("content-length"), calls[0].all("authorization")),
         (["0"], ["Bearer kit-resume-bearer"]))
    t.eq("headers of the client", sorted(calls[0].names() & {"cookie", "x-own"}), [])


# lifecycle.md: one call at a time for a sandbox, all waiters share it
@case("resume", "resume/many requests one call", "lifecycle.md")
def _(t):
    upstream = t.upstream()
    box = t.sandbox(upstream)
    t.manager.behaviour[box.id] = lambda: time.sleep(0.4) or 200
    t.state(box, "paused")
    with ThreadPoolExecutor(50) as pool:
        responses = list(pool.map(lambda n: t.call(box, f"/{n}").status, range(50)))
    t.eq("responses", (len(responses), set(responses)), (50, {200}))
    t.eq("calls, requests at the upstream", (len(t.manager.calls(box.id)), len({r.target for r in upstream.seen()})), (1, 50))


# lifecycle.md: the record is read again before forwarding
@table("resume", "resume/record read again", "lifecycle.md", [("pushed",)])
@table("held", "resume/record read again", "lifecycle.md", [("not pushed",)])
def _(t):
    old, new = t.upstream(name="old"), t.upstream(name="new")
    box = t.sandbox(old)
    Seen(t, t.call(box))

    def resumed():
        t.redis("HSET", t.key(box.id), "8080", new.port, "CreatedAt", time.time_ns())
        return 200
    t.manager.behaviour[box.id] = resumed
    t.state(box, "paused")
    t.eq("upstream", Seen(t, t.call(box)).upstream, "new")


# lifecycle.md: 429: quota; other: 310503 with Retry-After 5
@case("resume", "resume/quota", "lifecycle.md")
def _(t):
    box = t.sandbox(t.upstream())
    t.manager.behaviour[box.id] = lambda: 429
    t.state(box, "paused")
    cube(t, t.call(box), 310429)


@case("resume", "resume/fails", "lifecycle.md")
def _(t):
    box = t.sandbox(t.upstream())
    t.manager.behaviour[box.id] = lambda: 503
    t.state(box, "paused")
    cube(t, t.call(box), 310503, 503, "service unavailable", "5")
    cube(t, t.call(box), 310503, 503, "service unavailable", "5")
    t.eq("calls within 1 s", len(t.manager.calls(box.id)), 1)
    time.sleep(1.2)
    t.manager.behaviour[box.id] = lambda: 200
    Seen(t, t.call(box))
    t.eq("calls after 1 s", len(t.manager.calls(box.id)), 2)


# lifecycle.md: over resume.timeout (here 1 s)
@case("resume", "resume/times out", "lifecycle.md")
def _(t):
    box = t.sandbox(t.upstream())
    t.manager.behaviour[box.id] = lambda: time.sleep(2.5) or 200
    t.state(box, "paused")
    response = t.call(box)
    cube(t, response, 310503, 503, "service unavailable", "5")
    t.true("time", 0.8 < response.seconds < 2, "about 1 s", f"{response.seconds:.2f} s")


# routing.md: the gate comes after the token: a caller without it wakes nobody
@case("resume", "resume/not without the token", "lifecycle.md")
def _(t):
    box = t.sandbox(t.upstream(), token="tok")
    t.state(box, "paused")
    cube(t, t.call(box), 310507)
    t.eq("calls", len(t.manager.calls(box.id)), 0)
    Seen(t, t.call(box, headers=[("cube-traffic-access-token", "tok")]))
    t.eq("calls", len(t.manager.calls(box.id)), 1)


# lifecycle.md: after a failure further requests fail at once, also those that waited for it
@case("resume", "resume/failure is shared", "lifecycle.md")
def _(t):
    box = t.sandbox(t.upstream())
    t.manager.behaviour[box.id] = lambda: time.sleep(0.3) or 500
    t.state(box, "paused")
    with ThreadPoolExecutor(5) as pool:
        responses = list(pool.map(lambda _: t.call(box), range(5)))
    t.eq("retcodes, calls", ({a.retcode for a in responses}, len(t.manager.calls(box.id))), ({"310503"}, 1))


# lifecycle.md, Registry
@case("options", "registry/row", "lifecycle.md")
def _(t):

    row = wait_for(lambda: t.redis("HGET", "cube:v1:shared:cube_proxy:registry", "kit-proxy"), 3)
    t.true("row", row, "a row", row)
    fields = json.loads(row)
    t.eq("keys", sorted({"proxy_id", "admin_url", "resume_url", "node_ip", "started_at", "version"} - set(fields)), [])
    t.eq("proxy_id, urls", [fields[k] for k in ("proxy_id", "admin_url", "resume_url")],
         ["kit-proxy", "http://127.0.0.1:8082", "http://127.0.0.1:8083"])
    score = float(t.redis("ZSCORE", "cube:v1:shared:cube_proxy:heartbeat", "kit-proxy"))
    t.true("heartbeat", abs(score - time.time() * 1000) < 5000, "now in ms", score)
