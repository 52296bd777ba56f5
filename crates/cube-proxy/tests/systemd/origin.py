"""What runs in the sandboxes of the scenarios: HTTP/1.1, WebSocket and gRPC servers on loopback."""

import asyncio
import hashlib
import logging
import threading
import time
from concurrent import futures
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import grpc
import websockets

HTTP, WEBSOCKET, GRPC = 9001, 9002, 9003


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, *_):
        """A client that leaves is no error here."""


class Handler(BaseHTTPRequestHandler):
    """/stream?seconds=N ticks for so long and says "end"; a POST is answered with its body's digest."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def whole(self, body):
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def chunk(self, text):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(text), text))

    def do_GET(self):
        target = urlsplit(self.path)
        if target.path != "/stream":
            return self.whole(b"ok")
        until = time.monotonic() + float(parse_qs(target.query)["seconds"][0])
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        while time.monotonic() < until:
            self.chunk(b"tick")
            time.sleep(0.05)
        self.chunk(b"end")
        self.wfile.write(b"0\r\n\r\n")

    def do_POST(self):
        digest = hashlib.sha256()
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            while size := int(self.rfile.readline(), 16):
                digest.update(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
        else:
            digest.update(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        self.whole(digest.hexdigest().encode())


async def mirror(websocket):
    async for message in websocket:
        await websocket.send(message)


async def serve_websockets():
    # It logs every client that leaves.
    logging.getLogger("websockets").setLevel(logging.CRITICAL)
    async with websockets.serve(mirror, "127.0.0.1", WEBSOCKET):
        await asyncio.Future()


class Generic(grpc.GenericRpcHandler):
    """/test.Test/Say sends back what it gets; /test.Test/Count sends twenty messages in two seconds."""

    def service(self, call):
        if call.method == "/test.Test/Say":
            return grpc.unary_unary_rpc_method_handler(lambda request, _: request)
        return grpc.unary_stream_rpc_method_handler(self.count)

    @staticmethod
    def count(request, _):
        for _ in range(20):
            time.sleep(0.1)
            yield request


def start():
    server = Server(("127.0.0.1", HTTP), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    threading.Thread(target=lambda: asyncio.run(serve_websockets()), daemon=True).start()
    rpc = grpc.server(futures.ThreadPoolExecutor(32))
    rpc.add_generic_rpc_handlers([Generic()])
    rpc.add_insecure_port(f"127.0.0.1:{GRPC}")
    rpc.start()
    return rpc
