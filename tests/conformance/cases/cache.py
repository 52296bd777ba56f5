"""The cache follows the store, and serves while the store is away (metadata.md, Cache)."""
import time

from expect import Seen, cube
from kit import Sandbox, case, new_id, wait_for

FOLLOW = 0.2      # seconds after which a change in the store must be seen


# metadata.md: a changed or deleted key is gone from the cache within milliseconds
@case("cube", "cache/port changed", "metadata.md")
def _(t):
    one, two = t.upstream(name="one"), t.upstream(name="two")
    box = t.sandbox(one)
    for _ in range(3):
        t.eq("upstream", Seen(t, t.call(box)).upstream, "one")
    t.redis("HSET", t.key(box.id), "8080", two.port)
    time.sleep(FOLLOW)
    t.eq("upstream", Seen(t, t.call(box)).upstream, "two")


@case("cube", "cache/HostIP changed", "metadata.md")
def _(t):
    one = t.upstream(name="one", host="127.0.0.61")
    two = t.upstream(name="two", host="127.0.0.62", port=one.port)
    box = t.sandbox(one)
    t.eq("upstream", Seen(t, t.call(box)).upstream, "one")
    t.redis("HSET", t.key(box.id), "HostIP", two.host)
    time.sleep(FOLLOW)
    t.eq("upstream", Seen(t, t.call(box, form="path")).upstream, "two")


@case("cube", "cache/deleted", "metadata.md")
def _(t):
    box = t.sandbox(t.upstream())
    Seen(t, t.call(box))
    t.redis("DEL", t.key(box.id))
    time.sleep(FOLLOW)
    cube(t, t.call(box), 310507)


@case("cube", "cache/token added", "metadata.md")
def _(t):
    box = t.sandbox(t.upstream())
    Seen(t, t.call(box))
    t.redis("HSET", t.key(box.id), "AllowPublicTraffic", "false", "TrafficAccessToken", "new")
    time.sleep(FOLLOW)
    cube(t, t.call(box), 310507)
    Seen(t, t.call(box, headers=[("e2b-traffic-access-token", "new")]))


# lifecycle.md: backend_cache/delete forgets the route
@case("blind", "cache/forgotten by the admin API", "metadata.md")
def _(t):
    one, two = t.upstream(name="one"), t.upstream(name="two")
    box = t.sandbox(one)
    t.eq("upstream", Seen(t, t.call(box)).upstream, "one")
    t.redis("HSET", t.key(box.id), "8080", two.port)
    t.eq("still cached", Seen(t, t.call(box)).upstream, "one")
    t.admin("POST", "/admin/backend_cache/delete", {"sandbox_id": box.id})
    t.eq("upstream", Seen(t, t.call(box)).upstream, "two")


def pushed(t):
    """Waits until changes are pushed: when that begins, what was cached before is forgotten, since a change may have
    been missed."""
    tracked = lambda: t.metrics().get(("cube_proxy_cache_tracked", ())) == 1
    t.true("changes are pushed within 10 s", wait_for(tracked, 10, 0.05))


# metadata.md: when Redis cannot answer: cached is served, also past its time; with nothing cached: 310500
@case("store", "cache/store killed and back", "metadata.md")
def _(t):
    one, two = t.upstream(name="one"), t.upstream(name="two")
    box, gone = t.sandbox(one), t.sandbox(one)
    pushed(t)
    Seen(t, t.call(box))
    t.redis.stop()
    try:
        cube(t, t.call(gone), 310500)
        time.sleep(0.8)
        for _ in range(3):
            response = t.call(box)
            Seen(t, response)
        cube(t, t.call(Sandbox(new_id(), 8080)), 310500)
    finally:
        t.redis.start()
    t.redis("HSET", t.key(box.id), "HostIP", "127.0.0.1", "8080", two.port)
    def followed():
        response = t.call(box)
        return response.status == 200 and response.json()["upstream"] == "two"
    t.true("what changed meanwhile is followed in 10 s", wait_for(followed, 10, 0.1))
    late = t.sandbox(two)
    t.true("new records are found", wait_for(lambda: t.call(late).status == 200, 3, 0.1))


# metadata.md: a store that hangs: 1 s a command, 2 tries, bounded in all by 2.5 s
@case("store", "cache/store hangs", "metadata.md")
def _(t):
    box, gone = t.sandbox(t.upstream()), t.sandbox(t.upstream())
    pushed(t)
    t.true("warm", wait_for(lambda: t.call(box).status == 200, 5, 0.1))
    t.redis.pause(True)
    try:
        response = t.call(gone)
        cube(t, response, 310500)
        t.true("time", response.seconds < 3.2, "within 2.5 s", f"{response.seconds:.2f} s")
        Seen(t, t.call(box))
    finally:
        t.redis.pause(False)
    t.true("heals within 6 s", wait_for(lambda: t.call(gone).status == 200, 6, 0.1))


# metadata.md: an unreachable server at start is a degraded readiness, not an exit
@case("start", "cache/started before the store", "metadata.md")
def _(t):
    t.redis.stop()
    try:
        proxy = t.spawn(ready=False)
        t.true("/healthz", wait_for(lambda: proxy.probe("/healthz") == 200, 8, 0.05))
        t.eq("/readyz without the store", proxy.probe("/readyz"), 503)
    finally:
        t.redis.start()
    t.true("/readyz within 8 s of the store", wait_for(lambda: proxy.probe("/readyz") == 200, 8, 0.05))
    box = t.sandbox(t.upstream())
    t.eq("status", t.raw("GET", "/", [("Host", box.host())], port=proxy.http).status, 200)


# metadata.md: the mapping of one port removed
@case("cube", "cache/field removed", "metadata.md")
def _(t):
    box = t.sandbox(t.upstream())
    Seen(t, t.call(box))
    t.redis("HDEL", t.key(box.id), "8080")
    time.sleep(FOLLOW)
    cube(t, t.call(box), 310507)
