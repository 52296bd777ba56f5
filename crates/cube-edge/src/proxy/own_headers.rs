//! The headers that the proxy sets itself, and how their names are spelled in HTTP/1.1.

use http::{HeaderName, HeaderValue};
use pingora::Result;
use pingora::http::{RequestHeader, ResponseHeader};

pub(crate) static X_CUBE_REQUEST_ID: HeaderName = HeaderName::from_static("x-cube-request-id");
pub(crate) static X_CUBE_RETCODE: HeaderName = HeaderName::from_static("x-cube-retcode");
pub(crate) static X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
pub(crate) static X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
pub(crate) static X_FORWARDED_PREFIX: HeaderName = HeaderName::from_static("x-forwarded-prefix");
pub(crate) static X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
pub(crate) static X_REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");

/// How a name is spelled where it is one that the proxy sets, or that Pingora spells for HTTP/2 clients.
pub(crate) fn spelling(name: &HeaderName) -> Option<&'static str> {
    Some(match name.as_str() {
        "cache-control" => "Cache-Control",
        "connection" => "Connection",
        "content-encoding" => "Content-Encoding",
        "content-length" => "Content-Length",
        "content-type" => "Content-Type",
        "date" => "Date",
        "host" => "Host",
        "te" => "TE",
        "transfer-encoding" => "Transfer-Encoding",
        "x-cube-cache" => "X-Cube-Cache",
        "x-cube-request-id" => "X-Cube-Request-Id",
        "x-cube-retcode" => "X-Cube-Retcode",
        "x-forwarded-for" => "X-Forwarded-For",
        "x-forwarded-host" => "X-Forwarded-Host",
        "x-forwarded-prefix" => "X-Forwarded-Prefix",
        "x-forwarded-proto" => "X-Forwarded-Proto",
        "x-real-ip" => "X-Real-IP",
        _ => return None,
    })
}

/// A header to set; without a value it is left as it is.
pub(crate) type Field = (&'static HeaderName, Option<HeaderValue>);

/// Sets headers of a request, each in place of all of its name. The map of a head that keeps no spelling
/// beside its names is taken out and put back: set one by one, each name would be parsed anew.
///
/// # Errors
/// None of the headers that are set is refused.
pub(crate) fn set_in_request<const N: usize>(request: &mut RequestHeader, fields: [Field; N]) -> Result<()> {
    if request.has_case() {
        for (name, value) in fields {
            if let Some(value) = value {
                request.insert_header(spelling(name).unwrap_or(name.as_str()), value)?;
            }
        }
        return Ok(());
    }
    // What the URI does not say of the target is lost on the way.
    let said = request.uri.path_and_query().map(|target| target.as_str().as_bytes());
    let target = (said != Some(request.raw_path())).then(|| request.raw_path().to_vec());
    let (empty, ()) = http::Request::new(()).into_parts();
    let mut parts = http::request::Parts::from(std::mem::replace(request, empty.into()));
    for (name, value) in fields {
        if let Some(value) = value {
            parts.headers.insert(name, value);
        }
    }
    *request = parts.into();
    target.map_or(Ok(()), |target| request.set_raw_path(&target))
}

/// As [`set_in_request`], of a response.
///
/// # Errors
/// None of the headers that are set is refused.
pub(crate) fn set_in_response<const N: usize>(
    response: &mut ResponseHeader,
    fields: [Field; N],
) -> Result<()> {
    if response.has_case() {
        for (name, value) in fields {
            if let Some(value) = value {
                response.insert_header(spelling(name).unwrap_or(name.as_str()), value)?;
            }
        }
        return Ok(());
    }
    // A reason phrase that is not the usual one is lost on the way.
    let usual = response.status.canonical_reason();
    let reason = response.get_reason_phrase().filter(|reason| Some(*reason) != usual).map(str::to_owned);
    let (empty, ()) = http::Response::new(()).into_parts();
    let mut parts = http::response::Parts::from(std::mem::replace(response, empty.into()));
    for (name, value) in fields {
        if let Some(value) = value {
            parts.headers.insert(name, value);
        }
    }
    *response = parts.into();
    reason.map_or(Ok(()), |reason| response.set_reason_phrase(Some(&reason)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(name: &'static HeaderName, value: &'static str) -> Field {
        (name, Some(HeaderValue::from_static(value)))
    }

    #[test]
    fn a_head_keeps_its_target_and_its_reason_and_gets_the_headers_whether_it_keeps_spellings_or_not() {
        let build = [RequestHeader::build, RequestHeader::build_no_case];
        for (build, target) in build
            .iter()
            .flat_map(|build| [&b"/a?b"[..], b"*", b"http://host/a", b"/\xff"].map(|target| (build, target)))
        {
            let mut request = build("GET", target, None).unwrap();
            request.insert_header("x-real-ip", "theirs").unwrap();
            set_in_request(&mut request, [field(&X_REAL_IP, "ours"), (&X_FORWARDED_FOR, None)]).unwrap();
            assert_eq!(request.raw_path(), target);
            assert_eq!(request.headers.len(), 1);
            assert_eq!(request.headers["x-real-ip"], "ours");
        }
        for mut response in
            [ResponseHeader::build(200, None).unwrap(), ResponseHeader::build_no_case(200, None).unwrap()]
        {
            response.set_reason_phrase(Some("Fine")).unwrap();
            set_in_response(&mut response, [field(&X_CUBE_RETCODE, "310200")]).unwrap();
            assert_eq!((response.get_reason_phrase(), response.status.as_u16()), (Some("Fine"), 200));
            assert_eq!(response.headers["x-cube-retcode"], "310200");
        }
    }

    #[test]
    fn what_is_set_is_spelled_as_usual() {
        let mut request = RequestHeader::build("GET", b"/", None).unwrap();
        set_in_request(&mut request, [field(&X_REAL_IP, "::1")]).unwrap();
        let mut wire = Vec::new();
        request.header_to_h1_wire(&mut wire);
        assert_eq!(wire, b"X-Real-IP: ::1\r\n");
    }
}
