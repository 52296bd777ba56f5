//! Accepts the connections of all data listeners, and drives each to its end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use pingora::apps::HttpServerApp;
use pingora::server::ShutdownWatch;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::conn::close_patiently;
use super::connection_table::{ConnectionGroup, ConnectionSlot, ConnectionTable, Refused};
use super::head_watch::HeadLimits;
use super::transport::{Socket, Transport};

use super::conn::{self, Conn, ListenerProtocol, Refuse};
use super::listener::Listener;
use super::proxy_protocol::{self, HeaderError};
use super::settings::ConnectionSettings;
use super::stream::ClientStream;
use super::tls::Certificates;
use crate::drain::{Drain, Stage};
use crate::exchange::Exchange;
use crate::limits::descriptors::Descriptors;
use crate::metrics::{ConnectionLimit, EdgeMetrics, ProtocolClass, TlsOutcome};

/// How often the clients of requests under way are looked for, and the idle ones. Two looks make it
/// sure that a client has left, and it is to be noticed within a second.
const SWEEP: Duration = Duration::from_millis(300);

/// How long the requests that the end of a drain has cut may take to say so to their clients. More
/// than [`conn::LAST_WORDS`], after which a request is dropped that does not notice.
const CUT: Duration = Duration::from_millis(700);
/// How long connections may take to notice that they are closed. With [`CUT`], within a second.
const GONE: Duration = Duration::from_millis(250);

/// Drives the connections of all data listeners into one Pingora proxy.
pub struct Driver<A> {
    pub(super) app: Arc<A>,
    /// What drives plain requests in Pingora's place; `None`: nothing does.
    pub(super) exchange: Option<Arc<Exchange>>,
    settings: ArcSwap<ConnectionSettings>,
    table: Arc<ConnectionTable>,
    pub(super) drain: Arc<Drain>,
    descriptors: Arc<Descriptors>,
    pub(super) metrics: Arc<EdgeMetrics>,
    pub(super) refuse: Arc<dyn Refuse>,
    /// Pingora's own shutdown flag. Never set: draining is ours. The sender is kept because a
    /// dropped one counts as set.
    shutdown: watch::Sender<bool>,
    turned_away: AtomicU64,
}

impl<A: HttpServerApp + Send + Sync + 'static> Driver<A> {
    pub(crate) fn new(
        app: Arc<A>,
        exchange: Option<Arc<Exchange>>,
        settings: ConnectionSettings,
        drain: Arc<Drain>,
        descriptors: Arc<Descriptors>,
        metrics: Arc<EdgeMetrics>,
        refuse: Arc<dyn Refuse>,
    ) -> Arc<Self> {
        Arc::new(Self {
            app,
            exchange,
            settings: ArcSwap::from_pointee(settings),
            table: ConnectionTable::new(),
            drain,
            descriptors,
            metrics,
            refuse,
            shutdown: watch::Sender::new(false),
            turned_away: AtomicU64::new(0),
        })
    }

    /// Takes new settings; connections that are open keep the ones they began with.
    pub fn update(&self, settings: ConnectionSettings) {
        self.settings.store(Arc::new(settings));
    }

    /// Client connections open now.
    #[must_use]
    pub fn open(&self) -> usize {
        self.table.open()
    }

    /// Accepts on `listener` until the drain closes it.
    pub async fn serve(self: Arc<Self>, listener: Listener) {
        let certificates = listener.certificates.clone();
        tokio::select! {
            () = listener.accept(|tcp| self.clone().take(tcp, listener.protocol, certificates.clone())) => {}
            () = self.drain.reached(Stage::Closing) => {}
        }
    }

    /// Looks after the connections for as long as the process serves; to be spawned once.
    pub async fn tend(self: Arc<Self>) {
        let mut every = tokio::time::interval(SWEEP);
        every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            every.tick().await;
            let idle = self.settings.load().limits.keepalive_idle.as_millis().div_ceil(SWEEP.as_millis());
            self.table.sweep(u32::try_from(idle).unwrap_or(u32::MAX));
            if let Some(exchange) = &self.exchange {
                exchange.sweep();
            }
        }
    }

    /// After the drain has begun to close: waits for the connections to end by themselves, ends
    /// the idle ones at [`Stage::Emptying`] and what is left at [`Stage::Over`], where `end` ends the
    /// requests under way.
    pub(crate) async fn finish(&self, end: impl Fn()) {
        let idle_end = async {
            self.drain.reached(Stage::Emptying).await;
            self.table.shut(ConnectionGroup::Idle);
            // A head that was coming in by then has had this long.
            tokio::time::sleep(conn::LAST_WORDS).await;
            self.table.shut(ConnectionGroup::WithoutRequest);
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = self.table.emptied() => return,
            () = idle_end => {}
            () = self.drain.reached(Stage::Over) => {}
        }
        end();
        let _ = tokio::time::timeout(CUT, self.table.emptied()).await;
        self.table.shut(ConnectionGroup::All);
        // What does not notice by then is left to the end of the process.
        let _ = tokio::time::timeout(GONE, self.table.emptied()).await;
    }

    fn take(
        self: Arc<Self>,
        tcp: TcpStream,
        protocol: ListenerProtocol,
        certificates: Option<Arc<Certificates>>,
    ) {
        let accepted = Instant::now();
        let (Ok(peer), Ok(local)) = (tcp.peer_addr(), tcp.local_addr()) else {
            return; // gone already
        };
        if !self.descriptors.has_room_for_client(&tcp) {
            return self.turn_away(Refused::Descriptors);
        }
        let settings = self.settings.load_full();
        let per_address = settings.limits.connections_per_ip.map_or(0, |most| most as usize);
        let announced = settings.expects_proxy_header(peer.ip().to_canonical());
        let mut slot = match self.table.admit(*settings.limits.connections) {
            Ok(slot) => slot,
            Err(refused) => return self.turn_away(refused),
        };
        if !announced && let Err(refused) = slot.count_for(peer.ip().to_canonical(), per_address) {
            return self.turn_away(refused);
        }
        tokio::spawn(async move {
            let mut peer = peer;
            if announced {
                let Some(named) = self.read_proxy_header(&tcp, accepted, &settings).await else { return };
                peer = named.unwrap_or(peer);
                if let Err(refused) = slot.count_for(peer.ip().to_canonical(), per_address) {
                    return self.turn_away(refused);
                }
            }
            let tcp = Arc::new(tcp);
            let conn = Arc::new(Conn::new(peer, local, protocol, tcp.clone(), self.refuse.clone()));
            slot.hold(&conn);
            let deadline = accepted + settings.limits.header_timeout;
            let shaken = match certificates {
                None => Some((Transport::Plain(Socket(tcp)), protocol == ListenerProtocol::Grpc)),
                // Boxed, so that no connection carries the size of a handshake for its whole life.
                Some(certificates) => Box::pin(self.handshake(tcp, deadline, &certificates)).await,
            };
            if let Some((io, h2)) = shaken {
                self.speak(io, conn, &settings, deadline, h2).await;
            }
            drop::<ConnectionSlot>(slot);
        });
    }

    /// Whose connection a balancer passes on, `Some(None)` where it is its own; `None`: it does not say so in
    /// time, and the connection ends.
    async fn read_proxy_header(
        &self,
        tcp: &TcpStream,
        accepted: Instant,
        settings: &ConnectionSettings,
    ) -> Option<Option<SocketAddr>> {
        let read = timeout_at(accepted + settings.limits.header_timeout, proxy_protocol::read(tcp));
        let read = tokio::select! {
            read = read => read,
            () = self.drain.reached(Stage::Emptying) => return None,
        };
        match read {
            Ok(Ok(named)) => Some(named),
            // A balancer looked whether somebody listens.
            Ok(Err(HeaderError::Empty)) => None,
            Ok(Err(HeaderError::Malformed)) | Err(_) => {
                self.turn_away(Refused::ProxyProtocol);
                None
            }
        }
    }

    /// The TLS session and whether it speaks HTTP/2; none where there is none in time.
    async fn handshake(
        &self,
        tcp: Arc<TcpStream>,
        deadline: Instant,
        certificates: &Certificates,
    ) -> Option<(Transport, bool)> {
        let socket = Socket(tcp.clone());
        match timeout_at(deadline, certificates.acceptor().accept(socket)).await {
            Ok(Ok(tls)) => {
                self.metrics.handshake(TlsOutcome::Ok);
                let h2 = tls.get_ref().1.alpn_protocol() == Some(b"h2");
                return Some((Transport::Tls(Box::new(tls)), h2));
            }
            Ok(Err(error)) => {
                self.metrics.handshake(TlsOutcome::Failed);
                tracing::debug!(%error, "TLS handshake failed");
                // The alert that says why is the last thing written.
                close_patiently(&tcp, conn::LINGER_TIME).await;
            }
            Err(_) => self.metrics.handshake(TlsOutcome::TimedOut),
        }
        None
    }

    async fn speak(
        &self,
        io: Transport,
        conn: Arc<Conn>,
        settings: &ConnectionSettings,
        deadline: Instant,
        h2: bool,
    ) {
        let protocol = if h2 { ProtocolClass::H2 } else { ProtocolClass::H1 };
        let _open = self.metrics.connection(conn.protocol.class(), protocol);
        if h2 {
            Box::pin(self.serve_h2(io, conn, settings, deadline)).await;
        } else {
            let head = HeadLimits {
                head: settings.limits.head,
                headers: settings.limits.headers,
                target: settings.limits.target,
            };
            let stream = ClientStream::new(io, conn.clone(), settings.limits.header_timeout, deadline, head);
            self.serve_h1(stream, conn, settings).await;
        }
    }

    fn turn_away(&self, refused: Refused) {
        self.metrics.connection_refused(match refused {
            Refused::Full => ConnectionLimit::Total,
            Refused::Address => ConnectionLimit::Address,
            Refused::Descriptors => ConnectionLimit::Descriptors,
            Refused::ProxyProtocol => ConnectionLimit::ProxyProtocol,
        });
        // A flood must not become a flood of log lines: the first, then each power of two.
        let count = self.turned_away.fetch_add(1, Ordering::Relaxed) + 1;
        if count.is_power_of_two() {
            let option = match refused {
                Refused::Full => "limits.connections",
                Refused::Address => "limits.connections_per_ip",
                Refused::Descriptors => "open files (ulimit -n, LimitNOFILE)",
                Refused::ProxyProtocol => "listen.proxy_protocol",
            };
            let why = match refused {
                Refused::ProxyProtocol => {
                    "connections closed that did not begin with a PROXY protocol header"
                }
                _ => "client connections closed at once, over the limit",
            };
            tracing::warn!(count, option, "{why}");
        }
    }

    pub(super) fn shutdown_watch(&self) -> ShutdownWatch {
        self.shutdown.subscribe()
    }
}
