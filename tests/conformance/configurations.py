"""The configurations under which the cases run; each is one running proxy (config.md names every key)."""
from kit import Group, free_port

# cube dialect, token masking on, node_ip set, no resume
Group("cube")

# e2b dialect
Group("e2b", {"errors": {"dialect": "e2b"}, "limits": {"requests_per_sandbox": 3}})

# everything that is off by default: no node_ip (the accepted address decides), domains, trusted proxies,
# credentials forwarded, masking in the e2b dialect, an exempt port, state followed in Redis, registry, JSON log
Group("options", lambda run: {
    "node_ip": None,
    "listen": {"http": [f"127.0.0.1:{free_port()}", f"127.0.0.2:{free_port('127.0.0.2')}"]},
    "routing": {"domains": ["cube.test"], "trusted_proxies": ["127.0.0.1/32"], "forward_credentials": True},
    "errors": {"dialect": "e2b", "mask_existence": True},
    "traffic_token": {"exempt_ports": [9000]},
    "lifecycle": {"follow_redis": True},
    "registry": {"enabled": True, "proxy_id": "kit-proxy", "admin_url": "http://127.0.0.1:8082",
                 "resume_url": "http://127.0.0.1:8083", "interval": "500ms"},
    "access_log": {"format": "json"},
})

# small limits and short times
Group("limits", {
    "limits": {"body": "1KiB", "head": "4KiB", "headers": 20, "target": 512, "header_timeout": "1s",
               "keepalive_idle": "1s", "keepalive_requests": 3, "requests_per_sandbox": 2},
    "upstream": {"silence_timeout": "1s", "connect_timeout": "300ms"},
})


def with_resume(run):
    (run / "resume-token").write_text("kit-resume-bearer")
    return {
        "resume": {"url": "", "timeout": "1s", "token_file": str(run / "resume-token")},
        "lifecycle": {"pause_wait": "600ms"},
        "admin": {"token": "kit-admin-token"},
    }


# a resume server (its address is filled in), an admin token
Group("resume", with_resume, manager=True)

# a resume server, a small bound on held requests, and no invalidation from the store
Group("held", {"resume": {"url": "", "timeout": "5s"}, "lifecycle": {"max_held_per_sandbox": 8},
               "store": {"redis": {"tracking": False}}, "cache": {"ttl_min": "60s", "ttl_max": "60s", "untracked_ttl": "60s"}},
      manager=True, settle=False)

# the server behind it is killed, hung and brought back
Group("store", {"cache": {"ttl_min": "60s", "ttl_max": "60s", "untracked_ttl": "500ms"}})

# no invalidation, long lives: a stale entry stays until something makes the proxy read again
Group("blind", {"store": {"redis": {"tracking": False}},
                "cache": {"ttl_min": "60s", "ttl_max": "60s", "untracked_ttl": "60s"}}, settle=False)

# upstream.cidrs at its default: loopback may not be dialled
Group("guard", {"upstream": {"cidrs": None}}, settle=False)

# records from a YAML file
Group("file", store="file")

# nothing runs: cases start the binary themselves
Group("start", run=False)
