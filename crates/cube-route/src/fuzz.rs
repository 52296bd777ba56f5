//! What hostile bytes may not do to this crate, a function a target (fuzz/README.md).

use http::{HeaderMap, HeaderValue, Method, Version, header};

use crate::preview::{Ticket, TicketCheck, TicketPort, TicketVerdict, cookie, query};
use crate::{
    BadRequest, ClientHost, ListenerKind, ParsedRequest, Port, RequestHead, ResponseRewrite, RoutingForm,
    Rules, SandboxId, parse_request,
};

/// A Host: what it names is what a reader names that goes by the words of routing.md.
pub fn host(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Some(parsed) = ClientHost::parse(text) {
        assert!(text.bytes().all(|b| b.is_ascii_graphic()), "only plain ASCII passes");
        assert!(parsed.same(&parsed) && parsed.same_by_either_scheme(&parsed), "it is itself");
        let (label, domain) = parsed.labels();
        assert_eq!(domain.map_or(label.to_owned(), |domain| format!("{label}.{domain}")), parsed.name());
        let again =
            if text.starts_with('[') { format!("[{}]", parsed.name()) } else { parsed.name().to_owned() };
        assert!(ClientHost::parse(&again).is_some_and(|again| again.same_name(&parsed)), "{again}");
    }
    let Ok(value) = HeaderValue::from_bytes(data) else { return };
    let headers: HeaderMap = [(header::HOST, value)].into_iter().collect();
    for (domains, suffix) in [(&[][..], false), (&["cube.app"], false), (&["cube.app"], true)] {
        let domains: Vec<String> = domains.iter().map(ToString::to_string).collect();
        let Ok(rules) = Rules::new(&domains, suffix) else { return };
        let named = parse(&headers, b"/", &rules)
            .map(|parsed| parsed.target.map(|target| (target.port.get(), target.id.to_string())));
        let expected = named_by_host(text, &domains, suffix);
        match named {
            Ok(named) => assert_eq!(Ok(named), expected, "{text:?}"),
            Err(_) => assert_eq!(expected, Err(()), "{text:?}"),
        }
    }
}

/// The same by regular means: what the page says, a condition a line.
fn named_by_host(text: &str, domains: &[String], suffix: bool) -> Result<Option<(u16, String)>, ()> {
    let name =
        if text.starts_with('[') { return ClientHost::parse(text).map(|_| None).ok_or(()) } else { text };
    let (name, port) = name.split_once(':').unwrap_or((name, ""));
    if port.len() > 5
        || !port.bytes().all(|b| b.is_ascii_digit())
        || port.parse::<u32>().is_ok_and(|port| port > 65535)
    {
        return Err(());
    }
    let name = name.strip_suffix('.').unwrap_or(name);
    let labels: Vec<&str> = name.split('.').collect();
    let plain = |label: &&str| {
        !label.is_empty() && label.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b))
    };
    if !labels.iter().all(plain) {
        return Err(());
    }
    let Some((label, domain)) = labels.split_first() else { return Err(()) };
    let domain = domain.join(".");
    let Some((port, id)) = label.split_once('-') else { return Ok(None) };
    if port.is_empty() || !port.bytes().all(|b| b.is_ascii_digit()) {
        return Ok(None);
    }
    if !domains.is_empty() && !domains.iter().any(|known| known.eq_ignore_ascii_case(&domain)) {
        return Ok(None);
    }
    let id = id.split('-').next().filter(|_| suffix).unwrap_or(id).to_ascii_lowercase();
    match port.parse::<u16>() {
        Ok(number @ 1..) if !port.starts_with('0') && (1..=128).contains(&id.len()) => Ok(Some((number, id))),
        _ => Err(()),
    }
}

/// A request target: what goes on is what the client wrote, less the prefix, and can be no second request.
pub fn path(data: &[u8]) {
    let headers: HeaderMap = [(header::HOST, HeaderValue::from_static("localhost:80"))].into_iter().collect();
    let Ok(parsed) = parse(&headers, data, &Rules::default()) else { return };
    let origin_form = &*parsed.origin_form;
    assert!(data.ends_with(origin_form.strip_prefix(b"/").unwrap_or(origin_form)), "the client's bytes");
    assert!(!origin_form.iter().any(|b| *b <= b' ' || *b == 0x7f), "no byte that ends a request line");
    let Some(target) = &parsed.target else { return };
    assert_eq!(target.form, RoutingForm::Path);
    let sent = target.upstream_target(origin_form);
    assert_eq!(sent.first(), Some(&b'/'), "the sandbox gets a path");
    let prefix = target.prefix(origin_form).map(str::as_bytes);
    let rest = prefix.and_then(|prefix| origin_form.strip_prefix(prefix));
    assert!(
        rest.is_some_and(|rest| sent.ends_with(rest) && sent.len() <= rest.len() + 1),
        "all behind the prefix"
    );
    let written = prefix.map(<[u8]>::to_ascii_lowercase);
    assert_eq!(written.as_deref(), Some(target.path_prefix().as_bytes()), "the prefix is what was named");
}

fn parse<'a>(
    headers: &'a HeaderMap,
    target: &'a [u8],
    rules: &Rules,
) -> Result<ParsedRequest<'a>, BadRequest> {
    let head = RequestHead {
        version: Version::HTTP_11,
        method: &Method::GET,
        target,
        authority: None,
        headers,
        listener: ListenerKind::Data,
    };
    parse_request(&head, rules)
}

/// One way of rewriting a header's value.
type Rewriting<'a> = &'a dyn Fn(&[u8]) -> Option<Vec<u8>>;

/// The value of a response header, after a byte that says which one: what was moved stays when it is moved
/// again, leads under the prefix, and holds no line end that was not there.
pub fn response_headers(data: &[u8]) {
    let Some((which, value)) = data.split_first() else { return };
    let prefix = (which & 1 == 0).then_some("/sandbox/abc/8080");
    let upstream_host = if which & 2 == 0 { "localhost:8080" } else { "gw.test" };
    let rewrite = ResponseRewrite {
        prefix,
        client_host: "gw.test",
        client_scheme: "https",
        upstream_host,
        container_port: 8080,
    };
    let under = |moved: &[u8]| {
        let path = moved
            .strip_prefix(b"https://gw.test")
            .or_else(|| moved.strip_prefix(b"http://gw.test"))
            .unwrap_or(moved);
        prefix.is_none_or(|prefix| path.starts_with(prefix.as_bytes()) || !moved.starts_with(b"/"))
    };
    let functions: [Rewriting<'_>; 4] = [
        &|value| rewrite.location(value),
        &|value| rewrite.refresh(value),
        &|value| rewrite.set_cookie(value),
        &|value| rewrite.service_worker_allowed(value),
    ];
    for (at, function) in functions.into_iter().enumerate() {
        let Some(moved) = function(value) else { continue };
        assert_ne!(moved, value, "what stays is none");
        assert_eq!(function(&moved), None, "{at}: moved twice, {}", moved.escape_ascii());
        let ends = |text: &[u8]| text.iter().filter(|b| matches!(b, b'\r' | b'\n' | 0)).count();
        assert!(ends(&moved) <= ends(value), "a line end came in: {}", moved.escape_ascii());
        assert!(at != 0 || under(&moved), "beside the prefix: {}", moved.escape_ascii());
        if at == 2 {
            let attributes = moved.split(|b| *b == b';').skip(1);
            let domain = |part: &[u8]| {
                part.split(|b| *b == b'=')
                    .next()
                    .unwrap_or_default()
                    .trim_ascii()
                    .eq_ignore_ascii_case(b"domain")
            };
            assert!(!attributes.into_iter().any(domain), "a domain is left: {}", moved.escape_ascii());
        }
    }
    if let Some(prefix) = prefix {
        let scope = rewrite.service_worker_allowed(value).unwrap_or_else(|| value.to_vec());
        assert!(
            scope.starts_with(format!("{prefix}/").as_bytes()),
            "a scope beyond the prefix: {}",
            scope.escape_ascii()
        );
        assert!(!scope.split(|b| *b == b'/').any(|segment| segment == b".."), "a scope that climbs");
    }
}

/// What a request presents as tickets: none opens anything but the one text that was made, and nothing of
/// one is left in what goes on.
pub fn preview(data: &[u8]) {
    let Ok(id) = SandboxId::parse("abc") else { return };
    let Some(port) = Port::new(3000) else { return };
    let token = b"example-token-of-a-sandbox";
    let check =
        TicketCheck { id: &id, port, now: 1_000, max_ttl: 3_600, token: Some(token), stand_in: &[7; 32] };
    match check.judge(data) {
        TicketVerdict::Wrong => {}
        TicketVerdict::Right(_) | TicketVerdict::Expired => {
            let text = String::from_utf8_lossy(data);
            let expiry: u64 =
                text.split('.').nth(1).and_then(|expiry| expiry.parse().ok()).unwrap_or_default();
            let made =
                [TicketPort::Any, TicketPort::One(port)].map(|ports| Ticket::make(token, &id, ports, expiry));
            assert!(made.contains(&text.into_owned()), "a ticket has one spelling");
        }
    }
    if let Some((rest, _)) = query::take_parameter(data) {
        assert_eq!(query::take_parameter(&rest), None, "a parameter is left: {}", rest.escape_ascii());
        assert!(rest.len() < data.len() && (data.starts_with(b"/") == rest.starts_with(b"/")));
    }
    let location = query::location(data);
    assert!(!location.starts_with(b"//") && !location.starts_with(b"/\\"), "another site's address");
    if let Some(rest) = cookie::without_tickets(data) {
        assert_eq!(cookie::without_tickets(&rest), None, "a cookie is left: {}", rest.escape_ascii());
        for name in [cookie::HOST, cookie::SECURE, cookie::PLAIN] {
            assert_eq!(cookie::tickets(std::iter::once(&rest[..]), name).count(), 0);
        }
    } else {
        assert_eq!(
            cookie::tickets(std::iter::once(data), cookie::PLAIN).count(),
            0,
            "read, and not taken out"
        );
    }
    // What a browser would send back of a cookie that a sandbox sets.
    if !data.contains(&b';') && !cookie::sets_ticket(data) {
        let sent = data.strip_prefix(b"=").unwrap_or(data);
        assert_eq!(
            cookie::tickets(std::iter::once(sent), cookie::PLAIN).count(),
            0,
            "a sandbox set a ticket"
        );
    }
}

#[cfg(test)]
mod tests {
    use cube_fuzz::run_corpus;

    #[test]
    fn corpora_of_fuzzing() {
        run_corpus("host", super::host);
        run_corpus("path", super::path);
        run_corpus("response-headers", super::response_headers);
        run_corpus("preview", super::preview);
    }
}
