//! A claim, from the request to the file of grants.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use outboard_api::optimise::Level;
use outboard_link::Endpoint;
use outboard_manager::{Client, ClientError, Operation};
use outboard_model::Network;
use outboard_pool::{
    LinkNeed,
    api::{Claimed, Granted, LeaseView, LostView, PoolError},
    record::{Claim, LeaseState},
    show_link, show_needs,
};
use outboard_trust::{hex, random, write_new_secret};
use outboard_wire::lease::NEWS_VARIABLE;
use serde_json::{Value, json};

use super::{client, grants, hold, news};
use crate::{
    args::{ClaimArgs, ManagerArgs, NeedArgs, PoolClaimArgs, RunArgs, WishArgs},
    libraries, peer, probe, require,
};

/// Longest time that the manager lets a claim wait before it says the position.
const WAIT: Duration = Duration::from_secs(30);
/// Time within which the boxes of a new lease are to admit its program.
const BEGIN: Duration = Duration::from_secs(10);
const BEGIN_AGAIN: Duration = Duration::from_millis(100);
/// Time within which the manager is to know why a program ended: longer than a box may be silent.
const VERDICT: Duration = Duration::from_secs(12);
const VERDICT_AGAIN: Duration = Duration::from_millis(100);
/// Duration of a measurement of the network before a program starts, and how often it is repeated
/// until the network is good enough.
const CHECK: Duration = Duration::from_millis(300);
const CHECKS: usize = 3;
/// Time for a manager to take back what a command cannot hand out.
const RELEASE: Duration = Duration::from_secs(10);
/// Time within which a box notices that a worker of its own has ended.
const BOX_SAYS: Duration = Duration::from_millis(300);

/// The GPUs of a program.
pub(crate) struct Leased {
    pub(crate) servers: Vec<Endpoint>,
    /// File with their grants.
    pub(crate) grants: PathBuf,
    granted: Granted,
    client: Client,
    /// Losses that the program has not suffered: they were there when it began.
    lost_before: Vec<LostView>,
    is_ptx_only: bool,
    /// True if the lease is the host's, which goes on after the program.
    is_kept: bool,
    /// Networks that are good enough for the program.
    needs: Vec<LinkNeed>,
}

/// Asks the pool for a program's GPUs, and starts the process that keeps them until this one, or
/// the program that it becomes, has ended.
pub(crate) fn lease_for(args: &RunArgs) -> anyhow::Result<Option<Leased>> {
    let Some(pool) = args.pool.pool.as_ref().filter(|_| !args.local) else {
        return Ok(None);
    };
    let manager = ManagerArgs {
        pool: pool.clone(),
        token: args.pool.token.clone(),
    };
    let mut client = client(&manager)?;
    let is_kept = args.pool.attached;
    if is_kept {
        let granted = super::attach::granted(&mut client)?;
        return hold_granted(client, &manager, granted, is_kept, Vec::new());
    }
    let needs = needs_of(&args.pool.need, args.optimise)?;
    let gpus = args.gpus.unwrap_or(1).into();
    let granted = wait_for(
        &mut client,
        &claim_of(&args.pool.wish, gpus, None, needs.clone())?,
        !args.pool.wish.no_wait,
    )?;
    hold_granted(client, &manager, granted, is_kept, needs)
}

/// Starts the process that keeps the GPUs for this one. The host's own are not given back.
fn hold_granted(
    client: Client,
    manager: &ManagerArgs,
    granted: Granted,
    is_kept: bool,
    needs: Vec<LinkNeed>,
) -> anyhow::Result<Option<Leased>> {
    let folder = libraries::private_folder()?;
    grants::remove_left(&folder);
    let grants = folder.join(grants::new_name()?);
    let mut leased = Leased {
        servers: Vec::new(),
        grants,
        granted,
        client,
        lost_before: Vec::new(),
        is_ptx_only: false,
        is_kept,
        needs,
    };
    // From the start of the holder on the lease ends with this process.
    let held = leased
        .take_servers()
        .and_then(|()| Ok(write_new_secret(&leased.grants, &lines(&leased.granted))?))
        .and_then(|()| hold::start(manager, &leased.granted, &leased.grants, is_kept));
    match held {
        Ok(()) => Ok(Some(leased)),
        Err(error) => {
            leased.release();
            Err(error)
        }
    }
}

/// A box of the lease does not admit the program.
#[derive(Debug, thiserror::Error)]
#[error("the box {of} does not serve the program")]
pub(super) struct NotServed {
    of: String,
}

impl Leased {
    fn take_servers(&mut self) -> anyhow::Result<()> {
        let servers = self.granted.boxes.iter().map(|of| of.url.parse());
        let servers = servers.collect::<Result<Vec<Endpoint>, _>>();
        self.servers = servers.context("the address of a box")?;
        Ok(())
    }

    /// Returns the variables by which the program knows its lease, and finds the pool's managers.
    pub(crate) fn names(&self, args: &RunArgs) -> Vec<(&'static str, String)> {
        let pool = args.pool.pool.as_ref();
        let pool = pool.map(|pool| ("OUTBOARD_POOL", pool.to_string()));
        let lease = ("OUTBOARD_LEASE", self.granted.lease.to_string());
        let news = news::file_beside(&self.grants);
        // The folder is one that Outboard has made: its name is text.
        let news = news.into_os_string().into_string();
        let news = news.ok().map(|news| (NEWS_VARIABLE, news));
        let token = &args.pool.token;
        let files = [
            ("OUTBOARD_POOL_TOKEN_FILE", &token.pool_token_file),
            ("OUTBOARD_POOL_CA", &token.pool_ca),
        ];
        let files = files.into_iter().filter_map(|(name, file)| {
            // The program may change its folder.
            let file = std::path::absolute(file.as_ref()?).ok()?;
            Some((name, file.to_str()?.to_owned()))
        });
        pool.into_iter()
            .chain([lease])
            .chain(news)
            .chain(files)
            .collect()
    }

    fn path(&self, of: Operation) -> String {
        of.path(&[&self.granted.lease])
    }

    fn view(&mut self) -> Result<LeaseView, ClientError> {
        let path = self.path(Operation::Lease);
        self.client.get(&path)
    }

    fn release(&mut self) {
        if self.is_kept {
            return;
        }
        let path = self.path(Operation::Release);
        let _ = self.client.post::<Value>(&path, &json!({}), Duration::ZERO);
    }

    /// Waits until all boxes admit the program: one that has just started first hears from the
    /// manager. Returns whether one of them runs PTX alone.
    pub(crate) fn begin(&mut self, args: &RunArgs) -> anyhow::Result<bool> {
        let deadline = Instant::now() + BEGIN;
        let mut is_told = false;
        loop {
            let Err((of, error)) = self.greet(args) else {
                break;
            };
            let may_wait = Instant::now() < deadline && self.is_still_held();
            if !may_wait {
                self.complain(&of, &format!("{error:#}"));
                return Err(error.context(NotServed { of }));
            }
            if !std::mem::replace(&mut is_told, true) {
                eprintln!(
                    "outboard: the box {of} does not serve the program yet ({error:#}); trying again for {} s",
                    BEGIN.as_secs()
                );
            }
            std::thread::sleep(BEGIN_AGAIN);
        }
        self.check_links(args)?;
        if args.pool.restart > 0 {
            self.lost_before = self.view()?.lost;
        }
        Ok(self.is_ptx_only)
    }

    fn greet(&mut self, args: &RunArgs) -> Result<(), (String, anyhow::Error)> {
        self.is_ptx_only = false;
        for (of, endpoint) in self.granted.boxes.iter().zip(&self.servers) {
            let signed = hex::decode_all(&of.signed).unwrap_or_default();
            match peer::greet_with_grant(endpoint, args.emulate, signed) {
                Ok(welcome) => self.is_ptx_only |= welcome.ptx_only,
                Err(error) => return Err((of.name.clone(), error)),
            }
        }
        Ok(())
    }

    /// Measures the network from this machine to each box. The pool knows the box's own alone.
    fn check_links(&mut self, args: &RunArgs) -> anyhow::Result<()> {
        if self.needs.is_empty() {
            return Ok(());
        }
        for (of, endpoint) in self.granted.boxes.iter().zip(&self.servers) {
            let signed = hex::decode_all(&of.signed).unwrap_or_default();
            let mut link = probe::link_to(endpoint, args.emulate, Some(&signed), CHECK)?;
            // Something else may have used the network meanwhile.
            for _ in 1..CHECKS {
                if outboard_pool::meets(Some(&link), &self.needs) {
                    break;
                }
                link = probe::link_to(endpoint, args.emulate, Some(&signed), CHECK)?;
            }
            if !outboard_pool::meets(Some(&link), &self.needs) {
                let text = format!(
                    "the network between this machine and the box {} is not good enough for the recorded program: it has {}, and {} is needed",
                    of.name,
                    show_link(&link),
                    show_needs(&self.needs)
                );
                self.release();
                anyhow::bail!(text);
            }
        }
        Ok(())
    }

    /// Returns whether the lease goes on. A spare that has taken a place is taken note of.
    fn is_still_held(&mut self) -> bool {
        match self.view() {
            Ok(view) if view.state == LeaseState::Granted => {
                if view.lost.iter().any(|lost| lost.replaced) {
                    let _ = self.take_grants();
                }
                true
            }
            Ok(_) | Err(ClientError::Refused(PoolError::Unknown(_))) => false,
            // The manager may come back.
            Err(_) => true,
        }
    }

    /// Takes the grants of the lease as it is now.
    fn take_grants(&mut self) -> anyhow::Result<()> {
        let path = self.path(Operation::Grants);
        let said = self.client.post(&path, &json!({}), Duration::ZERO)?;
        if let Claimed::Granted(granted) = said {
            self.granted = granted;
            replace_grants(&self.grants, &self.granted)?;
            self.take_servers()?;
        }
        Ok(())
    }

    /// Tells the manager that a box does not serve the program.
    fn complain(&mut self, of: &str, why: &str) {
        let why: String = why.chars().filter(|c| !c.is_control()).take(60).collect();
        let path = self.path(Operation::Failed);
        let body = json!({ "box": of, "reason": why });
        let _ = self.client.post::<Value>(&path, &body, Duration::ZERO);
    }

    /// Returns why the program, which has just ended, had lost a GPU; `None` if it had all of them.
    pub(super) fn lost(&mut self) -> anyhow::Result<Option<String>> {
        let ended = Instant::now();
        loop {
            match self.view() {
                Ok(view) => {
                    let mut lost = view.lost.into_iter();
                    if let Some(new) = lost.find(|lost| !self.lost_before.contains(lost)) {
                        return Ok(Some(format!("{}: {}", new.uuid, new.reason)));
                    }
                    // Boxes that have reported since have said all that they know of it.
                    let since = ended.elapsed().saturating_sub(BOX_SAYS);
                    let has_said = |heard: &Option<u64>| {
                        heard.is_some_and(|ms| Duration::from_millis(ms) < since)
                    };
                    if view.state != LeaseState::Granted || view.heard_ms.iter().all(has_said) {
                        return Ok(None);
                    }
                }
                Err(ClientError::Refused(PoolError::Unknown(_))) => return Ok(None),
                Err(_) if ended.elapsed() < VERDICT => {}
                Err(error) => return Err(error.into()),
            }
            if ended.elapsed() > VERDICT {
                return Ok(Some("its box does not answer".into()));
            }
            std::thread::sleep(VERDICT_AGAIN);
        }
    }

    /// Returns GPUs for the program's next run: those of the lease, if spares have taken the places
    /// of all that were lost, otherwise others.
    pub(super) fn again(mut self, args: &RunArgs) -> anyhow::Result<Leased> {
        let view = self.view();
        let is_whole = view.is_ok_and(|view| {
            view.state == LeaseState::Granted && view.lost.iter().all(|lost| lost.replaced)
        });
        if is_whole && self.take_grants().is_ok() {
            eprintln!("outboard: a spare has taken the lost GPU's place");
            return Ok(self);
        }
        self.release();
        lease_for(args)?.context("no pool is named")
    }
}

/// Replaces the file of a lease's grants in one step.
pub(super) fn replace_grants(file: &Path, granted: &Granted) -> anyhow::Result<()> {
    let mut new = file.as_os_str().to_owned();
    new.push(format!(".{}", std::process::id()));
    let new = PathBuf::from(new);
    write_new_secret(&new, &lines(granted))?;
    std::fs::rename(&new, file).context("replacing the file of grants")
}

pub(super) fn claim(args: &PoolClaimArgs) -> anyhow::Result<ExitCode> {
    let mut client = client(&args.claim.manager)?;
    let claim = claim_without_program(&args.claim)?;
    let granted = wait_for(&mut client, &claim, !args.claim.wish.no_wait)?;
    let lease = granted.lease;
    hand_out(args, &granted).map_err(|error| {
        if args.claim.uid.is_some() {
            // Another process may use them by the same claim.
            return error.context(format!(
                "lease {lease} has the GPUs, by a claim that is named"
            ));
        }
        let path = Operation::Release.path(&[&lease]);
        match client.post::<Value>(&path, &json!({}), RELEASE) {
            Ok(_) => error.context(format!("lease {lease} was given back")),
            Err(_) => error.context(format!("lease {lease} has the GPUs until its term is over")),
        }
    })
}

/// Writes the file of grants, and says which GPUs they are of.
fn hand_out(args: &PoolClaimArgs, granted: &Granted) -> anyhow::Result<ExitCode> {
    if let Some(file) = &args.grants {
        write_new_secret(file, &lines(granted))
            .with_context(|| format!("--grants: {}", file.display()))?;
    }
    args.claim.json.say(granted, || {
        let mut out = format!("lease {}\n", granted.lease);
        for of in &granted.boxes {
            let gpus = of.grant.gpus.iter().map(|(uuid, _)| uuid.to_string());
            let gpus: Vec<String> = gpus.collect();
            out.push_str(&format!("{} {}\n", of.url, gpus.join(",")));
        }
        out
    })
}

/// Returns the networks that are good enough for a recorded program, if there is a recording.
fn needs_of(args: &NeedArgs, level: Level) -> anyhow::Result<Vec<LinkNeed>> {
    let Some(recording) = &args.recording else {
        return Ok(Vec::new());
    };
    let networks = require::networks_for(recording, args.budget, level)?;
    anyhow::ensure!(
        !networks.is_empty(),
        "no network keeps the program of {} within {} of its local time (outboard require says more)",
        recording.display(),
        args.budget
    );
    let need = |network: &Network| LinkNeed {
        rtt_ns_max: network.rtt_ns as u64,
        bits_per_s_min: network.bits_per_s.ceil() as u64,
    };
    Ok(networks.iter().map(need).collect())
}

/// Returns the claim of a command that starts no program.
pub(super) fn claim_without_program(args: &ClaimArgs) -> anyhow::Result<Claim> {
    let needs = needs_of(&args.need, Level::default())?;
    claim_of(&args.wish, args.gpus, args.uid.clone(), needs)
}

fn claim_of(
    wish: &WishArgs,
    gpus: u32,
    uid: Option<String>,
    links: Vec<LinkNeed>,
) -> anyhow::Result<Claim> {
    let uid = match uid {
        Some(uid) => uid,
        None => hex::encode(&random::<16>()?),
    };
    Ok(Claim {
        uid,
        owner: String::new(),
        host: host_name(),
        gpus,
        model: wish.model.clone(),
        same: wish.same.map(Into::into),
        fit: wish.fit.into(),
        priority: wish.priority,
        term_ms: u64::try_from(wish.term.as_millis()).unwrap_or(u64::MAX),
        attach: false,
        links,
        idle_ms: wish
            .idle
            .map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
    })
}

/// Returns the host's name as pools know it.
pub(crate) fn host_name() -> String {
    let name = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    let name: String = name
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || ".-_".contains(*c))
        .take(64)
        .collect();
    match name.is_empty() {
        true => "host".into(),
        false => name,
    }
}

pub(super) fn wait_for(
    client: &mut Client,
    claim: &Claim,
    may_wait: bool,
) -> anyhow::Result<Granted> {
    let body = json!({ "claim": claim, "wait": may_wait });
    let mut told = None;
    loop {
        match client.post(&Operation::Claim.path(&[]), &body, WAIT)? {
            Claimed::Granted(granted) => return Ok(granted),
            Claimed::Waiting { position } => {
                if told.replace(position) != Some(position) {
                    eprintln!(
                        "outboard: waiting for {}, number {position} in the queue",
                        super::counted(claim.gpus as usize)
                    );
                }
            }
        }
    }
}

fn lines(granted: &Granted) -> String {
    let line = |of: &outboard_pool::api::GrantedBox| {
        // As programs are told the address.
        let url = of
            .url
            .parse::<Endpoint>()
            .map_or(of.url.clone(), |url| url.to_string());
        format!("{url} {}\n", of.signed)
    };
    granted.boxes.iter().map(line).collect()
}

/// Returns the folder of a box's state.
pub(crate) fn state_folder(named: Option<PathBuf>, name: &str) -> anyhow::Result<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let folder = match named {
        Some(folder) => folder,
        None => set("XDG_STATE_HOME")
            .map(PathBuf::from)
            .or_else(|| Some(Path::new(&set("HOME")?).join(".local/state")))
            .context("there is no home folder; name a folder with --pool-state")?
            .join("outboard")
            .join(name),
    };
    Ok(std::path::absolute(folder)?)
}
