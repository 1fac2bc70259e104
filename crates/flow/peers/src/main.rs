//! Measures connection tables, and writes the results as JSON: `flow-bench PARTS [--quick]
//! [--core=N] [--heap=GIB] [--out=FILE]`, where PARTS are names of figures, separated by commas, or
//! `all`. FILE is written whenever a part has ended, so a run that is cut short keeps those before.
//!
//! Threads run on core N and those after it. Before the first part, the heap is as large as
//! `--heap` says and all of it has been written: with `GLIBC_TUNABLES=glibc.malloc.mmap_max=0` and
//! a trim threshold, no table then pays for the kernel's finding of memory.

mod clock;
mod control;
mod extra;
#[cfg(foreign)]
mod foreign;
mod keys;
mod micro;
mod rivals;
mod share;
mod whole;

use micro::Options;
use outboard_flow::path::Deletion;
use outboard_flow::shared::{
    Concurrent, Hierarchical, LockFreeCuckoo, ReadWriteLocked, ReadWriteSpinlocked, Spinlocked,
};
use outboard_flow::tables::{Chained, Cuckoo, CuckooBloom, Hopscotch, Robin, Standard};
use outboard_flow::traffic::Profile;
use outboard_flow::{Batched, FlowTable, V4};
use serde_json::{Map, Value, json};
use whole::Load;

/// Keeps a thread on one core.
pub fn pin(core: usize) {
    restrict([1u64 << (core % 64), 0]);
}

/// Lets a thread, and those that it starts, run on all cores but one; on all if there is only one.
pub fn pin_elsewhere(core: usize, cores: usize) {
    let all = if cores == 1 { 0 } else { 1u64 << (core % 64) };
    restrict([!all, u64::MAX]);
}

/// The first core that this process uses.
static FIRST_CORE: std::sync::OnceLock<usize> = std::sync::OnceLock::new();

/// Core of a thread's number: those that share execution units with another come last.
pub fn core_of(thread: usize) -> usize {
    static ORDER: std::sync::OnceLock<Vec<usize>> = std::sync::OnceLock::new();
    let order = ORDER.get_or_init(|| {
        let siblings = |core: usize| {
            let path = format!("/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list");
            std::fs::read_to_string(path).ok()
        };
        let cores: Vec<_> = (0..64)
            .map_while(|core| Some((core, siblings(core)?)))
            .collect();
        let is_first = |one: &(usize, String)| {
            let list = one.1.split([',', '-']).next().unwrap_or_default();
            list.trim().parse() == Ok(one.0)
        };
        let (first, later): (Vec<_>, Vec<_>) = cores.into_iter().partition(is_first);
        first.into_iter().chain(later).map(|one| one.0).collect()
    });
    let number = FIRST_CORE.get().copied().unwrap_or(0) + thread;
    order.get(number % order.len().max(1)).copied().unwrap_or(0)
}

/// Begins to load the line that contains `place`.
#[inline(always)]
pub fn prefetch<T>(place: &T) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: a prefetch reads nothing that the program sees, and never faults.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(place).cast()) };
}

fn restrict(mask: [u64; 2]) {
    unsafe extern "C" {
        fn sched_setaffinity(pid: i32, bytes: usize, mask: *const u64) -> i32;
    }
    // SAFETY: the mask outlives the call. A core that is not there is refused, and nothing happens.
    unsafe { sched_setaffinity(0, size_of_val(&mask), mask.as_ptr()) };
}

struct Scale {
    quick: bool,
    cores: usize,
}

impl Scale {
    fn of(&self, full: usize) -> usize {
        if self.quick { full / 512 } else { full }
    }

    fn load(&self, profile: Profile, windows: usize, packets: usize, warm: usize) -> Load {
        let windows = if self.quick { 1 } else { windows };
        let (packets, warm) = (self.of(packets), self.of(warm));
        let frames = if self.quick { 1 << 10 } else { whole::FRAMES };
        Load {
            profile,
            windows,
            packets,
            warm,
            frames,
            timeout_ms: 5000,
        }
    }

    fn threads(&self) -> Vec<usize> {
        [1, 2, 4, 8, 16, 32]
            .into_iter()
            .filter(|n| *n <= self.cores)
            .collect()
    }
}

fn figure_6_1(scale: &Scale, profiles: &[Profile]) -> Value {
    let entries = scale.of(1 << 22);
    let mut result = Map::new();
    for profile in profiles.iter().copied() {
        let load = scale.load(profile, 16, 6 << 20, 4 << 20);
        let mut rows: Map<String, Value> = Map::new();
        for _ in 0..if scale.quick { 1 } else { 2 } {
            let mut add = |name: &str, value: Value| {
                let row = rows.entry(name).or_insert_with(|| json!([]));
                row.as_array_mut().expect("a list").push(value);
            };
            add(
                "batched",
                whole::alone::<Batched<V4>>(entries, &load, &Deletion::None),
            );
            #[cfg(foreign)]
            {
                use foreign::{ABSEIL, Foreign, HOPSCOTCH, ROBIN, RTE, STD};
                add(
                    "rte_hash bulk",
                    whole::alone::<Foreign<RTE>>(entries, &load, &Deletion::None),
                );
                add(
                    "tsl::hopscotch_map",
                    whole::alone::<Foreign<HOPSCOTCH>>(entries, &load, &Deletion::None),
                );
                add(
                    "tsl::robin_map",
                    whole::alone::<Foreign<ROBIN>>(entries, &load, &Deletion::None),
                );
                add(
                    "absl::flat_hash_map",
                    whole::alone::<Foreign<ABSEIL>>(entries, &load, &Deletion::None),
                );
                add(
                    "std::unordered_map",
                    whole::alone::<Foreign<STD>>(entries, &load, &Deletion::None),
                );
            }
            add(
                "our chained",
                whole::alone::<Chained<V4>>(entries, &load, &Deletion::None),
            );
            add(
                "our std",
                whole::alone::<Standard<V4>>(entries, &load, &Deletion::None),
            );
            add(
                "our cuckoo",
                whole::alone::<Cuckoo<V4>>(entries, &load, &Deletion::None),
            );
            add(
                "our cuckoo++",
                whole::alone::<CuckooBloom<V4>>(entries, &load, &Deletion::None),
            );
            add(
                "our hopscotch",
                whole::alone::<Hopscotch<V4>>(entries, &load, &Deletion::None),
            );
            add(
                "our robin hood",
                whole::alone::<Robin<V4>>(entries, &load, &Deletion::None),
            );
        }
        result.insert(profile.name.into(), Value::Object(rows));
    }
    Value::Object(result)
}

/// Name of the row without any table.
const CONTROL: &str = "control: no table";

fn figure_6_3(scale: &Scale, threads: &[usize], turns: usize) -> Value {
    let entries = scale.of(1 << 23);
    let load = scale.load(Profile::CAMPUS, 32, 3 << 20, 8 << 20);
    let none = || Deletion::None;
    in_turns(scale, threads, turns, |threads, add| {
        let mut run = |name: &str, run: fn(usize, usize, &Load, fn() -> Deletion) -> Value| {
            add(name, run(entries, threads, &load, none));
        };
        run(CONTROL, whole::sharded::<control::NoTable>);
        run("batched", whole::sharded::<Batched<V4>>);
        run("our cuckoo", whole::sharded::<Cuckoo<V4>>);
        run("our cuckoo++", whole::sharded::<CuckooBloom<V4>>);
        run("our hopscotch", whole::sharded::<Hopscotch<V4>>);
        run("our robin hood", whole::sharded::<Robin<V4>>);
        run("our std", whole::sharded::<Standard<V4>>);
        run("our chained", whole::sharded::<Chained<V4>>);
    })
}

/// Runs rows with each number of threads, all numbers in turns, and keeps of each row the run with
/// the median rate.
fn in_turns(
    scale: &Scale,
    threads: &[usize],
    turns: usize,
    row: impl Fn(usize, &mut dyn FnMut(&str, Value)),
) -> Value {
    let mut ran: Vec<Vec<(String, Vec<Value>)>> = vec![Vec::new(); threads.len()];
    for _ in 0..if scale.quick { 1 } else { turns } {
        for (threads, ran) in threads.iter().zip(&mut ran) {
            row(
                *threads,
                &mut |name, value| match ran.iter_mut().find(|(known, _)| known == name) {
                    Some((_, values)) => values.push(value),
                    None => ran.push((name.into(), vec![value])),
                },
            );
        }
    }
    let middle = |(name, mut values): (String, Vec<Value>)| {
        values.sort_by(|a, b| rate_of(a).total_cmp(&rate_of(b)));
        (name, values.swap_remove(values.len() / 2))
    };
    let rows = threads.iter().zip(ran).map(|(threads, ran)| {
        let row: Map<_, _> = ran.into_iter().map(middle).collect();
        (threads.to_string(), Value::Object(row))
    });
    Value::Object(rows.collect())
}

/// Shared tables; briefly: the lock-free ones at both ends.
fn figure_6_4(scale: &Scale, brief: bool) -> Value {
    let mut result = Map::new();
    let mut threads = scale.threads();
    if brief {
        threads = vec![1, threads[threads.len() - 1]];
    }
    for profile in [Profile::CAMPUS, Profile::CAIDA] {
        let turns = if brief { 3 } else { 1 };
        let rows = in_turns(scale, &threads, turns, |threads, add| {
            shared_row(scale, profile, threads, brief, add);
        });
        result.insert(profile.name.into(), rows);
    }
    Value::Object(result)
}

/// Every shared table with one number of threads.
fn shared_row(
    scale: &Scale,
    profile: Profile,
    n: usize,
    brief: bool,
    add: &mut dyn FnMut(&str, Value),
) {
    let entries = scale.of(1 << 23);
    let none = || Deletion::None;
    let fast = scale.load(profile, 32, 3 << 20, 8 << 20);
    // Tables that get slower with each thread need not run for long to show it.
    let slow = Load {
        packets: (fast.packets / n).max(fast.frames),
        warm: fast.warm / 4,
        ..fast
    };
    add(
        CONTROL,
        whole::sharded::<control::NoTable>(entries, n, &fast, none),
    );
    add(
        "concurrent",
        whole::shared::<Concurrent<V4>>(entries, n, &fast, none),
    );
    add(
        "lock-free cuckoo",
        whole::shared::<LockFreeCuckoo<V4>>(entries, n, &slow, none),
    );
    if profile.name == "campus" && !brief {
        type Spinning = ReadWriteSpinlocked<Cuckoo<V4>>;
        type Sleeping = ReadWriteLocked<Cuckoo<V4>>;
        let spinning = whole::shared::<Spinning>(entries, n, &slow, none);
        add("cuckoo, spinning read-write lock", spinning);
        add(
            "cuckoo, spinlock",
            whole::shared::<Spinlocked<Cuckoo<V4>>>(entries, n, &slow, none),
        );
        add(
            "cuckoo, read-write lock",
            whole::shared::<Sleeping>(entries, n, &slow, none),
        );
        add(
            "hierarchical",
            whole::shared::<Hierarchical<V4>>(entries, n, &slow, none),
        );
        // One core without any lock, to see what a lock costs.
        if n == 1 {
            let load = Load { profile, ..slow };
            add(
                "cuckoo, no lock",
                whole::sharded::<Cuckoo<V4>>(entries, 1, &load, none),
            );
        }
    }
    other_projects(entries, n, &slow, add);
}

fn other_projects(entries: usize, n: usize, load: &Load, add: &mut dyn FnMut(&str, Value)) {
    let none = || Deletion::None;
    #[cfg(foreign)]
    {
        use foreign::{Foreign, LIBCUCKOO, RTE_LOCK_FREE, TBB, URCU};
        type Tbb = Foreign<TBB>;
        let rte = whole::shared::<Foreign<RTE_LOCK_FREE>>(entries, n, load, none);
        add("rte_hash lock-free", rte);
        add(
            "libcuckoo",
            whole::shared::<Foreign<LIBCUCKOO>>(entries, n, load, none),
        );
        add(
            "tbb::concurrent_hash_map",
            whole::shared::<Tbb>(entries, n, load, none),
        );
        add(
            "liburcu",
            whole::shared::<Foreign<URCU>>(entries, n, load, none),
        );
    }
    add(
        "papaya",
        whole::shared::<share::Papaya>(entries, n, load, none),
    );
    add("scc", whole::shared::<share::Scc>(entries, n, load, none));
    add(
        "dashmap",
        whole::shared::<share::Dashmap>(entries, n, load, none),
    );
    add(
        "flurry",
        whole::shared::<share::Flurry>(entries, n, load, none),
    );
}

/// Deletes 1/f of the states at each scan, as the comparison does: all of them once a second.
fn deletions(entries: usize) -> Vec<(String, Deletion)> {
    let mut all = vec![
        ("none".into(), Deletion::None),
        ("lazy".into(), Deletion::Lazy),
    ];
    for hertz in [1000, 100, 10, 1] {
        let every_ms = 1000 / hertz;
        let states = entries / hertz as usize;
        all.push((
            format!("wheel {hertz} Hz"),
            Deletion::Wheel { tick_ms: every_ms },
        ));
        all.push((
            format!("scan {hertz} Hz"),
            Deletion::Scan { every_ms, states },
        ));
    }
    all
}

fn figure_6_5(scale: &Scale) -> Value {
    json!({
        "batched": figure_6_5_of::<Batched<V4>>(scale),
        "our cuckoo": figure_6_5_of::<Cuckoo<V4>>(scale),
    })
}

/// Every deletion with one table, all at the rate at which cores are 70 % busy on an average.
fn figure_6_5_of<T: FlowTable<V4>>(scale: &Scale) -> Value {
    let entries = scale.of(1 << 22);
    let load = scale.load(Profile::CAMPUS, 8, 4 << 20, 4 << 20);
    let all = deletions(entries);
    let mut rates = on_cores(scale, &all, &|_| {
        rate_of(&whole::alone::<T>(entries, &load, &Deletion::None))
    });
    let mpps = micro::median(&mut rates) * 0.7;
    // Twelve seconds, of which the first five fill the table.
    let packets = scale.of((mpps * 12e6) as usize);
    let ran = on_cores(scale, &all, &|deletion| {
        whole::queue::<T>(entries, &Load { packets, ..load }, deletion, mpps)
    });
    let names = all.iter().map(|(name, _)| name.clone());
    Value::Object(names.zip(ran).collect())
}

/// Runs `one` for each deletion: at the same time on cores of their own, or, if there are too few,
/// one after the other.
fn on_cores<R: Send>(
    scale: &Scale,
    all: &[(String, Deletion)],
    one: &(dyn Fn(&Deletion) -> R + Sync),
) -> Vec<R> {
    if scale.cores < all.len() {
        return all.iter().map(|(_, deletion)| one(deletion)).collect();
    }
    std::thread::scope(|scope| {
        let mut started = Vec::new();
        for (core, (_, deletion)) in all.iter().enumerate() {
            started.push(scope.spawn(move || {
                pin(core_of(core));
                one(deletion)
            }));
        }
        let join = |one: std::thread::ScopedJoinHandle<'_, R>| one.join().expect("a thread");
        started.into_iter().map(join).collect()
    })
}

fn rate_of(report: &Value) -> f64 {
    report["mpps"].as_f64().expect("a rate")
}

fn figure_6_6(scale: &Scale, threads: &[usize]) -> Value {
    let entries = scale.of(1 << 24);
    // Time passes at the rate of a full link: as many packets as five seconds have, and more.
    let load = scale.load(Profile::CAIDA, 16, 3 << 20, 72 << 20);
    let wheel = || Deletion::Wheel { tick_ms: 1 };
    let lazy = || Deletion::Lazy;
    in_turns(scale, threads, 1, |threads, add| {
        let sharded = whole::sharded::<Batched<V4>>;
        let shared = whole::shared::<Concurrent<V4>>;
        let none = || Deletion::None;
        add(
            CONTROL,
            whole::sharded::<control::NoTable>(entries, threads, &load, none),
        );
        add("sharded, wheel", sharded(entries, threads, &load, wheel));
        add("sharded, lazy", sharded(entries, threads, &load, lazy));
        add("concurrent, wheel", shared(entries, threads, &load, wheel));
        add("concurrent, lazy", shared(entries, threads, &load, lazy));
    })
}

fn machine(cores: usize) -> Value {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let info = read("/proc/cpuinfo");
    let field = |name: &str| {
        let line = info.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.split(": ").nth(1))
            .unwrap_or_default()
            .to_string()
    };
    let output = |program: &str, arguments: &[&str]| {
        let output = std::process::Command::new(program).args(arguments).output();
        output
            .map(|one| String::from_utf8_lossy(&one.stdout).trim().to_string())
            .unwrap_or_default()
    };
    json!({
        "cpu": field("model name"), "model": field("model\t"), "cores": cores,
        "cache": field("cache size"), "tsc GHz": clock::rate(), "kernel": output("uname", &["-r"]), "date": output("date", &["-u", "+%F %T"]),
        "huge pages": read("/sys/kernel/mm/transparent_hugepage/enabled").trim(), "load": read("/proc/loadavg").trim(),
        "foreign tables": cfg!(foreign),
    })
}

/// Tables of the large measurement, which the cache cannot hold.
const LARGE: &[&str] = &[
    "batched",
    "rte_hash",
    "tsl::hopscotch_map",
    "tsl::robin_map",
];
/// Tables of the goals, without those that are far behind.
const FEW: &[&str] = &[
    "batched",
    "batched, inserted singly",
    "rte_hash",
    "tsl::hopscotch_map",
    "absl::flat_hash_map",
    "hashbrown",
];
/// Tables of figure 6.2.
const LOADS: &[&str] = &[
    "batched",
    "rte_hash",
    "tsl::hopscotch_map",
    "tsl::robin_map",
    "our chained",
    "our std",
    "our cuckoo",
    "our cuckoo++",
    "our hopscotch",
    "our robin hood",
];
/// Shares of parts, for runs that have little time.
const SHARES: &[&str] = &[
    "6.1-campus",
    "6.1-caida",
    "6.3-wide",
    "6.4-brief",
    "6.6-one",
    "brief",
    "slowest-few",
    "goals-few",
];
const PARTS: &[&str] = &[
    "goals", "6.1", "6.2", "6.3", "6.4", "6.5", "6.6", "large", "slowest", "extra",
];

fn measure(part: &str, scale: &Scale) -> Value {
    let tables = rivals::all();
    let queries = scale.of(1 << 20);
    let options = |entries, only| Options {
        entries: scale.of(entries),
        queries,
        rounds: 5,
        seconds: 60.0,
        only,
    };
    match part {
        "goals" => micro::goals(&tables, &options(1 << 22, None)),
        "large" => micro::goals(&tables, &options(1 << 25, Some(LARGE))),
        "goals-few" => micro::goals(&tables, &options(1 << 22, Some(FEW))),
        "slowest" => micro::slowest(&tables, scale.of(1 << 22), None),
        "slowest-few" => micro::slowest(&tables, scale.of(1 << 22), Some(FEW)),
        "extra" => json!({
            "memory": extra::memory(scale.of(1 << 22)),
            "growth": extra::growth(scale.of(1 << 22), scale.cores),
            "chosen keys": extra::chosen(&tables, scale.of(200_000)),
        }),
        "6.1" => figure_6_1(scale, &[Profile::CAMPUS, Profile::CAIDA]),
        "6.1-campus" => figure_6_1(scale, &[Profile::CAMPUS]),
        "6.1-caida" => figure_6_1(scale, &[Profile::CAIDA]),
        "6.2" => micro::loads(&tables, scale.of(1 << 21), LOADS),
        "6.3" => figure_6_3(scale, &scale.threads(), 1),
        "6.3-wide" => figure_6_3(scale, &[1, scale.cores], 3),
        "6.4" => figure_6_4(scale, false),
        "6.4-brief" => figure_6_4(scale, true),
        "6.5" => figure_6_5(scale),
        "6.6" => figure_6_6(scale, &scale.threads()[1.min(scale.cores - 1)..]),
        "brief" => micro::brief(&tables, &options(1 << 22, Some(FEW))),
        "6.6-one" => figure_6_6(scale, &[1]),
        other => unreachable!("{other} is no part"),
    }
}

/// Number after an option's name; 0 if the option is not there.
fn option(arguments: &[String], name: &str) -> usize {
    let mut values = arguments.iter().filter_map(|one| one.strip_prefix(name));
    values.next().map_or(0, |value| {
        value.parse().unwrap_or_else(|_| {
            eprintln!("flow-bench: {name}{value} is no number");
            std::process::exit(2);
        })
    })
}

/// Writes to this much of the heap and gives it back to the allocator.
fn fill_heap(gigabytes: usize) {
    if gigabytes > 0 {
        drop(std::hint::black_box(vec![1u8; gigabytes << 30]));
    }
}

fn main() {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let quick = arguments.iter().any(|one| one == "--quick");
    let named = arguments.iter().find(|one| !one.starts_with("--")).cloned();
    let parts: Vec<String> = match named.as_deref() {
        None | Some("all") => PARTS.iter().map(|part| (*part).into()).collect(),
        Some(parts) => parts.split(',').map(Into::into).collect(),
    };
    if let Some(unknown) = parts
        .iter()
        .find(|part| !PARTS.contains(&part.as_str()) && !SHARES.contains(&part.as_str()))
    {
        eprintln!(
            "flow-bench: no part {unknown:?}; there are {}",
            PARTS.join(", ")
        );
        std::process::exit(2);
    }
    let cores = std::thread::available_parallelism().map_or(1, Into::into);
    let _ = FIRST_CORE.set(option(&arguments, "--core="));
    let scale = Scale { quick, cores };
    #[cfg(foreign)]
    if !foreign::start(if quick { c"512" } else { c"4096" }) {
        eprintln!("flow-bench: DPDK does not start");
        std::process::exit(1);
    }
    pin(core_of(0));
    fill_heap(option(&arguments, "--heap="));
    let out = arguments.iter().find_map(|one| one.strip_prefix("--out="));
    let mut result = Map::new();
    result.insert("machine".into(), machine(cores));
    for part in parts {
        let start = std::time::Instant::now();
        let value = measure(&part, &scale);
        eprintln!("{part}: {:.1} s", start.elapsed().as_secs_f64());
        result.insert(part, value);
        if let Some(out) = out
            && let Err(error) = std::fs::write(out, json!(result).to_string())
        {
            eprintln!("flow-bench: {out}: {error}");
            std::process::exit(1);
        }
    }
    if out.is_none() {
        println!("{}", Value::Object(result));
    }
}
