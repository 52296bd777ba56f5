//! A WebSocket client.

use std::net::SocketAddr;

use futures_util::{SinkExt, StreamExt};
use rustls_pki_types::CertificateDer;
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{Error, Message};

use crate::client::Io;
use crate::{tls, within};

/// An open WebSocket.
pub struct WebSocket {
    stream: WebSocketStream<Box<dyn Io>>,
    /// The response to the handshake.
    pub handshake: http::Response<Option<Vec<u8>>>,
}

impl WebSocket {
    /// Shakes hands; `headers` replace those of the library.
    ///
    /// # Errors
    /// [`Error::Http`] with the response when it is no 101.
    pub async fn open(address: SocketAddr, target: &str, headers: &[(&str, &str)]) -> Result<Self, Error> {
        let stream = within("a connection", TcpStream::connect(address)).await?;
        stream.set_nodelay(true)?;
        Self::over(Box::new(stream), &format!("ws://{address}{target}"), headers).await
    }

    /// The same over TLS with ALPN `http/1.1`; `name` is asked for in SNI and checked.
    ///
    /// # Errors
    /// [`Error::Http`] with the response when it is no 101.
    pub async fn open_tls(
        address: SocketAddr,
        root: &CertificateDer<'static>,
        name: &str,
        host: &str,
    ) -> Result<Self, Error> {
        let stream = tls::connect(address, root, name, &["http/1.1"]).await;
        Self::over(Box::new(stream), &format!("wss://{host}/"), &[]).await
    }

    async fn over(stream: Box<dyn Io>, url: &str, headers: &[(&str, &str)]) -> Result<Self, Error> {
        let mut request = url.into_client_request()?;
        for (name, value) in headers {
            let name: http::HeaderName = name.parse().expect("a header name");
            request.headers_mut().insert(name, value.parse().expect("a header value"));
        }
        let handshake = tokio_tungstenite::client_async(request, stream);
        let (stream, handshake) = within("the handshake", handshake).await?;
        Ok(Self { stream, handshake })
    }

    /// Sends a message.
    pub async fn send(&mut self, message: impl Into<Message>) {
        within("a message to go", self.stream.send(message.into())).await.expect("an open WebSocket");
    }

    /// The next message; `None` at the end, clean or not.
    pub async fn next(&mut self) -> Option<Result<Message, Error>> {
        within("a message", self.stream.next()).await
    }

    /// Sends text and takes what comes back.
    pub async fn say(&mut self, text: &str) -> String {
        self.send(text).await;
        self.next().await.expect("a response").expect("a response").into_text().expect("text").to_string()
    }

    /// Closes and waits for the other side's close frame.
    pub async fn close(mut self) {
        within("the close", self.stream.close(None)).await.expect("a close frame sent");
        let last = self.next().await.expect("a close frame").expect("a close frame");
        assert!(last.is_close(), "a close frame, not {last:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Origin, scripts};

    #[tokio::test]
    async fn messages_come_back_and_the_close_is_answered() {
        let origin = Origin::scripted(scripts::websocket).await;
        let mut socket = WebSocket::open(origin.address(), "/ws?a", &[("Host", "own")]).await.unwrap();
        assert_eq!(socket.say("hello").await, "hello");
        socket.close().await;
        assert_eq!(
            (origin.last().target.as_str(), origin.last().headers.get("host")),
            ("/ws?a", Some("own"))
        );
    }

    #[tokio::test]
    async fn a_refusal_is_an_error_with_its_response() {
        let origin = Origin::replying(403, &[], "no").await;
        let refused = WebSocket::open(origin.address(), "/", &[]).await.err();
        assert!(matches!(refused, Some(Error::Http(response)) if response.status() == 403));
    }
}
