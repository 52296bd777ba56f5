"""Load of every kind, each with a real client, that must not see a single failure."""

import asyncio
import hashlib
import http.client
import itertools
import os
import threading
import time

import grpc
import httpx
import websockets

import origin

PLAIN, TLS, H2C = 8081, 8080, 9091
BOX = "box1"


def host(port=origin.HTTP):
    return f"{port}-{BOX}.cube.test"


class Load:
    """Runs each kind in a thread until it is told to stop, and counts."""

    def __init__(self):
        self.stopping = threading.Event()
        self.done, self.failed, self.errors = {}, {}, []
        kinds = [
            self.new_connections, self.kept_connection, self.tls, self.http2, self.http2_streams,
            self.uploads, self.streams, self.websockets, self.grpc_calls, self.grpc_streams,
        ]
        self.threads = [threading.Thread(target=self.run, args=(kind,), daemon=True) for kind in kinds]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stopping.set()
        for thread in self.threads:
            thread.join(60)

    def run(self, kind):
        name = kind.__name__
        self.done[name] = self.failed[name] = 0
        while not self.stopping.is_set():
            try:
                for _ in kind():
                    self.done[name] += 1
                    if self.stopping.is_set():
                        break
            except Exception as error:
                self.failed[name] += 1
                self.errors.append(f"{name}: {type(error).__name__}: {error}")
                time.sleep(0.05)

    # Each yields once for every request, stream or message that was as it must be, for ever.

    def new_connections(self):
        while True:
            connection = http.client.HTTPConnection("127.0.0.1", PLAIN, timeout=20)
            connection.request("GET", "/", headers={"Host": host()})
            assert connection.getresponse().read() == b"ok"
            connection.close()
            time.sleep(0.005)
            yield

    def kept_connection(self):
        connection = http.client.HTTPConnection("127.0.0.1", PLAIN, timeout=20)
        while True:
            # It opens another one after "Connection: close".
            connection.request("GET", "/", headers={"Host": host()})
            assert connection.getresponse().read() == b"ok"
            time.sleep(0.002)
            yield

    def client(self, **options):
        return httpx.Client(verify=False, timeout=20, headers={"Host": host()}, **options)

    def tls(self):
        with self.client() as client:
            while True:
                assert client.get(f"https://127.0.0.1:{TLS}/").text == "ok"
                yield

    def http2(self):
        with self.client(http2=True, http1=False) as client:
            while True:
                response = client.get(f"https://127.0.0.1:{TLS}/")
                assert (response.text, response.http_version) == ("ok", "HTTP/2"), response
                time.sleep(0.002)
                yield

    def http2_streams(self):
        with self.client(http2=True, http1=False) as client:
            while True:
                assert client.get(f"https://127.0.0.1:{TLS}/stream?seconds=1").text.endswith("end")
                yield

    def uploads(self):
        body = os.urandom(1 << 20)
        wanted = hashlib.sha256(body).hexdigest()

        def pieces():
            for at in range(0, len(body), 1 << 16):
                yield body[at:at + (1 << 16)]
                time.sleep(0.03)

        with self.client() as client:
            while True:
                assert client.post(f"http://127.0.0.1:{PLAIN}/", content=pieces()).text == wanted
                yield

    def streams(self):
        while True:
            assert stream(1.5).endswith(b"end")
            yield

    def websockets(self):
        # One connection over all upgrades.
        url = f"ws://127.0.0.1:{PLAIN}/sandbox/{BOX}/{origin.WEBSOCKET}/"
        loop = asyncio.new_event_loop()

        async def connect():
            return await websockets.connect(url)

        async def one(socket, text):
            await socket.send(text)
            assert await socket.recv() == text

        socket = loop.run_until_complete(connect())
        try:
            for number in itertools.count():
                loop.run_until_complete(one(socket, str(number)))
                time.sleep(0.02)
                yield
        finally:
            # What is left open would hold up a stop that follows.
            loop.run_until_complete(socket.close())

    def channel(self):
        options = [("grpc.default_authority", host(origin.GRPC))]
        return grpc.insecure_channel(f"127.0.0.1:{H2C}", options)

    def grpc_calls(self):
        with self.channel() as channel:
            say = channel.unary_unary("/test.Test/Say")
            while True:
                assert say(b"hello", timeout=20) == b"hello"
                time.sleep(0.002)
                yield

    def grpc_streams(self):
        with self.channel() as channel:
            count = channel.unary_stream("/test.Test/Count")
            while True:
                assert len(list(count(b"x", timeout=20))) == 20
                yield


def stream(seconds):
    """A streamed response, whole; an error when it is cut."""
    connection = http.client.HTTPConnection("127.0.0.1", PLAIN, timeout=seconds + 20)
    connection.request("GET", f"/stream?seconds={seconds}", headers={"Host": host()})
    return connection.getresponse().read()


class Stream(threading.Thread):
    """A stream that runs beside a scenario."""

    def __init__(self, seconds):
        super().__init__(daemon=True)
        self.seconds, self.text, self.error, self.begun = seconds, b"", None, threading.Event()
        self.start()
        assert self.begun.wait(10), "the stream does not begin"

    def run(self):
        try:
            connection = http.client.HTTPConnection("127.0.0.1", PLAIN, timeout=self.seconds + 20)
            connection.request("GET", f"/stream?seconds={self.seconds}", headers={"Host": host()})
            response = connection.getresponse()
            assert response.status == 200, response.status
            while piece := response.read1():
                self.text += piece
                self.begun.set()
        except Exception as error:
            self.error = error
            self.begun.set()

    def whole(self):
        self.join(self.seconds + 20)
        return self.error is None and self.text.endswith(b"end")
