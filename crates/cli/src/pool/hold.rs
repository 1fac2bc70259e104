//! The holder: a process that renews the lease of a program, and gives the GPUs back when the
//! program has ended. It is nobody's child, so the program sees nothing of it.

use std::{
    fs,
    io::Write as _,
    os::{
        fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd},
        unix::{fs::OpenOptionsExt as _, process::CommandExt as _},
    },
    path::Path,
    process::{Command, ExitCode, Stdio},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use outboard_manager::{Client, ClientError, Operation};
use outboard_pool::{
    api::{Claimed, Granted, Held, LeaseView, Notice, PoolError},
    record::EndReason,
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{FileType, OFlags, fstat},
    io::{FdFlags, fcntl_setfd},
    process::{PidfdFlags, getpid, pidfd_open},
};
use serde_json::{Value, json};

use super::{claim::replace_grants, client, news::News};
use crate::args::{ManagerArgs, PoolHoldArgs};

const RETRY: Duration = Duration::from_millis(200);
/// Time beyond a third of the term for the manager's answer.
const ANSWER: Duration = Duration::from_secs(5);
/// Part of the term by which a program is told sooner that its lease may be over.
const SOONER: u32 = 20;

/// Starts the holder of a lease for this process.
pub(super) fn start(
    manager: &ManagerArgs,
    granted: &Granted,
    grants: &Path,
    is_kept: bool,
) -> anyhow::Result<()> {
    let program = pidfd_open(getpid(), PidfdFlags::empty()).context("watching this process")?;
    let mut command = holder(manager, granted.lease, granted.term_ms, grants, &program)?;
    if is_kept {
        command.arg("--keep");
    }
    let status = command.status().context("starting the lease's holder")?;
    fcntl_setfd(&program, FdFlags::CLOEXEC)?;
    anyhow::ensure!(status.success(), "the lease's holder did not start");
    Ok(())
}

/// Returns the command of a holder, which inherits the descriptor.
fn holder(
    manager: &ManagerArgs,
    lease: u64,
    term_ms: u64,
    grants: &Path,
    program: &OwnedFd,
) -> anyhow::Result<Command> {
    fcntl_setfd(program, FdFlags::empty())?;
    let mut command = Command::new("/proc/self/exe");
    command.arg0("outboard").arg("pool-hold");
    command.arg("--pool").arg(manager.pool.to_string());
    if let Some(file) = &manager.token.pool_token_file {
        command.arg("--pool-token-file").arg(file);
    }
    if let Some(file) = &manager.token.pool_ca {
        command.arg("--pool-ca").arg(file);
    }
    command.arg("--lease").arg(lease.to_string());
    command.arg("--term-ms").arg(term_ms.to_string());
    command.arg("--grants").arg(grants);
    command
        .arg("--program")
        .arg(program.as_raw_fd().to_string());
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(match is_file() {
            // What is opened anew has a position of its own, and would be written over.
            true => Stdio::inherit(),
            false => Stdio::null(),
        });
    // The terminal's Ctrl-C is the program's.
    command.process_group(0);
    Ok(command)
}

/// Holds a lease until the program has ended or the lease is over.
pub(crate) fn hold(args: &PoolHoldArgs) -> anyhow::Result<ExitCode> {
    let program = outboard_server::inherited(args.program).context("--program")?;
    if !args.detached {
        // The second process has no parent that waits for it.
        let mut command = holder(
            &args.manager,
            args.lease,
            args.term_ms,
            &args.grants,
            &program,
        )?;
        command.arg("--detached");
        if args.keep {
            command.arg("--keep");
        }
        command.spawn()?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut client = client(&args.manager)?;
    let mut news = News::new(&args.grants, args.lease);
    let ended = renew(&mut client, args, program.as_fd(), &mut news);
    let _ = fs::remove_file(&args.grants);
    match ended {
        Over::Program if !args.keep => release(&mut client, args),
        Over::Program => {}
        Over::Lease => {
            news.over(&mut client);
            // The program reads it as long as it runs.
            until_end(program.as_fd());
        }
    }
    news.remove();
    Ok(ExitCode::SUCCESS)
}

/// End of holding a lease.
enum Over {
    Program,
    Lease,
}

fn renew(
    client: &mut Client,
    args: &PoolHoldArgs,
    program: BorrowedFd<'_>,
    news: &mut News,
) -> Over {
    let path = Operation::Hold.path(&[&args.lease]);
    let mut told = 0;
    let mut notices = Vec::new();
    let third = Duration::from_millis(args.term_ms / 3);
    let mut silence = Silence::new(args);
    // If the manager is away just now, the first answer is followed by a look.
    let _ = news.look(client);
    loop {
        let asked = Instant::now();
        let mut said = client.begin(&path, &json!({ "news": told }));
        if said.is_ok() {
            match silence.wait(client.waits_on(), program, third + ANSWER) {
                Ended::Program => return Over::Program,
                Ended::Nothing => said = client.give_up(),
                Ended::Answer => {
                    said = client.finish::<Held>().and_then(|held| {
                        for notice in held.notices.iter().filter(|new| !is_known(&notices, new)) {
                            tell(program, &shown(args.lease, notice));
                        }
                        notices = held.notices;
                        if told != held.news || news.is_new() {
                            take_grants(client, args);
                            news.look(client)?;
                            told = held.news;
                        }
                        Ok(())
                    });
                }
            }
        }
        match said {
            Ok(()) => silence.ends(program, asked),
            Err(ClientError::Refused(PoolError::Conflict(_) | PoolError::Unknown(_))) => {
                tell(program, &over(client, args.lease));
                return Over::Lease;
            }
            // The lease is as long as it is; the manager may come back before that.
            Err(_) => {
                if matches!(silence.wait(None, program, RETRY), Ended::Program) {
                    return Over::Program;
                }
            }
        }
    }
}

/// The silence of a manager, of which the program is told before its boxes end its sessions.
struct Silence {
    lease: u64,
    term: Duration,
    /// The manager renews the lease by itself, up to its last answer.
    is_kept: bool,
    /// Time until which the lease surely lasts, but for `SOONER`: a request without an answer may
    /// have renewed it, of which its boxes may not have heard.
    lasts: Instant,
    is_told: bool,
}

impl Silence {
    fn new(args: &PoolHoldArgs) -> Silence {
        let term = Duration::from_millis(args.term_ms);
        Silence {
            lease: args.lease,
            term,
            is_kept: args.keep,
            lasts: Instant::now() + term - term / SOONER,
            is_told: false,
        }
    }

    /// Notes an answer to what was asked then.
    fn ends(&mut self, program: BorrowedFd<'_>, asked: Instant) {
        let renewed = if self.is_kept { Instant::now() } else { asked };
        self.lasts = renewed + self.term - self.term / SOONER;
        if std::mem::take(&mut self.is_told) {
            let lease = self.lease;
            tell(
                program,
                &format!("lease {lease} goes on: the manager answers again"),
            );
        }
    }

    /// Waits as [`wait`], and tells the program meanwhile when the lease may be over.
    fn wait(
        &mut self,
        answer: Option<BorrowedFd<'_>>,
        program: BorrowedFd<'_>,
        limit: Duration,
    ) -> Ended {
        let end = Instant::now() + limit;
        loop {
            let now = Instant::now();
            if !self.is_told && now >= self.lasts {
                self.is_told = true;
                tell(program, &unheard(self.lease, self.term));
            }
            let until = if self.is_told {
                end
            } else {
                end.min(self.lasts)
            };
            match wait(answer, program, until.saturating_duration_since(now)) {
                Ended::Nothing if Instant::now() < end => {}
                ended => return ended,
            }
        }
    }
}

/// Returns what there is to say of a lease whose manager is silent.
fn unheard(lease: u64, term: Duration) -> String {
    let seconds = (term / 3 + term / SOONER).as_secs() + 1;
    format!(
        "lease {lease} is over, or will be within {seconds} s, and its GPUs are gone then: the \
         manager has not answered for its term"
    )
}

/// Gives the GPUs back.
fn release(client: &mut Client, args: &PoolHoldArgs) {
    let path = Operation::Release.path(&[&args.lease]);
    let deadline = Instant::now() + Duration::from_millis(args.term_ms);
    loop {
        match client.post::<Value>(&path, &json!({}), Duration::ZERO) {
            Err(ClientError::Refused(PoolError::NotNow(_)) | ClientError::Io { .. })
                if Instant::now() < deadline =>
            {
                std::thread::sleep(RETRY);
            }
            _ => return,
        }
    }
}

/// Returns whether a program has been told the same already: only the time that is left changes.
fn is_known(before: &[Notice], notice: &Notice) -> bool {
    let mut before = before.iter();
    before.any(|one| (one.what, &one.of) == (notice.what, &notice.of))
}

fn shown(lease: u64, notice: &Notice) -> String {
    let when = notice.left_ms.map_or_else(String::new, |ms| {
        format!(": its GPUs are taken back in {} s", ms / 1000)
    });
    format!("lease {lease}: {}{when}", notice.reason)
}

/// Returns what there is to say of a lease that is over.
fn over(client: &mut Client, lease: u64) -> String {
    let view = client.get::<LeaseView>(&Operation::Lease.path(&[&lease]));
    let why = match view.ok().and_then(|view| view.reason) {
        None => "the manager does not know it any more",
        Some(EndReason::Released) => "it was given back",
        Some(EndReason::HolderGone) => "the manager had not heard of this program for its term",
        Some(EndReason::Expired) => "its time has passed",
        Some(EndReason::Detached) => "its last GPU was detached",
        Some(EndReason::Idle) => "its GPUs had no session and no call for the time that is allowed",
    };
    format!("lease {lease} is over, and its GPUs are gone: {why}")
}

/// Returns whether the standard error is a file, which nobody waits for the end of.
fn is_file() -> bool {
    let about = fstat(std::io::stderr());
    about.is_ok_and(|about| FileType::from_raw_mode(about.st_mode) == FileType::RegularFile)
}

/// Says something on the standard error that the program began with. One that is no file is opened
/// for this alone: a holder that kept it open would outlive a pipe's reader.
fn tell(program: BorrowedFd<'_>, text: &str) {
    let text = format!("outboard: {}\n", super::shown(text));
    if is_file() {
        let _ = std::io::stderr().write_all(text.as_bytes());
        return;
    }
    let about = fs::read_to_string(format!("/proc/self/fdinfo/{}", program.as_raw_fd()));
    let pid = about.ok().and_then(|about| {
        let line = about.lines().find_map(|line| line.strip_prefix("Pid:"))?;
        line.trim().parse::<u32>().ok()
    });
    let Some(pid) = pid else { return };
    let of_program = fs::OpenOptions::new()
        .append(true)
        .custom_flags((OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32)
        .open(format!("/proc/{pid}/fd/2"));
    if let Ok(mut stderr) = of_program {
        let _ = stderr.write_all(text.as_bytes());
    }
}

/// Takes the grants of a lease in which a spare may have taken a place: for processes that the
/// program starts from now on.
fn take_grants(client: &mut Client, args: &PoolHoldArgs) {
    let path = Operation::Grants.path(&[&args.lease]);
    if let Ok(Claimed::Granted(granted)) = client.post(&path, &json!({}), Duration::ZERO) {
        let _ = replace_grants(&args.grants, &granted);
    }
}

enum Ended {
    Program,
    /// An answer has come.
    Answer,
    /// The time for an answer is over.
    Nothing,
}

/// Waits for the program's end.
fn until_end(program: BorrowedFd<'_>) {
    let mut fds = [PollFd::from_borrowed_fd(program, PollFlags::IN)];
    let _ = rustix::io::retry_on_intr(|| poll(&mut fds, None));
}

fn wait(answer: Option<BorrowedFd<'_>>, program: BorrowedFd<'_>, limit: Duration) -> Ended {
    let mut fds = vec![PollFd::from_borrowed_fd(program, PollFlags::IN)];
    fds.extend(answer.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
    let limit = Timespec::try_from(limit).ok();
    let _ = rustix::io::retry_on_intr(|| poll(&mut fds, limit.as_ref()));
    let has_come = |fd: Option<&PollFd<'_>>| fd.is_some_and(|fd| !fd.revents().is_empty());
    match (has_come(fds.first()), has_come(fds.get(1))) {
        (true, _) => Ended::Program,
        (false, true) => Ended::Answer,
        (false, false) => Ended::Nothing,
    }
}
