//! Every table against the standard library's, by random operations.

use outboard_flow::random::Random;
use outboard_flow::tables::{Chained, Cuckoo, CuckooBloom, Hopscotch, Robin, Standard};
use outboard_flow::{Batched, FlowKey, FlowTable, Growing, NONE, Refused, Secret, V4, V6};
use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr};

fn v4(i: u64) -> V4 {
    let address = Ipv4Addr::from_bits(0x0a00_0000 + (i >> 4) as u32);
    V4::new(
        (address, 1000 + (i & 15) as u16),
        (Ipv4Addr::new(10, 9, 9, 9), 80),
        6,
    )
}

fn v6(i: u64) -> V6 {
    let address = Ipv6Addr::from_bits((0x3fff << 112) + u128::from(i >> 4));
    V6::new(
        (address, 1000 + (i & 15) as u16),
        (Ipv6Addr::LOCALHOST, 443),
        17,
    )
}

/// Random insertions, removals and lookups of twice as many keys as there is room for, so that the
/// table is full for most of the time; each answer is compared with a map's.
fn compare<K: FlowKey, T: FlowTable<K>>(seed: u64, key: fn(u64) -> K) {
    let (flows, operations) = if cfg!(miri) {
        (60, 600)
    } else {
        (1024, 60_000)
    };
    let mut table = T::with_capacity(flows, Secret::from_seed(seed)).expect("memory");
    assert!(table.capacity() >= flows && table.is_empty());
    let keys = table.capacity() as u64 * 2;
    let mut reference = HashMap::new();
    let mut random = Random::new(seed);
    for value in 0..operations {
        let one = key(random.below(keys));
        match random.below(8) {
            0..4 => match (table.insert(one, value), reference.get(&one)) {
                (Ok(()), None) => {
                    reference.insert(one, value);
                }
                (Err(Refused::Present(value)), Some(known)) => assert_eq!(value, *known),
                (Err(Refused::Full), None) => {
                    assert!(
                        table.len() * 10 >= table.capacity() * 8,
                        "refused at {}",
                        table.len()
                    );
                }
                (answer, known) => unreachable!("{answer:?}, {known:?}"),
            },
            4 => assert_eq!(table.remove(&one), reference.remove(&one)),
            5 => {
                let value = reference.get(&one).copied();
                let handle = table.handle(&one);
                assert_eq!(table.remove_by(handle, value.unwrap_or(7)), value.is_some());
                reference.remove(&one);
            }
            _ => assert_eq!(table.get(&one), reference.get(&one).copied()),
        }
        assert_eq!(table.len(), reference.len());
    }
    agree(&table, &reference, keys, key);
}

fn agree<K: FlowKey>(
    table: &impl FlowTable<K>,
    reference: &HashMap<K, u32>,
    count: u64,
    key: fn(u64) -> K,
) {
    let keys: Vec<_> = (0..count).map(key).collect();
    let expected: Vec<_> = keys
        .iter()
        .map(|one| reference.get(one).copied().unwrap_or(NONE))
        .collect();
    let mut values = vec![0; keys.len()];
    table.get_each(&keys, &mut values);
    assert_eq!(values, expected);
    for length in [1, 7, 16, 17, 33, 63, 64, 65, keys.len()] {
        values.fill(0);
        for (keys, values) in keys.chunks(length).zip(values.chunks_mut(length)) {
            table.get_batch(keys, values);
        }
        assert_eq!(values, expected, "batches of {length}");
    }
}

/// Insertions in batches, some of whose keys occur twice or are there, answer as insertions one
/// after the other into a map, up to and beyond a full table.
fn insert_together<K: FlowKey, T: FlowTable<K>>(key: fn(u64) -> K) {
    let flows = if cfg!(miri) { 60 } else { 1024 };
    let mut table = T::with_capacity(flows, Secret::from_seed(9)).expect("memory");
    let keys = table.capacity() as u64 * 2;
    let mut reference = HashMap::new();
    let mut random = Random::new(9);
    let mut refused = 0;
    for length in [1, 5, 64, 65, 130]
        .into_iter()
        .cycle()
        .take(if cfg!(miri) { 5 } else { 60 })
    {
        let batch: Vec<_> = (0..length).map(|_| key(random.below(keys))).collect();
        let values: Vec<_> = (0..length).map(|_| random.below(1 << 20) as u32).collect();
        let mut answers = vec![Err(Refused::Full); batch.len()];
        table.insert_batch(&batch, &values, &mut answers);
        for ((one, value), answer) in batch.iter().zip(&values).zip(answers) {
            match (answer, reference.get(one)) {
                (Ok(()), None) => {
                    reference.insert(*one, *value);
                }
                (Err(Refused::Present(value)), Some(known)) => assert_eq!(value, *known),
                (Err(Refused::Full), None) => refused += 1,
                (answer, known) => unreachable!("{answer:?}, {known:?}"),
            }
        }
        assert_eq!(table.len(), reference.len());
    }
    assert!(refused == 0 || table.len() * 10 >= table.capacity() * 8);
    agree(&table, &reference, keys, key);
}

macro_rules! compared {
    ($($name:ident: $table:ident),* $(,)?) => {
        $(mod $name {
            use super::*;

            #[test]
            fn does_what_a_map_does() {
                for seed in 0..if cfg!(miri) { 1 } else { 4 } {
                    compare::<V4, $table<V4>>(seed, v4);
                    compare::<V6, $table<V6>>(seed, v6);
                }
            }

            #[test]
            fn inserts_together() {
                insert_together::<V4, $table<V4>>(v4);
                insert_together::<V6, $table<V6>>(v6);
            }

            #[test]
            fn holds_nine_tenths() {
                let flows = if cfg!(miri) { 64 } else { 1 << 14 };
                fill::<$table<V4>>(flows);
            }
        })*
    };
}

compared!(
    chained: Chained,
    standard: Standard,
    cuckoo: Cuckoo,
    cuckoo_bloom: CuckooBloom,
    hopscotch: Hopscotch,
    robin: Robin,
    batched: Batched,
);

/// Nine tenths of a table's capacity can be used; from then on it may refuse, and loses nothing.
fn fill<T: FlowTable<V4>>(flows: usize) {
    let mut table = T::with_capacity(flows, Secret::from_seed(1)).expect("memory");
    let mut held = Vec::new();
    for i in 0..table.capacity() as u64 * 5 / 4 {
        match table.insert(v4(i), i as u32) {
            Ok(()) => held.push(i),
            Err(refused) => {
                assert_eq!(refused, Refused::Full);
                assert!(
                    held.len() >= table.capacity() * 9 / 10,
                    "refused at {}",
                    held.len()
                );
            }
        }
    }
    assert_eq!(table.len(), held.len());
    assert!(held.iter().all(|i| table.get(&v4(*i)) == Some(*i as u32)));
    for i in &held {
        assert_eq!(table.remove(&v4(*i)), Some(*i as u32));
    }
    assert!(table.is_empty());
}

/// A growing table starts small, and at each moment of its growth answers like a map.
#[test]
fn growing_answers_while_it_grows() {
    let mut table = Growing::<V4>::new(64, 1 << 20, Secret::from_seed(1)).expect("memory");
    let mut reference = HashMap::new();
    let mut random = Random::new(1);
    let target = if cfg!(miri) { 200 } else { 20_000 };
    let mut moving = 0;
    while reference.len() < target {
        let i = random.below(target as u64 * 2);
        let value = i as u32;
        match (random.below(6), reference.contains_key(&v4(i))) {
            (0, _) => assert_eq!(table.remove(&v4(i)), reference.remove(&v4(i))),
            (1, known) => assert_eq!(table.remove_by(table.handle(&v4(i)), value), {
                reference.remove(&v4(i));
                known
            }),
            (2, known) => assert_eq!(table.get(&v4(i)), known.then_some(value)),
            (_, true) => assert_eq!(table.insert(v4(i), value), Err(Refused::Present(value))),
            (_, false) => match table.insert(v4(i), value) {
                Ok(()) => {
                    reference.insert(v4(i), value);
                }
                // The thread has not yet brought the memory.
                Err(refused) => {
                    assert_eq!(refused, Refused::Full);
                    std::thread::yield_now();
                }
            },
        }
        assert_eq!(table.len(), reference.len());
        if table.is_moving() {
            moving += 1;
            if moving % 64 == 0 {
                agree(&table, &reference, 500.min(target as u64), v4);
            }
        }
    }
    assert!(moving > 64 && table.capacity() > 64 * 2);
    agree(&table, &reference, target as u64 * 2, v4);
}

/// A table that may not grow further fills to its end and then refuses.
#[test]
fn growing_stops_at_its_limit() {
    let mut table = Growing::<V4>::new(64, 512, Secret::from_seed(1)).expect("memory");
    let mut held = 0;
    let mut tries = 0;
    while held < 480 && tries < 10_000_000 {
        tries += 1;
        held += u64::from(table.insert(v4(held), held as u32).is_ok());
    }
    assert!((0..held).all(|i| table.get(&v4(i)) == Some(i as u32)));
    let refused = (1000..3000).any(|i| table.insert(v4(i), 0) == Err(Refused::Full));
    assert!(held == 480 && refused && table.capacity() < 520);
}
