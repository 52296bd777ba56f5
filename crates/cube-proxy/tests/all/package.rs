//! What is in deploy/: the Debian package is built, looked into, installed into a directory; its
//! scripts are run with a systemctl that only writes down what it is asked; the rotation of the
//! log; the container file.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use cube_testkit::serde_json::json;
use cube_testkit::{Origin, eventually, free_port, unique_id};

use crate::documents::links;
use crate::support::{binary, cannot, own};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// A directory that is removed in the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        let path = std::env::temp_dir().join(unique_id("cube-package-"));
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[track_caller]
fn done(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let said = String::from_utf8_lossy(&stdout).into_owned();
    assert!(status.success(), "{command:?}: {status}\n{said}{}", String::from_utf8_lossy(&stderr));
    said
}

fn build(into: &Scratch) -> PathBuf {
    let mut command = Command::new(root().join("deploy/build-deb"));
    PathBuf::from(done(command.arg(binary()).arg(&into.0)).trim())
}

const FILES: [(&str, &str); 17] = [
    ("-rwxr-xr-x", "./usr/bin/cube-proxy"),
    ("-rw-r--r--", "./etc/cube-proxy/cube-proxy.yaml"),
    ("-rw-r--r--", "./etc/logrotate.d/cube-proxy"),
    ("-rw-r--r--", "./usr/lib/systemd/system/cube-proxy.service"),
    ("-rw-r--r--", "./usr/lib/sysusers.d/cube-proxy.conf"),
    ("-rw-r--r--", "./usr/lib/tmpfiles.d/cube-proxy.conf"),
    ("-rw-r--r--", "./usr/share/man/man1/cube-proxy.1.gz"),
    ("-rw-r--r--", "./usr/share/man/man1/cube-proxy-run.1.gz"),
    ("-rw-r--r--", "./usr/share/man/man1/cube-proxy-sandbox-put.1.gz"),
    ("-rw-r--r--", "./usr/share/bash-completion/completions/cube-proxy"),
    ("-rw-r--r--", "./usr/share/zsh/vendor-completions/_cube-proxy"),
    ("-rw-r--r--", "./usr/share/fish/vendor_completions.d/cube-proxy.fish"),
    ("-rw-r--r--", "./usr/share/doc/cube-proxy/cube-proxy.yaml"),
    ("-rw-r--r--", "./usr/share/doc/cube-proxy/operating.md"),
    ("-rw-r--r--", "./usr/share/doc/cube-proxy/copyright"),
    ("-rw-r--r--", "./usr/share/cube-proxy/grafana/cube-proxy.json"),
    ("-rw-r--r--", "./usr/share/cube-proxy/prometheus/cube-proxy.rules.yml"),
];

#[test]
fn the_package_has_everything_and_installs_where_it_should() {
    let scratch = Scratch::new();
    let package = build(&scratch);
    let listed = done(Command::new("dpkg-deb").arg("-c").arg(&package));
    for (mode, file) in FILES {
        let line = listed.lines().find(|line| line.split_whitespace().last() == Some(file));
        let line = line.unwrap_or_else(|| panic!("no {file} in\n{listed}"));
        assert!(line.starts_with(&format!("{mode} root/root")), "{line}");
    }
    assert!(!listed.contains("/usr/local"), "{listed}");
    let version = done(Command::new("dpkg-deb").arg("-f").arg(&package).arg("Version"));
    assert_eq!(version.trim(), format!("{}-1", env!("CARGO_PKG_VERSION")));
    let conffiles = done(Command::new("dpkg-deb").arg("-I").arg(&package).arg("conffiles"));
    assert_eq!(conffiles, "/etc/cube-proxy/cube-proxy.yaml\n/etc/logrotate.d/cube-proxy\n");

    // What it installs works: the binary with its own configuration, on ports of this test.
    let tree = scratch.path("tree");
    done(Command::new("dpkg-deb").arg("-x").arg(&package).arg(&tree));
    for file in ["etc/cube-proxy/cube-proxy.yaml", "usr/share/doc/cube-proxy/cube-proxy.yaml"] {
        let mut check = Command::new(tree.join("usr/bin/cube-proxy"));
        check.args(["check", "-c"]).arg(tree.join(file));
        for listener in ["ADMIN", "METRICS"] {
            check.env(
                format!("CUBE_PROXY_LISTEN__{listener}"),
                format!("127.0.0.1:{}", free_port("127.0.0.1")),
            );
        }
        check.env("CUBE_PROXY_LISTEN__HTTP", format!("[\"127.0.0.1:{}\"]", free_port("127.0.0.1")));
        check.env("CUBE_PROXY_SERVER__RUN_DIR", scratch.path("run"));
        // What the package makes when it is installed.
        check.env("CUBE_PROXY_ACCESS_LOG__PATH", scratch.path("access.log"));
        let said = done(&mut check);
        assert!(said.contains("holds"), "{said}");
    }
    done(Command::new("bash").arg("-n").arg(tree.join("usr/share/bash-completion/completions/cube-proxy")));
    let page = tree.join("usr/share/man/man1/cube-proxy-top.1.gz");
    let page = done(Command::new("gzip").arg("-dc").arg(page));
    assert!(page.starts_with(".ie") && page.contains("Examples:"), "{page}");
}

/// Every relative link of the pages that are installed, and every one to a place in the system that
/// this package fills, leads to a file of the package.
#[test]
fn links_of_the_packaged_pages_lead_to_what_is_installed() {
    let scratch = Scratch::new();
    let tree = scratch.path("tree");
    done(Command::new("dpkg-deb").arg("-x").arg(build(&scratch)).arg(&tree));
    let (mut directories, mut followed) = (vec![tree.join("usr/share/doc/cube-proxy")], 0);
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
                continue;
            }
            if path.extension().is_none_or(|extension| extension != "md") {
                continue;
            }
            for link in links(&fs::read_to_string(&path).unwrap()) {
                let file = link.split('#').next().unwrap();
                if link.contains("://") || file.is_empty() {
                    continue;
                }
                let target = match file.strip_prefix('/') {
                    Some(installed) => tree.join(installed),
                    None => path.parent().unwrap().join(file),
                };
                assert!(target.exists(), "{}: {link}", path.display());
                followed += 1;
            }
        }
    }
    assert!(followed > 30, "{followed} links");
}

/// Installs into a directory, as root of a system would be, and takes it away again. Maintainer
/// scripts run outside of it and keep to it by `DPKG_ROOT`.
#[test]
fn it_is_installed_kept_and_purged_by_dpkg() {
    if !rustix::process::geteuid().is_root() {
        return cannot("dpkg --root needs root");
    }
    let scratch = Scratch::new();
    let package = build(&scratch);
    let system = scratch.path("system");
    for directory in ["var/lib/dpkg/info", "var/lib/dpkg/updates", "var/lib/dpkg/triggers", "etc", "var/log"]
    {
        fs::create_dir_all(system.join(directory)).unwrap();
    }
    fs::write(system.join("var/lib/dpkg/status"), "").unwrap();
    let dpkg = |arguments: &[&str]| {
        let mut command = Command::new("dpkg");
        command
            .arg(format!("--root={}", system.display()))
            .args(["--force-script-chrootless", "--force-depends", "--force-confdef", "--force-confold"])
            .arg("--log=/dev/null")
            .args(arguments);
        done(&mut command)
    };
    let package = package.display().to_string();
    dpkg(&["--install", &package]);
    let users = fs::read_to_string(system.join("etc/passwd")).unwrap();
    assert!(users.lines().any(|line| line.starts_with("cube-proxy:") && line.contains("nologin")), "{users}");
    let logs = fs::metadata(system.join("var/log/cube-proxy")).unwrap();
    assert_eq!(logs.permissions().mode() & 0o777, 0o750);

    // What the administrator wrote stays, in the next installation and after removal.
    let file = system.join("etc/cube-proxy/cube-proxy.yaml");
    fs::write(&file, "limits: { body: 1GiB }\n").unwrap();
    dpkg(&["--install", &package]);
    assert!(fs::read_to_string(&file).unwrap().contains("1GiB"));
    dpkg(&["--remove", "cube-proxy"]);
    assert!(file.exists() && !system.join("usr/bin/cube-proxy").exists());
    dpkg(&["--purge", "cube-proxy"]);
    assert!(!file.exists() && !system.join("var/log/cube-proxy").exists());
}

/// What a script of the package asks of systemctl, where systemd runs. `fails`: the words of a
/// systemctl call that fails.
fn asked(script: &str, arguments: &str, fails: &str) -> Option<(String, String)> {
    let scratch = Scratch::new();
    for (name, body) in [
        ("systemctl", format!("echo \"$*\" >>{0}/asked\n[ \"$1\" != '{fails}' ]", scratch.0.display())),
        ("systemd-sysusers", "true".to_owned()),
        ("systemd-tmpfiles", "true".to_owned()),
    ] {
        let file = scratch.path(name);
        fs::write(&file, format!("#!/bin/sh\n{body}\n")).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    }
    // A mount namespace of its own, in which systemd seems to run.
    let script = root().join("deploy/debian").join(script);
    let command = format!(
        "mount -t tmpfs none /run && mkdir -p /run/systemd/system && PATH={}:$PATH sh {} {arguments} 2>&1",
        scratch.0.display(),
        script.display()
    );
    let output = Command::new("unshare").args(["-rm", "sh", "-c", &command]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() && String::from_utf8_lossy(&output.stderr).contains("unshare") {
        // Not allowed here.
        return None;
    }
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    Some((fs::read_to_string(scratch.path("asked")).unwrap_or_default(), said))
}

#[test]
fn an_upgrade_swaps_the_binary_and_a_first_installation_starts_nothing() {
    let Some((first, said)) = asked("postinst", "configure ''", "") else {
        return cannot("unshare -rm is not allowed");
    };
    assert_eq!(first, "daemon-reload\n");
    assert!(said.contains("enable --now cube-proxy"), "{said}");
    let upgrade = |fails| asked("postinst", "configure 0.0.9", fails).unwrap();
    let reloaded = "daemon-reload\nis-active --quiet cube-proxy.service\nreload cube-proxy.service\n";
    assert_eq!(upgrade(""), (reloaded.to_owned(), String::new()));
    let (calls, said) = upgrade("reload");
    assert!(calls == reloaded && said.contains("the old one serves on"), "{said}");
    assert_eq!(upgrade("is-active").0, "daemon-reload\nis-active --quiet cube-proxy.service\n");
    assert_eq!(asked("prerm", "upgrade 0.2.0", "").unwrap().0, "");
    assert_eq!(asked("prerm", "remove", "").unwrap().0, "disable --now cube-proxy.service\n");
    assert_eq!(asked("postrm", "remove", "").unwrap().0, "daemon-reload\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn logrotate_turns_the_log_over_and_no_line_is_lost() {
    let env = own(json!({})).await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).await;
    let directory = env.proxy.directory();
    // The shipped file with the paths, the user and the size of this test.
    let shipped = fs::read_to_string(root().join("deploy/logrotate.d/cube-proxy")).unwrap();
    let text = shipped
        .replace("/var/log/cube-proxy/", &format!("{}/", directory.display()))
        .replace("/run/cube-proxy/", &format!("{}/", directory.display()))
        .replace("    su cube-proxy cube-proxy\n", "")
        .replace("size 500M", "size 1");
    assert_eq!(text.matches(&directory.display().to_string()).count(), 2, "{text}");
    let file = directory.join("rotate.conf");
    fs::write(&file, text).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    let rotate = || {
        done(Command::new("logrotate").arg("-s").arg(directory.join("rotate.state")).arg(&file));
    };
    let mut ids = Vec::new();
    for _ in 0..5 {
        let response = env.get(&sandbox, "/").await;
        let id = response.request_id();
        env.proxy.log_line(&id).await;
        ids.push(id);
        rotate();
        eventually("a new log", || async { directory.join("access.log").exists().then_some(()) }).await;
    }
    let (mut all, mut kept) = (String::new(), 0);
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if !name.starts_with("access.log") {
            continue;
        }
        kept += usize::from(name != "access.log");
        all.push_str(&match name.ends_with(".gz") {
            true => done(Command::new("gzip").arg("-dc").arg(&path)),
            false => fs::read_to_string(&path).unwrap(),
        });
    }
    assert_eq!(kept, 3, "old files");
    for id in &ids[2..] {
        assert_eq!(all.matches(id.as_str()).count(), 1, "{id} in\n{all}");
    }
}

#[test]
fn the_container_file_copies_what_is_there_and_starts_what_is_known() {
    let text = fs::read_to_string(root().join("deploy/Containerfile")).unwrap();
    let joined = text.replace("\\\n", " ");
    let instructions: Vec<(&str, &str)> = joined
        .lines()
        .filter(|line| !line.trim().is_empty() && !line.starts_with('#'))
        .map(|line| line.split_once(' ').unwrap_or_else(|| panic!("no instruction: {line:?}")))
        .collect();
    let known = [
        "FROM",
        "WORKDIR",
        "COPY",
        "RUN",
        "ENV",
        "USER",
        "EXPOSE",
        "STOPSIGNAL",
        "HEALTHCHECK",
        "ENTRYPOINT",
        "CMD",
    ];
    let sources = |copied: &str| {
        let mut words: Vec<PathBuf> = copied.split_whitespace().map(|word| root().join(word)).collect();
        words.pop();
        words
    };
    for (word, rest) in &instructions {
        assert!(known.contains(word), "{word} {rest}");
        if *word == "COPY" && !rest.starts_with("--from=") {
            for source in sources(rest) {
                assert!(source.exists(), "COPY {}", source.display());
            }
        }
    }
    // The build context is what is copied, not what lies beside it.
    let ignored = fs::read_to_string(root().join(".containerignore")).unwrap();
    assert!(ignored.lines().any(|line| line == "*"), "{ignored}");
    for (_, copied) in
        instructions.iter().filter(|(word, rest)| *word == "COPY" && !rest.starts_with("--from="))
    {
        for source in copied.split_whitespace().rev().skip(1) {
            let top = source.trim_start_matches("./").split('/').next().unwrap();
            assert!(ignored.lines().any(|line| line == format!("!{top}")), "{source} is not in the context");
        }
    }
    // podman's own format has no HEALTHCHECK.
    assert!(text.contains("podman build --format docker -f deploy/Containerfile"), "the command to type");
    // What the first stage copies is a whole workspace.
    let stage = tempfile::tempdir().unwrap();
    let first_stage = instructions.iter().skip(1).take_while(|(word, _)| *word != "FROM");
    for (_, copied) in first_stage.filter(|(word, _)| *word == "COPY") {
        let done = Command::new("cp").arg("-r").args(sources(copied)).arg(stage.path()).status();
        assert!(done.unwrap().success(), "COPY {copied}");
    }
    let cargo = Command::new(env!("CARGO"))
        .args(["metadata", "--offline", "--locked", "--no-deps", "--format-version", "1"])
        .current_dir(stage.path())
        .output()
        .unwrap();
    assert!(cargo.status.success(), "{}", String::from_utf8_lossy(&cargo.stderr));
    let of = |word: &str| {
        instructions.iter().filter(|(w, _)| *w == word).map(|(_, rest)| *rest).collect::<Vec<_>>()
    };
    assert_eq!(of("FROM").len(), 2, "two stages");
    assert!(of("USER").iter().all(|user| *user != "root" && *user != "0"), "not as root");
    // What it starts is a command line of this binary.
    let words = |json: &str| cube_testkit::serde_json::from_str::<Vec<String>>(json).unwrap();
    let health = of("HEALTHCHECK")[0].split_once("CMD ").unwrap().1;
    for command in [words(of("CMD")[0]), words(health)[1..].to_vec()] {
        let help = Command::new(binary()).arg(&command[0]).arg("--help").output().unwrap();
        assert!(help.status.success(), "{command:?}");
        assert_eq!(command[1..], ["-c", "/etc/cube-proxy/cube-proxy.yaml"]);
    }
    // Every variable that it sets is a key.
    let names = of("ENV").join(" ");
    let reference = fs::read_to_string(root().join("docs/configuration.md")).unwrap();
    for name in names.split_whitespace().filter_map(|pair| pair.split_once('=')).map(|pair| pair.0) {
        assert!(reference.contains(&format!("`{name}`")), "{name} is no key");
    }
}
