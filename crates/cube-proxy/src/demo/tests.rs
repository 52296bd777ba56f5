use std::io::Read;
use std::net::TcpStream;
use std::time::Duration;

use cube_metadata::SandboxState;
use cube_route::SandboxId;

use super::*;

fn demo() -> DemoParts {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    start(&Options { port }).unwrap()
}

fn id(text: &str) -> SandboxId {
    SandboxId::parse(text).unwrap()
}

/// The response of a toy, asked without the proxy.
fn ask(parts: &DemoParts, sandbox: &str, request: &str) -> String {
    let fields = parts._runtime.block_on(parts.store.get(&id(sandbox))).unwrap().unwrap();
    let port: u16 = fields["8080"].parse().unwrap();
    talk(port, request)
}

fn talk(port: u16, request: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    response
}

fn get(path: &str, more: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: x.test\r\nConnection: close\r\n{more}\r\n")
}

#[test]
fn four_sandboxes_are_in_the_store() {
    let parts = demo();
    let store = &parts.store;
    let mut ids: Vec<String> =
        parts._runtime.block_on(store.list()).unwrap().iter().map(ToString::to_string).collect();
    ids.sort();
    assert_eq!(ids, ["asleep", "echo", "live", "private"]);
    let record = |name: &str| parts._runtime.block_on(store.fetch(&id(name))).unwrap().record.unwrap();
    assert_eq!(record("asleep").status, Some(cube_metadata::Status::Known(SandboxState::Paused)));
    assert!(matches!(record("private").access, cube_metadata::Access::Token(_)));
    assert!(matches!(record("echo").access, cube_metadata::Access::Public));
    assert_eq!(record("echo").warnings().count(), 0);
}

#[test]
fn the_configuration_puts_the_page_at_the_plain_address() {
    let parts = demo();
    let plane = parts.config.control_plane.as_ref().unwrap();
    assert_eq!(plane.hosts, ["127.0.0.1", "localhost"]);
    let page = talk(plane.port, &get("/", ""));
    assert!(page.starts_with("HTTP/1.1 200") && page.contains("/sandbox/live/8080/ws"), "{page}");
    assert!(page.contains(&format!("8080-echo.localhost:{}", parts.ports.http)), "{page}");
    assert!(!page.contains("{{"), "a place of the template was left empty");
    for outside in ["https://", "src=", "@import", "url("] {
        assert!(!page.contains(outside), "the page is to be whole in itself: {outside}");
    }
    crate::bind::check(&parts.config.listen, &[]).unwrap();
}

#[test]
fn names_are_the_same_in_the_store_on_the_page_in_the_commands_and_in_the_documents() {
    let parts = demo();
    let plane = parts.config.control_plane.as_ref().unwrap();
    let page = talk(plane.port, &get("/", ""));
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/quick-start.md");
    let docs = std::fs::read_to_string(docs).unwrap();
    for name in SANDBOXES {
        assert!(parts._runtime.block_on(parts.store.get(&id(name))).unwrap().is_some(), "{name}");
        assert!(page.contains(&format!("<code>{name}</code>")), "the page has no {name}");
        assert!(page.contains(&format!("data-state=\"{name}\"")), "the page shows no state of {name}");
        assert!(docs.contains(&format!("`{name}`")), "docs/quick-start.md has no {name}");
        let named =
            |host: &str| host.contains(&format!("8080-{name}.")) || host.contains(&format!("/{name}/"));
        assert!(samples(parts.ports).iter().any(|sample| named(&sample.command)), "no command has {name}");
    }
    for SampleCommand { what, .. } in samples(parts.ports) {
        assert!(page.contains(&html::escape(what)), "the page has no {what:?}");
    }
    let Ports { http, admin, metrics } = parts.ports;
    for link in
        [format!("{metrics}/metrics"), format!("{admin}/admin/healthz"), format!("-asleep.localhost:{http}/")]
    {
        assert!(page.contains(&link), "no link to {link}");
        assert!(link.contains("asleep") || parts.banner.contains(&link), "{}", parts.banner);
    }
}

#[test]
fn the_manager_takes_a_second_to_wake_a_sandbox_and_knows_no_others() {
    let parts = demo();
    let resume = parts.config.resume.url.as_ref().unwrap().parse::<http::Uri>().unwrap().port_u16().unwrap();
    let call = |id: &str| {
        let began = std::time::Instant::now();
        let path = format!("/internal/resume?sandbox_id={id}&request_id=r1");
        let response = talk(resume, &get(&path, "Content-Length: 0\r\n").replacen("GET", "POST", 1));
        (response, began.elapsed())
    };
    let (response, took) = call("asleep");
    assert!(response.starts_with("HTTP/1.1 200") && took >= Duration::from_secs(1), "{took:?} {response}");
    assert!(call("nobody").0.starts_with("HTTP/1.1 404"));
}

#[test]
fn a_taken_port_is_passed_over_and_said() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let parts = start(&Options { port }).unwrap();
    assert_ne!(parts.ports.http, port);
    assert!(parts.banner.starts_with(&format!("Port {port} is taken; this is {}", parts.ports.http)));
    assert!(!demo().banner.contains("taken"));
}

#[test]
fn every_command_names_the_ports_that_were_found() {
    let parts = demo();
    for SampleCommand { what, command, .. } in samples(parts.ports) {
        assert!(parts.banner.contains(&command), "{what}");
        let ports = [parts.ports.http, parts.ports.admin, parts.ports.metrics];
        assert!(ports.iter().any(|port| command.contains(&format!(":{port}"))), "{what}: {command}");
        assert!(command.starts_with("curl ") && !command.contains('\n'), "{what}: {command}");
    }
}

#[test]
fn echo_shows_what_it_got_to_terminals_and_browsers() {
    let parts = demo();
    let text = ask(&parts, "echo", &get("/a%20b?x=1", "X-Thing: <i>\r\n"));
    assert!(text.contains("GET /a%20b?x=1 HTTP/1.1\n") && text.contains("x-thing: <i>\n"), "{text}");
    let more = "Accept: text/html\r\nX-Thing: <i>\r\nX-Forwarded-Prefix: /sandbox/echo/8080\r\n";
    let page = ask(&parts, "echo", &get("/", more));
    assert!(page.contains("&lt;i&gt;") && !page.contains("<i>"), "{page}");
    assert!(page.contains("href=\"/sandbox/echo/8080/cookie\""), "{page}");
}

#[test]
fn echo_redirects_counts_visits_and_reads_forms() {
    let parts = demo();
    let moved = ask(&parts, "echo", &get("/redirect", ""));
    assert!(moved.starts_with("HTTP/1.1 302") && moved.contains("location: /landed"), "{moved}");
    let again = ask(&parts, "echo", &get("/cookie", "Cookie: a=b; visits=4\r\n"));
    assert!(again.contains("set-cookie: visits=5; Path=/"), "{again}");
    let body = "word=a%26b&other=c";
    let form = format!(
        "POST /form HTTP/1.1\r\nHost: x.test\r\nConnection: close\r\nContent-Length: {}\r\n\
         Content-Type: application/x-www-form-urlencoded\r\n\r\n{body}",
        body.len()
    );
    let response = ask(&parts, "echo", &form);
    assert!(response.contains("word = \"a&b\", other = \"c\""), "{response}");
}

#[test]
fn live_streams_events_as_they_happen() {
    let parts = demo();
    let fields = parts._runtime.block_on(parts.store.get(&id("live"))).unwrap().unwrap();
    let mut stream = TcpStream::connect(("127.0.0.1", fields["8080"].parse().unwrap())).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream.write_all(get("/events", "").as_bytes()).unwrap();
    let (mut seen, mut piece) = (String::new(), [0; 1024]);
    while !seen.contains("data: event 2") {
        let length = stream.read(&mut piece).unwrap();
        assert!(length > 0, "{seen}");
        seen.push_str(&String::from_utf8_lossy(&piece[..length]));
    }
    assert!(seen.contains("text/event-stream"), "{seen}");
}
