"""Scripted upstreams: what stands behind the proxy in the place of a sandbox."""
import base64
import hashlib
import json
import socket
import struct
import threading

from .tools import CASE_LIMIT, free_port


class Request:
    """What an upstream received, byte for byte."""

    def __init__(self, head, connection):
        lines = head.decode("latin-1").split("\r\n")
        self.line, self.connection, self.body = lines[0], connection, b""
        parts = self.line.split(" ")
        self.method, self.target = parts[0], parts[1] if len(parts) > 1 else ""
        self.headers = [tuple(line.split(":", 1)) for line in lines[1:] if ":" in line]
        self.headers = [(name, value.strip(" \t")) for name, value in self.headers]

    def all(self, name):
        return [v for n, v in self.headers if n.lower() == name.lower()]

    def get(self, name):
        values = self.all(name)
        return values[0] if values else None

    def names(self):
        return {n.lower() for n, _ in self.headers}


class Exchange:
    """One request at an upstream: the handler reads its body and writes a response."""

    def __init__(self, upstream, sock, file, request):
        self.upstream, self.sock, self.file, self.request = upstream, sock, file, request
        self.closed, self.read_done = False, False
        length = request.get("content-length")
        self.chunked = "chunked" in (request.get("transfer-encoding") or "").lower()
        self.left = int(length) if length and not self.chunked else 0

    def piece(self):
        """The next piece of the request body as it arrives; b'' at its end."""
        if self.read_done:
            return b""
        if self.chunked:
            line = self.file.readline()
            if not line.endswith(b"\n"):
                raise ConnectionError("cut within a chunked body")
            size = int(line.split(b";")[0].strip(), 16)
            if size == 0:
                while self.file.readline().strip():
                    pass
                data = b""
            else:
                data = self.file.read(size)
                self.file.readline()
        else:
            data = self.file.read1(min(self.left, 65536)) if self.left else b""
            self.left -= len(data)
        if not data:
            self.read_done = True
        self.request.body += data
        return data

    def body(self):
        while self.piece():
            pass
        return self.request.body

    def send(self, data):
        self.sock.sendall(data if isinstance(data, bytes) else data.encode("latin-1"))

    def start(self, status=200, headers=(), reason="X"):
        self.send(f"HTTP/1.1 {status} {reason}\r\n" + "".join(f"{n}: {v}\r\n" for n, v in headers) + "\r\n")

    def reply(self, status=200, headers=(), body=b""):
        body = body if isinstance(body, bytes) else body.encode()
        bare = status in (204, 304) or status < 200
        length = [] if bare else [("Content-Length", len(body))]
        self.start(status, list(headers) + length)
        if not bare and self.request.method != "HEAD":
            self.send(body)

    def chunk(self, data):
        data = data if isinstance(data, bytes) else data.encode()
        self.send(b"%x\r\n%s\r\n" % (len(data), data))

    def end(self):
        self.send(b"0\r\n\r\n")

    def close(self, reset=False):
        """Ends the connection at once, with a RST when asked."""
        self.closed = True
        if reset:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        try:
            if not reset:
                self.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self.file.close()
        self.sock.close()

    def gone_within(self, seconds):
        """Whether the other side ends the connection within that time."""
        self.sock.settimeout(seconds)
        try:
            return self.sock.recv(1) == b""
        except TimeoutError:
            return False
        except OSError:
            return True


def echo(x):
    """Answers with what arrived, as JSON."""
    r = x.request
    body = x.body()
    x.reply(200, [("Content-Type", "application/json")], json.dumps({
        "upstream": x.upstream.name, "connection": r.connection, "line": r.line, "method": r.method, "target": r.target,
        "headers": r.headers, "body": body.decode("latin-1")}))


def reply(status=200, headers=(), body=b""):
    def handler(x):
        x.body()
        x.reply(status, headers, body)
    return handler


def websocket(x):
    """WebSocket echo: every data frame comes back as it was; without the handshake's headers a 400."""
    if (x.request.get("upgrade") or "").lower() != "websocket" or \
            "upgrade" not in (x.request.get("connection") or "").lower():
        return x.reply(400, [], b"no upgrade")
    key = x.request.get("sec-websocket-key") or ""
    accept = base64.b64encode(hashlib.sha1((key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest()).decode()
    extra = [("Sec-WebSocket-Protocol", x.request.get("sec-websocket-protocol"))] \
        if x.request.get("sec-websocket-protocol") else []
    x.start(101, [("Upgrade", "websocket"), ("Connection", "Upgrade"), ("Sec-WebSocket-Accept", accept)] + extra
            + list(x.upstream.upgrade_headers))
    while True:
        frame = read_frame(x.file)
        if frame is None:
            break
        opcode, data = frame
        x.send(make_frame(opcode, data, mask=False))
        if opcode == 8:
            break
    x.close()


def make_frame(opcode, data, mask=True):
    size = len(data)
    head = bytes([0x80 | opcode])
    bit = 0x80 if mask else 0
    head += bytes([bit | size]) if size < 126 else (
        bytes([bit | 126]) + struct.pack(">H", size) if size < 65536 else bytes([bit | 127]) + struct.pack(">Q", size))
    if not mask:
        return head + data
    key = b"\x11\x22\x33\x44"
    stream = (key * (size // 4 + 1))[:size]
    return head + key + (int.from_bytes(data, "big") ^ int.from_bytes(stream, "big")).to_bytes(size, "big")


def read_frame(file):
    head = file.read(2)
    if len(head) < 2:
        return None
    size = head[1] & 0x7F
    if size == 126:
        size = struct.unpack(">H", file.read(2))[0]
    elif size == 127:
        size = struct.unpack(">Q", file.read(8))[0]
    key = file.read(4) if head[1] & 0x80 else None
    data = file.read(size)
    if key:
        stream = (key * (size // 4 + 1))[:size]
        data = (int.from_bytes(data, "big") ^ int.from_bytes(stream, "big")).to_bytes(size, "big")
    return head[0] & 0x0F, data


class Upstream:
    """A server behind the proxy. It records what arrives; on(path, handler) scripts it, echo is the default."""

    def __init__(self, handler=None, host="127.0.0.1", name="upstream", port=None):
        self.host, self.name, self.default = host, name, handler or echo
        self.scripts, self.requests, self.connections, self.upgrade_headers = {}, [], 0, []
        self.on_accept = None          # called with the accepted socket; true: it has been dealt with
        self.lock, self.open = threading.Lock(), set()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.listener = socket.socket(family, socket.SOCK_STREAM)
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.port = port or free_port(host)
        self.listener.bind((host, self.port))
        self.listener.listen(256)
        threading.Thread(target=self._accept, daemon=True).start()

    def on(self, path, handler):
        self.scripts[path] = handler
        return self

    def _accept(self):
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            with self.lock:
                self.connections += 1
                number = self.connections
                self.open.add(sock)
            threading.Thread(target=self._serve, args=(sock, number), daemon=True).start()

    def _serve(self, sock, number):
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.on_accept and self.on_accept(sock):
                return
            sock.settimeout(CASE_LIMIT)
            file = sock.makefile("rb")
            while True:
                head = b""
                while not head.endswith(b"\r\n\r\n"):
                    line = file.readline(1 << 20)
                    if not line:
                        return
                    head += line
                request = Request(head[:-4], number)
                with self.lock:
                    self.requests.append(request)
                exchange = Exchange(self, sock, file, request)
                handler = self.scripts.get(request.target.split("?")[0], self.default)
                handler(exchange)
                if exchange.closed:
                    return
                exchange.body()
        except (OSError, ValueError):
            pass
        finally:
            with self.lock:
                self.open.discard(sock)
            sock.close()

    def seen(self, target=None):
        with self.lock:
            return [r for r in self.requests if target is None or r.target == target]

    def stop(self):
        """Closes the port and every connection."""
        try:
            self.listener.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self.listener.close()
        with self.lock:
            held = list(self.open)
        for sock in held:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


class BlackHole:
    """A port whose accept queue is full: connecting to it never ends."""

    def __init__(self, host="127.0.0.1"):
        self.host, self.port = host, free_port(host)
        self.listener = socket.socket()
        self.listener.bind((host, self.port))
        self.listener.listen(0)
        self.fill = []
        for _ in range(4):
            sock = socket.socket()
            sock.setblocking(False)
            sock.connect_ex((host, self.port))
            self.fill.append(sock)

    def stop(self):
        for sock in self.fill + [self.listener]:
            sock.close()
