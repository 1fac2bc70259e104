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
    signals::Cut,
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
    /// None if a signal has come before it was measured, as below.
    #[serde(skip_serializing_if = "Option::is_none")]
    idle: Option<RoundTrips>,
    one_connection: ProbedBandwidth,
    several_connections: ProbedBandwidth,
    /// While several connections carry all they can, each way.
    #[serde(skip_serializing_if = "Option::is_none")]
    loaded_there: Option<RoundTrips>,
    #[serde(skip_serializing_if = "Option::is_none")]
    loaded_back: Option<RoundTrips>,
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

#[derive(Clone, Copy, Default, Serialize)]
struct ProbedBandwidth {
    /// To the server.
    #[serde(skip_serializing_if = "Option::is_none")]
    there_gbit_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    back_gbit_per_s: Option<f64>,
}

#[derive(Clone, Copy)]
enum Way {
    There,
    Back,
}

pub(crate) fn probe(args: ProbeArgs) -> anyhow::Result<ExitCode> {
    let endpoint = match args.gpu.clone() {
        Some(endpoint) => endpoint,
        None => default_endpoint()?,
    };
    let findings = Findings {
        url: endpoint.to_string(),
        release: env!("CARGO_PKG_VERSION"),
        connections: args.connections,
        idle: None,
        one_connection: ProbedBandwidth::default(),
        several_connections: ProbedBandwidth::default(),
        loaded_there: None,
        loaded_back: None,
        recordings: Vec::new(),
    };
    let json = args.json.clone();
    let cut = Cut::watch(findings, move |all| json.say(all, || all.text()))?;
    cut.doing("reading the recordings");
    // Unreadable recordings are reported before anything is measured.
    let constants = require::constants(args.constants.as_deref())?;
    for path in &args.recording {
        require::overhead_over(path, Network::new(0.0, BITS_PER_S_MAX)?, &constants)?;
    }
    token::use_files(&args.token, std::slice::from_ref(&endpoint))?;
    measure(&args, &endpoint, &cut)?;
    cut.doing("judging the network for the recordings");
    let network = cut.look(Findings::network)?;
    let recordings = judge(&args, &constants, network)?;
    let is_over = recordings.iter().any(|one| !one.fits);
    cut.note(|all| all.recordings = recordings);
    cut.finish()?;
    Ok(match is_over {
        true => crate::exit::Exit::NO_NETWORK.into(),
        false => ExitCode::SUCCESS,
    })
}

/// Measures one thing after the other, and notes each.
fn measure(args: &ProbeArgs, endpoint: &Endpoint, cut: &Cut<Findings>) -> anyhow::Result<()> {
    let span = Duration::from_secs(args.seconds.into()) / PHASES;
    cut.doing("connecting to the server");
    let mut first = Server::query(endpoint)?;
    cut.doing("measuring idle round trips");
    let idle = round_trips(&mut first, span, &AtomicBool::new(false))?;
    cut.note(|all| all.idle = Some(idle));
    cut.doing("measuring one connection's bandwidth");
    let there = carry(&mut first, Way::There, span)?;
    cut.note(|all| all.one_connection.there_gbit_per_s = Some(there));
    let back = carry(&mut first, Way::Back, span)?;
    cut.note(|all| all.one_connection.back_gbit_per_s = Some(back));
    cut.doing("opening more connections");
    let mut several = (0..args.connections)
        .map(|_| Server::query(endpoint))
        .collect::<anyhow::Result<Vec<_>>>()?;
    cut.doing("measuring several connections under load");
    let (there, trips) = loaded(&mut first, &mut several, Way::There, span)?;
    cut.note(|all| {
        all.several_connections.there_gbit_per_s = Some(there);
        all.loaded_there = Some(trips);
    });
    let (back, trips) = loaded(&mut first, &mut several, Way::Back, span)?;
    cut.note(|all| {
        all.several_connections.back_gbit_per_s = Some(back);
        all.loaded_back = Some(trips);
    });
    Ok(())
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
fn judge(args: &ProbeArgs, constants: &Constants, network: Network) -> anyhow::Result<Vec<Judged>> {
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
        let one = |gbit: Option<f64>, way| gbit.map(|gbit| format!("{} {way}", rate(gbit)));
        let ways = [
            one(self.there_gbit_per_s, "there"),
            one(self.back_gbit_per_s, "back"),
        ];
        ways.into_iter().flatten().collect::<Vec<_>>().join("   ")
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
    /// Returns the network of one connection, in its slower direction.
    fn network(&self) -> anyhow::Result<Network> {
        let ProbedBandwidth {
            there_gbit_per_s: there,
            back_gbit_per_s: back,
        } = self.one_connection;
        let measured = self.idle.as_ref().zip(there.zip(back));
        let (idle, (there, back)) = measured.context("nothing was measured")?;
        let bits_per_s = (there.min(back) * 1e9).clamp(BITS_PER_S_MIN, BITS_PER_S_MAX);
        Ok(Network::new(
            (idle.median_us * 1e3).min(RTT_NS_MAX),
            bits_per_s,
        )?)
    }

    fn text(&self) -> String {
        let trips = |of: &Option<RoundTrips>| of.as_ref().map(RoundTrips::text);
        let several = format!("{} connections", self.connections);
        let rows = [
            ("round trip, idle", trips(&self.idle), ""),
            ("one connection", Some(self.one_connection.text()), ""),
            (&several, Some(self.several_connections.text()), ""),
            (
                "round trip, loaded",
                trips(&self.loaded_there),
                "   (there)",
            ),
            ("round trip, loaded", trips(&self.loaded_back), "   (back)"),
        ];
        let mut out = format!("{}\n", self.url);
        for (what, text, more) in rows {
            // What a signal has cut off has no row.
            if let Some(text) = text.filter(|text| !text.is_empty()) {
                out += &format!("{what:<20}  {text}{more}\n");
            }
        }
        out + &self.recordings.iter().map(Judged::text).collect::<String>()
    }
}
