//! Names of the files of grants, by which those are found that a killed holder has left.

use std::{fs, os::unix::fs::MetadataExt as _, path::Path};

use outboard_trust::{hex, random};
use rustix::{
    io::Errno,
    process::{Pid, test_kill_process},
};

/// Returns a name for the grants of this process, or of the program that it becomes.
pub(super) fn new_name() -> anyhow::Result<String> {
    let number = hex::encode(&random::<8>()?);
    Ok(format!("{}{}-{number}", prefix(), std::process::id()))
}

/// Removes the files whose program has ended.
pub(super) fn remove_left(folder: &Path) {
    let prefix = prefix();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let rest = name.to_str().and_then(|name| name.strip_prefix(&prefix));
        let pid = rest.and_then(|rest| rest.split_once('-')?.0.parse().ok());
        let is_left = pid
            .and_then(Pid::from_raw)
            .is_some_and(|pid| test_kill_process(pid) == Err(Errno::SRCH));
        if is_left {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Returns the start of the names of this container: processes of others cannot be looked at.
fn prefix() -> String {
    let namespace = fs::metadata("/proc/self/ns/pid").map_or(0, |of| of.ino());
    format!("grants-{namespace}-")
}
