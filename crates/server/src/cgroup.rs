//! A control group for each worker, where the server's own group was given to it: cgroup v2, by
//! `Delegate=` of a systemd unit, or a container that hands its group on.
//!
//! ```text
//!   GROUP                     the server's own, in which no process stays
//!     supervisor              the server
//!     worker-PID              a worker: pids.max; memory.max and cpu.weight once it has a client
//! ```
//!
//! Without such a group all goes on as before, and the log says why.

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use tracing::{debug, warn};

use crate::limits::{WORKER_BASE_BYTES, WORKER_TASKS_MAX};

/// The root of the files that say what groups there are.
const PROC: &str = "/proc/self";
const SUPERVISOR: &str = "supervisor";
const WORKER: &str = "worker-";
/// The usual weight of a group's processes on the cores, as the kernel has it.
pub(super) const WEIGHT_DEFAULT: u64 = 100;
/// The most that a group's processes may weigh.
pub const WEIGHT_MAX: u64 = 10_000;

/// Why there is no control group for each worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoGroups(String);

impl fmt::Display for NoGroups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The control groups of a server's workers.
#[derive(Debug)]
pub(super) struct Groups {
    root: PathBuf,
    has_cpu: bool,
    /// Workers that have a group.
    pids: Mutex<Vec<u32>>,
}

/// Returns whether this process could give each worker a group of its own, or why not. Changes
/// nothing.
pub fn control_groups() -> Result<(), NoGroups> {
    controllers().map(drop)
}

/// Returns the controllers that each worker's group could have. Changes nothing.
pub(super) fn controllers() -> Result<Vec<String>, NoGroups> {
    let root = own(Path::new(PROC))?;
    usable(&root, std::process::id())
}

/// Returns the folder of this process's own group; of its parent, if it is in the subgroup of a
/// supervisor already.
fn own(proc: &Path) -> Result<PathBuf, NoGroups> {
    let none = || NoGroups("the kernel has no control groups of version 2".into());
    let read = |name| fs::read_to_string(proc.join(name)).map_err(|_| none());
    let (groups, mounts) = (read("cgroup")?, read("mountinfo")?);
    let path = groups.lines().find_map(|line| line.strip_prefix("0::"));
    let path = Path::new(path.ok_or_else(none)?);
    let mount = mounts.lines().find_map(|line| {
        let (fields, kind) = line.split_once(" - ")?;
        let mut fields = fields.split(' ').skip(3);
        let (root, at) = (fields.next()?, fields.next()?);
        let below = path.strip_prefix(root).ok()?;
        (kind.split(' ').next()? == "cgroup2").then(|| Path::new(at).join(below))
    });
    let own = mount.ok_or_else(none)?;
    Ok(match own.file_name() == Some(SUPERVISOR.as_ref()) {
        true => own.parent().map_or(own.clone(), Path::to_path_buf),
        false => own,
    })
}

/// Returns the controllers of a group whose processes this one may sort into groups below it.
fn usable(root: &Path, pid: u32) -> Result<Vec<String>, NoGroups> {
    let named =
        |what: fmt::Arguments<'_>| NoGroups(format!("the control group {} {what}", root.display()));
    let read = |name: &str| {
        fs::read_to_string(root.join(name))
            .map_err(|error| named(format_args!("says nothing: {error}")))
    };
    let controllers = read("cgroup.controllers")?;
    let controllers: Vec<String> = controllers.split_whitespace().map(String::from).collect();
    for wanted in ["memory", "pids"] {
        if !controllers.iter().any(|has| has == wanted) {
            return Err(named(format_args!("has no controller {wanted}")));
        }
    }
    let procs = read("cgroup.procs")?;
    if procs.lines().any(|line| line.parse() != Ok(pid)) {
        return Err(named(format_args!("has other processes than the server")));
    }
    let control = root.join("cgroup.subtree_control");
    let opened = fs::File::options().write(true).open(control);
    opened.map_err(|error| named(format_args!("is not the server's to divide: {error}")))?;
    Ok(controllers)
}

impl Groups {
    /// Divides this process's own group: moves the process to a group below it, and allows others
    /// beside that.
    pub(super) fn begin() -> Result<Groups, NoGroups> {
        Groups::divide(own(Path::new(PROC))?, std::process::id())
    }

    fn divide(root: PathBuf, pid: u32) -> Result<Groups, NoGroups> {
        let controllers = usable(&root, pid)?;
        let has_cpu = controllers.iter().any(|has| has == "cpu");
        let divided = || -> io::Result<()> {
            // What an earlier server has left, which was killed.
            for entry in fs::read_dir(&root)? {
                let entry = entry?;
                if entry.file_name().to_string_lossy().starts_with(WORKER) {
                    let _ = fs::remove_dir(entry.path());
                }
            }
            let supervisor = root.join(SUPERVISOR);
            match fs::create_dir(&supervisor) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
            write(&supervisor, "cgroup.procs", pid)?;
            let all = if has_cpu {
                "+memory +pids +cpu"
            } else {
                "+memory +pids"
            };
            write(&root, "cgroup.subtree_control", all)
        };
        match divided() {
            Ok(()) => Ok(Groups {
                root,
                has_cpu,
                pids: Mutex::default(),
            }),
            Err(error) => Err(NoGroups(format!(
                "the control group {} cannot be divided: {error}",
                root.display()
            ))),
        }
    }

    /// Moves a new worker to a group of its own.
    pub(super) fn add(&self, pid: u32) {
        let group = self.of(pid);
        let added = fs::create_dir(&group).and_then(|()| {
            self.pids().push(pid);
            write(&group, "pids.max", WORKER_TASKS_MAX)?;
            // The group has one process, which ends whole.
            write(&group, "memory.oom.group", 1)?;
            write(&group, "cgroup.procs", pid)
        });
        if let Err(error) = added {
            warn!(pid, %error, "a worker has no control group of its own");
        }
    }

    /// Bounds a worker's memory, if it has a group.
    pub(super) fn bound(&self, pid: u32, bytes: u64) {
        self.say(pid, "memory.max", bytes.saturating_add(WORKER_BASE_BYTES));
    }

    /// Gives the workers of one tenant its weight, in equal parts.
    pub(super) fn weigh(&self, pids: &[u32], weight: u64) {
        let each = weight / pids.len().max(1) as u64;
        for pid in pids.iter().filter(|_| self.has_cpu) {
            self.say(*pid, "cpu.weight", each.clamp(1, WEIGHT_MAX));
        }
    }

    fn say(&self, pid: u32, name: &str, value: u64) {
        if self.pids().contains(&pid)
            && let Err(error) = write(&self.of(pid), name, value)
        {
            warn!(pid, name, value, %error, "a worker's control group is not as it should be");
        }
    }

    /// Removes the groups whose processes have ended.
    pub(super) fn sweep(&self) {
        self.pids()
            .retain(|pid| match fs::remove_dir(self.of(*pid)) {
                Ok(()) => false,
                Err(error) => {
                    let is_gone = error.kind() == io::ErrorKind::NotFound;
                    if !is_gone && error.kind() != io::ErrorKind::ResourceBusy {
                        debug!(pid, %error, "a control group that stays");
                    }
                    !is_gone
                }
            });
    }

    fn of(&self, pid: u32) -> PathBuf {
        self.root.join(format!("{WORKER}{pid}"))
    }

    fn pids(&self) -> std::sync::MutexGuard<'_, Vec<u32>> {
        self.pids.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes a value to a file that is there.
fn write(group: &Path, name: &str, value: impl ToString) -> io::Result<()> {
    use io::Write as _;
    let mut file = fs::File::options().write(true).open(group.join(name))?;
    file.write_all(value.to_string().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files as the kernel has them; the kernel alone moves processes.
    fn group(controllers: &str, procs: &str) -> tempfile::TempDir {
        let dir = tempfile::TempDir::new().unwrap();
        for (name, text) in [
            ("cgroup.controllers", controllers),
            ("cgroup.procs", procs),
            ("cgroup.subtree_control", ""),
        ] {
            fs::write(dir.path().join(name), text).unwrap();
        }
        dir
    }

    fn why(dir: &tempfile::TempDir) -> String {
        usable(dir.path(), 7).unwrap_err().to_string()
    }

    #[test]
    fn a_group_that_cannot_be_divided_is_named_with_its_reason() {
        let usable_one = group("cpuset cpu memory pids", "7\n");
        assert_eq!(usable(usable_one.path(), 7).unwrap().len(), 4);
        assert!(why(&group("cpu pids", "7\n")).ends_with("has no controller memory"));
        assert!(why(&group("memory", "7\n")).ends_with("has no controller pids"));
        let shared = group("memory pids", "7\n8\n");
        assert!(why(&shared).ends_with("has other processes than the server"));
        let foreign = group("memory pids", "7\n");
        fs::remove_file(foreign.path().join("cgroup.subtree_control")).unwrap();
        assert!(why(&foreign).contains("is not the server's to divide"));
    }

    #[test]
    fn the_own_group_is_found_by_its_mount() {
        let proc = tempfile::TempDir::new().unwrap();
        let is = |cgroup: &str, mounts: &str| {
            fs::write(proc.path().join("cgroup"), cgroup).unwrap();
            fs::write(proc.path().join("mountinfo"), mounts).unwrap();
            own(proc.path()).map_err(|error| error.to_string())
        };
        let mount = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n";
        let found = is("0::/system.slice/outboard.service\n", mount).unwrap();
        assert_eq!(
            found,
            Path::new("/sys/fs/cgroup/system.slice/outboard.service")
        );
        let below = is("0::/a.service/supervisor\n", mount).unwrap();
        assert_eq!(below, Path::new("/sys/fs/cgroup/a.service"));
        let container = "30 23 0:26 /docker/1 /sys/fs/cgroup rw - cgroup2 cgroup rw\n";
        let found = is("0::/docker/1/x\n", container).unwrap();
        assert_eq!(found, Path::new("/sys/fs/cgroup/x"));
        for (cgroup, mounts) in [
            ("4:memory:/\n", mount),
            ("0::/\n", "25 1 0:22 / /proc rw - proc proc rw\n"),
            ("0::/elsewhere\n", container),
        ] {
            assert!(is(cgroup, mounts).unwrap_err().contains("version 2"));
        }
    }

    /// Without a control group of this process's own: NOT RUN.
    #[test]
    fn a_real_group_bounds_what_is_in_it() {
        let root = match own(Path::new(PROC)) {
            Ok(root) => root.join(format!("outboard-test-{}", std::process::id())),
            Err(why) => return eprintln!("NOT RUN: {why}"),
        };
        if let Err(error) = fs::create_dir(&root) {
            return eprintln!(
                "NOT RUN: no group can be made in {}: {error}",
                root.display()
            );
        }
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        match Groups::divide(root.clone(), child.id()) {
            Err(why) => eprintln!("NOT RUN: {why}"),
            Ok(groups) => {
                groups.add(child.id());
                groups.bound(child.id(), 1 << 30);
                groups.weigh(&[child.id()], 300);
                let read = |name| fs::read_to_string(groups.of(child.id()).join(name)).unwrap();
                assert_eq!(read("cgroup.procs").trim(), child.id().to_string());
                assert_eq!(read("pids.max").trim(), WORKER_TASKS_MAX.to_string());
                let bytes = (1 << 30) + WORKER_BASE_BYTES;
                assert_eq!(read("memory.max").trim(), bytes.to_string());
                groups.sweep();
                assert!(groups.of(child.id()).exists(), "its process lives");
                child.kill().unwrap();
                child.wait().unwrap();
                groups.sweep();
                assert!(!groups.of(child.id()).exists() && groups.pids().is_empty());
            }
        }
        let _ = child.kill().and_then(|()| child.wait());
        let _ = fs::remove_dir(root.join(SUPERVISOR));
        let _ = fs::remove_dir(&root);
    }
}
