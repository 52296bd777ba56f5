//! `cube-proxy completions` and `cube-proxy man`: made from the definitions of the commands, so
//! that they never differ from them.

use std::path::PathBuf;

use clap::{Args, Command};
use clap_complete::Shell;

use super::say;
use crate::error::StartError;

/// For which shell.
#[derive(Debug, Args)]
pub(super) struct CompletionOptions {
    /// The shell
    shell: Shell,
}

/// Where to.
#[derive(Debug, Args)]
pub(super) struct ManOptions {
    /// Write a page for each command into this directory, instead of the main one on standard output
    #[arg(value_name = "DIRECTORY")]
    directory: Option<PathBuf>,
}

/// Writes the completion script to standard output.
pub(super) fn completions(options: &CompletionOptions, mut command: Command) -> Result<(), StartError> {
    let mut script = Vec::new();
    clap_complete::generate(options.shell, &mut command, "cube-proxy", &mut script);
    let script = String::from_utf8_lossy(&script);
    let script = if options.shell == Shell::Bash { one_name(&script) } else { script.into_owned() };
    say(script.trim_end())
}

/// The script for bash with one spelling of what it calls the program. The generator writes the
/// hyphen in two ways, in the part that finds the command and in the part that lists its words, so
/// that nothing would be completed after the first word.
fn one_name(script: &str) -> String {
    script.replace("cube__subcmd__proxy__", "cube__proxy__")
}

/// Writes the manual.
pub(super) fn man(options: &ManOptions, command: Command) -> Result<(), StartError> {
    if let Some(directory) = &options.directory {
        let failed = |source| StartError::File { path: directory.clone(), source };
        std::fs::create_dir_all(directory).map_err(failed)?;
        return clap_mangen::generate_to(command, directory).map_err(failed);
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(command)
        .render(&mut page)
        .map_err(|source| StartError::File { path: "the manual page".into(), source })?;
    say(String::from_utf8_lossy(&page).trim_end())
}
