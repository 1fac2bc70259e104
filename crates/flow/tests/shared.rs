//! The tables that threads share: each history of real threads could have been one of a single
//! thread, and no entry is ever missed while it moves.

use outboard_flow::random::Random;
use outboard_flow::shared::{
    Concurrent, Hierarchical, LockFreeCuckoo, ReadWriteLocked, ReadWriteSpinlocked, Sharded,
    SharedTable, Spinlocked,
};
use outboard_flow::tables::Cuckoo;
use outboard_flow::{Batched, FlowTable, NONE, Refused, Secret, V4};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

fn key(i: u64) -> V4 {
    let mut bytes = [6; 13];
    bytes[2..10].copy_from_slice(&i.to_le_bytes());
    V4::from_bytes(bytes)
}

#[derive(Clone, Copy, Debug)]
enum Operation {
    Get(Option<u32>),
    Insert(u32, Result<(), Refused>),
    Remove(Option<u32>),
}

/// An operation on one key, and the times between which it took effect.
#[derive(Clone, Copy, Debug)]
struct Event {
    operation: Operation,
    began: Instant,
    ended: Instant,
}

impl Operation {
    /// Returns the key's number after the operation, if its answer is right for the number before.
    fn apply(self, before: Option<u32>) -> Option<Option<u32>> {
        match self {
            Operation::Get(found) => (found == before).then_some(before),
            Operation::Insert(value, Ok(())) => before.is_none().then_some(Some(value)),
            Operation::Insert(_, Err(Refused::Present(found))) => {
                (before == Some(found)).then_some(before)
            }
            Operation::Insert(_, Err(Refused::Full)) => before.is_none().then_some(None),
            Operation::Remove(found) => (found == before).then_some(None),
        }
    }
}

/// Returns whether the events of one key, those of each thread in order, could have happened one
/// after the other, none before it began or after it ended.
fn is_linearizable(threads: &[Vec<Event>]) -> bool {
    let mut states = vec![(vec![0; threads.len()], None)];
    let mut seen = HashSet::new();
    while let Some((done, value)) = states.pop() {
        let next: Vec<_> = threads
            .iter()
            .zip(&done)
            .map(|(events, at)| events.get(*at))
            .collect();
        let Some(earliest_end) = next.iter().flatten().map(|event| event.ended).min() else {
            return true;
        };
        for (thread, event) in next.iter().enumerate() {
            let Some(event) = event.filter(|event| event.began <= earliest_end) else {
                continue;
            };
            if let Some(after) = event.operation.apply(value) {
                let mut done = done.clone();
                done[thread] += 1;
                if seen.insert((done.clone(), after)) {
                    states.push((done, after));
                }
            }
        }
    }
    false
}

const THREADS: usize = 3;
const KEYS: u64 = 6;

/// Runs random operations of several threads on a few keys, in a table that is full enough for
/// entries to move, and checks the history of each key.
fn histories_are_linearizable<T: SharedTable<V4>>(rounds: u64) {
    for round in 0..rounds {
        let table = T::with_capacity(24, THREADS, Secret::from_seed(round)).expect("memory");
        for i in 100..112 {
            table.insert(0, key(i), i as u32).expect("room");
        }
        let operations = if cfg!(miri) { 20 } else { 400 };
        let histories: Vec<_> = std::thread::scope(|scope| {
            let run = |thread| (thread, &table);
            let started: Vec<_> = (0..THREADS)
                .map(run)
                .map(|(thread, table)| {
                    scope.spawn(move || one_thread(table, thread, round, operations))
                })
                .collect();
            started
                .into_iter()
                .map(|one| one.join().expect("a history"))
                .collect()
        });
        for i in 0..KEYS {
            let of_key = |history: &Vec<(u64, Event)>| {
                let events = history.iter().filter(|(key, _)| *key == i);
                events.map(|(_, event)| *event).collect::<Vec<_>>()
            };
            let threads: Vec<_> = histories.iter().map(of_key).collect();
            assert!(
                is_linearizable(&threads),
                "round {round}, key {i}: {threads:#?}"
            );
        }
        assert!((100..112).all(|i| table.get(0, &key(i)) == Some(i as u32)));
    }
}

fn one_thread<T: SharedTable<V4>>(
    table: &T,
    thread: usize,
    round: u64,
    operations: u32,
) -> Vec<(u64, Event)> {
    let mut random = Random::new(round * 100 + thread as u64);
    let mut history = Vec::new();
    for number in 0..operations {
        let i = random.below(KEYS);
        let kind = random.below(4);
        let value = number * THREADS as u32 + thread as u32;
        let began = Instant::now();
        let operation = match kind {
            0 => Operation::Insert(value, table.insert(thread, key(i), value)),
            1 => Operation::Remove(table.remove(thread, &key(i))),
            _ => Operation::Get(table.get(thread, &key(i))),
        };
        history.push((
            i,
            Event {
                operation,
                began,
                ended: Instant::now(),
            },
        ));
        table.quiescent(thread);
    }
    // What this thread removed can be used again by those that go on.
    for _ in 0..100 {
        table.quiescent(thread);
        std::thread::yield_now();
    }
    history
}

/// Some threads look up entries that are always there, while another inserts and removes others
/// so that all of them move about; a batch finds what single lookups find.
fn residents_are_always_found<T: SharedTable<V4>>() {
    let (flows, residents, millis) = if cfg!(miri) {
        (24, 18, 50)
    } else {
        (600, 480, 150)
    };
    let table = T::with_capacity(flows, THREADS, Secret::from_seed(1)).expect("memory");
    let keys: Vec<_> = (0..residents).map(key).collect();
    for (i, one) in keys.iter().enumerate() {
        table.insert(0, *one, i as u32).expect("room");
    }
    let stop = AtomicBool::new(false);
    let (table, stop, keys) = (&table, &stop, &keys);
    std::thread::scope(|scope| {
        for thread in 1..THREADS {
            scope.spawn(move || {
                let mut values = vec![0; keys.len()];
                while !stop.load(Ordering::Relaxed) {
                    for (i, one) in keys.iter().enumerate() {
                        assert_eq!(table.get(thread, one), Some(i as u32));
                    }
                    table.get_batch(thread, keys, &mut values);
                    assert!(
                        values
                            .iter()
                            .enumerate()
                            .all(|(i, value)| *value == i as u32)
                    );
                    table.get_batch(thread, &[key(1 << 40)], &mut values[..1]);
                    assert_eq!(values[0], NONE);
                    table.quiescent(thread);
                }
            });
        }
        let start = Instant::now();
        let mut random = Random::new(1);
        let mut changes = 0;
        // On a busy machine a writer may wait long for locks that readers hold in turns.
        while start.elapsed().as_millis() < millis
            || (changes <= 3 && start.elapsed().as_secs() < 60)
        {
            let one = key(10_000 + random.below(300));
            if table.remove(0, &one).is_none() && table.insert(0, one, 7).is_ok() {
                changes += 1;
            }
            table.quiescent(0);
        }
        stop.store(true, Ordering::Relaxed);
        assert!(changes > 3, "{changes} changes");
    });
}

/// Each of the operations of one thread is answered as by a map.
fn alone_it_is_a_map<T: SharedTable<V4>>() {
    let table = T::with_capacity(300, 1, Secret::from_seed(5)).expect("memory");
    let mut reference = HashMap::new();
    let mut random = Random::new(6);
    for value in 0..if cfg!(miri) { 500 } else { 40_000 } {
        table.quiescent(0);
        let one = key(random.below(600));
        match random.below(4) {
            0 => assert_eq!(table.remove(0, &one), reference.remove(&one)),
            1 => {
                let known = reference.get(&one).copied();
                assert!(!table.remove_entry(0, &one, known.unwrap_or_default() ^ 1));
                assert_eq!(
                    table.remove_entry(0, &one, known.unwrap_or(1)),
                    known.is_some()
                );
                reference.remove(&one);
            }
            _ => match table.insert(0, one, value) {
                Ok(()) => assert_eq!(reference.insert(one, value), None),
                Err(Refused::Present(value)) => assert_eq!(reference.get(&one), Some(&value)),
                Err(Refused::Full) => assert!(table.len() * 10 >= table.capacity() * 8),
            },
        }
        assert_eq!(table.get(0, &one), reference.get(&one).copied());
    }
    assert_eq!(table.len(), reference.len());
}

macro_rules! shared {
    ($($name:ident: $table:ty),* $(,)?) => {
        $(mod $name {
            use super::*;

            #[test]
            fn histories() {
                histories_are_linearizable::<$table>(if cfg!(miri) { 2 } else { 20 });
            }

            #[test]
            fn residents() {
                residents_are_always_found::<$table>();
            }

            #[test]
            fn alone() {
                alone_it_is_a_map::<$table>();
            }
        })*
    };
}

shared!(
    spinlocked: Spinlocked<Cuckoo<V4>>,
    read_write_locked: ReadWriteLocked<Cuckoo<V4>>,
    read_write_spinlocked: ReadWriteSpinlocked<Cuckoo<V4>>,
    hierarchical: Hierarchical<V4>,
    lock_free_cuckoo: LockFreeCuckoo<V4>,
    concurrent: Concurrent<V4>,
);

/// The checker refuses histories that no single thread could have.
#[test]
fn impossible_histories_are_found() {
    let start = Instant::now();
    let at = |ms| start + std::time::Duration::from_millis(ms);
    let event = |operation, began, ended| Event {
        operation,
        began: at(began),
        ended: at(ended),
    };
    let insert = event(Operation::Insert(1, Ok(())), 0, 10);
    let missed = event(Operation::Get(None), 20, 30);
    assert!(
        !is_linearizable(&[vec![insert], vec![missed]]),
        "a lookup that misses"
    );
    let overlapping = event(Operation::Get(None), 5, 30);
    assert!(is_linearizable(&[vec![insert], vec![overlapping]]));
    let twice = [
        vec![insert],
        vec![event(Operation::Insert(2, Ok(())), 5, 8)],
    ];
    assert!(!is_linearizable(&twice), "two insertions");
    let stale = [
        event(Operation::Get(Some(1)), 12, 13),
        event(Operation::Get(None), 14, 15),
    ];
    assert!(
        !is_linearizable(&[vec![insert], stale.to_vec()]),
        "found, then lost"
    );
}

/// Each key belongs to one shard, shards get even parts, and each holds its own.
#[test]
fn shards_share_nothing() {
    let (secret, adapter) = (Secret::from_seed(1), Secret::from_seed(2));
    let mut sharded = Sharded::<Batched<V4>>::new(4000, 4, &secret, adapter).expect("memory");
    let mut counts = [0; 4];
    for i in 0..2000 {
        let shard = sharded.shard_of(&key(i));
        counts[shard] += 1;
        sharded.tables_mut()[shard]
            .insert(key(i), i as u32)
            .expect("room");
    }
    assert!(
        counts.iter().all(|count| (400..600).contains(count)),
        "{counts:?}"
    );
    for i in 0..2000 {
        let shard = sharded.shard_of(&key(i));
        for (number, table) in sharded.tables_mut().iter().enumerate() {
            assert_eq!(table.get(&key(i)), (number == shard).then_some(i as u32));
        }
    }
    assert_eq!(
        sharded
            .into_tables()
            .iter()
            .map(|table| table.len())
            .sum::<usize>(),
        2000
    );
}

/// An expired entry gives its place to a new one under `Concurrent`, too; those that live stay.
#[test]
fn concurrent_replaces_the_expired() {
    let table = Concurrent::<V4>::with_capacity(600, 1, Secret::from_seed(3)).expect("memory");
    let held: Vec<_> = (0..700)
        .filter(|i| table.insert(0, key(*i), *i as u32).is_ok())
        .collect();
    assert!(held.len() > 570);
    let mut replaced = Vec::new();
    for i in 1000..1100 {
        if let Ok(Some(value)) = table.insert_over(0, key(i), i as u32, |value| value < 300) {
            assert!(value < 300 && table.get(0, &key(value.into())).is_none());
            assert_eq!(table.get(0, &key(i)), Some(i as u32));
            replaced.push(u64::from(value));
        }
    }
    assert!(replaced.len() > 40, "{} replaced", replaced.len());
    let stay = |i: &u64| replaced.contains(i) || table.get(0, &key(*i)) == Some(*i as u32);
    assert!(held.iter().all(stay));
    assert!(
        held.iter()
            .filter(|i| !replaced.contains(i))
            .all(|i| table.remove(0, &key(*i)).is_some())
    );
}
