//! From the file's values to a configuration that holds: every check, every default that depends
//! on another key or on the machine.

use std::path::Path;

use cube_edge::{
    Certificate, CertificateError, CertificateFiles, Limits, ResponseCacheSettings, TlsTrust,
    UpstreamSettings,
};
use cube_route::ClientHost;
use cube_route::preview::{LinkBase, LoginUrl, check_origin};

use super::check::{Check, Reads};
use super::file::{self, File};
use super::path::KeyPath;
use super::source::{Broken, Fault};
use super::types::*;

/// What Pingora can take, whatever is configured (docs/architecture.md).
const ENGINE_HEAD: usize = 1 << 20;
const PINGORA_HEADERS: usize = 256;
const ENGINE_TARGET: usize = 64 << 10;
/// Descriptors kept free beside clients and the pool.
const SPARE_FILES: u64 = 512;
/// Client connections with the smallest file limit.
const FEWEST_CONNECTIONS: u64 = 64;

/// What the defaults take from the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    /// Descriptors this process may open.
    pub file_limit: u64,
    /// CPUs this process may use.
    pub cpus: usize,
    /// Its host name.
    pub host_name: String,
}

impl Machine {
    /// This one.
    #[must_use]
    pub fn this() -> Self {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        Self {
            file_limit: limit.current.unwrap_or(u64::MAX),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            host_name: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        }
    }
}

/// Checks everything; a configuration with warnings, or everything that is wrong. `broken`: what
/// could not be read.
pub(super) fn resolve(
    file: File,
    base: &Path,
    machine: &Machine,
    reads: Reads,
    broken: &Broken,
) -> Result<(Config, Vec<String>), Vec<Fault>> {
    let mut check = Check { base, reads, broken, faults: Vec::new(), warnings: Vec::new() };
    let c = &mut check;
    let dialect = file.errors.dialect;
    let node_ip = file.node_ip.as_deref().and_then(|text| {
        let address = text.parse::<std::net::IpAddr>().ok().map(|address| address.to_canonical());
        if address.is_none() {
            c.fault("node_ip", format!("{text:?} is no address"));
        }
        address
    });
    let tls = tls(c, &file.tls);
    // Where it cannot be read, that is what is wrong.
    let named = file.admin.token_file.is_some();
    let admin = Admin { token: c.secret("admin.token", file.admin.token, file.admin.token_file.as_ref()) };
    let guarded = named || admin.token.is_some() || !c.sound(&["admin"]);
    let listen = listen(c, &file.listen, !tls.certificates.is_empty(), guarded);
    let upstream = upstream(file.upstream, dialect);
    let limits = limits(c, file.limits, dialect, upstream.pool_size, machine);
    let config = Config {
        node_ip,
        listen,
        tls,
        routing: routing(c, file.routing, dialect),
        errors: Errors {
            dialect,
            mask_existence: file.errors.mask_existence.unwrap_or(dialect == Dialect::Cube),
        },
        store: store(c, file.store, &file.breaker.shared_set),
        cache: cache(c, file.cache),
        traffic_token: exempt_ports(c, file.traffic_token, dialect),
        previews: previews(c, file.previews),
        lifecycle: file.lifecycle,
        resume: resume(c, &file.resume),
        admin,
        registry: registry(c, file.registry, machine),
        breaker: breaker(c, file.breaker),
        upstream,
        limits,
        drain: file.drain,
        response_cache: response_cache(c, file.response_cache),
        access_log: access_log(c, &file.access_log),
        tracing: super::otlp::resolve(c, file.tracing.otlp, machine),
        log: log(file.log),
        server: server(c, &file.server, machine),
    };
    warn_of_balancers(c, &config);
    if config.registry.is_some() && matches!(config.store, Store::File(_)) {
        c.warnings.push("registry.enabled: the file store has no registry; nothing is announced".to_owned());
    }
    if config.response_cache.enabled && !config.response_cache.fits() {
        c.warnings.push(
            "response_cache.max_object: an answer of that size is not stored, since with its head it takes \
             more than half of response_cache.memory"
                .to_owned(),
        );
    }
    if check.faults.is_empty() { Ok((config, check.warnings)) } else { Err(check.faults) }
}

/// Whoever can open a connection from a listed address can be anybody.
fn warn_of_balancers(c: &mut Check, config: &Config) {
    for net in &config.listen.proxy_protocol {
        let shortest = if net.addr().is_ipv4() { 24 } else { 64 };
        if net.prefix_len() < shortest {
            c.warnings.push(format!(
                "listen.proxy_protocol: {net} is a large network: whoever opens a connection from it can say to \
                 be any client; list the balancers, not their network"
            ));
        }
        let sandboxes = config.upstream.cidrs.iter().flatten();
        if let Some(other) = sandboxes.into_iter().find(|other| other.contains(net) || net.contains(*other)) {
            c.warnings.push(format!(
                "listen.proxy_protocol: {net} overlaps {other} of upstream.cidrs: a sandbox could say to be any \
                 client"
            ));
        }
    }
}

fn count(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

fn tls(c: &mut Check, file: &file::Tls) -> Tls {
    let mut certificates = Vec::with_capacity(file.certificates.len());
    for (at, pair) in file.certificates.iter().enumerate() {
        let pair = CertificateFiles { cert: c.path(&pair.cert), key: c.path(&pair.key) };
        if !c.reads("tls") {
            certificates.push(pair);
            continue;
        }
        match Certificate::read(&pair) {
            Ok(certificate) => {
                if let Some(warning) = certificate.standing(std::time::SystemTime::now()).warning() {
                    c.warnings.push(format!("tls.certificates[{at}]: {}: {warning}", pair.cert.display()));
                }
            }
            Err(CertificateError::Key(message)) => c.fault(&format!("tls.certificates[{at}].key"), message),
            Err(CertificateError::Cert(message) | CertificateError::Unusable(message)) => {
                c.fault(&format!("tls.certificates[{at}].cert"), message);
            }
        }
        certificates.push(pair);
    }
    Tls { certificates, reload_interval: c.some_time("tls.reload_interval", file.reload_interval) }
}

/// `guarded`: the admin API asks for a token.
fn listen(c: &mut Check, file: &file::Listen, tls: bool, guarded: bool) -> Listen {
    let one =
        |c: &mut Check, key: &str, text: &Option<String>| text.as_ref().and_then(|text| c.address(key, text));
    let https = c.addresses("listen.https", &file.https);
    let listen = Listen {
        http: c.addresses("listen.http", &file.http),
        https: if tls { https } else { Vec::new() },
        grpc: c.addresses("listen.grpc", &file.grpc),
        admin: one(c, "listen.admin", &file.admin),
        metrics: one(c, "listen.metrics", &file.metrics),
        health: one(c, "listen.health", &file.health),
        proxy_protocol: c.networks("listen.proxy_protocol", &file.proxy_protocol),
    };
    if file.http.is_empty() && file.grpc.is_empty() && listen.https.is_empty() && c.sound(&["tls"]) {
        c.fault("listen", "no http, grpc or (with a certificate) https address: nothing to serve");
    }
    if listen.admin.is_some_and(|address| !address.ip().to_canonical().is_loopback()) && !guarded {
        c.fault("listen.admin", "reachable from other machines, so it needs admin.token or admin.token_file");
    }
    let all: Vec<_> = listen.all().collect();
    for (at, (option, address)) in all.iter().enumerate() {
        let taken = all.iter().take(at).find(|(other_option, other)| {
            address.port() == other.port()
                && if option == other_option { address == other } else { overlap(address.ip(), other.ip()) }
        });
        if let Some((other, at)) = taken.filter(|(other, _)| c.sound(&[option, other])) {
            c.fault(option, format!("{address} is already taken by {other} ({at})"));
        }
    }
    listen
}

/// Whether two listeners on one port would get each other's connections.
fn overlap(one: std::net::IpAddr, other: std::net::IpAddr) -> bool {
    let all = |any: std::net::IpAddr, other: std::net::IpAddr| {
        any.is_unspecified() && (any.is_ipv6() || other.is_ipv4())
    };
    one == other || all(one, other) || all(other, one)
}

fn routing(c: &mut Check, file: file::Routing, dialect: Dialect) -> Routing {
    let mut domains = Vec::with_capacity(file.domains.len());
    for (at, text) in file.domains.iter().enumerate() {
        match cube_route::Rules::new(std::slice::from_ref(text), false) {
            Ok(rules) => domains.extend(rules.domains().iter().map(ToString::to_string)),
            Err(error) => c.fault(&format!("routing.domains[{at}]"), error.to_string()),
        }
    }
    let envd_control_from = match &file.envd_control_from {
        Some(list) => Some(c.networks("routing.envd_control_from", list)),
        None if dialect == Dialect::E2b => Some(Vec::new()),
        None => {
            c.warnings.push(
                "routing.envd_control_from is null: everyone who reaches a sandbox may call envd's control \
                 routes (/init, /freeze, ...); name the networks of the control plane"
                    .to_owned(),
            );
            None
        }
    };
    Routing {
        domains,
        trusted_proxies: c.networks("routing.trusted_proxies", &file.trusted_proxies),
        forward_credentials: file.forward_credentials,
        control_plane: control_plane(c, file.control_plane),
        envd_control_from,
    }
}

fn control_plane(c: &mut Check, file: file::ControlPlane) -> Option<ControlPlane> {
    if !c.sound(&["routing.control_plane"]) {
        return None;
    }
    let Some(url) = file.url else {
        c.require("routing.control_plane.hosts", file.hosts.is_empty(), "there is no url for these hosts");
        c.require("routing.control_plane.ca_file", file.ca_file.is_none(), "there is no url to verify");
        return None;
    };
    c.require("routing.control_plane.hosts", !file.hosts.is_empty(), "with a url this names its hosts");
    let mut hosts = Vec::with_capacity(file.hosts.len());
    for (at, text) in file.hosts.iter().enumerate() {
        let literal = text.parse::<std::net::Ipv6Addr>().is_ok();
        let host = ClientHost::parse(text).filter(|host| host.port().is_none() && !text.ends_with(':'));
        match host.map(|host| host.name()).or_else(|| literal.then_some(text.as_str())) {
            Some(host) => hosts.push(host.to_ascii_lowercase()),
            None => c.fault(
                &format!("routing.control_plane.hosts[{at}]"),
                format!("{text:?} is no host name or address without a port"),
            ),
        }
    }
    let key = "routing.control_plane.url";
    let url = c.http_or_https_url(key, &url)?;
    c.require(key, matches!(url.path(), "" | "/"), "requests go there unchanged, so it has no path");
    let host = url.host()?.trim_start_matches('[').trim_end_matches(']').to_owned();
    let https = url.scheme_str() == Some("https");
    let tls = trust(c, "routing.control_plane.ca_file", https, file.ca_file.as_deref());
    Some(ControlPlane { host, port: url.port_u16().unwrap_or(if https { 443 } else { 80 }), hosts, tls })
}

/// Who vouches for the other end, by the authorities that `key` names; `None`: it is spoken to without TLS.
pub(super) fn trust(c: &mut Check, key: &str, https: bool, ca_file: Option<&str>) -> Option<TlsTrust> {
    let Some(file) = ca_file else { return https.then(TlsTrust::system) };
    if !https {
        c.fault(key, "only an https url has a certificate to verify");
        return None;
    }
    if !c.reads(key) {
        return Some(TlsTrust::system());
    }
    match TlsTrust::from_file(&c.path(file)) {
        Ok(trust) => Some(trust),
        Err(error) => {
            c.fault(key, error.to_string());
            None
        }
    }
}

fn store(c: &mut Check, file: file::Store, faulty_set: &str) -> Store {
    if file.kind == file::StoreKind::File {
        let Some(path) = &file.file else {
            c.fault("store.file", "kind: file needs the path of the file here");
            return Store::File(std::path::PathBuf::new());
        };
        let path = c.path(path);
        c.readable("store.file", &path);
        return Store::File(path);
    }
    let redis = file.redis;
    let schemes = ["redis", "rediss", "redis-sentinel", "rediss-sentinel", "redis-cluster", "rediss-cluster"];
    let scheme = redis.url.expose_text().split_once("://").map(|(scheme, _)| scheme);
    if !scheme.is_some_and(|scheme| schemes.contains(&scheme)) {
        c.fault("store.redis.url", format!("must begin with one of {}, then ://", schemes.join(", ")));
    }
    let prefixes = &redis.key_prefixes;
    c.require("store.redis.key_prefixes", !prefixes.is_empty(), "at least one is needed");
    for (at, prefix) in prefixes.iter().enumerate() {
        let key = format!("store.redis.key_prefixes[{at}]");
        if prefix.is_empty() {
            c.fault(&key, "must not be empty");
        }
        let earlier = prefixes.iter().take(at);
        if let Some(other) =
            earlier.into_iter().find(|other| other.starts_with(prefix.as_str()) || prefix.starts_with(*other))
        {
            c.fault(&key, format!("{prefix:?} and {other:?}: none may be a prefix of another"));
        }
    }
    let ca_file = redis.ca_file.as_ref().map(|file| c.path(file));
    if let Some(path) = &ca_file {
        c.readable("store.redis.ca_file", path);
    }
    let store = RedisStore {
        url: redis.url,
        username: redis.username.filter(|name| !name.is_empty()),
        password: c.secret("store.redis.password", redis.password, redis.password_file.as_ref()),
        sentinel_password: c.secret(
            "store.redis.sentinel_password",
            redis.sentinel_password,
            redis.sentinel_password_file.as_ref(),
        ),
        ca_file,
        key_prefixes: redis.key_prefixes,
        command_timeout: c.some_time("store.redis.command_timeout", redis.command_timeout),
        tracking: redis.tracking,
    };
    // What only the client can judge: the rest of the URL, the certificates in ca_file.
    if c.reads("store")
        && c.sound(&["store", "breaker.shared_set"])
        && !faulty_set.is_empty()
        && c.faults.iter().all(|(path, _)| !KeyPath::dotted("store").holds(path))
        && let Err(error) = cube_metadata::RedisStore::check(&store.settings(faulty_set))
    {
        let text = error.to_string();
        let (key, message) = text
            .split_once(": ")
            .filter(|(key, _)| key.starts_with("store.redis"))
            .unwrap_or(("store.redis", &text));
        c.fault(key, message);
    }
    Store::Redis(store)
}

fn cache(c: &mut Check, settings: cube_resolver::Settings) -> cube_resolver::Settings {
    let ordered = settings.ttl_min <= settings.ttl_max || !c.sound(&["cache.ttl_max"]);
    c.require("cache.ttl_min", ordered, "must not be longer than cache.ttl_max");
    settings
}

fn exempt_ports(c: &mut Check, file: file::TrafficToken, dialect: Dialect) -> TrafficTokenRules {
    let envd = cube_route::Port::ENVD.get();
    let exempt_ports =
        file.exempt_ports.unwrap_or_else(|| if dialect == Dialect::E2b { vec![envd] } else { Vec::new() });
    c.require("traffic_token.exempt_ports", !exempt_ports.contains(&0), "0 is no port");
    TrafficTokenRules { exempt_ports }
}

fn resume(c: &mut Check, file: &file::Resume) -> Option<Resume> {
    let timeout = c.some_time("resume.timeout", file.timeout);
    let max_concurrent = count(c.at_least_one("resume.max_concurrent", file.max_concurrent));
    let token = file.token_file.as_ref().and_then(|path| c.secret_file("resume.token_file", path));
    if let Some(token) = &token {
        let good = token.expose().iter().all(u8::is_ascii_graphic);
        c.require("resume.token_file", good, "a bearer token is visible ASCII without spaces");
    }
    let url = c.http_url("resume.url", file.url.as_ref()?)?;
    Some(Resume { url, timeout, max_concurrent, token })
}

fn previews(c: &mut Check, file: file::Previews) -> Previews {
    if file.path_cookie {
        c.warnings.push(
            "previews.path_cookie: the path form puts every sandbox into one origin, where a page of one sandbox \
             can use, overwrite and evict the cookies of another; for sandboxes that trust each other only"
                .to_owned(),
        );
    }
    let base_url = file.base_url.as_deref().and_then(|text| {
        let base = LinkBase::parse(text);
        c.require("previews.base_url", base.is_some(), "must be scheme://domain[:port], http or https");
        base
    });
    let login_url = file.login_url.as_deref().and_then(|text| match LoginUrl::parse(text) {
        Ok(login_url) => Some(login_url),
        Err(error) => {
            c.fault("previews.login_url", error.to_string());
            None
        }
    });
    for (key, list) in [
        ("previews.frame_ancestors", &file.frame_ancestors),
        ("previews.allowed_origins", &file.allowed_origins),
    ] {
        for (at, text) in list.iter().enumerate() {
            if let Err(error) = check_origin(text) {
                c.fault(&format!("{key}[{at}]"), error.to_string());
            }
        }
    }
    Previews {
        enabled: file.enabled,
        max_ttl: c.some_time("previews.max_ttl", file.max_ttl),
        cookie: file.cookie,
        path_cookie: file.path_cookie,
        base_url,
        login_url,
        frame_ancestors: file.frame_ancestors,
        allowed_origins: file.allowed_origins,
    }
}

fn registry(c: &mut Check, file: file::Registry, machine: &Machine) -> Option<Registry> {
    let interval = c.some_time("registry.interval", file.interval);
    let proxy_id = file.proxy_id.unwrap_or_else(|| machine.host_name.clone());
    if !file.enabled {
        return None;
    }
    c.require("registry.proxy_id", !proxy_id.is_empty(), "must not be empty");
    if file.admin_url.is_none() {
        c.warnings.push("registry.admin_url is null: the manager cannot push to this replica".to_owned());
    }
    Some(Registry { proxy_id, admin_url: file.admin_url, resume_url: file.resume_url, interval })
}

fn breaker(c: &mut Check, settings: cube_breaker::Settings) -> cube_breaker::Settings {
    let ordered = settings.open_min <= settings.open_max || !c.sound(&["breaker.open_max"]);
    c.require("breaker.open_min", ordered, "must not be longer than breaker.open_max");
    c.require("breaker.shared_set", !settings.shared_set.is_empty(), "must not be empty");
    settings
}

fn upstream(mut settings: UpstreamSettings, dialect: Dialect) -> UpstreamSettings {
    let wait = if dialect == Dialect::E2b { std::time::Duration::from_secs(1) } else { Default::default() };
    settings.port_open_wait.follow(wait);
    settings
}

fn limits(c: &mut Check, mut limits: Limits, dialect: Dialect, pool: usize, machine: &Machine) -> Limits {
    let most = |c: &mut Check, key: &str, bytes: usize, most: usize| {
        c.require(key, bytes > 0, "must be more than 0");
        if bytes > most {
            c.fault(key, format!("Pingora takes no more than {} KiB", most >> 10));
        }
    };
    most(c, "limits.head", limits.head, ENGINE_HEAD);
    most(c, "limits.target", limits.target, ENGINE_TARGET);
    if limits.headers > PINGORA_HEADERS {
        c.fault("limits.headers", format!("Pingora takes no more than {PINGORA_HEADERS}"));
    }
    limits.body.follow((dialect == Dialect::Cube).then_some(256 << 20));
    let pool = u64::try_from(pool).unwrap_or(u64::MAX);
    let fitting = machine.file_limit.saturating_sub(pool).saturating_sub(SPARE_FILES) / 2;
    if limits.connections.follows() && fitting < FEWEST_CONNECTIONS {
        c.warnings.push(format!(
            "the limit of {} open files leaves room for few client connections; raise it (ulimit -n, \
             LimitNOFILE) or lower upstream.pool_size",
            machine.file_limit
        ));
    }
    limits.connections.follow(usize::try_from(fitting.max(FEWEST_CONNECTIONS)).unwrap_or(usize::MAX));
    limits.requests_per_ip_burst.follow(limits.requests_per_ip.unwrap_or_default());
    limits
}

fn response_cache(c: &mut Check, settings: ResponseCacheSettings) -> ResponseCacheSettings {
    c.require(
        "response_cache.max_object",
        settings.max_object <= settings.memory || !c.sound(&["response_cache.memory"]),
        "must not be larger than response_cache.memory",
    );
    settings
}

fn access_log(c: &mut Check, file: &file::AccessLog) -> AccessLog {
    let target = file.path.as_deref().filter(|path| !path.is_empty()).map(|path| match path {
        "-" => AccessLogTarget::Stdout,
        path => AccessLogTarget::File(c.path(path)),
    });
    AccessLog {
        target,
        format: file.format,
        redact_query: file.redact_query.iter().map(|key| key.to_lowercase()).collect(),
    }
}

fn log(file: file::Log) -> Log {
    Log {
        level: match file.level {
            file::LogLevel::Error => tracing::Level::ERROR,
            file::LogLevel::Warn => tracing::Level::WARN,
            file::LogLevel::Info => tracing::Level::INFO,
            file::LogLevel::Debug => tracing::Level::DEBUG,
            file::LogLevel::Trace => tracing::Level::TRACE,
        },
        format: file.format,
    }
}

fn server(c: &mut Check, file: &file::Server, machine: &Machine) -> Server {
    let threads = file.threads.map_or(machine.cpus, |number| count(c.at_least_one("server.threads", number)));
    c.require("server.threads", threads <= 1024, "must be at most 1024");
    Server { threads, run_dir: file.run_dir.as_ref().map(|path| c.path(path)), core_dumps: file.core_dumps }
}
