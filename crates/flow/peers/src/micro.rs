//! Tables alone: nanoseconds of lookups and insertions.

use crate::keys::Keys;
use crate::rivals::{Make, Rival};
use serde_json::{Map, Value, json};
use std::hint::black_box;
use std::time::Instant;

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
    pub only: Option<&'static [&'static str]>,
}

/// Fills every table to 75 %, measures in turns, fills to 90 and 95 %, and measures again.
pub fn goals(tables: &[(&'static str, Make)], options: &Options) -> Value {
    let Options {
        entries,
        queries,
        rounds,
        only,
    } = *options;
    let keys = Keys::made(entries, 1);
    let absent = Keys::made(queries, 2);
    let mut result: Map<String, Value> = Map::new();
    let mut made = Vec::new();
    for (name, make) in tables
        .iter()
        .filter(|(name, _)| only.is_none_or(|only| only.contains(name)))
    {
        made.push((*name, make(entries), Map::new()));
    }
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
        for kind in [("hit", 0), ("hit", 32), ("miss", 0), ("miss", 32)] {
            let mut times: Vec<Vec<f64>> = vec![Vec::new(); made.len()];
            for _ in 0..rounds {
                for ((_, rival, found), times) in made.iter().zip(&mut times) {
                    let whole = !found.keys().any(|key| key.starts_with("refused"));
                    if (kind.1 == 0 || rival.has_batches()) && whole {
                        let queries = if kind.0 == "hit" { &stream } else { &absent };
                        times.push(lookups(rival.as_ref(), queries, kind.1, kind.0 == "hit"));
                    }
                }
            }
            for ((_, _, found), mut times) in made.iter_mut().zip(times) {
                if !times.is_empty() {
                    let name = format!("{} {} {load}", kind.0, kind.1);
                    found.insert(
                        format!("{name} best"),
                        json!(times.iter().copied().fold(f64::MAX, f64::min)),
                    );
                    found.insert(name, json!(median(&mut times)));
                }
            }
        }
        if load == 75 {
            sizes(&made[0].1, &stream, &absent, rounds, &mut result);
        }
    }
    for (name, rival, mut found) in made {
        found.insert("bytes".into(), json!(rival.bytes()));
        result.insert(name.into(), Value::Object(found));
    }
    Value::Object(result)
}

/// Measures the first table in batches of every size.
fn sizes(
    rival: &Box<dyn Rival>,
    stream: &Keys,
    absent: &Keys,
    rounds: usize,
    result: &mut Map<String, Value>,
) {
    let sizes = [1, 2, 4, 8, 16, 32, 64].map(|size| {
        let time = |queries, found| {
            let times = (0..rounds).map(|_| lookups(rival.as_ref(), queries, size, found));
            median(&mut times.collect::<Vec<_>>())
        };
        json!({"batch": size, "hit": time(stream, true), "miss": time(absent, false)})
    });
    result.insert("batches".into(), json!(sizes));
}

/// The longest insertions while a table is filled to 90 %.
pub fn slowest(tables: &[(&'static str, Make)], entries: usize) -> Value {
    let keys = Keys::made(entries, 1);
    let mut result = Map::new();
    for (name, make) in tables {
        let mut rival = make(entries);
        let mut times: Vec<u32> = Vec::with_capacity(entries);
        for i in 0..entries / 100 * 90 {
            let start = crate::clock::ticks();
            rival.insert(&keys, i);
            times.push((crate::clock::ticks() - start) as u32);
        }
        times.sort_unstable();
        let at =
            |part: f64| crate::clock::ns(u64::from(times[(times.len() as f64 * part) as usize]));
        let (p50, p99, p9999) = (at(0.5), at(0.99), at(0.9999));
        let max = crate::clock::ns(u64::from(times[times.len() - 1]));
        result.insert(
            (*name).into(),
            json!({"p50": p50, "p99": p99, "p99.99": p9999, "max": max}),
        );
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
