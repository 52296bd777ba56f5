//! The bind check: every address is bound once and let go before anything starts.
//!
//! Pingora binds with `SO_REUSEPORT`, which succeeds beside another process that did the same,
//! and retries for half a minute what fails. Here a taken port is one clear line at once.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};

use crate::config::Listen;
use crate::error::StartError;

/// Binds each configured address without `SO_REUSEPORT` and lets it go again. Those that are
/// `inherited` from the process before are there already.
///
/// # Errors
/// [`StartError::Bind`] for an address that cannot be had, [`StartError::Several`] for several.
pub fn check(listen: &Listen, inherited: &[SocketAddr]) -> Result<(), StartError> {
    let probe = |(option, address)| {
        let bound = TcpListener::bind(address);
        bound.err().map(|error| refused(option, address, &error, inherited))
    };
    let new = listen.all().filter(|(_, address)| !inherited.contains(address));
    let mut refused: Vec<StartError> = new.filter_map(probe).collect();
    match refused.len() {
        0 => Ok(()),
        1 => refused.pop().map_or(Ok(()), Err),
        _ => Err(StartError::Several(refused)),
    }
}

fn refused(
    option: &'static str,
    address: SocketAddr,
    error: &std::io::Error,
    inherited: &[SocketAddr],
) -> StartError {
    let of_that_port = inherited.iter().find(|other| other.port() == address.port());
    let reason = match (error.kind(), of_that_port) {
        (ErrorKind::AddrInUse, Some(other)) => {
            return StartError::Bind {
                option,
                address,
                reason: format!(
                    "meets {other}, which the running process listens on; an upgrade takes a socket over only \
                     under the very same address, so this change needs a restart"
                ),
            };
        }
        _ => in_words(error),
    };
    StartError::Bind { option, address, reason }
}

fn in_words(error: &std::io::Error) -> String {
    match error.kind() {
        ErrorKind::AddrInUse => "is taken by another process".to_owned(),
        ErrorKind::AddrNotAvailable => "is no address of this machine".to_owned(),
        ErrorKind::PermissionDenied => {
            "may not be bound by this user (ports below 1024 need CAP_NET_BIND_SERVICE)".to_owned()
        }
        _ => format!("cannot be bound: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listen(http: Vec<SocketAddr>, admin: Option<SocketAddr>) -> Listen {
        Listen {
            http,
            https: vec![],
            grpc: vec![],
            admin,
            metrics: None,
            health: None,
            proxy_protocol: vec![],
        }
    }

    #[test]
    fn a_taken_port_is_one_line_with_its_listener() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let error = check(&listen(vec![], Some(address)), &[]).unwrap_err();
        assert_eq!(error.to_string(), format!("listen.admin: {address} is taken by another process"));
        assert_eq!(error.exit_code(), 1);
    }

    #[test]
    fn every_taken_port_is_named() {
        let taken = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let [http, admin] = taken.each_ref().map(|taken| taken.local_addr().unwrap());
        let error = check(&listen(vec![http], Some(admin)), &[]).unwrap_err();
        let lines = format!(
            "listen.http: {http} is taken by another process\nlisten.admin: {admin} is taken by another process"
        );
        assert_eq!((error.to_string(), error.exit_code()), (lines, 1));
    }

    #[test]
    fn free_ports_are_left_free() {
        let address = {
            let free = TcpListener::bind("127.0.0.1:0").unwrap();
            free.local_addr().unwrap()
        };
        check(&listen(vec![address], None), &[]).unwrap();
        TcpListener::bind(address).unwrap();
    }

    #[test]
    fn an_inherited_address_is_not_looked_at_and_one_that_meets_it_is_told() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        check(&listen(vec![address], None), &[address]).unwrap();
        let wide = SocketAddr::from(([0, 0, 0, 0], address.port()));
        let error = check(&listen(vec![wide], None), &[address]).unwrap_err().to_string();
        assert!(error.starts_with(&format!("listen.http: {wide} meets {address}")), "{error}");
    }

    #[test]
    fn an_address_of_another_machine_is_told_apart() {
        let error = check(&listen(vec!["192.0.2.1:8081".parse().unwrap()], None), &[]).unwrap_err();
        assert_eq!(error.to_string(), "listen.http: 192.0.2.1:8081 is no address of this machine");
    }
}
