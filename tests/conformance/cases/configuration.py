"""What is refused at the start, and the check command (operations.md, config.md)."""
import socket

from kit import case, free_port, new_id, table, yaml


# operations.md: a configuration that does not hold is exit code 64; errors name file and key
@table("start", "config/bad", "operations.md", [
    ("unknown key", {"node_ipx": "127.0.0.1"}, "node_ipx"),
    ("unknown nested key", {"limits": {"bodyy": "1KiB"}}, "bodyy"),
    ("bad duration", {"upstream": {"connect_timeout": "fast"}}, "connect_timeout"),
    ("bad dialect", {"errors": {"dialect": "french"}}, "dialect"),
])
def _(t, extra, name):
    code, out, path = t.execute(yaml(t.run.config(extra)))
    t.eq("exit code", code, 64)
    t.has("message", out, name)
    t.has("message", out, path.name)


# lifecycle.md: an admin listener beyond loopback without a token is refused by the configuration check
@case("start", "config/open admin without token", "lifecycle.md")
def _(t):
    code, out, _ = t.execute(yaml(t.run.config({"listen": {"admin": f"192.0.2.1:{free_port()}"}})))
    t.eq("exit code", code, 64)


# operations.md: a port that is taken: one line naming listener and option, exit code 1
@case("start", "config/port taken", "operations.md")
def _(t):
    config = t.run.config()
    taken = int(config["listen"]["http"][0].rsplit(":", 1)[1])
    with socket.socket() as other:
        other.bind(("127.0.0.1", taken))
        other.listen(1)
        code, out, _ = t.execute(yaml(config))
    t.eq("exit code", code, 1)
    t.has("message", out, str(taken))
    t.has("message", out, "http")


# operations.md: every key can be overridden by the environment
@case("start", "config/environment", "config.md")
def _(t):
    proxy = t.spawn({"errors": {"dialect": "cube"}}, env={"CUBE_PROXY_ERRORS__DIALECT": "e2b"})
    response = t.raw("GET", "/", [("Host", f"8080-{new_id()}.cube.app")], port=proxy.http)
    t.eq("status of the e2b dialect", response.status, 502)


# operations.md: check: exit code 0, or 64 when the file does not hold
@case("start", "config/check command", "operations.md")
def _(t):
    code, out, _ = t.execute(yaml(t.run.config()), ("check", "-c"))
    t.eq("exit code of a good file", (code, out if code else ""), (0, ""))
    t.eq("exit code of a bad file", t.execute(yaml(t.run.config({"nothing": 1})), ("check", "-c"))[0], 64)


@case("start", "config/bad/not YAML", "operations.md")
def _(t):
    code, out, path = t.execute("listen: [1, 2\n  x: {\n")
    t.eq("exit code", code, 64)
    t.has("message", out, path.name)
