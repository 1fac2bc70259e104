//! Conditions that hold after each step, and once faults have ceased.

use super::*;

impl World {
    /// Workers end by themselves, whatever their supervisor does, unless all of the box is stopped.
    pub(super) fn workers_watch_their_clocks(&mut self) {
        for of in self.boxes.iter_mut().filter(|of| !of.stopped) {
            let here_ms = of.clock.at(self.now_ms);
            of.running.retain(|_, session| session.until_ms > here_ms);
        }
    }

    /// Compares what runs with what the manager believes.
    pub(super) fn check(&self) -> Result<(), String> {
        for of in &self.boxes {
            let mut users: BTreeMap<Uuid, BTreeSet<u64>> = BTreeMap::new();
            for session in of.running.values() {
                for (uuid, _) in &session.gpus {
                    users.entry(*uuid).or_default().insert(session.lease);
                }
            }
            if let Some((uuid, leases)) = users.iter().find(|(_, leases)| leases.len() > 1) {
                return Err(format!("{uuid} is used by the leases {leases:?}"));
            }
        }
        // One that another has replaced does not know the leases any more.
        let last = self.managers.last();
        let Some(running) = last.filter(|it| it.manager.incarnation() == self.incarnation) else {
            return Ok(());
        };
        for of in self.boxes.iter().filter(|of| !of.stopped) {
            for session in of.running.values() {
                for (uuid, epoch) in &session.gpus {
                    let holder = running.manager.holder_of(uuid);
                    if holder != Some((*epoch, Some(session.lease))) {
                        return Err(format!("lease {} uses {uuid} without it", session.lease));
                    }
                }
            }
        }
        Ok(())
    }

    /// Faults cease. All GPUs become free, and each can be had and used.
    pub(super) fn calm_down(&mut self, unfenced: bool) -> Result<(), String> {
        self.calm = true;
        self.store.fail(Fault::None);
        let end_ms = self.now_ms + CALM_MS;
        let mut is_free = false;
        while self.now_ms < end_ms && !is_free {
            self.step(unfenced);
            self.check()?;
            self.mend_all();
            self.detach_all(self.now_ms + CALM_MS > end_ms + DETACH_MS);
            let all = self.boxes.iter().map(|of| of.gpus.len()).sum::<usize>();
            let free = |running: &Running| running.manager.free_count() == all;
            is_free = self.managers.last().is_some_and(free);
            is_free &= self.clients.iter().all(|client| client.claim.is_none());
        }
        if !is_free {
            return Err("GPUs were lost".into());
        }
        let tables = self.managers.last().map(|running| running.manager.tables());
        let tables = tables.ok_or("no manager")?;
        let used = tables
            .hosts
            .iter()
            .map(|host| host.entries.len())
            .sum::<usize>()
            + tables
                .boxes
                .iter()
                .flat_map(|of| &of.entries)
                .filter(|e| e.used)
                .count();
        match used {
            0 => self.all_can_be_used(unfenced),
            used => Err(format!("{used} entries of tables are in use")),
        }
    }

    pub(super) fn all_can_be_used(&mut self, unfenced: bool) -> Result<(), String> {
        for at in 0..self.boxes.len() {
            let claim = Claim {
                uid: format!("last{at}"),
                owner: "last".into(),
                host: "last".into(),
                gpus: 1,
                model: None,
                same: None,
                fit: Fit::Spread,
                priority: 0,
                term_ms: 10_000,
                attach: false,
                links: Vec::new(),
                idle_ms: None,
            };
            let mut said = None;
            // A manager whose store another one has taken notices that with its first write.
            for _ in 0..CLAIM_STEPS {
                let last = self.managers.len().wrapping_sub(1);
                said = self.with_manager(last, |manager, now| manager.claim(now, &claim, false));
                if matches!(said, Some(Ok(Claimed::Granted(_)))) {
                    break;
                }
                self.step(unfenced);
            }
            let Some(Ok(Claimed::Granted(granted))) = said else {
                return Err(format!("a free GPU is not given out: {said:?}"));
            };
            // A box that has just started admits nothing before the manager's first answer.
            let runs = (0..CLAIM_STEPS).any(|_| {
                self.present(&granted.boxes[0].grant);
                let last = self.sessions_last;
                let runs = self.boxes.iter().any(|of| of.running.contains_key(&last));
                if !runs {
                    self.step(unfenced);
                }
                runs
            });
            if !runs {
                return Err("a good grant gives no session".into());
            }
        }
        self.check()
    }
}
