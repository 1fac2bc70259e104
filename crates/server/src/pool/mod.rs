//! A server that is a box of a pool: which sessions its leases give, and the agent that reports to
//! the manager.
//!
//! ```text
//!  manager ◄── report, waits for news ── agent (thread) ◄── floors, sessions ── Gate (supervisor)
//!          ─── answer ────────────────►                   ─── answer ──────────►
//! ```
//!
//! The rules are [`outboard_pool::Fence`]'s. The floors are in a file in the state's folder; its
//! lock is inherited by all workers, so a new server waits until none of an old one's is left.

mod errors;

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Read as _, Write as _},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

use outboard_manager::{Client, ClientError, ManagerUrls, Operation};
use outboard_pool::{
    Fence, Floors, Grant, LinkFacts, Uuid,
    api::{BoxAnswer, GpuReport, Join, Report, Window},
    limits::FLOORS_BYTES_MAX,
    record::GpuFacts,
};
use outboard_trust::{PublicKey, hex, random};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{FlockOperation, flock},
    io::{FdFlags, fcntl_setfd},
    time::{ClockId, clock_gettime},
};
use serde::{Deserialize, Serialize};
use tracing::{info, warn};

use self::errors::Errors;
use super::{devices::DeviceOptions, limits};

/// The settings of a box.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolOptions {
    pub manager: ManagerUrls,
    /// Token for the manager.
    pub bearer: Option<String>,
    /// File of the authorities of managers' certificates; None: those of the system.
    pub ca: Option<PathBuf>,
    /// Name of the box.
    pub name: String,
    /// Folder of its state.
    pub state: PathBuf,
    /// Address of the server, as programs are told.
    pub address: Option<String>,
    /// Command of the shell that names broken GPUs.
    pub check: Option<String>,
    /// Network between programs and this machine, if it is known.
    pub link: Option<LinkFacts>,
    /// Reason for which it could not be measured.
    pub link_fails: Option<String>,
}

/// State of a box on its disk.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct State {
    /// Drawn once.
    identity: String,
    /// The manager's public key: the first one that answered.
    key: Option<String>,
    #[serde(flatten)]
    floors: Floors,
}

/// The supervisor's side.
pub(super) struct Gate {
    options: PoolOptions,
    /// Holds the lock.
    _lock: File,
    state: State,
    fence: Fence,
    key: Option<PublicKey>,
    inventory: Vec<GpuFacts>,
    windows: BTreeMap<u64, Window>,
    /// Sessions of each GPU whose workers failed.
    failures: BTreeMap<Uuid, u32>,
    uses: Uses,
    shared: Arc<Shared>,
    answers: mpsc::Receiver<(u64, BoxAnswer)>,
    acknowledge: mpsc::Sender<()>,
    agent: Option<Agent>,
    /// Readable when the agent has an answer.
    bell: UnixStream,
    /// Wakes the agent.
    wake: UnixStream,
}

/// A session that the gate lets in.
pub(super) struct Admitted {
    /// Numbers of its devices; `None`: all.
    pub(super) chosen: Option<Vec<u32>>,
    /// Sessions that are to be over first.
    pub(super) end_first: Vec<u64>,
    pub(super) until_ms: u64,
}

/// Things that the manager's answer asks for.
pub(super) struct News {
    pub(super) end: Vec<u64>,
    pub(super) extended: Vec<(u64, u64)>,
}

/// State of the gate that is reported.
#[derive(Default, Clone)]
struct Known {
    gpus: Vec<GpuReport>,
    /// Time since which nobody uses each of them; `None`: it is used.
    idle_from_ms: Vec<Option<u64>>,
    windows: Vec<Window>,
    lease_last: u64,
}

/// The use of GPUs, by this machine's clock.
struct Uses {
    began_ms: u64,
    /// By session: its calls so far, and when the last was seen; `None`: one is under way.
    sessions: BTreeMap<u64, (u64, Option<u64>)>,
    /// End of the last session of each GPU, or its last call.
    last_ms: BTreeMap<Uuid, u64>,
}

/// Contents of the agent's next report.
#[derive(Default)]
struct Shared {
    report: Mutex<Known>,
    /// GPUs that the check calls broken, and why.
    broken: Mutex<BTreeMap<Uuid, String>>,
    /// Errors that the management library tells.
    errors: Errors,
    /// Reason for which the check fails.
    failing: Mutex<Option<String>>,
}

/// The thread that talks to the manager.
struct Agent {
    client: Client,
    join: Join,
    shared: Arc<Shared>,
    answers: mpsc::Sender<(u64, BoxAnswer)>,
    acknowledged: mpsc::Receiver<()>,
    bell: UnixStream,
    wake: UnixStream,
}

/// Returns this machine's monotonic clock, which all its processes share.
pub(super) fn now_ms() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds * 1_000 + u64::try_from(now.tv_nsec).unwrap_or(0) / 1_000_000
}

impl Gate {
    /// Opens the box's state, once no worker of an earlier server is left.
    pub(super) fn open(options: &PoolOptions) -> io::Result<Gate> {
        fs::create_dir_all(&options.state)?;
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(options.state.join("lock"))?;
        wait_for(&lock)?;
        // Every process that this one starts holds the lock as well.
        fcntl_setfd(&lock, FdFlags::empty())?;
        let mut state = read_state(&options.state)?;
        if state.identity.is_empty() {
            state.identity = hex::encode(&random::<8>()?);
            write_state(&options.state, &state)?;
        }
        let key = state.key.as_ref().map(|text| text.parse());
        let key = key.transpose().map_err(io::Error::other)?;
        let (bell, rings) = UnixStream::pair()?;
        let (wake, woken) = UnixStream::pair()?;
        for end in [&bell, &rings, &wake, &woken] {
            end.set_nonblocking(true)?;
        }
        let (answers_in, answers) = mpsc::channel();
        let (acknowledge, acknowledged) = mpsc::channel();
        let shared = Arc::new(Shared::default());
        let agent = Agent {
            client: Client::new(
                options.manager.clone(),
                options.bearer.clone(),
                options.ca.clone(),
            ),
            join: Join {
                name: options.name.clone(),
                identity: state.identity.clone(),
                instance: hex::encode(&random::<8>()?),
                url: String::new(),
                gpus: Vec::new(),
                link: options.link,
                link_fails: options.link_fails.clone(),
            },
            shared: Arc::clone(&shared),
            answers: answers_in,
            acknowledged,
            bell: rings,
            wake: woken,
        };
        Ok(Gate {
            options: options.clone(),
            _lock: lock,
            fence: Fence::new(&options.name, state.floors.clone()),
            state,
            key,
            inventory: Vec::new(),
            windows: BTreeMap::new(),
            failures: BTreeMap::new(),
            uses: Uses::new(now_ms()),
            shared,
            answers,
            acknowledge,
            agent: Some(agent),
            bell,
            wake,
        })
    }

    /// Returns the beginning of the UUIDs of this box's software devices.
    pub(super) fn board(&self) -> [u8; outboard_soft::BOARD_BYTES] {
        let mut board = *b"soft0000000000";
        let digits = self.state.identity.bytes();
        board[4..]
            .iter_mut()
            .zip(digits)
            .for_each(|(to, from)| *to = from);
        board
    }

    /// Starts the agent: this box has these GPUs, and its server this address.
    pub(super) fn start(
        &mut self,
        inventory: Vec<GpuFacts>,
        address: &str,
        device: &DeviceOptions,
    ) -> io::Result<()> {
        let Some(mut agent) = self.agent.take() else {
            return Ok(());
        };
        agent.join.gpus.clone_from(&inventory);
        agent.join.url = self
            .options
            .address
            .clone()
            .unwrap_or_else(|| address.into());
        self.inventory = inventory;
        if let Some(command) = self.options.check.clone() {
            let check = Check {
                command,
                shared: Arc::clone(&self.shared),
                wake: self.wake.try_clone()?,
            };
            let builder = thread::Builder::new().name("outboard-check".into());
            builder.spawn(move || check.run())?;
        }
        let uuids = self.inventory.iter().map(|gpu| gpu.uuid).collect();
        let wake = self.wake.try_clone()?;
        errors::hear(device.clone(), uuids, Arc::clone(&self.shared), wake)?;
        let builder = thread::Builder::new().name("outboard-agent".into());
        builder.spawn(move || agent.run()).map(drop)
    }

    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Returns the key that grants are checked with.
    pub(super) fn key(&self) -> Option<String> {
        self.key.as_ref().map(PublicKey::to_string)
    }

    /// Returns the time until a lease with a session is over.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let left_ms = self.fence.next_end_ms()?.saturating_sub(now_ms());
        Some(Instant::now() + Duration::from_millis(left_ms))
    }

    /// Returns the sessions whose leases are over.
    pub(super) fn over(&self) -> Vec<u64> {
        self.fence.over(now_ms())
    }

    /// Lets a session in, if its grant says so. The floors are on the disk when this returns.
    pub(super) fn admit(&mut self, session: u64, grant: &Grant) -> Result<Admitted, String> {
        let admitted = self.fence.admit(now_ms(), session, grant);
        let admitted = admitted.map_err(|error| error.to_string())?;
        let chosen = self.numbers(grant);
        let prepared = chosen.and_then(|chosen| self.keep_floors().map(|()| chosen));
        let chosen = match prepared {
            Ok(chosen) => chosen,
            Err(why) => {
                self.fence.ended(session);
                return Err(why);
            }
        };
        self.uses.begins(session);
        self.share();
        Ok(Admitted {
            chosen,
            end_first: admitted.end_first,
            until_ms: admitted.until_ms,
        })
    }

    /// Checks a grant of a client that only asks. Returns the numbers of its devices.
    pub(super) fn check(&self, grant: &Grant) -> Result<Option<Vec<u32>>, String> {
        let checked = self.fence.check(now_ms(), grant);
        checked.map_err(|error| error.to_string())?;
        self.numbers(grant)
    }

    fn numbers(&self, grant: &Grant) -> Result<Option<Vec<u32>>, String> {
        let number = |uuid: &Uuid| {
            let at = self.inventory.iter().position(|facts| facts.uuid == *uuid);
            let at = at.and_then(|at| u32::try_from(at).ok());
            at.ok_or_else(|| format!("this server has no GPU {uuid}"))
        };
        let numbers = grant.gpus.iter().map(|(uuid, _)| number(uuid));
        let mut numbers = numbers.collect::<Result<Vec<_>, _>>()?;
        numbers.sort_unstable();
        Ok((numbers.len() < self.inventory.len()).then_some(numbers))
    }

    /// Notes the address window of a session's lease.
    pub(super) fn has_window(&mut self, session: u64, base: u64, bytes: u64) {
        let lease = self.fence.sessions().find(|(number, _)| *number == session);
        if let Some((_, lease)) = lease {
            self.windows.insert(lease, Window { lease, base, bytes });
            self.share();
            self.wake_agent();
        }
    }

    /// Notes how many calls a session has made, and whether it waits for the next.
    pub(super) fn has_called(&mut self, session: u64, calls: u64, is_waiting: bool) {
        if self.uses.has_called(now_ms(), session, calls, is_waiting) {
            self.share();
        }
    }

    /// Notes that the worker of a session has failed, and that nothing of it runs any more.
    pub(super) fn failed(&mut self, session: u64) {
        // A worker ends by itself when its lease is over.
        let is_over = self.over().contains(&session);
        let gpus = self.fence.gpus_of(session);
        for uuid in gpus.into_iter().filter(|_| !is_over) {
            *self.failures.entry(uuid).or_default() += 1;
        }
        self.ended(session);
    }

    /// Notes that nothing of a session runs any more.
    pub(super) fn ended(&mut self, session: u64) {
        if !self.fence.sessions().any(|(number, _)| number == session) {
            // One without a lease.
            return;
        }
        self.uses
            .ends(now_ms(), session, self.fence.gpus_of(session));
        self.fence.ended(session);
        let leases: Vec<u64> = self.fence.sessions().map(|(_, lease)| lease).collect();
        self.windows.retain(|lease, _| leases.contains(lease));
        self.share();
        self.wake_agent();
    }

    /// Takes the manager's answers.
    pub(super) fn hear(&mut self) -> News {
        let mut bytes = [0; 64];
        while matches!(self.bell.read(&mut bytes), Ok(1..)) {}
        let mut news = News {
            end: Vec::new(),
            extended: Vec::new(),
        };
        while let Ok((sent_ms, answer)) = self.answers.try_recv() {
            if self.is_managers(&answer) {
                let answered = self.fence.answered(sent_ms, &answer);
                news.end.extend(answered.end);
                news.extended.extend(answered.extended);
                if let Err(error) = self.keep_floors() {
                    warn!(error, "the floors of the pool cannot be written");
                }
                self.share();
            }
            let _ = self.acknowledge.send(());
        }
        news
    }

    /// Returns whether the answer is of the manager that answered first.
    fn is_managers(&mut self, answer: &BoxAnswer) -> bool {
        let Ok(key) = answer.key.parse::<PublicKey>() else {
            warn!("the manager's answer has no key");
            return false;
        };
        match self.key {
            Some(known) if known == key => true,
            Some(_) => {
                let state = self.options.state.display();
                warn!(
                    "another manager answers: if that is meant, remove the line with the key in {state}/box.json"
                );
                false
            }
            None => {
                self.state.key = Some(key.to_string());
                let written = write_state(&self.options.state, &self.state);
                if let Err(error) = &written {
                    warn!(%error, "the manager's key cannot be written");
                    return false;
                }
                info!(manager = %self.options.manager, "the pool's manager answers");
                self.key = Some(key);
                true
            }
        }
    }

    fn keep_floors(&mut self) -> Result<(), String> {
        if !self.fence.is_unwritten() {
            return Ok(());
        }
        self.state.floors = self.fence.floors();
        let written = write_state(&self.options.state, &self.state);
        written.map_err(|error| format!("the server cannot write its state: {error}"))?;
        self.fence.written(self.state.floors.clone());
        Ok(())
    }

    fn share(&self) {
        let windows = self.windows.values().copied().collect();
        let mut report = self.fence.report();
        for gpu in &mut report {
            gpu.failures = self.failures.get(&gpu.uuid).copied().unwrap_or(0);
        }
        *self.shared.lock() = Known {
            idle_from_ms: report
                .iter()
                .map(|gpu| {
                    let gpus_of = |session| self.fence.gpus_of(session);
                    self.uses.idle_from_ms(&gpu.uuid, gpus_of)
                })
                .collect(),
            gpus: report,
            windows,
            lease_last: self.fence.lease_last(),
        };
    }

    fn wake_agent(&mut self) {
        // A full socket wakes it as well.
        let _ = self.wake.write(&[1]);
    }
}

impl Uses {
    fn new(began_ms: u64) -> Uses {
        Uses {
            began_ms,
            sessions: BTreeMap::new(),
            last_ms: BTreeMap::new(),
        }
    }

    fn begins(&mut self, session: u64) {
        self.sessions.insert(session, (0, None));
    }

    /// Returns whether the session is one of a lease.
    fn has_called(&mut self, now_ms: u64, session: u64, calls: u64, is_waiting: bool) -> bool {
        let Some((before, at_ms)) = self.sessions.get_mut(&session) else {
            return false;
        };
        *at_ms = match (is_waiting, *at_ms) {
            (false, _) => None,
            // Nothing has come since.
            (true, Some(at_ms)) if *before == calls => Some(at_ms),
            (true, _) => Some(now_ms),
        };
        *before = calls;
        true
    }

    fn ends(&mut self, now_ms: u64, session: u64, gpus: Vec<Uuid>) {
        self.sessions.remove(&session);
        for uuid in gpus {
            self.last_ms.insert(uuid, now_ms);
        }
    }

    /// Returns the time since which nobody uses a GPU.
    fn idle_from_ms(&self, uuid: &Uuid, gpus_of: impl Fn(u64) -> Vec<Uuid>) -> Option<u64> {
        let mut from_ms = self.last_ms.get(uuid).copied().unwrap_or(self.began_ms);
        for (session, (_, at_ms)) in &self.sessions {
            if gpus_of(*session).contains(uuid) {
                from_ms = from_ms.max((*at_ms)?);
            }
        }
        Some(from_ms)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failing(&self) -> MutexGuard<'_, Option<String>> {
        self.failing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn broken(&self) -> MutexGuard<'_, BTreeMap<Uuid, String>> {
        self.broken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// End of the wait for an answer.
enum Waited {
    Answer,
    /// There is something new to report.
    News,
    /// The manager has stopped, or cannot be reached.
    Nothing,
}

/// The thread that has a command look for broken GPUs.
struct Check {
    command: String,
    shared: Arc<Shared>,
    wake: UnixStream,
}

impl Check {
    fn run(mut self) {
        loop {
            let failing = match self.look() {
                Ok((broken, failing)) => {
                    let before = std::mem::replace(&mut *self.shared.broken(), broken.clone());
                    if before != broken {
                        for (uuid, reason) in &broken {
                            warn!(%uuid, reason, "a GPU is broken, says the check");
                        }
                        let _ = self.wake.write(&[1]);
                    }
                    failing
                }
                Err(error) => Some(error.to_string()),
            };
            let before = std::mem::replace(&mut *self.shared.failing(), failing.clone());
            if before != failing {
                if let Some(error) = failing {
                    warn!(error, command = self.command, "the check of the GPUs fails");
                }
                let _ = self.wake.write(&[1]);
            }
            thread::sleep(Duration::from_millis(limits::POOL_CHECK_MS));
        }
    }

    /// Runs the command. It is ended in time by another process, since it holds the state's lock
    /// even if this server dies.
    fn look(&self) -> io::Result<Looked> {
        let said = Command::new("timeout")
            .args(["-k", "0.2", limits::POOL_CHECK_S_MAX, "sh", "-c"])
            .arg(&self.command)
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .output()?;
        if !said.status.success() {
            return Err(io::Error::other(format!("it ended with {}", said.status)));
        }
        Ok(broken_of(&String::from_utf8_lossy(&said.stdout)))
    }
}

/// GPUs that are broken, and why; and what is wrong with the first line that names none.
type Looked = (BTreeMap<Uuid, String>, Option<String>);

/// Reads the output of the check. A line that names no GPU takes nothing from the others.
fn broken_of(text: &str) -> Looked {
    let (mut broken, mut failing) = (BTreeMap::new(), None);
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (uuid, reason) = line.split_once(' ').unwrap_or((line, ""));
        let uuid: Uuid = match uuid.parse() {
            Ok(uuid) => uuid,
            Err(error) => {
                let line: String = line.chars().take(80).collect();
                failing.get_or_insert_with(|| format!("{line:?}: {error}"));
                continue;
            }
        };
        let reason = match reason.trim() {
            "" => "its box's check says so",
            reason => reason,
        };
        broken.insert(uuid, reason.into());
    }
    (broken, failing)
}

impl Agent {
    fn run(mut self) {
        let mut is_down = false;
        loop {
            match self.serve(&mut is_down) {
                Ok(()) => return,
                Err(error) => {
                    if !is_down {
                        warn!(%error, "no word from the pool's manager; the agent tries again");
                    }
                    is_down = true;
                    thread::sleep(Duration::from_millis(limits::POOL_RETRY_MS));
                }
            }
        }
    }

    /// Joins, then reports until something fails. Ends well when the server has gone.
    fn serve(&mut self, is_down: &mut bool) -> Result<(), ClientError> {
        let mut sent_ms = now_ms();
        let mut answer: BoxAnswer =
            self.client
                .post(&Operation::Join.path(&[]), &self.join, Duration::ZERO)?;
        if std::mem::take(is_down) {
            info!("the pool's manager answers again");
        }
        loop {
            let (incarnation, revision, wait_ms) =
                (answer.incarnation, answer.revision, answer.wait_ms);
            if self.answers.send((sent_ms, answer)).is_err() {
                return Ok(());
            }
            let _ = self.bell.write(&[1]);
            // Floors are on the disk before they are reported.
            if self.acknowledged.recv().is_err() {
                return Ok(());
            }
            let mut told;
            answer = loop {
                self.forget_wakes();
                let Known {
                    mut gpus,
                    idle_from_ms,
                    windows,
                    lease_last,
                } = self.shared.lock().clone();
                for (gpu, from_ms) in gpus.iter_mut().zip(idle_from_ms) {
                    let idle_ms = from_ms.map(|from_ms| now_ms().saturating_sub(from_ms));
                    gpu.idle_ms = Some(idle_ms.unwrap_or(0));
                }
                told = self.shared.errors.all();
                told.extend(self.shared.broken().clone());
                for gpu in &mut gpus {
                    gpu.broken = told.get(&gpu.uuid).cloned();
                }
                let report = Report {
                    name: self.join.name.clone(),
                    instance: self.join.instance.clone(),
                    incarnation,
                    revision,
                    gpus,
                    windows,
                    check: self.shared.failing().clone(),
                    lease_last,
                };
                sent_ms = now_ms();
                self.client.begin(&Operation::Report.path(&[]), &report)?;
                match self.wait(wait_ms) {
                    Waited::Answer => break self.client.finish()?,
                    Waited::News => {}
                    Waited::Nothing => break self.client.give_up()?,
                }
            };
            self.shared.errors.are_told(&told);
        }
    }

    /// Waits for the answer, or for something new to report first.
    fn wait(&self, wait_ms: u64) -> Waited {
        let Some(answer) = self.client.waits_on() else {
            return Waited::Answer;
        };
        let mut fds = [
            PollFd::from_borrowed_fd(answer, PollFlags::IN),
            PollFd::new(&self.wake, PollFlags::IN),
        ];
        let late_ms = match self.client.has_others() {
            true => limits::POOL_ANSWER_MS_MAX,
            false => limits::POOL_ALONE_MS_MAX,
        };
        let limit = Duration::from_millis(wait_ms + late_ms);
        let limit = Timespec::try_from(limit).ok();
        let _ = rustix::io::retry_on_intr(|| poll(&mut fds, limit.as_ref()));
        match (fds[0].revents().is_empty(), fds[1].revents().is_empty()) {
            (false, _) => Waited::Answer,
            (true, false) => Waited::News,
            (true, true) => Waited::Nothing,
        }
    }

    fn forget_wakes(&mut self) {
        let mut bytes = [0; 64];
        while matches!(self.wake.read(&mut bytes), Ok(1..)) {}
    }
}

/// Takes the lock. An earlier server's workers end with it, but not at once.
fn wait_for(lock: &File) -> io::Result<()> {
    let deadline = Instant::now() + Duration::from_millis(limits::POOL_LOCK_MS_MAX);
    loop {
        match flock(lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(10));
            }
            Err(rustix::io::Errno::WOULDBLOCK) => {
                return Err(io::Error::other(
                    "another server, or a worker of one, uses it",
                ));
            }
            Err(error) => return Err(error.into()),
        }
    }
}

fn read_state(folder: &Path) -> io::Result<State> {
    let file = match File::open(folder.join("box.json")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(State::default()),
        opened => opened?,
    };
    let mut bytes = Vec::new();
    file.take(FLOORS_BYTES_MAX).read_to_end(&mut bytes)?;
    serde_json::from_slice(&bytes).map_err(io::Error::other)
}

/// Replaces the state's file in one step. It is on the disk when this returns.
fn write_state(folder: &Path, state: &State) -> io::Result<()> {
    let new = folder.join("box.json.new");
    let mut file = File::create(&new)?;
    file.write_all(&serde_json::to_vec_pretty(state)?)?;
    file.sync_all()?;
    fs::rename(&new, folder.join("box.json"))?;
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_is_idle_since_its_last_call_or_session() {
        let (gpu, other) = (Uuid([1; 16]), Uuid([2; 16]));
        let mut uses = Uses::new(5);
        let of = |session: u64| {
            (session == 7)
                .then_some(gpu)
                .into_iter()
                .collect::<Vec<_>>()
        };
        let from = |uses: &Uses, uuid: &Uuid| uses.idle_from_ms(uuid, of);
        assert_eq!(from(&uses, &gpu), Some(5));
        uses.begins(7);
        assert_eq!(from(&uses, &gpu), None);
        assert_eq!(from(&uses, &other), Some(5));
        // A session that waits for its client is idle since its last call.
        assert!(uses.has_called(20, 7, 3, true));
        assert!(uses.has_called(30, 7, 3, true));
        assert_eq!(from(&uses, &gpu), Some(20));
        assert!(uses.has_called(40, 7, 4, true));
        assert_eq!(from(&uses, &gpu), Some(40));
        // A call that takes long is no idleness, though no further one comes.
        assert!(uses.has_called(50, 7, 5, false));
        assert_eq!(from(&uses, &gpu), None);
        assert!(uses.has_called(90, 7, 5, true));
        assert_eq!(from(&uses, &gpu), Some(90));
        uses.ends(95, 7, of(7));
        assert_eq!(from(&uses, &gpu), Some(95));
        assert!(!uses.has_called(99, 7, 6, false));
        assert_eq!(from(&uses, &gpu), Some(95));
    }

    #[test]
    fn a_stray_line_of_the_check_hides_no_broken_gpu() {
        let gpu = |number: u8| Uuid([number; 16]);
        let text = format!("{} Xid 79\nwarning: x\n\n {}\nlast\n", gpu(1), gpu(2));
        let (broken, failing) = broken_of(&text);
        assert_eq!(broken[&gpu(1)], "Xid 79");
        assert_eq!(broken[&gpu(2)], "its box's check says so");
        let failing = failing.expect("nothing is said of the stray line");
        assert!(failing.starts_with("\"warning: x\": "), "{failing}");
        assert_eq!(broken_of("").1, None);
    }
}
