"""The manager that the proxy asks to resume a sandbox (lifecycle.md, "Resume")."""
import json
import urllib.parse

from .upstream import Upstream


class Manager:
    """What the proxy calls to wake a sandbox. behaviour: id -> function(server, id) -> status; default 200."""

    def __init__(self):
        self.behaviour, self.before = {}, {}
        self.upstream = Upstream(self._answer, name="resume")
        self.url = f"http://127.0.0.1:{self.upstream.port}"

    def _answer(self, x):
        x.body()
        query = urllib.parse.parse_qs(x.request.target.partition("?")[2])
        sid = query.get("sandbox_id", [""])[0]
        status = self.behaviour.get(sid, lambda: 200)()
        x.reply(status, [("Content-Type", "application/json")], json.dumps({"ok": status == 200, "sandbox_id": sid}))

    def calls(self, sid):
        return [r for r in self.upstream.seen() if f"sandbox_id={sid}" in r.target]
