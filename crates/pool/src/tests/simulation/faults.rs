//! Faults of each party, and what operators and users do, by chance.

use super::*;

impl World {
    pub(super) fn something_happens(&mut self) {
        let (of, client) = (
            self.random.below(BOXES as u64),
            self.random.below(CLIENTS as u64),
        );
        let (of, client) = (of as usize, client as usize);
        match self.random.below(40) {
            0 => drop(self.managers.pop()),
            // Another one takes over while the old one still runs.
            1 => self.start_manager(),
            2 => self.crash_box(of),
            3 => self.boxes[of].stopped ^= true,
            4 => self.boxes[of].cut ^= true,
            5 => self.clients[client].cut ^= true,
            6 => self.clients[client].stopped ^= true,
            7 => {
                // Killed: the kernel closes its connection.
                let lease = self.clients[client].lease.take();
                self.clients[client].claim = None;
                if let Some(lease) = lease.filter(|_| !self.clients[client].cut) {
                    self.send(Message::Gone(lease));
                }
            }
            8 | 9 => self.store.fail(match self.random.one_in(2) {
                true => Fault::Full,
                false => Fault::LostAnswer,
            }),
            10 => {
                // A disk that was replaced.
                self.crash_box(of);
                self.boxes[of].disk = Floors::default();
            }
            11..=14 => {
                let grants = &self.clients[client].grants;
                let old = match grants.len() {
                    0 => None,
                    count => Some(grants[self.random.below(count as u64) as usize].clone()),
                };
                if let Some(old) = old {
                    self.send(Message::Present(old));
                }
            }
            15..=17 => self.operate(of),
            18 => self.attach(),
            19 | 20 => self.detach(of),
            21 | 22 => self.a_program_ends(of),
            _ => {}
        }
    }

    /// Operators hold spares back, find GPUs broken, and mend them; programs fail to begin.
    pub(super) fn operate(&mut self, of: usize) {
        let at = self.some_manager();
        let gpus = &self.boxes[of].gpus;
        let gpu = gpus[self.random.below(gpus.len() as u64) as usize];
        let client = self.random.below(CLIENTS as u64) as usize;
        let (lease, of) = (self.clients[client].lease, self.boxes[of].name.clone());
        let what = self.random.below(6);
        let rule = SpareRecord {
            model: None,
            per: [None, Some(Same::Box)][self.random.below(2) as usize],
            gpus: self.random.below(3) as u32,
        };
        self.with_manager(at, |manager, now| match (what, lease) {
            (0 | 1, _) => manager.set_spares(now, &rule),
            (2 | 3, _) => manager.is_broken(now, &gpu, "broken"),
            (4, Some(lease)) => manager.session_failed(now, lease, &of, "failed"),
            _ => manager.taint(now, &gpu, None),
        });
    }

    /// An operator attaches GPUs to a host, whose programs use them from then on.
    pub(super) fn attach(&mut self) {
        self.attaches += 1;
        let claim = Claim {
            uid: format!("a{}", self.attaches),
            owner: "host".into(),
            host: format!("h{}", self.random.below(2)),
            gpus: 1 + self.random.below(2) as u32,
            model: None,
            same: None,
            fit: Fit::Best,
            priority: 9,
            term_ms: 2_000 + self.random.below(8_000),
            attach: true,
            links: Vec::new(),
            idle_ms: None,
        };
        let at = self.some_manager();
        let said = self.with_manager(at, |manager, now| manager.claim(now, &claim, false));
        let Some(Ok(Claimed::Granted(granted))) = said else {
            return;
        };
        self.grants_told += 1;
        for of in granted.boxes {
            for gpu in &of.grant.gpus {
                let before = self.told.insert(*gpu, granted.lease);
                let is_first = before.is_none_or(|before| before == granted.lease);
                assert!(is_first, "{gpu:?} is of two leases");
            }
            self.send(Message::Present(of.grant.clone()));
            let client = self.random.below(CLIENTS as u64) as usize;
            self.clients[client].grants.push(of.grant);
        }
    }

    pub(super) fn a_program_ends(&mut self, of: usize) {
        let of = &mut self.boxes[of];
        if let (Some((session, _)), Some(fence)) = (of.running.pop_first(), &mut of.fence) {
            fence.ended(session);
        }
    }

    pub(super) fn detach(&mut self, of: usize) {
        let gpus = &self.boxes[of].gpus;
        let gpu = gpus[self.random.below(gpus.len() as u64) as usize];
        let (at, is_forced) = (self.some_manager(), self.random.one_in(2));
        self.with_manager(at, |manager, now| manager.detach(now, &gpu, is_forced));
    }

    /// Detaches what is attached. A session that does not end by itself is ended after a while.
    pub(super) fn detach_all(&mut self, is_forced: bool) {
        let last = self.managers.len().wrapping_sub(1);
        let gpus: Vec<Uuid> = self.boxes.iter().flat_map(|of| of.gpus.clone()).collect();
        let Some(running) = self.managers.last() else {
            return;
        };
        let attached = running.manager.attached();
        for gpu in gpus.iter().filter(|gpu| attached.contains(gpu)) {
            self.with_manager(last, |manager, now| manager.detach(now, gpu, is_forced));
        }
    }

    /// Mends what is broken, and holds nothing back.
    pub(super) fn mend_all(&mut self) {
        let Some(running) = self.managers.last() else {
            return;
        };
        let ill = running.manager.unhealthy();
        let has_spares = !running.manager.spares_view().rules.is_empty();
        if ill.is_empty() && !has_spares {
            return;
        }
        let last = self.managers.len() - 1;
        self.with_manager(last, |manager, now| {
            let none = SpareRecord {
                model: None,
                per: None,
                gpus: 0,
            };
            let _ = manager.set_spares(now, &none);
            for uuid in &ill {
                let _ = manager.taint(now, uuid, None);
            }
        });
    }
}
