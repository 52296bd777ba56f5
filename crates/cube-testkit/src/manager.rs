//! The manager that the proxy asks to resume a sandbox (lifecycle.md, "Resume"), doing as it is
//! told.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::sync::oneshot;

use crate::origin::ExchangeResult;
use crate::{Exchange, Gate, Origin, Received, Sandbox, eventually};

/// What the manager does with the calls for one sandbox.
#[derive(Clone)]
pub enum Resume {
    /// Answers at once with this status.
    Status(u16),
    /// Answers with this status once the gate is opened for it.
    When(Gate, u16),
    /// Never answers.
    Silence,
}

type Plans = Arc<Mutex<HashMap<String, Resume>>>;

/// A running manager. It has a thread of its own, so that tests can share it: their runtimes end
/// with them.
pub struct Manager {
    origin: Arc<Origin>,
    plans: Plans,
    _end: oneshot::Sender<()>,
}

impl Manager {
    /// Opens a port; every call is answered with 200 until [`Manager::plan`] says otherwise.
    #[must_use]
    pub fn start() -> Self {
        let plans = Plans::default();
        let (end, over) = oneshot::channel::<()>();
        let (tell, told) = std::sync::mpsc::channel();
        let known = Arc::clone(&plans);
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async move {
                let script = move |exchange| response(exchange, Arc::clone(&known));
                let origin = Arc::new(Origin::named("manager").serve(script).await);
                tell.send(Arc::clone(&origin)).expect("somebody waits");
                let _ = over.await;
            });
        });
        Self { origin: told.recv().expect("a manager"), plans, _end: end }
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.origin.address()
    }

    /// The value for `resume.url`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address())
    }

    /// What becomes of the calls for `sandbox` from now on.
    pub fn plan(&self, sandbox: &Sandbox, resume: Resume) {
        self.plans.lock().unwrap().insert(sandbox.id.clone(), resume);
    }

    /// The calls for `sandbox` so far.
    #[must_use]
    pub fn calls(&self, sandbox: &Sandbox) -> Vec<Received> {
        let calls = self.origin.received();
        calls.into_iter().filter(|call| named(&call.target) == sandbox.id).collect()
    }

    /// Waits until there have been so many calls for `sandbox`.
    pub async fn wait_for(&self, sandbox: &Sandbox, count: usize) {
        eventually(&format!("{count} resume calls"), || async {
            (self.calls(sandbox).len() >= count).then_some(())
        })
        .await;
    }
}

/// The value of `sandbox_id` in a target.
fn named(target: &str) -> &str {
    let query = target.split_once('?').map_or("", |(_, query)| query);
    query.split('&').find_map(|pair| pair.strip_prefix("sandbox_id=")).unwrap_or_default()
}

async fn response(mut exchange: Exchange, plans: Plans) -> ExchangeResult {
    let plan = plans.lock().unwrap().get(named(&exchange.request.target)).cloned();
    let status = match plan.unwrap_or(Resume::Status(200)) {
        Resume::Status(status) => status,
        Resume::When(gate, status) => {
            gate.pass().await;
            status
        }
        Resume::Silence => {
            exchange.gone().await;
            return exchange.close().await;
        }
    };
    exchange.reply(status, &[], "{}").await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Client;

    async fn call(manager: &Manager, sandbox: &Sandbox) -> u16 {
        let target = format!("/internal/resume?sandbox_id={}&request_id=r", sandbox.id);
        Client::connect(manager.address()).await.call("POST", &target, &[], "").await.status
    }

    #[tokio::test]
    async fn a_manager_answers_each_sandbox_as_planned() {
        let manager = Manager::start();
        let (one, other) = (Sandbox::named("one"), Sandbox::named("other"));
        manager.plan(&one, Resume::Status(429));
        assert_eq!((call(&manager, &one).await, call(&manager, &other).await), (429, 200));
        let gate = Gate::new();
        manager.plan(&one, Resume::When(gate.clone(), 500));
        gate.open();
        assert_eq!(call(&manager, &one).await, 500);
        assert_eq!((manager.calls(&one).len(), manager.calls(&other).len()), (2, 1));
    }
}
