//! The socket in the run directory, and listening sockets on their way to a successor.

use std::fs::{self, Permissions};
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::process::geteuid;
use tokio::net::{UnixListener, UnixStream};

use super::SocketName;
use crate::error::StartError;
use crate::run_dir::RunDir;

const FILE: &str = "upgrade.sock";

/// Where the main process of a run directory listens.
pub(super) fn path(run_dir: &Path) -> PathBuf {
    run_dir.join(FILE)
}

/// The socket of this process, in place. Removed when dropped, unless a successor has put its own
/// there.
pub(crate) struct UpgradeSocket {
    pub(super) listener: UnixListener,
    path: PathBuf,
    /// Which file it is; none: it is left where it is.
    inode: Option<(u64, u64)>,
}

impl UpgradeSocket {
    /// Listens under another name first and then takes the place of whatever is there, so that
    /// there is never a moment without one.
    ///
    /// # Errors
    /// [`StartError::RunDir`] when the system refuses.
    pub(crate) fn open(run_dir: &RunDir) -> Result<Self, StartError> {
        let path = path(run_dir.path());
        let draft = run_dir.path().join(format!("{FILE}.{}", std::process::id()));
        let open = || {
            match fs::remove_file(&draft) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let listener = UnixListener::bind(&draft)?;
            fs::set_permissions(&draft, Permissions::from_mode(0o600))?;
            let made = fs::symlink_metadata(&draft)?;
            fs::rename(&draft, &path)?;
            Ok((listener, (made.dev(), made.ino())))
        };
        match open() {
            Ok((listener, inode)) => Ok(Self { listener, path, inode: Some(inode) }),
            Err(source) => {
                let _ = fs::remove_file(&draft);
                Err(run_dir.failed(&path, source))
            }
        }
    }
}

impl UpgradeSocket {
    /// Whether whoever looks in the run directory finds this one.
    pub(super) fn is_in_place(&self) -> bool {
        fs::symlink_metadata(&self.path).is_ok_and(|found| Some((found.dev(), found.ino())) == self.inode)
    }

    /// Leaves the place to a successor, which is about to take it.
    pub(super) fn leave(mut self) {
        self.inode = None;
    }
}

impl Drop for UpgradeSocket {
    fn drop(&mut self) {
        if self.inode.is_some() && self.is_in_place() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// The process at the other end, which must be of the same user or root's.
pub(super) fn peer(stream: &UnixStream) -> io::Result<i32> {
    let peer = stream.peer_cred()?;
    if peer.uid() != geteuid().as_raw() && peer.uid() != 0 {
        return Err(io::Error::new(ErrorKind::PermissionDenied, format!("user {}", peer.uid())));
    }
    Ok(peer.pid().unwrap_or_default())
}

/// The process that serves, and its user where that is another one: root may ask everybody's.
pub(super) fn running(stream: &UnixStream) -> io::Result<(i32, Option<u32>)> {
    let peer = stream.peer_cred()?;
    let (own, other) = (geteuid(), peer.uid());
    if own.as_raw() == other {
        return Ok((peer.pid().unwrap_or_default(), None));
    }
    if own.is_root() {
        return Ok((peer.pid().unwrap_or_default(), Some(other)));
    }
    self::peer(stream).map(|pid| (pid, Some(other)))
}

/// A handle of a listening socket of this process.
pub(crate) struct ListenerHandle {
    pub(super) name: SocketName,
    descriptor: OwnedFd,
}

impl ListenerHandle {
    pub(crate) fn new(option: &str, address: SocketAddr, descriptor: OwnedFd) -> Self {
        Self { name: SocketName { option: option.to_owned(), address }, descriptor }
    }

    pub(super) fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { name: self.name.clone(), descriptor: self.descriptor.try_clone()? })
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// Listening sockets that the process before this one gave, by the address they were bound to.
#[derive(Default)]
pub(crate) struct Inherited(Vec<(SocketAddr, TcpListener)>);

impl Inherited {
    pub(super) fn new(names: Vec<SocketName>, descriptors: Vec<OwnedFd>) -> Self {
        let listeners = descriptors.into_iter().map(TcpListener::from);
        let pairs = names.into_iter().zip(listeners).map(|(name, listener)| (name.address, listener));
        // What is no such socket is not used.
        Self(
            pairs
                .filter(|(address, listener)| listener.local_addr().is_ok_and(|is| is == *address))
                .collect(),
        )
    }

    /// The addresses of all inherited sockets.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.0.iter().map(|(address, _)| *address).collect()
    }

    /// The socket that is bound to `address`.
    pub(crate) fn take(&mut self, address: SocketAddr) -> Option<TcpListener> {
        let at = self.0.iter().position(|(bound, _)| *bound == address)?;
        Some(self.0.swap_remove(at).1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_socket_replaces_an_older_one_and_goes_only_while_it_is_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let run_dir = RunDir::locate(Some(dir.path()), &crate::config::Environment::default());
        let first = UpgradeSocket::open(&run_dir).unwrap();
        assert_eq!(fs::metadata(path(dir.path())).unwrap().permissions().mode() & 0o777, 0o600);
        let second = UpgradeSocket::open(&run_dir).unwrap();
        drop(first);
        UnixStream::connect(path(dir.path())).await.unwrap();
        drop(second);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        UpgradeSocket::open(&run_dir).unwrap().leave();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_socket_is_found_by_its_address_and_must_be_what_it_is_called() {
        let one = TcpListener::bind("127.0.0.1:0").unwrap();
        let two = TcpListener::bind("127.0.0.1:0").unwrap();
        let (first, second) = (one.local_addr().unwrap(), two.local_addr().unwrap());
        let name = |address| SocketName { option: "listen.http".to_owned(), address };
        let mut inherited = Inherited::new(
            vec![name(first), name("127.0.0.1:1".parse().unwrap())],
            vec![OwnedFd::from(one), OwnedFd::from(two)],
        );
        assert_eq!(inherited.addresses(), [first]);
        assert!(inherited.take(second).is_none());
        assert!(inherited.take(first).is_some());
        assert!(inherited.take(first).is_none());
    }
}
