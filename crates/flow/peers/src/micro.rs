//! Tables alone: nanoseconds of lookups and insertions.

use crate::control::{self, Times};
use crate::keys::Keys;
use crate::rivals::{Make, Rival};
use serde_json::{Map, Value, json};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Looks up all `queries`, in batches of `batch` (0: one by one). Returns nanoseconds a key, and
/// checks how many were found.
fn lookups(rival: &dyn Rival, queries: &Keys, batch: usize, found: bool) -> f64 {
    let mut values = vec![0; 64];
    let count = queries.v4.len() / 64 * 64;
    let step = if batch == 0 { 64 } else { batch };
    let mut hits = 0usize;
    let start = Instant::now();
    for from in (0..count).step_by(step) {
        let values = &mut values[..step];
        if batch == 0 {
            rival.each(queries, from..from + step, values);
        } else {
            rival.batch(queries, from..from + step, values);
        }
        hits += usize::from(black_box(values[step - 1]) != outboard_flow::NONE);
    }
    let ns = start.elapsed().as_nanos() as f64 / count as f64;
    assert_eq!(hits, if found { count / step } else { 0 });
    ns
}

pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

pub struct Options {
    pub entries: usize,
    pub queries: usize,
    pub rounds: usize,
    /// Rounds stop early when a share of this time is over.
    pub seconds: f64,
    pub only: Option<&'static [&'static str]>,
}

/// Kinds of lookups: hits or misses, in batches of so many keys (0: one by one), at which loads.
const KINDS: [(&str, usize, &[usize]); 4] = [
    ("hit", 0, &[50, 75, 95]),
    ("hit", 32, &[50, 75, 95]),
    ("miss", 0, &[75]),
    ("miss", 32, &[75]),
];
const KINDS_COUNT: f64 = 8.0;

/// Fills every table to 75 %, measures in turns, fills to 90 and 95 %, and measures again.
pub fn goals(tables: &[(&'static str, Make)], options: &Options) -> Value {
    let Options {
        entries, queries, ..
    } = *options;
    let keys = Keys::made(entries, 1);
    let absent = Keys::made(queries, 2);
    let mut result: Map<String, Value> = Map::new();
    let mut made = make_all(tables, options);
    let mut from = 0;
    for load in [50, 75, 90, 95] {
        let to = entries / 100 * load;
        for (name, rival, found) in &mut made {
            let start = Instant::now();
            let refused = rival.fill(&keys, from..to);
            let ns = start.elapsed().as_nanos() as f64 / (to - from) as f64;
            found.insert(format!("insert {load}"), json!(ns));
            if refused > 0 {
                found.insert(format!("refused {load}"), json!(refused));
                eprintln!("{name}: {refused} refused at {load} %");
            }
        }
        from = to;
        let stream = keys.drawn(to, queries, load as u64);
        for kind in KINDS.iter().filter(|kind| kind.2.contains(&load)) {
            let queries = if kind.0 == "hit" { &stream } else { &absent };
            in_rounds(&mut made, kind.1, kind.0 == "hit", load, queries, options);
        }
        if load == 75 {
            sizes(
                made[0].1.as_ref(),
                &stream,
                &absent,
                options.rounds,
                &mut result,
            );
        }
    }
    for (name, rival, mut found) in made {
        found.insert("bytes".into(), json!(rival.bytes()));
        result.insert(name.into(), Value::Object(found));
    }
    Value::Object(result)
}

/// A table, and its numbers by their names.
type Measured = (&'static str, Box<dyn Rival>, Map<String, Value>);

fn make_all(tables: &[(&'static str, Make)], options: &Options) -> Vec<Measured> {
    let wanted = |name| options.only.is_none_or(|only| only.contains(&name));
    let wanted = tables.iter().filter(|(name, _)| wanted(*name));
    wanted
        .map(|(name, make)| (*name, make(options.entries), Map::new()))
        .collect()
}

/// Looks up the same keys in all tables, in turns.
fn in_rounds(
    made: &mut [Measured],
    batch: usize,
    hits: bool,
    load: usize,
    queries: &Keys,
    options: &Options,
) {
    let mut times: Vec<Vec<f64>> = vec![Vec::new(); made.len()];
    let until = Instant::now() + Duration::from_secs_f64(options.seconds / KINDS_COUNT);
    for round in 0..options.rounds {
        if round > 0 && Instant::now() > until {
            break;
        }
        for ((_, rival, found), times) in made.iter().zip(&mut times) {
            let whole = !found.keys().any(|key| key.starts_with("refused"));
            if (batch == 0 || rival.has_batches()) && whole {
                // Another table's turn has emptied the caches: one pass to fill them.
                lookups(rival.as_ref(), queries, batch, hits);
                times.push(lookups(rival.as_ref(), queries, batch, hits));
            }
        }
    }
    let kind = if hits { "hit" } else { "miss" };
    for ((_, _, found), mut times) in made.iter_mut().zip(times) {
        if !times.is_empty() {
            let name = format!("{kind} {batch} {load}");
            let best = times.iter().copied().fold(f64::MAX, f64::min);
            found.insert(format!("{name} best"), json!(best));
            found.insert(name, json!(median(&mut times)));
        }
    }
}

/// Measures the first table in batches of every size.
fn sizes(
    rival: &dyn Rival,
    stream: &Keys,
    absent: &Keys,
    rounds: usize,
    result: &mut Map<String, Value>,
) {
    let sizes = [1, 2, 4, 8, 16, 32, 64].map(|size| {
        let time = |queries, found| {
            let times = (0..rounds).map(|_| lookups(rival, queries, size, found));
            median(&mut times.collect::<Vec<_>>())
        };
        json!({"batch": size, "hit": time(stream, true), "miss": time(absent, false)})
    });
    result.insert("batches".into(), json!(sizes));
}

/// The longest insertions while a table is filled to 90 %. After each insertion the same core waits
/// as long without any table: what these times have in common is the machine's.
pub fn slowest(tables: &[(&'static str, Make)], entries: usize, only: Option<&[&str]>) -> Value {
    let keys = Keys::made(entries, 1);
    let mut result = Map::new();
    let count = entries / 100 * 90;
    let wanted = |name: &&str| only.is_none_or(|only| only.contains(name));
    for (name, make) in tables.iter().filter(|(name, _)| wanted(name)) {
        let mut rival = make(entries);
        let (mut times, mut waits) = (Times::with_capacity(count), Times::with_capacity(count));
        let mut sum = 0;
        for i in 0..count {
            let start = crate::clock::ticks();
            rival.insert(&keys, i);
            let passed = crate::clock::ticks() - start;
            times.push(passed);
            sum += passed;
            waits.push(control::wait_like(passed));
        }
        let mut row = times.report();
        row["mean"] = json!(crate::clock::ns(sum) / count as f64);
        row["control"] = waits.report();
        result.insert((*name).into(), row);
    }
    Value::Object(result)
}

/// Figure 6.2: cycles of lookups and insertions at each load.
pub fn loads(tables: &[(&'static str, Make)], entries: usize, only: &[&str]) -> Value {
    let keys = Keys::made(entries, 1);
    let mut made: Vec<_> = tables
        .iter()
        .filter(|(name, _)| only.contains(name))
        .map(|(name, make)| (*name, make(entries), Vec::new(), 0usize, false))
        .collect();
    for load in [10, 30, 50, 70, 75, 80, 90, 95, 99] {
        let to = entries / 100 * load;
        let stream = keys.drawn(to, 1 << 18, load as u64);
        for (_, rival, points, from, failed) in &mut made {
            if *failed {
                continue;
            }
            let start = crate::clock::ticks();
            // The last insertions before a load are those at it.
            let first = (*from).max(to - entries / 100);
            (*from..first).for_each(|i| *failed |= !rival.insert(&keys, i));
            let before = crate::clock::ticks();
            (first..to).for_each(|i| *failed |= !rival.insert(&keys, i));
            let insert = (crate::clock::ticks() - before) as f64 / (to - first) as f64;
            let all = (crate::clock::ticks() - start) as f64 / (to - *from) as f64;
            *from = to;
            if *failed {
                points.push(json!({"load": load, "refused": true}));
                continue;
            }
            let mut times = [0; 3].map(|_| lookups(rival.as_ref(), &stream, 0, true));
            let lookup = crate::clock::cycles(median(&mut times));
            let mut batched = [0; 3].map(|_| lookups(rival.as_ref(), &stream, 32, true));
            let batched = rival
                .has_batches()
                .then(|| crate::clock::cycles(median(&mut batched)));
            points.push(json!({
                "load": load, "lookup": lookup, "lookup in batches": batched, "insert": insert, "insert since the load before": all,
            }));
        }
    }
    made.into_iter()
        .map(|(name, _, points, ..)| (name.to_string(), json!(points)))
        .collect::<Map<_, _>>()
        .into()
}

/// Keys of a short pass, which a busy machine often leaves alone.
const SHORT: usize = 1 << 14;

/// The goals on a machine that others use: of many short passes in turns, each over other keys than
/// the last, the fastest.
pub fn brief(tables: &[(&'static str, Make)], options: &Options) -> Value {
    let keys = Keys::made(options.entries, 1);
    let mut made = make_all(tables, options);
    let count = (options.queries / SHORT).max(1);
    let parts = |keys: Keys| -> Vec<Keys> {
        let chunks = keys.v4.chunks(keys.v4.len().div_ceil(count));
        chunks.map(|keys| Keys::new(keys.to_vec())).collect()
    };
    let absent = parts(Keys::made(options.queries, 2));
    let mut from = 0;
    for load in [50, 75, 95] {
        let to = options.entries / 100 * load;
        made.retain_mut(|(name, rival, _)| {
            let refused = rival.fill(&keys, from..to);
            if refused > 0 {
                eprintln!("{name}: {refused} refused at {load} %");
            }
            refused == 0
        });
        from = to;
        let stream = parts(keys.drawn(to, options.queries, load as u64));
        for (kind, batch) in [
            ("hit", 0),
            ("hit", 32),
            ("hit", 64),
            ("miss", 0),
            ("miss", 32),
            ("miss", 64),
        ] {
            let queries = if kind == "hit" { &stream } else { &absent };
            let mut best = vec![f64::MAX; made.len()];
            for round in 0..count {
                for (table, (_, rival, _)) in made.iter().enumerate() {
                    // In one round no two tables read the same part of the keys.
                    let part = &queries[(round + table * 7) % queries.len()];
                    if batch == 0 || rival.has_batches() {
                        let ns = lookups(rival.as_ref(), part, batch, kind == "hit");
                        best[table] = best[table].min(ns);
                    }
                }
            }
            for ((_, _, found), ns) in made.iter_mut().zip(best) {
                if ns < f64::MAX {
                    found.insert(format!("{kind} {batch} {load}"), json!(ns));
                }
            }
        }
    }
    let rows = made
        .into_iter()
        .map(|(name, _, found)| (name.into(), found.into()));
    Value::Object(rows.collect())
}
