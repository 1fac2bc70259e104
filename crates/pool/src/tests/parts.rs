//! Parts of the tests of a manager.

use crate::{
    Manager, Uuid,
    api::{Claimed, GpuReport, GpuState, Granted, Join, PoolError, Report},
    record::{Claim, Fit, GpuFacts, Same, SpareRecord},
    store::SimulatedStore,
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
        near: crate::near::Near::default(),
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
        link_fails: None,
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

pub(super) fn spares(gpus: u32, per: Option<Same>) -> SpareRecord {
    SpareRecord {
        model: None,
        per,
        gpus,
    }
}

pub(super) fn states(manager: &Manager) -> Vec<GpuState> {
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

pub(super) fn count(manager: &Manager, state: GpuState) -> usize {
    states(manager).iter().filter(|it| **it == state).count()
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
