//! What `--help` teaches beyond the options: examples that work when pasted, exit codes, where to
//! read on.

pub(super) const ABOUT: &str = "\
Routes HTTP, WebSocket and gRPC traffic to sandboxes.

A client names a sandbox and a port, as <port>-<sandbox-id>.<domain>, with E2b-Sandbox-* headers \
or as /sandbox/<sandbox-id>/<port>/. The proxy finds where that sandbox runs, checks that the \
caller may reach it and that it is awake, and passes the request on.

New here? Start with: cube-proxy demo";

pub(super) const MAIN: &str = "\
Examples:
  cube-proxy demo                                  try everything, with nothing installed
  cube-proxy check -c /etc/cube-proxy/cube-proxy.yaml
  cube-proxy run -c /etc/cube-proxy/cube-proxy.yaml
  cube-proxy explain -c FILE http://8080-7c8fbcd45ffe.cube.app/
  cube-proxy top -c FILE

Without -c the configuration is /etc/cube-proxy/cube-proxy.yaml, where there is one.

Files:
  conf/cube-proxy.yaml (packaged: /usr/share/doc/cube-proxy/cube-proxy.yaml) has every key with its
  default. The packaged /etc/cube-proxy/cube-proxy.yaml has the few to begin with.
  docs/configuration.md is the reference: types, defaults, environment names.

Exit codes:
  0   done
  1   something outside the configuration is wrong, such as a port that is taken
  64  the configuration (or this command line) does not hold

`cube-proxy help COMMAND` has examples for each command.";

pub(super) const RUN: &str = "\
Examples:
  cube-proxy run -c cube-proxy.yaml
  CUBE_PROXY_LOG__LEVEL=debug cube-proxy run -c cube-proxy.yaml
  CUBE_PROXY_STORE__REDIS__URL=redis://10.0.0.7:6379/0 cube-proxy run -c cube-proxy.yaml

Every key of the file can be overridden from the environment: CUBE_PROXY_<SECTION>__<KEY>, the value \
as YAML. Keys that neither names have the defaults of conf/cube-proxy.yaml.

After an update of the program, or of a key that needs a new process:
  cube-proxy run -c cube-proxy.yaml --upgrade     under systemd: systemctl reload cube-proxy
The running process hands its sockets over and ends with its streams; no request fails. It serves \
on when the new one does not get ready.

Signals:
  SIGTERM, SIGINT  ends it when its streams have ended; a second one ends it at once
  SIGHUP           reads the file again and takes what a running process can
  SIGUSR1          opens the access log again

Exit codes: 0 it was asked to end; 64 the configuration does not hold, nothing was opened; 1 it \
cannot serve: a port is taken, another process serves from this run directory.";

pub(super) const DEMO: &str = "\
Examples:
  cube-proxy demo
  cube-proxy demo --port 9000

Needs no Redis, no root and no network. Ctrl-C ends it.

Exit codes: 0 it was asked to end; 1 it cannot serve, such as a port that is taken.";

pub(super) const CHECK: &str = "\
Examples:
  cube-proxy check -c cube-proxy.yaml
  cube-proxy check -c cube-proxy.yaml --strict     the store must answer too
  cube-proxy check -c cube-proxy.yaml --json

What run would try is tried, as the user who asks: files of keys and tokens, the run directory, the \
directory of the access log, ports, the store. For the service of the package:
  sudo -u cube-proxy cube-proxy check

Exit codes: 0 it holds; 64 it does not, each fault with file, line, column and key; 1 something \
outside it is wrong: a port that is taken, a directory that is missing or, with --strict, a store \
that does not answer, or refuses a command that the proxy needs.";

pub(super) const SANDBOX: &str = "\
Examples:
  cube-proxy sandbox -c FILE list
  cube-proxy sandbox -c FILE put 7c8fbcd45ffe HostIP=10.0.0.1 SandboxIP=192.168.1.100 8080=49983
  cube-proxy sandbox -c FILE get 7c8fbcd45ffe --json
  cube-proxy sandbox -c FILE delete 7c8fbcd45ffe
  cube-proxy sandbox -c FILE state 7c8fbcd45ffe paused

put refuses what no record may have, such as HostIP=999.1.1.1 or HostIp=10.0.0.1; --force writes it.
state tells the running proxy, through its admin API; the others use the store.

Exit codes: 0 done; 64 the configuration or what is to be written does not hold; 1 there is no such \
sandbox, or store or proxy do not answer.";

pub(super) const EXPLAIN: &str = "\
Examples:
  cube-proxy explain -c FILE http://8080-7c8fbcd45ffe.cube.app/index.html
  cube-proxy explain -c FILE -X POST http://cube.app/sandbox/7c8fbcd45ffe/8080/
  cube-proxy explain -c FILE -H 'e2b-traffic-access-token: ...' http://8080-7c8fbcd45ffe.cube.app/

Nothing is sent, woken or counted. The running proxy is asked, which knows the states and breakers \
of now; where none runs, the store is looked at.

Exit codes: 0 it was explained, whatever the response would be; 64 the configuration does not hold; \
1 store or proxy do not answer.";

pub(super) const TOP: &str = "\
Examples:
  cube-proxy top -c FILE                    live, on the whole terminal; q quits
  cube-proxy top -c FILE --once             the figures of two seconds, as a table
  cube-proxy top -c FILE -i 10s >> figures  a line every ten seconds
  cube-proxy top -c FILE --json | jq '.requests, .p99_ms, .busiest[0]'

It asks the running proxy at listen.admin and listen.metrics. Looking costs the proxy next to \
nothing: requests are counted by sandbox only while somebody looks.

Exit codes: 0 done; 64 the configuration does not hold; 1 no proxy answers.";

pub(super) const READY: &str = "\
Examples:
  cube-proxy ready -c FILE
  until cube-proxy ready -c FILE; do sleep 1; done

It asks /readyz of the running proxy, as a balancer does.

Exit codes: 0 it is ready; 64 the configuration does not hold; 1 it is not ready, or does not answer.";

pub(super) const COMPLETIONS: &str = "\
Examples:
  cube-proxy completions bash > /usr/share/bash-completion/completions/cube-proxy
  cube-proxy completions zsh  > ~/.zfunc/_cube-proxy     with ~/.zfunc in fpath
  cube-proxy completions fish > ~/.config/fish/completions/cube-proxy.fish

The Debian package installs all three.";

pub(super) const MAN: &str = "\
Examples:
  cube-proxy man | man -l -
  cube-proxy man /usr/local/share/man/man1     a page for each command

The Debian package installs them.";
