"""The floods: `floods.py KIND HTTP HTTPS SECONDS HOST PUBLIC_SANDBOX`, from an address of loopback that no good client has.

Each keeps at it until its time is over: whatever the proxy closes is opened again. Prints `ready`, and
at the end one JSON object: how often it did what it does. It yields the processor to the good clients.
"""

import json
import os
import random
import socket
import ssl
import struct
import sys
import threading
import time

SOURCE = "127.0.0.66"
PATIENCE = 5
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def frame(kind, flags, stream, payload=b""):
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def literal(text):
    data = text.encode()
    return bytes([len(data)]) + data


class Flood:
    def __init__(self, kind, http, https, seconds, host, sandbox):
        self.http, self.https, self.host, self.sandbox = http, https, host, sandbox
        self.until = time.monotonic() + seconds
        self.work = getattr(self, kind)
        self.threads = self.THREADS.get(kind, 4)
        self.counts = [0] * self.threads

    # Connections of the slow ones stay, so that one thread has many.
    THREADS = {"slow_heads": 2, "slow_bodies": 2, "unread_windows": 1, "random_ids": 8, "wrong_tokens": 8}
    SLOW = 300

    def plain(self):
        made = socket.create_connection(("127.0.0.1", self.http), timeout=PATIENCE, source_address=(SOURCE, 0))
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made

    def tls(self, protocol="h2"):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.set_alpn_protocols([protocol])
        made = socket.create_connection(("127.0.0.1", self.https), timeout=PATIENCE, source_address=(SOURCE, 0))
        return context.wrap_socket(made, server_hostname=self.host)

    def going(self):
        return time.monotonic() < self.until

    def fields(self):
        """GET by HPACK's static table, and the host as a literal."""
        return b"\x82\x87\x84\x01" + literal(self.host)

    # One thread's work each; it yields whenever it did once more what it does.

    def connections(self):
        while self.going():
            self.plain().close()
            yield

    def handshakes(self):
        while self.going():
            self.tls("http/1.1").close()
            yield

    def rapid_reset(self):
        while self.going():
            with self.tls() as stream:
                stream.sendall(PREFACE + frame(4, 0, 0))
                for number in range(1, 100_001, 200):
                    if not self.going():
                        return
                    stream.sendall(b"".join(
                        frame(1, 5, n, self.fields()) + frame(3, 0, n, (8).to_bytes(4, "big"))
                        for n in range(number, number + 200, 2)))
                    yield

    def continuation(self):
        # A header that is never at its end.
        piece = b"\x00" + literal("x-padding") + b"\x7f\x80\x7d" + b"a" * 16_127
        while self.going():
            with self.tls() as stream:
                stream.sendall(PREFACE + frame(4, 0, 0) + frame(1, 1, 1, self.fields()))
                for _ in range(1000):
                    if not self.going():
                        return
                    stream.sendall(frame(9, 0, 1, piece[:16_384]))
                    yield

    def _slowly(self, first):
        kept = []
        while self.going():
            for _ in range(self.SLOW - len(kept)):
                made = self.plain()
                made.sendall(first)
                kept.append(made)
                yield
            time.sleep(1)
            left = []
            for made in kept:
                try:
                    made.sendall(b"x")
                    left.append(made)
                except OSError:
                    made.close()
            kept = left
        for made in kept:
            made.close()

    def slow_heads(self):
        yield from self._slowly(f"GET / HTTP/1.1\r\nHost: {self.host}\r\nX-Slow: ".encode())

    def slow_bodies(self):
        head = f"POST /upload HTTP/1.1\r\nHost: {self.public(9000)}\r\nContent-Length: 1000000\r\n\r\n"
        yield from self._slowly(head.encode())

    def public(self, port):
        """The public sandbox, at one of its ports."""
        return f"{port}-{self.sandbox}.{self.host.split('.', 1)[1]}"

    def _asking(self, request):
        """One request after the other, responses read away."""
        while self.going():
            with self.plain() as stream:
                for _ in range(1000):
                    if not self.going():
                        return
                    stream.sendall(request())
                    if not stream.recv(65536):
                        break
                    yield

    def random_ids(self):
        domain = self.host.split(".", 1)[1]
        yield from self._asking(lambda: (
            f"GET / HTTP/1.1\r\nHost: 8000-{random.randbytes(16).hex()}.{domain}\r\n\r\n").encode())

    def wrong_tokens(self):
        yield from self._asking(lambda: (
            f"GET / HTTP/1.1\r\nHost: {self.host}\r\n"
            f"E2b-Traffic-Access-Token: wrong-{random.randbytes(12).hex()}\r\n\r\n").encode())

    def oversized_heads(self):
        head = f"GET / HTTP/1.1\r\nHost: {self.host}\r\n".encode() + b"X-Large: " + b"a" * 200_000 + b"\r\n\r\n"
        while self.going():
            with self.plain() as stream:
                stream.sendall(head)
                stream.recv(65536)
            yield

    def reset_uploads(self):
        head = f"POST /upload HTTP/1.1\r\nHost: {self.public(9000)}\r\nContent-Length: 1000000\r\n\r\n".encode()
        while self.going():
            with self.plain() as stream:
                stream.sendall(head + b"x" * 65_536)
                # Closing resets.
                stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            yield

    def unread_windows(self):
        """Downloads into windows as large as they can be, of which nothing is read."""
        fields = b"\x82\x87\x04" + literal("/16MiB") + b"\x01" + literal(self.public(8000))
        settings = frame(4, 0, 0, struct.pack(">HI", 4, 2**31 - 1)) + frame(8, 0, 0, (2**30).to_bytes(4, "big"))
        kept = []
        for _ in range(20):
            stream = self.tls()
            stream.sendall(PREFACE + settings + b"".join(frame(1, 5, n, fields) for n in range(1, 40, 2)))
            kept.append(stream)
            yield
        while self.going():
            time.sleep(0.1)
        for stream in kept:
            stream.close()

    def run(self):
        def thread(number):
            while self.going():
                try:
                    for _ in self.work():
                        self.counts[number] += 1
                except OSError:
                    # Refused or closed, as it should be; not in a circle without a pause.
                    time.sleep(0.001)

        print("ready", flush=True)
        threads = [threading.Thread(target=thread, args=(number,)) for number in range(self.threads)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        print(json.dumps({"count": sum(self.counts)}))


KINDS = ("connections", "handshakes", "rapid_reset", "continuation", "slow_heads", "slow_bodies", "random_ids",
         "wrong_tokens", "oversized_heads", "reset_uploads", "unread_windows")

if __name__ == "__main__":
    os.nice(10)
    kind, http, https, seconds, host, sandbox = sys.argv[1:7]
    Flood(kind, int(http), int(https), float(seconds), host, sandbox).run()
