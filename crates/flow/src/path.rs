//! The path of a packet through a balancer, as far as measurements of tables need it: parse, find
//! the connection, choose a backend for a new one, rewrite the destination.

use crate::aging::{Due, Phase, Scan, State, States, Timeouts, Timers, Wheel};
use crate::checksum::Checksum;
use crate::maglev::Maglev;
use crate::traffic::{Frame, Parsed, TCP, parse};
use crate::{BATCH_MAX, FlowKey, FlowTable, NONE, OutOfMemory, Refused, Secret, V4};
use std::net::Ipv4Addr;

/// Sum of the words of an address.
#[inline]
fn words(address: [u8; 4]) -> u64 {
    let address = u64::from(u32::from_be_bytes(address));
    (address >> 16) + (address & 0xffff)
}

/// Replaces the destination of a parsed packet and keeps its checksums right (RFC 1624, equation
/// 3: the complement of the old words and the new words are added).
#[inline]
pub fn rewrite(frame: &mut Frame, parsed: &Parsed, destination: Ipv4Addr) {
    let new = destination.octets();
    let begin = &mut frame.begin;
    let old = [begin[30], begin[31], begin[32], begin[33]];
    begin[30..34].copy_from_slice(&new);
    let change = 2 * 0xffff - words(old) + words(new);
    let changed = |sum: [u8; 2]| {
        let sum = u64::from(!u16::from_be_bytes(sum));
        (!Checksum(sum + change).folded()).to_be_bytes()
    };
    let header = changed([begin[24], begin[25]]);
    begin[24..26].copy_from_slice(&header);
    let is_udp = parsed.key.bytes()[12] != TCP;
    let at = parsed.transport + if is_udp { 6 } else { 16 };
    if let Some(field) = begin.get_mut(at..at + 2) {
        let before = [field[0], field[1]];
        let after = changed(before);
        // UDP: a checksum of 0 means none; one that becomes 0 is written as its other form.
        match (is_udp, before, after) {
            (true, [0, 0], _) => {}
            (true, _, [0, 0]) => field.fill(0xff),
            _ => field.copy_from_slice(&after),
        }
    }
}

/// How connections are found to be over.
pub enum Deletion {
    None,
    /// Milliseconds between scans, and states that each looks at.
    Scan {
        every_ms: u32,
        states: usize,
    },
    /// Milliseconds a tick.
    Wheel {
        tick_ms: u32,
    },
    Lazy,
}

enum Aging {
    None,
    Scan {
        scan: Scan,
        every_ms: u32,
        states: usize,
        next_ms: u64,
    },
    Wheel {
        wheel: Wheel,
        tick_ms: u32,
    },
    Lazy,
}

/// Packets and connections by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub forwarded: u64,
    pub opened: u64,
    pub expired: u64,
    pub not_understood: u64,
    pub table_full: u64,
}

/// Follows connections with one table.
pub struct Tracker<T: FlowTable<V4>> {
    table: T,
    states: States<T::Handle>,
    aging: Aging,
    timeouts: Timeouts,
    maglev: Maglev,
    backends: Vec<Ipv4Addr>,
    chooser: Secret,
    pub counts: Counts,
}

/// Why a tracker cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    #[error(transparent)]
    Memory(#[from] OutOfMemory),
    #[error("no backend, or more than Maglev's table has entries")]
    Backends,
}

/// Longest turn of the wheel; a longer time passes in several turns.
const TURN_MS_MAX: u32 = 8192;

impl<T: FlowTable<V4>> Tracker<T> {
    /// Makes a tracker for the connections that `table` holds.
    pub fn new(
        table: T,
        backends: &[Ipv4Addr],
        timeouts: Timeouts,
        deletion: &Deletion,
        chooser: Secret,
    ) -> Result<Self, Unusable> {
        let names: Vec<_> = backends
            .iter()
            .map(|one| (one.to_bits().into(), 1))
            .collect();
        let maglev = Maglev::new(&names).ok_or(Unusable::Backends)?;
        // One more than entries: a new connection gets its state before that of the one that it
        // replaces is given back.
        let mut states = States::new(table.capacity().saturating_add(1))?;
        states.populate();
        let aging = match *deletion {
            Deletion::None => Aging::None,
            Deletion::Scan { every_ms, states } => Aging::Scan {
                scan: Scan::default(),
                every_ms,
                states,
                next_ms: 0,
            },
            Deletion::Wheel { tick_ms } => {
                let ticks = TURN_MS_MAX.div_ceil(tick_ms.max(1)) as usize + 2;
                let mut wheel = Wheel::new(states.len(), ticks, 0)?;
                wheel.populate();
                Aging::Wheel {
                    wheel,
                    tick_ms: tick_ms.max(1),
                }
            }
            Deletion::Lazy => Aging::Lazy,
        };
        let (backends, counts) = (backends.to_vec(), Counts::default());
        Ok(Tracker {
            table,
            states,
            aging,
            timeouts,
            maglev,
            backends,
            chooser,
            counts,
        })
    }

    pub fn table(&self) -> &T {
        &self.table
    }

    /// Bytes of table, states and timers.
    pub fn bytes(&self) -> usize {
        let aging = if let Aging::Wheel { wheel, .. } = &self.aging {
            wheel.bytes()
        } else {
            0
        };
        self.table.bytes() + self.states.bytes() + aging
    }

    /// Number of connections that have a state.
    pub fn len(&self) -> usize {
        self.states.used()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sends up to [`BATCH_MAX`] frames on: rewrites those that can be, and counts the others.
    pub fn forward(&mut self, frames: &mut [Frame], now_ms: u64) {
        let none = Parsed {
            key: V4::from_bytes([0; 13]),
            tcp_flags: 0,
            transport: 0,
        };
        let mut parsed = [none; BATCH_MAX];
        let mut keys = [none.key; BATCH_MAX];
        let mut places = [0usize; BATCH_MAX];
        let mut count = 0;
        let end = frames.len().min(BATCH_MAX);
        for (place, frame) in frames[..end].iter().enumerate() {
            match parse(&frame.begin, frame.bytes.into()) {
                Some(fields) => {
                    (parsed[count], keys[count], places[count]) = (fields, fields.key, place);
                    count += 1;
                }
                None => self.counts.not_understood += 1,
            }
        }
        let mut values = [NONE; BATCH_MAX];
        self.table.get_batch(&keys[..count], &mut values[..count]);
        for value in &values[..count] {
            self.states.prefetch(*value);
        }
        for i in 0..count {
            let Some(backend) = self.follow(&parsed[i], values[i], now_ms) else {
                self.counts.table_full += 1;
                continue;
            };
            if let Some(destination) = self.backends.get(usize::from(backend)) {
                rewrite(&mut frames[places[i]], &parsed[i], *destination);
                self.counts.forwarded += 1;
            }
        }
    }

    /// Notes a packet of a connection and returns its backend. Opens the connection if there is
    /// none; `None` if there is no room for it.
    #[inline]
    fn follow(&mut self, packet: &Parsed, value: u32, now_ms: u64) -> Option<u16> {
        if value == NONE {
            return self.open(packet, now_ms);
        }
        let state = &mut self.states[value];
        if matches!(self.aging, Aging::Lazy) && state.left_ms(now_ms as u32, &self.timeouts) == 0 {
            // Over, and nobody noticed: a new connection with its key.
            state.backend = self.maglev.choose(packet.key.keyed_hash(&self.chooser));
            state.phase = Phase::first(packet.key.bytes()[12], packet.tcp_flags);
            self.counts.opened += 1;
            self.counts.expired += 1;
        }
        state.seen_ms = now_ms as u32;
        let phase = state.phase.after(packet.tcp_flags);
        let backend = state.backend;
        if phase != state.phase {
            let (before, after) = (self.timeouts.of(state.phase), self.timeouts.of(phase));
            state.phase = phase;
            // A longer time is found out when the timer fires; a shorter one must not wait.
            if let Aging::Wheel { wheel, tick_ms } = &mut self.aging
                && after < before
            {
                wheel.set(
                    value,
                    now_ms / u64::from(*tick_ms),
                    u64::from(after / *tick_ms) + 1,
                );
            }
        }
        Some(backend)
    }

    fn open(&mut self, packet: &Parsed, now_ms: u64) -> Option<u16> {
        let index = self.states.next()?;
        let inserted = match &self.aging {
            Aging::Lazy => {
                let over = |value| self.states[value].left_ms(now_ms as u32, &self.timeouts) == 0;
                self.table.insert_over(packet.key, index, over)
            }
            _ => self.table.insert(packet.key, index).map(|()| None),
        };
        let replaced = match inserted {
            Ok(replaced) => replaced,
            // An earlier packet of this batch has opened it.
            Err(Refused::Present(value)) => return self.follow(packet, value, now_ms),
            Err(Refused::Full) => return None,
        };
        let phase = Phase::first(packet.key.bytes()[12], packet.tcp_flags);
        let backend = self.maglev.choose(packet.key.keyed_hash(&self.chooser));
        let handle = self.table.handle(&packet.key);
        let state = State {
            handle,
            seen_ms: now_ms as u32,
            backend,
            phase,
            used: true,
        };
        self.states.take(state);
        if let Some(replaced) = replaced {
            self.states.give_back(replaced);
            self.counts.expired += 1;
        }
        if let Aging::Wheel { wheel, tick_ms } = &mut self.aging {
            let after = u64::from(self.timeouts.of(phase) / *tick_ms) + 1;
            wheel.set(index, now_ms / u64::from(*tick_ms), after);
        }
        self.counts.opened += 1;
        Some(backend)
    }

    /// Deletes connections that are over: for a wheel, about `budget` timers at most. Returns
    /// the number of connections that were looked at.
    pub fn age(&mut self, now_ms: u64, budget: usize) -> usize {
        let mut over = Over {
            table: &mut self.table,
            states: &mut self.states,
            timeouts: &self.timeouts,
            now_ms: now_ms as u32,
            tick_ms: 1,
            expired: 0,
        };
        let looked_at = match &mut self.aging {
            Aging::None | Aging::Lazy => 0,
            Aging::Wheel { wheel, tick_ms } => {
                over.tick_ms = *tick_ms;
                wheel.advance(now_ms / u64::from(*tick_ms), budget, &mut over)
            }
            Aging::Scan { next_ms, .. } if now_ms < *next_ms => 0,
            Aging::Scan {
                scan,
                every_ms,
                states: count,
                next_ms,
            } => {
                *next_ms = now_ms + u64::from(*every_ms);
                let (table, expired) = (&mut *over.table, &mut over.expired);
                scan.step(
                    over.states,
                    *count,
                    over.now_ms,
                    over.timeouts,
                    |states, index| {
                        table.remove_by(states[index].handle, index);
                        states.give_back(index);
                        *expired += 1;
                    },
                );
                *count
            }
        };
        self.counts.expired += over.expired;
        looked_at
    }
}

/// Deletes the connections whose timers fired, unless they have been used since.
struct Over<'a, T: FlowTable<V4>> {
    table: &'a mut T,
    states: &'a mut States<T::Handle>,
    timeouts: &'a Timeouts,
    now_ms: u32,
    tick_ms: u32,
    expired: u64,
}

impl<T: FlowTable<V4>> Timers for Over<'_, T> {
    fn prepare(&mut self, entry: u32) {
        self.states.prefetch(entry);
    }

    fn due(&mut self, entries: &[u32], answers: &mut [Due]) {
        for (entry, answer) in entries.iter().zip(&mut *answers) {
            let state = &self.states[*entry];
            match state.left_ms(self.now_ms, self.timeouts) {
                0 => self.table.prefetch_handle(state.handle),
                left => *answer = Due::Again(u64::from(left / self.tick_ms) + 1),
            }
        }
        for (entry, _) in entries
            .iter()
            .zip(answers)
            .filter(|(_, answer)| **answer == Due::Done)
        {
            self.table.remove_by(self.states[*entry].handle, *entry);
            self.states.give_back(*entry);
            self.expired += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aging::{FIN, RST, SYN};
    use crate::tables::Cuckoo;
    use crate::traffic::{Packet, Profile, Traffic};
    use crate::{Batched, NONE};
    use std::collections::HashMap;

    fn backends() -> Vec<Ipv4Addr> {
        (1..=10).map(|i| Ipv4Addr::new(203, 0, 113, i)).collect()
    }

    fn tracker<T: FlowTable<V4>>(flows: usize, deletion: &Deletion, ms: Timeouts) -> Tracker<T> {
        let table = T::with_capacity(flows, Secret::from_seed(1)).expect("memory");
        Tracker::new(table, &backends(), ms, deletion, Secret::from_seed(2)).expect("a tracker")
    }

    /// Checks both checksums of a frame of 60 bytes by adding everything up.
    fn assert_sums(frame: &Frame) {
        let begin = &frame.begin;
        assert_eq!(Checksum::of(&begin[14..34]).finish(), [0, 0]);
        let pseudo = Checksum::of(&begin[26..34])
            .and(begin[23].into())
            .and(frame.bytes - 34);
        assert_eq!(pseudo.and_bytes(&begin[34..60]).finish(), [0, 0]);
    }

    /// All packets of a connection go to one backend, whatever happens around, with checksums
    /// that are right; and those of many connections to all.
    fn keeps_backends<T: FlowTable<V4>>(deletion: &Deletion) {
        let mut tracker = tracker::<T>(40_000, deletion, Timeouts::all(1 << 30));
        let mut chosen = HashMap::new();
        let count = if cfg!(miri) { 640 } else { 64_000 };
        let packets: Vec<_> = Traffic::new(Profile::CAMPUS, 2, 1).take(count).collect();
        for (i, packets) in packets.chunks(BATCH_MAX).enumerate() {
            let packets = packets.iter().map(|packet| Packet {
                bytes: 60,
                ..*packet
            });
            let mut frames: Vec<_> = packets.clone().map(|packet| Frame::new(&packet)).collect();
            tracker.forward(&mut frames, i as u64);
            tracker.age(i as u64, usize::MAX);
            for (packet, frame) in packets.zip(&frames) {
                assert_sums(frame);
                let destination = frame.begin[30..34].to_vec();
                let backend = chosen
                    .entry(packet.key)
                    .or_insert_with(|| destination.clone());
                assert_eq!(*backend, destination);
            }
        }
        let different: std::collections::HashSet<_> = chosen.values().collect();
        assert_eq!(different.len(), backends().len());
        let (forwarded, opened) = (packets.len() as u64, chosen.len() as u64);
        assert_eq!(
            tracker.counts,
            Counts {
                forwarded,
                opened,
                ..Counts::default()
            }
        );
        assert_eq!(
            (tracker.len(), tracker.table().len()),
            (chosen.len(), chosen.len())
        );
    }

    #[test]
    fn connections_keep_their_backends() {
        keeps_backends::<Batched<V4>>(&Deletion::Wheel { tick_ms: 1 });
        keeps_backends::<Batched<V4>>(&Deletion::Lazy);
        keeps_backends::<Cuckoo<V4>>(&Deletion::Scan {
            every_ms: 1,
            states: 100,
        });
        keeps_backends::<crate::Growing<V4>>(&Deletion::None);
    }

    /// Traffic that was written as a capture and read again opens the same connections, in the
    /// same order, as the traffic itself.
    #[test]
    fn a_capture_replays_as_it_was() {
        use crate::traffic::pcap::{Reader, Writer};
        let count = if cfg!(miri) { 200 } else { 20_000 };
        let packets: Vec<_> = Traffic::new(Profile::CAIDA, 1, 3).take(count).collect();
        let mut live: Tracker<Batched<V4>> = tracker(40_000, &Deletion::None, Timeouts::all(5000));
        let mut replayed: Tracker<Batched<V4>> =
            tracker(40_000, &Deletion::None, Timeouts::all(5000));
        let mut capture = Writer::new(Vec::new()).expect("a vector");
        for (ms, packet) in packets.iter().enumerate() {
            let frame = Frame::new(packet);
            let time_ns = ms as u64 * 1_000_000;
            let written = capture.write(time_ns, frame.bytes.into(), &frame.begin);
            written.expect("a vector");
            live.forward(&mut [frame], ms as u64);
        }
        let file = capture.finish().expect("a vector");
        let mut reader = Reader::new(&file[..]).expect("a capture");
        while let Some(record) = reader.read().expect("a record") {
            let mut begin = [0; 64];
            let there = record.bytes.len().min(begin.len());
            begin[..there].copy_from_slice(&record.bytes[..there]);
            let bytes = record.length as u16;
            replayed.forward(&mut [Frame { begin, bytes }], record.time_ns / 1_000_000);
        }
        assert_eq!(live.counts.forwarded, count as u64);
        assert_eq!(replayed.counts, live.counts);
        for packet in &packets {
            assert_eq!(replayed.table.get(&packet.key), live.table.get(&packet.key));
        }
    }

    fn packet(port: u16, tcp_flags: u8) -> Frame {
        let client = (Ipv4Addr::new(192, 0, 2, 1), port);
        let key = V4::new(client, (Ipv4Addr::new(198, 18, 0, 1), 80), TCP);
        Frame::new(&Packet {
            key,
            bytes: 60,
            tcp_flags,
        })
    }

    /// A connection is deleted when its time is over, not before, and a packet extends it.
    fn deletes_in_time<T: FlowTable<V4>>(deletion: &Deletion, late_ms: u64) {
        let mut tracker = tracker::<T>(1000, deletion, Timeouts::all(5000));
        tracker.forward(&mut [packet(1, SYN), packet(2, SYN)], 0);
        for ms in 0..8000 {
            if ms == 3000 {
                tracker.forward(&mut [packet(2, 0)], ms);
            }
            tracker.age(ms, 100);
            let expected = usize::from(ms < 5000) + 1;
            let least = usize::from(ms < 5000 + late_ms) + 1;
            assert!(
                (expected..=least).contains(&tracker.len()),
                "{ms} ms: {}",
                tracker.len()
            );
        }
        for ms in 8000..=8000 + late_ms {
            tracker.age(ms, 100);
        }
        assert_eq!(
            (tracker.len(), tracker.table().len(), tracker.counts.expired),
            (0, 0, 2)
        );
    }

    #[test]
    fn connections_end_in_time() {
        for tick_ms in [1, 10, 100] {
            let late_ms = u64::from(tick_ms) * 3;
            deletes_in_time::<Batched<V4>>(&Deletion::Wheel { tick_ms }, late_ms);
            deletes_in_time::<Cuckoo<V4>>(&Deletion::Wheel { tick_ms }, late_ms);
        }
        deletes_in_time::<Batched<V4>>(
            &Deletion::Scan {
                every_ms: 10,
                states: 1000,
            },
            30,
        );
    }

    /// A reset shortens the time at once, a timer longer than a turn of the wheel lasts.
    #[test]
    fn each_phase_has_its_time() {
        let mut timeouts = Timeouts::LINUX;
        timeouts.set(Phase::Closed, 100);
        let mut tracker: Tracker<Batched<V4>> =
            tracker(1000, &Deletion::Wheel { tick_ms: 10 }, timeouts);
        for port in 1..=3 {
            tracker.forward(&mut [packet(port, SYN)], 0);
            tracker.forward(&mut [packet(port, crate::aging::ACK)], 1);
        }
        tracker.forward(&mut [packet(1, RST), packet(2, FIN)], 2);
        let lengths = [
            (50, 3),
            (200, 2),
            (119_000, 2),
            (121_000, 1),
            (1_000_000, 1),
        ];
        for (ms, expected) in lengths {
            tracker.age(ms, usize::MAX);
            assert_eq!(tracker.len(), expected, "at {ms} ms");
        }
    }

    /// Lazily deleted connections make room for new ones, and one that is over starts anew.
    #[test]
    fn lazy_deletion_replaces_what_is_over() {
        let mut tracker: Tracker<Batched<V4>> = tracker(700, &Deletion::Lazy, Timeouts::all(5000));
        let open = |tracker: &mut Tracker<Batched<V4>>, ports: std::ops::Range<u16>, ms| {
            ports.for_each(|port| tracker.forward(&mut [packet(port, SYN)], ms));
        };
        open(&mut tracker, 0..640, 0);
        assert_eq!(tracker.counts.table_full, 0);
        open(&mut tracker, 1000..3000, 1000);
        let full = tracker.counts.table_full;
        assert!(full >= 1900, "{full} refused");
        open(&mut tracker, 4000..4300, 20_000);
        assert_eq!(tracker.counts.table_full, full, "what is over makes room");
        assert!(tracker.counts.expired > 200);
        let opened = tracker.counts.opened;
        open(&mut tracker, 4000..4300, 40_000);
        assert_eq!(tracker.counts.opened, opened + 300);
    }

    /// Table, state and timer of an IPv4 connection take 48 bytes, at nine tenths of the capacity.
    #[cfg(not(miri))]
    #[test]
    fn a_connection_takes_48_bytes() {
        let deletion = Deletion::Wheel { tick_ms: 1 };
        let tracker: Tracker<Batched<V4>> = tracker(1 << 22, &deletion, Timeouts::LINUX);
        assert!(tracker.bytes() * 10 <= tracker.table().capacity() * 9 * 48);
    }

    #[test]
    fn udp_without_a_checksum_stays_without() {
        let client = (Ipv4Addr::new(192, 0, 2, 1), 53);
        let key = V4::new(
            client,
            (Ipv4Addr::new(198, 18, 0, 1), 53),
            crate::traffic::UDP,
        );
        let mut frame = Frame::new(&Packet {
            key,
            bytes: 60,
            tcp_flags: 0,
        });
        let parsed = parse(&frame.begin, 60).expect("a packet");
        let mut with = frame;
        rewrite(&mut with, &parsed, Ipv4Addr::new(203, 0, 113, 9));
        assert_sums(&with);
        frame.begin[40..42].fill(0);
        rewrite(&mut frame, &parsed, Ipv4Addr::new(203, 0, 113, 9));
        assert_eq!(frame.begin[40..42], [0, 0]);
    }

    /// Frames that are no packets of connections pass through untouched and are counted.
    #[test]
    fn frames_that_are_not_understood_stay_as_they_are() {
        let mut tracker: Tracker<Batched<V4>> = tracker(100, &Deletion::None, Timeouts::all(5000));
        let mut frames = [packet(1, SYN), packet(2, SYN), packet(3, SYN)];
        frames[1].begin[23] = 1;
        let before = frames[1].begin;
        tracker.forward(&mut frames, 0);
        assert_eq!(frames[1].begin, before);
        let counts = tracker.counts;
        assert_eq!(
            (counts.forwarded, counts.not_understood, counts.opened),
            (2, 1, 2)
        );
        assert_ne!(NONE, 0);
    }
}
