//! The header of the PROXY protocol, by which a layer-4 balancer says whose connection it passes on
//! (fleet.md, "Behind a layer-4 balancer").

use std::io;
use std::net::SocketAddr;

use ppp::{v1, v2};
use tokio::net::TcpStream;

/// The bytes by which the two versions are told apart: the whole signature of version 2, and less than the
/// shortest header of version 1.
const SIGNATURE: usize = 12;
/// Signature, version, command, family and length of version 2.
const V2_FIXED: usize = 16;
/// The most bytes of a header of version 1, line end included.
const V1_MOST: usize = 107;
/// The most bytes of a header of version 2, its TLVs included.
const V2_MOST: usize = 4096;

/// Why a connection that has to begin with a header does not.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum HeaderError {
    /// It ended before its first byte: a balancer that looks whether somebody listens.
    Empty,
    /// What came is no header, or not one that is taken here.
    Malformed,
}

/// Reads the header, and no byte behind it. `None`: the connection is the balancer's own.
///
/// # Errors
/// [`HeaderError`] when there is none.
pub(super) async fn read(tcp: &TcpStream) -> Result<Option<SocketAddr>, HeaderError> {
    let mut bytes = Vec::with_capacity(V1_MOST);
    if let Err(error) = fill(tcp, &mut bytes, SIGNATURE).await {
        tracing::debug!(%error, "no header of the PROXY protocol");
        return Err(if bytes.is_empty() { HeaderError::Empty } else { HeaderError::Malformed });
    }
    if bytes.starts_with(b"PROXY ") {
        read_line(tcp, &mut bytes).await.map_err(|_| HeaderError::Malformed)?;
        return source_of_v1(&bytes);
    }
    if bytes != b"\r\n\r\n\0\r\nQUIT\n" {
        return Err(HeaderError::Malformed);
    }
    fill(tcp, &mut bytes, V2_FIXED).await.map_err(|_| HeaderError::Malformed)?;
    let length = bytes.last_chunk::<2>().map_or(0, |length| usize::from(u16::from_be_bytes(*length)));
    if V2_FIXED + length > V2_MOST {
        return Err(HeaderError::Malformed);
    }
    fill(tcp, &mut bytes, V2_FIXED + length).await.map_err(|_| HeaderError::Malformed)?;
    source_of_v2(&bytes)
}

/// Reads until there are so many bytes.
async fn fill(tcp: &TcpStream, bytes: &mut Vec<u8>, wanted: usize) -> io::Result<()> {
    while let Some(missing) = wanted.checked_sub(bytes.len()).filter(|missing| *missing > 0) {
        let mut piece = vec![0; missing];
        tcp.readable().await?;
        match tcp.try_read(&mut piece) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => bytes.extend(piece.into_iter().take(read)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Reads up to the end of a line, and not beyond: what follows is TLS or HTTP.
async fn read_line(tcp: &TcpStream, bytes: &mut Vec<u8>) -> io::Result<()> {
    while !bytes.ends_with(b"\n") {
        let Some(left) = V1_MOST.checked_sub(bytes.len()).filter(|left| *left > 0) else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        let mut waiting = vec![0; left];
        let there = tcp.peek(&mut waiting).await?;
        let line = waiting.iter().take(there).position(|byte| *byte == b'\n').map_or(there, |at| at + 1);
        if line == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let wanted = bytes.len() + line;
        fill(tcp, bytes, wanted).await?;
    }
    Ok(())
}

fn source_of_v1(bytes: &[u8]) -> Result<Option<SocketAddr>, HeaderError> {
    match v1::Header::try_from(bytes).map_err(|_| HeaderError::Malformed)?.addresses {
        v1::Addresses::Unknown => Ok(None),
        v1::Addresses::Tcp4(tcp) => Ok(Some((tcp.source_address, tcp.source_port).into())),
        v1::Addresses::Tcp6(tcp) => Ok(Some((tcp.source_address, tcp.source_port).into())),
    }
}

fn source_of_v2(bytes: &[u8]) -> Result<Option<SocketAddr>, HeaderError> {
    let header = v2::Header::try_from(bytes).map_err(|_| HeaderError::Malformed)?;
    if header.command == v2::Command::Local {
        return Ok(None);
    }
    if header.protocol == v2::Protocol::Datagram {
        return Err(HeaderError::Malformed);
    }
    match header.addresses {
        v2::Addresses::Unspecified | v2::Addresses::Unix(_) => Ok(None),
        v2::Addresses::IPv4(ip) => Ok(Some((ip.source_address, ip.source_port).into())),
        v2::Addresses::IPv6(ip) => Ok(Some((ip.source_address, ip.source_port).into())),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    use super::*;

    /// What is read of `pieces`, each sent when the one before was taken, and what is left behind it.
    async fn read_of(pieces: &[&[u8]]) -> (Result<Option<SocketAddr>, HeaderError>, Vec<u8>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (server, _) = listener.accept().await.unwrap();
        client.set_nodelay(true).unwrap();
        let pieces: Vec<Vec<u8>> = pieces.iter().map(|piece| piece.to_vec()).collect();
        let sending = tokio::spawn(async move {
            for piece in pieces {
                client.write_all(&piece).await.unwrap();
                tokio::task::yield_now().await;
            }
        });
        let found = read(&server).await;
        sending.await.unwrap();
        let mut rest = Vec::new();
        let _ = fill(&server, &mut rest, 1 << 16).await;
        (found, rest)
    }

    fn v2(command: u8, family: u8, body: &[u8]) -> Vec<u8> {
        let length = u16::try_from(body.len()).unwrap().to_be_bytes();
        [&b"\r\n\r\n\0\r\nQUIT\n"[..], &[0x20 | command, family], &length, body].concat()
    }

    fn in4(port: u16) -> Vec<u8> {
        [&[192, 0, 2, 7, 10, 0, 0, 1][..], &port.to_be_bytes(), &443_u16.to_be_bytes()].concat()
    }

    fn in6(port: u16) -> Vec<u8> {
        let source: std::net::Ipv6Addr = "2001:db8::7".parse().unwrap();
        [&source.octets()[..], &source.octets(), &port.to_be_bytes(), &443_u16.to_be_bytes()].concat()
    }

    #[tokio::test]
    async fn both_versions_name_the_source_and_what_follows_is_left() {
        let with_tlv = [in4(1234), vec![0x04, 0, 3, 1, 2, 3]].concat();
        let unix = vec![0; 216];
        for (header, source) in [
            (b"PROXY TCP4 192.0.2.7 10.0.0.1 1234 443\r\n".to_vec(), Some("192.0.2.7:1234")),
            (b"PROXY TCP6 2001:db8::7 2001:db8::1 1234 443\r\n".to_vec(), Some("[2001:db8::7]:1234")),
            (b"PROXY UNKNOWN\r\n".to_vec(), None),
            (b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n".to_vec(), None),
            (v2(1, 0x11, &in4(1234)), Some("192.0.2.7:1234")),
            (v2(1, 0x21, &in6(1234)), Some("[2001:db8::7]:1234")),
            (v2(1, 0x11, &with_tlv), Some("192.0.2.7:1234")),
            (v2(1, 0x31, &unix), None),
            (v2(1, 0x00, &[]), None),
            (v2(0, 0x00, &[]), None),
            (v2(0, 0x11, &in4(1)), None),
        ] {
            let source = source.map(|source| source.parse().unwrap());
            let whole = [&header[..], b"GET / HTTP/1.1\r\n"].concat();
            assert_eq!(read_of(&[&whole]).await, (Ok(source), b"GET / HTTP/1.1\r\n".to_vec()));
            let bytes: Vec<&[u8]> = whole.chunks(1).collect();
            assert_eq!(read_of(&bytes).await, (Ok(source), b"GET / HTTP/1.1\r\n".to_vec()), "byte by byte");
        }
    }

    #[tokio::test]
    async fn what_is_no_header_is_refused() {
        let long = format!("PROXY TCP4 {} 10.0.0.1 1 2\r\n", "1".repeat(120));
        for bytes in [
            &b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"[..],
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\x00\x00",
            b"PROXY",
            b"PROXY TCP4 192.0.2.7 10.0.0.1 1234\r\n",
            b"PROXY TCP4 2001:db8::7 10.0.0.1 1234 443\r\n",
            b"PROXY UDP4 192.0.2.7 10.0.0.1 1234 443\r\n",
            b"PROXY TCP4 192.0.2.7 10.0.0.1 1234 443\n",
            long.as_bytes(),
            &v2(1, 0x12, &in4(1)),
            &v2(1, 0x11, &in4(1)[..10]),
            &v2(1, 0x21, &in4(1)),
            &v2(2, 0x11, &in4(1)),
            &v2(1, 0x11, &vec![0; V2_MOST]),
            &v2(1, 0x11, &in4(1))[..20],
        ] {
            assert_eq!(read_of(&[bytes]).await.0, Err(HeaderError::Malformed), "{bytes:?}");
        }
        assert_eq!(read_of(&[]).await.0, Err(HeaderError::Empty));
    }
}
