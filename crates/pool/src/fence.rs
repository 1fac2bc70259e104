//! A box's side: which grants are admitted, and when their sessions end.
//!
//! The caller's duties:
//!
//! 1. If [`Admitted::write`] or [`Answered::write`] is set, the floors are on the disk, and
//!    [`Fence::written`] is called, before anything else is done.
//! 2. The sessions of [`Admitted::end_first`] have ended, and [`Fence::ended`] was called for each,
//!    before the new one begins.
//! 3. Sessions that [`Fence::answered`] and [`Fence::over`] return are ended at once.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{
    api::{BoxAnswer, GpuReport},
    grant::Grant,
    uuid::Uuid,
};

/// Highest epoch that is believed; the rest is room.
pub(crate) const EPOCH_MAX: u64 = 1 << 62;

/// State of a box that outlives its processes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Floors {
    /// Grants of a GPU with a lower epoch are refused.
    pub floors: BTreeMap<Uuid, u64>,
    /// Highest number of a lease, as of when the floors were written.
    #[serde(default)]
    pub lease_last: u64,
}

/// Rules for the sessions of a box.
pub struct Fence {
    name: String,
    floors: BTreeMap<Uuid, u64>,
    /// Floors that are on the disk.
    written: BTreeMap<Uuid, u64>,
    base: Option<Base>,
    pool: String,
    /// Leases that the last answer has: their deadlines in this box's time.
    leases: BTreeMap<u64, u64>,
    sessions: BTreeMap<u64, Session>,
    /// Highest number of a lease that was ever told or admitted.
    lease_last: u64,
    /// For a test that shows what the epochs are for.
    #[cfg(test)]
    pub(crate) is_unfenced: bool,
}

/// Relation of a manager's time to this box's.
#[derive(Debug, Clone, Copy)]
struct Base {
    incarnation: u64,
    manager_ms: u64,
    /// This box's time at which the manager's was that or earlier.
    here_ms: u64,
}

struct Session {
    lease: u64,
    owner: String,
    gpus: Vec<(Uuid, u64)>,
    until_ms: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admitted {
    /// Whether the floors are to be written first.
    pub write: bool,
    /// Sessions that are to be over first.
    pub end_first: Vec<u64>,
    /// End of the lease, in this box's time.
    pub until_ms: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Answered {
    pub write: bool,
    /// Sessions whose GPUs are taken away.
    pub end: Vec<u64>,
    /// Sessions whose leases end at another time now.
    pub extended: Vec<(u64, u64)>,
}

/// Reason why a grant gives no session.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FenceError {
    #[error("the grant is of another pool")]
    Pool,
    #[error("the grant is for the box {theirs:?}, and this is {ours:?}")]
    Box { ours: String, theirs: String },
    #[error("the grant names no GPU, or one twice")]
    Gpus,
    #[error("the box has no GPU {0}")]
    Unknown(Uuid),
    #[error(
        "the box has not heard from the manager since one of them started; try again in a moment"
    )]
    NotYet,
    #[error("the grant is old: its GPU {uuid} has been given to others since")]
    Old { uuid: Uuid },
    #[error("the lease is over")]
    Over,
    #[error("a session of another lease uses the GPU {uuid} with this grant's epoch")]
    Taken { uuid: Uuid },
}

impl Fence {
    /// Begins with the floors of the disk. Nothing is admitted before the first answer.
    pub fn new(name: &str, floors: Floors) -> Fence {
        Fence {
            name: name.into(),
            written: floors.floors.clone(),
            floors: floors.floors,
            base: None,
            pool: String::new(),
            leases: BTreeMap::new(),
            sessions: BTreeMap::new(),
            lease_last: floors.lease_last,
            #[cfg(test)]
            is_unfenced: false,
        }
    }

    /// Checks a grant for a new session.
    pub fn admit(
        &mut self,
        now_ms: u64,
        session: u64,
        grant: &Grant,
    ) -> Result<Admitted, FenceError> {
        let until_ms = self.check(now_ms, grant)?;
        let end_first = self.older(&grant.gpus);
        let mut write = false;
        for (uuid, epoch) in &grant.gpus {
            write |= self.raise(*uuid, *epoch);
        }
        self.sessions.insert(
            session,
            Session {
                lease: grant.lease,
                owner: grant.owner.clone(),
                gpus: grant.gpus.clone(),
                until_ms,
            },
        );
        self.lease_last = self.lease_last.max(grant.lease);
        Ok(Admitted {
            write,
            end_first,
            until_ms,
        })
    }

    /// Checks a grant. Returns the end of its lease, in this box's time.
    pub fn check(&self, now_ms: u64, grant: &Grant) -> Result<u64, FenceError> {
        let base = self.base.ok_or(FenceError::NotYet)?;
        if grant.pool != self.pool {
            return Err(FenceError::Pool);
        }
        if grant.of != self.name {
            return Err(FenceError::Box {
                ours: self.name.clone(),
                theirs: grant.of.clone(),
            });
        }
        let distinct: BTreeSet<_> = grant.gpus.iter().map(|(uuid, _)| uuid).collect();
        if grant.gpus.is_empty() || distinct.len() != grant.gpus.len() {
            return Err(FenceError::Gpus);
        }
        for (uuid, epoch) in &grant.gpus {
            let floor = self.floors.get(uuid).ok_or(FenceError::Unknown(*uuid))?;
            if epoch < floor && self.is_fenced() {
                return Err(FenceError::Old { uuid: *uuid });
            }
        }
        let known = self.leases.get(&grant.lease).copied();
        let own = (grant.incarnation == base.incarnation).then(|| base.here(grant.deadline_ms));
        let until_ms = match (known, own) {
            (None, None) if grant.incarnation > base.incarnation => Err(FenceError::NotYet),
            (None, None) => Err(FenceError::Over),
            (known, own) => Ok(known.max(own).unwrap_or(0)),
        }?;
        if until_ms <= now_ms {
            return Err(FenceError::Over);
        }
        let mut gpus = grant.gpus.iter();
        match gpus.find(|(uuid, epoch)| self.is_taken(*uuid, *epoch, grant)) {
            Some((uuid, _)) if self.is_fenced() => Err(FenceError::Taken { uuid: *uuid }),
            _ => Ok(until_ms),
        }
    }

    /// Takes the manager's answer to the report that was sent at `sent_ms`.
    pub fn answered(&mut self, sent_ms: u64, answer: &BoxAnswer) -> Answered {
        if self
            .base
            .is_some_and(|base| base.incarnation > answer.incarnation)
        {
            // A manager that another one has replaced.
            return Answered::default();
        }
        let base = Base {
            incarnation: answer.incarnation,
            manager_ms: answer.now_ms,
            here_ms: sent_ms,
        };
        // The last answer alone: clocks that run at different rates make an older bound wrong.
        self.base = Some(base);
        self.pool.clone_from(&answer.pool);
        let mut answered = Answered::default();
        for (uuid, floor) in &answer.floors {
            answered.write |= self.raise(*uuid, (*floor).min(EPOCH_MAX));
        }
        let leases = answer.leases.iter();
        self.leases = leases
            .map(|lease| (lease.lease, base.here(lease.deadline_ms)))
            .collect();
        let last = self.leases.last_key_value().map_or(0, |(lease, _)| *lease);
        self.lease_last = self.lease_last.max(last);
        for (number, session) in &mut self.sessions {
            let until_ms = self.leases.get(&session.lease).copied().unwrap_or(0);
            if until_ms > session.until_ms {
                session.until_ms = until_ms;
                answered.extended.push((*number, until_ms));
            }
        }
        let is_below = |session: &Session| {
            let below = |(uuid, epoch): &(Uuid, u64)| self.floors.get(uuid) > Some(epoch);
            session.gpus.iter().any(below)
        };
        if self.is_fenced() {
            let below = self.sessions.iter().filter(|(_, s)| is_below(s));
            answered.end = below.map(|(number, _)| *number).collect();
        }
        answered
    }

    /// Returns the sessions whose leases are over at this time.
    pub fn over(&self, now_ms: u64) -> Vec<u64> {
        let over = self.sessions.iter().filter(|(_, s)| s.until_ms <= now_ms);
        over.map(|(number, _)| *number).collect()
    }

    /// Returns the earliest end of a lease that has a session.
    pub fn next_end_ms(&self) -> Option<u64> {
        self.sessions.values().map(|session| session.until_ms).min()
    }

    /// Notes that a session is over: nothing of it runs any more.
    pub fn ended(&mut self, session: u64) {
        self.sessions.remove(&session);
    }

    /// Returns the floors for the disk.
    pub fn floors(&self) -> Floors {
        Floors {
            floors: self.floors.clone(),
            lease_last: self.lease_last,
        }
    }

    /// Notes that these floors are on the disk.
    pub fn written(&mut self, floors: Floors) {
        self.written = floors.floors;
    }

    /// Returns whether floors are still to be written.
    pub fn is_unwritten(&self) -> bool {
        self.written != self.floors
    }

    /// Returns what the manager is told of the GPUs.
    pub fn report(&self) -> Vec<GpuReport> {
        let busy = |uuid: &Uuid| {
            let gpus = self.sessions.values().flat_map(|session| &session.gpus);
            let epochs = gpus.filter(|(of, _)| of == uuid).map(|(_, epoch)| *epoch);
            epochs.fold(None, |range: Option<(u64, u64)>, epoch| {
                let (first, last) = range.unwrap_or((epoch, epoch));
                Some((first.min(epoch), last.max(epoch)))
            })
        };
        let report = |(uuid, floor): (&Uuid, &u64)| GpuReport {
            uuid: *uuid,
            floor: *floor,
            busy: busy(uuid).map(|(first, _)| first),
            busy_last: busy(uuid).map(|(_, last)| last),
            broken: None,
            failures: 0,
            idle_ms: None,
        };
        self.written.iter().map(report).collect()
    }

    /// Returns the highest number of a lease that this box has been told of.
    pub fn lease_last(&self) -> u64 {
        self.lease_last
    }

    /// Returns the lease of each session.
    pub fn sessions(&self) -> impl Iterator<Item = (u64, u64)> {
        self.sessions.iter().map(|(number, s)| (*number, s.lease))
    }

    /// Returns the GPUs of a session.
    pub fn gpus_of(&self, session: u64) -> Vec<Uuid> {
        let session = self.sessions.get(&session);
        let gpus = session.map_or(&[][..], |session| &session.gpus);
        gpus.iter().map(|(uuid, _)| *uuid).collect()
    }

    /// Returns whether a session of another lease has the GPU with this very epoch: a manager gave
    /// it twice, since it had lost records.
    fn is_taken(&self, uuid: Uuid, epoch: u64, grant: &Grant) -> bool {
        let mut sessions = self.sessions.values();
        sessions.any(|session| {
            let is_other = session.lease != grant.lease || session.owner != grant.owner;
            is_other && session.gpus.contains(&(uuid, epoch))
        })
    }

    /// Sessions of other leases that have one of the GPUs.
    fn older(&self, gpus: &[(Uuid, u64)]) -> Vec<u64> {
        if !self.is_fenced() {
            return Vec::new();
        }
        let has = |session: &Session| {
            let older = |(uuid, epoch): &(Uuid, u64)| {
                gpus.iter().any(|(of, new)| of == uuid && epoch < new)
            };
            session.gpus.iter().any(older)
        };
        let older = self.sessions.iter().filter(|(_, session)| has(session));
        older.map(|(number, _)| *number).collect()
    }

    /// Raises a floor. Returns whether it was lower, or is not on the disk yet.
    fn raise(&mut self, uuid: Uuid, epoch: u64) -> bool {
        let floor = self.floors.entry(uuid).or_default();
        *floor = epoch.max(*floor);
        self.written.get(&uuid) != Some(floor)
    }

    #[cfg(test)]
    fn is_fenced(&self) -> bool {
        !self.is_unfenced
    }

    #[cfg(not(test))]
    fn is_fenced(&self) -> bool {
        true
    }
}

impl Base {
    /// Manager's time minus this box's: the smaller, the later the box ends a lease.
    fn offset(&self) -> i128 {
        i128::from(self.manager_ms) - i128::from(self.here_ms)
    }

    /// Returns the moment in this box's time at which the manager's is this, or earlier.
    fn here(&self, manager_ms: u64) -> u64 {
        let here = i128::from(manager_ms) - self.offset();
        u64::try_from(here.max(0)).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::BoxLease;

    const GPU: Uuid = Uuid([1; 16]);

    fn answer(incarnation: u64, now_ms: u64, floor: u64, lease: Option<(u64, u64)>) -> BoxAnswer {
        BoxAnswer {
            pool: "p".into(),
            incarnation,
            now_ms,
            revision: 0,
            wait_ms: 0,
            key: String::new(),
            floors: vec![(GPU, floor)],
            leases: lease
                .map(|(lease, deadline_ms)| BoxLease { lease, deadline_ms })
                .into_iter()
                .collect(),
        }
    }

    fn grant(incarnation: u64, lease: u64, epoch: u64, deadline_ms: u64) -> Grant {
        Grant {
            pool: "p".into(),
            incarnation,
            lease,
            of: "b".into(),
            owner: "o".into(),
            gpus: vec![(GPU, epoch)],
            deadline_ms,
        }
    }

    #[test]
    fn a_newer_grant_ends_older_sessions_and_an_older_one_is_refused() {
        let mut fence = Fence::new("b", Floors::default());
        assert_eq!(
            fence.admit(0, 1, &grant(1, 1, 1, 9_000)),
            Err(FenceError::NotYet)
        );
        // Asked at 100 of its own time, when the manager's was 1,000 at most.
        assert!(fence.answered(100, &answer(1, 1_000, 1, None)).write);
        fence.written(fence.floors());
        let first = fence.admit(200, 1, &grant(1, 1, 1, 9_000)).unwrap();
        let expected = Admitted {
            write: false,
            end_first: vec![],
            until_ms: 8_100,
        };
        assert_eq!(first, expected);
        // A second session of the lease is as good.
        let second = fence.admit(200, 2, &grant(1, 1, 1, 9_000)).unwrap();
        assert!(second.end_first.is_empty());
        let newer = fence.admit(200, 3, &grant(1, 2, 2, 9_000)).unwrap();
        assert!(newer.write);
        assert_eq!(newer.end_first, [1, 2]);
        assert_eq!(
            fence.admit(200, 4, &grant(1, 1, 1, 9_000)),
            Err(FenceError::Old { uuid: GPU })
        );
        // What is not on the disk is not reported.
        assert_eq!(
            fence.report(),
            [GpuReport {
                uuid: GPU,
                floor: 1,
                busy: Some(1),
                busy_last: Some(2),
                broken: None,
                failures: 0,
                idle_ms: None,
            }]
        );
        fence.written(fence.floors());
        fence.ended(1);
        fence.ended(2);
        assert_eq!(
            fence.report(),
            [GpuReport {
                uuid: GPU,
                floor: 2,
                busy: Some(2),
                busy_last: Some(2),
                broken: None,
                failures: 0,
                idle_ms: None,
            }]
        );
        assert!(fence.over(8_099).is_empty());
        assert_eq!(fence.over(8_100), [3]);
    }

    #[test]
    fn deadlines_move_later_only_and_hold_across_managers() {
        let mut fence = Fence::new("b", Floors::default());
        fence.answered(0, &answer(1, 0, 1, Some((1, 5_000))));
        fence.written(fence.floors());
        assert_eq!(
            fence.admit(0, 1, &grant(1, 1, 1, 5_000)).unwrap().until_ms,
            5_000
        );
        // Renewed; a later question has a looser bound of the manager's time.
        let answered = fence.answered(1_000, &answer(1, 900, 1, Some((1, 5_900))));
        assert_eq!(answered.extended, [(1, 6_000)]);
        // A new manager's time begins anew.
        let answered = fence.answered(2_000, &answer(2, 10, 1, Some((1, 5_010))));
        assert_eq!(answered.extended, [(1, 7_000)]);
        // The old one is heard no more, and its grants are worth what the lease's deadline says.
        assert_eq!(
            fence.answered(2_500, &answer(1, 9, 9, None)),
            Answered::default()
        );
        assert_eq!(fence.check(2_600, &grant(1, 1, 1, 5_000)), Ok(7_000));
        assert_eq!(
            fence.check(2_600, &grant(1, 7, 1, 50_000)),
            Err(FenceError::Over)
        );
        assert_eq!(
            fence.check(2_600, &grant(3, 7, 1, 50_000)),
            Err(FenceError::NotYet)
        );
        // The lease has ended: its floor is raised.
        let ended = fence.answered(3_000, &answer(2, 1_010, 2, None));
        assert!(ended.write);
        assert_eq!(ended.end, [1]);
    }

    #[test]
    fn grants_that_are_wrong_are_refused() {
        let mut fence = Fence::new("b", Floors::default());
        fence.answered(0, &answer(1, 0, 1, None));
        let good = grant(1, 1, 1, 5_000);
        let with = |change: fn(&mut Grant)| {
            let mut grant = good.clone();
            change(&mut grant);
            fence.check(0, &grant).unwrap_err()
        };
        assert_eq!(with(|g| g.pool = "q".into()), FenceError::Pool);
        assert!(matches!(
            with(|g| g.of = "c".into()),
            FenceError::Box { .. }
        ));
        assert_eq!(with(|g| g.gpus.clear()), FenceError::Gpus);
        assert_eq!(with(|g| g.gpus.push(g.gpus[0])), FenceError::Gpus);
        assert_eq!(
            with(|g| g.gpus[0].0 = Uuid([2; 16])),
            FenceError::Unknown(Uuid([2; 16]))
        );
        assert_eq!(with(|g| g.deadline_ms = 0), FenceError::Over);
        assert_eq!(fence.check(0, &good), Ok(5_000));
    }

    #[test]
    fn an_epoch_is_of_one_lease() {
        let mut fence = Fence::new("b", Floors::default());
        fence.answered(0, &answer(1, 0, 1, None));
        fence.admit(0, 1, &grant(1, 4, 1, 5_000)).unwrap();
        let taken = Err(FenceError::Taken { uuid: GPU });
        assert_eq!(fence.check(0, &grant(1, 5, 1, 5_000)), taken);
        let other = Grant {
            owner: "p".into(),
            ..grant(1, 4, 1, 5_000)
        };
        assert_eq!(fence.check(0, &other), taken);
        assert!(fence.check(0, &grant(1, 4, 1, 5_000)).is_ok());
        fence.ended(1);
        assert!(fence.check(0, &other).is_ok());
        assert_eq!((fence.lease_last(), fence.floors().lease_last), (4, 4));
    }
}
