//! Links that are made by the command, the admin API, the demo, and by the recipes of docs/previews.md.

use std::process::Command;

use cube_testkit::serde_json::{self, Value, json};
use cube_testkit::{Client, Env, Origin};

use super::*;
use crate::support::own;
use crate::tools::run;

async fn env() -> Env {
    own(json!({ "routing": { "domains": ["cube.test"] } })).await
}

/// Opens a link as curl would, and says what the sandbox got.
async fn opened(env: &Env, url: &str) -> (String, u16) {
    let rest = url.split_once("://").unwrap().1;
    let (authority, target) = rest.split_at(rest.find('/').unwrap());
    let response =
        Client::connect(env.proxy.http()).await.call("GET", target, &[("Host", authority)], "").await;
    (if response.status == 200 { response.seen().target } else { String::new() }, response.status)
}

#[tokio::test]
async fn the_admin_api_makes_a_link() {
    let env = env().await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).token(TOKEN).await;
    let ask = async |id: &str, body: Value| {
        let path = format!("/admin/sandboxes/{id}/link");
        let made = env.proxy.admin("POST", &path, &body.to_string()).await;
        assert_eq!(made.headers.all("cache-control"), ["no-store"]);
        (made.status, serde_json::from_slice::<Value>(&made.body).unwrap())
    };
    let (status, made) = ask(&sandbox.id, json!({"port": 8080, "ttl_seconds": 60, "path": "/p?q"})).await;
    assert_eq!(status, 200, "{made}");
    let port = env.proxy.http().port();
    let want =
        format!("http://{}:{port}/p?q&cube_preview={}", sandbox.host(), made["ticket"].as_str().unwrap());
    assert_eq!(made["url"], want);
    assert!(made["expires_at"].as_u64().unwrap().abs_diff(now() + 60) <= 5);
    assert_eq!(opened(&env, &want).await, ("/p?q".to_owned(), 200));
    let (_, made) = ask(&sandbox.id, json!({"port": 8080, "form": "path"})).await;
    assert_eq!(opened(&env, made["url"].as_str().unwrap()).await, ("/".to_owned(), 200));

    let public = env.sandbox(&origin).await;
    let short = env.sandbox(&origin).token("example-15bytes").await;
    let nobody = env.nobody();
    for (id, body, status) in [
        (&public.id, json!({"port": 8080}), 409),
        (&short.id, json!({"port": 8080}), 409),
        (&sandbox.id, json!({"port": 49983}), 409),
        (&sandbox.id, json!({"port": 8080, "ttl_seconds": 86_401}), 409),
        (&sandbox.id, json!({"port": 8080, "path": "x"}), 409),
        (&sandbox.id, json!({"port": 8080, "path": "/?cube_preview=x"}), 409),
        (&nobody.id, json!({"port": 8080}), 404),
        (&sandbox.id, json!({"port": 0}), 400),
        (&sandbox.id, json!({"port": 8080, "ttl_seconds": 0}), 400),
        (&sandbox.id, json!({"port": 8080, "wrong": 1}), 400),
        (&"a.b".to_owned(), json!({"port": 8080}), 400),
    ] {
        let (got, text) = ask(id, body.clone()).await;
        assert_eq!(got, status, "{body}: {text}");
        assert!(!text["error"].as_str().unwrap().is_empty() && !text.to_string().contains("example-"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_makes_a_link() {
    let env = env().await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).token(TOKEN).await;
    let public = env.sandbox(&origin).await;
    let config = env.proxy.directory().join("cube-proxy.yaml").display().to_string();
    let link = |arguments: &[&str]| {
        let all = [&["sandbox", "-c", &config, "link"], arguments].concat();
        let output = run(&all);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let (code, url, _) = link(&[&sandbox.id, "8080", "--path", "/p?q", "--ttl", "90s"]);
    assert_eq!(code, Some(0), "{url}");
    assert_eq!(opened(&env, &url).await, ("/p?q".to_owned(), 200));
    let (_, made, _) = link(&[&sandbox.id, "3000", "--any-port", "--form", "path", "--json"]);
    let made: Value = serde_json::from_str(&made).unwrap();
    assert!(
        made["url"].as_str().unwrap().contains(&format!("/sandbox/{}/3000/?cube_preview=v1.", sandbox.id))
    );
    assert!(made["ticket"].as_str().unwrap().contains(".any."));
    for (arguments, said) in [
        (&[sandbox.id.as_str(), "49983"][..], "envd"),
        (&[&sandbox.id, "8080", "--ttl", "25h"], "max_ttl"),
        (&[&sandbox.id, "8080", "--path", "x"], "path"),
        (&[&sandbox.id, "8080", "--path", "/#x"], "path"),
        (&[&public.id, "8080"], "public"),
        (&["nobody", "8080"], "no such sandbox"),
    ] {
        let (code, out, said_so) = link(arguments);
        assert_eq!((code, out.as_str()), (Some(1), ""), "{arguments:?}: {said_so}");
        assert!(said_so.contains(said), "{arguments:?}: {said_so}");
    }
}

/// The block of docs/previews.md in a language.
fn recipe(language: &str) -> String {
    let page = include_str!("../../../../../docs/previews.md");
    let start = page.split_once(&format!("```{language}\n")).expect("a recipe").1;
    start.split_once("```").expect("its end").0.to_owned()
}

/// Runs a recipe with what calls it at its end.
fn made_by(directory: &std::path::Path, file: &str, command: &[&str], text: &str) -> String {
    let file = directory.join(file);
    std::fs::write(&file, text).unwrap();
    // Go keeps what it compiles, where there is a home or not.
    let mut program = Command::new(command[0]);
    program.args(&command[1..]).arg(&file).env("GOCACHE", directory.join("go"));
    let output =
        program.output().unwrap_or_else(|error| panic!("{} (scripts/test has it): {error}", command[0]));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_recipes_make_links_that_open() {
    let env = env().await;
    let origin = Origin::echo().await;
    let token = "example-token-ü-of-a-recipe";
    let sandbox = env.sandbox(&origin).token(token).await;
    let (directory, id) = (env.proxy.directory(), &sandbox.id);
    let python = format!(
        "{}\nprint(preview_link('http://cube.test', '{id}', 8080, '{token}', 600, '/p?q'))\n",
        recipe("python")
    );
    let python = made_by(directory, "recipe.py", &["python3"], &python);
    // Not every Node runs TypeScript: without its types it is JavaScript.
    let plain = recipe("typescript").replace(": string", "").replace(": number", "");
    let node = format!(
        "{plain}\nconsole.log(previewLink('http://cube.test', '{id}', 8080, '{token}', 600, '/p?q'))\n"
    );
    let node = made_by(directory, "recipe.mjs", &["node"], &node);
    let go = format!(
        "package main\n\nimport \"fmt\"\n\n{}\nfunc main() {{ fmt.Println(PreviewLink(\"http://cube.test\", \"{id}\", 8080, \"{token}\", 600, \"/p?q\")) }}\n",
        recipe("go")
    );
    let go = made_by(directory, "recipe.go", &["go", "run"], &go);
    for url in [python, node, go] {
        assert_eq!(opened(&env, &url).await, ("/p?q".to_owned(), 200), "{url}");
    }
}
