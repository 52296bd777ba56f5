"""A client of TLS handshakes: `handshakes.py PORT MODE SECONDS HOST TOKEN`.

MODE: `full` (a handshake and nothing else), `get` (a handshake and one request), `resumed` (the same
with the session of the connection before). Prints `ready`, then one JSON object.
"""

import json
import socket
import ssl
import sys
import threading
import time

THREADS = 8


def context():
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname = False
    made.verify_mode = ssl.CERT_NONE
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    return made


def one(made, port, host, request, session):
    """One connection; its session, if a request was sent on it, and whether it was resumed."""
    plain = socket.create_connection(("127.0.0.1", port), timeout=20)
    with made.wrap_socket(plain, server_hostname=host, session=session) as stream:
        if not request:
            return None, False
        stream.sendall(request)
        response = b""
        while not response.endswith(b"hello testbed\n"):
            piece = stream.recv(65536)
            if not piece:
                raise OSError(f"the connection ended after {response!r}")
            answer += piece
        return stream.session, stream.session_reused


def work(port, mode, until, host, token, counts, faults):
    made, session, count = context(), None, 0
    request = None
    if mode != "full":
        request = f"GET / HTTP/1.1\r\nHost: {host}\r\nE2b-Traffic-Access-Token: {token}\r\n\r\n".encode()
    try:
        while time.monotonic() < until:
            session, reused = one(made, port, host, request, session if mode == "resumed" else None)
            # The first of each thread has nothing to resume.
            if mode == "resumed" and count and not reused:
                raise OSError("a session was not resumed")
            count += 1
    except (OSError, ssl.SSLError) as fault:
        faults.append(f"{mode}: {fault}")
    counts.append(count)


def main():
    port, mode, seconds, host, token = int(sys.argv[1]), sys.argv[2], float(sys.argv[3]), sys.argv[4], sys.argv[5]
    counts, faults = [], []
    print("ready", flush=True)
    begun = time.monotonic()
    threads = [
        threading.Thread(target=work, args=(port, mode, begun + seconds, host, token, counts, faults))
        for _ in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if faults:
        sys.exit(faults[0])
    print(json.dumps({"count": sum(counts), "seconds": time.monotonic() - begun}))


if __name__ == "__main__":
    main()
