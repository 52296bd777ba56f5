//! deploy/cube-proxy.service, as far as systemd can judge it without running it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn unit() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/cube-proxy.service");
    std::fs::read_to_string(path).unwrap()
}

/// The value of a setting that is there once.
fn setting(name: &str) -> String {
    let unit = unit();
    let values: Vec<&str> =
        unit.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('=')).collect();
    assert_eq!(values.len(), 1, "{name}: {values:?}");
    values[0].to_owned()
}

/// `systemd-analyze ARGS UNIT`, the unit naming a binary that is there.
fn analyze(args: &[&str]) -> Output {
    let directory = tempfile::tempdir().unwrap();
    let file: PathBuf = directory.path().join("cube-proxy.service");
    std::fs::write(&file, unit().replace("/usr/bin/cube-proxy", &crate::support::binary())).unwrap();
    let run =
        Command::new("systemd-analyze").args(args).arg(&file).env("SYSTEMD_LOG_LEVEL", "warning").output();
    run.expect("systemd-analyze (scripts/test installs it)")
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn systemd_finds_no_fault_in_the_unit() {
    let verified = analyze(&["verify"]);
    assert!(verified.status.success() && text(&verified).trim().is_empty(), "{}", text(&verified));
}

#[test]
fn the_unit_is_hardened() {
    // In tenths: below 3.
    let judged = analyze(&["security", "--offline=true", "--threshold=29", "--no-pager"]);
    assert!(judged.status.success(), "{}", text(&judged));
    let judged = text(&judged);
    println!("{}", judged.lines().find(|line| line.contains("Overall exposure")).expect("a sum"));
}

#[test]
fn its_times_leave_room_for_what_the_configuration_may_take() {
    let seconds = |name: &str| setting(name).parse::<u64>().unwrap();
    // drain.delay + drain.stop_timeout, and the last moments.
    assert!(seconds("TimeoutStopSec") >= 5 + 300 + 5);
    // drain.upgrade_timeout, and what follows.
    assert!(seconds("TimeoutStartSec") >= 60 + 35 + 5);
    assert_eq!(
        (setting("Type"), setting("NotifyAccess"), setting("KillMode")),
        ("notify".to_owned(), "all".to_owned(), "mixed".to_owned())
    );
    assert_eq!(setting("ExecReload"), format!("{} --upgrade", setting("ExecStart")));
}

#[test]
fn a_start_is_tried_again_unless_the_configuration_does_not_hold() {
    assert_eq!(setting("StartLimitIntervalSec"), "0");
    assert_eq!((setting("Restart"), setting("RestartPreventExitStatus")), ("on-failure".into(), "64".into()));
}
