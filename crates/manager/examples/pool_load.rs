//! Load for the pool's manager, and how fast it is. Prints JSON. `tools/bench_pool.py` runs it.
//!
//! - `claims STORE ALONE CLIENTS SECONDS ROUNDS`: durable claims of a manager with STORE, in turns
//!   with single transactions of the store ALONE of the same kind: files, or names in one etcd.
//! - `decisions GPUS COUNT`: time of one claim without the store.
//! - `agents URL BOXES GPUS`: boxes that report until this process is killed; a line when all have.

use std::{
    collections::BTreeMap,
    error::Error,
    sync::{
        Arc, Barrier,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use outboard_manager::{Client, ManagerUrls, Options, Server, StoreUrl, open_alone};
use outboard_pool::{
    FileStore, Manager, Store, Transaction, Uuid,
    api::{BoxAnswer, Claimed, GpuReport, Join, Report},
    record::{Claim, Fit, GpuFacts},
};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

type Done = Result<(), Box<dyn Error>>;

/// GPUs of a box that is simulated.
const GPUS_A_BOX: usize = 8;
const GPUS_A_BOX_MAX: usize = 64;
/// Single transactions that the store's own rate is measured with.
const SINGLE: usize = 400;
/// Claims of one host, whose table has 512 entries.
const HOST_CLAIMS: usize = 500;

fn main() -> Done {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["claims", store, alone, clients, seconds, rounds] => claims(
            store.parse()?,
            &alone.parse()?,
            clients.parse()?,
            seconds.parse()?,
            rounds.parse()?,
        ),
        ["decisions", gpus, count] => decisions(gpus.parse()?, count.parse()?),
        ["agents", url, boxes, gpus] => agents(&url.parse()?, boxes.parse()?, gpus.parse()?),
        _ => Err(
            "claims STORE ALONE CLIENTS SECONDS ROUNDS, decisions GPUS COUNT, or agents URL BOXES GPUS"
                .into(),
        ),
    }
}

fn uuid(number: usize) -> Uuid {
    let mut bytes = [0x5a; 16];
    bytes[..8].copy_from_slice(&(number as u64).to_be_bytes());
    Uuid(bytes)
}

fn join(number: usize, gpus: usize) -> Join {
    let facts = |slot: usize| GpuFacts {
        uuid: uuid(number * GPUS_A_BOX_MAX + slot),
        model: "Simulated GPU".into(),
        memory_bytes: 80 << 30,
        capability: (9, 0),
        pci: (0, slot as u32, 0),
        nvlink: Some((slot / 8).to_string()),
        bridge: Some((slot / 4).to_string()),
        proxy: (slot / 8) as u16,
        near: outboard_pool::near::Near::default(),
    };
    Join {
        name: format!("box{number}"),
        identity: format!("id{number}"),
        instance: "bench".into(),
        url: format!("tcp://box{number}:1"),
        gpus: (0..gpus).map(facts).collect(),
        link: None,
        link_fails: None,
    }
}

fn claim(number: usize) -> Claim {
    Claim {
        uid: format!("c{number}"),
        owner: "bench".into(),
        host: format!("host{}", number / HOST_CLAIMS),
        gpus: 1,
        model: None,
        same: None,
        fit: Fit::Best,
        priority: 0,
        term_ms: 3_600_000,
        attach: false,
        links: Vec::new(),
        idle_ms: None,
    }
}

/// A box's report: it believes the answer, and has no sessions.
fn report(join: &Join, answer: &BoxAnswer) -> Report {
    let gpu = |(uuid, floor): &(Uuid, u64)| GpuReport {
        uuid: *uuid,
        floor: *floor,
        busy: None,
        busy_last: None,
        broken: None,
        failures: 0,
        idle_ms: None,
    };
    Report {
        name: join.name.clone(),
        instance: join.instance.clone(),
        incarnation: answer.incarnation,
        revision: answer.revision,
        gpus: answer.floors.iter().map(gpu).collect(),
        windows: Vec::new(),
        check: None,
        lease_last: 0,
    }
}

/// Milliseconds at parts of a sorted list.
fn quantiles(times: &mut [Duration]) -> BTreeMap<&'static str, f64> {
    times.sort_unstable();
    let at = |part: f64| {
        let index = ((times.len() as f64 * part) as usize).min(times.len().saturating_sub(1));
        times
            .get(index)
            .map_or(0.0, |time| time.as_secs_f64() * 1e3)
    };
    BTreeMap::from([
        ("p50_ms", at(0.5)),
        ("p99_ms", at(0.99)),
        ("max_ms", at(1.0)),
    ])
}

/// Commits transactions of one claim's records one after another.
fn single(store: &mut dyn Store) -> Result<Vec<Duration>, Box<dyn Error>> {
    let mut times = Vec::new();
    for number in 0..SINGLE {
        let record = serde_json::to_vec(&claim(number))?;
        let write = ["lease", "gpu"].map(|kind| (format!("{kind}/{number}"), Some(record.clone())));
        let before = Instant::now();
        store.commit(&Transaction {
            compare: Vec::new(),
            write: write.into(),
        })?;
        times.push(before.elapsed());
    }
    Ok(times)
}

/// Durations of one way to write, over all rounds, and its rates in each of them.
#[derive(Default)]
struct Side {
    times: Vec<Duration>,
    per_s: Vec<f64>,
}

impl Side {
    fn add(&mut self, times: Vec<Duration>, elapsed_s: f64) {
        self.per_s.push(times.len() as f64 / elapsed_s);
        self.times.extend(times);
    }

    /// Returns the rate of the median round, that of each, and the times of all.
    fn document(mut self) -> Value {
        let rounds = self.per_s.clone();
        self.per_s.sort_unstable_by(f64::total_cmp);
        json!({
            "count": self.times.len(),
            "per_s": self.per_s.get(self.per_s.len() / 2),
            "rounds_per_s": rounds,
            "times": quantiles(&mut self.times),
        })
    }
}

/// Measures claims and single transactions in turns, since disks are not steady.
fn claims(store: StoreUrl, alone: &StoreUrl, clients: usize, seconds: f64, rounds: usize) -> Done {
    let url = serve(store)?;
    let boxes: usize =
        ((8_000.0 * seconds * rounds as f64) as usize / GPUS_A_BOX_MAX).clamp(16, 1_500);
    let mut reporter = Client::new(url.clone(), None, None);
    let mut known = Vec::new();
    for number in 0..boxes {
        let join = join(number, GPUS_A_BOX_MAX);
        let answer: BoxAnswer = reporter.post("/v1/boxes/join", &join, Duration::ZERO)?;
        known.push((join, answer));
    }
    let mut alone = open_alone(alone)?;
    let (mut singles, mut claims) = (Side::default(), Side::default());
    for round in 0..rounds {
        let start = Instant::now();
        let times = single(alone.as_mut())?;
        singles.add(times, start.elapsed().as_secs_f64());
        // One long round before the clients begin: nothing is silent while they run.
        for (join, answer) in &mut known {
            let mut stale = report(join, answer);
            stale.revision = stale.revision.wrapping_sub(1);
            *answer = reporter.post("/v1/boxes/report", &stale, Duration::ZERO)?;
        }
        let (times, elapsed_s) = claim_for(&url, clients, round, seconds)?;
        claims.add(times, elapsed_s);
    }
    let document = json!({
        "clients": clients,
        "gpus": boxes * GPUS_A_BOX_MAX,
        "claims": claims.document(),
        "single": singles.document(),
    });
    println!("{document}");
    Ok(())
}

/// Starts a manager, which ends with this process.
fn serve(store: StoreUrl) -> Result<ManagerUrls, Box<dyn Error>> {
    let options = Options {
        listen: "127.0.0.1:0".parse()?,
        grant_key: match &store {
            StoreUrl::File(_) => None,
            StoreUrl::Etcd(_) => {
                let name = format!("outboard-load-{}.key", std::process::id());
                Some(std::env::temp_dir().join(name))
            }
        },
        store,
        store_ca: None,
        address: None,
        idle_reclaim_ms: None,
        tokens: None,
        proof: None,
    };
    let (sender, address) = mpsc::channel();
    let key = options.grant_key.clone();
    thread::spawn(move || {
        let served = Server::bind(options).and_then(|server| {
            let _ = sender.send(server.address());
            server.run()
        });
        served.map_err(|error| eprintln!("{error}"))
    });
    let url = format!("http://{}", address.recv()??).parse()?;
    // It has been read.
    key.map_or(Ok(()), std::fs::remove_file)?;
    Ok(url)
}

/// Has clients claim one GPU after another. Returns the times of all claims, and of the whole.
fn claim_for(
    url: &ManagerUrls,
    clients: usize,
    round: usize,
    seconds: f64,
) -> Result<(Vec<Duration>, f64), Box<dyn Error>> {
    let stopping = Arc::new(AtomicBool::new(false));
    let barrier = Arc::new(Barrier::new(clients + 1));
    let (sender, results) = mpsc::channel();
    for client in 0..clients {
        let (stopping, barrier) = (Arc::clone(&stopping), Arc::clone(&barrier));
        let (sender, url) = (sender.clone(), url.clone());
        thread::spawn(move || {
            let mut http = Client::new(url, None, None);
            barrier.wait();
            let mut times = Vec::new();
            for number in (round * clients + client) * 1_000_000.. {
                if stopping.load(Ordering::Relaxed) {
                    break;
                }
                let body = json!({ "claim": claim(number), "wait": false });
                let before = Instant::now();
                match http.post::<Claimed>("/v1/claims", &body, Duration::ZERO) {
                    Ok(_) => times.push(before.elapsed()),
                    Err(error) => {
                        eprintln!("a claim failed: {error}");
                        break;
                    }
                }
            }
            let _ = sender.send(times);
        });
    }
    drop(sender);
    barrier.wait();
    let start = Instant::now();
    thread::sleep(Duration::from_secs_f64(seconds));
    stopping.store(true, Ordering::Relaxed);
    let times: Vec<Duration> = results.iter().flatten().collect();
    match times.is_empty() {
        true => Err("no claim was granted".into()),
        false => Ok((times, start.elapsed().as_secs_f64())),
    }
}

/// Times each decision: a claim that finds its GPU, with the records that it writes, which are
/// thrown away. Every GPU that is given out comes back, so that the pool stays half full.
fn decisions(gpus: usize, count: usize) -> Done {
    let folder = std::env::temp_dir().join(format!("outboard-decisions-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let mut store = FileStore::make(&folder.join("pool"))?;
    let mut manager = Manager::open(&mut store, "bench", "key")?;
    let boxes: Vec<Join> = (0..gpus.div_ceil(GPUS_A_BOX))
        .map(|number| join(number, GPUS_A_BOX.min(gpus - number * GPUS_A_BOX)))
        .collect();
    for join in &boxes {
        let answer = manager.join(0, join).map_err(|error| error.to_string())?;
        manager
            .report(0, &report(join, &answer))
            .map_err(|error| error.to_string())?;
        let _ = manager.take_transaction();
    }
    let (mut times, mut leases) = (Vec::new(), std::collections::VecDeque::new());
    let half = gpus / 2;
    let mut used_cpu = Duration::ZERO;
    let mut refused = 0;
    for number in 0..half + count {
        let claim = Claim {
            // Two of eight at a time, as gangs are.
            gpus: [1, 2, 1, 4][number % 4],
            host: format!("host{}", number % (gpus / 64 + 1)),
            ..claim(number)
        };
        let (cpu, before) = (cpu_time(), Instant::now());
        let said = manager.claim(0, &claim, false);
        let time = before.elapsed();
        if number >= half {
            times.push(time);
            used_cpu += cpu_time().saturating_sub(cpu);
        }
        match said {
            Ok(Claimed::Granted(granted)) => leases.push_back(granted),
            _ => refused += 1,
        }
        let is_half_full = leases.len() * 2 > half;
        if let Some(granted) = is_half_full.then(|| leases.pop_front()).flatten() {
            manager
                .release(0, granted.lease)
                .map_err(|error| error.to_string())?;
            for of in granted.boxes {
                let join = &boxes[of.name[3..].parse::<usize>()?];
                let answer = manager
                    .answer_for(0, &of.name)
                    .map_err(|error| error.to_string())?;
                manager
                    .report(0, &report(join, &answer))
                    .map_err(|error| error.to_string())?;
            }
        }
        let _ = manager.take_transaction();
        let _ = manager.take_woken();
    }
    // By the processor's time: others use the machine, too.
    let per_s = times.len() as f64 / used_cpu.as_secs_f64();
    let document = json!({
        "gpus": gpus,
        "decisions": times.len(),
        "refused": refused,
        "per_s": per_s,
        "times": quantiles(&mut times),
    });
    println!("{document}");
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}

/// Returns the time that a processor has spent on this thread.
fn cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(
        u64::try_from(now.tv_sec).unwrap_or(0),
        u32::try_from(now.tv_nsec).unwrap_or(0),
    )
}

fn agents(url: &ManagerUrls, boxes: usize, gpus: usize) -> Done {
    let (sender, answered) = mpsc::channel();
    for number in 0..boxes {
        let (url, sender) = (url.clone(), sender.clone());
        let join = join(number, gpus / boxes);
        thread::Builder::new()
            .stack_size(256 << 10)
            .spawn(move || {
                let mut client = Client::new(url, None, None);
                loop {
                    if let Err(error) = agent(&mut client, &join, &sender) {
                        let _ = error;
                        thread::sleep(Duration::from_millis(200));
                    }
                }
            })?;
    }
    let mut last: BTreeMap<String, u64> = BTreeMap::new();
    let mut told = 0;
    // A line for each incarnation of the manager that all boxes have reported to.
    for (name, incarnation) in answered {
        last.insert(name, incarnation);
        if incarnation > told && last.len() == boxes && last.values().all(|at| *at == incarnation) {
            told = incarnation;
            println!("all {incarnation}");
        }
    }
    Ok(())
}

/// Joins, then reports as a box's agent does, until something fails.
fn agent(client: &mut Client, join: &Join, told: &mpsc::Sender<(String, u64)>) -> Done {
    let mut answer: BoxAnswer = client.post("/v1/boxes/join", join, Duration::ZERO)?;
    loop {
        let said = report(join, &answer);
        client.begin("/v1/boxes/report", &said)?;
        // The manager has the report when it holds the connection.
        told.send((join.name.clone(), answer.incarnation))?;
        answer = client.finish()?;
    }
}
