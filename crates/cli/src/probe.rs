//! `outboard probe`: measures the network to a server with the messages that calls use.

use std::{
    path::PathBuf,
    process::ExitCode,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use outboard_link::Endpoint;
use outboard_model::{BITS_PER_S_MAX, BITS_PER_S_MIN, Both, Constants, Network, RTT_NS_MAX};
use outboard_pool::{LinkFacts, LinkSource};
use outboard_wire::limits::CHUNK_BYTES_MAX;
use serde::Serialize;

use crate::{
    args::ProbeArgs,
    bench::{quantile, sorted, time},
    peer::Server,
    require,
    serve::default_endpoint,
    token,
};

/// Number of phases: idle round trips, one connection out, one back, several out, several back.
const PHASES: u32 = 5;
/// Number of those of one connection.
const LINK_PHASES: u32 = 3;
const PINGS_MAX: usize = 200_000;
/// Requests under way on one connection, so that neither end waits for the other.
const IN_FLIGHT: usize = 8;
/// Length of the first piece; later ones take at most `PIECE_MS_MAX`, so that a slow network ends
/// in time too.
const PIECE_BYTES_MIN: usize = 16 << 10;
const PIECE_MS_MAX: f64 = 20.0;
/// Silence after which a network counts as broken.
const SILENCE: Duration = Duration::from_secs(30);

#[derive(Serialize)]
struct Findings {
    url: String,
    release: &'static str,
    connections: u8,
    idle: RoundTrips,
    one_connection: ProbedBandwidth,
    several_connections: ProbedBandwidth,
    /// While several connections carry all they can, each way.
    loaded_there: RoundTrips,
    loaded_back: RoundTrips,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    recordings: Vec<Judged>,
}

/// The cost of the network for a recorded program; overheads are fractions of an iteration.
#[derive(Serialize)]
struct Judged {
    recording: PathBuf,
    overhead: Both<f64>,
    fits: bool,
}

/// Round trips of one message each way, in microseconds.
#[derive(Serialize)]
struct RoundTrips {
    samples: usize,
    min_us: f64,
    median_us: f64,
    p90_us: f64,
    p99_us: f64,
    max_us: f64,
}

#[derive(Serialize)]
struct ProbedBandwidth {
    /// To the server.
    there_gbit_per_s: f64,
    back_gbit_per_s: f64,
}

#[derive(Clone, Copy)]
enum Way {
    There,
    Back,
}

pub(crate) fn probe(args: ProbeArgs) -> anyhow::Result<ExitCode> {
    // Unreadable recordings are reported before anything is measured.
    let constants = require::constants(args.constants.as_deref())?;
    for path in &args.recording {
        require::overhead_over(path, Network::new(0.0, BITS_PER_S_MAX)?, &constants)?;
    }
    let endpoint = match args.gpu.clone() {
        Some(endpoint) => endpoint,
        None => default_endpoint()?,
    };
    token::use_files(&args.token, std::slice::from_ref(&endpoint))?;
    let span = Duration::from_secs(args.seconds.into()) / PHASES;
    let mut first = Server::query(&endpoint)?;
    let idle = round_trips(&mut first, span, &AtomicBool::new(false))?;
    let one_connection = ProbedBandwidth {
        there_gbit_per_s: carry(&mut first, Way::There, span)?,
        back_gbit_per_s: carry(&mut first, Way::Back, span)?,
    };
    let mut several = (0..args.connections)
        .map(|_| Server::query(&endpoint))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let (there_gbit_per_s, loaded_there) = loaded(&mut first, &mut several, Way::There, span)?;
    let (back_gbit_per_s, loaded_back) = loaded(&mut first, &mut several, Way::Back, span)?;
    let recordings = judge(&args, &constants, &idle, &one_connection)?;
    let is_over = recordings.iter().any(|one| !one.fits);
    let findings = Findings {
        url: endpoint.to_string(),
        release: env!("CARGO_PKG_VERSION"),
        connections: args.connections,
        idle,
        one_connection,
        several_connections: ProbedBandwidth {
            there_gbit_per_s,
            back_gbit_per_s,
        },
        loaded_there,
        loaded_back,
        recordings,
    };
    args.json.say(&findings, || findings.text(&endpoint))?;
    Ok(match is_over {
        true => crate::exit::Exit::NO_NETWORK.into(),
        false => ExitCode::SUCCESS,
    })
}

/// Measures the round trip and the bandwidth of one connection, the slower direction's, within
/// about this time. A box of a pool wants a grant.
pub(crate) fn link_to(
    endpoint: &Endpoint,
    emulate: Option<outboard_wire::network::Network>,
    grant: Option<&[u8]>,
    span: Duration,
) -> anyhow::Result<LinkFacts> {
    let span = span / LINK_PHASES;
    let mut server = Server::query_with(endpoint, emulate, grant)?;
    let idle = round_trips(&mut server, span, &AtomicBool::new(false))?;
    let there = carry(&mut server, Way::There, span)?;
    let back = carry(&mut server, Way::Back, span)?;
    let bits_per_s = (there.min(back) * 1e9).clamp(BITS_PER_S_MIN, BITS_PER_S_MAX);
    Ok(LinkFacts {
        rtt_ns: (idle.median_us * 1e3).min(RTT_NS_MAX) as u64,
        bits_per_s: bits_per_s as u64,
        source: LinkSource::Measured,
    })
}

/// Returns whether the programs keep the budget over this network.
fn judge(
    args: &ProbeArgs,
    constants: &Constants,
    idle: &RoundTrips,
    one_connection: &ProbedBandwidth,
) -> anyhow::Result<Vec<Judged>> {
    let gbit_per_s = one_connection
        .there_gbit_per_s
        .min(one_connection.back_gbit_per_s);
    let bits_per_s = (gbit_per_s * 1e9).clamp(BITS_PER_S_MIN, BITS_PER_S_MAX);
    let rtt_ns = (idle.median_us * 1e3).min(RTT_NS_MAX);
    let network = Network::new(rtt_ns, bits_per_s)?;
    let one = |path: &PathBuf| {
        let overhead = require::overhead_over(path, network, constants)?;
        Ok(Judged {
            recording: path.clone(),
            fits: overhead.simulated <= args.budget.part(),
            overhead,
        })
    };
    args.recording.iter().map(one).collect()
}

/// Measures one message after the other, until the time is over or `enough` is set.
fn round_trips(
    server: &mut Server,
    span: Duration,
    enough: &AtomicBool,
) -> anyhow::Result<RoundTrips> {
    let until = Instant::now() + span;
    let mut us = Vec::new();
    // One at least: a round trip may take longer than the given time.
    loop {
        us.push(server.ping()?.as_nanos() as f64 / 1e3);
        if us.len() == PINGS_MAX || Instant::now() >= until || enough.load(Ordering::Relaxed) {
            break;
        }
    }
    let us = sorted(&us);
    let at = |share| quantile(&us, share).unwrap_or(f64::NAN);
    Ok(RoundTrips {
        samples: us.len(),
        min_us: at(0.0),
        median_us: at(0.5),
        p90_us: at(0.9),
        p99_us: at(0.99),
        max_us: at(1.0),
    })
}

/// Fills one direction of a connection. Returns gigabits per second.
fn carry(server: &mut Server, way: Way, span: Duration) -> anyhow::Result<f64> {
    let data = vec![0x5a; CHUNK_BYTES_MAX];
    let (mut piece, mut on_the_way) = (PIECE_BYTES_MIN, 0usize);
    let start = Instant::now();
    let mut carried = 0;
    loop {
        let is_over = start.elapsed() >= span;
        if is_over && on_the_way == 0 {
            break;
        }
        if !is_over && on_the_way < IN_FLIGHT {
            match way {
                Way::There => server.ask_echo(&data[..piece], 0)?,
                Way::Back => server.ask_echo(&[], piece as u32)?,
            }
            on_the_way += 1;
            carried += piece;
            continue;
        }
        server.answered(SILENCE)?;
        on_the_way -= 1;
        let rate_per_ms = carried as f64 / (start.elapsed().as_secs_f64() * 1e3);
        let next = (rate_per_ms * PIECE_MS_MAX / IN_FLIGHT as f64) as usize;
        piece = next.clamp(PIECE_BYTES_MIN, CHUNK_BYTES_MAX);
    }
    Ok(carried as f64 * 8.0 / start.elapsed().as_secs_f64() / 1e9)
}

/// Fills several connections, while one more measures round trips.
fn loaded(
    pinging: &mut Server,
    several: &mut [Server],
    way: Way,
    span: Duration,
) -> anyhow::Result<(f64, RoundTrips)> {
    let enough = AtomicBool::new(false);
    thread::scope(|scope| {
        let carriers: Vec<_> = several
            .iter_mut()
            .map(|server| {
                scope.spawn(|| {
                    let rate = carry(server, way, span);
                    // The round trips end together with the load.
                    enough.store(true, Ordering::Relaxed);
                    rate
                })
            })
            .collect();
        let round_trips = round_trips(pinging, span, &enough);
        let mut rate = 0.0;
        for carrier in carriers {
            let one = carrier
                .join()
                .map_err(|_| anyhow::anyhow!("a thread panicked"))?;
            rate += one.context("under load")?;
        }
        Ok((rate, round_trips?))
    })
}

impl RoundTrips {
    fn text(&self) -> String {
        let time = |us: f64| time(us * 1e3);
        format!(
            "{:>9}   90 % {:>9}   99 % {:>9}   least {:>9}   most {:>9}   ({} round trips)",
            time(self.median_us),
            time(self.p90_us),
            time(self.p99_us),
            time(self.min_us),
            time(self.max_us),
            self.samples,
        )
    }
}

impl ProbedBandwidth {
    fn text(&self) -> String {
        format!(
            "{} there   {} back",
            rate(self.there_gbit_per_s),
            rate(self.back_gbit_per_s)
        )
    }
}

impl Judged {
    fn text(&self) -> String {
        format!(
            "{}: {:+.1} % an iteration (closed form: {:+.1} %), {} the budget\n",
            self.recording.display(),
            self.overhead.simulated * 100.0,
            self.overhead.closed_form * 100.0,
            if self.fits { "within" } else { "over" },
        )
    }
}

fn rate(gbit_per_s: f64) -> String {
    match gbit_per_s {
        g if g >= 1.0 => format!("{g:.1} Gbps"),
        g => format!("{:.1} Mbps", g * 1e3),
    }
}

impl Findings {
    fn text(&self, endpoint: &Endpoint) -> String {
        let several = format!("{} connections", self.connections);
        format!(
            "{endpoint}\n\
             round trip, idle      {}\n\
             one connection        {}\n\
             {several:<20}  {}\n\
             round trip, loaded    {}   (there)\n\
             round trip, loaded    {}   (back)\n",
            self.idle.text(),
            self.one_connection.text(),
            self.several_connections.text(),
            self.loaded_there.text(),
            self.loaded_back.text(),
        ) + &self.recordings.iter().map(Judged::text).collect::<String>()
    }
}
