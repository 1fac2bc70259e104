//! The network, and what each party does with a message that arrives.

use super::*;

impl World {
    pub(super) fn send(&mut self, message: Message) {
        if !self.calm && self.random.one_in(20) {
            return;
        }
        let copies = if !self.calm && self.random.one_in(20) {
            2
        } else {
            1
        };
        for _ in 0..copies {
            let slow = !self.calm && self.random.one_in(10);
            let delay = self.random.below(if slow { 15_000 } else { 50 });
            self.network.push((self.now_ms + delay, message.clone()));
        }
    }

    pub(super) fn deliver(&mut self) {
        let now_ms = self.now_ms;
        let (mut due, later): (Vec<_>, Vec<_>) =
            self.network.drain(..).partition(|(at, _)| *at <= now_ms);
        self.network = later;
        while !due.is_empty() {
            let at = self.random.below(due.len() as u64) as usize;
            let (_, message) = due.swap_remove(at);
            self.arrive(message);
        }
    }

    /// A manager that this message reaches: mostly the one that has the store.
    pub(super) fn some_manager(&mut self) -> usize {
        match self.managers.len() {
            0 => 0,
            count if !self.calm && self.random.one_in(4) => {
                self.random.below(count as u64) as usize
            }
            count => count - 1,
        }
    }

    pub(super) fn is_cut(&self, message: &Message) -> bool {
        let of = match message {
            Message::Join(at, ..) | Message::Report(at, ..) | Message::Answer(at, ..) => {
                self.boxes[*at].cut
            }
            Message::Claim(at, _) | Message::Claimed(at, ..) => self.clients[*at].cut,
            _ => false,
        };
        of && !self.calm
    }

    pub(super) fn arrive(&mut self, message: Message) {
        if self.is_cut(&message) {
            return;
        }
        let at = self.some_manager();
        match message {
            Message::Join(of, join, number) => {
                let said = self.with_manager(at, |manager, now| manager.join(now, &join));
                if let Some(said) = said {
                    self.send(Message::Answer(of, number, Box::new(said)));
                }
            }
            Message::Report(of, report, number) => {
                let said = self.with_manager(at, |manager, now| {
                    manager.report(now, &report)?;
                    manager.answer_for(now, &report.name)
                });
                if let Some(said) = said {
                    self.send(Message::Answer(of, number, Box::new(said)));
                }
            }
            Message::Answer(of, number, said) => self.answered(of, number, *said),
            Message::Claim(client, claim) => {
                let said = self.with_manager(at, |manager, now| manager.claim(now, &claim, true));
                if let Some(said) = said {
                    self.send(Message::Claimed(client, claim, Box::new(said)));
                }
            }
            Message::Claimed(client, claim, said) => self.claimed(client, &claim, *said),
            Message::Hold(lease) => {
                self.with_manager(at, |manager, now| manager.hold(now, lease));
            }
            Message::Gone(lease) => {
                self.with_manager(at, |manager, now| manager.holder_is_gone(now, lease));
            }
            Message::Release(lease) => {
                self.with_manager(at, |manager, now| manager.release(now, lease));
            }
            Message::Present(grant) => self.present(&grant),
        }
    }

    pub(super) fn answered(&mut self, at: usize, number: u64, said: Result<BoxAnswer, PoolError>) {
        let is_full = !self.calm && self.random.one_in(10);
        let of = &mut self.boxes[at];
        let (Some((asked, sent_ms)), Some(fence)) = (of.asked, &mut of.fence) else {
            return;
        };
        if asked != number || of.stopped {
            return;
        }
        of.asked = None;
        let Ok(answer) = said else {
            of.joined = false;
            return;
        };
        let answered = fence.answered(sent_ms, &answer);
        if fence.is_unwritten() {
            if is_full {
                return;
            }
            of.disk = fence.floors();
            fence.written(of.disk.clone());
        }
        (of.joined, of.incarnation) = (true, answer.incarnation);
        of.revision = answer.revision;
        of.report_at_ms = 0;
        for (session, until_ms) in answered.extended {
            if let Some(session) = of.running.get_mut(&session) {
                session.until_ms = until_ms;
            }
        }
        for session in answered.end {
            of.running.remove(&session);
            fence.ended(session);
        }
    }

    pub(super) fn claimed(&mut self, at: usize, claim: &Claim, said: Result<Claimed, PoolError>) {
        let client = &mut self.clients[at];
        match said {
            Ok(Claimed::Granted(granted)) => {
                self.grants_told += 1;
                let before = self.lease_of_uid.insert(claim.uid.clone(), granted.lease);
                assert!(
                    before.is_none_or(|before| before == granted.lease),
                    "the claim {} has two leases",
                    claim.uid
                );
                for of in granted.boxes {
                    for gpu in &of.grant.gpus {
                        let before = self.told.insert(*gpu, granted.lease);
                        let is_first = before.is_none_or(|before| before == granted.lease);
                        assert!(is_first, "{gpu:?} is of two leases");
                    }
                    client.grants.push(of.grant);
                }
                if client.claim.as_ref() == Some(claim) {
                    client.lease = Some(granted.lease);
                }
            }
            Ok(Claimed::Waiting { .. }) => {}
            // The lease is over, or there is no box yet: a new claim.
            Err(_) if client.claim.as_ref() == Some(claim) => {
                client.claim = None;
                client.lease = None;
            }
            Err(_) => {}
        }
    }

    pub(super) fn present(&mut self, grant: &Grant) {
        let is_full = !self.calm && self.random.one_in(10);
        let now_ms = self.now_ms;
        let Some(of) = self.boxes.iter_mut().find(|of| of.name == grant.of) else {
            return;
        };
        let Some(fence) = of.fence.as_mut().filter(|_| !of.stopped) else {
            return;
        };
        self.sessions_last += 1;
        let session = self.sessions_last;
        let Ok(admitted) = fence.admit(of.clock.at(now_ms), session, grant) else {
            return;
        };
        if admitted.write {
            if is_full {
                fence.ended(session);
                return;
            }
            of.disk = fence.floors();
            fence.written(of.disk.clone());
        }
        for older in admitted.end_first {
            of.running.remove(&older);
            fence.ended(older);
        }
        of.running.insert(
            session,
            Session {
                lease: grant.lease,
                gpus: grant.gpus.clone(),
                until_ms: admitted.until_ms,
            },
        );
    }
}
