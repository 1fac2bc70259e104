//! Goals beside the figures: memory of a connection, pauses of a growing table, chosen keys.

use crate::control::{self, Times};
use crate::keys::Keys;
use crate::rivals::Make;
use outboard_flow::aging::Timeouts;
use outboard_flow::path::{Deletion, Tracker};
use outboard_flow::random::Random;
use outboard_flow::{Batched, FlowTable, Growing, Secret, V4};
use serde_json::{Map, Value, json};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Bytes of table, state and timer for each connection at nine tenths of the capacity.
pub fn memory(entries: usize) -> Value {
    let table = Batched::<V4>::with_capacity(entries, Secret::from_seed(1)).expect("memory");
    let capacity = table.capacity();
    let deletion = Deletion::Wheel { tick_ms: 1 };
    let tracker = Tracker::new(
        table,
        &[[203, 0, 113, 1].into()],
        Timeouts::LINUX,
        &deletion,
        Secret::from_seed(1),
    );
    let bytes = tracker.expect("a tracker").bytes();
    json!({"bytes a connection at 90 %": bytes as f64 / (capacity as f64 * 0.9)})
}

/// Times of single insertions while a table grows from 2^16 entries; at the same time a thread on
/// another core reads the clock, and afterwards this core does, as long.
pub fn growth(entries: usize, cores: usize) -> Value {
    let keys = Keys::made(entries, 1);
    let mut times = Times::with_capacity(entries);
    // The table's own thread, which inherits this, runs on other cores than its user.
    let core = crate::core_of(0);
    crate::pin_elsewhere(core, cores);
    let begin = (1 << 16).min(entries / 8);
    let mut table = Growing::<V4>::new(begin, entries * 4, Secret::from_seed(1)).expect("memory");
    crate::pin(core);
    let mut refused = 0;
    let stop = AtomicBool::new(false);
    let (spent, other) = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            crate::pin(crate::core_of(1));
            control::gaps(&stop)
        });
        let start = Instant::now();
        for (i, key) in keys.v4.iter().enumerate() {
            let before = crate::clock::ticks();
            refused += usize::from(table.insert(*key, i as u32).is_err());
            times.push(crate::clock::ticks() - before);
        }
        let spent = start.elapsed();
        stop.store(true, Ordering::Relaxed);
        (spent, reader.join().expect("a thread"))
    });
    let found = (0..entries)
        .filter(|i| table.get(&keys.v4[*i]) == Some(*i as u32))
        .count();
    assert_eq!(found + refused, entries);
    let stop = AtomicBool::new(false);
    let after = std::thread::scope(|scope| {
        scope.spawn(|| {
            crate::pin(crate::core_of(2));
            std::thread::sleep(spent);
            stop.store(true, Ordering::Relaxed);
        });
        control::gaps(&stop)
    });
    let mut report = times.report();
    report["mean"] = json!(spent.as_nanos() as f64 / entries as f64);
    report["refused"] = json!(refused);
    report["capacity"] = json!(table.capacity());
    report["another core reading the clock"] = other.report();
    report["this core reading the clock afterwards"] = after.report();
    report
}

/// Keys of which all have ten equal bits of an unkeyed CRC32, beside keys at random.
pub fn chosen(tables: &[(&'static str, Make)], count: usize) -> Value {
    let mut random = Random::new(11);
    let mut key = || {
        let mut bytes = [6; 13];
        bytes[..8].copy_from_slice(&random.next_u64().to_le_bytes());
        V4::from_bytes(bytes)
    };
    let any: Vec<_> = (0..count).map(|_| key()).collect();
    let mut equal = Vec::with_capacity(count);
    while equal.len() < count {
        let one = key();
        if crc(&one) & 1023 == 0 {
            equal.push(one);
        }
    }
    let sets = [("random", Keys::new(any)), ("chosen", Keys::new(equal))];
    let mut result = Map::new();
    for (name, make) in tables
        .iter()
        .filter(|(name, _)| ["batched", "rte_hash"].contains(name))
    {
        let mut row = Map::new();
        for (set, keys) in &sets {
            let mut rival = make(count * 4 / 3);
            let start = Instant::now();
            let refused = (0..count).filter(|i| !rival.insert(keys, *i)).count();
            let insert = start.elapsed().as_nanos() as f64 / count as f64;
            let mut values = [0; 32];
            let mut times = [0; 5].map(|_| {
                let start = Instant::now();
                for from in (0..count - 31).step_by(32) {
                    rival.batch(keys, from..from + 32, &mut values);
                }
                start.elapsed().as_nanos() as f64 / count as f64
            });
            let hit = crate::micro::median(&mut times);
            row.insert(
                (*set).into(),
                json!({"insert": insert, "hit 32": hit, "refused": refused}),
            );
        }
        result.insert((*name).into(), Value::Object(row));
    }
    Value::Object(result)
}

/// CRC32 (Castagnoli) of a key as 16 bytes, as rte_hash computes it by default.
fn crc(key: &V4) -> u32 {
    let mut wide = [0; 16];
    wide[..13].copy_from_slice(key.bytes());
    let mut sum = 0u32;
    for half in wide.chunks(8) {
        let mut word = [0; 8];
        word.copy_from_slice(half);
        // SAFETY: every x86-64 on which DPDK runs has SSE4.2.
        sum = unsafe { std::arch::x86_64::_mm_crc32_u64(sum.into(), u64::from_le_bytes(word)) }
            as u32;
    }
    sum
}
