use std::path::Path;
use std::time::Duration;

use super::*;

fn machine() -> Machine {
    Machine { file_limit: 65_536, cpus: 4, host_name: "node-7".to_owned() }
}

fn read(text: &str) -> Result<Loaded, ConfigError> {
    read_in(text, Path::new("/nowhere"))
}

fn read_in(text: &str, base: &Path) -> Result<Loaded, ConfigError> {
    parse(text.to_owned(), "cube-proxy.yaml", base, &Environment::default(), &machine())
}

fn config(text: &str) -> Config {
    read(text).unwrap_or_else(|error| panic!("{text}\n{error}")).config
}

/// The one problem of `text`, as it is shown.
fn problem(text: &str) -> String {
    let error = read(text).map(|_| ()).expect_err(text);
    assert_eq!(error.problems.len(), 1, "{text}\n{error}");
    error.to_string()
}

#[test]
fn the_annotated_file_says_exactly_the_defaults() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conf/cube-proxy.yaml");
    let text = std::fs::read_to_string(path).unwrap();
    let written: Config = serde_yaml::from_str(&text).unwrap();
    assert_eq!(written, Config::default());

    // Every key is there, in the order of the format, and none is missing a comment above its
    // section or itself.
    fn keys(value: &serde_yaml::Value, path: &str, into: &mut Vec<String>) {
        let Some(mapping) = value.as_mapping() else { return into.push(path.to_owned()) };
        for (key, value) in mapping {
            keys(value, &format!("{path}.{}", key.as_str().unwrap()), into);
        }
    }
    let (mut in_file, mut built_in) = (Vec::new(), Vec::new());
    keys(&serde_yaml::from_str(&text).unwrap(), "", &mut in_file);
    keys(&serde_yaml::to_value(Config::default()).unwrap(), "", &mut built_in);
    assert_eq!(in_file, built_in);
    assert_eq!(config(&text), config(""));
}

#[test]
fn the_defaults_are_those_of_the_contract() {
    let c = config("");
    assert_eq!(c.node_ip, None);
    assert_eq!(c.listen.http, ["0.0.0.0:8081".parse().unwrap()]);
    assert_eq!(c.listen.https, [], "no certificate, no https");
    assert_eq!(c.listen.admin, Some("127.0.0.1:8082".parse().unwrap()));
    assert_eq!((c.errors.dialect, *c.errors.mask_existence), (Dialect::Cube, true));
    assert_eq!(*c.limits.body, Some(256 << 20));
    assert_eq!((c.limits.head, c.limits.headers, c.limits.target), (65_536, 100, 32_768));
    assert_eq!(*c.limits.connections, (65_536 - 1500 - 512) / 2);
    assert_eq!((c.limits.connections_per_ip, c.limits.requests_per_sandbox), (None, None));
    assert_eq!(c.upstream.silence_timeout, Duration::from_secs(7206));
    assert_eq!(*c.upstream.port_open_wait, Duration::ZERO);
    assert_eq!(c.upstream.host_ports, 1024..=65535);
    assert_eq!(c.cache.stale_if_error, Duration::from_secs(600));
    assert_eq!(c.drain.timeout, Duration::from_secs(3600));
    assert_eq!(*c.server.threads, 4);
    assert_eq!((c.resume.url.is_none(), c.registry.enabled, c.response_cache.enabled), (true, false, false));
    assert!(c.traffic_token.exempt_ports.is_empty());
    assert_eq!(*c.routing.envd_control_from, None);
}

#[test]
fn the_e2b_dialect_brings_its_own_defaults() {
    let c = config("errors: {dialect: e2b}");
    assert!(!*c.errors.mask_existence);
    assert_eq!(*c.limits.body, None);
    assert_eq!(*c.traffic_token.exempt_ports, [cube_route::Port::ENVD]);
    assert_eq!(*c.upstream.port_open_wait, Duration::from_secs(1));
    assert_eq!(*c.routing.envd_control_from, Some(vec![]));
    let c = config(
        "errors: {dialect: e2b, mask_existence: true}\nlimits: {body: 1KiB}\n\
         traffic_token: {exempt_ports: []}\nupstream: {port_open_wait: 0s}",
    );
    assert!(*c.errors.mask_existence);
    assert_eq!((*c.limits.body, *c.upstream.port_open_wait), (Some(1024), Duration::ZERO));
    assert!(c.traffic_token.exempt_ports.is_empty());
    assert_eq!(*config("limits: {body: 0}").limits.body, None);
}

#[test]
fn a_problem_names_file_line_column_and_key() {
    assert_eq!(
        problem("node_ip: 10.0.0.1\nlimits:\n  head: 4KiB\n  headers: 0\n"),
        "cube-proxy.yaml:4:3: limits.headers: must be at least 1"
    );
    assert!(
        problem("limits:\n  bodyy: 1KiB\n").starts_with("cube-proxy.yaml:2:3: limits.bodyy: unknown key")
    );
}

#[test]
fn all_problems_are_told_at_once_in_the_order_of_the_file() {
    let error = read("cache:\n  ttl_min: 9m\n  ttl_max: 1m\nnode_ip: here\nupstream: {host_ports: 9-1}\n")
        .map(|_| ())
        .unwrap_err();
    let keys: Vec<_> = error.problems.iter().map(|problem| problem.key.as_str()).collect();
    assert_eq!(keys, ["cache.ttl_min", "node_ip", "upstream.host_ports"]);
    assert_eq!(error.to_string().lines().count(), 3);
}

#[test]
fn what_is_of_the_wrong_kind_does_not_hide_what_is_wrong_elsewhere() {
    let text = "limits: {headers: many, bodyy: 1, h2_streams: 0}\nlisten: {http: 8081, metrics: here}\n\
                routing: {trusted_proxies: [[], 10.0.0.0/8, nowhere]}\n\
                traffic_token: {exempt_ports: [70000, 0]}\n";
    let error = read(text).map(|_| ()).unwrap_err();
    let keys: Vec<_> = error.problems.iter().map(|problem| problem.key.as_str()).collect();
    let want = [
        "limits.headers",
        "limits.bodyy",
        "limits.h2_streams",
        "listen.http",
        "listen.metrics",
        "routing.trusted_proxies[0]",
        "routing.trusted_proxies[2]",
        "traffic_token.exempt_ports[0]",
        "traffic_token.exempt_ports[1]",
    ];
    assert_eq!(keys, want, "{error}");
}

#[test]
fn what_cannot_be_read_is_no_reason_to_complain_of_others() {
    for (text, key) in [
        ("admin: {token: 7}\nlisten: {admin: \"192.0.2.1:8082\"}", "admin.token"),
        ("listen: {http: 7, grpc: [\"127.0.0.1:8081\"]}", "listen.http"),
        ("tls: {certificates: 7}\nlisten: {http: []}", "tls.certificates"),
        ("routing: {control_plane: {url: [], hosts: [a]}}", "routing.control_plane.url"),
        ("cache: {ttl_max: long, ttl_min: 900s}", "cache.ttl_max"),
        ("store: {kind: fish, file: missing.yaml}", "store.kind"),
        ("response_cache: {memory: much, max_object: 1GiB}", "response_cache.memory"),
    ] {
        let error = read(text).map(|_| ()).expect_err(text);
        let keys: Vec<_> = error.problems.iter().map(|problem| problem.key.as_str()).collect();
        assert_eq!(keys, [key], "{text}\n{error}");
    }
}

#[test]
fn networks_of_ipv4_in_ipv6_are_those_of_ipv4_in_every_list() {
    for key in ["routing.trusted_proxies", "routing.envd_control_from", "upstream.cidrs"] {
        let (section, name) = key.split_once('.').unwrap();
        let list = |items: &str| format!("{section}: {{{name}: [{items}]}}");
        let one = config(&list("\"::ffff:10.1.2.3/104\", \"::ffff:10.0.0.1\", \"::/0\""));
        assert_eq!(
            format!("{one:?}"),
            format!("{:?}", config(&list("10.0.0.0/8, 10.0.0.1/32, \"::/0\""))),
            "{key}"
        );
        let said = problem(&list("\"::ffff:10.0.0.0/90\""));
        assert!(said.contains(&format!("{key}[0]")) && said.contains("write it as IPv4"), "{said}");
    }
}

#[test]
fn a_command_reads_the_files_of_the_sections_that_it_uses_and_no_others() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("cube-proxy.yaml");
    let text = "listen: {admin: \"192.0.2.1:8082\"}\nadmin: {token_file: missing}\n\
                tls: {certificates: [{cert: missing, key: missing}]}\nresume: {token_file: missing}\n\
                store: {redis: {url: \"rediss://127.0.0.1\", password_file: missing, ca_file: missing}}\n\
                routing: {control_plane: {url: \"https://a\", ca_file: missing, hosts: [a]}}\n";
    std::fs::write(&file, text).unwrap();
    let keys = |sections: &'static [&'static str]| {
        let loaded = load_for(&file, &Environment::default(), sections);
        let problems = loaded.map(|_| Vec::new()).unwrap_or_else(|error| error.problems);
        problems.into_iter().map(|problem| problem.key).collect::<Vec<_>>()
    };
    assert_eq!(keys(&[]), [""; 0]);
    assert_eq!(keys(&["admin"]), ["admin.token_file"]);
    assert_eq!(keys(&["store"]), ["store.redis.password_file", "store.redis.ca_file"]);
    let all = load(&file, &Environment::default()).unwrap_err();
    assert_eq!(all.problems.len(), 6, "{all}");
}

#[test]
fn what_does_not_hold_is_refused() {
    for (text, key) in [
        ("listen: {http: [\"localhost:8081\"]}", "listen.http[0]"),
        ("listen: {http: [\"127.0.0.1:0\"]}", "listen.http[0]"),
        ("listen: {http: []}", "listen"),
        ("listen: {http: [\"127.0.0.1:8081\", \"127.0.0.1:8081\"]}", "listen.http"),
        ("listen: {grpc: [\"127.0.0.1:8081\"]}", "listen.grpc"),
        ("listen: {http: [\"[::]:8082\"]}", "listen.admin"),
        ("listen: {admin: \"192.0.2.1:8082\"}", "listen.admin"),
        ("listen: {admin: \"[::ffff:192.0.2.1]:8082\"}", "listen.admin"),
        ("tls: {reload_interval: 0s}", "tls.reload_interval"),
        ("tls: {certificates: [{cert: a.pem, key: a.key}]}", "tls.certificates[0].cert"),
        ("routing: {domains: [\"a b\"]}", "routing.domains[0]"),
        ("routing: {domains: [\".cube.app\"]}", "routing.domains[0]"),
        ("routing: {domains: [\"cube.app:80\"]}", "routing.domains[0]"),
        ("routing: {trusted_proxies: [10.0.0.0/33]}", "routing.trusted_proxies[0]"),
        ("routing: {envd_control_from: [10.0.0.1, here]}", "routing.envd_control_from[1]"),
        ("routing: {control_plane: {hosts: [a]}}", "routing.control_plane.hosts"),
        ("routing: {control_plane: {url: \"http://10.0.0.5:3000\"}}", "routing.control_plane.hosts"),
        ("routing: {control_plane: {url: \"ftp://a\", hosts: [a]}}", "routing.control_plane.url"),
        (
            "routing: {control_plane: {url: \"https://a\", ca_file: missing, hosts: [a]}}",
            "routing.control_plane.ca_file",
        ),
        (
            "routing: {control_plane: {url: \"http://a\", ca_file: missing, hosts: [a]}}",
            "routing.control_plane.ca_file",
        ),
        ("routing: {control_plane: {ca_file: missing}}", "routing.control_plane.ca_file"),
        ("routing: {control_plane: {url: \"http://a/x\", hosts: [a]}}", "routing.control_plane.url"),
        ("routing: {control_plane: {url: \"http://a:99999\", hosts: [a]}}", "routing.control_plane.url"),
        (
            "routing: {control_plane: {url: \"http://a\", hosts: [\"a:80\"]}}",
            "routing.control_plane.hosts[0]",
        ),
        ("store: {kind: file}", "store.file"),
        ("store: {kind: file, file: missing.yaml}", "store.file"),
        ("store: {redis: {url: \"http://127.0.0.1\"}}", "store.redis.url"),
        ("store: {redis: {url: \"redis://\"}}", "store.redis.url"),
        ("store: {redis: {url: \"redis-cluster://a/1\"}}", "store.redis.url"),
        ("store: {redis: {url: \"redis-sentinel://a\"}}", "store.redis.url"),
        ("routing: {domains: [10.0.0.1]}", "routing.domains[0]"),
        ("store: {redis: {key_prefixes: []}}", "store.redis.key_prefixes"),
        ("store: {redis: {key_prefixes: [\"a:\", \"a:b:\"]}}", "store.redis.key_prefixes[1]"),
        ("store: {redis: {key_prefixes: [\"a:b:\", \"a:\"]}}", "store.redis.key_prefixes[1]"),
        ("store: {redis: {key_prefixes: [\"a:\", \"a:\"]}}", "store.redis.key_prefixes[1]"),
        ("store: {redis: {password_file: missing}}", "store.redis.password_file"),
        ("store: {redis: {ca_file: missing}}", "store.redis.ca_file"),
        ("store: {redis: {command_timeout: 0s}}", "store.redis.command_timeout"),
        ("cache: {ttl_min: 701s}", "cache.ttl_min"),
        ("cache: {capacity: 0}", "cache.capacity"),
        ("traffic_token: {exempt_ports: [0]}", "traffic_token.exempt_ports[0]"),
        ("resume: {url: \"https://127.0.0.1\"}", "resume.url"),
        ("resume: {url: \"127.0.0.1:8083\"}", "resume.url"),
        ("resume: {url: \"http://u:p@127.0.0.1\"}", "resume.url"),
        ("resume: {url: \"http://127.0.0.1/?a=b\"}", "resume.url"),
        ("resume: {token_file: missing}", "resume.token_file"),
        ("tracing: {otlp: {endpoint: \"grpc://a:4317\"}}", "tracing.otlp.endpoint"),
        ("tracing: {otlp: {endpoint: \"http://u:p@a\"}}", "tracing.otlp.endpoint"),
        ("tracing: {otlp: {endpoint: \"http://a:0\"}}", "tracing.otlp.endpoint"),
        ("tracing: {otlp: {sample_ratio: 1.5}}", "tracing.otlp.sample_ratio"),
        ("tracing: {otlp: {sample_ratio: -0.1}}", "tracing.otlp.sample_ratio"),
        ("tracing: {otlp: {sample_ratio: .nan}}", "tracing.otlp.sample_ratio"),
        ("tracing: {otlp: {ca_file: missing}}", "tracing.otlp.ca_file"),
        ("tracing: {otlp: {endpoint: \"https://a\", ca_file: missing}}", "tracing.otlp.ca_file"),
        ("tracing: {otlp: {endpoint: \"http://a\", service_name: \"\"}}", "tracing.otlp.service_name"),
        ("tracing: {otlp: {headers: [{name: a, file: missing}]}}", "tracing.otlp.headers"),
        (
            "tracing: {otlp: {endpoint: \"http://a\", headers: [{name: a, file: missing}]}}",
            "tracing.otlp.headers[0].file",
        ),
        ("admin: {token_file: missing}", "admin.token_file"),
        ("breaker: {open_min: 61s}", "breaker.open_min"),
        ("breaker: {min_sandboxes: 0}", "breaker.min_sandboxes"),
        ("breaker: {shared_set: \"\"}", "breaker.shared_set"),
        ("upstream: {cidrs: [everywhere]}", "upstream.cidrs[0]"),
        ("upstream: {host_ports: \"0-10\"}", "upstream.host_ports"),
        ("upstream: {host_ports: \"1024-65536\"}", "upstream.host_ports"),
        ("upstream: {connect_timeout: 0s}", "upstream.connect_timeout"),
        ("limits: {head: 2MiB}", "limits.head"),
        ("limits: {headers: 257}", "limits.headers"),
        ("limits: {target: 65KiB}", "limits.target"),
        ("limits: {h2_streams: 0}", "limits.h2_streams"),
        ("response_cache: {max_object: 1GiB}", "response_cache.max_object"),
        ("server: {threads: 0}", "server.threads"),
        ("server: {threads: 5000}", "server.threads"),
    ] {
        let error = read(text).map(|_| ()).expect_err(text);
        let keys: Vec<_> = error.problems.iter().map(|problem| problem.key.as_str()).collect();
        assert_eq!(keys, [key], "{text}\n{error}");
        assert!(matches!(error.problems[0].origin, Origin::File(Some((1, _)))), "{text}: {error}");
    }
}

#[test]
fn addresses_and_names_are_kept_in_one_spelling() {
    let c = config(
        "node_ip: \"::ffff:10.0.0.1\"\n\
         routing: {domains: [Cube.App.], trusted_proxies: [10.1.2.3/8, \"fd00::1\"],\n\
         \x20 control_plane: {url: \"http://[fd00::5]:3000/\", hosts: [API.cube.app, \"[::1]\", \"::2\", 127.0.0.1]}}\n\
         upstream: {host_ports: \"8080\"}\naccess_log: {redact_query: [Token]}",
    );
    assert_eq!(c.node_ip, Some("10.0.0.1".parse().unwrap()));
    assert_eq!(c.routing.domains, ["cube.app"]);
    assert_eq!(c.routing.trusted_proxies, ["10.0.0.0/8".parse().unwrap(), "fd00::1/128".parse().unwrap()]);
    let plane = c.control_plane.unwrap();
    assert_eq!((plane.host.as_str(), plane.port), ("fd00::5", 3000));
    assert_eq!(plane.hosts, ["api.cube.app", "::1", "::2", "127.0.0.1"]);
    assert_eq!(plane.tls, None);
    assert_eq!(c.upstream.host_ports, 8080..=8080);
    assert_eq!(c.access_log.redact_query, ["token"]);
}

#[test]
fn a_control_plane_over_tls_is_verified_by_the_systems_authorities_or_by_those_of_a_file() {
    let plane = |text| config(text).control_plane.unwrap();
    let system = plane("routing: {control_plane: {url: \"https://api.example.org\", hosts: [a]}}");
    assert_eq!((system.port, system.tls), (443, Some(cube_edge::TlsTrust::system())));
    let directory = tempfile::tempdir().unwrap();
    let key = rcgen::KeyPair::generate().unwrap();
    let own = rcgen::CertificateParams::new(Vec::new()).unwrap().self_signed(&key).unwrap();
    let file = directory.path().join("ca.pem");
    std::fs::write(&file, own.pem()).unwrap();
    let url = "https://api.example.org:8443";
    let own =
        plane(&format!("routing: {{control_plane: {{url: \"{url}\", ca_file: {file:?}, hosts: [a]}}}}"));
    assert_eq!(own.port, 8443);
    assert!(own.tls.is_some_and(|trust| trust != cube_edge::TlsTrust::system()));
}

#[test]
fn several_listeners_may_share_a_port_where_none_takes_anothers_connections() {
    let c =
        config("listen: {http: [\"0.0.0.0:8081\", \"[::]:8081\"], admin: \"127.0.0.1:8082\", metrics: null}");
    let all: Vec<_> = c.listen.all().map(|(option, address)| format!("{option} {address}")).collect();
    assert_eq!(all, ["listen.http 0.0.0.0:8081", "listen.http [::]:8081", "listen.admin 127.0.0.1:8082"]);
    config("listen: {http: [\"127.0.0.1:8081\"], grpc: [\"127.0.0.2:8081\"]}");
}

#[test]
fn secrets_come_from_files_and_are_never_shown() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("token"), "example-token\n").unwrap();
    std::fs::write(dir.path().join("empty"), "\n").unwrap();
    std::fs::write(dir.path().join("two"), "example\ntoken\n").unwrap();
    let text = "listen: {admin: \"192.0.2.1:8082\"}\nadmin: {token_file: token}\n\
                store: {redis: {url: \"redis://:example-token@127.0.0.1\", password_file: token}}\n\
                resume: {url: \"http://127.0.0.1:8083/\", token_file: token}\n\
                tracing: {otlp: {endpoint: \"http://a\", headers: [{name: Authorization, file: token}]}}\n";
    let c = read_in(text, dir.path()).unwrap().config;
    assert_eq!(c.admin.token().unwrap().expose_text(), "example-token");
    assert_eq!(c.redis().password().unwrap().expose_text(), "example-token");
    assert_eq!(c.resume.token_file.as_ref().unwrap().secret().unwrap().expose_text(), "example-token");
    assert_eq!(c.resume.url.as_deref(), Some("http://127.0.0.1:8083"));
    let (name, value) = &c.otlp.as_ref().unwrap().headers[0];
    assert_eq!((name.as_str(), value.expose_text()), ("authorization", "example-token"));
    assert!(!format!("{c:?}").contains("example-token"));
    for (text, key) in [
        ("admin: {token: example-token, token_file: token}", "admin.token_file"),
        ("admin: {token_file: empty}", "admin.token_file"),
        ("store: {redis: {password_file: two}}", "store.redis.password_file"),
        (
            "tracing: {otlp: {endpoint: \"http://a\", headers: [{name: Host, file: token}]}}",
            "tracing.otlp.headers[0].name",
        ),
        (
            "tracing: {otlp: {endpoint: \"http://a\", headers: [{name: \"a b\", file: token}]}}",
            "tracing.otlp.headers[0].name",
        ),
        ("admin: {token: 3141592}", "admin.token"),
        ("store: {redis: {url: 3141592}}", "store.redis.url"),
    ] {
        let error = read_in(text, dir.path()).unwrap_err();
        assert_eq!(error.problems[0].key, key, "{error}");
        assert!(
            !error.to_string().contains("example-token") && !error.to_string().contains("3141592"),
            "{error}"
        );
    }
    let open = read("listen: {admin: \"0.0.0.0:8082\"}\nadmin: {token: \"\"}").unwrap_err();
    assert_eq!(open.problems[0].key, "listen.admin", "an empty token is none");
}

#[test]
fn certificates_must_be_there_sound_and_fit() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    for name in ["a", "b"] {
        let made = rcgen::generate_simple_self_signed(vec!["cube.test".to_owned()]).unwrap();
        write(&format!("{name}.pem"), &made.cert.pem());
        write(&format!("{name}.key"), &made.signing_key.serialize_pem());
    }
    write("text.pem", "not a certificate");
    let with = |cert: &str, key: &str| {
        let pairs = format!("tls: {{certificates: [{{cert: {cert}, key: {key}}}]}}");
        read_in(&pairs, dir.path()).map_err(|error| error.problems[0].key.clone())
    };
    let good = with("a.pem", "a.key").unwrap().config;
    assert_eq!(good.listen.https, ["0.0.0.0:8080".parse().unwrap()]);
    assert_eq!(good.tls.certificates[0].cert, dir.path().join("a.pem"));
    for (cert, key, wrong) in [
        ("a.pem", "b.key", "key"),
        ("missing.pem", "a.key", "cert"),
        ("a.pem", "missing.key", "key"),
        ("text.pem", "a.key", "cert"),
        ("a.pem", "text.pem", "key"),
        ("a.key", "a.key", "cert"),
        ("a.pem", "a.pem", "key"),
    ] {
        assert_eq!(with(cert, key).unwrap_err(), format!("tls.certificates[0].{wrong}"), "{cert} {key}");
    }
}

#[test]
fn the_author_is_warned_of_what_holds_but_surprises() {
    let warnings = |text: &str| read(text).unwrap().warnings.join("\n");
    assert!(warnings("").contains("routing.envd_control_from"));
    assert_eq!(warnings("routing: {envd_control_from: [10.0.0.0/8]}"), "");
    assert_eq!(warnings("errors: {dialect: e2b}"), "");
    let of_cache = |text: &str| {
        warnings(&format!("routing: {{envd_control_from: []}}\nresponse_cache: {{enabled: true{text}}}"))
    };
    assert_eq!(of_cache(""), "");
    assert!(of_cache(", memory: 1MiB").contains("response_cache.max_object"));
    assert!(warnings("registry: {enabled: true}").contains("admin_url"));
    let path_cookie = |on: bool| {
        let text = format!("routing: {{envd_control_from: []}}\npreviews: {{path_cookie: {on}}}");
        warnings(&text)
    };
    assert!(path_cookie(true).contains("previews.path_cookie") && path_cookie(true).contains("one origin"));
    assert_eq!(path_cookie(false), "");
}

#[test]
fn a_balancers_network_that_is_large_or_has_sandboxes_is_warned_of() {
    let warnings = |list: &str| {
        let text = format!(
            "routing: {{envd_control_from: []}}\nlisten: {{proxy_protocol: {list}}}\nupstream: {{cidrs: [10.7.0.0/16]}}"
        );
        read(&text).unwrap().warnings
    };
    assert!(warnings("[192.0.2.0/24, \"2001:db8::/64\", 192.0.2.9]").is_empty());
    for large in ["[192.0.0.0/16]", "[\"2001:db8::/32\"]"] {
        assert!(warnings(large).iter().any(|warning| warning.contains("large network")), "{large}");
    }
    assert!(warnings("[10.7.3.0/24]").iter().any(|warning| warning.contains("overlaps")));
}

#[test]
fn a_small_file_limit_leaves_some_connections_and_a_warning() {
    let small = Machine { file_limit: 1024, ..machine() };
    let loaded = parse(String::new(), "x", Path::new(""), &Environment::default(), &small).unwrap();
    assert_eq!(*loaded.config.limits.connections, 64);
    assert!(loaded.warnings.iter().any(|warning| warning.contains("open files")), "{:?}", loaded.warnings);
}

#[test]
fn the_registry_is_named_after_the_host() {
    assert_eq!(config("registry: {enabled: true}").registry().unwrap().proxy_id.as_str(), "node-7");
    assert_eq!(config("registry: {enabled: true, proxy_id: p1}").registry().unwrap().proxy_id.as_str(), "p1");
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("missing.yaml");
    let error = load(&missing, &Environment::default()).unwrap_err().to_string();
    assert!(error.contains("missing.yaml: cannot be read"), "{error}");
    let bytes = dir.path().join("bytes.yaml");
    std::fs::write(&bytes, [0xff, 0xfe, 0x00]).unwrap();
    let error = load(&bytes, &Environment::default()).unwrap_err().to_string();
    assert!(error.contains("not UTF-8"), "{error}");
}

#[test]
fn the_demo_files_hold_and_name_sandboxes() {
    let conf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conf");
    let config = load(&conf.join("demo.yaml"), &Environment::default()).unwrap().config;
    let path = config.store.file.unwrap();
    let store = cube_metadata::FileStore::from_yaml(&std::fs::read_to_string(path).unwrap()).unwrap();
    let id = cube_route::SandboxId::parse("app").unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let record = runtime.block_on(cube_metadata::MetadataStore::fetch(&*store, &id)).unwrap().record.unwrap();
    assert_eq!(record.warnings().count(), 0);
}
