//! The manager's answers, request by request.

use super::Random;
use crate::{
    Fence, FenceError, Floors, LinkFacts, LinkNeed, LinkSource, Manager, Store as _, StoreError,
    Uuid,
    api::{Claimed, Event, GpuReport, GpuState, Granted, Join, Object, PoolError, Report, Window},
    limits,
    record::{Claim, Fit, GpuFacts, LeaseState, POOL_KEY, Same, SpareRecord},
    store::{SimulatedStore, Transaction},
};

pub(super) fn facts(number: u8, nvlink: &str) -> GpuFacts {
    GpuFacts {
        uuid: Uuid([number; 16]),
        model: "NVIDIA H200".into(),
        memory_bytes: 1 << 30,
        capability: (9, 0),
        pci: (0, number.into(), 0),
        nvlink: Some(nvlink.into()),
        bridge: None,
        proxy: 1,
    }
}

pub(super) fn join(name: &str, gpus: Vec<GpuFacts>) -> Join {
    Join {
        name: name.into(),
        identity: format!("{name}-disk"),
        instance: "first".into(),
        url: format!("tcp://{name}:1"),
        gpus,
        link: None,
    }
}

pub(super) fn report(manager: &Manager, of: &Join, gpus: Vec<crate::api::GpuReport>) -> Report {
    Report {
        name: of.name.clone(),
        instance: of.instance.clone(),
        incarnation: manager.incarnation(),
        revision: 0,
        gpus,
        windows: Vec::new(),
        check: None,
        lease_last: 0,
    }
}

/// A manager, and a box of four GPUs in two NVLink groups that has reported.
pub(super) fn pool() -> (Manager, SimulatedStore, Join) {
    let mut store = SimulatedStore::new();
    let mut manager = Manager::open(&mut store, "pool", "key").unwrap();
    let of = join(
        "a",
        vec![facts(1, "x"), facts(2, "x"), facts(3, "y"), facts(4, "y")],
    );
    manager.join(0, &of).unwrap();
    let first = report(&manager, &of, vec![]);
    manager.report(0, &first).unwrap();
    (manager, store, of)
}

pub(super) fn claim(uid: &str, gpus: u32) -> Claim {
    Claim {
        uid: uid.into(),
        owner: "alice".into(),
        host: "host".into(),
        gpus,
        model: None,
        same: None,
        fit: Fit::Best,
        priority: 0,
        term_ms: 10_000,
        attach: false,
        links: Vec::new(),
        idle_ms: None,
    }
}

pub(super) fn granted(said: Result<Claimed, PoolError>) -> Granted {
    match said {
        Ok(Claimed::Granted(granted)) => granted,
        other => panic!("{other:?}"),
    }
}

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
fn boxes_that_contradict_each_other_are_refused() {
    let (mut manager, _, _) = pool();
    let mut refused = |join: Join| manager.join(0, &join).unwrap_err();
    let double = refused(join("b", vec![facts(1, "x")])).to_string();
    assert!(double.contains("is a GPU of the box a"), "{double}");
    let twice = refused(join("b", vec![facts(9, "x"), facts(9, "x")])).to_string();
    assert!(twice.contains("twice"), "{twice}");
    let other = Join {
        identity: "other".into(),
        ..join("a", vec![])
    };
    assert!(matches!(refused(other), PoolError::Conflict(_)));
    assert!(matches!(refused(join("a/b", vec![])), PoolError::Wrong(_)));
    let of_model = |model: &str| {
        let mut facts = facts(9, "x");
        facts.model = model.into();
        join("b", vec![facts])
    };
    for model in ["", "a\n", "\u{1b}[31m", "\u{202e}a", &"m".repeat(65)] {
        let said = refused(of_model(model));
        assert!(matches!(said, PoolError::Wrong(_)), "{said}");
        assert!(!said.to_string().contains(char::is_control));
    }
    for url in ["", "tcp://a\nb", &"u".repeat(257)] {
        let strange = Join {
            url: url.into(),
            ..join("b", vec![])
        };
        assert!(matches!(refused(strange), PoolError::Wrong(_)), "{url}");
    }
    // A process that has not joined says nothing of the box.
    let stranger = join("a", vec![]);
    let said = Report {
        instance: "other".into(),
        ..report(&manager, &stranger, vec![])
    };
    assert!(matches!(
        manager.report(0, &said),
        Err(PoolError::Unknown(_))
    ));
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
fn a_silent_box_an_inventory_that_shrinks_and_drains_keep_gpus_back() {
    let (mut manager, _, of) = pool();
    let lease = granted(manager.claim(0, &claim("u", 1), false)).lease;
    let gpu = manager.view(0).leases[0].gpus[0];
    let less = of
        .gpus
        .iter()
        .filter(|facts| facts.uuid != gpu)
        .cloned()
        .collect();
    let again = Join {
        gpus: less,
        ..of.clone()
    };
    manager.join(10, &again).unwrap();
    let said = report(&manager, &of, vec![]);
    manager.report(10, &said).unwrap();
    let lost = manager.lease_view(10, lease).unwrap().lost;
    assert_eq!(
        (lost.len(), lost[0].uuid, lost[0].replaced),
        (1, gpu, false)
    );
    let busy = manager.claim(10, &claim("v", 4), true);
    assert!(matches!(busy, Err(PoolError::Impossible(_))), "{busy:?}");
    manager.drain(10, "a", Some("repair".into())).unwrap();
    let busy = manager.claim(10, &claim("v", 3), false);
    assert!(matches!(busy, Err(PoolError::Busy(_))), "{busy:?}");
    manager.drain(10, "a", None).unwrap();
    manager.tick(10 + limits::BOX_SILENCE_MS);
    let silent = manager.claim(10 + limits::BOX_SILENCE_MS, &claim("v", 3), false);
    assert!(matches!(silent, Err(PoolError::Busy(_))), "{silent:?}");
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

pub(super) fn spares(gpus: u32, per: Option<Same>) -> SpareRecord {
    SpareRecord {
        model: None,
        per,
        gpus,
    }
}

fn states(manager: &Manager) -> Vec<GpuState> {
    manager.view(0).gpus.iter().map(|gpu| gpu.state).collect()
}

/// A report by which a box confirms all that it was told.
pub(super) fn confirms(manager: &Manager, of: &Join) -> Report {
    let floors = manager.answer_for(0, "a").unwrap().floors;
    let gpus = floors.into_iter().map(|(uuid, floor)| GpuReport {
        uuid,
        floor,
        busy: None,
        busy_last: None,
        broken: None,
        failures: 0,
        idle_ms: None,
    });
    report(manager, of, gpus.collect())
}

fn count(manager: &Manager, state: GpuState) -> usize {
    states(manager).iter().filter(|it| **it == state).count()
}

#[test]
fn a_spare_of_another_group_is_of_no_use() {
    let (mut manager, _, _) = pool();
    manager
        .set_spares(0, &spares(1, Some(Same::Nvlink)))
        .unwrap();
    assert_eq!(count(&manager, GpuState::Spare), 2);
    let of_two = Claim {
        same: Some(Same::Nvlink),
        ..claim("two", 2)
    };
    let none = manager.claim(0, &of_two, false);
    assert!(matches!(none, Err(PoolError::Impossible(_))), "{none:?}");
    manager.set_spares(0, &spares(1, None)).unwrap();
    let lease = granted(manager.claim(0, &of_two, false)).lease;
    assert_eq!(count(&manager, GpuState::Spare), 1);
    // The spare is in the other NVLink domain. The loss is told.
    let first = manager.lease_view(0, lease).unwrap().gpus[0];
    manager.is_broken(0, &first, "fell off the bus").unwrap();
    let lost = manager.held(0, lease).unwrap().lost;
    assert_eq!((lost[0].uuid, lost[0].replaced), (first, false));
}

#[test]
fn a_spare_takes_the_place_of_a_broken_gpu() {
    use GpuState::{Broken, Free, Leased, Spare};
    let (mut manager, mut store, of) = pool();
    manager.set_spares(0, &spares(1, None)).unwrap();
    let first = granted(manager.claim(0, &claim("one", 1), false));
    let (lost, epoch) = first.boxes[0].grant.gpus[0];
    let entry = manager.tables().hosts[0].entries[0].entry;
    let news = manager.held(10, first.lease).unwrap().news;
    manager.is_broken(10, &lost, "Xid 79").unwrap();
    let told = manager.held(10, first.lease).unwrap();
    assert!(told.news > news && told.lost[0].replaced);
    let Claimed::Granted(now) = manager.grants_of(first.lease).unwrap() else {
        panic!("granted")
    };
    assert_ne!(now.boxes[0].grant.gpus[0].0, lost);
    let tables = manager.tables();
    assert_eq!(tables.hosts[0].entries.len(), 1);
    assert_eq!(tables.hosts[0].entries[0].entry, entry);
    // Its sessions are to end, and it is the lease's until they have.
    let floors = manager.answer_for(10, "a").unwrap().floors;
    assert!(floors.contains(&(lost, epoch + 1)));
    assert_eq!(count(&manager, Leased), 2);
    // Another manager knows all that.
    store.commit(&manager.take_transaction().unwrap()).unwrap();
    let mut next = Manager::open(&mut store, "", "key").unwrap();
    next.join(0, &of).unwrap();
    let said = confirms(&next, &of);
    next.report(0, &said).unwrap();
    assert_eq!(count(&next, Broken), 1);
    let Claimed::Granted(after) = next.grants_of(first.lease).unwrap() else {
        panic!("granted")
    };
    assert_eq!(after.boxes[0].grant.gpus, now.boxes[0].grant.gpus);
    next.release(0, first.lease).unwrap();
    let said = confirms(&next, &of);
    next.report(0, &said).unwrap();
    assert!(next.tables().hosts[0].entries.is_empty());
    let last = next.lease_view(0, first.lease).unwrap();
    assert_eq!(last.state, LeaseState::Over);
    // Mended, it is given out: another is the spare.
    next.taint(0, &lost, None).unwrap();
    assert_eq!((count(&next, Spare), count(&next, Free)), (1, 3));
}

#[test]
fn a_dead_gpu_takes_few_claims() {
    let (mut manager, _, of) = pool();
    let dead = Uuid([1; 16]);
    let mut now_ms = 0;
    let mut eaten = 0;
    for at in 0..100 {
        now_ms += 1_000;
        manager.tick(now_ms);
        let said = report(&manager, &of, vec![]);
        manager.report(now_ms, &said).unwrap();
        let lease = granted(manager.claim(now_ms, &claim(&format!("c{at}"), 1), false));
        let (uuid, epoch) = lease.boxes[0].grant.gpus[0];
        let failed = u32::from(uuid == dead);
        eaten += failed;
        let mut said = report(
            &manager,
            &of,
            vec![GpuReport {
                uuid,
                floor: epoch,
                busy: Some(epoch),
                busy_last: None,
                broken: None,
                failures: eaten * failed,
                idle_ms: None,
            }],
        );
        said.windows = vec![Window {
            lease: lease.lease,
            base: 1,
            bytes: 1,
        }];
        manager.report(now_ms, &said).unwrap();
        manager.release(now_ms, lease.lease).unwrap();
        said.gpus[0].floor = epoch + 1;
        said.gpus[0].busy = None;
        manager.report(now_ms, &said).unwrap();
    }
    assert_eq!(eaten, limits::FAILURES_MAX);
    let view = manager.view(now_ms);
    let gpu = view.gpus.iter().find(|gpu| gpu.facts.uuid == dead).unwrap();
    assert_eq!(gpu.state, GpuState::Broken);
    assert!(gpu.health.reason.as_ref().unwrap().contains("in a row"));
}

#[test]
fn a_box_whose_connection_ends_is_silent_soon_and_its_holders_are_told() {
    let (mut manager, _, of) = pool();
    let lease = granted(manager.claim(0, &claim("u", 1), false)).lease;
    let mut said = report(&manager, &of, vec![]);
    said.windows = vec![Window {
        lease,
        base: 1,
        bytes: 1,
    }];
    manager.report(100, &said).unwrap();
    manager.box_is_gone(200, &said);
    manager.report(300, &said).unwrap();
    manager.tick(200 + limits::BOX_GRACE_MS);
    assert!(manager.held(800, lease).unwrap().lost.is_empty());
    manager.box_is_gone(1_000, &said);
    manager.tick(1_000 + limits::BOX_GRACE_MS);
    let lost = manager.held(1_500, lease).unwrap().lost;
    assert_eq!(lost[0].reason, "its box does not answer");
    assert_eq!(manager.lease_view(1_500, lease).unwrap().heard_ms, [None]);
    // It was only cut off for a moment.
    manager.report(2_000, &said).unwrap();
    assert!(manager.held(2_000, lease).unwrap().lost.is_empty());
    // Another process of it has ended the sessions.
    let again = Join {
        instance: "second".into(),
        ..of
    };
    manager.join(2_500, &again).unwrap();
    let lost = manager.held(2_500, lease).unwrap().lost;
    assert_eq!(lost[0].reason, "its box's server ended");
}

fn seen(events: &[Event]) -> Vec<(&str, bool)> {
    let is_there = |object: &Object| match object {
        Object::Box(view) => view.is_some(),
        Object::Gpu(view) => view.is_some(),
        Object::Lease(view) => view.is_some(),
        Object::Claim(view) => view.is_some(),
        Object::Quota(view) => view.is_some(),
        Object::Spares(_) => true,
    };
    let seen = |event: &Event| is_there(&event.object);
    events
        .iter()
        .map(|event| (event.name.as_str(), seen(event)))
        .collect()
}

#[test]
fn a_watch_tells_each_object_that_has_changed_once_as_it_is_now() {
    let (mut manager, mut store, of) = pool();
    let listed = manager.view(0).revision;
    assert!(!manager.has_changed(&listed));
    assert_eq!(manager.changes_after(0, &listed).unwrap().events, []);
    // Before and after the changes are sorted in, the answer is one.
    let lease = granted(manager.claim(0, &claim("u", 1), false)).lease;
    manager.claim(0, &claim("waits", 4), true).unwrap();
    manager.quota(0, "bob", Some(1)).unwrap();
    manager.quota(0, "bob", None).unwrap();
    let all = manager.changes_after(0, &listed).unwrap();
    manager.sort_changes();
    let sorted = manager.changes_after(0, &listed).unwrap();
    assert_eq!(sorted.revision, all.revision);
    let gpu = manager.lease_view(0, lease).unwrap().gpus[0].to_string();
    let lease = lease.to_string();
    let wanted = [
        ("u", false),
        (&gpu, true),
        (&lease, true),
        ("waits", true),
        ("bob", false),
    ];
    let of_sorted: std::collections::BTreeSet<_> = seen(&sorted.events).into_iter().collect();
    assert_eq!(of_sorted, wanted.into());
    assert_eq!(sorted.events.len(), wanted.len(), "each once");
    assert_eq!(
        all.events
            .iter()
            .rev()
            .find(|it| it.name == gpu)
            .map(|it| &it.object),
        sorted
            .events
            .iter()
            .find(|it| it.name == gpu)
            .map(|it| &it.object)
    );
    // It goes on from each event.
    for (at, event) in sorted.events.iter().enumerate() {
        let rest = manager.changes_after(0, &event.revision).unwrap();
        assert_eq!(rest.events, sorted.events[at + 1..]);
    }
    assert!(!manager.has_changed(&sorted.revision));
    // What only time brings is told, too: the box is silent.
    manager.tick(limits::BOX_SILENCE_MS + 1);
    let later = manager.changes_after(0, &sorted.revision).unwrap();
    let silent = later.events.iter().any(|event| match &event.object {
        Object::Box(Some(view)) => !view.heard && view.of == of.name,
        _ => false,
    });
    assert!(silent, "{later:?}");
    // Nothing is told of revisions that another incarnation gave, or nobody.
    store.commit(&manager.take_transaction().unwrap()).unwrap();
    let next = Manager::open(&mut store, "ignored", "key").unwrap();
    for gone in [later.revision.as_str(), "2-1"] {
        assert!(next.has_changed(gone), "its watch is answered at once");
        let said = next.changes_after(0, gone);
        assert!(matches!(said, Err(PoolError::Gone(_))), "{said:?}");
    }
    for wrong in ["", "1", "-", "1-", "a-b", "1-18446744073709551616", "1--1"] {
        let said = next.changes_after(0, wrong);
        assert!(matches!(said, Err(PoolError::Wrong(_))), "{said:?}");
    }
}

#[test]
fn changes_that_are_too_many_are_forgotten_and_the_watch_says_so() {
    let (mut manager, _, of) = pool();
    let first = manager.revision();
    for sorted in [true, false] {
        let before = manager.revision();
        // Owners that come and go leave their names behind.
        for number in 0..limits::CHANGES_MAX + 1 {
            manager
                .quota(0, &format!("{sorted}{number}"), None)
                .unwrap();
            if sorted && number % 1_000 == 0 {
                manager.sort_changes();
            }
        }
        if sorted {
            manager.sort_changes();
        }
        let said = manager.changes_after(0, &before);
        assert!(matches!(said, Err(PoolError::Gone(_))), "{sorted}");
    }
    assert!(manager.changes_after(0, &first).is_err());
    let now = manager.revision();
    manager.drain(0, &of.name, Some("repair".into())).unwrap();
    let changes = manager.changes_after(0, &now).unwrap();
    assert!(!changes.more && changes.events.iter().any(|event| event.name == of.name));
    // One answer has its limit, and the rest comes with the next.
    for number in 0..limits::EVENTS_MAX {
        manager.quota(0, &format!("o{number}"), None).unwrap();
    }
    let piece = manager.changes_after(0, &now).unwrap();
    assert!(piece.more && piece.events.len() == limits::EVENTS_MAX);
    let rest = manager.changes_after(0, &piece.revision).unwrap();
    assert!(
        !rest.more && rest.events.last().unwrap().name == format!("o{}", limits::EVENTS_MAX - 1)
    );
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

/// Reports that these GPUs have sessions with these epochs, and that the box knows all news.
pub(super) fn uses(manager: &Manager, of: &Join, busy: &[(Uuid, u64)]) -> Report {
    let answer = manager.answer_for(0, &of.name).unwrap();
    let epoch = |uuid: &Uuid| busy.iter().find(|(it, _)| it == uuid).map(|it| it.1);
    let gpus = answer.floors.iter().map(|(uuid, floor)| GpuReport {
        uuid: *uuid,
        floor: *floor,
        busy: epoch(uuid),
        busy_last: epoch(uuid),
        broken: None,
        failures: 0,
        idle_ms: None,
    });
    Report {
        revision: answer.revision,
        ..report(manager, of, gpus.collect())
    }
}

pub(super) fn attach(uid: &str, gpus: u32) -> Claim {
    Claim {
        attach: true,
        links: Vec::new(),
        ..claim(uid, gpus)
    }
}

#[test]
fn a_host_keeps_what_is_attached() {
    let (mut manager, _, of) = pool();
    let first = granted(manager.claim(0, &attach("u", 1), false));
    let more = granted(manager.claim(0, &attach("v", 2), false));
    // A host has one lease, which grows; a request that comes again adds nothing.
    assert_eq!(
        (more.lease, more.boxes[0].grant.gpus.len()),
        (first.lease, 3)
    );
    assert_eq!(granted(manager.claim(0, &attach("v", 2), false)), more);
    let program = granted(manager.claim(0, &claim("w", 1), false));
    assert_ne!(program.lease, first.lease);

    // Nobody renews it but the manager, whose boxes report; the connection of a program that used
    // it means nothing.
    manager.holder_is_gone(0, first.lease);
    for now_ms in [9_000, 18_000, 27_000] {
        manager.tick(now_ms);
        manager.hold(now_ms, program.lease).unwrap();
        let said = uses(&manager, &of, &[]);
        manager.report(now_ms, &said).unwrap();
    }
    let view = manager.lease_view(27_000, first.lease).unwrap();
    assert_eq!((view.state, view.left_ms), (LeaseState::Granted, 10_000));
    // A box that is silent for long does not end it.
    manager.tick(500_000);
    let view = manager.lease_view(500_000, first.lease).unwrap();
    assert_eq!((view.state, view.left_ms), (LeaseState::Granted, 0));
}

#[test]
fn a_detach_waits_for_sessions_or_ends_them() {
    let (mut manager, mut store, of) = pool();
    let first = granted(manager.claim(0, &attach("u", 1), false));
    let more = granted(manager.claim(0, &attach("v", 2), false));
    manager.tick(500_000);
    let said = uses(&manager, &of, &[]);
    manager.report(500_000, &said).unwrap();

    // It waits for sessions: of grants that no new program gets.
    let (gone, epoch) = more.boxes[0].grant.gpus[0];
    let before = uses(&manager, &of, &[]);
    manager.detach(500_000, &gone, false).unwrap();
    let Ok(Claimed::Granted(now)) = manager.grants_of(first.lease) else {
        panic!("the lease is there")
    };
    assert_eq!(now.boxes[0].grant.gpus, more.boxes[0].grant.gpus[1..]);
    let said = uses(&manager, &of, &[(gone, epoch)]);
    manager.report(500_001, &said).unwrap();
    // A report from before says nothing of the sessions that have begun since.
    manager.report(500_002, &before).unwrap();
    let floor = |manager: &Manager| {
        let answer = manager.answer_for(500_003, "a").unwrap();
        answer.floors.iter().find(|it| it.0 == gone).unwrap().1
    };
    assert_eq!(floor(&manager), epoch);
    let said = uses(&manager, &of, &[]);
    manager.report(500_004, &said).unwrap();
    assert_eq!(floor(&manager), epoch + 1);

    // Another manager knows it, too, and frees it when the box has confirmed.
    store.commit(&manager.take_transaction().unwrap()).unwrap();
    let mut next = Manager::open(&mut store, "pool", "key").unwrap();
    next.join(0, &of).unwrap();
    let view = next.lease_view(0, first.lease).unwrap();
    assert_eq!((view.gpus.len(), view.detaching), (2, vec![gone]));
    let said = confirms(&next, &of);
    next.report(0, &said).unwrap();
    assert_eq!(count(&next, GpuState::Free), 2);
    let view = next.lease_view(0, first.lease).unwrap();
    assert_eq!((view.gpus.len(), view.detaching), (2, vec![]));

    // By force at once, and the lease is over with its last GPU.
    let again = next.detach(0, &gone, true).unwrap_err();
    assert!(matches!(again, PoolError::Conflict(_)), "{again:?}");
    for uuid in view.gpus {
        next.detach(0, &uuid, true).unwrap();
    }
    let said = confirms(&next, &of);
    next.report(0, &said).unwrap();
    let view = next.lease_view(0, first.lease).unwrap();
    assert_eq!(view.state, LeaseState::Over);
    assert_eq!(view.reason, Some(crate::record::EndReason::Detached));
    let program = granted(next.claim(0, &claim("x", 1), false));
    let (uuid, _) = program.boxes[0].grant.gpus[0];
    let refused = next.detach(0, &uuid, true).unwrap_err().to_string();
    assert!(refused.contains("a program has it"), "{refused}");
}

#[test]
fn a_gpu_is_its_first_boxs_until_that_is_forgotten() {
    let (mut manager, mut store, of) = pool();
    // Silent, or begun again a moment ago: its GPUs are its own all the same.
    manager.tick(2 * limits::BOX_SILENCE_MS);
    let thief = join("b", vec![facts(1, "x")]);
    let stolen = manager.join(20_000, &thief).unwrap_err();
    assert!(stolen.to_string().contains("pool forget a"), "{stolen}");
    let gone = join("a", vec![facts(2, "x")]);
    manager.join(20_000, &gone).unwrap();
    assert!(manager.join(20_000, &thief).is_err(), "a GPU that is gone");
    manager.join(20_000, &of).unwrap();
    manager.tick(40_000);
    // With another name it is the same box.
    let renamed = Join {
        name: "c".into(),
        ..join("a", vec![facts(4, "y")])
    };
    manager.join(40_000, &renamed).unwrap();
    for name in ["a", "c"] {
        let revision = manager.revision();
        manager.forget_box(name).unwrap();
        let changes = manager.changes_after(0, &revision).unwrap().events;
        assert!(changes.iter().any(|it| it.object == Object::Box(None)));
        assert!(changes.iter().any(|it| it.object == Object::Gpu(None)));
    }
    assert!(manager.forget_box("a").is_err());
    let view = manager.view(0);
    assert!(view.gpus.is_empty() && view.boxes.is_empty() && manager.tables().boxes.is_empty());
    manager.join(50_000, &thief).unwrap();
    let first = report(&manager, &thief, vec![]);
    manager.report(50_000, &first).unwrap();
    let held = granted(manager.claim(50_000, &claim("w", 1), false));
    let busy = manager.forget_box("b").unwrap_err();
    assert!(matches!(busy, PoolError::Conflict(_)), "{busy}");
    assert_eq!(held.boxes[0].name, "b");
    // The store says the same.
    store.commit(&manager.take_transaction().unwrap()).unwrap();
    let next = Manager::open(&mut store, "ignored", "key").unwrap();
    assert_eq!(next.view(0).gpus.len(), 1);
}

#[test]
fn lists_say_how_many_wait_and_whose_check_fails() {
    let (mut manager, _, of) = pool();
    granted(manager.claim(0, &claim("all", 4), false));
    let count = limits::QUEUE_LOOKS_MAX + 44;
    for number in 0..count {
        let waits = claim(&format!("w{number}"), 1);
        manager.claim(0, &waits, true).unwrap();
    }
    let view = manager.view(0);
    assert_eq!(
        (view.queue.len(), view.waiting),
        (limits::QUEUE_LOOKS_MAX, count)
    );
    let failing = Report {
        check: Some("line\n1".into()),
        ..report(&manager, &of, vec![])
    };
    let revision = manager.revision();
    manager.report(0, &failing).unwrap();
    assert_eq!(manager.view(0).boxes[0].check.as_deref(), Some("line1"));
    assert!(manager.has_changed(&revision));
    let mended = report(&manager, &of, vec![]);
    manager.report(0, &mended).unwrap();
    assert_eq!(manager.view(0).boxes[0].check, None);
}

fn link(rtt_ns: u64, bits_per_s: u64) -> LinkFacts {
    LinkFacts {
        rtt_ns,
        bits_per_s,
        source: LinkSource::Told,
    }
}

fn needs(uid: &str, gpus: u32, rtt_ns_max: u64) -> Claim {
    let need = |rtt_ns_max, bits_per_s_min| LinkNeed {
        rtt_ns_max,
        bits_per_s_min,
    };
    Claim {
        links: vec![need(1_000, 1_000_000_000), need(rtt_ns_max, 10_000_000_000)],
        ..claim(uid, gpus)
    }
}

/// Three boxes of two GPUs each: near, far, and one whose network is not known.
fn boxes_with_networks() -> Vec<Join> {
    let boxes = [
        ("near", Some(link(20_000, 25_000_000_000)), [1, 2]),
        ("far", Some(link(300_000, 100_000_000_000)), [3, 4]),
        ("dark", None, [5, 6]),
    ];
    let join = |(name, link, gpus): (&str, _, [u8; 2])| Join {
        link,
        ..join(name, gpus.map(|number| facts(number, name)).to_vec())
    };
    boxes.map(join).into()
}

fn begin(manager: &mut Manager, joins: &[Join]) {
    for of in joins {
        manager.join(0, of).unwrap();
        let first = report(manager, of, vec![]);
        manager.report(0, &first).unwrap();
    }
}

fn boxes_of(granted: &Granted) -> Vec<&str> {
    granted.boxes.iter().map(|of| of.name.as_str()).collect()
}

/// A claim that needs a network is placed only in boxes whose networks are known and good enough.
#[test]
fn a_network_that_is_needed_is_had() {
    let mut manager = Manager::open(&mut SimulatedStore::new(), "pool", "key").unwrap();
    let joins = boxes_with_networks();
    begin(&mut manager, &joins);
    for fit in [Fit::Best, Fit::First, Fit::Spread, Fit::Fgd] {
        let wish = Claim {
            fit,
            ..needs(&format!("{fit:?}"), 2, 50_000)
        };
        let lease = granted(manager.claim(0, &wish, false));
        assert_eq!(boxes_of(&lease), ["near"], "{fit:?}");
        // It waits, or is refused, although others are free.
        let busy = manager.claim(0, &needs("more", 1, 50_000), false);
        assert!(matches!(busy, Err(PoolError::Busy(_))), "{busy:?}");
        manager.release(0, lease.lease).unwrap();
        let floors = manager.answer_for(0, "near").unwrap().floors;
        let gpu = |(uuid, floor): &(Uuid, u64)| GpuReport {
            uuid: *uuid,
            floor: *floor,
            busy: None,
            busy_last: None,
            broken: None,
            failures: 0,
            idle_ms: None,
        };
        let confirmed = report(&manager, &joins[0], floors.iter().map(gpu).collect());
        manager.report(0, &confirmed).unwrap();
    }
    let both = granted(manager.claim(0, &needs("both", 4, 300_000), false));
    let mut both = boxes_of(&both);
    both.sort_unstable();
    assert_eq!(both, ["far", "near"]);
}

#[test]
fn a_network_that_no_box_has_is_refused() {
    let mut store = SimulatedStore::new();
    let mut manager = Manager::open(&mut store, "pool", "key").unwrap();
    let mut joins = boxes_with_networks();
    begin(&mut manager, &joins);
    // Another manager on this store knows the networks before the boxes have joined again.
    store.commit(&manager.take_transaction().unwrap()).unwrap();
    let mut next = Manager::open(&mut store, "ignored", "key").unwrap();
    let refused = next.claim(0, &needs("u", 3, 50_000), true).unwrap_err();
    assert_eq!(
        refused,
        PoolError::Impossible(
            "3 GPUs behind a network that the program needs are asked for, and there are 2: it needs at most 1us with at least \
             1Gbps, or at most 50us with at least 10Gbps; the box near has the shortest round trip, with 20us and 25Gbps, and far \
             the highest bandwidth, with 300us and 100Gbps; the network of 1 box is not known"
                .into()
        )
    );
    // A network that has become slow counts from then on.
    joins[0].link = Some(link(900_000, 25_000_000_000));
    begin(&mut next, &joins);
    let none = next.claim(0, &needs("v", 1, 50_000), true).unwrap_err();
    assert!(matches!(none, PoolError::Impossible(_)), "{none}");
    let attach = Claim {
        attach: true,
        ..needs("w", 1, 50_000)
    };
    for wrong in [
        attach,
        needs("x", 1, u64::MAX),
        Claim {
            links: vec![needs("y", 1, 0).links[0]; limits::LINK_NEEDS_MAX + 1],
            ..claim("y", 1)
        },
    ] {
        let said = next.claim(0, &wrong, true);
        assert!(matches!(said, Err(PoolError::Wrong(_))), "{said:?}");
    }
    joins[0].link = Some(link(u64::MAX, 25_000_000_000));
    let wrong = next.join(0, &joins[0]);
    assert!(matches!(wrong, Err(PoolError::Wrong(_))), "{wrong:?}");
}

/// A spare behind a network that is too slow takes no place in such a lease.
#[test]
fn a_spare_has_the_network_that_is_needed() {
    for (rtt_ns, is_replaced) in [(20_000, true), (300_000, false)] {
        let mut manager = Manager::open(&mut SimulatedStore::new(), "pool", "key").unwrap();
        let mut joins = boxes_with_networks();
        joins[1].link = Some(link(rtt_ns, 25_000_000_000));
        begin(&mut manager, &joins[..2]);
        let lease = granted(manager.claim(0, &needs("u", 2, 50_000), false)).lease;
        let rule = SpareRecord {
            model: None,
            per: None,
            gpus: 2,
        };
        manager.set_spares(0, &rule).unwrap();
        let lost = manager.lease_view(0, lease).unwrap().gpus[0];
        manager.is_broken(0, &lost, "Xid 79").unwrap();
        let view = manager.lease_view(0, lease).unwrap();
        assert_eq!(view.lost[0].replaced, is_replaced, "{rtt_ns}");
    }
}
