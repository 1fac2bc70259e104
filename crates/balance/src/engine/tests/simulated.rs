//! A network in memory: clients, a balancer and backends, with loss, delay, reordering and
//! duplication by a seed. Transfers end whole, whatever happens to backends and the balancer.

use super::*;
use outboard_flow::random::Random;
use std::collections::{BTreeMap, HashMap};

const VIP: &str = "192.0.2.10:80";
const BACKENDS: [&str; 4] = [
    "203.0.113.1:8080",
    "203.0.113.2:8080",
    "203.0.113.3:8080",
    "203.0.113.4:8080",
];
/// Networks that are tried; `OUTBOARD_SIMULATED_SEEDS` sets another number.
const SEEDS: u64 = 40;
const CLIENTS: usize = 12;
const SEGMENT_BYTES: usize = 100;
const WINDOW_SEGMENTS: usize = 6;
const AGAIN_MS: u64 = 300;
/// Time within which all is to be over.
const END_MS: u64 = 100_000;

const FIN: u8 = 1;
const SYN: u8 = 2;
const ACK: u8 = 16;

/// Rates and times of the damage that a network does.
#[derive(Clone, Copy, Debug)]
struct Faults {
    loss_percent: u64,
    twice_percent: u64,
    delay_ms: u64,
    jitter_ms: u64,
}

impl Faults {
    fn new(random: &mut Random) -> Faults {
        Faults {
            loss_percent: random.below(21),
            twice_percent: random.below(11),
            delay_ms: random.below(30),
            jitter_ms: random.below(80) + 1,
        }
    }
}

/// A segment as a host reads it.
struct Segment {
    from: String,
    to: String,
    flags: u8,
    sequence: u32,
    acknowledged: u32,
    data: Vec<u8>,
}

impl Segment {
    /// Reads a packet, and checks both sums over all of its bytes.
    fn read(packet: &[u8]) -> Segment {
        assert_eq!(build::sum(&[&packet[..20]]), 0xffff, "the header's sum");
        let length = (packet.len() - 20) as u16;
        let pseudo = [&packet[12..20], &[0, TCP], &length.to_be_bytes()].concat();
        assert_eq!(build::sum(&[&pseudo, &packet[20..]]), 0xffff, "TCP's sum");
        let word = |at: usize| u32::from_be_bytes(packet[at..at + 4].try_into().expect("four"));
        let (from, to) = build::ends(packet);
        Segment {
            from,
            to,
            flags: packet[33],
            sequence: word(24),
            acknowledged: word(28),
            data: packet[40..].to_vec(),
        }
    }
}

/// One end of a connection: sends again what is not acknowledged, takes data in order only.
struct End {
    own: String,
    other: String,
    /// Sequence number of the SYN.
    first: u32,
    /// Number of the other's next byte, if its SYN has come.
    next: Option<u32>,
    data: Vec<u8>,
    /// Bytes acknowledged, the SYN as the first, and the FIN as the last.
    acknowledged: usize,
    received: Vec<u8>,
    /// The end follows the data.
    is_closing: bool,
    is_other_closed: bool,
    again_ms: u64,
}

impl End {
    fn new(own: &str, other: &str, first: u32, next: Option<u32>) -> End {
        End {
            own: own.into(),
            other: other.into(),
            first,
            next,
            data: Vec::new(),
            acknowledged: 0,
            received: Vec::new(),
            is_closing: false,
            is_other_closed: false,
            again_ms: 0,
        }
    }

    /// Returns whether all was sent and received.
    fn is_over(&self) -> bool {
        self.is_other_closed && self.is_closing && self.acknowledged == self.data.len() + 2
    }

    fn packet(&self, at: usize, flags: u8, data: &[u8]) -> Vec<u8> {
        let names: String = [(SYN, 'S'), (FIN, 'F'), (ACK, 'A')]
            .iter()
            .filter(|(flag, _)| flags & flag != 0)
            .map(|(_, name)| name)
            .collect();
        Build::tcp(&self.own, &self.other)
            .flags(&names)
            .numbers(self.first.wrapping_add(at as u32), self.next.unwrap_or(0))
            .data(data)
            .bytes()
    }

    /// Sends all that may be under way.
    fn send(&mut self, now_ms: u64, out: &mut Vec<Vec<u8>>) {
        self.again_ms = now_ms + AGAIN_MS;
        let ack = if self.next.is_some() { ACK } else { 0 };
        if self.acknowledged == 0 {
            out.push(self.packet(0, SYN | ack, &[]));
            return;
        }
        let mut at = self.acknowledged - 1;
        for _ in 0..WINDOW_SEGMENTS {
            let end = self.data.len().min(at + SEGMENT_BYTES);
            let is_last = self.is_closing && end == self.data.len();
            if at > end || at == end && !is_last {
                return;
            }
            let fin = if is_last { FIN } else { 0 };
            out.push(self.packet(at + 1, ACK | fin, &self.data[at..end]));
            if is_last {
                return;
            }
            at = end;
        }
    }

    /// Takes a segment and answers it.
    fn receive(&mut self, segment: &Segment, now_ms: u64, out: &mut Vec<Vec<u8>>) {
        if segment.flags & SYN != 0 && self.next.is_none() {
            self.next = Some(segment.sequence.wrapping_add(1));
        }
        let mut has_news = false;
        if segment.flags & ACK != 0 {
            let sent = segment.acknowledged.wrapping_sub(self.first) as usize;
            let most = self.data.len() + 1 + usize::from(self.is_closing);
            if sent > self.acknowledged && sent <= most {
                self.acknowledged = sent;
                has_news = true;
            }
        }
        if self.next == Some(segment.sequence) && !self.is_other_closed {
            self.received.extend_from_slice(&segment.data);
            let fin = segment.flags & FIN != 0;
            self.is_other_closed |= fin;
            let count = segment.data.len() as u32 + u32::from(fin);
            self.next = self.next.map(|next| next.wrapping_add(count));
        }
        let wants_answer = !segment.data.is_empty() || segment.flags & (SYN | FIN) != 0;
        if wants_answer && self.acknowledged > 0 {
            out.push(self.packet(self.acknowledged, ACK, &[]));
        }
        if has_news {
            self.send(now_ms, out);
        }
    }
}

/// Where a packet arrives.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Balancer,
    Host,
}

struct Network {
    random: Random,
    faults: Faults,
    now_ms: u64,
    /// Packets under way, by the time of their arrival.
    under_way: BTreeMap<(u64, u64), (Place, Vec<u8>)>,
    sent: u64,
    rule: ServiceRule,
    engine: Engine,
    /// Up to this time nothing passes the balancer.
    away_until_ms: u64,
    clients: Vec<End>,
    /// By the backend's address and the source that it sees.
    backends: HashMap<(String, String), End>,
    /// The backend of each client's connection.
    homes: HashMap<SocketAddr, SocketAddr>,
}

fn contents(client: usize) -> Vec<u8> {
    let mut random = Random::new(client as u64);
    let bytes = 1 + random.below(3000);
    (0..bytes).map(|_| random.next_u64() as u8).collect()
}

impl Network {
    fn new(seed: u64) -> Network {
        let mut random = Random::new(seed);
        let forward = [Forward::Nat, Forward::FullNat][random.below(2) as usize];
        let rule = service(forward, VIP, TCP, &BACKENDS);
        let clients = (0..CLIENTS).map(|number| {
            let own = format!("198.51.100.{}:{}", number % 5 + 1, 40_000 + number);
            let mut end = End::new(&own, VIP, random.next_u64() as u32, None);
            end.data = contents(number);
            end.again_ms = random.below(3000);
            end
        });
        Network {
            clients: clients.collect(),
            faults: Faults::new(&mut random),
            now_ms: 0,
            under_way: BTreeMap::new(),
            sent: 0,
            engine: engine(std::slice::from_ref(&rule)),
            rule,
            away_until_ms: 0,
            backends: HashMap::new(),
            homes: HashMap::new(),
            random,
        }
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.random.below(100) < percent
    }

    /// Puts packets on their way, or loses them.
    fn carry(&mut self, place: Place, packets: Vec<Vec<u8>>) {
        for packet in packets {
            let copies = 1 + u64::from(self.chance(self.faults.twice_percent));
            for _ in 0..copies {
                if self.chance(self.faults.loss_percent) {
                    continue;
                }
                let jitter = self.random.below(self.faults.jitter_ms);
                let at = self.now_ms + 1 + self.faults.delay_ms + jitter;
                self.sent += 1;
                self.under_way
                    .insert((at, self.sent), (place, packet.clone()));
            }
        }
    }

    /// Passes packets through the balancer as one batch.
    fn balance(&mut self, packets: Vec<Vec<u8>>) {
        if self.now_ms < self.away_until_ms {
            return;
        }
        let frame = |bytes| Frame {
            bytes,
            ..Frame::default()
        };
        let mut frames: Vec<_> = packets.into_iter().map(frame).collect();
        let mut verdicts = Vec::new();
        self.engine.process(&mut frames, &mut verdicts, self.now_ms);
        let sent = frames.into_iter().zip(verdicts);
        let sent = sent.filter(|(_, verdict)| *verdict == Verdict::Send(0));
        let sent: Vec<_> = sent.map(|(frame, _)| frame.bytes).collect();
        self.carry(Place::Host, sent);
        for one in self.engine.connections() {
            let home = self.homes.entry(one.client).or_insert(one.target);
            assert_eq!(*home, one.target, "{} has moved", one.client);
        }
    }

    /// Gives a packet to the host that it is for.
    fn deliver(&mut self, packet: &[u8]) {
        let segment = Segment::read(packet);
        let mut out = Vec::new();
        if let Some(client) = self.clients.iter_mut().find(|one| one.own == segment.to) {
            assert_eq!(segment.from, VIP);
            client.receive(&segment, self.now_ms, &mut out);
            // All has come back: it is over.
            client.is_closing |= client.received.len() >= client.data.len();
            let is_first_end = client.is_closing && client.acknowledged == client.data.len() + 1;
            if is_first_end {
                client.send(self.now_ms, &mut out);
            }
        } else {
            assert!(BACKENDS.contains(&segment.to.as_str()), "to {}", segment.to);
            let key = (segment.to.clone(), segment.from.clone());
            let opens = segment.flags & (SYN | ACK) == SYN;
            let first = self.random.next_u64() as u32;
            let end = self.backends.entry(key).or_insert_with(|| {
                assert!(opens, "a backend gets the middle of another's connection");
                End::new(&segment.to, &segment.from, first, None)
            });
            let is_new = end.next.is_none();
            end.receive(&segment, self.now_ms, &mut out);
            // It sends back what it receives, and ends after the client.
            end.data = end.received.clone();
            end.is_closing = end.is_other_closed;
            if is_new || !segment.data.is_empty() || end.is_closing {
                end.send(self.now_ms, &mut out);
            }
        }
        self.carry(Place::Balancer, out);
    }

    fn send_again(&mut self) {
        let mut out = Vec::new();
        let now_ms = self.now_ms;
        let ends = self.clients.iter_mut().chain(self.backends.values_mut());
        let mut due: Vec<_> = ends
            .filter(|end| end.again_ms <= now_ms && !end.is_over())
            .collect();
        // The order of a hash table is not the seed's.
        due.sort_unstable_by(|a, b| (&a.own, &a.other).cmp(&(&b.own, &b.other)));
        due.into_iter().for_each(|end| end.send(now_ms, &mut out));
        self.carry(Place::Balancer, out);
    }

    /// Changes backends or the balancer, in a way that must cost no connection.
    fn operate(&mut self) {
        let some = self.random.below(4) as usize;
        let backend = socket(BACKENDS[some]);
        let is_on = self.chance(50);
        match self.random.below(5) {
            0 => drop(self.engine.drain(backend, is_on)),
            1 => {
                let share = is_on.then_some(50);
                self.engine.set_health(&(socket(VIP), TCP), backend, share);
            }
            2 => {
                self.rule.backends = BACKENDS.iter().map(|one| super::backend(one)).collect();
                if is_on {
                    self.rule.backends.remove(some);
                }
                let rules = std::slice::from_ref(&self.rule);
                self.engine.reload(rules, Timeouts::default());
            }
            3 => {
                self.rule.backends[0].weight = 1 + self.random.below(5) as u32;
                let rules = std::slice::from_ref(&self.rule);
                self.engine.reload(rules, Timeouts::default());
            }
            _ => {
                let dump = if is_on {
                    self.engine.dump()
                } else {
                    self.engine.dump_meanwhile()
                };
                self.engine = engine(std::slice::from_ref(&self.rule));
                self.engine.tick(self.now_ms);
                let restored = self.engine.restore(&dump).expect("whole");
                assert_eq!(restored.1, 0);
                self.away_until_ms = self.now_ms + self.random.below(700);
            }
        }
    }

    /// Lets a millisecond pass.
    fn step(&mut self) {
        self.now_ms += 1;
        let later = self.under_way.split_off(&(self.now_ms + 1, 0));
        let arrived = std::mem::replace(&mut self.under_way, later);
        let (to_balancer, to_hosts): (Vec<_>, Vec<_>) = arrived
            .into_values()
            .partition(|(place, _)| *place == Place::Balancer);
        if !to_balancer.is_empty() {
            let packets = to_balancer.into_iter().map(|(_, packet)| packet);
            self.balance(packets.collect());
        }
        to_hosts.iter().for_each(|(_, packet)| self.deliver(packet));
        self.send_again();
    }

    /// Runs until all clients have their data back.
    fn run(&mut self) {
        while !self.clients.iter().all(End::is_over) {
            self.step();
            assert!(self.now_ms < END_MS, "it does not end");
            if self.now_ms < 10_000 && self.now_ms.is_multiple_of(250) {
                self.operate();
            }
        }
        for (number, client) in self.clients.iter().enumerate() {
            assert!(client.received == contents(number), "wrong bytes");
        }
        // All ends were seen, so none stays for days.
        let mut phases = self.engine.connections().map(|one| one.phase);
        let lasts = |phase| matches!(phase, Phase::Established | Phase::Doubtful);
        assert!(!phases.any(lasts), "an end was not seen");
        let drops = &self.engine.counts().drops;
        for reason in [
            Reason::Length,
            Reason::TcpHeader,
            Reason::HeaderChecksum,
            Reason::TableFull,
        ] {
            assert_eq!(drops.of(reason), 0, "{reason}");
        }
    }
}

#[test]
fn transfers_end_whole_over_bad_networks() {
    let seeds = std::env::var("OUTBOARD_SIMULATED_SEEDS").ok();
    let seeds = seeds.map_or(SEEDS, |text| text.parse().expect("a number"));
    for seed in 0..seeds {
        let run = || {
            let mut network = Network::new(seed);
            network.run();
        };
        if std::panic::catch_unwind(run).is_err() {
            panic!("seed {seed}: {:?}", Network::new(seed).faults);
        }
    }
}

/// A balancer that loses its connections and opens them anew elsewhere is found: a backend gets the
/// middle of another's connection.
#[test]
#[should_panic(expected = "a balancer that forgets is found")]
fn a_balancer_that_forgets_is_found() {
    let run = || {
        let mut network = Network::new(1);
        (network.rule.adopt, network.rule.forward) = (true, Forward::Nat);
        network.rule.sources.clear();
        for round in 0..20 {
            let one = BACKENDS[round % BACKENDS.len()];
            network.rule.backends = vec![super::backend(one)];
            network.engine = engine(std::slice::from_ref(&network.rule));
            network.homes.clear();
            (0..400).for_each(|_| network.step());
        }
    };
    assert!(
        std::panic::catch_unwind(run).is_ok(),
        "a balancer that forgets is found"
    );
}
