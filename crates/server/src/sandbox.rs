//! The sandbox of a worker: what a client that has taken it over finds no way to do.
//!
//! ```text
//!  supervisor   starts the worker, with its first order
//!  worker       enter: no core file, no new privileges, files by Landlock, system calls by seccomp
//!               reads the first byte of a client
//!               drop_secrets: the files of tokens and keys are out of reach as well
//!               opens the device, serves
//! ```
//!
//! Both are of the kernel, need no privilege, and hold for all threads that are started later.
//! System calls that no worker needs fail with EPERM. The worker is not killed, since a library
//! that tries one goes on without it: CUDA's starts a helper, for one. What is not named is
//! allowed, so a newer C library does not break a server.

use std::{
    env,
    ffi::OsString,
    fs, io,
    os::unix::ffi::{OsStrExt as _, OsStringExt as _},
    path::{Path, PathBuf},
};

use landlock::{
    ABI, Access as _, AccessFs, CompatLevel, Compatible as _, Ruleset, RulesetAttr as _,
    RulesetCreatedAttr as _, RulesetStatus, path_beneath_rules,
};
use rustix::process::{Resource, Rlimit, setrlimit};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, apply_filter,
};
use serde::{Deserialize, Serialize};
use tracing::debug;

use crate::devices::DeviceKind;

/// Rights to files that are asked of the kernel, where it knows them. Control of devices (ioctl)
/// stays free: GPUs and adapters need it.
const FILES: ABI = ABI::V3;
/// Files that every worker may read: the machine's numbers and its time zone.
const READ: [&str; 9] = [
    "/proc/self",
    "/proc/sys",
    "/proc/meminfo",
    "/proc/cpuinfo",
    "/proc/stat",
    "/sys/fs/cgroup",
    "/sys/devices/system",
    "/usr/share/zoneinfo",
    "/etc/localtime",
];
/// Files that every worker may write: its own names and scores, and no data.
const WRITE: [&str; 3] = ["/proc/self", "/dev/null", "/dev/urandom"];
/// Files of adapters, and of the libraries that drive them.
const RDMA_READ: [&str; 5] = ["/sys", "/etc", "/usr", "/lib", "/lib64"];
const RDMA_WRITE: [&str; 1] = ["/dev/infiniband"];
/// Files of NVIDIA's driver and libraries. What they read is not documented: the machine's own
/// files, and no user's.
const NVIDIA_READ: [&str; 9] = [
    "/proc", "/sys", "/etc", "/usr", "/lib", "/lib64", "/opt", "/run", "/var/run",
];
const NVIDIA_WRITE: [&str; 2] = ["/dev", "/tmp"];
/// Variables that name files and folders of the device's.
const NVIDIA_VARIABLES: [&str; 9] = [
    "LD_LIBRARY_PATH",
    "CUDA_HOME",
    "CUDA_PATH",
    "OUTBOARD_DRIVER",
    "OUTBOARD_NVML",
    "OUTBOARD_CUPTI",
    "CUDA_CACHE_PATH",
    "CUDA_MPS_PIPE_DIRECTORY",
    "CUDA_MPS_LOG_DIRECTORY",
];

/// The rights of a worker, besides those of its open descriptors.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sandbox {
    /// Whether a worker may open sockets of networks and adapters.
    has_rdma: bool,
    is_nvidia: bool,
    /// Folder of the module images: the bytes of its path.
    cache: Option<Vec<u8>>,
    /// Files that are read anew for each client: the bytes of their paths.
    secrets: Vec<Vec<u8>>,
}

/// The parts of a sandbox that a kernel has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Available {
    pub system_calls: bool,
    pub files: bool,
}

impl Sandbox {
    pub fn new(device: DeviceKind, has_rdma: bool, cache: Option<&Path>) -> Sandbox {
        Sandbox {
            has_rdma,
            is_nvidia: device == DeviceKind::Nvidia,
            cache: cache.map(|folder| folder.as_os_str().as_bytes().to_vec()),
            secrets: Vec::new(),
        }
    }

    /// Lets a worker read these files until [`Sandbox::drop_secrets`].
    pub(super) fn with_secrets(&self, files: &[PathBuf]) -> Sandbox {
        let bytes = |file: &PathBuf| file.as_os_str().as_bytes().to_vec();
        Sandbox {
            secrets: files.iter().map(bytes).collect(),
            ..self.clone()
        }
    }

    /// Puts this process, which has one thread, into the sandbox. It may still read the secrets.
    pub(super) fn enter(&self) -> io::Result<()> {
        no_core_file();
        if let Some(cache) = self.cache() {
            // A rule is about a folder that is there. Without it images are not kept.
            let _ = fs::create_dir_all(cache);
        }
        let secrets = self.secrets.iter().cloned();
        let secrets = secrets.map(|file| PathBuf::from(OsString::from_vec(file)));
        self.restrict_files(&secrets.collect::<Vec<_>>())?;
        let filters = [self.refused(), no_clone3()];
        for filter in filters {
            let program = filter.map_err(io::Error::other)?;
            match apply_filter(&program) {
                Ok(()) => {}
                Err(error) if !available().system_calls => {
                    debug!(%error, "the kernel has no seccomp");
                }
                Err(error) => return Err(io::Error::other(error)),
            }
        }
        Ok(())
    }

    /// Puts the secrets out of reach. The process still has one thread.
    pub(super) fn drop_secrets(&self) -> io::Result<()> {
        self.restrict_files(&[])
    }

    fn restrict_files(&self, secrets: &[PathBuf]) -> io::Result<()> {
        let status = self.restrict(secrets).map_err(io::Error::other)?;
        if status == RulesetStatus::NotEnforced {
            debug!("the kernel has no Landlock: files are not restricted");
        }
        Ok(())
    }

    fn restrict(&self, secrets: &[PathBuf]) -> Result<RulesetStatus, landlock::RulesetError> {
        let (read, write) = (AccessFs::from_read(FILES), AccessFs::from_all(FILES));
        // A file may be replaced, so its folder is opened to the worker; with that of the file it
        // is a link to.
        let targets = secrets
            .iter()
            .filter_map(|file| fs::canonicalize(file).ok());
        let secrets = secrets.iter().cloned().chain(targets);
        let secrets = secrets.filter_map(|file| Some(file.parent()?.to_path_buf()));
        let reading = self.readable().into_iter().chain(secrets);
        let restricted = Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(write)?
            .create()?
            .add_rules(path_beneath_rules(reading, read))?
            .add_rules(path_beneath_rules(self.writable(), write))?
            .restrict_self()?;
        Ok(restricted.ruleset)
    }

    fn readable(&self) -> Vec<PathBuf> {
        let mut paths: Vec<PathBuf> = READ.map(PathBuf::from).into();
        if self.has_rdma {
            paths.extend(RDMA_READ.map(PathBuf::from));
        }
        if self.is_nvidia {
            paths.extend(NVIDIA_READ.map(PathBuf::from));
            let named = NVIDIA_VARIABLES.iter().filter_map(env::var_os);
            let named = named.flat_map(|value| env::split_paths(&value).collect::<Vec<_>>());
            let named = named.filter(|path| path.is_absolute());
            paths.extend(named.filter_map(|path| match path.is_dir() {
                true => Some(path),
                false => path.parent().map(PathBuf::from),
            }));
        }
        paths
    }

    fn writable(&self) -> Vec<PathBuf> {
        let mut paths: Vec<PathBuf> = WRITE.map(PathBuf::from).into();
        paths.extend(self.cache());
        if self.has_rdma {
            paths.extend(RDMA_WRITE.map(PathBuf::from));
        }
        if self.is_nvidia {
            paths.extend(NVIDIA_WRITE.map(PathBuf::from));
            let home = env::var_os("HOME").map(|home| Path::new(&home).join(".nv"));
            paths.extend(home);
            let cache = env::var_os("CUDA_CACHE_PATH").map(PathBuf::from);
            paths.extend(cache);
        }
        paths
    }

    fn cache(&self) -> Option<PathBuf> {
        let bytes = self.cache.clone()?;
        Some(OsString::from_vec(bytes).into())
    }

    /// Returns the filter of the system calls that fail with EPERM.
    fn refused(&self) -> Result<BpfProgram, seccompiler::Error> {
        let mut rules: Vec<_> = REFUSED.iter().map(|call| (*call, Vec::new())).collect();
        let own = u64::from(std::process::id());
        let other_than = |argument, value| when(argument, SeccompCmpOp::Ne, value);
        // Signals to itself alone: abort sends one.
        for call in [libc::SYS_kill, libc::SYS_tgkill] {
            rules.push((call, vec![other_than(0, own)?]));
        }
        rules.push((libc::SYS_prlimit64, vec![other_than(0, 0)?]));
        // Threads and no processes.
        let thread = libc::CLONE_THREAD as u64;
        rules.push((
            libc::SYS_clone,
            vec![when(0, SeccompCmpOp::MaskedEq(thread), 0)?],
        ));
        // What would type into the server's terminal.
        let typing = [TIOCSTI, TIOCLINUX].map(|request| when(1, SeccompCmpOp::Eq, request));
        rules.push((
            libc::SYS_ioctl,
            typing.into_iter().collect::<Result<_, _>>()?,
        ));
        if !self.has_rdma {
            let unix = libc::AF_UNIX as u64;
            rules.push((libc::SYS_socket, vec![other_than(0, unix)?]));
        }
        program(rules, libc::EPERM as u32)
    }
}

const TIOCSTI: u64 = 0x5412;
const TIOCLINUX: u64 = 0x541c;

/// System calls that no worker makes: those that start programs, look into other processes, change
/// the machine, or change files without opening them.
const REFUSED: &[i64] = &[
    libc::SYS_execve,
    libc::SYS_execveat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_fork,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_vfork,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_kcmp,
    libc::SYS_pidfd_getfd,
    libc::SYS_pidfd_send_signal,
    libc::SYS_tkill,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_tgsigqueueinfo,
    libc::SYS_chroot,
    libc::SYS_pivot_root,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_fanotify_init,
    libc::SYS_open_by_handle_at,
    libc::SYS_name_to_handle_at,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_kexec_file_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_syslog,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_personality,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_modify_ldt,
    libc::SYS_setuid,
    libc::SYS_setgid,
    libc::SYS_setreuid,
    libc::SYS_setregid,
    libc::SYS_setresuid,
    libc::SYS_setresgid,
    libc::SYS_setfsuid,
    libc::SYS_setfsgid,
    libc::SYS_setgroups,
    libc::SYS_capset,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chmod,
    libc::SYS_fchmodat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lchown,
    libc::SYS_fchownat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
];

/// Returns what this machine's kernel provides.
pub fn available() -> Available {
    // SAFETY: a call with a pointer to a local number.
    let system_calls = unsafe {
        let action = libc::SECCOMP_RET_ERRNO;
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_GET_ACTION_AVAIL,
            0,
            &raw const action,
        ) == 0
    };
    const VERSION: u64 = 1;
    // SAFETY: a question without memory.
    let version = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<u8>(),
            0_usize,
            VERSION,
        )
    };
    Available {
        system_calls,
        files: version > 0,
    }
}

fn when(argument: u8, op: SeccompCmpOp, value: u64) -> Result<SeccompRule, seccompiler::Error> {
    let condition = SeccompCondition::new(argument, SeccompCmpArgLen::Dword, op, value)?;
    Ok(SeccompRule::new(vec![condition])?)
}

/// Returns a filter by which these calls fail, each if one of its rules holds or if it has none.
fn program(
    rules: Vec<(i64, Vec<SeccompRule>)>,
    error: u32,
) -> Result<BpfProgram, seccompiler::Error> {
    let filter = SeccompFilter::new(
        rules.into_iter().collect(),
        SeccompAction::Allow,
        SeccompAction::Errno(error),
        env::consts::ARCH.try_into()?,
    )?;
    Ok(filter.try_into()?)
}

/// Returns the filter by which a C library starts threads by clone, whose flags can be checked.
fn no_clone3() -> Result<BpfProgram, seccompiler::Error> {
    program(vec![(libc::SYS_clone3, Vec::new())], libc::ENOSYS as u32)
}

/// Sees that no core file has a client's data: none is written, and what a crash handler is sent
/// has no memory in it.
fn no_core_file() {
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    // A failure leaves the limit that the server has.
    let _ = setrlimit(Resource::Core, none);
    let _ = fs::write("/proc/self/coredump_filter", "0");
}

#[cfg(test)]
mod tests {
    use std::{io::ErrorKind, process::Command, thread};

    use rustix::net::{AddressFamily, SocketType, socket};

    use super::*;

    /// Runs `attempt` in a thread that has entered the sandbox: the kernel confines threads.
    fn confined<R: Send>(sandbox: &Sandbox, attempt: impl FnOnce(&Sandbox) -> R + Send) -> R {
        let run = || {
            sandbox.enter().unwrap();
            attempt(sandbox)
        };
        thread::scope(|scope| scope.spawn(run).join().unwrap())
    }

    fn soft(cache: &Path) -> Sandbox {
        Sandbox::new(DeviceKind::Soft, false, Some(cache))
    }

    fn is_refused<T>(result: io::Result<T>) -> bool {
        result.is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
    }

    /// The kernel's answer to a call with numbers alone.
    fn call(number: i64, arguments: [i64; 3]) -> io::Result<i64> {
        let [a, b, c] = arguments;
        // SAFETY: the tests' calls have no pointers, or are refused before they are looked at.
        match unsafe { libc::syscall(number, a, b, c) } {
            -1 => Err(io::Error::last_os_error()),
            result => Ok(result),
        }
    }

    #[test]
    fn this_kernel_has_what_the_tests_need() {
        let all = Available {
            system_calls: true,
            files: true,
        };
        assert_eq!(available(), all);
    }

    #[test]
    fn no_program_is_started_and_no_other_process_is_touched() {
        let folder = tempfile::tempdir().unwrap();
        let parent = i64::from(std::os::unix::process::parent_id());
        let own = i64::from(std::process::id());
        confined(&soft(folder.path()), |_| {
            assert!(is_refused(Command::new("/bin/true").spawn()));
            for number in [libc::SYS_execve, libc::SYS_execveat, libc::SYS_ptrace] {
                assert!(is_refused(call(number, [0; 3])), "{number}");
            }
            for signal in [libc::SYS_kill, libc::SYS_tgkill] {
                assert!(is_refused(call(signal, [parent, 0, 0])), "{signal}");
            }
            assert!(call(libc::SYS_kill, [own, 0, 0]).is_ok());
            // By which a link sees that its peer has died.
            let seen = call(libc::SYS_pidfd_open, [parent, 0, 0]).unwrap();
            assert!(is_refused(call(libc::SYS_pidfd_getfd, [seen, 0, 0])));
            assert!(is_refused(call(libc::SYS_pidfd_send_signal, [seen, 0, 0])));
            assert!(is_refused(call(libc::SYS_ioctl, [2, TIOCSTI as i64, 0])));
            // A process of its own, by fork's flags.
            let chld = i64::from(libc::SIGCHLD);
            assert!(is_refused(call(libc::SYS_clone, [chld, 0, 0])));
            let limit = libc::SYS_prlimit64;
            assert!(is_refused(call(limit, [parent, 0, 0])));
        });
    }

    #[test]
    fn files_of_others_are_out_of_reach() {
        let folder = tempfile::tempdir().unwrap();
        let [cache, secrets, home] = ["cache", "secrets", "home"].map(|n| folder.path().join(n));
        for folder in [&secrets, &home] {
            fs::create_dir(folder).unwrap();
            fs::write(folder.join("file"), "text").unwrap();
        }
        let sandbox = soft(&cache).with_secrets(&[secrets.join("file")]);
        confined(&sandbox, |sandbox| {
            fs::write(cache.join("image"), "image").unwrap();
            assert_eq!(fs::read(cache.join("image")).unwrap(), b"image");
            fs::read("/proc/self/status").unwrap();
            fs::read("/proc/meminfo").unwrap();
            assert_eq!(fs::read(secrets.join("file")).unwrap(), b"text");
            assert!(is_refused(fs::write(secrets.join("file"), "changed")));
            for path in ["/etc/passwd", "/bin/true", "/proc/1/environ"] {
                assert!(is_refused(fs::read(path)), "{path}");
            }
            assert!(is_refused(fs::read(home.join("file"))));
            assert!(is_refused(fs::write(home.join("new"), "")));
            assert!(is_refused(fs::remove_file(home.join("file"))));
            sandbox.drop_secrets().unwrap();
            assert!(is_refused(fs::read(secrets.join("file"))));
            // Threads that are started later are confined as well.
            let later = thread::spawn(move || is_refused(fs::read(home.join("file"))));
            assert!(later.join().unwrap());
            fs::read(cache.join("image")).unwrap();
        });
        assert_eq!(fs::read(secrets.join("file")).unwrap(), b"text");
    }

    #[test]
    fn sockets_of_networks_are_for_adapters() {
        let folder = tempfile::tempdir().unwrap();
        let open = |family| Ok(socket(family, SocketType::STREAM, None).map(drop)?);
        confined(&soft(folder.path()), |_| {
            for family in [
                AddressFamily::INET,
                AddressFamily::INET6,
                AddressFamily::NETLINK,
            ] {
                assert!(is_refused(open(family)), "{family:?}");
            }
            open(AddressFamily::UNIX).unwrap();
        });
        let adapters = Sandbox::new(DeviceKind::Soft, true, None);
        confined(&adapters, |_| open(AddressFamily::INET).unwrap());
    }

    #[test]
    fn a_gpus_worker_has_the_machines_files_and_no_users() {
        let home = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        fs::write(home.path().join("file"), "text").unwrap();
        let sandbox = Sandbox::new(DeviceKind::Nvidia, false, None);
        confined(&sandbox, |_| {
            fs::read("/etc/passwd").unwrap();
            fs::read("/proc/meminfo").unwrap();
            fs::write("/dev/null", "text").unwrap();
            assert!(is_refused(fs::read(home.path().join("file"))));
            assert!(is_refused(fs::write("/etc/outboard-new", "")));
            assert!(is_refused(Command::new("/bin/true").spawn()));
        });
    }

    #[test]
    fn a_crash_leaves_no_memory_behind() {
        no_core_file();
        let limits = fs::read_to_string("/proc/self/limits").unwrap();
        let core = limits
            .lines()
            .find(|line| line.starts_with("Max core"))
            .unwrap();
        assert_eq!(core.split_whitespace().nth(4), Some("0"), "{core}");
        let filter = fs::read_to_string("/proc/self/coredump_filter").unwrap();
        assert_eq!(filter.trim(), "00000000");
    }
}
