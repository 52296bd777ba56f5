"""Small tools: free ports, ids, waiting, YAML."""
import json
import os
import random
import re
import socket
import threading
import time
from pathlib import Path

CASE_LIMIT = 20.0      # seconds a case may take
IO_LIMIT = 6.0         # seconds a single read of the client may take

NODE_IP = "127.0.0.9"  # this proxy's node in most groups; a record with another HostIP is remote
OUTSIDE = "127.99.0.1" # on this machine, but outside upstream.cidrs: must never be dialled

_ports_given = set()
_ports_lock = threading.Lock()


def free_port(host="127.0.0.1"):
    """A port nobody listens on, below the range the kernel takes for outgoing connections.

    Each run picks from a slice of its own, so that runs side by side rarely meet."""
    slice_start = 10000 + os.getpid() % 11 * 2000
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with _ports_lock:
        for _ in range(2000):
            port = slice_start + random.randrange(2000)
            if port in _ports_given and len(_ports_given) < 1500:
                continue
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                try:
                    probe.bind((host, port))
                except OSError:
                    continue
            _ports_given.add(port)
            return port
    raise RuntimeError("no free port found")


def new_id(prefix="s"):
    return prefix + os.urandom(8).hex()


def wait_for(condition, seconds, step=0.02):
    """Polls until condition() is true; gives its value, or the last false one when time is over."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value or time.monotonic() >= end:
            return value
        time.sleep(step)


def replace(path, text):
    """Writes a file in one step, so that a watcher never sees half of it."""
    fresh = Path(f"{path}.new")
    fresh.write_text(text)
    os.replace(fresh, path)


def yaml(value, indent=0):
    """Enough YAML for a configuration: nested mappings, everything else as JSON (which YAML reads)."""
    pad, out = "  " * indent, []
    for key, item in value.items():
        name = key if re.fullmatch(r"[A-Za-z_]\w*", key) else json.dumps(key)
        if isinstance(item, dict) and item:
            out.append(f"{pad}{name}:\n{yaml(item, indent + 1)}")
        else:
            out.append(f"{pad}{name}: {json.dumps(item)}\n")
    return "".join(out)


def merge(base, extra):
    out = dict(base)
    for key, value in extra.items():
        out[key] = merge(out[key], value) if isinstance(value, dict) and isinstance(out.get(key), dict) else value
    return out
