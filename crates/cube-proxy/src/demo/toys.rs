//! What runs in the demo's sandboxes: small web servers on loopback.

use std::convert::Infallible;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::extract::{Form, Request};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::sse::{Event, Sse};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{any, get, post};
use futures_util::Stream;

use super::ASLEEP;
use super::html::{escape, fill};

/// Shows the request it got; a form, a cookie that counts, a redirect.
pub(super) fn echo() -> Router {
    Router::new()
        .route("/cookie", get(count_visits))
        .route("/redirect", get(|| async { redirect("/landed?from=redirect") }))
        .route("/form", post(show_form))
        .fallback(any(|request: Request| async move {
            show(&request, "echo", "This is what the proxy passed on.")
        }))
}

/// A page with a WebSocket and a stream of events.
pub(super) fn live() -> Router {
    Router::new()
        .route("/", get(|| async { Html(fill(include_str!("live.html"), &[])) }))
        .route("/events", get(|| async { Sse::new(events()) }))
        .route("/ws", any(|upgrade: WebSocketUpgrade| async { upgrade.on_upgrade(talk) }))
}

/// What a request that woke its sandbox gets; the proxy holds it until then.
pub(super) fn asleep() -> Router {
    Router::new().fallback(any(|request: Request| async move {
        let note =
            "Good morning: this is the sandbox that slept. A request for it is held until it is awake.";
        show(&request, ASLEEP, note)
    }))
}

/// Answers whoever gets here; the proxy lets through only those with the token.
pub(super) fn private() -> Router {
    Router::new().fallback(any(|| async { "You have the token: this is the private sandbox.\n" }))
}

fn redirect(to: &'static str) -> Response {
    (StatusCode::FOUND, [(header::LOCATION, to)], "see Location\n").into_response()
}

fn wants_html(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
    accept.is_some_and(|accept| accept.contains("text/html"))
}

/// Where this sandbox lies for the client: the prefix of the path form, or nothing.
fn prefix(headers: &HeaderMap) -> &str {
    headers.get("x-forwarded-prefix").and_then(|value| value.to_str().ok()).unwrap_or_default()
}

/// The request as it arrived, for a browser or for a terminal.
fn show<B>(request: &axum::http::Request<B>, name: &str, note: &str) -> Response {
    let headers = request.headers();
    let line = format!("{} {} {:?}", request.method(), request.uri(), request.version());
    let pairs: Vec<(String, String)> = headers
        .iter()
        .map(|(name, value)| (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned()))
        .collect();
    if !wants_html(headers) {
        let lines: String = pairs.iter().map(|(name, value)| format!("{name}: {value}\n")).collect();
        return format!("{note}\n\n{line}\n{lines}").into_response();
    }
    let rows: String = pairs
        .iter()
        .map(|(name, value)| format!("<tr><td>{}</td><td>{}</td></tr>", escape(name), escape(value)))
        .collect();
    let things = if name == "echo" { include_str!("things.html") } else { "" };
    let values = [
        ("things", things),
        ("name", &*escape(name)),
        ("note", &*escape(note)),
        ("prefix", &*escape(prefix(headers))),
        ("line", &*escape(&line)),
        ("headers", &*rows),
    ];
    Html(fill(include_str!("echo.html"), &values)).into_response()
}

async fn show_form(headers: HeaderMap, Form(fields): Form<Vec<(String, String)>>) -> Response {
    let fields: Vec<String> = fields.iter().map(|(name, value)| format!("{name} = {value:?}")).collect();
    let mut request = axum::http::Request::new(Body::empty());
    *request.method_mut() = axum::http::Method::POST;
    *request.uri_mut() = axum::http::Uri::from_static("/form");
    *request.headers_mut() = headers;
    show(&request, "echo", &format!("The form said: {}.", fields.join(", ")))
}

async fn count_visits(request: Request) -> Response {
    let cookies = request.headers().get(header::COOKIE).and_then(|value| value.to_str().ok());
    let before = cookies
        .into_iter()
        .flat_map(|cookies| cookies.split(';'))
        .find_map(|cookie| cookie.trim().strip_prefix("visits=")?.parse::<u32>().ok())
        .unwrap_or(0);
    let visits = before.saturating_add(1);
    let mut response = show(&request, "echo", &format!("Visits with this cookie: {visits}."));
    if let Ok(cookie) = format!("visits={visits}; Path=/; SameSite=Lax").parse() {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    response
}

/// One event at once, then one a second for as long as somebody listens.
fn events() -> impl Stream<Item = Result<Event, Infallible>> {
    let ticks = tokio::time::interval(Duration::from_secs(1));
    futures_util::stream::unfold((ticks, 1_u64), |(mut ticks, number)| async move {
        ticks.tick().await;
        Some((Ok(Event::default().data(format!("event {number}"))), (ticks, number + 1)))
    })
}

/// Greets, counts the seconds, and says again what it is told.
async fn talk(mut socket: WebSocket) {
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    let mut seconds = 0_u64;
    loop {
        let text = tokio::select! {
            message = socket.recv() => match message {
                Some(Ok(Message::Text(text))) => format!("you said: {text}"),
                Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Binary(_))) => continue,
                Some(Ok(Message::Close(_)) | Err(_)) | None => return,
            },
            _ = ticks.tick() => {
                seconds += 1;
                if seconds == 1 { "hello from the sandbox".to_owned() } else { format!("{} s", seconds - 1) }
            }
        };
        if socket.send(Message::Text(text.into())).await.is_err() {
            return;
        }
    }
}
