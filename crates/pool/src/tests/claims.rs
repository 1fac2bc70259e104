//! Claims, quotas and the queue.

use super::{
    Random,
    parts::{claim, granted, join, pool, report},
};
use crate::{
    Manager, Store as _, StoreError, Uuid,
    api::{Claimed, GpuReport, GpuState, PoolError},
    limits,
    record::{Claim, Same},
};

#[test]
fn a_claim_that_comes_again_is_the_same() {
    let (mut manager, mut store, of) = pool();
    let first = granted(manager.claim(0, &claim("u", 2), false));
    let again = granted(manager.claim(5, &claim("u", 2), false));
    assert_eq!(first, again);
    let other = manager.claim(5, &claim("u", 1), false);
    assert!(matches!(other, Err(PoolError::Conflict(_))), "{other:?}");
    // Another manager knows it too.
    store.commit(&manager.take_transaction().unwrap()).unwrap();
    let mut next = Manager::open(&mut store, "ignored", "key").unwrap();
    let after = granted(next.claim(0, &claim("u", 2), false));
    assert_eq!(after.lease, first.lease);
    assert_eq!(after.boxes[0].grant.gpus, first.boxes[0].grant.gpus);
    // The first may write no more, nor promise anything.
    manager.hold(9, first.lease).unwrap();
    let outdated = store.commit(&manager.take_transaction().unwrap());
    assert!(matches!(outdated, Err(StoreError::Conflict)));
    manager.join(9, &of).unwrap();
    let asks = manager.take_transaction().expect("a join is a promise");
    assert_eq!(asks.write, []);
    assert!(matches!(store.commit(&asks), Err(StoreError::Conflict)));
    next.release(0, first.lease).unwrap();
    let over = next.claim(0, &claim("u", 2), false);
    assert!(matches!(over, Err(PoolError::Conflict(_))), "{over:?}");
}

#[test]
fn bad_claims_are_refused_with_the_reason() {
    let (mut manager, _, _) = pool();
    let mut refused = |claim: Claim| manager.claim(0, &claim, true).unwrap_err();
    for gpus in [0, u32::MAX] {
        assert!(
            matches!(refused(claim("u", gpus)), PoolError::Wrong(_)),
            "{gpus}"
        );
    }
    let many = refused(claim("u", 5)).to_string();
    assert_eq!(many, "5 GPUs are asked for, and there are 4");
    let model = Some("A100".into());
    let none = refused(Claim {
        model,
        ..claim("u", 1)
    })
    .to_string();
    assert_eq!(
        none,
        "1 GPUs of the model \"A100\" are asked for, and there are 0"
    );
    let same = Some(Same::Nvlink);
    let far = refused(Claim {
        same,
        ..claim("u", 3)
    })
    .to_string();
    assert_eq!(far, "3 GPUs in one nvlink are asked for, and there are 2");
    for wrong in [
        Claim {
            term_ms: 0,
            ..claim("u", 1)
        },
        Claim {
            term_ms: u64::MAX,
            ..claim("u", 1)
        },
        Claim {
            priority: 10,
            ..claim("u", 1)
        },
        Claim {
            host: "a b".into(),
            ..claim("u", 1)
        },
        Claim {
            owner: String::new(),
            ..claim("u", 1)
        },
        Claim {
            uid: "x".repeat(65),
            ..claim("u", 1)
        },
        Claim {
            model: Some("\n".into()),
            ..claim("u", 1)
        },
    ] {
        assert!(matches!(refused(wrong), PoolError::Wrong(_)));
    }
    // Nothing was half given.
    assert!(manager.view(0).leases.is_empty() && manager.view(0).queue.is_empty());
    granted(manager.claim(0, &claim("u", 4), false));
}

#[test]
fn a_gpu_is_free_again_when_its_box_has_confirmed_or_the_time_is_over() {
    let (mut manager, _, of) = pool();
    let lease = granted(manager.claim(0, &claim("u", 4), false)).lease;
    manager.release(1_000, lease).unwrap();
    let floors = manager.answer_for(1_000, "a").unwrap().floors;
    assert!(floors.iter().all(|(_, floor)| *floor == 2));
    let state = |manager: &Manager| -> Vec<GpuState> {
        manager.view(0).gpus.iter().map(|gpu| gpu.state).collect()
    };
    let says = |number: u8, floor, busy| GpuReport {
        uuid: Uuid([number; 16]),
        floor,
        busy,
        busy_last: None,
        broken: None,
        failures: 0,
        idle_ms: None,
    };
    // A floor that is not raised, and a session that still runs, free nothing.
    let confirms = vec![says(1, 1, None), says(2, 2, Some(1)), says(3, 2, None)];
    let confirms = report(&manager, &of, confirms);
    manager.report(1_100, &confirms).unwrap();
    use GpuState::{Ending, Free};
    assert_eq!(state(&manager), [Ending, Ending, Free, Ending]);
    assert_eq!(manager.tables().hosts[0].entries.len(), 3);
    manager.tick(10_000 + limits::MARGIN_MS - 1);
    let again = report(&manager, &of, vec![]);
    manager.report(11_000, &again).unwrap();
    assert_eq!(state(&manager), [Ending, Ending, Free, Ending]);
    manager.tick(10_000 + limits::MARGIN_MS);
    assert_eq!(state(&manager), [Free; 4]);
    assert!(manager.tables().hosts[0].entries.is_empty());
}

#[test]
fn none_that_waits_starves() {
    let (mut manager, _, _) = pool();
    let first = granted(manager.claim(0, &claim("first", 1), false)).lease;
    let waits = |said| matches!(said, Ok(Claimed::Waiting { .. }));
    assert!(waits(manager.claim(0, &claim("large", 4), true)));
    // Smaller ones pass it, of any priority, until it has waited long enough.
    let mut now_ms = 0;
    let mut leases = vec![first];
    let mut random = Random::new(1);
    for at in 0.. {
        now_ms += 1_000;
        if now_ms % 6_000 == 0 {
            let said = report(&manager, &join("a", vec![]), vec![]);
            manager.report(now_ms, &said).unwrap();
        }
        leases
            .iter()
            .for_each(|lease| drop(manager.hold(now_ms, *lease)));
        assert!(at < 1_000, "it starves");
        let small = Claim {
            priority: 9,
            ..claim(&format!("s{at}"), 1)
        };
        if let Ok(Claimed::Granted(granted)) = manager.claim(now_ms, &small, true) {
            leases.push(granted.lease);
        }
        // A lease ends now and then, and its time is over.
        if random.one_in(2) && !leases.is_empty() {
            manager.release(now_ms, leases.remove(0)).unwrap();
        }
        manager.tick(now_ms);
        match manager.claim(now_ms, &claim("large", 4), true) {
            Ok(Claimed::Granted(_)) => break,
            said => assert!(waits(said)),
        }
    }
    assert!(now_ms >= limits::QUEUE_PATIENCE_MS);
}

#[test]
fn quotas_hold() {
    let (mut manager, _, _) = pool();
    manager.quota(0, "alice", Some(2)).unwrap();
    let more = manager.claim(0, &claim("u", 3), true);
    assert!(matches!(more, Err(PoolError::Impossible(_))), "{more:?}");
    granted(manager.claim(0, &claim("u", 2), true));
    let wait = manager.claim(0, &claim("v", 1), true);
    assert!(matches!(wait, Ok(Claimed::Waiting { .. })), "{wait:?}");
    let bob = Claim {
        owner: "bob".into(),
        ..claim("w", 1)
    };
    granted(manager.claim(0, &bob, true));
    manager.quota(0, "alice", None).unwrap();
    granted(manager.claim(0, &claim("v", 1), true));
}
