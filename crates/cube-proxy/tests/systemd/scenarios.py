"""The Debian package under a real systemd: run as root in a booted machine of its own (scripts/systemd).

    scenarios.py PACKAGE NEXT_PACKAGE [WORD]

NEXT_PACKAGE is of another version. With WORD, a regular expression, only the scenarios whose names have it run.
"""

import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
import traceback

import load
import origin
from load import Load, Stream

UNIT = "cube-proxy"
CONFIG = "/etc/cube-proxy/cube-proxy.yaml"
PACKAGE, NEXT = sys.argv[1:3]
# drain.delay + what the contract allows after it, and a busy machine.
DELAY, SLACK = 1.0, 1.5

EXTRA = """
drain: { delay: 1s, stop_timeout: 30s }
listen: { grpc: ["127.0.0.1:9091"] }
tls: { certificates: [{ cert: /etc/cube-proxy/tls.crt, key: /etc/cube-proxy/tls.key }] }
upstream: { cidrs: [127.0.0.0/8] }
"""


def run(*command, check=True, **options):
    options.setdefault("timeout", 120)
    done = subprocess.run(command, capture_output=True, text=True, **options)
    if check:
        assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done


def systemctl(*arguments, **options):
    return run("systemctl", *arguments, **options)


def show(name):
    return systemctl("show", "-P", name, UNIT).stdout.strip()


def main_pid():
    return int(show("MainPID"))


def serves():
    try:
        return load.stream(0).endswith(b"end")
    except OSError:
        return False


def until(what, condition, limit):
    """Seconds until it holds."""
    begun = time.monotonic()
    while not condition():
        assert time.monotonic() - begun < limit, f"{what}: not within {limit} s; the unit is {show('ActiveState')}"
        time.sleep(0.02)
    return time.monotonic() - begun


def timed(action):
    begun = time.monotonic()
    action()
    return time.monotonic() - begun


def start():
    systemctl("start", UNIT)
    until("serving", serves, 10)


def reload():
    before = main_pid()
    systemctl("reload", UNIT)
    assert main_pid() != before, "the same main process"


def processes():
    group = show("ControlGroup")
    for root in ("/sys/fs/cgroup", "/sys/fs/cgroup/systemd", "/sys/fs/cgroup/unified"):
        try:
            with open(f"{root}{group}/cgroup.procs") as file:
                return [int(pid) for pid in file]
        except OSError:
            continue
    return []


def journal(*arguments):
    return run("journalctl", "-u", UNIT, "--no-pager", *arguments).stdout


# Scenarios, in this order. Each begins with the service running, and leaves it so.


def installed_and_configured():
    """A first installation starts nothing."""
    run("dpkg", "-i", PACKAGE)
    assert show("ActiveState") == "inactive"
    run("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
        "-subj", "/CN=cube.test", "-keyout", "/etc/cube-proxy/tls.key", "-out", "/etc/cube-proxy/tls.crt")
    run("chown", "cube-proxy", "/etc/cube-proxy/tls.key")
    with open(CONFIG, "a") as file:
        file.write(EXTRA)
    ports = [word for port in (origin.HTTP, origin.WEBSOCKET, origin.GRPC) for word in (str(port), str(port))]
    run("redis-cli", "HSET", f"cube:v1:shared:sandbox:proxy:{load.BOX}", "HostIP", "127.0.0.1", "SandboxIP",
        "127.0.0.1", *ports)
    run("cube-proxy", "check", "-c", CONFIG, "--strict")
    systemctl("enable", "--now", UNIT)
    until("serving", serves, 10)


def journal_has_priorities_and_one_time_stamp():
    warnings = journal("-p", "warning", "-o", "cat")
    assert "envd_control_from" in warnings, warnings
    assert "serving" not in warnings, warnings
    for line in journal("-o", "cat").splitlines():
        assert not re.match(r"(<\d>|\d{4}-\d\d-\d\dT)", line), line


def stop_drains_after_a_reload():
    reload()
    stream = Stream(5)
    took = timed(lambda: systemctl("stop", UNIT))
    assert stream.whole() and took > 3, f"{took} s: {stream.error} {stream.text[-20:]}"
    assert "not our child" not in journal(), "systemd does not take the successor for its own"
    start()


def restart_drains_with_predecessors_that_drain():
    older = Stream(6)
    reload()
    newer = Stream(4)
    reload()
    assert len(processes()) == 3, processes()
    took = timed(lambda: systemctl("restart", UNIT))
    assert older.whole() and newer.whole() and took > 4, f"{took} s: {older.error} {newer.error}"
    until("serving", serves, 10)


def a_package_of_another_version_takes_over():
    """Open streams go on; a stop drains, whichever process was started by which."""
    stream = Stream(6)
    before = main_pid()
    said = run("dpkg", "-i", NEXT)
    assert "did not take over" not in said.stdout + said.stderr, said
    assert main_pid() != before
    version = run("cube-proxy", "--version").stdout.split()[1]
    assert f'serving version="{version}"' in journal("-n", "50"), version
    took = timed(lambda: systemctl("stop", UNIT))
    assert stream.whole() and took > 3, f"{took} s: {stream.error}"
    run("dpkg", "-i", PACKAGE)
    start()


def forty_idle_reloads_succeed():
    for _ in range(40):
        reload()


def a_crash_is_a_restart():
    """Also of a main process that was a successor, while a predecessor drains."""
    for predecessor in (False, True):
        stream = None
        if predecessor:
            stream = Stream(30)
            reload()
        before = main_pid()
        os.kill(before, signal.SIGKILL)
        until("another process", lambda: main_pid() not in (0, before), 5)
        took = until("serving", serves, 5)
        assert took < 5, took


def a_process_that_hangs_is_restarted():
    reload()
    before = main_pid()
    os.kill(before, signal.SIGSTOP)
    until("another process", lambda: main_pid() not in (0, before), 30)
    until("serving", serves, 10)
    assert "Watchdog timeout" in journal("-n", "50")


def stop_ends_in_time_whoever_reads():
    """A client of HTTP/2 that says hello and then nothing."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    client = context.wrap_socket(socket.create_connection(("127.0.0.1", load.TLS)))
    client.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
    half = socket.create_connection(("127.0.0.1", load.H2C))
    half.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 99, 1]))
    time.sleep(0.3)
    took = timed(lambda: systemctl("stop", UNIT))
    assert took < DELAY + SLACK, f"{took} s"
    start()


def reloads_under_load_lose_nothing():
    with Load() as running:
        time.sleep(3)
        for _ in range(3):
            reload()
            time.sleep(3)
    for kind, done in running.done.items():
        print(f"    {kind}: {done} done, {running.failed[kind]} failed")
    assert not running.errors, "\n".join(running.errors[:20])
    assert all(running.done.values()), running.done


def a_taken_port_is_waited_for():
    took = timed(lambda: systemctl("stop", UNIT))
    assert took < DELAY + SLACK, f"{took} s, with nothing open"
    with socket.create_server(("127.0.0.1", load.PLAIN)):
        systemctl("start", UNIT, check=False)
        time.sleep(8)
        assert show("ActiveState") != "failed", "it gave up"
    until("serving", serves, 10)
    until("active", lambda: show("ActiveState") == "active", 5)


def by_hand_as_root_and_as_the_services_user():
    command = ["cube-proxy", "run", "-c", CONFIG, "--upgrade"]
    for prefix in ([], ["runuser", "-u", "cube-proxy", "--"]):
        before = main_pid()
        run(*prefix, *command)
        assert main_pid() != before, "nobody took over"


def a_configuration_that_does_not_hold_leaves_the_old_process():
    before = main_pid()
    with open(CONFIG) as file:
        text = file.read()
    with open(CONFIG, "w") as file:
        file.write(text + "\nno_such_key: 1\n")
    assert systemctl("reload", UNIT, check=False).returncode != 0
    assert "no_such_key" in journal("-p", "err", "-n", "20"), "no error in the journal"
    with open(CONFIG, "w") as file:
        file.write(text)
    assert main_pid() == before and serves()
    systemctl("kill", "--kill-whom=main", "-s", "HUP", UNIT)
    until("the configuration to be read", lambda: "was read again" in journal("-n", "5"), 5)
    reload()


def a_lost_run_directory_is_put_right():
    """Emptied while it serves, and not to be written to when the processes change places."""
    directory = "/run/cube-proxy"
    found = lambda: os.path.exists(f"{directory}/upgrade.sock")
    for name in os.listdir(directory):
        os.remove(f"{directory}/{name}")
    until("the socket", found, 5)
    reload()
    os.chmod(directory, 0o500)
    # Not by a reload, at which systemd puts the mode right itself.
    run("cube-proxy", "run", "-c", CONFIG, "--upgrade")
    until("the error", lambda: "server.run_dir" in journal("-p", "err", "-n", "5"), 5)
    os.chmod(directory, 0o700)
    # The pid file names the process before until the main one has put its own there.
    until("the pid file", lambda: open(f"{directory}/cube-proxy.pid").read().strip() == str(main_pid()), 5)
    reload()


def the_log_is_rotated():
    """By all processes; no line is lost."""
    stream = Stream(4)
    reload()
    log = "/var/log/cube-proxy/access.log"
    run("logrotate", "-f", "/etc/logrotate.d/cube-proxy")
    until("a new log", lambda: os.path.exists(log), 5)
    assert stream.whole()

    def logged():
        with open(log) as file:
            return "seconds=4" in file.read()

    until("the line of the stream", logged, 5)


def removed_and_purged():
    stream = Stream(3)
    reload()
    run("dpkg", "-r", UNIT)
    assert stream.whole(), stream.error
    assert not os.path.exists("/usr/bin/cube-proxy") and os.path.exists(CONFIG)
    run("dpkg", "-P", UNIT)
    assert not os.path.exists("/var/log/cube-proxy") and not os.path.exists(CONFIG)


SCENARIOS = [
    installed_and_configured,
    journal_has_priorities_and_one_time_stamp,
    stop_drains_after_a_reload,
    restart_drains_with_predecessors_that_drain,
    a_package_of_another_version_takes_over,
    forty_idle_reloads_succeed,
    a_crash_is_a_restart,
    a_process_that_hangs_is_restarted,
    stop_ends_in_time_whoever_reads,
    reloads_under_load_lose_nothing,
    a_taken_port_is_waited_for,
    by_hand_as_root_and_as_the_services_user,
    a_configuration_that_does_not_hold_leaves_the_old_process,
    a_lost_run_directory_is_put_right,
    the_log_is_rotated,
    removed_and_purged,
]


def main():
    kept = origin.start()
    wanted = sys.argv[3] if len(sys.argv) > 3 else ""
    failed = []
    for number, scenario in enumerate(SCENARIOS):
        name = scenario.__name__
        if not re.search(wanted, name) and number > 0:
            continue
        begun = time.monotonic()
        try:
            scenario()
            print(f"  ok      {time.monotonic() - begun:5.1f} s  {name}", flush=True)
        except Exception:
            failed.append(name)
            print(f"  FAILED  {time.monotonic() - begun:5.1f} s  {name}", flush=True)
            print(traceback.format_exc() + journal("-n", "40"), flush=True)
            if number == 0:
                break
            # The next ones are to tell more than that this one failed.
            systemctl("reset-failed", UNIT, check=False)
            systemctl("restart", UNIT, check=False)
    kept.stop(0)
    print(f"{len(failed)} scenarios failed: {failed}" if failed else "all scenarios passed", flush=True)
    # Threads of clients that were cut may hang.
    os._exit(1 if failed else 0)


main()
