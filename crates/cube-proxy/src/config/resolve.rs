//! From the file's values to a configuration that holds: every check of more than one value, every default
//! that depends on another key or on the machine, every file that a key names.

use std::path::Path;

use cube_edge::{
    AccessLogSettings, AdminSettings, Certificate, CertificateError, ControlPlaneKeys, ControlPlaneSettings,
    Limits, PreviewSettings, ResponseCacheSettings, RoutingSettings, TlsSettings, TlsTrust, TrustFile,
    UpstreamSettings,
};
use cube_lifecycle::{RegistrySettings, ResumeSettings};
use cube_metadata::{RedisSettings, StoreKind, StoreSettings};

use super::check::{Check, Reads};
use super::path::KeyPath;
use super::source::{Broken, Fault};
use super::types::{Config, Dialect, Server};

/// What Pingora can take, whatever is configured (docs/architecture.md).
const PINGORA_HEAD: usize = 1 << 20;
const PINGORA_HEADERS: usize = 256;
const PINGORA_TARGET: usize = 64 << 10;
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

/// Checks everything, and fills in what follows from other keys, from files and from the machine; a
/// configuration with warnings, or everything that is wrong. `broken`: what could not be read.
pub(super) fn resolve(
    mut config: Config,
    base: &Path,
    machine: &Machine,
    reads: Reads,
    broken: &Broken,
) -> Result<(Config, Vec<String>), Vec<Fault>> {
    let mut check = Check { base, reads, broken, faults: Vec::new(), warnings: Vec::new() };
    let c = &mut check;
    let dialect = config.errors.dialect;
    tls(c, &mut config.tls);
    admin(c, &mut config.admin);
    listen(c, &mut config);
    upstream(&mut config.upstream, dialect);
    limits(c, &mut config.limits, dialect, config.upstream.pool_size, machine);
    config.control_plane = control_plane(c, &mut config.routing.control_plane);
    envd_control_from(c, &mut config.routing, dialect);
    config.errors.mask_existence.follow(dialect == Dialect::Cube);
    store(c, &mut config.store, &config.breaker.shared_set);
    cache(c, &config.cache);
    let exempt = if dialect == Dialect::E2b { vec![cube_route::Port::ENVD] } else { Vec::new() };
    config.traffic_token.exempt_ports.follow(exempt);
    previews(c, &config.previews);
    resume(c, &mut config.resume);
    registry(c, &mut config.registry, machine);
    breaker(c, &config.breaker);
    response_cache(c, &config.response_cache);
    access_log(c, &mut config.access_log);
    config.otlp = super::otlp::resolve(c, &mut config.tracing.otlp, machine);
    server(c, &mut config.server, machine);
    warn_of_balancers(c, &config);
    if config.registry.enabled && config.store.kind == StoreKind::File {
        c.warnings.push("registry.enabled: the file store has no registry; nothing is announced".to_owned());
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

fn tls(c: &mut Check, tls: &mut TlsSettings) {
    for (at, pair) in tls.certificates.iter_mut().enumerate() {
        c.locate(&mut pair.cert);
        c.locate(&mut pair.key);
        if !c.reads("tls") {
            continue;
        }
        match Certificate::read(pair) {
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
    }
}

fn admin(c: &mut Check, admin: &mut AdminSettings) {
    c.secret("admin.token", &mut admin.token, admin.token_file.as_mut());
}

fn listen(c: &mut Check, config: &mut Config) {
    if config.tls.certificates.is_empty() {
        config.listen.https.clear();
    }
    let (listen, admin) = (&config.listen, &config.admin);
    // Where the file cannot be read, that is what is wrong.
    let guarded = admin.token_file.is_some() || admin.token.is_some() || !c.sound(&["admin"]);
    let none = listen.http.is_empty() && listen.grpc.is_empty() && listen.https.is_empty();
    if none && c.sound(&["tls", "listen"]) {
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
}

/// Whether two listeners on one port would get each other's connections.
fn overlap(one: std::net::IpAddr, other: std::net::IpAddr) -> bool {
    let all = |any: std::net::IpAddr, other: std::net::IpAddr| {
        any.is_unspecified() && (any.is_ipv6() || other.is_ipv4())
    };
    one == other || all(one, other) || all(other, one)
}

fn envd_control_from(c: &mut Check, routing: &mut RoutingSettings, dialect: Dialect) {
    routing.envd_control_from.follow((dialect == Dialect::E2b).then(Vec::new));
    if routing.envd_control_from.is_none() {
        c.warnings.push(
            "routing.envd_control_from is null: everyone who reaches a sandbox may call envd's control \
             routes (/init, /freeze, ...); name the networks of the control plane"
                .to_owned(),
        );
    }
}

fn control_plane(c: &mut Check, keys: &mut ControlPlaneKeys) -> Option<ControlPlaneSettings> {
    if !c.sound(&["routing.control_plane"]) {
        return None;
    }
    let ControlPlaneKeys { url, ca_file, hosts } = keys;
    let Some(url) = url else {
        c.require("routing.control_plane.hosts", hosts.is_empty(), "there is no url for these hosts");
        c.require("routing.control_plane.ca_file", ca_file.is_none(), "there is no url to verify");
        return None;
    };
    c.require("routing.control_plane.hosts", !hosts.is_empty(), "with a url this names its hosts");
    let key = "routing.control_plane.url";
    let url = c.http_or_https_url(key, url)?;
    c.require(key, matches!(url.path(), "" | "/"), "requests go there unchanged, so it has no path");
    let host = url.host()?.trim_start_matches('[').trim_end_matches(']').to_owned();
    let https = url.scheme_str() == Some("https");
    let tls = trust(c, "routing.control_plane.ca_file", https, ca_file.as_mut());
    let port = url.port_u16().unwrap_or(if https { 443 } else { 80 });
    Some(ControlPlaneSettings { host, port, hosts: hosts.clone(), tls })
}

/// Who vouches for the other end, by the authorities that `key` names; `None`: it is spoken to without TLS.
pub(super) fn trust(
    c: &mut Check,
    key: &str,
    https: bool,
    ca_file: Option<&mut TrustFile>,
) -> Option<TlsTrust> {
    let Some(file) = ca_file else { return https.then(TlsTrust::system) };
    if !https {
        c.fault(key, "only an https url has a certificate to verify");
        return None;
    }
    c.locate(&mut file.path);
    if !c.reads(key) {
        return Some(TlsTrust::system());
    }
    match TlsTrust::from_file(&file.path) {
        Ok(trust) => file.trust = Some(trust),
        Err(error) => c.fault(key, error.to_string()),
    }
    file.trust.clone()
}

fn store(c: &mut Check, store: &mut StoreSettings, faulty_set: &str) {
    if store.kind == StoreKind::File {
        match &mut store.file {
            Some(path) => {
                c.locate(path);
                c.readable("store.file", path);
            }
            None => c.fault("store.file", "kind: file needs the path of the file here"),
        }
        return;
    }
    let redis = &mut store.redis;
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
    if let Some(path) = &mut redis.ca_file {
        c.locate(path);
        c.readable("store.redis.ca_file", path);
    }
    redis.username.take_if(|name| name.is_empty());
    c.secret("store.redis.password", &mut redis.password, redis.password_file.as_mut());
    c.secret(
        "store.redis.sentinel_password",
        &mut redis.sentinel_password,
        redis.sentinel_password_file.as_mut(),
    );
    // What only the client can judge: the rest of the URL, the certificates in ca_file.
    if c.reads("store")
        && c.sound(&["store", "breaker.shared_set"])
        && !faulty_set.is_empty()
        && c.faults.iter().all(|(path, _)| !KeyPath::dotted("store").holds(path))
        && let Err(error) = cube_metadata::RedisStore::check(&RedisSettings {
            faulty_set: faulty_set.to_owned(),
            ..redis.clone()
        })
    {
        let text = error.to_string();
        let (key, message) = text
            .split_once(": ")
            .filter(|(key, _)| key.starts_with("store.redis"))
            .unwrap_or(("store.redis", &text));
        c.fault(key, message);
    }
}

fn cache(c: &mut Check, settings: &cube_resolver::Settings) {
    let ordered = settings.ttl_min <= settings.ttl_max || !c.sound(&["cache.ttl_max"]);
    c.require("cache.ttl_min", ordered, "must not be longer than cache.ttl_max");
}

fn resume(c: &mut Check, resume: &mut ResumeSettings) {
    if let Some(file) = &mut resume.token_file {
        c.secret_file("resume.token_file", file);
        let good = file.secret().is_none_or(|token| token.expose().iter().all(u8::is_ascii_graphic));
        c.require("resume.token_file", good, "a bearer token is visible ASCII without spaces");
    }
    if let Some(url) = &mut resume.url
        && let Some(good) = c.http_url("resume.url", url)
    {
        *url = good.to_string().trim_end_matches('/').to_owned();
    }
}

fn previews(c: &mut Check, previews: &PreviewSettings) {
    if previews.path_cookie {
        c.warnings.push(
            "previews.path_cookie: the path form puts every sandbox into one origin, where a page of one sandbox \
             can use, overwrite and evict the cookies of another; for sandboxes that trust each other only"
                .to_owned(),
        );
    }
}

fn registry(c: &mut Check, registry: &mut RegistrySettings, machine: &Machine) {
    registry.proxy_id.follow(machine.host_name.clone());
    if !registry.enabled {
        return;
    }
    c.require("registry.proxy_id", !registry.proxy_id.is_empty(), "must not be empty");
    if registry.admin_url.is_none() {
        c.warnings.push("registry.admin_url is null: the manager cannot push to this replica".to_owned());
    }
}

fn breaker(c: &mut Check, settings: &cube_breaker::Settings) {
    let ordered = settings.open_min <= settings.open_max || !c.sound(&["breaker.open_max"]);
    c.require("breaker.open_min", ordered, "must not be longer than breaker.open_max");
    c.require("breaker.shared_set", !settings.shared_set.is_empty(), "must not be empty");
}

fn upstream(settings: &mut UpstreamSettings, dialect: Dialect) {
    let wait = if dialect == Dialect::E2b { std::time::Duration::from_secs(1) } else { Default::default() };
    settings.port_open_wait.follow(wait);
}

fn limits(c: &mut Check, limits: &mut Limits, dialect: Dialect, pool: usize, machine: &Machine) {
    let most = |c: &mut Check, key: &str, bytes: usize, most: usize| {
        c.require(key, bytes > 0, "must be more than 0");
        if bytes > most {
            c.fault(key, format!("Pingora takes no more than {} KiB", most >> 10));
        }
    };
    most(c, "limits.head", limits.head, PINGORA_HEAD);
    most(c, "limits.target", limits.target, PINGORA_TARGET);
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
}

fn response_cache(c: &mut Check, settings: &ResponseCacheSettings) {
    c.require(
        "response_cache.max_object",
        settings.max_object <= settings.memory || !c.sound(&["response_cache.memory"]),
        "must not be larger than response_cache.memory",
    );
    if settings.enabled && !settings.fits() {
        c.warnings.push(
            "response_cache.max_object: a response of that size is not stored, since with its head it takes \
             more than half of response_cache.memory"
                .to_owned(),
        );
    }
}

fn access_log(c: &mut Check, log: &mut AccessLogSettings) {
    log.path.take_if(|path| path.is_empty());
    if let Some(path) = log.path.as_mut().filter(|path| *path != "-") {
        *path = c.base.join(&*path).to_string_lossy().into_owned();
    }
}

fn server(c: &mut Check, server: &mut Server, machine: &Machine) {
    server.threads.follow(machine.cpus);
    c.require("server.threads", *server.threads <= 1024, "must be at most 1024");
    if let Some(path) = &mut server.run_dir {
        c.locate(path);
    }
}
