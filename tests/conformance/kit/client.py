"""A client that has every byte in its hands."""
import json
import socket
import time

from .registry import Mismatch, short
from .tools import IO_LIMIT
from .upstream import Request


class Response:
    def __init__(self, head):
        self.raw_head = head
        lines = head.decode("latin-1").split("\r\n")
        parts = lines[0].split(" ", 2)
        self.version, self.status = parts[0], int(parts[1])
        self.headers = [tuple(line.split(":", 1)) for line in lines[1:] if ":" in line]
        self.headers = [(n, v.strip(" \t")) for n, v in self.headers]
        self.informational, self.body, self.clean, self.seconds = [], b"", True, 0.0

    all = Request.all
    get = Request.get
    names = Request.names

    @property
    def retcode(self):
        return self.get("x-cube-retcode")

    def json(self):
        try:
            return json.loads(self.body)
        except ValueError:
            raise Mismatch("body", "JSON", f"status {self.status} {self.body!r}") from None

    def __repr__(self):
        return f"<{self.status} retcode={self.retcode} {short(self.body, 120)}>"


class Client:
    """One connection to the proxy, with every byte in our hands."""

    def __init__(self, port, host="127.0.0.1", source=None, limit=IO_LIMIT):
        self.sock = socket.create_connection((host, port), limit, (source, 0) if source else None)
        self.sock.settimeout(limit)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.file = self.sock.makefile("rb")

    def send(self, data):
        self.sock.sendall(data if isinstance(data, bytes) else data.encode("latin-1"))

    def request(self, method, target, headers=(), body=None):
        lines = [f"{method} {target} HTTP/1.1"] + [f"{n}: {v}" for n, v in headers]
        if body is not None and not any(n.lower() in ("content-length", "transfer-encoding") for n, _ in headers):
            lines.append(f"Content-Length: {len(body)}")
        self.send("\r\n".join(lines) + "\r\n\r\n")
        if body:
            self.send(body)

    def chunk(self, data):
        self.send(b"%x\r\n%s\r\n" % (len(data), data))

    def head(self):
        """The next response's head; responses 1xx but 101 are collected in its .informational."""
        early = []
        while True:
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                line = self.file.readline(1 << 20)
                if not line:
                    raise Mismatch("response", "a response", f"end of the connection after {head!r}")
                head += line
            response = Response(head[:-4])
            if 100 <= response.status < 200 and response.status != 101:
                early.append(response)
                continue
            response.informational = early
            return response

    def some(self):
        """Bytes as they come (at least one), b'' at the end of the connection."""
        try:
            return self.file.read1(65536)
        except ConnectionError:
            return b""

    def chunk_in(self):
        """The next chunk of a chunked response; b'' for the last one, None when the connection ends before."""
        try:
            line = self.file.readline()
            if not line.endswith(b"\r\n"):
                return None
            size = int(line.split(b";")[0], 16)
            data = self.file.read(size)
            if len(data) < size:
                return None
            if size == 0:
                while self.file.readline().strip():
                    pass
                return b""
            self.file.readline()
            return data
        except ConnectionError:
            return None

    def body(self, response, method="GET"):
        if method == "HEAD" or response.status in (204, 304) or response.status < 200:
            return response
        if "chunked" in (response.get("transfer-encoding") or "").lower():
            while True:
                data = self.chunk_in()
                if data is None:
                    response.clean = False
                if not data:
                    return response
                response.body += data
        length = response.get("content-length")
        try:
            if length is not None:
                response.body = self.file.read(int(length))
                response.clean = len(response.body) == int(length)
            else:
                response.body = self.file.read()
        except ConnectionError:
            response.clean = False
        return response

    def call(self, method, target, headers=(), body=None):
        begin = time.monotonic()
        self.request(method, target, headers, body)
        response = self.body(self.head(), method)
        response.seconds = time.monotonic() - begin
        return response

    def close(self):
        try:
            self.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self.file.close()
        self.sock.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Sandbox:
    """A record in the store and how to name it."""

    def __init__(self, sid, port, token=None):
        self.id, self.port, self.token = sid, port, token

    def host(self, port=None, domain=".cube.test"):
        return f"{port or self.port}-{self.id}{domain}"

    def prefix(self, port=None):
        return f"/sandbox/{self.id}/{port or self.port}"
