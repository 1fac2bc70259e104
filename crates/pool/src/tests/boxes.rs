//! Boxes that join, contradict each other, fall silent and are forgotten.

use super::parts::{claim, facts, granted, join, pool, report};
use crate::{
    Manager, Store as _,
    api::{Join, Object, PoolError, Report, Window},
    limits,
    near::{Level, Nic},
};

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
    let nic = |name: &str| Nic {
        name: name.into(),
        rdma: None,
        pci: (0, 1, 0),
        level: Level::Single,
    };
    for nics in [
        vec![nic("a b")],
        vec![nic(&"n".repeat(65))],
        vec![nic("a"); 17],
    ] {
        let mut facts = facts(9, "x");
        facts.near.nics = nics;
        let strange = join("b", vec![facts]);
        assert!(matches!(refused(strange), PoolError::Wrong(_)));
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
