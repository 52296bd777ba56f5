//! Whether `run` could make its files where the configuration puts them. Nothing is made here: the
//! one who checks need not be the one who serves, and would leave files of another owner behind.

use std::io::{Error, ErrorKind};
use std::path::Path;

use rustix::fs::{Access, access};

use crate::error::StartError;
use crate::run_dir::RunDir;

/// Whether the access log could be opened.
///
/// # Errors
/// [`StartError::Named`] says why not.
pub(super) fn access_log(path: &Path) -> Result<(), StartError> {
    let fault = |reason: String| StartError::Named { key: "access_log.path", path: path.to_owned(), reason };
    if path.is_dir() {
        return Err(fault("is a directory".to_owned()));
    }
    match access(path, Access::WRITE_OK).map_err(Error::from) {
        Ok(()) => Ok(()),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            let directory = directory.unwrap_or(Path::new("."));
            holds_files(directory)
                .map_err(|reason| fault(format!("cannot be made: {} {reason}", directory.display())))
        }
        Err(error) => Err(fault(format!("may not be written by this user: {error}"))),
    }
}

/// Whether this user could serve from the run directory.
///
/// # Errors
/// [`StartError`] says why not.
pub(super) fn run_dir(run_dir: &RunDir) -> Result<(), StartError> {
    let path = run_dir.path();
    let fault = |reason: String| StartError::Named { key: "server.run_dir", path: path.to_owned(), reason };
    if path.symlink_metadata().is_ok() {
        // The directory is there, so this creates nothing, and only checks whose it is.
        run_dir.create()?;
        return holds_files(path).map_err(fault);
    }
    let above = path.ancestors().skip(1).map(|above| match above.as_os_str().is_empty() {
        true => Path::new("."),
        false => above,
    });
    match above.into_iter().find(|above| above.exists()) {
        Some(above) => holds_files(above)
            .map_err(|reason| fault(format!("cannot be made: {} {reason}", above.display()))),
        None => Err(fault("cannot be made".to_owned())),
    }
}

/// Whether files can be made in a directory; why not, in words that follow its name.
fn holds_files(directory: &Path) -> Result<(), String> {
    let found = directory.metadata().map_err(|error| match error.kind() {
        ErrorKind::NotFound => "is no directory".to_owned(),
        _ => format!("cannot be looked at: {error}"),
    })?;
    if !found.is_dir() {
        return Err("is no directory".to_owned());
    }
    access(directory, Access::WRITE_OK | Access::EXEC_OK)
        .map_err(|error| format!("may not be written by this user: {}", Error::from(error)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Environment;

    #[test]
    fn an_access_log_needs_a_directory_and_is_not_made() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        access_log(&at("access.log")).unwrap();
        assert!(!at("access.log").exists());
        std::fs::write(at("file"), "").unwrap();
        access_log(&at("file")).unwrap();
        for (name, says) in [
            ("missing/access.log", "missing is no directory"),
            ("file/access.log", "file is no directory"),
            ("", "is a directory"),
        ] {
            let error = access_log(&at(name)).unwrap_err();
            assert_eq!(error.exit_code(), 1);
            let said = error.to_string();
            assert!(said.starts_with("access_log.path: ") && said.contains(says), "{said}");
        }
    }

    #[test]
    fn a_run_directory_must_be_one_that_can_be_made_or_used() {
        let directory = tempfile::tempdir().unwrap();
        let of = |path: &Path| run_dir(&RunDir::locate(Some(path), &Environment::default()));
        let new = directory.path().join("a/b/c");
        of(&new).unwrap();
        assert!(!new.exists() && !directory.path().join("a").exists(), "nothing is made");
        of(directory.path()).unwrap();
        let file = directory.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(of(&file).is_err());
        let said = of(&file.join("inside")).unwrap_err().to_string();
        assert!(said.starts_with("server.run_dir: ") && said.contains("file is no directory"), "{said}");
    }
}
