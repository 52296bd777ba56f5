//! Containers: when process 1 ends, the kernel ends every process beside it, a successor too.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The inode of the machine's own namespace of processes (`PROC_PID_INIT_INO` of the kernel).
const MACHINE: u64 = 0xEFFF_FFFC;

/// The parent of this process; none where it is no process that can be seen from here: it was started
/// from outside of its container, or its parent is of another container that shares the processes.
pub(super) fn parent() -> Option<i32> {
    rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get())
}

/// Whether this process is in a container whose process 1 is no service manager.
pub(super) fn contained() -> bool {
    let machine = std::fs::metadata("/proc/self/ns/pid").is_ok_and(|namespace| namespace.ino() == MACHINE);
    !machine && !Path::new("/run/systemd/system").exists()
}

/// Why a process cannot hand over: it is process 1, or what a container's process 1 started, which
/// ends with it as `tini` and its like do, or what a container's runtime watches from outside, which
/// ends the container with it. `parent` is the one that it was started by; only in a container can
/// that be out of sight. What was started into a running container (`podman exec`) looks the same.
pub(super) fn obstacle(own: u32, parent: Option<i32>, managed: bool, contained: bool) -> Option<String> {
    let because = match (own, parent) {
        (1, _) => "the running process is process 1 of its container",
        (_, Some(1)) if contained && !managed => {
            "the running process was started by process 1 of its container, which ends with it"
        }
        (_, None) if !managed => {
            "the running process was started from outside of its container (by the container's runtime, which ends \
             the container with it, or into a container that runs, as by podman exec: the two look the same)"
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
    fn what_a_container_ends_with_cannot_hand_over() {
        assert!(obstacle(1, None, false, true).unwrap().contains("Start another container"));
        assert!(obstacle(1, None, true, false).is_some(), "whoever listens");
        assert!(obstacle(7, Some(1), false, true).unwrap().contains("started by process 1"));
        assert!(obstacle(7, None, false, true).unwrap().contains("from outside of its container"));
        assert!(obstacle(7, None, false, false).is_some(), "a container that systemd can be seen from");
        assert!(obstacle(7, None, true, true).is_none(), "a service manager takes the successor");
        assert!(obstacle(7, Some(1), true, true).is_none(), "a service manager takes the successor");
        assert!(obstacle(7, Some(1), false, false).is_none(), "an orphan on a machine");
        assert!(obstacle(7, Some(6), false, true).is_none(), "a shell in a container");
    }
}
