//! Containers: when process 1 ends, the kernel ends every process beside it, a successor too.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The inode of the machine's own namespace of processes (`PROC_PID_INIT_INO` of the kernel).
const MACHINE: u64 = 0xEFFF_FFFC;

/// The parent of this process; 0 is no process that can be seen from here.
pub(super) fn parent() -> Option<i32> {
    rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get())
}

/// Whether this process is in a container whose process 1 is no service manager.
pub(super) fn contained() -> bool {
    let machine = std::fs::metadata("/proc/self/ns/pid").is_ok_and(|namespace| namespace.ino() == MACHINE);
    !machine && !Path::new("/run/systemd/system").exists()
}

/// Why a process cannot hand over: it is process 1, or what a container's process 1 started, which
/// ends with it as `tini` and its like do. `parent` is the one that it was started by.
pub(super) fn obstacle(own: u32, parent: Option<i32>, managed: bool, contained: bool) -> Option<String> {
    let because = match (own, parent) {
        (1, _) => "the running process is process 1 of its container",
        (_, Some(1)) if contained && !managed => {
            "the running process was started by process 1 of its container, which ends with it"
        }
        _ => return None,
    };
    Some(format!(
        "{because}: a hand-over would end the container, and the new process with it. Start another container of \
         the new image instead, then stop this one: it drains (docs/upgrade.md, In a container)"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_1_and_what_the_init_of_a_container_started_cannot_hand_over() {
        assert!(obstacle(1, None, false, true).unwrap().contains("Start another container"));
        assert!(obstacle(1, None, true, false).is_some(), "whoever listens");
        assert!(obstacle(7, Some(1), false, true).unwrap().contains("started by process 1"));
        assert!(obstacle(7, Some(1), true, true).is_none(), "a service manager takes the successor");
        assert!(obstacle(7, Some(1), false, false).is_none(), "an orphan on a machine");
        assert!(obstacle(7, Some(6), false, true).is_none(), "a shell in a container");
    }
}
