//! Goals beside the figures: memory of a connection, pauses of a growing table, chosen keys.

use crate::keys::Keys;
use crate::rivals::Make;
use outboard_flow::aging::Timeouts;
use outboard_flow::path::{Deletion, Tracker};
use outboard_flow::random::Random;
use outboard_flow::{Batched, FlowTable, Growing, Secret, V4};
use serde_json::{Map, Value, json};
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

/// Times of single insertions while a table grows from 2^16 entries.
pub fn growth(entries: usize, core: usize) -> Value {
    let keys = Keys::made(entries, 1);
    // The table's own thread runs on another core.
    crate::unpin();
    let mut table = Growing::<V4>::new(1 << 16, entries * 4, Secret::from_seed(1)).expect("memory");
    let mut times: Vec<u64> = Vec::with_capacity(entries);
    let mut refused = 0;
    let start = Instant::now();
    for (i, key) in keys.v4.iter().enumerate() {
        let before = crate::clock::ticks();
        refused += usize::from(table.insert(*key, i as u32).is_err());
        times.push(crate::clock::ticks() - before);
    }
    let ns = start.elapsed().as_nanos() as f64 / entries as f64;
    crate::pin(core);
    let found = (0..entries)
        .filter(|i| table.get(&keys.v4[*i]) == Some(*i as u32))
        .count();
    assert_eq!(found + refused, entries);
    let at_us = |nanoseconds: f64| {
        times
            .iter()
            .filter(|t| crate::clock::ns(**t) > nanoseconds)
            .count()
    };
    let (above_20, above_50) = (at_us(20_000.0), at_us(50_000.0));
    times.sort_unstable();
    let at = |part: f64| crate::clock::ns(times[((times.len() - 1) as f64 * part) as usize]);
    json!({
        "mean ns": ns, "p99 ns": at(0.99), "p99.99 ns": at(0.9999), "max ns": at(1.0), "above 20 us": above_20, "above 50 us": above_50,
        "refused": refused, "capacity": table.capacity(),
    })
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
