//! `outboard bench emulate`: measures the accuracy of emulated networks on this machine, and the
//! cost of emulation.
//!
//! Two threads of this process are the ends of a link. All settings take turns, round by round.
//! Only the link is timed: small frames back and forth, and long frames one way. The bytes of long
//! frames are not written, since that takes a core longer than a fast network does.

use std::{
    process::ExitCode,
    sync::LazyLock,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, anyhow};
use clap::ValueEnum;
use outboard_link::{
    Bulk, Endpoint, Lasting, Link, Listener, RdmaUse, Receiver, Sender, Wait, connect,
};
use outboard_wire::{
    limits::{FRAME_BYTES_MAX, PLACED_BYTES_MIN, RDMA_GRANTS},
    network::{Bandwidth, Network},
};
use serde::Serialize;
use tempfile::TempDir;

use super::{
    Interrupt, Output, print,
    report::{Machine, now_s, time},
    statistics::{Figures, median},
};
use crate::args::EmulateArgs;

const FORMAT: u32 = 1;
/// Allowed errors of a network: nanoseconds of a round trip, or a fraction.
const RTT_OFF_NS_MAX: f64 = 500.0;
const OFF_SHARE_MAX: f64 = 0.02;
const PING_BYTES: usize = 64;
const WARM_UP_ROUND_TRIPS: usize = 20;
const PATIENCE: Duration = Duration::from_secs(20);
/// Length of the header sent before a copy's data, in bytes.
const BULK_HEAD_BYTES: usize = 36;
/// Frames of a stream, which lasts for `STREAM_S` seconds on the emulated network.
const STREAM_FRAME_BYTES: usize = 256 << 10;
const STREAM_FRAMES_MIN: u64 = 16;
const STREAM_S: f64 = 0.05;
const STREAM_QUICK_S: f64 = 0.01;
/// Frames sent in a row: fewer than a ring or a tcp connection holds.
const SENDS: u32 = 1_000;

/// The link that carries the emulated one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Carrier {
    Shm,
    Tcp,
}

#[derive(Serialize)]
struct EmulationResults {
    format: u32,
    release: &'static str,
    time_s: u64,
    machine: Machine,
    quick: bool,
    rounds: usize,
    complete: bool,
    costs: Vec<Cost>,
    rtts: Vec<Rtt>,
    bandwidths: Vec<Rate>,
}

/// Comparison of a network without delays with the bare link.
#[derive(Serialize)]
struct Cost {
    carrier: Carrier,
    bare: Option<Figures>,
    emulated: Option<Figures>,
    /// Added time of a round trip, which is two messages.
    round_trip_more_ns: Option<f64>,
    /// Time of the sending thread for a small frame.
    send_bare_ns: Option<f64>,
    send_emulated_ns: Option<f64>,
    #[serde(skip)]
    times: [Vec<Vec<f64>>; 2],
    #[serde(skip)]
    sends: [Vec<f64>; 2],
}

#[derive(Serialize)]
struct Rtt {
    carrier: Carrier,
    rtt_ns: u64,
    figures: Option<Figures>,
    off_ns: Option<f64>,
    off_percent: Option<f64>,
    /// No round trip was shorter than the network's, and the median is within 500 ns or 2 % of it.
    within: bool,
    min_ns: Option<f64>,
    #[serde(skip)]
    network: Network,
    #[serde(skip)]
    times: Vec<Vec<f64>>,
}

#[derive(Serialize)]
struct Rate {
    carrier: Carrier,
    bandwidth_bps: u64,
    median_bps: Option<f64>,
    /// Bandwidth in the round that the machine disturbed least.
    best_bps: Option<f64>,
    rounds_bps: Vec<f64>,
    off_percent: Option<f64>,
    /// The median is within 2 % of it.
    within: bool,
    #[serde(skip)]
    network: Network,
}

pub(super) fn emulate(args: EmulateArgs, interrupt: &Interrupt) -> anyhow::Result<ExitCode> {
    let json = args.json.as_deref().map(Output::open).transpose()?;
    let mut results = EmulationResults::new(&args)?;
    let measured = results.measure(interrupt);
    results.conclude();
    results.complete = measured.is_ok();
    print(&results.table())?;
    let has_any = results.costs.iter().any(|cost| cost.bare.is_some());
    if let Some(output) = json
        && (measured.is_ok() || has_any)
    {
        output.write(&results)?;
    }
    measured.map(|()| ExitCode::SUCCESS)
}

impl EmulationResults {
    fn new(args: &EmulateArgs) -> anyhow::Result<EmulationResults> {
        let mut results = EmulationResults {
            format: FORMAT,
            release: env!("CARGO_PKG_VERSION"),
            time_s: now_s(),
            machine: Machine::this(),
            quick: args.quick,
            rounds: if args.quick { 3 } else { 10 },
            complete: false,
            costs: Vec::new(),
            rtts: Vec::new(),
            bandwidths: Vec::new(),
        };
        for &carrier in &args.carrier {
            results.costs.push(Cost::new(carrier));
            for &rtt in &args.rtt {
                results.rtts.push(Rtt::new(carrier, rtt)?);
            }
            for &bandwidth in &args.bandwidth {
                results.bandwidths.push(Rate::new(carrier, bandwidth)?);
            }
        }
        Ok(results)
    }

    fn measure(&mut self, interrupt: &Interrupt) -> anyhow::Result<()> {
        let (samples, stream_s) = match self.quick {
            true => (100, STREAM_QUICK_S),
            false => (500, STREAM_S),
        };
        for _ in 0..self.rounds {
            for cost in &mut self.costs {
                for (at, network) in [None, Some(Network::default())].into_iter().enumerate() {
                    interrupt.check()?;
                    let network = network.as_ref();
                    let times =
                        round_trips(Pair::new(cost.carrier, network)?, PING_BYTES, samples)?;
                    cost.times[at].push(times);
                    cost.sends[at].push(sends(Pair::new(cost.carrier, network)?)?);
                }
            }
            for rtt in &mut self.rtts {
                interrupt.check()?;
                let pair = Pair::new(rtt.carrier, Some(&rtt.network))?;
                rtt.times.push(round_trips(pair, PING_BYTES, samples)?);
            }
            for rate in &mut self.bandwidths {
                interrupt.check()?;
                let pair = Pair::new(rate.carrier, Some(&rate.network))?;
                let bytes = rate.bandwidth_bps as f64 / 8.0 * stream_s;
                let frames = (bytes as u64 / STREAM_FRAME_BYTES as u64).max(STREAM_FRAMES_MIN);
                rate.rounds_bps
                    .push(stream(pair, STREAM_FRAME_BYTES, frames)?);
            }
        }
        Ok(())
    }

    fn conclude(&mut self) {
        self.costs.iter_mut().for_each(Cost::conclude);
        self.rtts.iter_mut().for_each(Rtt::conclude);
        self.bandwidths.iter_mut().for_each(Rate::conclude);
    }

    fn table(&self) -> String {
        let mut text = String::from("A network without delays against the bare link\n");
        let show = |ns: Option<f64>| ns.map_or("-".into(), time);
        for cost in &self.costs {
            let median = |figures: &Option<Figures>| show(figures.as_ref().map(|f| f.median_ns));
            text.push_str(&format!(
                "  {:4} round trip {:>9}, bare {:>9}   a send {:>9}, bare {:>9}\n",
                cost.carrier.name(),
                median(&cost.emulated),
                median(&cost.bare),
                show(cost.send_emulated_ns),
                show(cost.send_bare_ns),
            ));
        }
        text.push_str("Round trips of 64 bytes\n");
        for rtt in &self.rtts {
            text.push_str(&format!(
                "  {:4} {:>24}   takes {:>9}, {:>+8.2} %   at least {:>9}, p90 {:>9}   {}\n",
                rtt.carrier.name(),
                rtt.network.to_string(),
                show(rtt.figures.as_ref().map(|f| f.median_ns)),
                rtt.off_percent.unwrap_or(f64::NAN),
                show(rtt.min_ns),
                show(rtt.figures.as_ref().map(|f| f.p90_ns)),
                verdict(rtt.within),
            ));
        }
        text.push_str("Streams one way, in frames of 256 KiB\n");
        for rate in &self.bandwidths {
            text.push_str(&format!(
                "  {:4} {:>24}   carries {:>7.2} Gbps, {:>+8.2} %   at best {:>7.2} Gbps   {}\n",
                rate.carrier.name(),
                rate.network.to_string(),
                rate.median_bps.unwrap_or(f64::NAN) / 1e9,
                rate.off_percent.unwrap_or(f64::NAN),
                rate.best_bps.unwrap_or(f64::NAN) / 1e9,
                verdict(rate.within),
            ));
        }
        text
    }
}

fn verdict(within: bool) -> &'static str {
    match within {
        true => "exact",
        false => "NOT EXACT",
    }
}

impl Carrier {
    fn name(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Tcp => "tcp",
        }
    }
}

impl Cost {
    fn new(carrier: Carrier) -> Cost {
        Cost {
            carrier,
            bare: None,
            emulated: None,
            round_trip_more_ns: None,
            send_bare_ns: None,
            send_emulated_ns: None,
            times: Default::default(),
            sends: Default::default(),
        }
    }

    fn conclude(&mut self) {
        self.bare = Figures::new(&self.times[0]);
        self.emulated = Figures::new(&self.times[1]);
        if let (Some(bare), Some(emulated)) = (&self.bare, &self.emulated) {
            self.round_trip_more_ns = Some(emulated.median_ns - bare.median_ns);
        }
        [self.send_bare_ns, self.send_emulated_ns] = [0, 1].map(|at| median(&self.sends[at]));
    }
}

impl Rtt {
    fn new(carrier: Carrier, rtt: Duration) -> anyhow::Result<Rtt> {
        Ok(Rtt {
            carrier,
            rtt_ns: u64::try_from(rtt.as_nanos())?,
            figures: None,
            off_ns: None,
            off_percent: None,
            within: false,
            min_ns: None,
            network: Network::new(rtt, None)?,
            times: Vec::new(),
        })
    }

    fn conclude(&mut self) {
        let asked = self.rtt_ns as f64;
        self.figures = Figures::new(&self.times);
        let Some(figures) = &self.figures else {
            return;
        };
        let off = figures.median_ns - asked;
        let min = self.times.concat().into_iter().reduce(f64::min);
        self.off_ns = Some(off);
        self.off_percent = Some(100.0 * off / asked);
        self.min_ns = min;
        self.within =
            min.is_some_and(|min| min >= asked) && off <= RTT_OFF_NS_MAX.max(OFF_SHARE_MAX * asked);
    }
}

impl Rate {
    fn new(carrier: Carrier, bandwidth: Bandwidth) -> anyhow::Result<Rate> {
        Ok(Rate {
            carrier,
            bandwidth_bps: bandwidth.bps(),
            median_bps: None,
            best_bps: None,
            rounds_bps: Vec::new(),
            off_percent: None,
            within: false,
            network: Network::new(Duration::ZERO, Some(bandwidth))?,
        })
    }

    fn conclude(&mut self) {
        let asked = self.bandwidth_bps as f64;
        self.median_bps = median(&self.rounds_bps);
        let off = |bps: f64| (bps / asked - 1.0).abs();
        let by_nearness = |a: &f64, b: &f64| off(*a).total_cmp(&off(*b));
        self.best_bps = self.rounds_bps.iter().copied().min_by(by_nearness);
        let Some(bps) = self.median_bps else {
            return;
        };
        self.off_percent = Some(100.0 * (bps / asked - 1.0));
        self.within = off(bps) <= OFF_SHARE_MAX;
    }
}

/// Both ends of a link in this process.
pub(super) struct Pair {
    server: Link,
    client: Link,
    _folder: TempDir,
}

impl Pair {
    fn new(carrier: Carrier, network: Option<&Network>) -> anyhow::Result<Pair> {
        let folder = socket_folder()?;
        let endpoint = match carrier {
            Carrier::Shm => Endpoint::Shm(folder.path().join("socket")),
            Carrier::Tcp => "tcp://127.0.0.1:0".parse()?,
        };
        Pair::between(folder, &endpoint, Endpoint::clone, network)
    }

    /// Connects a server that listens at `endpoint` with a client whose address `seen` returns.
    pub(super) fn between(
        folder: TempDir,
        endpoint: &Endpoint,
        seen: impl Fn(&Endpoint) -> Endpoint,
        network: Option<&Network>,
    ) -> anyhow::Result<Pair> {
        let listener = Listener::bind(endpoint)?;
        let deadline = Instant::now() + PATIENCE;
        let client = connect(&seen(listener.endpoint()), PATIENCE)?;
        let (server, _) = listener.accept(Some(deadline))?;
        // Each may wait for the other.
        let (server, client) = thread::scope(|scope| {
            let client = scope.spawn(move || match network {
                None => client.into_link_client(deadline),
                Some(network) => client.into_emulated_client(deadline, network),
            });
            let server = match network {
                None => server.into_link_server(),
                Some(network) => server.into_emulated_server(network),
            };
            (server, client.join())
        });
        let client = client.map_err(|_| anyhow!("the client panicked"))?;
        Ok(Pair {
            server: server?,
            client: client?,
            _folder: folder,
        })
    }
}

pub(super) fn socket_folder() -> anyhow::Result<TempDir> {
    tempfile::Builder::new()
        .prefix("outboard-bench-")
        .tempdir()
        .context("making a folder for a socket")
}

/// Nanoseconds of each round trip of a frame of `len` bytes.
pub(super) fn round_trips(pair: Pair, len: usize, samples: usize) -> anyhow::Result<Vec<f64>> {
    let (mut to_client, mut from_client) = pair.server.split();
    let (mut to_server, mut from_server) = pair.client.split();
    thread::scope(|scope| {
        let echo = scope.spawn(move || -> Result<(), outboard_link::Error> {
            loop {
                match from_client.recv(Wait::Forever) {
                    Ok(Some(_)) => put(&mut to_client, len)?,
                    Ok(None) => {}
                    Err(error) if error.is_disconnect() => return Ok(()),
                    Err(error) => return Err(error),
                }
            }
        });
        let mut times = Vec::new();
        let mut once = || -> anyhow::Result<f64> {
            let start = Instant::now();
            put(&mut to_server, len)?;
            take(&mut from_server)?;
            Ok(start.elapsed().as_nanos() as f64)
        };
        let measured = (0..WARM_UP_ROUND_TRIPS + samples).try_for_each(|sample| {
            let ns = once()?;
            times.extend((sample >= WARM_UP_ROUND_TRIPS).then_some(ns));
            Ok(())
        });
        drop(to_server);
        let echoed = echo.join().map_err(|_| anyhow!("the echo panicked"))?;
        measured.and_then(|()| Ok(echoed?)).map(|()| times)
    })
}

/// Returns the sending thread's time for one small frame, in nanoseconds.
fn sends(pair: Pair) -> anyhow::Result<f64> {
    let (_to_client, mut from_client) = pair.server.split();
    let (mut to_server, _from_server) = pair.client.split();
    let start = Instant::now();
    for _ in 0..SENDS {
        put(&mut to_server, PING_BYTES)?;
    }
    let took = start.elapsed();
    // Checks that nothing was dropped.
    for _ in 0..SENDS {
        take(&mut from_client)?;
    }
    Ok(took.as_nanos() as f64 / f64::from(SENDS))
}

/// Returns the bits per second from the first of `frames` frames of `len` bytes to the last.
pub(super) fn stream(pair: Pair, len: usize, frames: u64) -> anyhow::Result<f64> {
    let (_to_client, mut from_client) = pair.server.split();
    let (mut to_server, _from_server) = pair.client.split();
    // Over rdma long data is sent as copies of pinned memory are: from its own place into granted
    // memory.
    let is_bulk = to_server.remote_memory().is_some() && len >= PLACED_BYTES_MIN;
    let data = vec![0; len];
    let mut next = move || -> anyhow::Result<()> {
        if let Some(remote) = from_client.remote_memory().filter(|_| is_bulk) {
            while remote.granted() < RDMA_GRANTS && remote.grant(None, len)? {}
        }
        let deadline = Wait::Until(Instant::now() + PATIENCE);
        let frame = from_client.recv_placed(deadline, &mut |_, _| None)?;
        frame.map(drop).context("a frame did not arrive in time")
    };
    thread::scope(|scope| {
        let sender = scope.spawn(|| -> Result<Sender, outboard_link::Error> {
            // SAFETY: kept until the thread has ended, and with it all sending.
            let memory = unsafe { Lasting::new(data.as_ptr().expose_provenance() as u64, len) };
            let source = to_server
                .remote_memory()
                .and_then(|remote| remote.registrar().register(memory, RdmaUse::Source));
            for _ in 0..frames {
                match to_server.remote_memory().filter(|_| is_bulk) {
                    None => put(&mut to_server, len)?,
                    Some(remote) => {
                        let bulk = Bulk {
                            data: &data,
                            source: source.as_ref(),
                            target: None,
                        };
                        remote.send_bulk(&[&[0; BULK_HEAD_BYTES]], bulk)?;
                    }
                }
            }
            if let Some(remote) = to_server.remote_memory() {
                remote.wait_until_read()?;
            }
            Ok(to_server)
        });
        let received = (|| {
            next()?;
            let first = Instant::now();
            for _ in 1..frames {
                next()?;
            }
            anyhow::Ok(first.elapsed())
        })();
        // The sender must not wait for a receiver that has stopped.
        drop(next);
        let sent = sender.join().map_err(|_| anyhow!("the sender panicked"))?;
        let took = received?;
        drop(sent?);
        let bits = 8.0 * (frames - 1) as f64 * len as f64;
        Ok(bits / took.as_secs_f64())
    })
}

/// Sends a frame of zeros.
fn put(sender: &mut Sender, len: usize) -> Result<(), outboard_link::Error> {
    // Made when it is needed: as a constant it would be one MiB of the program's file.
    static ZEROS: LazyLock<Vec<u8>> = LazyLock::new(|| vec![0; FRAME_BYTES_MAX]);
    sender.send(&[&ZEROS[..len]])?;
    sender.flush()
}

fn take(receiver: &mut Receiver) -> anyhow::Result<()> {
    let deadline = Wait::Until(Instant::now() + PATIENCE);
    let frame = receiver.recv(deadline)?;
    frame.map(drop).context("a frame did not arrive in time")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_exact() {
        let rtt = |samples: &[f64]| {
            let mut rtt = Rtt::new(Carrier::Shm, Duration::from_micros(100)).unwrap();
            rtt.times = vec![samples.to_vec()];
            rtt.conclude();
            (rtt.within, rtt.off_ns)
        };
        assert_eq!(
            rtt(&[100_000.0, 101_000.0, 900_000.0]),
            (true, Some(1_000.0))
        );
        assert_eq!(
            rtt(&[100_000.0, 102_100.0, 102_200.0]),
            (false, Some(2_100.0))
        );
        // One early round trip is too many.
        assert_eq!(rtt(&[99_999.0, 100_000.0, 100_001.0]), (false, Some(0.0)));
        assert_eq!(rtt(&[]), (false, None));
        let rate = |rounds: &[f64]| {
            let mut rate = Rate::new(Carrier::Tcp, "10Gbps".parse().unwrap()).unwrap();
            rate.rounds_bps = rounds.to_vec();
            rate.conclude();
            rate.within
        };
        assert!(rate(&[9.9e9, 10.1e9, 3e9]));
        assert!(!rate(&[9.7e9]));
        assert!(!rate(&[10.3e9]));
        assert!(!rate(&[]));
    }

    /// Measures over both carriers, with networks so slow that no machine is too busy for them.
    #[test]
    fn everything_is_measured() {
        for carrier in [Carrier::Shm, Carrier::Tcp] {
            let slow: Network = "rtt=4ms,bandwidth=1Gbps".parse().unwrap();
            let times =
                round_trips(Pair::new(carrier, Some(&slow)).unwrap(), PING_BYTES, 3).unwrap();
            assert_eq!(times.len(), 3);
            assert!(times.iter().all(|ns| *ns >= 4e6), "{times:?}");
            let bare = round_trips(Pair::new(carrier, None).unwrap(), PING_BYTES, 20).unwrap();
            assert!(bare.iter().any(|ns| *ns < 4e6), "{bare:?}");
            assert!(sends(Pair::new(carrier, Some(&slow)).unwrap()).unwrap() > 0.0);
            // A frame that is read late seems to have come faster: on a busy machine the rate says
            // nothing.
            let bps = stream(
                Pair::new(carrier, Some(&slow)).unwrap(),
                STREAM_FRAME_BYTES,
                8,
            );
            assert!(bps.unwrap() > 0.0);
        }
    }
}
