//! What the tests of this crate share: a manager that follows a script, hooks that remember, and
//! bounded waiting.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use cube_metadata::{SandboxRecord, Snapshot, Status};
use cube_route::SandboxId;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::clock::Clock;
use crate::clock::tests::TestClock;
use crate::lifecycle::Timing;
use crate::{Lifecycle, LifecycleHooks, ResumeSettings, Settings};

pub(crate) const LONG: Duration = Duration::from_secs(3600);

pub(crate) fn id(text: &str) -> SandboxId {
    SandboxId::parse(text).unwrap()
}

/// A snapshot with a record of this `Status` and this state string; empty: none.
pub(crate) fn snapshot(status: &str, word: &str) -> Snapshot {
    let fields = [(&b"HostIP"[..], &b"10.0.0.1"[..]), (&b"Status"[..], status.as_bytes())];
    Snapshot { record: Some(SandboxRecord::parse(fields.into_iter(), 0)), state: Status::parse(word) }
}

/// Waits until `condition` holds; fails after 10 s.
pub(crate) async fn until(what: &str, condition: impl Fn() -> bool) {
    let end = std::time::Instant::now() + Duration::from_secs(10);
    while !condition() {
        assert!(std::time::Instant::now() < end, "never: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Records the calls of the hooks, in order, with the state that the gate knew at that moment.
#[derive(Default)]
pub(crate) struct RecordingHooks {
    calls: Mutex<Vec<String>>,
    lifecycle: Mutex<std::sync::Weak<Lifecycle>>,
    pub(crate) routes: AtomicUsize,
}

impl RecordingHooks {
    fn note(&self, what: &str, id: &SandboxId) {
        let state = self.lifecycle.lock().upgrade().and_then(|lifecycle| lifecycle.state(id));
        let state = match state {
            Some(Status::Known(state)) => state.as_str(),
            Some(Status::Unknown) => "unknown",
            None => "none",
        };
        self.calls.lock().push(format!("{what} {id} {state}"));
    }

    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.calls.lock())
    }
}

impl LifecycleHooks for RecordingHooks {
    fn resumed(&self, id: &SandboxId) {
        self.note("resumed", id);
    }

    fn killed(&self, id: &SandboxId) {
        self.note("killed", id);
    }

    fn forgotten(&self, id: &SandboxId) -> bool {
        self.note("forgotten", id);
        self.routes.swap(0, Ordering::SeqCst) > 0
    }
}

/// A lifecycle under test. Failures stay fresh for ever unless `timing` is changed.
pub(crate) struct Testbed {
    pub(crate) settings: Settings,
    pub(crate) timing: Timing,
    pub(crate) registry: prometheus::Registry,
    pub(crate) told: Arc<RecordingHooks>,
    /// Both clocks begin at 10 s and stand still.
    pub(crate) clock: TestClock,
}

impl Testbed {
    pub(crate) fn new() -> Self {
        Self {
            settings: Settings { pause_wait: LONG, ..Settings::default() },
            timing: Timing { back_off: LONG, timeout_gap: LONG, gone: LONG },
            registry: prometheus::Registry::new(),
            told: Arc::default(),
            clock: TestClock::at(10_000, 10_000),
        }
    }

    pub(crate) fn resuming_at(manager: &ResumeServer) -> Self {
        let mut testbed = Self::new();
        testbed.settings.resume =
            Some(ResumeSettings { timeout: LONG, ..ResumeSettings::new(manager.url.clone()) });
        testbed
    }

    pub(crate) fn resume(&mut self) -> &mut ResumeSettings {
        self.settings.resume.as_mut().unwrap()
    }

    pub(crate) fn build(&self) -> Arc<Lifecycle> {
        let hooks: Arc<dyn LifecycleHooks> = Arc::<RecordingHooks>::clone(&self.told);
        let clock = Clock::new(Box::new(self.clock.clone()));
        let lifecycle =
            Lifecycle::with_timing(self.settings.clone(), self.timing, clock, hooks, &self.registry).unwrap();
        *self.told.lifecycle.lock() = Arc::downgrade(&lifecycle);
        lifecycle
    }

    /// The value of a counter or gauge, `name` or `name{label}`.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let text = prometheus::TextEncoder::new().encode_to_string(&self.registry.gather()).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
        line.map_or(0.0, |value| value.parse().unwrap())
    }
}

/// What the scripted manager does with a call.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Behaviour {
    /// Responds with this status.
    Respond(u16),
    /// Responds with it once [`ResumeServer::release`] says so.
    RespondWhenReleased(u16),
    /// Never responds.
    Silent,
    /// Closes without a response.
    Close,
    /// Says something that is not HTTP.
    Garbage,
}

/// A manager on a free port of the loopback.
pub(crate) struct ResumeServer {
    pub(crate) url: String,
    shared: Arc<ServerState>,
    task: tokio::task::JoinHandle<()>,
}

struct ServerState {
    act: Mutex<Behaviour>,
    requests: Mutex<Vec<String>>,
    release: Semaphore,
}

impl ResumeServer {
    pub(crate) async fn start(act: Behaviour) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let shared = Arc::new(ServerState {
            act: Mutex::new(act),
            requests: Mutex::default(),
            release: Semaphore::new(0),
        });
        let serving = Arc::clone(&shared);
        let task = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(Arc::clone(&serving).serve(stream));
            }
        });
        Self { url, shared, task }
    }

    /// The URL of a port where nobody listens.
    pub(crate) async fn nobody() -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        format!("http://{}", listener.local_addr().unwrap())
    }

    pub(crate) fn set_behaviour(&self, act: Behaviour) {
        *self.shared.act.lock() = act;
    }

    /// Lets one held call get its response.
    pub(crate) fn release(&self) {
        self.shared.release.add_permits(1);
    }

    /// The heads received, byte for byte.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.shared.requests.lock().clone()
    }

    pub(crate) fn calls(&self) -> usize {
        self.shared.requests.lock().len()
    }
}

impl Drop for ResumeServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl ServerState {
    async fn serve(self: Arc<Self>, mut stream: TcpStream) {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            if stream.read(&mut byte).await.unwrap_or(0) == 0 {
                return;
            }
            head.push(byte[0]);
        }
        self.requests.lock().push(String::from_utf8(head).unwrap());
        let act = *self.act.lock();
        let status = match act {
            Behaviour::Respond(status) => status,
            Behaviour::RespondWhenReleased(status) => {
                self.release.acquire().await.unwrap().forget();
                status
            }
            Behaviour::Silent => {
                // Until the other side gives up.
                let _ = stream.read(&mut [0]).await;
                return;
            }
            Behaviour::Close => return,
            Behaviour::Garbage => {
                let _ = stream.write_all(b"hello?\r\n\r\n").await;
                return;
            }
        };
        let response = format!("HTTP/1.1 {status} Scripted\r\nContent-Length: 2\r\n\r\nok");
        let _ = stream.write_all(response.as_bytes()).await;
    }
}
