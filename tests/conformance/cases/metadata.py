"""Records in the store and the route they give (metadata.md)."""
import time

from expect import Seen, cube
from kit import OUTSIDE, Sandbox, case, new_id, replace, table, wait_for

V1, V0, LEGACY = "cube:v1:shared:sandbox:proxy:", "sandbox:proxy:", "bypass_host_proxy:"


# metadata.md: the first of these keys that is not empty
@table("cube", "metadata/prefix", "metadata.md", [
    ("first wins", [V1, V0, LEGACY], V1),
    ("second before legacy", [V0, LEGACY], V0),
    ("legacy alone", [LEGACY], LEGACY),
])
def _(t, present, winner):
    sid = new_id()
    for prefix in present:
        upstream = t.upstream(name=prefix)
        t.record(sid, {"HostIP": "127.0.0.1", "8080": upstream.port}, prefix)
    t.eq("record used", Seen(t, t.call(Sandbox(sid, 8080))).upstream, winner)


# metadata.md, Route: HostIP is our own: SandboxIP:<container port>, any port, no mapping needed
@case("cube", "metadata/local", "metadata.md")
def _(t):
    upstream = t.upstream(name="inside", host="127.0.0.21")
    box = t.sandbox(upstream, local=True)
    t.eq("upstream", Seen(t, t.call(box)).upstream, "inside")


@case("cube", "metadata/local/mapping is not used", "metadata.md")
def _(t):
    inside, mapped = t.upstream(name="inside", host="127.0.0.21"), t.upstream(name="mapped")
    box = t.sandbox(inside, local=True, fields={str(inside.port): mapped.port})
    t.eq("upstream", Seen(t, t.call(box)).upstream, "inside")


# otherwise: HostIP:<mapped host port>
@case("cube", "metadata/remote", "metadata.md")
def _(t):
    box = t.sandbox(t.upstream(name="node", host="127.0.0.22"))
    t.eq("upstream", Seen(t, t.call(box)).upstream, "node")


# metadata.md: missing HostIP, SandboxIP (local) or mapping (remote): 310507
@table("cube", "metadata/missing", "metadata.md", [
    ("HostIP", False, ["HostIP"]),
    ("mapping", False, ["8080"]),
    ("SandboxIP when local", True, ["SandboxIP"]),
])
def _(t, local, drop):
    cube(t, t.call(t.sandbox(t.upstream(), local=local, drop=drop)), 310507)


@case("cube", "metadata/remote needs no SandboxIP", "metadata.md")
def _(t):
    Seen(t, t.call(t.sandbox(t.upstream(), drop=["SandboxIP"])))


# metadata.md: a malformed value in a field that is needed: 310508, never a panic
@table("cube", "metadata/malformed", "metadata.md", [
    ("HostIP name", {"HostIP": "localhost"}),
    ("HostIP with port", {"HostIP": "127.0.0.1:80"}),
    ("host port 0", {"8080": "0"}),
    ("host port 65536", {"8080": "65536"}),
    ("host port word", {"8080": "http"}),
])
def _(t, fields):
    cube(t, t.call(t.sandbox(t.upstream(), fields=fields)), 310508)
    Seen(t, t.call(t.sandbox(t.upstream())))


# metadata.md: HostIP is v4 or v6
@case("cube", "metadata/ipv6", "metadata.md")
def _(t):
    box = t.sandbox(t.upstream(name="six", host="::1"))
    t.eq("upstream", Seen(t, t.call(box)).upstream, "six")


# metadata.md: unknown fields are ignored
@case("cube", "metadata/unknown fields", "metadata.md")
def _(t):
    Seen(t, t.call(t.sandbox(t.upstream(), fields={"Flavour": "x", "hostip": "1.2.3.4", "Port": "y"})))


# metadata.md: an address outside upstream.cidrs is never dialled: 310508
@case("cube", "metadata/forbidden/HostIP", "metadata.md")
def _(t):
    upstream = t.upstream(host=OUTSIDE)
    response = t.call(t.sandbox(upstream))
    cube(t, response, 310508)
    t.true("time", response.seconds < 0.4, "at once", f"{response.seconds:.2f} s")
    t.eq("connections at the upstream", upstream.connections, 0)


# metadata.md, config.md: by default loopback is not dialled
@table("guard", "metadata/default guard", "metadata.md", [("loopback", "127.0.0.1"), ("loopback v6", "::1")])
def _(t, address):
    upstream = t.upstream(host=address)
    cube(t, t.call(t.sandbox(upstream)), 310508)
    t.eq("connections at the upstream", upstream.connections, 0)


# metadata.md: a negative entry lives 1 s
@case("cube", "metadata/negative entry ends", "metadata.md")
def _(t):
    box = t.sandbox(None)
    t.redis("DEL", t.key(box.id))
    cube(t, t.call(box), 310507)
    upstream = t.upstream()
    t.record(box.id, {"HostIP": "127.0.0.1", "8080": upstream.port})
    time.sleep(1.3)
    Seen(t, t.call(box))


# metadata.md: a scan reaches the store no more than once a second an id; a cached sandbox not at all
@case("cube", "metadata/store is spared", "metadata.md")
def _(t):
    box, gone = t.sandbox(t.upstream()), Sandbox(new_id(), 8080)
    t.call(box)
    before = t.redis.commands()
    for _ in range(30):
        Seen(t, t.call(box))
        cube(t, t.call(gone), 310507)
    t.true("commands at the store for 60 requests", t.redis.commands() - before < 25, "below 25",
           t.redis.commands() - before)


# metadata.md: no node_ip: the local address of the accepted connection decides (options group)
@case("options", "metadata/accepted address", "metadata.md")
def _(t):
    upstream = t.upstream(name="inside", host="127.0.0.21")
    box = Sandbox(new_id(), upstream.port)
    t.record(box.id, {"HostIP": "127.0.0.1", "SandboxIP": "127.0.0.21"})
    t.eq("upstream", Seen(t, t.call(box)).upstream, "inside")


# metadata.md: the embedded store has the same fields and is read again when it changes
@case("file", "metadata/file/read again", "metadata.md")
def _(t):
    upstream, box = t.upstream(), Sandbox(new_id(), 8080)
    path = t.run.directory / "sandboxes.yaml"
    replace(path, f'sandboxes:\n  {box.id}:\n    HostIP: 127.0.0.1\n    "8080": "{upstream.port}"\n')
    t.true("new record followed in 5 s", wait_for(lambda: t.call(box).status == 200, 5, 0.2))
    replace(path, "sandboxes: {}\n")
    t.true("removed record followed in 5 s", wait_for(lambda: t.call(box).status == 404, 5, 0.2))


@case("cube", "metadata/malformed/SandboxIP when local", "metadata.md")
def _(t):
    cube(t, t.call(t.sandbox(t.upstream(), local=True, fields={"SandboxIP": "fe80:::1"})), 310508)


@case("cube", "metadata/local/v6 sandbox", "metadata.md")
def _(t):
    box = t.sandbox(t.upstream(name="six", host="::1"), local=True)
    t.eq("upstream", Seen(t, t.call(box)).upstream, "six")


# metadata.md: the guard holds for SandboxIP as well: a poisoned record must not reach the node's own services
@case("cube", "metadata/forbidden/SandboxIP", "metadata.md")
def _(t):
    upstream = t.upstream(host=OUTSIDE)
    cube(t, t.call(t.sandbox(upstream, local=True)), 310508)
    t.eq("connections at the upstream", upstream.connections, 0)


# metadata.md: a local sandbox has any port; one where nobody listens is a failed connect, not missing metadata
@case("cube", "metadata/local/closed port", "metadata.md")
def _(t):
    box = t.sandbox(t.upstream(), local=True)
    response = t.call(box, port=t.refused_port())
    cube(t, response, 310509)


# metadata.md, config.md: the prefixes are configurable, in their order
@case("start", "metadata/configured prefixes", "metadata.md")
def _(t):
    proxy = t.spawn({"store": {"redis": {"key_prefixes": ["kit:b:", "kit:a:"]}}})
    sid = new_id()
    for prefix in ("kit:a:", "kit:b:", V1):
        t.record(sid, {"HostIP": "127.0.0.1", "8080": t.upstream(name=prefix).port}, prefix)
    seen = Seen(t, t.raw("GET", "/", [("Host", f"8080-{sid}.cube.app")], port=proxy.http))
    t.eq("record used", seen.upstream, "kit:b:")


# metadata.md: password and database index
@case("start", "metadata/password and database", "metadata.md")
def _(t):
    box = t.sandbox(t.upstream())
    t.redis("MOVE", t.key(box.id), 3)
    t.redis("CONFIG", "SET", "requirepass", "kit-pass")
    try:
        proxy = t.spawn({"store": {"redis": {"url": f"redis://127.0.0.1:{t.redis.port}/3", "password": "kit-pass"}}})
        Seen(t, t.raw("GET", "/", [("Host", box.host())], port=proxy.http))
    finally:
        t.redis("CONFIG", "SET", "requirepass", "")
