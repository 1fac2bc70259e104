//! Computes when a message arrives over an emulated network. Does no I/O and reads no clock.
//!
//! ```text
//!    sent      the wire is free            all of it is on the wire         handed over
//!     │── waits ──►│── size / bandwidth ────►│── half of the round trip ──►│── jitter ──►│
//!                   next message waits ──────►│
//! ```
//!
//! Each direction has a [`Wire`] of its own. Messages arrive in the order in which they were sent:
//! one that jitter delays also delays those after it. Of two networks, the one with a longer round
//! trip, less bandwidth, more jitter or a longer tail brings no message earlier, if the same
//! messages are sent at the same times: a message's random delay depends only on the seed and on
//! the number of messages before it.

use outboard_wire::network::Network;

/// Nanoseconds with 32 binary places, so that a byte at 10 Tbps still counts for what it is.
type Ticks = u128;
const PLACES: u32 = 32;

/// One end of a link. Each end draws its delays independently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    Client,
    Server,
}

/// One direction of a network, at the end that sends.
pub struct Wire {
    way: Ticks,
    /// Time on the wire of one byte.
    byte: u64,
    free_at: Ticks,
    last_arrival_ns: u64,
    chance: Option<Chance>,
}

impl Wire {
    pub fn new(network: &Network, end: End) -> Wire {
        let per_byte = |bps: u64| (8_000_000_000u128 << PLACES).div_ceil(bps.into());
        let byte = network
            .bandwidth()
            .map_or(0, |bandwidth| per_byte(bandwidth.bps()));
        Wire {
            way: (network.rtt().as_nanos() << PLACES) / 2,
            byte: u64::try_from(byte).unwrap_or(u64::MAX),
            free_at: 0,
            last_arrival_ns: 0,
            chance: Chance::new(network, end),
        }
    }

    /// Uses another network for all later messages. Earlier messages stay ahead of them.
    pub fn change(&mut self, network: &Network, end: End) {
        let before = std::mem::replace(self, Wire::new(network, end));
        self.free_at = before.free_at;
        self.last_arrival_ns = before.last_arrival_ns;
    }

    /// Returns when a message of `bytes` arrives that is sent at `now_ns`. Called once per message,
    /// in order; no result is earlier than the one before.
    #[inline]
    pub fn arrival_ns(&mut self, now_ns: u64, bytes: usize) -> u64 {
        let begins = (Ticks::from(now_ns) << PLACES).max(self.free_at);
        self.free_at = begins + bytes as Ticks * Ticks::from(self.byte);
        // Rounded up: late by less than a nanosecond, never early.
        let arrives = (self.free_at + self.way + ((1 << PLACES) - 1)) >> PLACES;
        let mut arrival_ns = u64::try_from(arrives).unwrap_or(u64::MAX);
        if let Some(chance) = &mut self.chance {
            arrival_ns = arrival_ns.saturating_add(chance.extra_ns());
        }
        self.last_arrival_ns = arrival_ns.max(self.last_arrival_ns);
        self.last_arrival_ns
    }
}

/// Draws each message's jitter and tail.
struct Chance {
    state: u64,
    jitter_ns: f64,
    tail_ns: u64,
    /// A draw below this many of 2^32 makes a message one of the tail.
    tail_below: u64,
}

impl Chance {
    fn new(network: &Network, end: End) -> Option<Chance> {
        if network.jitter().is_zero() && network.tail().is_none() {
            return None;
        }
        let (tail_ns, ppm) = network
            .tail()
            .map_or((0, 0), |tail| (tail.extra().as_nanos(), tail.ppm()));
        let mut chance = Chance {
            state: network.seed(),
            jitter_ns: network.jitter().as_nanos() as f64,
            tail_ns: u64::try_from(tail_ns).unwrap_or(u64::MAX),
            tail_below: (u64::from(ppm) << 32) / 1_000_000,
        };
        // The two ends continue at different positions of the sequence.
        chance.state = chance.draw() ^ end as u64;
        chance.draw();
        Some(chance)
    }

    /// Draws twice for every message, needed or not, so that later draws do not depend on the
    /// network.
    fn extra_ns(&mut self) -> u64 {
        let (jitter, tail) = (self.draw(), self.draw());
        // 53 bits of a number above 0, up to 1: the distribution ends at 36.7 times its mean.
        let share = ((jitter >> 11) + 1) as f64 / (1u64 << 53) as f64;
        let extra_ns = (-share.ln() * self.jitter_ns).round() as u64;
        match tail >> 32 < self.tail_below {
            true => extra_ns + self.tail_ns,
            false => extra_ns,
        }
    }

    /// splitmix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014.
    fn draw(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wire(network: &str) -> Wire {
        Wire::new(&network.parse().unwrap(), End::Client)
    }

    fn numbers(seed: u64) -> impl FnMut(u64) -> u64 {
        let mut chance = Chance {
            state: seed,
            jitter_ns: 0.0,
            tail_ns: 0,
            tail_below: 0,
        };
        move |below| chance.draw() % below
    }

    #[test]
    fn another_network_overtakes_nothing() {
        let mut wire = wire("rtt=2us,bandwidth=8Gbps");
        // A microsecond on the wire, a microsecond on the way.
        assert_eq!(wire.arrival_ns(0, 1_000), 2_000);
        wire.change(&Network::default(), End::Client);
        // The wire is free at 1,000, and no message overtakes another.
        assert_eq!(wire.arrival_ns(500, 1_000), 2_000);
        assert_eq!(wire.arrival_ns(3_000, 1_000), 3_000);
        wire.change(&"rtt=10us".parse().unwrap(), End::Client);
        assert_eq!(wire.arrival_ns(4_000, 1), 9_000);
    }

    #[test]
    fn nothing_is_delayed_by_no_network() {
        let mut wire = Wire::new(&Network::default(), End::Client);
        for now in [0, 5, 5, 1_000_000_007] {
            assert_eq!(wire.arrival_ns(now, 1 << 20), now);
        }
    }

    #[test]
    fn half_a_round_trip_is_what_a_message_takes() {
        let mut wire = wire("rtt=10us");
        assert_eq!(wire.arrival_ns(1_000, 1), 6_000);
        assert_eq!(wire.arrival_ns(1_001, 1 << 20), 6_001);
        // Half of an odd one is rounded up: never early.
        let mut odd = super::Wire::new(&"rtt=3ns".parse().unwrap(), End::Server);
        assert_eq!(odd.arrival_ns(100, 1), 102);
    }

    /// 1 Gbps: 8 ns a byte.
    #[test]
    fn a_message_waits_for_those_before_it() {
        let mut wire = wire("rtt=10us,bandwidth=1Gbps");
        // 100 bytes: 800 ns on the wire, which is free at 1,800.
        assert_eq!(wire.arrival_ns(1_000, 100), 6_800);
        // Sent at the same time: on the wire from 1,800 to 2,600.
        assert_eq!(wire.arrival_ns(1_000, 100), 7_600);
        // Sent when half of that has gone: until 3,400.
        assert_eq!(wire.arrival_ns(2_200, 100), 8_400);
        // Sent when the wire has been free for long.
        assert_eq!(wire.arrival_ns(50_000, 1_000), 63_000);
        // The other direction has a wire of its own.
        let mut back = super::Wire::new(&"rtt=10us,bandwidth=1Gbps".parse().unwrap(), End::Server);
        assert_eq!(back.arrival_ns(50_000, 1_000), 63_000);
    }

    /// Parts of a nanosecond are not lost: a million messages of 64 bytes, 2.56 ns each at 200
    /// Gbps.
    #[test]
    fn small_messages_add_up() {
        let mut wire = wire("bandwidth=200Gbps");
        let last = (0..1_000_000).map(|_| wire.arrival_ns(0, 64)).last();
        assert!((2_560_000..=2_560_001).contains(&last.unwrap()), "{last:?}");
        // 0.0008 ns a byte.
        let mut fastest = super::Wire::new(&"bandwidth=10Tbps".parse().unwrap(), End::Client);
        let last = (0..1_000_000).map(|_| fastest.arrival_ns(0, 1_000)).last();
        assert!((800_000..=800_001).contains(&last.unwrap()), "{last:?}");
    }

    #[test]
    fn a_machine_may_have_been_up_for_ever() {
        let mut wire = wire("rtt=10s,bandwidth=1Mbps,jitter=10s,tail=10s@100%");
        let start = u64::MAX / 2;
        let mut last = start;
        for _ in 0..1_000 {
            let arrival = wire.arrival_ns(start, 1 << 20);
            assert!(arrival >= last);
            last = arrival;
        }
        assert_eq!(wire.arrival_ns(u64::MAX, 1), u64::MAX);
    }

    #[test]
    fn jitter_has_its_mean_and_is_the_same_for_the_same_seed() {
        const COUNT: u64 = 100_000;
        let delays = |network: &str, end| {
            let mut wire = super::Wire::new(&network.parse().unwrap(), end);
            // So far apart that none delays another.
            let sent = (1..=COUNT).map(move |number| number * 1_000_000_000);
            sent.map(move |now| wire.arrival_ns(now, 1) - now)
                .collect::<Vec<u64>>()
        };
        let ours = delays("rtt=10us,jitter=2us", End::Client);
        let mean = ours.iter().sum::<u64>() as f64 / COUNT as f64;
        // The mean of 100,000 has a standard deviation of 6.3 ns.
        assert!((mean - 7_000.0).abs() < 32.0, "{mean}");
        // Of an exponential distribution 1/e are beyond the mean.
        let beyond = ours.iter().filter(|delay| **delay > 7_000).count() as f64 / COUNT as f64;
        assert!((beyond - 0.367_9).abs() < 0.008, "{beyond}");
        assert!(ours.iter().all(|delay| (5_000..79_000).contains(delay)));
        assert_eq!(ours, delays("rtt=10us,jitter=2us", End::Client));
        assert_ne!(ours, delays("rtt=10us,jitter=2us", End::Server));
        assert_ne!(ours, delays("rtt=10us,jitter=2us,seed=1", End::Client));
        // The round trip does not change the draws.
        let farther = delays("rtt=20us,jitter=2us", End::Client);
        assert!(ours.iter().zip(&farther).all(|(a, b)| a + 5_000 == *b));
    }

    #[test]
    fn so_many_messages_are_in_the_tail() {
        let mut wire = wire("rtt=10us,tail=50us@1%");
        let late = (1..=100_000u64)
            .map(|number| wire.arrival_ns(number * 1_000_000, 1) - number * 1_000_000)
            .filter(|delay| {
                assert!([5_000, 55_000].contains(delay), "{delay}");
                *delay == 55_000
            })
            .count();
        // 1,000 with a standard deviation of 31.5.
        assert!((840..1_160).contains(&late), "{late}");
        let mut all = super::Wire::new(&"rtt=10us,tail=50us@100%".parse().unwrap(), End::Client);
        assert!((0..1_000).all(|now| all.arrival_ns(now * 1_000, 1) >= now * 1_000 + 55_000));
    }

    /// Messages of random sizes at random times, over networks of which one is worse in one or
    /// several ways.
    #[test]
    fn a_worse_network_brings_nothing_earlier() {
        for seed in 0..400 {
            let mut random = numbers(seed);
            let mut better = [
                1 + random(1_000_000),
                1_000_000 + random(400_000_000_000),
                1 + random(50_000),
                1 + random(100_000),
            ];
            let mut worse = better;
            for (index, value) in worse.iter_mut().enumerate() {
                // Sometimes by very little.
                let by = [0, 1, random(1_000_000)][random(3) as usize];
                *value = match index {
                    1 => (*value - by.min(*value)).max(1_000_000),
                    _ => *value + by,
                };
            }
            if random(4) == 0 {
                (better[2], worse[2]) = (0, 0);
            }
            let build = |[rtt, bps, jitter, tail]: [u64; 4]| {
                let jitter = match jitter {
                    0 => String::new(),
                    ns => format!(",jitter={ns}ns"),
                };
                wire(&format!(
                    "rtt={rtt}ns,bandwidth={}Mbps{jitter},tail={tail}ns@10%",
                    bps as f64 / 1e6
                ))
            };
            let (mut better, mut worse) = (build(better), build(worse));
            let (mut now, mut last) = (0, 0);
            for _ in 0..500 {
                now += random(3) * random(2_000);
                let bytes = 1 + random(5_000) as usize;
                let (early, late) = (better.arrival_ns(now, bytes), worse.arrival_ns(now, bytes));
                assert!(early >= now);
                assert!(late >= early, "seed {seed}: {late} before {early}");
                assert!(late >= last, "out of order");
                last = late;
            }
        }
    }
}
