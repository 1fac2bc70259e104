//! Manager, boxes, clients, store, disks, network and clocks in one process, by one seed: whatever
//! fails, nothing is lost and nothing is given twice.
//!
//! A step lets some time pass, delivers the messages that are due, and does one random thing. After
//! each step [`World::check`] compares what runs with what the manager believes. At the end faults
//! cease, and everything must be free and usable again.

mod checks;
mod faults;
mod messages;
mod parties;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::{
    Random,
    audit::{entries_of, replay},
};
use crate::{
    Fence, Floors, Grant, Manager, Uuid,
    api::{BoxAnswer, Claimed, Join, PoolError, Report, Window},
    record::{Claim, Fit, GpuFacts, Same, SpareRecord},
    store::{Fault, SimulatedStore},
};

const STEPS: u64 = 250;
const BOXES: usize = 2;
const CLIENTS: usize = 4;
/// Time in which all must be well again once faults have ceased.
const CALM_MS: u64 = 120_000;
/// Time that sessions of detached GPUs have then.
const DETACH_MS: u64 = 3_000;
/// Steps within which a claim must have a free GPU then.
const CLAIM_STEPS: usize = 200;

struct World {
    random: Random,
    /// True time.
    now_ms: u64,
    calm: bool,
    store: SimulatedStore,
    managers: Vec<Running>,
    boxes: Vec<BoxOf>,
    clients: Vec<Client>,
    network: Vec<(u64, Message)>,
    sessions_last: u64,
    instances_last: u64,
    /// Lease of each GPU and epoch that a client was told of.
    told: HashMap<(Uuid, u64), u64>,
    lease_of_uid: HashMap<String, u64>,
    grants_told: u64,
    attaches: u64,
    /// Of the manager that has the store.
    incarnation: u64,
}

/// A manager that runs. The last of the world's is the one that has the store.
struct Running {
    manager: Manager,
    start_ms: u64,
    clock: Clock,
}

#[derive(Clone, Copy)]
struct Clock {
    offset_ms: u64,
    /// Thousandths.
    rate: u64,
}

struct BoxOf {
    name: String,
    gpus: Vec<Uuid>,
    clock: Clock,
    disk: Floors,
    fence: Option<Fence>,
    instance: String,
    joined: bool,
    incarnation: u64,
    revision: u64,
    /// Number and time of the report that has no answer yet.
    asked: Option<(u64, u64)>,
    report_at_ms: u64,
    /// Sessions that run: what uses a GPU.
    running: BTreeMap<u64, Session>,
    stopped: bool,
    cut: bool,
}

struct Session {
    lease: u64,
    gpus: Vec<(Uuid, u64)>,
    until_ms: u64,
}

struct Client {
    claim: Option<Claim>,
    lease: Option<u64>,
    /// All grants that it ever got, which it may present again.
    grants: Vec<Grant>,
    next_ms: u64,
    stopped: bool,
    cut: bool,
    uids: u64,
}

#[derive(Clone)]
enum Message {
    Join(usize, Join, u64),
    Report(usize, Report, u64),
    Answer(usize, u64, Box<Result<BoxAnswer, PoolError>>),
    Claim(usize, Claim),
    Claimed(usize, Claim, Box<Result<Claimed, PoolError>>),
    Hold(u64),
    Gone(u64),
    Release(u64),
    Present(Grant),
}

impl Clock {
    fn at(&self, true_ms: u64) -> u64 {
        self.offset_ms + true_ms * self.rate / 1_000
    }
}

impl World {
    fn new(seed: u64) -> World {
        let mut random = Random::new(seed);
        let mut boxes = Vec::new();
        for at in 0..BOXES {
            let gpus = 1 + random.below(3);
            boxes.push(BoxOf {
                name: format!("box{at}"),
                gpus: (0..gpus)
                    .map(|gpu| Uuid([1 + at as u8 * 16 + gpu as u8; 16]))
                    .collect(),
                clock: clock(&mut random),
                disk: Floors::default(),
                fence: None,
                instance: String::new(),
                joined: false,
                incarnation: 0,
                revision: 0,
                asked: None,
                report_at_ms: 0,
                running: BTreeMap::new(),
                stopped: false,
                cut: false,
            });
        }
        let client = |_| Client {
            claim: None,
            lease: None,
            grants: Vec::new(),
            next_ms: 0,
            stopped: false,
            cut: false,
            uids: 0,
        };
        World {
            random,
            now_ms: 0,
            calm: false,
            store: SimulatedStore::new(),
            managers: Vec::new(),
            boxes,
            clients: (0..CLIENTS).map(client).collect(),
            network: Vec::new(),
            sessions_last: 0,
            instances_last: 0,
            told: HashMap::new(),
            lease_of_uid: HashMap::new(),
            grants_told: 0,
            attaches: 0,
            incarnation: 0,
        }
    }

    fn step(&mut self, unfenced: bool) {
        self.now_ms += self.random.below(400);
        self.deliver();
        self.keep_going(unfenced);
        if !self.calm {
            self.something_happens();
        }
        self.workers_watch_their_clocks();
    }

    /// Each party does what its time brings.
    fn keep_going(&mut self, unfenced: bool) {
        if self.calm {
            let incarnation = self.incarnation;
            self.managers
                .retain(|it| it.manager.incarnation() == incarnation);
        }
        if self.managers.is_empty() && (self.calm || self.random.one_in(3)) {
            self.start_manager();
        }
        for at in 0..self.managers.len() {
            self.with_manager(at, |manager, now_ms| manager.tick(now_ms));
        }
        for at in 0..self.boxes.len() {
            self.box_goes_on(at, unfenced);
        }
        for at in 0..self.clients.len() {
            self.client_goes_on(at);
        }
    }
}

fn window(session: &Session) -> Window {
    Window {
        lease: session.lease,
        base: 1,
        bytes: 1,
    }
}

fn clock(random: &mut Random) -> Clock {
    Clock {
        offset_ms: 1 + random.below(1_000_000),
        rate: 995 + random.below(11),
    }
}

fn facts(uuid: Uuid) -> GpuFacts {
    GpuFacts {
        uuid,
        model: "Soft".into(),
        memory_bytes: 1 << 30,
        capability: (8, 0),
        pci: (0, uuid.0[0].into(), 0),
        nvlink: None,
        bridge: None,
        proxy: 0,
        near: crate::near::Near::default(),
    }
}

/// Plays one history. Returns how often a client was told of a lease.
fn play(seed: u64, unfenced: bool) -> Result<u64, String> {
    let mut world = World::new(seed);
    for _ in 0..STEPS {
        world.step(unfenced);
        world.check()?;
    }
    world.calm_down(unfenced)?;
    if let Some(last) = world.managers.last() {
        replay(&entries_of(&last.manager), |uuid| {
            last.manager.holder_of(uuid)
        })?;
    }
    Ok(world.grants_told)
}

/// `OUTBOARD_POOL_HISTORIES` plays more, `OUTBOARD_POOL_SEED` begins elsewhere.
#[test]
fn nothing_is_lost_and_nothing_is_given_twice() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let count = number("OUTBOARD_POOL_HISTORIES").unwrap_or(2_000);
    let first: u64 = number("OUTBOARD_POOL_SEED").unwrap_or(0);
    let mut told = 0;
    for seed in first..first + count {
        match play(seed, false) {
            Ok(grants) => told += grants,
            Err(error) => panic!("seed {seed}: {error}"),
        }
    }
    assert!(told > 4 * count, "only {told} leases in {count} histories");
}

#[test]
fn without_the_epochs_the_double_grant_is_found() {
    let found = (0..200).find_map(|seed| play(seed, true).err());
    let said = found.expect("nothing was found");
    assert!(
        said.contains("is used by the leases") || said.contains("without it"),
        "{said}"
    );
}
