//! `process.Process`: commands that are started, talked to and ended.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::AbortHandle;

use super::connect::{self, Incoming, Refusal};
use super::script::{Event, Shell};
use super::{Step, stream};
use crate::Exchange;
use crate::origin::ExchangeResult;

/// The first process id that is given away.
const FIRST: u32 = 42;

struct Process {
    config: Value,
    listeners: Vec<UnboundedSender<Event>>,
    stdin: Option<UnboundedSender<Vec<u8>>>,
    task: Option<AbortHandle>,
}

#[derive(Default)]
struct Running {
    started: u32,
    processes: BTreeMap<u32, Process>,
}

/// The commands that run. Clones are the same ones.
#[derive(Clone, Default)]
pub(super) struct Processes(Arc<Mutex<Running>>);

impl Processes {
    /// Those that run now.
    pub(super) fn count(&self) -> usize {
        self.0.lock().unwrap().processes.len()
    }

    fn begin(&self, message: &Value) -> (u32, UnboundedReceiver<Event>) {
        let config = message["process"].clone();
        // `/bin/bash -l -c <line>`
        let line = config["args"].as_array().and_then(|args| args.last()?.as_str().map(str::to_owned));
        let (listener, events) = unbounded_channel();
        let (input, stdin) = unbounded_channel();
        let mut running = self.0.lock().unwrap();
        let pid = FIRST + running.started;
        running.started += 1;
        // Without standard input a command reads its end at once.
        let stdin_open = message["stdin"].as_bool().unwrap_or_default();
        running.processes.insert(
            pid,
            Process { config, listeners: vec![listener], stdin: stdin_open.then_some(input), task: None },
        );
        let known = self.clone();
        let shell = Shell { stdin, tell: move |event| known.tell(pid, &event) };
        let task = tokio::spawn(async move { shell.run(&line.unwrap_or_default()).await });
        if let Some(process) = running.processes.get_mut(&pid) {
            process.task = Some(task.abort_handle());
        }
        (pid, events)
    }

    fn tell(&self, pid: u32, event: &Event) {
        let mut running = self.0.lock().unwrap();
        if let Some(process) = running.processes.get_mut(&pid) {
            process.listeners.retain(|listener| listener.send(event.clone()).is_ok());
        }
        if !matches!(event, Event::Stdout(_) | Event::Stderr(_)) {
            running.processes.remove(&pid);
        }
    }

    fn listen(&self, pid: u32) -> Result<UnboundedReceiver<Event>, Refusal> {
        let (listener, events) = unbounded_channel();
        self.with(pid, |process| process.listeners.push(listener))?;
        Ok(events)
    }

    fn with<T>(&self, pid: u32, what: impl FnOnce(&mut Process) -> T) -> Result<T, Refusal> {
        let mut running = self.0.lock().unwrap();
        let process = running.processes.get_mut(&pid);
        process.map(what).ok_or_else(|| Refusal::not_found(format!("process with pid {pid} not found")))
    }

    fn write(&self, pid: u32, input: &Value) -> Result<(), Refusal> {
        let bytes = BASE64.decode(input["stdin"].as_str().unwrap_or_default());
        let bytes = bytes.map_err(|error| Refusal::new("invalid_argument", error.to_string()))?;
        let sent =
            self.with(pid, |process| process.stdin.as_ref().is_some_and(|stdin| stdin.send(bytes).is_ok()))?;
        sent.then_some(()).ok_or_else(|| Refusal::new("failed_precondition", "stdin is not open"))
    }

    fn kill(&self, pid: u32) -> Result<(), Refusal> {
        self.with(pid, |process| process.task.take())?.inspect(AbortHandle::abort);
        self.tell(pid, &Event::Killed);
        Ok(())
    }

    /// The calls with one response.
    pub(super) fn call(&self, name: &str, message: &Value) -> Result<Value, Refusal> {
        let pid = pid(message);
        match name {
            "List" => {
                let running = self.0.lock().unwrap();
                let processes = running.processes.iter();
                let processes: Vec<Value> =
                    processes.map(|(pid, process)| json!({ "pid": pid, "config": process.config })).collect();
                return Ok(json!({ "processes": processes }));
            }
            "SendInput" => self.write(pid, &message["input"])?,
            "CloseStdin" => drop(self.with(pid, |process| process.stdin.take())?),
            "SendSignal" => self.kill(pid)?,
            _ => return Err(Refusal::new("unimplemented", name)),
        }
        Ok(json!({}))
    }
}

fn pid(message: &Value) -> u32 {
    message["process"]["pid"].as_u64().and_then(|pid| pid.try_into().ok()).unwrap_or_default()
}

/// `Start`: begins a command and streams what it does.
pub(super) async fn start(mut exchange: Exchange, processes: &Processes) -> ExchangeResult {
    let message = connect::question(&mut exchange).await?;
    let (pid, events) = processes.begin(&message);
    follow(exchange, processes, pid, events).await
}

/// `Connect`: streams what a command does from now on.
pub(super) async fn connect(mut exchange: Exchange, processes: &Processes) -> ExchangeResult {
    let pid = pid(&connect::question(&mut exchange).await?);
    match processes.listen(pid) {
        Ok(events) => follow(exchange, processes, pid, events).await,
        Err(refusal) => {
            connect::open(&mut exchange).await?;
            connect::end(exchange, Some(&refusal)).await
        }
    }
}

async fn follow(
    mut exchange: Exchange,
    processes: &Processes,
    pid: u32,
    mut events: UnboundedReceiver<Event>,
) -> ExchangeResult {
    connect::open(&mut exchange).await?;
    connect::send(&mut exchange, &event(json!({ "start": { "pid": pid } }))).await?;
    let keepalive = event(json!({ "keepalive": {} }));
    let over = || drop(processes.kill(pid));
    stream(exchange, &mut events, &keepalive, over, |told| match told {
        Event::Stdout(bytes) => Step::Send(event(json!({ "data": { "stdout": BASE64.encode(bytes) } }))),
        Event::Stderr(bytes) => Step::Send(event(json!({ "data": { "stderr": BASE64.encode(bytes) } }))),
        Event::Exited(0) => Step::Last(end(0, true, "exit status 0")),
        Event::Exited(code) => Step::Last(end(code, true, &format!("exit status {code}"))),
        Event::Killed => Step::Last(end(-1, false, "signal: killed")),
        Event::Vanished => Step::Vanish,
        Event::Broke => Step::Break,
    })
    .await
}

/// `StreamInput`: standard input in pieces as the client writes them.
pub(super) async fn stream_input(mut exchange: Exchange, processes: &Processes) -> ExchangeResult {
    let mut incoming = Incoming::default();
    let mut to = 0;
    let mut refused = None;
    while let Some(message) = incoming.next(&mut exchange).await? {
        if message.get("start").is_some() {
            to = pid(&message["start"]);
        }
        if message.get("data").is_some() {
            refused = refused.or(processes.write(to, &message["data"]["input"]).err());
        }
    }
    connect::open(&mut exchange).await?;
    if refused.is_none() {
        connect::send(&mut exchange, &json!({})).await?;
    }
    connect::end(exchange, refused.as_ref()).await
}

fn event(event: Value) -> Value {
    json!({ "event": event })
}

fn end(code: i32, exited: bool, status: &str) -> Value {
    let mut end = json!({ "exitCode": code, "exited": exited, "status": status });
    if code != 0 {
        end["error"] = status.into();
    }
    event(json!({ "end": end }))
}
