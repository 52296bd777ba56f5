//! `cube-proxy sandbox`: records in the configured store, and states in the running proxy, for
//! operators and tests.

use std::collections::BTreeMap;
use std::io::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand, ValueEnum};
use cube_metadata::{Access, MetadataStore, RecordField, SandboxRecord, SandboxState, check_field};
use cube_route::preview::{Link, LinkForm, LinkRefusal, LinkRequest};
use cube_route::{Port, SandboxId};
use cube_settings::Span;
use serde_json::json;

use crate::config::Config;
use crate::error::StartError;

use super::file::ConfigFile;
use super::{admin, block_on, progress, say};

/// Which configuration, and what to do.
#[derive(Debug, Args)]
pub(super) struct Options {
    #[command(flatten)]
    file: ConfigFile,
    /// Answer in JSON
    #[arg(long, global = true)]
    pub(super) json: bool,
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// The ids of all sandboxes
    List,
    /// The fields of one record
    Get {
        /// The sandbox id
        #[arg(value_parser = id)]
        id: SandboxId,
        /// Show the traffic token too
        #[arg(long)]
        show_token: bool,
    },
    /// Write fields of a record; those not named stay
    Put {
        /// The sandbox id
        #[arg(value_parser = id)]
        id: SandboxId,
        /// Fields, e.g. HostIP=10.0.0.1 SandboxIP=192.168.1.100 8080=49983
        #[arg(required = true, value_name = "FIELD=VALUE", value_parser = field)]
        fields: Vec<(String, String)>,
        /// Write them whatever they say, also what no record may have
        #[arg(long)]
        force: bool,
    },
    /// Remove a record, under every key prefix
    Delete {
        /// The sandbox id
        #[arg(value_parser = id)]
        id: SandboxId,
    },
    /// A link that opens a private sandbox in a browser
    #[command(
        after_long_help = "The link is made from the record's traffic token, and opens the sandbox until it \
        expires or the token changes. It leads to previews.base_url, or to the first of routing.domains."
    )]
    Link {
        /// The sandbox id
        #[arg(value_parser = id)]
        id: SandboxId,
        /// The port in the sandbox
        #[arg(value_parser = port)]
        port: Port,
        /// For how long it opens the sandbox
        #[arg(long, default_value = "1h", value_parser = span)]
        ttl: Duration,
        /// Path and query in the sandbox
        #[arg(long, default_value = "/")]
        path: String,
        /// It opens every port but envd's
        #[arg(long)]
        any_port: bool,
        /// How the link names the sandbox
        #[arg(long, value_enum, default_value_t = Form::Host)]
        form: Form,
    },
    /// Tell the running proxy the state of a sandbox
    State {
        /// The sandbox id
        #[arg(value_parser = id)]
        id: SandboxId,
        /// The state
        #[arg(value_parser = state())]
        state: SandboxState,
    },
}

/// How a link names its sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Form {
    /// In the host name
    Host,
    /// In the path
    Path,
}

fn port(text: &str) -> Result<Port, cube_route::NameError> {
    Port::parse(text)
}

fn span(text: &str) -> Result<Duration, &'static str> {
    Span::parse(text).ok_or("must be a whole number and s, m or h, such as 90s or 1h")
}

fn id(text: &str) -> Result<SandboxId, cube_route::NameError> {
    SandboxId::parse(text)
}

/// One of the states, which completion scripts and the help list.
fn state() -> impl TypedValueParser<Value = SandboxState> {
    PossibleValuesParser::new(SandboxState::ALL.map(SandboxState::as_str))
        .try_map(|text| SandboxState::parse(&text).ok_or("no such state"))
}

fn field(text: &str) -> Result<(String, String), &'static str> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("must be FIELD=VALUE"),
    }
}

pub(super) fn run(options: &Options) -> Result<(), StartError> {
    let section: &[&str] =
        if matches!(options.action, Action::State { .. }) { &["admin"] } else { &["store"] };
    let config = options.file.load_for(section)?;
    block_on(async {
        if let Action::State { id, state } = &options.action {
            let line = push(&config, id, *state).await?;
            return say(if options.json { json!({ "ok": true }).to_string() } else { line });
        }
        let store = config.open_store(&prometheus::Registry::new())?;
        if let Action::Link { id, .. } = &options.action {
            let record = progress::with("asking the store", store.fetch(id)).await?.record;
            let link = link(&config, &options.action, record.as_ref())?;
            let shown = json!({ "url": link.url, "ticket": link.ticket, "expires_at": link.expires_at });
            return say(if options.json { shown.to_string() } else { link.url });
        }
        let work = act(store.as_ref(), &options.action, options.json);
        for line in progress::with("asking the store", work).await? {
            say(line)?;
        }
        Ok(())
    })
}

/// Tells the running proxy.
async fn push(config: &Config, id: &SandboxId, state: SandboxState) -> Result<String, StartError> {
    let body = json!({ "sandbox_id": id.as_str(), "state": state.as_str() });
    admin::ask(config, http::Method::POST, "/admin/state", body.to_string()).await?;
    Ok(format!("{id}: {}", state.as_str()))
}

/// Does it in the store; the lines to print.
async fn act(store: &dyn MetadataStore, action: &Action, json: bool) -> Result<Vec<String>, StartError> {
    Ok(match action {
        Action::List => {
            let mut ids = store.list().await?;
            ids.sort();
            let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
            if json { vec![json!(ids).to_string()] } else { ids }
        }
        Action::Get { id, show_token } => {
            let Some(mut fields) = store.get(id).await? else { return Err(unknown(id)) };
            let secret = |name: &str| RecordField::of(name.as_bytes()).is_some_and(RecordField::is_secret);
            for (_, value) in fields.iter_mut().filter(|(name, value)| secret(name) && !value.is_empty()) {
                if !show_token {
                    *value = "(secret; --show-token shows it)".to_owned();
                }
            }
            if json {
                vec![json!(fields).to_string()]
            } else {
                fields.iter().map(|(name, value)| format!("{name}: {value}")).collect()
            }
        }
        Action::Put { id, fields, force } => {
            if !force {
                judge(store, id, fields).await?;
            }
            let fields: BTreeMap<String, String> = fields.iter().cloned().collect();
            store.put(id, &fields).await?;
            vec![if json { json!({ "ok": true }).to_string() } else { format!("{id}: written") }]
        }
        Action::Delete { id } => {
            if !store.delete(id).await? {
                return Err(unknown(id));
            }
            vec![if json { json!({ "ok": true }).to_string() } else { format!("{id}: removed") }]
        }
        // Nothing that is done in the store.
        Action::State { .. } | Action::Link { .. } => Vec::new(),
    })
}

/// Makes the link that `action` describes.
fn link(config: &Config, action: &Action, record: Option<&SandboxRecord>) -> Result<Link, StartError> {
    let Action::Link { id, port, ttl, path, any_port, form } = action else {
        return Err(StartError::Assembly("no link".to_owned()));
    };
    let record = record.ok_or_else(|| unknown(id))?;
    let request = LinkRequest {
        id,
        port: *port,
        any_port: *any_port,
        form: if *form == Form::Path { LinkForm::Path } else { LinkForm::Host },
        path,
        ttl: ttl.as_secs(),
        max_ttl: config.previews.max_ttl.as_secs(),
        now: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
    };
    let made = match &record.access {
        _ if !config.previews.enabled => Err(LinkRefusal::Off),
        Access::Public => Err(LinkRefusal::Public),
        Access::Closed => Err(LinkRefusal::NoToken),
        Access::Token(token) => request.make(config.preview_base().as_ref(), Some(token.expose())),
    };
    made.map_err(|refusal| StartError::Assembly(format!("{id}: {refusal}")))
}

/// Refuses what no record may have, all of it at once.
async fn judge(
    store: &dyn MetadataStore,
    id: &SandboxId,
    fields: &[(String, String)],
) -> Result<(), StartError> {
    let mut faults = Vec::new();
    for (at, (name, value)) in fields.iter().enumerate() {
        match check_field(name, value) {
            Ok(Some(_)) => {}
            Ok(None) => note(&format!("{name} is no field that the proxy reads; written all the same")),
            Err(fault) => faults.push(fault.to_string()),
        }
        if fields.iter().take(at).any(|(other, _)| other == name) {
            faults.push(format!("{name} is given twice"));
        }
    }
    let host_ip = |name: &str| RecordField::of(name.as_bytes()) == Some(RecordField::HostIp);
    if faults.is_empty() && !fields.iter().any(|(name, _)| host_ip(name)) {
        let there = store.get(id).await?.unwrap_or_default();
        if !there.iter().any(|(name, value)| host_ip(name) && !value.is_empty()) {
            faults.push(format!("{id} has no HostIP yet, and every record needs one"));
        }
    }
    if faults.is_empty() {
        return Ok(());
    }
    faults.push("nothing was written; --force writes it all the same".to_owned());
    Err(StartError::Usage(faults))
}

/// A word beside what the command answers.
fn note(text: &str) {
    // A warning that cannot be written does not make the command fail.
    let _ = writeln!(std::io::stderr(), "warning: {text}");
}

fn unknown(id: &SandboxId) -> StartError {
    StartError::Assembly(format!("{id}: no such sandbox"))
}

#[cfg(test)]
mod tests {
    use cube_metadata::FileStore;

    use super::*;

    async fn with(store: &FileStore, action: Action, json: bool) -> Result<Vec<String>, String> {
        act(store, &action, json).await.map_err(|error| error.to_string())
    }

    fn box_1() -> SandboxId {
        SandboxId::parse("box-1").unwrap()
    }

    #[tokio::test]
    async fn records_are_written_read_listed_and_removed() {
        let store = FileStore::from_yaml("sandboxes: {other: {HostIP: 10.0.0.2}}").unwrap();
        let fields = vec![field("HostIP=10.0.0.1").unwrap(), field("8080=49983").unwrap()];
        with(&store, Action::Put { id: box_1(), fields, force: false }, false).await.unwrap();
        let get = || Action::Get { id: box_1(), show_token: false };
        assert_eq!(with(&store, get(), false).await.unwrap(), ["8080: 49983", "HostIP: 10.0.0.1"]);
        assert_eq!(with(&store, get(), true).await.unwrap(), [r#"{"8080":"49983","HostIP":"10.0.0.1"}"#]);
        assert_eq!(with(&store, Action::List, false).await.unwrap(), ["box-1", "other"]);
        assert_eq!(with(&store, Action::List, true).await.unwrap(), [r#"["box-1","other"]"#]);
        with(&store, Action::Delete { id: box_1() }, false).await.unwrap();
        assert_eq!(with(&store, get(), false).await.unwrap_err(), "box-1: no such sandbox");
        let gone = with(&store, Action::Delete { id: box_1() }, false).await;
        assert_eq!(gone.unwrap_err(), "box-1: no such sandbox");
    }

    #[tokio::test]
    async fn what_no_record_may_have_is_refused_unless_forced() {
        let store = FileStore::from_yaml("sandboxes: {box-1: {HostIP: 10.0.0.2}}").unwrap();
        let put = |id: &str, texts: &[&str], force| Action::Put {
            id: SandboxId::parse(id).unwrap(),
            fields: texts.iter().map(|text| field(text).unwrap()).collect(),
            force,
        };
        for (id, texts, said) in [
            ("box-1", &["HostIp=10.0.0.1", "3000=abc"][..], "did you mean HostIP?"),
            ("box-1", &["HostIp=10.0.0.1", "3000=abc"], "3000 must be a port"),
            ("box-1", &["HostIP="], "HostIP must be an address"),
            ("box-1", &["AllowPublicTraffic=maybe"], "must be true or false"),
            ("box-1", &["8080=1", "8080=2"], "8080 is given twice"),
            ("new", &["8080=49983"], "new has no HostIP yet"),
        ] {
            let error = with(&store, put(id, texts, false), false).await.unwrap_err();
            assert!(error.contains(said) && error.ends_with("--force writes it all the same"), "{error}");
        }
        assert_eq!(store.list().await.unwrap().len(), 1, "nothing was written");
        for (id, texts, force) in [
            ("box-1", &["Status=paused", "Owner=somebody"][..], false),
            ("box-1", &["HostIP=999.1.1.1"], true),
            ("new", &["8080=abc"], true),
        ] {
            with(&store, put(id, texts, force), false).await.unwrap();
        }
        let fields = store.get(&box_1()).await.unwrap().unwrap();
        assert_eq!((fields["HostIP"].as_str(), fields["Owner"].as_str()), ("999.1.1.1", "somebody"));
    }

    #[tokio::test]
    async fn the_token_is_shown_only_when_asked_for() {
        let text = "sandboxes: {box-1: {TrafficAccessToken: example-token}}";
        let store = FileStore::from_yaml(text).unwrap();
        for json in [false, true] {
            let masked = with(&store, Action::Get { id: box_1(), show_token: false }, json).await.unwrap();
            assert!(!masked.join("").contains("example-token"), "{masked:?}");
        }
        let shown = with(&store, Action::Get { id: box_1(), show_token: true }, false).await.unwrap();
        assert_eq!(shown, ["TrafficAccessToken: example-token"]);
    }

    #[test]
    fn a_field_needs_a_name_and_may_hold_further_equals_signs() {
        assert_eq!(field("A=b=c"), Ok(("A".to_owned(), "b=c".to_owned())));
        assert_eq!(field("A="), Ok(("A".to_owned(), String::new())));
        assert!(field("=b").is_err() && field("A").is_err());
    }
}
