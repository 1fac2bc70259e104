//! Queue pairs whose frames travel by memory that both processes have: the adapter looks at the
//! rings whenever it looks at the queues.

use std::{fmt, mem::take};

use crate::{
    error::Error,
    rings::{Broken, Rings},
    room,
};

use super::{
    Adapter,
    remote::{HEADER_BYTES, Header},
};

/// Bytes that are taken from one ring before the next has its turn.
const TURN_BYTES: usize = 256 << 10;

/// Room for the data of a frame before any of it has come, in bytes.
const FIRST_BYTES: usize = 64 << 10;

/// A call to the connection, which does not wait.
pub(crate) type Call = Box<dyn Fn() + Send>;

/// A queue pair's rings, and the frame that is coming in.
pub(crate) struct Carried {
    pub(super) number: usize,
    qpn: u32,
    epoch: u32,
    rings: Rings,
    rouse: Call,
    hang_up: Call,
    header: [u8; HEADER_BYTES],
    header_got: usize,
    announced: Option<Header>,
    data: Vec<u8>,
    data_got: usize,
}

impl fmt::Debug for Carried {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_struct("Carried")
            .field("qpn", &self.qpn)
            .field("rings", &self.rings)
            .finish_non_exhaustive()
    }
}

impl Drop for Carried {
    fn drop(&mut self) {
        (self.hang_up)();
    }
}

impl From<Broken> for Error {
    fn from(Broken: Broken) -> Error {
        Error::Peer("counts that cannot be")
    }
}

impl Carried {
    /// Takes one frame, or what is there of it. Returns its header when its data is here, and the
    /// bytes that were taken.
    fn next(&mut self) -> Result<(Option<Header>, usize), Error> {
        let mut count = 0;
        if self.announced.is_none() {
            count = self.rings.read(&mut self.header[self.header_got..])?;
            self.header_got += count;
            if self.header_got < HEADER_BYTES {
                return Ok((None, count));
            }
            let header = Header::parse(&self.header);
            let header = header.ok_or(Error::Peer("a message that is too long"))?;
            (self.header_got, self.data_got) = (0, 0);
            let bytes = header.data_bytes as usize;
            if self.data.len() > room::KEPT_BYTES.max(bytes) {
                self.data = Vec::new();
            }
            self.announced = Some(header);
        }
        let Some(header) = self.announced else {
            return Ok((None, count));
        };
        let bytes = header.data_bytes as usize;
        let until = bytes.min(self.grown(bytes)?);
        let more = self.rings.read(&mut self.data[self.data_got..until])?;
        self.data_got += more;
        let is_whole = self.data_got == bytes;
        Ok((self.announced.take_if(|_| is_whole), count + more))
    }

    /// Makes room for more of a frame's data, if all is full: twice as much as has come, at most.
    /// Returns how much there is room for.
    fn grown(&mut self, bytes: usize) -> Result<usize, Error> {
        let len = self.data.len();
        if self.data_got == len && len < bytes {
            let more = len.max(FIRST_BYTES).min(bytes - len);
            room::make(&mut self.data, more)?;
            self.data.resize(len + more, 0);
        }
        Ok(self.data.len())
    }
}

impl Adapter {
    /// Lets rings carry the frames of a queue pair that is connected to another process. `rouse`
    /// wakes the other's adapter; `hang_up` says to both that the connection is over.
    pub(crate) fn carry_by(
        &mut self,
        qpn: u32,
        epoch: u32,
        rings: Rings,
        [rouse, hang_up]: [Call; 2],
    ) -> Result<(), Error> {
        let (number, _) = self.remote_pair(qpn, epoch)?;
        self.carried.retain(|one| one.number != number);
        self.carried.push(Carried {
            number,
            qpn,
            epoch,
            rings,
            rouse,
            hang_up,
            header: [0; HEADER_BYTES],
            header_got: 0,
            announced: None,
            data: Vec::new(),
            data_got: 0,
        });
        Ok(())
    }

    /// Takes what has come in by rings. Returns a count that is 0 if nothing has.
    pub(super) fn carry_in(&mut self) -> usize {
        let (mut done, mut all) = (0, take(&mut self.carried));
        all.retain_mut(|one| match self.take_frames(one) {
            Ok(count) => {
                done += count;
                true
            }
            Err(_) => {
                done += 1;
                self.link_down(one.qpn, one.epoch);
                false
            }
        });
        self.carried = all;
        done
    }

    fn take_frames(&mut self, of: &mut Carried) -> Result<usize, Error> {
        let mut taken = 0;
        while taken < TURN_BYTES && self.may_answer(of.number) {
            let (header, count) = of.next()?;
            taken += count;
            if header.or(of.announced).is_some_and(|of| of.is_answer())
                && let Some(outgoing) = self.outgoing.get_mut(&of.number)
            {
                outgoing.note_answer(count);
            }
            match header {
                Some(header) => {
                    let data = &of.data[..header.data_bytes as usize];
                    self.incoming(of.qpn, of.epoch, &header, data)?;
                }
                None if count == 0 => break,
                None => {}
            }
        }
        Ok(taken)
    }

    /// Puts frames that wait into their rings, as far as there is room.
    pub(super) fn carry_out(&mut self) -> usize {
        let (mut done, mut all) = (0, take(&mut self.carried));
        all.retain_mut(|one| match self.give_frames(one) {
            Ok(count) => {
                done += count;
                true
            }
            Err(_) => {
                done += 1;
                self.link_down(one.qpn, one.epoch);
                false
            }
        });
        self.carried = all;
        done
    }

    fn give_frames(&mut self, to: &mut Carried) -> Result<usize, Error> {
        let outgoing = self.outgoing.get_mut(&to.number);
        let outgoing = outgoing.ok_or(Error::Peer("no more"))?;
        let given = outgoing.write(|bytes| to.rings.write(bytes))?;
        if to.rings.show() {
            (to.rouse)();
        }
        Ok(given)
    }

    /// Takes what the other process has sent before its end, of a queue pair whose connection is
    /// over.
    pub(crate) fn drain(&mut self, qpn: u32, epoch: u32) {
        let at = self
            .carried
            .iter()
            .position(|one| one.qpn == qpn && one.epoch == epoch);
        let Some(at) = at else { return };
        let mut last = self.carried.swap_remove(at);
        // What a ring holds, and no more: the other may still write.
        let mut left = last.rings.waiting();
        while left > 0 {
            match self.take_frames(&mut last) {
                Ok(count) if count > 0 => left = left.saturating_sub(count),
                _ => break,
            }
        }
    }

    /// Says to all peers that this adapter is about to sleep, or does not any more.
    pub(crate) fn announce(&self, is_asleep: bool) {
        let all = self.carried.iter();
        all.for_each(|one| one.rings.announce(is_asleep));
        let by_verbs = self.by_verbs.values().filter(|_| is_asleep);
        by_verbs.for_each(|one| one.arm());
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    };

    use super::*;
    use crate::{
        Access, CompletionsSetup, Mapped, Network, PairSetup, Peer, Retries, State,
        rings::RINGS_BYTES,
    };

    fn pair(adapter: &mut Adapter) -> u32 {
        let memory = |bytes| Mapped::allocate(bytes).unwrap();
        let completions = CompletionsSetup {
            entries: memory(64).into(),
            log_entries: 0,
            collapsed: true,
            record: None,
        };
        let completions = adapter.create_completions(completions).unwrap();
        let setup = PairSetup {
            domain: 1,
            send_completions: completions,
            receive_completions: completions,
            ring: memory(4096).into(),
            log_blocks: 6,
            receives: None,
            record: memory(8).into(),
            page: memory(4096),
            retries: Retries::default(),
        };
        adapter.create_pair(setup).unwrap()
    }

    struct Hostile {
        adapter: Adapter,
        qpn: u32,
        rings: Mapped,
        around: Mapped,
        key: u32,
        calls: [Arc<AtomicU32>; 2],
    }

    /// An adapter with a window of 64 bytes amid 192, and rings of which the peer has all bytes.
    fn hostile() -> Hostile {
        let mut adapter = Adapter::new(Network::default());
        let qpn = pair(&mut adapter);
        let around = Mapped::allocate(192).unwrap();
        let window = around.part(64, 64).unwrap();
        let key = adapter.register(1, window, Access::ALL).unwrap();
        let peer = Peer { qpn: 1, epoch: 2 };
        adapter.connect_remote(qpn, peer).unwrap();
        let epoch = adapter.end_of(qpn).unwrap().epoch;
        let rings = Mapped::allocate(RINGS_BYTES).unwrap();
        let calls = [Arc::default(), Arc::default()];
        let counting = calls.clone().map(|count: Arc<AtomicU32>| {
            let call: Call = Box::new(move || {
                count.fetch_add(1, Ordering::Relaxed);
            });
            call
        });
        let mine = Rings::new(rings.clone(), false);
        adapter.carry_by(qpn, epoch, mine, counting).unwrap();
        Hostile {
            adapter,
            qpn,
            rings,
            around,
            key,
            calls,
        }
    }

    /// Bytes, counts and frames at random: nothing but the window is changed, and a count or frame
    /// that cannot be ends the connection, once.
    #[test]
    fn a_peer_that_writes_anything_into_the_rings_reaches_its_window_alone() {
        let mut state = 5_u64;
        let mut random = move || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            state >> 24
        };
        let (mut ended, mut answered) = (0, 0);
        for _ in 0..400 {
            let mut of = hostile();
            let mut theirs = Rings::new(of.rings.clone(), true);
            let address = of.around.address() + 64;
            for step in 0..20 {
                let mut frame = [0; HEADER_BYTES + 32];
                // Writes of 32 bytes near the window, some of them wrong in a byte.
                (frame[0], frame[4], frame[8]) = (1, 32, step);
                let near = address - 32 + random() % 96;
                frame[16..24].copy_from_slice(&near.to_le_bytes());
                frame[24..28].copy_from_slice(&of.key.to_le_bytes());
                frame[HEADER_BYTES..].fill(0xff);
                if random() % 12 == 0 {
                    frame[random() as usize % 48] = random() as u8;
                }
                let _ = theirs.write(&frame);
                theirs.show();
                if random() % 12 == 0 {
                    let word = of.rings.u64(random() as usize % 8 * 64);
                    word.store(random() << (random() % 40), Ordering::Relaxed);
                }
                for now in 0..3 {
                    of.adapter.poll(now);
                }
                let _ = theirs
                    .read(&mut [0; 4 * HEADER_BYTES])
                    .map(|got| answered += got);
            }
            let mut bytes = [0; 192];
            of.around.read(0, &mut bytes);
            bytes[64..128].fill(0);
            assert_eq!(bytes, [0; 192]);
            let hung_up = of.calls[1].load(Ordering::Relaxed);
            assert_eq!(of.adapter.carried.is_empty(), hung_up == 1);
            ended += hung_up;
        }
        assert!(ended > 50 && ended < 400, "{ended}");
        assert!(answered > 100 * HEADER_BYTES, "{answered}");
    }

    /// A peer that takes nothing: what waits for it is bounded, and its requests wait, too.
    #[test]
    fn a_peer_that_reads_no_answers_gets_no_more_than_fit() {
        let mut of = hostile();
        let mut theirs = Rings::new(of.rings.clone(), true);
        let mut frame = [0; HEADER_BYTES];
        // Reads of 64 bytes.
        (frame[0], frame[28]) = (5, 64);
        let address = of.around.address() + 64;
        frame[16..24].copy_from_slice(&address.to_le_bytes());
        frame[24..28].copy_from_slice(&of.key.to_le_bytes());
        let mut taken = 0_u64;
        for _ in 0..1_000_000 {
            frame[8..16].copy_from_slice(&taken.to_le_bytes());
            if theirs.write(&frame).unwrap() < HEADER_BYTES {
                break;
            }
            taken += 1;
            theirs.show();
            of.adapter.poll(0);
        }
        assert!((250_000..400_000).contains(&taken), "{taken}");
        assert_eq!(of.adapter.status(of.qpn).unwrap().state, State::Ready);
    }

    #[test]
    fn what_a_peer_has_sent_before_its_end_is_taken() {
        let mut of = hostile();
        let mut theirs = Rings::new(of.rings.clone(), true);
        let mut frame = [0; HEADER_BYTES + 8];
        (frame[0], frame[4]) = (1, 8);
        let address = of.around.address() + 64;
        frame[16..24].copy_from_slice(&address.to_le_bytes());
        frame[24..28].copy_from_slice(&of.key.to_le_bytes());
        for number in 0..1000_u64 {
            frame[8..16].copy_from_slice(&number.to_le_bytes());
            frame[HEADER_BYTES..].copy_from_slice(&number.to_le_bytes());
            assert_eq!(theirs.write(&frame).unwrap(), frame.len());
        }
        theirs.show();
        let epoch = of.adapter.end_of(of.qpn).unwrap().epoch;
        of.adapter.drain(of.qpn, epoch);
        assert_eq!(of.around.u64(64).load(Ordering::Relaxed), 999);
        assert_eq!(of.calls[1].load(Ordering::Relaxed), 1);
    }
}
