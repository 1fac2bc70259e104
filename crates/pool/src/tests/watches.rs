//! Changes since a revision.

use super::parts::{claim, granted, pool};
use crate::{
    Manager, Store as _,
    api::{Event, Object, PoolError},
    limits,
};

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
        (gpu.as_str(), true),
        (lease.as_str(), true),
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
