//! The audit tells everything once, and nothing that contradicts itself.

use std::collections::{HashMap, HashSet};

use super::parts::{attach, claim, confirms, facts, granted, join, pool, report, spares};
use crate::{
    AuditFilter, Manager, Store as _, Uuid,
    api::PoolError,
    limits,
    record::{self, AuditEntry, AuditKind, Cause},
    store::Transaction,
};

/// Returns all entries that are kept, page by page.
pub(super) fn entries_of(manager: &Manager) -> Vec<AuditEntry> {
    let mut entries = Vec::new();
    let mut filter = AuditFilter::default();
    loop {
        let view = manager.audit(&filter).unwrap();
        entries.extend(view.entries);
        filter.after = view.revision;
        if !view.more {
            return entries;
        }
    }
}

/// Plays the whole audit of a pool again: no GPU is given twice at one time, each is taken from the
/// lease that has it, and those that are left are the manager's. `holder_of` returns the epoch and
/// the lease of a GPU.
pub(super) fn replay(
    entries: &[AuditEntry],
    holder_of: impl Fn(&Uuid) -> Option<(u64, Option<u64>)>,
) -> Result<(), String> {
    let mut held = HashMap::<Uuid, (u64, u64)>::new();
    let mut epochs = HashMap::<Uuid, u64>::new();
    let (mut begun, mut ended) = (HashSet::new(), HashSet::new());
    for (entry, number) in entries.iter().zip(1..) {
        let wrong = |text: &str| Err(format!("{text}: {entry:?}"));
        if entry.number != number {
            return wrong("an entry is missing");
        }
        let lease = entry.lease.unwrap_or(0);
        match entry.what {
            AuditKind::Given => drop(begun.insert(lease)),
            AuditKind::Ended if !begun.contains(&lease) || !ended.insert(lease) => {
                return wrong("a lease ends that there is not");
            }
            AuditKind::Ended if entry.cause.is_none() => return wrong("a lease ends for nothing"),
            _ => {}
        }
        for gpu in &entry.gpus {
            let epoch = gpu.epoch.unwrap_or(0);
            match entry.what {
                AuditKind::Given => {
                    if let Some(holder) = held.insert(gpu.uuid, (lease, epoch)) {
                        return wrong(&format!("a GPU is given twice, first to {holder:?}"));
                    }
                    if epochs.insert(gpu.uuid, epoch) >= Some(epoch) {
                        return wrong("an epoch does not grow");
                    }
                }
                AuditKind::Taken if held.remove(&gpu.uuid) != Some((lease, epoch)) => {
                    return wrong("a GPU is taken from one who has not got it");
                }
                AuditKind::Taken if entry.cause.is_none() => {
                    return wrong("a GPU is taken for nothing");
                }
                _ => {}
            }
        }
    }
    for uuid in epochs.keys() {
        let told = held.get(uuid).map(|(lease, _)| *lease);
        let is = holder_of(uuid).and_then(|(_, lease)| lease);
        if told != is {
            return Err(format!("{uuid} has the lease {is:?}, not {told:?}"));
        }
    }
    Ok(())
}

fn told(entry: &AuditEntry) -> (AuditKind, Option<u64>, usize, Option<Cause>, Option<&str>) {
    let by = entry.by.as_deref();
    (entry.what, entry.lease, entry.gpus.len(), entry.cause, by)
}

#[test]
fn each_cause_is_told_with_those_who_did_it() {
    use AuditKind::*;
    let (mut manager, _, of) = pool();
    manager.note_time(1_000);
    let first = granted(manager.claim(0, &claim("u", 2), false)).lease;
    // What one transaction tells of many GPUs is one entry.
    manager.take_transaction();
    manager.note_time(1_060);
    manager.note_caller(Some("alice"));
    manager.release(5, first).unwrap();
    manager.note_caller(None);
    manager.report(6, &confirms(&manager, &of)).unwrap();
    let second = granted(manager.claim(10, &claim("v", 1), false)).lease;
    manager.tick(10_010);
    manager.report(10_011, &confirms(&manager, &of)).unwrap();
    let third = granted(manager.claim(10_012, &claim("w", 1), false)).lease;
    manager.holder_is_gone(10_013, third);
    manager.tick(10_013 + limits::HOLDER_GRACE_MS);
    manager.report(10_400, &confirms(&manager, &of)).unwrap();
    let entries = entries_of(&manager);
    let expected = [
        (Given, Some(first), 2, None, None),
        (Ended, Some(first), 0, Some(Cause::Released), Some("alice")),
        (Taken, Some(first), 2, Some(Cause::Released), Some("alice")),
        (Given, Some(second), 1, None, None),
        (Ended, Some(second), 0, Some(Cause::Expired), None),
        (Taken, Some(second), 1, Some(Cause::Expired), None),
        (Given, Some(third), 1, None, None),
        (Ended, Some(third), 0, Some(Cause::HolderGone), None),
        (Taken, Some(third), 1, Some(Cause::HolderGone), None),
    ];
    assert_eq!(entries.iter().map(told).collect::<Vec<_>>(), expected);
    let taken = &entries[2];
    assert_eq!((taken.at_s, taken.gpus[0].since_s), (1_060, Some(1_000)));
    assert_eq!(taken.holder.as_deref(), Some("alice"));
    assert_eq!(taken.gpus[0].of, "a");
    replay(&entries, |uuid| manager.holder_of(uuid)).unwrap();
}

#[test]
fn detaches_spares_and_operators_are_told() {
    use AuditKind::*;
    let (mut manager, _, of) = pool();
    manager.set_spares(10_500, &spares(1, None)).unwrap();
    let lease = granted(manager.claim(10_500, &attach("x", 3), false)).lease;
    manager.note_caller(Some("operator.carol"));
    let gpus = manager.attached();
    manager.detach(10_501, &gpus[0], false).unwrap();
    manager.detach(10_501, &gpus[1], true).unwrap();
    manager.is_broken(10_501, &gpus[2], "it smokes").unwrap();
    // Nothing is drained: nothing is done.
    manager.drain(10_502, "a", None).unwrap();
    manager.drain(10_502, "a", Some("repair".into())).unwrap();
    manager.taint(10_502, &gpus[0], Some("odd".into())).unwrap();
    manager.taint(10_502, &gpus[0], None).unwrap();
    manager.note_caller(None);
    let mut idle = confirms(&manager, &of);
    manager.report(10_503, &idle).unwrap();
    idle.revision = manager.answer_for(10_504, "a").unwrap().revision;
    manager.report(10_504, &idle).unwrap();
    manager.report(10_505, &confirms(&manager, &of)).unwrap();
    let entries = entries_of(&manager);
    let new: Vec<_> = entries.iter().map(told).collect();
    let carol = Some("operator.carol");
    for expected in [
        (Given, Some(lease), 3, None, None),
        (Detaching, Some(lease), 1, Some(Cause::Detached), carol),
        (Detaching, Some(lease), 1, Some(Cause::Forced), carol),
        (Broken, None, 1, None, carol),
        (Given, Some(lease), 1, None, None),
        (Drained, None, 4, None, carol),
        (Tainted, None, 1, None, carol),
        (Untainted, None, 1, None, carol),
        (Taken, Some(lease), 1, Some(Cause::Detached), carol),
        (Taken, Some(lease), 1, Some(Cause::Forced), carol),
        (Taken, Some(lease), 1, Some(Cause::Lost), None),
    ] {
        assert!(new.contains(&expected), "{expected:?} is not in {new:#?}");
    }
    let reasons: Vec<_> = entries.iter().filter_map(|it| it.reason.clone()).collect();
    let spare = format!("in place of {}", gpus[2]);
    for reason in ["it smokes", "repair", "odd", &spare] {
        assert!(reasons.iter().any(|it| it == reason), "{reason}");
    }
    replay(&entries, |uuid| manager.holder_of(uuid)).unwrap();
}

#[test]
fn a_log_that_lacks_an_entry_or_tells_of_another_lease_is_found() {
    let (mut manager, _, of) = pool();
    for uid in ["u", "v"] {
        let lease = granted(manager.claim(0, &claim(uid, 4), false)).lease;
        manager.release(0, lease).unwrap();
        manager.report(0, &confirms(&manager, &of)).unwrap();
    }
    let entries = entries_of(&manager);
    replay(&entries, |uuid| manager.holder_of(uuid)).unwrap();
    let gap = entries.iter().filter(|it| it.number != 3).cloned();
    let mut gap: Vec<_> = gap.collect();
    gap.iter_mut().zip(1..).for_each(|(it, at)| it.number = at);
    let error = replay(&gap, |uuid| manager.holder_of(uuid)).unwrap_err();
    assert!(error.contains("given twice"), "{error}");
    let mut other = entries;
    other[2].lease = Some(99);
    let error = replay(&other, |uuid| manager.holder_of(uuid)).unwrap_err();
    assert!(error.contains("has not got it"), "{error}");
}

#[test]
fn the_oldest_entries_are_dropped_and_the_answer_says_so() {
    let (mut manager, mut store, _) = pool();
    let first = Uuid([1; 16]);
    let many = limits::AUDIT_ENTRIES_MAX as u64 + 10;
    for number in 0..many {
        let reason = (number % 2 == 0).then(|| "x".into());
        manager.taint(0, &first, reason).unwrap();
        if number % 1_000 == 0 {
            store.commit(&manager.take_transaction().unwrap()).unwrap();
        }
    }
    store.commit(&manager.take_transaction().unwrap()).unwrap();
    let stored = |store: &mut crate::store::SimulatedStore| {
        let entries = store.load().unwrap();
        entries
            .iter()
            .filter(|it| it.key.starts_with("audit/"))
            .count()
    };
    assert_eq!(stored(&mut store), limits::AUDIT_ENTRIES_MAX);
    // Another manager knows the same, and its numbers go on. It finds entries that are missing.
    let mut copy = crate::store::SimulatedStore::new();
    let all = store.load().unwrap().into_iter();
    let gap = record::audit_key(many - 1);
    let all = all.filter(|it| it.key != gap);
    let transaction = Transaction {
        compare: Vec::new(),
        write: all.map(|it| (it.key, Some(it.value))).collect(),
    };
    copy.commit(&transaction).unwrap();
    let said = Manager::open(&mut copy, "pool", "key").err().unwrap();
    assert!(said.to_string().contains("missing"), "{said}");
    let mut next = Manager::open(&mut store, "pool", "key").unwrap();
    assert_eq!(entries_of(&next), entries_of(&manager));
    let mut filter = AuditFilter::default();
    let view = next.audit(&filter).unwrap();
    assert_eq!((view.dropped, view.more), (10, true));
    assert_eq!(view.entries.len(), limits::EVENTS_MAX);
    assert_eq!(
        (view.entries[0].number, view.revision),
        (11, 10 + limits::EVENTS_MAX as u64)
    );
    filter.after = 4;
    assert_eq!(next.audit(&filter).unwrap().dropped, 6);
    filter.after = many;
    let view = next.audit(&filter).unwrap();
    assert_eq!((view.dropped, view.more, view.entries), (0, false, vec![]));
    next.drain(0, "a", Some("repair".into())).unwrap();
    let view = next.audit(&filter).unwrap();
    assert_eq!((view.revision, view.entries.len()), (many + 1, 1));
    filter.after = many + 2;
    let said = next.audit(&filter);
    assert!(matches!(said, Err(PoolError::Gone(_))), "{said:?}");
}

#[test]
fn large_boxes_are_bounded_too() {
    let mut store = crate::store::SimulatedStore::new();
    let mut manager = Manager::open(&mut store, "pool", "key").unwrap();
    let gpus = (0..limits::BOX_GPUS_MAX).map(|gpu| facts(gpu as u8, "x"));
    let of = join("a", gpus.collect());
    manager.join(0, &of).unwrap();
    let first = report(&manager, &of, vec![]);
    manager.report(0, &first).unwrap();
    let many = limits::AUDIT_GPUS_MAX / limits::BOX_GPUS_MAX + 5;
    for number in 0..many {
        manager.note_time(number as u64);
        manager.drain(0, "a", Some("x".into())).unwrap();
        manager.take_transaction();
    }
    let entries = entries_of(&manager);
    assert_eq!(
        entries.iter().map(|it| it.gpus.len()).sum::<usize>(),
        limits::AUDIT_GPUS_MAX
    );
    assert_eq!(manager.audit(&AuditFilter::default()).unwrap().dropped, 5);
}

#[test]
fn filters_leave_out_what_does_not_suit() {
    let (mut manager, _, of) = pool();
    for (at, holder) in [(10, "alice"), (20, "bob"), (30, "alice")] {
        manager.note_time(at);
        let mut claim = claim(&format!("u{at}"), 1);
        claim.owner = holder.into();
        let lease = granted(manager.claim(at, &claim, false)).lease;
        manager.release(at, lease).unwrap();
        manager.report(at, &confirms(&manager, &of)).unwrap();
        manager.take_transaction();
    }
    let count = |filter: AuditFilter| manager.audit(&filter).unwrap().entries.len();
    let all = AuditFilter::default;
    let holder = |name: &str| AuditFilter {
        holder: Some(name.into()),
        ..all()
    };
    assert_eq!(count(all()), 9);
    assert_eq!((count(holder("alice")), count(holder("bob"))), (6, 3));
    assert_eq!(count(holder("carol")), 0);
    assert_eq!(
        count(AuditFilter {
            since_s: 20,
            ..all()
        }),
        6
    );
    let gpu = entries_of(&manager)[0].gpus[0].uuid;
    let of_gpu = manager
        .audit(&AuditFilter {
            gpu: Some(gpu),
            ..all()
        })
        .unwrap();
    assert!(of_gpu.entries.iter().all(|it| it.gpus[0].uuid == gpu));
    // What was looked at in vain is not looked at again.
    assert_eq!(of_gpu.revision, 9);
}
