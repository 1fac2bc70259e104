//! Broken GPUs and spares.

use super::parts::{claim, confirms, count, granted, pool, report, spares};
use crate::{
    Manager, Store as _, Uuid,
    api::{Claimed, GpuReport, GpuState, PoolError, Window},
    limits,
    record::{Claim, LeaseState, Same},
};

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
