//! `/files`: a file up or down as plain bytes, in a form, or compressed.

use std::io::{self, Read, Write};

use bytes::Bytes;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use memchr::memmem;
use serde_json::json;

use super::tree::Tree;
use crate::Exchange;
use crate::origin::ExchangeResult;

/// A piece of a compressed response, which has no length in its head.
const PIECE: usize = 32 * 1024;
const BYTES: &str = "application/octet-stream";

/// GET: the file, compressed if the client asks for that and nothing else.
pub(super) async fn download(mut exchange: Exchange, tree: &Tree) -> ExchangeResult {
    let path = path(&exchange).unwrap_or_default();
    let Some(content) = tree.read(&path) else {
        let body = json!({ "code": 404, "message": format!("path '{path}' does not exist") });
        return exchange.reply(404, &[("Content-Type", "application/json")], body.to_string()).await;
    };
    if exchange.request.headers.get("accept-encoding") != Some("gzip") {
        return exchange.reply(200, &[("Content-Type", BYTES)], content).await;
    }
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(&content)?;
    let headers = [("Content-Type", BYTES), ("Content-Encoding", "gzip"), ("Transfer-Encoding", "chunked")];
    exchange.start(200, &headers).await?;
    for piece in gzip.finish()?.chunks(PIECE) {
        exchange.chunk(piece).await?;
    }
    exchange.end().await
}

/// POST: the body is the file, or a form with one or more of them.
pub(super) async fn upload(mut exchange: Exchange, tree: &Tree) -> ExchangeResult {
    let mut body = Vec::new();
    loop {
        let piece = exchange.piece().await?;
        if piece.is_empty() {
            break;
        }
        body.extend_from_slice(&piece);
    }
    let header = |name| exchange.request.headers.get(name).unwrap_or_default();
    if header("content-encoding") == "gzip" {
        let mut plain = Vec::new();
        GzDecoder::new(body.as_slice()).read_to_end(&mut plain)?;
        body = plain;
    }
    let body = Bytes::from(body);
    let named = path(&exchange);
    let files = match header("content-type").split_once("boundary=") {
        Some((_, boundary)) => parts(&body, boundary.trim_matches('"'))?,
        None => vec![(String::new(), body)],
    };
    let written: Vec<_> = files
        .into_iter()
        .map(|(name, content)| tree.write(named.as_deref().unwrap_or(&name), content))
        .collect();
    exchange.reply(200, &[("Content-Type", "application/json")], json!(written).to_string()).await
}

/// `path` in the query.
fn path(exchange: &Exchange) -> Option<String> {
    let (_, query) = exchange.request.target.split_once('?')?;
    url::form_urlencoded::parse(query.as_bytes())
        .find_map(|(name, value)| (name == "path").then(|| value.into_owned()))
}

/// The files of a form: name and content.
fn parts(body: &Bytes, boundary: &str) -> io::Result<Vec<(String, Bytes)>> {
    let wrong = || io::Error::new(io::ErrorKind::InvalidData, "not a form");
    let delimiter = format!("\r\n--{boundary}");
    let ends: Vec<usize> = memmem::find_iter(body, delimiter.as_bytes()).collect();
    let mut from = delimiter.len(); // the first delimiter has no line end before it
    let mut files = Vec::new();
    for end in ends {
        let part = body.slice(from.min(end)..end);
        let head = memmem::find(&part, b"\r\n\r\n").ok_or_else(wrong)?;
        let fields = String::from_utf8_lossy(&part[..head]).into_owned();
        let name = fields.split_once("filename=\"").and_then(|(_, rest)| rest.split('"').next());
        files.push((name.unwrap_or_default().to_owned(), part.slice(head + 4..)));
        from = end + delimiter.len() + 2;
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_is_taken_apart_into_its_files() {
        let body = "--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"/a\"\r\n\r\none\r\n\r\n\
            --x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"b\"\r\nContent-Type: a/b\r\n\r\n\r\n--x--\r\n";
        let files = parts(&Bytes::from_static(body.as_bytes()), "x").unwrap();
        assert_eq!(
            files,
            [("/a".to_owned(), Bytes::from_static(b"one\r\n")), ("b".to_owned(), Bytes::new())]
        );
    }
}
