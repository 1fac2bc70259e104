//! GPUs that are attached to a host.

use super::parts::{attach, claim, confirms, count, granted, pool, uses};
use crate::{
    Manager, Store as _,
    api::{Claimed, GpuState, PoolError},
    record::LeaseState,
};

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
