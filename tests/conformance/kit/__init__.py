"""The kit: what cases are written with. README.md explains how."""
from .client import Client, Response, Sandbox
from .context import Context
from .manager import Manager
from .proxy import Proxy, Runtime, base_config
from .redis import Redis, RedisError
from .registry import CASES, GROUPS, Case, Group, Mismatch, case, short, table
from .tools import IO_LIMIT, NODE_IP, OUTSIDE, free_port, merge, new_id, replace, wait_for, yaml
from .upstream import BlackHole, Exchange, Request, Upstream, echo, make_frame, read_frame, reply, websocket

__all__ = [name for name in globals() if not name.startswith("_")]
