//! Managers, boxes and clients, each of which does what its time brings.

use super::*;

impl World {
    pub(super) fn start_manager(&mut self) {
        let mut store = self.store.clone();
        if let Ok(manager) = Manager::open(&mut store, "pool", "key") {
            // Two at a time suffice.
            while self.managers.len() > 1 {
                self.managers.remove(0);
            }
            self.incarnation = manager.incarnation();
            let clock = clock(&mut self.random);
            let start_ms = clock.at(self.now_ms);
            self.managers.push(Running {
                manager,
                start_ms,
                clock,
            });
        }
    }

    /// Has a manager do something, and makes it durable. Returns what it said, unless it crashed.
    pub(super) fn with_manager<T>(
        &mut self,
        at: usize,
        act: impl FnOnce(&mut Manager, u64) -> T,
    ) -> Option<T> {
        use crate::store::Store as _;
        let running = self.managers.get_mut(at)?;
        let now_ms = running.clock.at(self.now_ms) - running.start_ms;
        let said = act(&mut running.manager, now_ms);
        let Some(transaction) = running.manager.take_transaction() else {
            return Some(said);
        };
        let crash = if self.calm { 9 } else { self.random.below(60) };
        if crash == 0 || self.store.commit(&transaction).is_err() || crash == 1 {
            // It crashed before or after, or begins anew because it does not know what was written.
            self.managers.remove(at);
            return None;
        }
        Some(said)
    }

    pub(super) fn box_goes_on(&mut self, at: usize, unfenced: bool) {
        let now_ms = self.now_ms;
        let of = &mut self.boxes[at];
        if of.stopped && !self.calm {
            return;
        }
        of.stopped = false;
        if of.fence.is_none() {
            if !self.calm && !self.random.one_in(3) {
                return;
            }
            let mut fence = Fence::new(&of.name, of.disk.clone());
            fence.is_unfenced = unfenced;
            self.instances_last += 1;
            of.fence = Some(fence);
            of.instance = format!("i{}", self.instances_last);
            (of.joined, of.asked, of.incarnation) = (false, None, 0);
        }
        let Some(fence) = &mut of.fence else { return };
        let here_ms = of.clock.at(now_ms);
        for session in fence.over(here_ms) {
            of.running.remove(&session);
            fence.ended(session);
        }
        // An answer that does not come is given up.
        if of.asked.is_some_and(|(_, sent)| here_ms > sent + 3_000) {
            of.asked = None;
        }
        if of.asked.is_some() || here_ms < of.report_at_ms {
            return;
        }
        let number = now_ms;
        of.asked = Some((number, here_ms));
        of.report_at_ms = here_ms + 400;
        let message = match of.joined {
            false => {
                let gpus = of.gpus.iter().map(|uuid| facts(*uuid)).collect();
                let join = Join {
                    name: of.name.clone(),
                    identity: format!("id{at}"),
                    instance: of.instance.clone(),
                    url: "tcp://x".into(),
                    gpus,
                    link: None,
                    link_fails: None,
                };
                Message::Join(at, join, number)
            }
            true => {
                let report = Report {
                    name: of.name.clone(),
                    instance: of.instance.clone(),
                    incarnation: of.incarnation,
                    revision: of.revision,
                    gpus: fence.report(),
                    windows: of.running.values().map(window).collect(),
                    check: None,
                    lease_last: fence.lease_last(),
                };
                Message::Report(at, report, number)
            }
        };
        self.send(message);
    }

    pub(super) fn crash_box(&mut self, at: usize) {
        let of = &mut self.boxes[at];
        of.fence = None;
        of.running.clear();
    }

    pub(super) fn client_goes_on(&mut self, at: usize) {
        let client = &mut self.clients[at];
        if client.stopped && !self.calm || client.next_ms > self.now_ms {
            return;
        }
        client.next_ms = self.now_ms + 300 + self.random.below(500);
        let message = match (&client.claim, client.lease) {
            (None, _) if self.calm => return,
            (None, _) => {
                client.uids += 1;
                let claim = Claim {
                    uid: format!("c{at}-{}", client.uids),
                    owner: format!("o{at}"),
                    host: format!("h{}", at % 2),
                    gpus: 1 + self.random.below(2) as u32,
                    model: None,
                    same: [None, Some(Same::Box)][self.random.below(2) as usize],
                    fit: [Fit::Best, Fit::First, Fit::Spread, Fit::Fgd]
                        [self.random.below(4) as usize],
                    priority: self.random.below(3) as u8,
                    term_ms: 2_000 + self.random.below(8_000),
                    attach: false,
                    links: Vec::new(),
                    idle_ms: None,
                };
                client.claim = Some(claim.clone());
                Message::Claim(at, claim)
            }
            (Some(_), Some(lease)) if self.calm || self.random.one_in(8) => {
                client.claim = None;
                client.lease = None;
                Message::Release(lease)
            }
            (Some(_), Some(lease)) if self.random.one_in(2) => Message::Hold(lease),
            (Some(_), Some(_)) => match client.grants.last() {
                Some(grant) => Message::Present(grant.clone()),
                None => return,
            },
            // A claim that is not answered comes again.
            (Some(claim), None) => Message::Claim(at, claim.clone()),
        };
        if !client.cut || self.calm {
            self.send(message);
        }
    }
}
