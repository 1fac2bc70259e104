//! The host's side of the tables: queue pairs, completion queues and keys are made and ended here,
//! while no kernel runs.

use crate::{
    adapter::{PairSetup, Peer, State, Status},
    completions::{Completions as Checked, CompletionsSetup},
    error::Error,
    keys::Access,
    memory::Mapped,
};

use super::{
    groups::Groups,
    tables::{self, Completions, Head, Key, Pair, Plain},
};

/// Number of the first queue pair, as for the adapter that is a thread.
const QPN_FIRST: u32 = 0x100;
/// Offset of the doorbell in its page.
const DOORBELL_OFFSET: u64 = 0x800;

/// An adapter whose queues a kernel serves, with its state in tables. It is [`crate::Adapter`] of
/// a perfect network within one process, in another place.
#[derive(Debug)]
pub struct KernelAdapter {
    tables: Mapped,
    /// Blocks of the kernel.
    blocks: u32,
    /// Makes the epochs of two queue pairs with one number differ.
    order: u32,
    /// Times that each slot of the keys was used.
    uses: Vec<u8>,
}

impl KernelAdapter {
    /// Bytes of the tables.
    pub const BYTES: usize = tables::TABLES_BYTES as usize;

    /// Takes zeroed memory of [`KernelAdapter::BYTES`], which the kernel's blocks reach.
    pub fn new(tables: Mapped, blocks: u32) -> Result<KernelAdapter, Error> {
        crate::completions::check(&tables, "an adapter", KernelAdapter::BYTES, 16)?;
        let adapter = KernelAdapter {
            tables,
            blocks: blocks.clamp(1, tables::GROUPS_MAX),
            order: 0,
            uses: Vec::new(),
        };
        let qpn_first = QPN_FIRST;
        adapter.write(
            0,
            &Head {
                qpn_first,
                ..Head::default()
            },
        );
        Ok(adapter)
    }

    /// Address of the tables.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.tables.address()
    }

    /// Registers memory that the kernel reaches, by the address by which it does.
    pub fn register(
        &mut self,
        domain: u32,
        address: u64,
        bytes: u64,
        access: Access,
    ) -> Result<u32, Error> {
        let until = address
            .checked_add(bytes)
            .ok_or(Error::Wraps { address, bytes })?;
        let keys = (0..self.uses.len()).find(|slot| self.key(*slot).key == 0);
        let slot = keys.unwrap_or(self.uses.len());
        if slot == tables::KEYS_MAX {
            return Err(Error::TooMany {
                what: "registrations",
                count_max: tables::KEYS_MAX,
            });
        }
        if slot == self.uses.len() {
            self.uses.push(0);
        }
        // Key 0x100 is that of receives without memory: no slot is used for the 0th time.
        let uses = self.uses[slot].checked_add(1).unwrap_or(1);
        self.uses[slot] = uses;
        let key = (slot as u32 + 1) << 8 | u32::from(uses);
        let entry = Key {
            from: address,
            until,
            key,
            domain,
            access: access.0,
            reserved: 0,
        };
        self.write(key_at(slot), &entry);
        let key_count = self.uses.len() as u32;
        self.change_head(|head| head.key_count = key_count);
        Ok(key)
    }

    /// Ends a registration. Operations that name the key fail from now on.
    pub fn unregister(&mut self, key: u32) -> Result<(), Error> {
        let slot = (key >> 8).checked_sub(1).map(|slot| slot as usize);
        let slot = slot.filter(|slot| *slot < self.uses.len() && self.key(*slot).key == key);
        self.write(key_at(slot.ok_or(Error::NoKey(key))?), &Key::default());
        self.change_head(|_| {});
        Ok(())
    }

    pub fn create_completions(&mut self, setup: CompletionsSetup) -> Result<u32, Error> {
        let count = self.head().completion_count as usize;
        let free = (0..count).find(|at| self.completions(*at).flags == 0);
        let at = free.unwrap_or(count);
        if at == tables::COMPLETIONS_MAX {
            return Err(Error::TooMany {
                what: "completion queues",
                count_max: tables::COMPLETIONS_MAX,
            });
        }
        self.write(completions_at(at), &fresh(setup)?);
        self.change_head(|head| head.completion_count = head.completion_count.max(at as u32 + 1));
        Ok(at as u32)
    }

    /// Makes a completion queue start again, in other memory.
    pub fn reset_completions(&mut self, number: u32, setup: CompletionsSetup) -> Result<(), Error> {
        let at = self.there(number)?;
        let group = self.completions(at).group;
        self.write(
            completions_at(at),
            &Completions {
                group,
                ..fresh(setup)?
            },
        );
        self.change_head(|_| {});
        Ok(())
    }

    pub fn destroy_completions(&mut self, number: u32) -> Result<(), Error> {
        let at = self.there(number)?;
        self.write(completions_at(at), &Completions::default());
        self.change_head(|_| {});
        Ok(())
    }

    /// Makes a queue pair, which is [`State::Reset`] until it is connected. Returns its number.
    pub fn create_pair(&mut self, setup: &PairSetup) -> Result<u32, Error> {
        setup.check()?;
        for number in [setup.send_completions, setup.receive_completions] {
            self.there(number)?;
        }
        let count = self.head().pair_count as usize;
        let free = (0..count).find(|number| self.pair_of(*number).qpn == 0);
        let number = free.unwrap_or(count);
        if number == tables::PAIRS_MAX {
            return Err(Error::TooMany {
                what: "queue pairs",
                count_max: tables::PAIRS_MAX,
            });
        }
        let pair = Pair {
            qpn: QPN_FIRST + number as u32,
            epoch: self.order,
            access: Access::ALL.0,
            ..of_setup(setup)
        };
        self.order = self.order.wrapping_add(1);
        self.write(pair_at(number), &pair);
        self.change_head(|head| head.pair_count = head.pair_count.max(number as u32 + 1));
        self.note_sharers(pair.doorbell);
        self.group();
        Ok(pair.qpn)
    }

    pub fn destroy_pair(&mut self, qpn: u32) -> Result<(), Error> {
        let number = self.number(qpn)?;
        self.write(pair_at(number), &Pair::default());
        self.group();
        Ok(())
    }

    /// Returns what a peer's [`KernelAdapter::connect`] needs.
    pub fn end_of(&self, qpn: u32) -> Result<Peer, Error> {
        let epoch = self.pair(qpn)?.epoch;
        Ok(Peer { qpn, epoch })
    }

    /// Returns a queue pair as its peer names it. Fails if it is connected.
    pub(crate) fn unconnected(&self, qpn: u32) -> Result<Peer, Error> {
        match self.pair(qpn)?.state {
            tables::STATE_RESET => self.end_of(qpn),
            _ => Err(Error::Connected(qpn)),
        }
    }

    /// Makes a queue pair ready to send and receive.
    pub fn connect(&mut self, qpn: u32, peer: Peer) -> Result<(), Error> {
        self.change(qpn, |pair| {
            (pair.peer_qpn, pair.peer_epoch) = (peer.qpn, peer.epoch);
            pair.state = tables::STATE_READY;
        })?;
        self.group();
        Ok(())
    }

    /// Puts a queue pair back to its start, in other memory, with a new epoch.
    pub fn reset(&mut self, qpn: u32, setup: &PairSetup) -> Result<(), Error> {
        setup.check()?;
        let old = self.pair(qpn)?;
        let kept = tables::PAIR_UNREACHABLE | tables::PAIR_UNRELIABLE;
        let new = Pair {
            qpn,
            epoch: old.epoch.wrapping_add(1),
            access: old.access,
            flags: old.flags & kept,
            group: old.group,
            ..of_setup(setup)
        };
        self.change(qpn, |pair| *pair = new)?;
        let at = old.send_completions as usize;
        let mut completions = self.completions(at);
        completions.flags &= !tables::COMPLETIONS_HOLDS_ERROR;
        self.write(completions_at(at), &completions);
        self.note_sharers(new.doorbell);
        self.group();
        Ok(())
    }

    /// Makes a queue pair's connection an unreliable one. Called before it is connected.
    pub fn set_unreliable(&mut self, qpn: u32) -> Result<(), Error> {
        self.change(qpn, |pair| pair.flags |= tables::PAIR_UNRELIABLE)
    }

    /// Puts a queue pair into [`State::Error`]: all that is posted is flushed.
    pub fn fail(&mut self, qpn: u32) -> Result<(), Error> {
        self.change(qpn, |pair| pair.state = tables::STATE_ERROR)
    }

    /// Limits the remote operations that a queue pair takes; others are refused with 12.
    pub fn set_access(&mut self, qpn: u32, access: Access) -> Result<(), Error> {
        self.change(qpn, |pair| pair.access = access.0)
    }

    /// Makes a queue pair unreachable, or reachable again: a cable that is pulled.
    pub fn set_unreachable(&mut self, qpn: u32, unreachable: bool) -> Result<(), Error> {
        self.change(qpn, |pair| match unreachable {
            true => pair.flags |= tables::PAIR_UNREACHABLE,
            false => pair.flags &= !tables::PAIR_UNREACHABLE,
        })
    }

    /// Returns true if something is going to happen by itself, after a time or at another thread's
    /// next step.
    pub(super) fn is_waiting(&self) -> bool {
        let waits = tables::PAIR_WAITS | tables::PAIR_BEGUN;
        (0..self.head().pair_count as usize).any(|number| {
            let pair = self.pair_of(number);
            let is_ahead = pair.rung != tables::NOTHING_RUNG;
            pair.state == tables::STATE_READY && (pair.flags & waits != 0 || is_ahead)
        })
    }

    pub fn status(&self, qpn: u32) -> Result<Status, Error> {
        let pair = self.pair(qpn)?;
        let failure = pair.failure;
        Ok(Status {
            state: match pair.state {
                tables::STATE_READY => State::Ready,
                tables::STATE_ERROR => State::Error,
                _ => State::Reset,
            },
            epoch: pair.epoch,
            succeeded: pair.succeeded,
            flushed: pair.flushed,
            failure: (failure & tables::FAILED != 0)
                .then_some((failure as u16, (failure >> 16) as u8)),
            retries: pair.retries,
            foreign_doorbells: pair.foreign_doorbells,
        })
    }

    /// Tells queue pairs that have one doorbell.
    fn note_sharers(&mut self, doorbell: u64) {
        let count = self.head().pair_count as usize;
        let all = (0..count).map(|number| (number, self.pair_of(number)));
        let of_it = |(_, pair): &(usize, Pair)| pair.qpn != 0 && pair.doorbell == doorbell;
        let sharers: Vec<(usize, Pair)> = all.filter(of_it).collect();
        if sharers.len() > 1 {
            for (number, mut pair) in sharers {
                pair.flags |= tables::PAIR_SHARES_DOORBELL;
                self.write(pair_at(number), &pair);
            }
        }
    }

    /// Gives queue pairs that change one another, or one completion queue, to one block.
    fn group(&mut self) {
        let head = self.head();
        let pairs = (0..head.pair_count as usize).map(|number| self.pair_of(number));
        let pairs: Vec<Pair> = pairs.collect();
        let mut groups = Groups::new(pairs.len(), head.completion_count as usize);
        for (number, pair) in pairs.iter().enumerate().filter(|(_, pair)| pair.qpn != 0) {
            groups.join_completions(number, pair.send_completions as usize);
            groups.join_completions(number, pair.receive_completions as usize);
            if let Some(peer) = pair.peer_qpn.checked_sub(QPN_FIRST) {
                groups.join(number, peer as usize);
            }
        }
        let (of_pairs, of_completions) = groups.spread(self.blocks);
        for (number, (mut pair, group)) in pairs.into_iter().zip(of_pairs).enumerate() {
            pair.group = group;
            self.write(pair_at(number), &pair);
        }
        for (at, group) in of_completions.into_iter().enumerate() {
            let completions = self.completions(at);
            self.write(
                completions_at(at),
                &Completions {
                    group,
                    ..completions
                },
            );
        }
        self.change_head(|_| {});
    }

    fn head(&self) -> Head {
        self.read(0)
    }

    /// Changes the head, and makes the kernel read all tables again.
    fn change_head(&mut self, change: impl FnOnce(&mut Head)) {
        let mut head = self.head();
        change(&mut head);
        head.generation += 1;
        self.write(0, &head);
    }

    fn key(&self, slot: usize) -> Key {
        self.read(key_at(slot))
    }

    fn completions(&self, at: usize) -> Completions {
        self.read(completions_at(at))
    }

    /// Returns the place of a completion queue that there is.
    fn there(&self, number: u32) -> Result<usize, Error> {
        let at = number as usize;
        let is_there = number < self.head().completion_count && self.completions(at).flags != 0;
        is_there.then_some(at).ok_or(Error::NoCompletions(number))
    }

    fn pair_of(&self, number: usize) -> Pair {
        self.read(pair_at(number))
    }

    fn number(&self, qpn: u32) -> Result<usize, Error> {
        let number = qpn.checked_sub(QPN_FIRST).ok_or(Error::NoPair(qpn))?;
        let is_there = number < self.head().pair_count && self.pair_of(number as usize).qpn == qpn;
        is_there
            .then_some(number as usize)
            .ok_or(Error::NoPair(qpn))
    }

    fn pair(&self, qpn: u32) -> Result<Pair, Error> {
        self.number(qpn).map(|number| self.pair_of(number))
    }

    fn change(&mut self, qpn: u32, change: impl FnOnce(&mut Pair)) -> Result<(), Error> {
        let number = self.number(qpn)?;
        let mut pair = self.pair_of(number);
        change(&mut pair);
        self.write(pair_at(number), &pair);
        self.change_head(|_| {});
        Ok(())
    }

    fn read<T: Plain>(&self, at: usize) -> T {
        let mut value = T::default();
        self.tables.read(at, value.bytes_mut());
        value
    }

    fn write<T: Plain>(&self, at: usize, value: &T) {
        self.tables.write(at, value.bytes());
    }
}

fn pair_at(number: usize) -> usize {
    tables::PAIRS_AT as usize + number * size_of::<Pair>()
}

fn completions_at(at: usize) -> usize {
    tables::COMPLETIONS_AT as usize + at * size_of::<Completions>()
}

fn key_at(slot: usize) -> usize {
    tables::KEYS_AT as usize + slot * size_of::<Key>()
}

/// Returns a completion queue that has had nothing, and makes its memory so.
fn fresh(setup: CompletionsSetup) -> Result<Completions, Error> {
    let collapsed = match setup.collapsed {
        true => tables::COMPLETIONS_COLLAPSED,
        false => 0,
    };
    let completions = Completions {
        entries: setup.entries.address(),
        record: setup.record.as_ref().map_or(0, |record| record.address()),
        log_entries: setup.log_entries,
        flags: tables::COMPLETIONS_THERE | collapsed,
        ..Completions::default()
    };
    Checked::new(setup).map(|_| completions)
}

/// Returns a queue pair of a setup, at its start.
fn of_setup(setup: &PairSetup) -> Pair {
    let (receives, log_receives) = match &setup.receives {
        Some((ring, log)) => (ring.address(), *log),
        None => (0, 0),
    };
    let retries = &setup.retries;
    Pair {
        ring: setup.ring.address(),
        record: setup.record.address(),
        doorbell: setup.page.address() + DOORBELL_OFFSET,
        receives,
        timeout_ns: retries.timeout_ns,
        not_ready_ns: retries.not_ready_ns,
        domain: setup.domain,
        send_completions: setup.send_completions,
        receive_completions: setup.receive_completions,
        log_blocks: setup.log_blocks,
        log_receives,
        count_max: retries.count_max,
        not_ready_count_max: retries.not_ready_count_max,
        rung: tables::NOTHING_RUNG,
        ..Pair::default()
    }
}
