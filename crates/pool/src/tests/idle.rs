//! Idle leases: their holders are told, then the GPUs are taken back.

use super::parts::{attach, claim, granted, pool, uses};
use crate::{
    Manager, Uuid,
    api::{Join, NoticeKind, PoolError, Report},
    limits,
    record::{AuditKind, Cause, Claim, EndReason, LeaseState},
};

fn idle_claim(uid: &str, gpus: u32, idle_ms: Option<u64>) -> Claim {
    Claim {
        idle_ms,
        term_ms: 600_000,
        ..claim(uid, gpus)
    }
}

/// Returns a report in which each GPU has been idle for the time that `idle_ms` says.
fn reports(manager: &Manager, of: &Join, idle_ms: impl Fn(&Uuid) -> Option<u64>) -> Report {
    let mut report = uses(manager, of, &[]);
    for gpu in &mut report.gpus {
        gpu.idle_ms = idle_ms(&gpu.uuid);
    }
    report
}

fn state(manager: &Manager, id: u64) -> (LeaseState, Option<EndReason>) {
    let view = manager.lease_view(0, id).unwrap();
    (view.state, view.reason)
}

#[test]
fn idle_gpus_are_taken_back_after_a_notice_that_use_withdraws() {
    let (mut manager, _, of) = pool();
    let id = granted(manager.claim(0, &idle_claim("u", 2, Some(20_000)), false)).lease;
    let gpus = manager.lease_view(0, id).unwrap().gpus;
    let told = |manager: &Manager, now_ms| {
        let view = manager.lease_view(now_ms, id).unwrap();
        let left = view.notices.iter().map(|it| (it.what, it.left_ms));
        (view.news, left.collect::<Vec<_>>())
    };
    // A box cannot make the lease older than it is by the manager's clock.
    let said = reports(&manager, &of, |_| Some(u64::MAX));
    manager.report(14_000, &said).unwrap();
    assert_eq!(told(&manager, 14_000), (0, vec![]));
    manager.report(15_000, &said).unwrap();
    let notice = (NoticeKind::Idle, Some(5_000));
    assert_eq!(told(&manager, 15_000), (1, vec![notice]));
    assert_eq!(manager.held(15_000, id).unwrap().notices.len(), 1);
    // One GPU of the lease is used: the notice is withdrawn, and time begins anew.
    let said = reports(&manager, &of, |uuid| {
        Some(u64::from(*uuid != gpus[1]) * 99_999)
    });
    manager.report(19_000, &said).unwrap();
    assert_eq!(told(&manager, 19_000), (2, vec![]));
    let said = reports(&manager, &of, |uuid| {
        Some(if *uuid == gpus[1] { 1_000 } else { 99_999 })
    });
    manager.report(30_000, &said).unwrap();
    manager
        .report(43_000, &reports(&manager, &of, |_| Some(14_000)))
        .unwrap();
    assert_eq!(told(&manager, 43_000), (2, vec![]));
    // What is not told is not believed: neither a silent box, nor one that says nothing.
    manager
        .report(50_000, &reports(&manager, &of, |_| None))
        .unwrap();
    manager.tick(60_000);
    assert_eq!(state(&manager, id).0, LeaseState::Granted);
    let idle = reports(&manager, &of, |_| Some(30_000));
    manager.report(60_000, &idle).unwrap();
    assert_eq!(told(&manager, 60_000).1, [(NoticeKind::Idle, Some(5_000))]);
    // Time alone takes nothing back: the box says once more that nobody uses them.
    manager.tick(66_000);
    assert_eq!(state(&manager, id).0, LeaseState::Granted);
    manager.report(66_000, &idle).unwrap();
    assert_eq!(
        state(&manager, id),
        (LeaseState::Ending, Some(EndReason::Idle))
    );
    assert_eq!(manager.ended(EndReason::Idle), 1);
    assert!(told(&manager, 66_000).1.is_empty());
    let entries = super::audit::entries_of(&manager);
    let count = |what| entries.iter().filter(|it| it.what == what).count();
    assert_eq!(count(AuditKind::Noticed), 2);
    let ended = entries
        .iter()
        .find(|it| it.what == AuditKind::Ended)
        .unwrap();
    assert_eq!((ended.cause, ended.by.clone()), (Some(Cause::Idle), None));
}

#[test]
fn operators_set_a_time_for_all_leases_but_attached_ones() {
    let (mut manager, mut store, of) = pool();
    let ids: Vec<u64> = [
        idle_claim("u", 1, None),
        // The shorter time counts.
        idle_claim("v", 1, Some(40_000)),
        idle_claim("w", 1, Some(900_000)),
        attach("x", 1),
    ]
    .iter()
    .map(|claim| granted(manager.claim(0, claim, false)).lease)
    .collect();
    let states = |manager: &Manager| {
        let states = ids.iter().map(|id| state(manager, *id).0);
        states
            .map(|it| it == LeaseState::Granted)
            .collect::<Vec<_>>()
    };
    let idle = reports(&manager, &of, |_| Some(u64::MAX));
    for now_ms in (0..300_000).step_by(2_000) {
        manager.report(now_ms, &idle).unwrap();
    }
    assert_eq!(states(&manager), [true, false, true, true]);
    // A manager that starts begins to count, and tells holders again.
    crate::Store::commit(&mut store, &manager.take_transaction().unwrap()).unwrap();
    let mut next = Manager::open(&mut store, "pool", "key").unwrap();
    next.reclaim_idle(Some(60_000));
    next.join(0, &of).unwrap();
    for now_ms in (0..58_000).step_by(2_000) {
        next.report(now_ms, &reports(&next, &of, |_| Some(u64::MAX)))
            .unwrap();
    }
    assert_eq!(states(&next), [true, false, true, true]);
    for now_ms in [58_000, 60_000, 62_000] {
        next.report(now_ms, &reports(&next, &of, |_| Some(u64::MAX)))
            .unwrap();
    }
    assert_eq!(states(&next), [false, false, false, true]);
    for (idle_ms, attached) in [(0, false), (limits::IDLE_MAX_MS + 1, false), (9_000, true)] {
        let claim = Claim {
            attach: attached,
            ..idle_claim("y", 1, Some(idle_ms))
        };
        let said = next.claim(70_000, &claim, false);
        assert!(matches!(said, Err(PoolError::Wrong(_))), "{said:?}");
    }
}

#[test]
fn holders_are_told_of_a_drain() {
    let (mut manager, _, of) = pool();
    let id = granted(manager.claim(0, &claim("u", 2), false)).lease;
    manager.drain(0, "a", Some("repair".into())).unwrap();
    let held = manager.held(0, id).unwrap();
    let [notice] = &held.notices[..] else {
        panic!("{held:?}")
    };
    assert_eq!(
        (held.news, notice.what, notice.left_ms),
        (1, NoticeKind::Drain, None)
    );
    assert_eq!(
        (notice.of.as_deref(), notice.reason.as_str()),
        (Some("a"), "repair")
    );
    manager.drain(0, "a", None).unwrap();
    let held = manager.held(0, id).unwrap();
    assert_eq!((held.news, held.notices), (2, vec![]));
    drop(of);
}
