//! Who may look into the memory of a process (operations.md, "Secrets in memory").

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use cube_testkit::serde_json::{Value, json};
use cube_testkit::{Env, Proxy};

use crate::support::binary;

/// What takes root's rights from a command, which then is root by name alone.
const NO_RIGHTS: &[&str] = &["setpriv", "--bounding-set=-all", "--inh-caps=-all"];

/// `arguments` without the rights by which root looks into every process.
fn without_rights(arguments: &[&str]) -> Vec<String> {
    let drop = if rustix::process::geteuid().is_root() { NO_RIGHTS } else { &[] };
    drop.iter().chain(arguments).map(ToString::to_string).collect()
}

/// A proxy that has no rights beyond its user's.
async fn unprivileged(directory: &Path, managed: bool, core_dumps: bool, config: Value) -> Env {
    let wrapper = directory.join("cube-proxy");
    let exec = without_rights(&[&binary()]).join(" ");
    std::fs::write(&wrapper, format!("#!/bin/sh\nexec {exec} \"$@\"\n")).unwrap();
    std::fs::set_permissions(&wrapper, std::fs::Permissions::from_mode(0o755)).unwrap();
    let builder = Proxy::builder(&wrapper.display().to_string()).config(&config);
    let builder = builder.environment("CUBE_PROXY_SERVER__CORE_DUMPS", &core_dumps.to_string());
    Env::start_with(if managed { builder.managed() } else { builder }).await
}

/// What another process of the same user reads of that process.
fn read(pid: u32, file: &str) -> Option<Vec<u8>> {
    let command = without_rights(&["cat", &format!("/proc/{pid}/{file}")]);
    let output = Command::new(&command[0]).args(&command[1..]).output().unwrap();
    output.status.success().then_some(output.stdout)
}

#[tokio::test]
async fn no_process_of_the_same_user_looks_into_it_unless_it_may() {
    let directory = tempfile::tempdir().unwrap();
    for may in [false, true] {
        let env = unprivileged(directory.path(), false, may, json!({})).await;
        let pid = env.proxy.id();
        assert!(read(pid, "status").is_some(), "everybody may see that it is there");
        for file in ["environ", "maps", "auxv"] {
            assert_eq!(read(pid, file).is_some(), may, "{file}, where it may: {may}");
        }
    }
}

#[tokio::test]
async fn a_hot_restart_goes_on_without_the_rights_of_root() {
    let directory = tempfile::tempdir().unwrap();
    for managed in [false, true] {
        let config = json!({ "access_log": { "path": "/dev/stdout" } });
        let env = unprivileged(directory.path(), managed, false, config).await;
        let first = env.proxy.id();
        env.proxy.upgrade().await;
        let second = env.proxy.id();
        assert_ne!(first, second);
        env.proxy.old_ended(0).await;
        assert_eq!(read(second, "environ"), None, "the successor keeps its secrets too");
    }
}
