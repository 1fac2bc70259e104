//! Stores that are damaged, of a later release, or older copies.

use super::parts::{claim, facts, granted, join, pool, report};
use crate::{
    Fence, FenceError, Floors, Manager, Store as _, StoreError,
    api::{Granted, Join, PoolError, Report},
    limits,
    record::POOL_KEY,
    store::{SimulatedStore, Transaction},
};

#[test]
fn a_store_that_is_damaged_or_of_a_later_release_is_refused() {
    let (mut manager, mut store, _) = pool();
    granted(manager.claim(0, &claim("u", 1), false));
    store.commit(&manager.take_transaction().unwrap()).unwrap();
    let entries = store.load().unwrap();
    let with = |key: &str, value: Option<&str>| {
        let mut store = SimulatedStore::new();
        let all = entries.iter().filter(|entry| entry.key != key);
        let write = all.map(|entry| (entry.key.clone(), Some(entry.value.clone())));
        let write = write.chain([(key.into(), value.map(|value| value.as_bytes().to_vec()))]);
        let compare = Vec::new();
        store
            .commit(&Transaction {
                compare,
                write: write.collect(),
            })
            .unwrap();
        Manager::open(&mut store, "", "key")
            .err()
            .map(|error| error.to_string())
    };
    let future = with(POOL_KEY, Some("{\"format\":99}")).unwrap();
    assert!(future.contains("later release"), "{future}");
    for entry in &entries {
        let said = with(&entry.key, Some("{")).unwrap();
        assert!(said.contains("damaged"), "{said}");
        // Hosts and free GPUs are missed by nobody but their leases, and the audit's oldest entry
        // may have been dropped.
        let is_free = entry.value.windows(12).any(|w| w == b"\"lease\":null");
        let is_missed = !entry.key.starts_with("host/") && !entry.key.starts_with("audit/");
        if is_missed && !is_free {
            assert!(with(&entry.key, None).is_some(), "without {}", entry.key);
        }
    }
    assert!(with("other", Some("1")).is_some());
    let other = Manager::open(&mut store, "", "another key").err().unwrap();
    assert!(matches!(other, StoreError::OtherKey));
}

/// Has a box's process join and report, and hear the answers.
fn serve_box(manager: &mut Manager, fence: &mut Fence, of: &Join, incarnation: u64) -> u64 {
    manager.join(0, of).unwrap();
    let answer = manager.answer_for(0, &of.name).unwrap();
    fence.answered(0, &answer);
    fence.written(fence.floors());
    let report = Report {
        incarnation: incarnation.max(answer.incarnation),
        lease_last: fence.lease_last(),
        ..report(manager, of, fence.report())
    };
    manager.report(0, &report).unwrap();
    let answer = manager.answer_for(0, &of.name).unwrap();
    let ended = fence.answered(0, &answer).end;
    ended.into_iter().for_each(|session| fence.ended(session));
    fence.written(fence.floors());
    answer.incarnation
}

#[test]
fn an_older_copy_of_the_store_gives_nothing_twice() {
    // Whether the lost lease's program has a session, and whether the copy has an older lease.
    for (runs, has_older) in [(true, false), (false, false), (true, true), (false, true)] {
        let mut store = SimulatedStore::new();
        let mut manager = Manager::open(&mut store, "pool", "key").unwrap();
        let of = join("a", vec![facts(1, "x")]);
        let mut fence = Fence::new("a", Floors::default());
        serve_box(&mut manager, &mut fence, &of, 0);
        let first = granted(manager.claim(0, &claim("first", 1), false));
        if has_older {
            store.commit(&manager.take_transaction().unwrap()).unwrap();
        } else {
            manager.release(0, first.lease).unwrap();
            serve_box(&mut manager, &mut fence, &of, 0);
            serve_box(&mut manager, &mut fence, &of, 0);
            store.commit(&manager.take_transaction().unwrap()).unwrap();
        }
        let mut copy = store.copied();
        if has_older {
            manager.release(0, first.lease).unwrap();
            serve_box(&mut manager, &mut fence, &of, 0);
            serve_box(&mut manager, &mut fence, &of, 0);
        }
        let lost = granted(manager.claim(0, &claim("lost", 1), false));
        serve_box(&mut manager, &mut fence, &of, 0);
        if runs {
            fence.admit(0, 1, &lost.boxes[0].grant).unwrap();
        }
        // The copy is put back.
        let mut manager = Manager::open_from(&mut copy, "pool", "key", 1_000).unwrap();
        serve_box(&mut manager, &mut fence, &of, 0);
        serve_box(&mut manager, &mut fence, &of, 0);
        if has_older {
            let busy = manager.claim(0, &claim("new", 1), false);
            assert!(matches!(busy, Err(PoolError::Busy(_))), "{busy:?}");
            // Its box is silent, so that the time of the lease frees it.
            manager.tick(10_000 + limits::BOX_SILENCE_MS + limits::MARGIN_MS);
            manager.tick(30_000);
            serve_box(&mut manager, &mut fence, &of, 0);
        }
        let new = granted(manager.claim(0, &claim("new", 1), false));
        assert!(new.lease > lost.lease, "numbers come again");
        let epochs = |of: &Granted| of.boxes[0].grant.gpus[0].1;
        assert!(epochs(&new) > epochs(&lost), "{new:?} {lost:?}");
        serve_box(&mut manager, &mut fence, &of, 0);
        let again = fence.check(0, &lost.boxes[0].grant);
        assert!(matches!(again, Err(FenceError::Old { .. })), "{again:?}");
        assert!(fence.sessions().next().is_none(), "both run");
        fence.admit(0, 2, &new.boxes[0].grant).unwrap();
    }
}
