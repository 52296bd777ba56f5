//! `cube-proxy explain`: how a request would be routed (operations.md).

use clap::Args;
use cube_edge::ExplainQuery;
use http::Method;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

use crate::config::Config;
use crate::error::StartError;
use crate::serve;

use super::file::ConfigFile;
use super::{admin, block_on, progress, say};

/// Which request.
#[derive(Debug, Args)]
pub(super) struct Options {
    #[command(flatten)]
    file: ConfigFile,
    /// A header of the request; may be given more than once
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE")]
    headers: Vec<String>,
    /// Its method
    #[arg(short = 'X', long, value_name = "METHOD", default_value = "GET")]
    method: String,
    /// Answer in JSON: who was asked, the steps, the response
    #[arg(long)]
    pub(super) json: bool,
    /// Where the request would go, as the client writes it
    url: String,
}

pub(super) fn run(options: &Options) -> Result<(), StartError> {
    let config = options.file.load_for(&["admin"])?;
    // What cannot be understood is said without asking anybody.
    let question = question(options).map_err(|error| StartError::Assembly(error.to_string()))?;
    let (source, mut told) = block_on(progress::with("asking", async {
        if config.listen.admin.is_some() {
            match ask_running(&config, options).await {
                Ok(told) => return Ok(("running proxy", told)),
                Err(StartError::NotRunning { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        let config = options.file.load_for(&["admin", "store", "routing"])?;
        Ok(("store", look_up(&config, &question).await?))
    }))?;
    if options.json {
        if let Some(told) = told.as_object_mut() {
            told.insert("source".to_owned(), source.into());
        }
        say(&told)?;
    } else {
        for line in lines(&told, source) {
            say(line)?;
        }
    }
    if told.pointer("/answer/reason").is_some_and(|reason| reason == "store_unavailable") {
        return Err(StartError::Told("the store cannot answer, so that no more can be explained".to_owned()));
    }
    Ok(())
}

fn question(options: &Options) -> Result<ExplainQuery, cube_edge::ExplainQueryError> {
    ExplainQuery::new(&options.url, options.headers.iter().map(String::as_str))?.method(&options.method)
}

async fn ask_running(config: &Config, options: &Options) -> Result<Value, StartError> {
    let encoded = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
    let mut target =
        format!("/admin/explain?url={}&method={}", encoded(&options.url), encoded(&options.method));
    for header in &options.headers {
        target.push_str("&header=");
        target.push_str(&encoded(header));
    }
    admin::ask(config, Method::GET, &target, String::new()).await
}

/// No proxy runs: what the configuration and the store say.
async fn look_up(config: &Config, question: &ExplainQuery) -> Result<Value, StartError> {
    let registry = prometheus::Registry::new();
    let gateway = serve::assemble(config, config.open_store(&registry)?, serve::Told::default(), &registry)?;
    gateway.breaker().refresh().await;
    Ok(gateway.explain(question).await)
}

/// One line a step, aligned, then the response.
fn lines(told: &Value, source: &str) -> Vec<String> {
    let says = |value: &Value| value["says"].as_str().unwrap_or_default().to_owned();
    let line = |name: &str, mark: &str, says: String| format!("{name:<9}{mark:<6}{says}");
    let steps = told["steps"].as_array().into_iter().flatten().map(|step| {
        let mark = if step["ok"].as_bool() == Some(true) { "ok" } else { "stop" };
        line(step["step"].as_str().unwrap_or_default(), mark, says(step))
    });
    let answer = &told["answer"];
    let mut lines: Vec<String> = steps.collect();
    lines.push(line("answer", "", says(answer)));
    if let Some(body) = answer["body"].as_str().filter(|body| !body.is_empty()) {
        lines.push(line("", "", body.to_owned()));
    }
    lines.push(match source {
        "store" => {
            "(as the store says and this machine is: no running proxy was asked, so pushed states and breakers \
             are not known)"
                .to_owned()
        }
        source => format!("(as the {source} sees it)"),
    });
    lines
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn steps_are_shown_line_by_line_and_the_answer_last() {
        let told = json!({
            "steps": [
                { "step": "target", "ok": true, "says": "sandbox a, port 1" },
                { "step": "record", "ok": false, "says": "there is none" },
            ],
            "answer": { "says": "404", "body": "{}" },
        });
        let want = [
            "target   ok    sandbox a, port 1",
            "record   stop  there is none",
            "answer         404",
            "               {}",
            "(as the running proxy sees it)",
        ];
        assert_eq!(lines(&told, "running proxy"), want);
    }
}
