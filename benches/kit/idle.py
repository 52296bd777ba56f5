"""Connections that have sent one request and are then idle: `idle.py PORT KIND COUNT HOST TOKEN`.

KIND: `plain`, `tls` (HTTP/1.1), `h2` (over TLS). Prints `ready` when all stand, and keeps them until
its standard input ends.
"""

import socket
import ssl
import sys


def context(protocol):
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname = False
    made.verify_mode = ssl.CERT_NONE
    made.set_alpn_protocols([protocol])
    return made


def get_http1(stream, host, token):
    stream.sendall(f"GET / HTTP/1.1\r\nHost: {host}\r\nE2b-Traffic-Access-Token: {token}\r\n\r\n".encode())
    response = b""
    while not response.endswith(b"hello testbed\n"):
        piece = stream.recv(65536)
        if not piece:
            raise OSError(f"the connection ended after {response!r}")
        answer += piece
    if not response.startswith(b"HTTP/1.1 200"):
        raise OSError(f"a response that was not expected: {response!r}")


def frame(kind, flags, stream_id, payload=b""):
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream_id.to_bytes(4, "big") + payload


def literal(text):
    data = text.encode()
    return bytes([len(data)]) + data


def get_h2(stream, host, token):
    # :method GET, :scheme https, :path / from the static table; the rest as literals.
    fields = (b"\x82\x87\x84" + b"\x01" + literal(host)
              + b"\x00" + literal("e2b-traffic-access-token") + literal(token))
    stream.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0) + frame(1, 0x5, 1, fields))
    data = b""
    while True:
        while len(data) >= 9 and len(data) >= 9 + int.from_bytes(data[:3], "big"):
            size, kind, flags = int.from_bytes(data[:3], "big"), data[3], data[4]
            stream_id = int.from_bytes(data[5:9], "big")
            data = data[9 + size:]
            if kind == 4 and not flags & 1:
                stream.sendall(frame(4, 1, 0))
            if kind in (3, 7):
                raise OSError("the stream was reset")
            if stream_id == 1 and kind in (0, 1) and flags & 1:
                return
        piece = stream.recv(65536)
        if not piece:
            raise OSError("the connection ended before the response")
        data += piece


def main():
    port, kind, count, host, token = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4], sys.argv[5]
    made = {"plain": None, "tls": context("http/1.1"), "h2": context("h2")}[kind]
    kept = []
    for _ in range(count):
        stream = socket.create_connection(("127.0.0.1", port), timeout=20)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if made:
            stream = made.wrap_socket(stream, server_hostname=host)
        (get_h2 if kind == "h2" else get_http1)(stream, host, token)
        kept.append(stream)
    print("ready", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
