"""What the proxy's own responses must look like (errors.md), and reading what an upstream echoed."""
import json

# retcode -> (status, text, Retry-After) in the cube dialect; 310403 never shows while existence is masked
CUBE = {
    310400: (400, "bad request", None),
    310410: (410, "gone", None),
    310413: (413, "payload too large", None),
    310429: (429, "too many requests", "1"),
    310500: (503, "service unavailable", "1"),
    310507: (404, "not found", None),
    310508: (502, "bad gateway", None),
    310509: (502, "bad gateway", None),
    340500: (500, "backend unavailable", "1"),
}
NOT_FOUND = "The sandbox was not found"
NOT_OPEN = "The sandbox is running but port is not open"
CHANGING = "The sandbox is still transitioning. Try again in a moment."
TOKEN_MISSING = "Sandbox is secured with traffic access token. Token header 'e2b-traffic-access-token' is missing"
TOKEN_WRONG = "Sandbox is secured with traffic access token. Provided token in header " \
              "'e2b-traffic-access-token' is invalid"


def own(t, response, status, retcode, body, retry=None, kind="application/json"):
    """An response of the proxy itself: status, codes, exactly this body, and the headers each of them carries."""
    t.eq("status, X-Cube-Retcode", (response.status, response.all("x-cube-retcode")), (status, [str(retcode)]))
    t.eq("Content-Type", response.get("content-type"), kind)
    t.eq("Cache-Control", response.get("cache-control"), "no-store")
    t.eq("number of X-Cube-Request-Id", len(response.all("x-cube-request-id")), 1)
    t.eq("Retry-After", response.all("retry-after"), [retry] if retry else [])
    if body is not None:
        body = body if isinstance(body, bytes) else body.encode()
        t.eq("body", response.body, body)
        t.eq("Content-Length", response.all("content-length"), [str(len(body))])


def cube(t, response, retcode, status=None, text=None, retry=None):
    """An error in the cube dialect."""
    usual = CUBE.get(retcode, (None, None, None))
    own(t, response, status or usual[0], retcode, json.dumps({"error": text or usual[1]}, separators=(",", ":")) + "\n",
        retry or usual[2])


def e2b(t, response, retcode, status, retry=None, **fields):
    """An error in the e2b dialect: compact JSON with the keys in the order given."""
    body = json.dumps(fields, separators=(",", ":")) if fields else None
    own(t, response, status, retcode, body, retry, "application/json; charset=utf-8")


def e2b_not_found(t, response, sid, retcode=310507):
    e2b(t, response, retcode, 502, sandboxId=sid, message=NOT_FOUND, code=502)


def e2b_not_open(t, response, sid, port, retcode):
    e2b(t, response, retcode, 502, sandboxId=sid, message=NOT_OPEN, port=port, code=502)


def e2b_other(t, response, sid, retcode, status, retry=None):
    """An error whose message is the proxy's own: keys in order, neither of the phrases that SDKs look for."""
    e2b(t, response, retcode, status, retry)
    fields = response.json()
    t.eq("keys", list(fields), ["sandboxId", "message", "code"])
    t.eq("sandboxId, code", (fields["sandboxId"], fields["code"]), (sid, status))
    t.lacks("message", fields["message"], "was not found")
    t.lacks("message", fields["message"], "port is not open")


class Seen:
    """What an upstream received, from its echo."""

    def __init__(self, t, response):
        t.passed(response)
        fields = response.json()
        self.upstream, self.target, self.method = fields["upstream"], fields["target"], fields["method"]
        self.connection, self.body = fields["connection"], fields["body"].encode("latin-1")
        self.headers = [tuple(pair) for pair in fields["headers"]]

    def all(self, name):
        return [v for n, v in self.headers if n.lower() == name.lower()]

    def get(self, name):
        values = self.all(name)
        return values[0] if values else None

    def names(self):
        return {n.lower() for n, _ in self.headers}


def identity(response):
    """An response as bytes for comparison: the request id and a Date are the only things that may differ."""
    lines = response.raw_head.decode("latin-1").split("\r\n")
    kept = [line for line in lines if line.split(":")[0].lower() not in ("date", "x-cube-request-id")]
    names = [line.split(":")[0] for line in lines[1:]]
    return kept, names, response.body


def same(t, what, response, other):
    """Both responses are the same byte for byte but for request id and Date; says where they part."""
    for part, got, want in zip(("status and headers", "header names in order", "body"), identity(response), identity(other)):
        if isinstance(got, list) and got != want:
            got, want = [x for x in got if x not in want] or got, [x for x in want if x not in got] or want
        t.eq(f"{what}: {part}", got, want)
