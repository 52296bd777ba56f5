//! How the proxy's process is started.

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// The binary, its configuration, its environment.
pub(crate) struct Program {
    pub(crate) binary: PathBuf,
    pub(crate) directory: PathBuf,
    pub(crate) environment: Vec<(String, String)>,
}

impl Program {
    /// Writes the configuration file.
    pub(crate) fn configure(&self, config: &Value) {
        // JSON is YAML.
        let text = serde_json::to_string_pretty(config).expect("JSON");
        std::fs::write(self.file(), text).expect("a writable directory");
    }

    fn file(&self) -> PathBuf {
        self.directory.join("cube-proxy.yaml")
    }

    /// `run -c FILE` and what follows, with its output appended to a file in its directory.
    pub(crate) fn command(&self, arguments: &[&str], output: &str) -> Command {
        self.command_of(&self.binary, arguments, output)
    }

    /// The same with another binary.
    pub(crate) fn command_of(&self, binary: &Path, arguments: &[&str], output: &str) -> Command {
        let output = self.output(output);
        let mut command = Command::new(binary);
        command.args(["run", "-c"]).arg(self.file()).args(arguments).current_dir(&self.directory);
        // Tests look at the files of processes in /proc, as only root may where a process leaves no core dump.
        if !rustix::process::geteuid().is_root() {
            command.env("CUBE_PROXY_SERVER__CORE_DUMPS", "true");
        }
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.stdout(output.try_clone().expect("a file")).stderr(output);
        command
    }

    fn output(&self, name: &str) -> File {
        let path: &Path = &self.directory.join(name);
        OpenOptions::new().create(true).append(true).open(path).expect("a writable directory")
    }
}
