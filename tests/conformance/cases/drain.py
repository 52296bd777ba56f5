"""How the process ends (connections.md, "Draining")."""
import signal
import time

from kit import case, wait_for


# connections.md, Draining: SIGTERM: /readyz turns 503 while requests are still served, a stream runs on to its end
@case("start", "drain/sequence", "connections.md")
def _(t):
    def drip(x):
        x.body()
        x.start(200, [("Transfer-Encoding", "chunked")])
        for _ in range(12):
            x.chunk(b"tick")
            time.sleep(0.2)
        x.end()
    proxy = t.spawn({"drain": {"delay": "1s", "stop_timeout": "8s"}})
    box = t.sandbox(t.upstream().on("/drip", drip))
    stream = t.client(proxy.http)
    stream.request("GET", "/drip", [("Host", box.host())])
    t.eq("stream", stream.head().status, 200)
    proxy.process.send_signal(signal.SIGTERM)
    t.true("/readyz 503", wait_for(lambda: proxy.probe("/readyz") == 503, 0.8, 0.02))
    t.eq("request during the delay", t.raw("GET", "/", [("Host", box.host())], port=proxy.http).status, 200)
    ticks = 0
    while (piece := stream.chunk_in()):
        ticks += 1
    t.eq("pieces, end", (ticks, piece), (12, b""))
    t.true("process ends", wait_for(lambda: proxy.process.poll() is not None, 5))


# connections.md: after the delay responses of a kept connection carry Connection: close; an idle proxy ends
@case("start", "drain/idle", "connections.md")
def _(t):
    proxy = t.spawn({"drain": {"delay": "200ms", "stop_timeout": "1h"}})
    t.sandbox(t.upstream())
    begin = time.monotonic()
    proxy.process.send_signal(signal.SIGTERM)
    t.true("process ends", wait_for(lambda: proxy.process.poll() is not None, 5))
    t.true("time", time.monotonic() - begin < 4, "soon after the delay", f"{time.monotonic() - begin:.1f} s")
