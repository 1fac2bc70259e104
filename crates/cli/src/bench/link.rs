//! `outboard bench link`: measures the links themselves, without a program, a server or a GPU:
//! small frames back and forth, long ones one way. For rdma it also runs perftest on the bare
//! verbs, on the same devices and in turns.
//!
//! Two threads of this process are the ends of a link. The kinds take turns, round by round.

use std::{
    process::{Command, ExitCode, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use clap::ValueEnum;
use outboard_link::{Endpoint, RdmaOptions};
use outboard_wire::limits::RDMA_GRANTS;
use serde::Serialize;

use super::{
    Interrupt, Output,
    emulate::{Pair, round_trips, socket_folder, stream},
    print,
    report::{Machine, now_s, time},
    statistics::{median, quantile, sorted},
};
use crate::args::LinkArgs;

const FORMAT: u32 = 1;
const ROUND_TRIP_BYTES: [usize; 5] = [16, 64, 256, 1024, 4096];
const STREAM_BYTES: [usize; 4] = [4 << 10, 64 << 10, 256 << 10, 1 << 20];
const ROUNDS: usize = 5;
const ROUNDS_QUICK: usize = 2;
/// Samples of one round and size; a slow link has fewer.
const SAMPLES: usize = 2_000;
const SAMPLES_MIN: usize = 20;
const TRIAL_SAMPLES: usize = 10;
const STREAM_TOTAL_BYTES: usize = 256 << 20;
const STREAM_FRAMES_MIN: usize = 16;
/// Duration of one round of one size, in seconds.
const ROUND_S: f64 = 1.0;
const ROUND_QUICK_S: f64 = 0.2;
/// Limits relative to raw RDMA: the greatest ratio of round trips, the least of bandwidths.
const RAW_LATENCY_RATIO_MAX: f64 = 1.3;
const RAW_BANDWIDTH_RATIO_MIN: f64 = 0.9;
const RAW_BYTES: usize = 64;
/// Number of long writes under way at a time: as many as a link has grants.
const RAW_DEPTH: usize = RDMA_GRANTS;
/// Round trips of each of perftest's tools, and long writes.
const RAW_SAMPLES: usize = 1_000;
const RAW_SAMPLES_QUICK: usize = 100;
const RAW_WRITES: usize = 100;
const RAW_WRITES_QUICK: usize = 16;
const RAW_PORT: u16 = 18_533;
const RAW_S_MAX: u64 = 60;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LinkOf {
    Shm,
    Tcp,
    Rdma,
}

#[derive(Serialize)]
struct LinkResults {
    format: u32,
    release: &'static str,
    time_s: u64,
    machine: Machine,
    rounds: usize,
    complete: bool,
    /// Options of the devices.
    rdma_server: String,
    rdma_client: String,
    round_trips: Vec<RoundTrip>,
    bandwidths: Vec<LinkBandwidth>,
    raw: Option<PerftestFigures>,
}

#[derive(Serialize)]
struct RoundTrip {
    link: LinkOf,
    bytes: usize,
    samples: usize,
    min_ns: Option<f64>,
    p50_ns: Option<f64>,
    p90_ns: Option<f64>,
    p99_ns: Option<f64>,
    p999_ns: Option<f64>,
    max_ns: Option<f64>,
    #[serde(skip)]
    times: Vec<f64>,
}

#[derive(Serialize)]
struct LinkBandwidth {
    link: LinkOf,
    bytes: usize,
    median_bps: Option<f64>,
    rounds_bps: Vec<f64>,
}

/// Results of perftest on the same devices.
#[derive(Default, Serialize)]
struct PerftestFigures {
    /// Twice the typical latency of `ib_write_lat` and `ib_send_lat`, with 64 bytes.
    write_round_trip_ns: Option<f64>,
    send_round_trip_ns: Option<f64>,
    /// Result of `ib_write_bw`, with 1 MiB.
    write_bps: Option<f64>,
    /// Ratio of the link's round trip of 64 bytes to the raw write's, and of its bandwidth at 1 MiB
    /// to the raw write's.
    latency_ratio: Option<f64>,
    bandwidth_ratio: Option<f64>,
    /// The first ratio is at most 1.3, the second at least 0.9.
    within: bool,
}

pub(super) fn link(args: LinkArgs, interrupt: &Interrupt) -> anyhow::Result<ExitCode> {
    let json = args.json.as_deref().map(Output::open).transpose()?;
    let only = match args.only.is_empty() {
        false => args.only.clone(),
        // A device named by the user must exist; otherwise rdma is measured if there is a device.
        true => [LinkOf::Shm, LinkOf::Tcp, LinkOf::Rdma]
            .into_iter()
            .filter(|&link| link != LinkOf::Rdma || has_rdma(&args))
            .collect(),
    };
    let mut results = LinkResults::new(&args, &only);
    let measured = results.measure(&args, &only, interrupt);
    results.complete = measured.is_ok();
    results.conclude();
    print(&results.table())?;
    if let Some(output) = json
        && measured.is_ok()
    {
        output.write(&results)?;
    }
    measured.map(|()| ExitCode::SUCCESS)
}

fn has_rdma(args: &LinkArgs) -> bool {
    !args.rdma.is_empty() || outboard_link::rdma_devices().is_ok()
}

impl LinkResults {
    fn new(args: &LinkArgs, only: &[LinkOf]) -> LinkResults {
        let round_trip = |&link: &LinkOf| {
            ROUND_TRIP_BYTES.map(|bytes| RoundTrip {
                link,
                bytes,
                samples: 0,
                min_ns: None,
                p50_ns: None,
                p90_ns: None,
                p99_ns: None,
                p999_ns: None,
                max_ns: None,
                times: Vec::new(),
            })
        };
        let bandwidth = |&link: &LinkOf| {
            STREAM_BYTES.map(|bytes| LinkBandwidth {
                link,
                bytes,
                median_bps: None,
                rounds_bps: Vec::new(),
            })
        };
        LinkResults {
            format: FORMAT,
            release: env!("CARGO_PKG_VERSION"),
            time_s: now_s(),
            machine: Machine::this(),
            rounds: if args.quick { ROUNDS_QUICK } else { ROUNDS },
            complete: false,
            rdma_server: args.rdma.to_string(),
            rdma_client: args.client().to_string(),
            round_trips: only.iter().flat_map(round_trip).collect(),
            bandwidths: only.iter().flat_map(bandwidth).collect(),
            raw: None,
        }
    }

    fn measure(
        &mut self,
        args: &LinkArgs,
        only: &[LinkOf],
        interrupt: &Interrupt,
    ) -> anyhow::Result<()> {
        let seconds = if args.quick { ROUND_QUICK_S } else { ROUND_S };
        let is_beside_raw = only.contains(&LinkOf::Rdma) && args.perftest;
        let mut raws = Vec::new();
        for _ in 0..self.rounds {
            for row in &mut self.round_trips {
                interrupt.check()?;
                let trial = round_trips(pair(row.link, args)?, row.bytes, TRIAL_SAMPLES)?;
                let one_s = median(&trial).unwrap_or(1.0) / 1e9;
                let samples = ((seconds / one_s) as usize).clamp(SAMPLES_MIN, SAMPLES);
                row.times
                    .extend(round_trips(pair(row.link, args)?, row.bytes, samples)?);
            }
            for row in &mut self.bandwidths {
                interrupt.check()?;
                let trial = stream(pair(row.link, args)?, row.bytes, STREAM_FRAMES_MIN as u64)?;
                let bytes = (trial / 8.0 * seconds) as usize;
                let frames = (bytes.min(STREAM_TOTAL_BYTES) / row.bytes).max(STREAM_FRAMES_MIN);
                let bps = stream(pair(row.link, args)?, row.bytes, frames as u64)?;
                row.rounds_bps.push(bps);
            }
            // In turns as well, since a machine's load varies.
            if is_beside_raw {
                raws.push(PerftestFigures::measure(args)?);
                self.raw = Some(PerftestFigures::of(&raws));
            }
        }
        Ok(())
    }

    fn conclude(&mut self) {
        for row in &mut self.round_trips {
            let times = sorted(&row.times);
            row.samples = times.len();
            row.min_ns = times.first().copied();
            row.max_ns = times.last().copied();
            [row.p50_ns, row.p90_ns, row.p99_ns, row.p999_ns] =
                [0.5, 0.9, 0.99, 0.999].map(|at| quantile(&times, at));
        }
        for row in &mut self.bandwidths {
            row.median_bps = median(&row.rounds_bps);
        }
        let is_rdma = |link: LinkOf| link == LinkOf::Rdma;
        let ours_ns = self
            .round_trips
            .iter()
            .find(|row| is_rdma(row.link) && row.bytes == RAW_BYTES)
            .and_then(|row| row.p50_ns);
        let ours_bps = self
            .bandwidths
            .iter()
            .find(|row| is_rdma(row.link) && row.bytes == 1 << 20)
            .and_then(|row| row.median_bps);
        if let Some(raw) = &mut self.raw {
            let ratio = |ours: Option<f64>, raw: Option<f64>| Some(ours? / raw?);
            raw.latency_ratio = ratio(ours_ns, raw.write_round_trip_ns);
            raw.bandwidth_ratio = ratio(ours_bps, raw.write_bps);
            raw.within = raw
                .latency_ratio
                .is_some_and(|r| r <= RAW_LATENCY_RATIO_MAX)
                && raw
                    .bandwidth_ratio
                    .is_some_and(|r| r >= RAW_BANDWIDTH_RATIO_MIN);
        }
    }

    fn table(&self) -> String {
        let ns = |ns: Option<f64>| ns.map_or_else(|| "-".into(), time);
        let mut text = String::from(
            "round trip     bytes        min        p50        p90        p99      p99.9\n",
        );
        for row in &self.round_trips {
            text += &format!(
                "{:10} {:>9} {:>10} {:>10} {:>10} {:>10} {:>10}\n",
                row.link.name(),
                row.bytes,
                ns(row.min_ns),
                ns(row.p50_ns),
                ns(row.p90_ns),
                ns(row.p99_ns),
                ns(row.p999_ns),
            );
        }
        text += "bandwidth      bytes       Gb/s\n";
        for row in &self.bandwidths {
            let gbps = row.median_bps.unwrap_or(f64::NAN) / 1e9;
            text += &format!("{:10} {:>9} {gbps:>10.3}\n", row.link.name(), row.bytes);
        }
        if let Some(raw) = &self.raw {
            text += &format!(
                "raw verbs (perftest): write {} there and back, send {}, {:.3} Gb/s written\n\
                 rdma to raw writes: {:.2} times the round trip, {:.2} of the bandwidth\n",
                ns(raw.write_round_trip_ns),
                ns(raw.send_round_trip_ns),
                raw.write_bps.unwrap_or(f64::NAN) / 1e9,
                raw.latency_ratio.unwrap_or(f64::NAN),
                raw.bandwidth_ratio.unwrap_or(f64::NAN),
            );
        }
        text
    }
}

impl LinkOf {
    fn name(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Tcp => "tcp",
            Self::Rdma => "rdma",
        }
    }
}

impl LinkArgs {
    /// Returns the options of the client's device: by default the server's.
    fn client(&self) -> &RdmaOptions {
        self.rdma_client.as_ref().unwrap_or(&self.rdma)
    }
}

fn pair(link: LinkOf, args: &LinkArgs) -> anyhow::Result<Pair> {
    let folder = socket_folder()?;
    let endpoint = match link {
        LinkOf::Shm => Endpoint::Shm(folder.path().join("socket")),
        LinkOf::Tcp => "tcp://127.0.0.1:0".parse()?,
        LinkOf::Rdma => format!("rdma://127.0.0.1:0?{}", args.rdma).parse()?,
    };
    let seen = |endpoint: &Endpoint| endpoint.clone().with_rdma(args.client().clone());
    Pair::between(folder, &endpoint, seen, None)
}

impl PerftestFigures {
    fn measure(args: &LinkArgs) -> anyhow::Result<PerftestFigures> {
        let iterations =
            |all: usize, quick: usize| if args.quick { quick } else { all }.to_string();
        let typical = |tool: &str| -> anyhow::Result<Option<f64>> {
            let size = RAW_BYTES.to_string();
            let samples = iterations(RAW_SAMPLES, RAW_SAMPLES_QUICK);
            let columns = perftest(tool, args, &["-s", &size, "-n", &samples])?;
            // Bytes, iterations, least, most, typical: microseconds one way.
            Ok(columns.get(4).map(|us| 2_000.0 * us))
        };
        let write_round_trip_ns = typical("ib_write_lat")?;
        let send_round_trip_ns = typical("ib_send_lat")?;
        let depth = RAW_DEPTH.to_string();
        let writes = iterations(RAW_WRITES, RAW_WRITES_QUICK);
        let write = ["-s", "1048576", "-n", &writes, "-t", &depth];
        let columns = perftest("ib_write_bw", args, &write)?;
        Ok(PerftestFigures {
            write_round_trip_ns,
            send_round_trip_ns,
            // Bytes, iterations, peak, average: in units of 2^20 bytes per second.
            write_bps: columns.get(3).map(|mib| 8.0 * mib * f64::from(1 << 20)),
            ..PerftestFigures::default()
        })
    }
}

impl PerftestFigures {
    /// Returns the median of each value over the rounds.
    fn of(rounds: &[PerftestFigures]) -> PerftestFigures {
        let of = |what: fn(&PerftestFigures) -> Option<f64>| {
            let values: Vec<f64> = rounds.iter().filter_map(what).collect();
            median(&values)
        };
        PerftestFigures {
            write_round_trip_ns: of(|raw| raw.write_round_trip_ns),
            send_round_trip_ns: of(|raw| raw.send_round_trip_ns),
            write_bps: of(|raw| raw.write_bps),
            ..PerftestFigures::default()
        }
    }
}

/// Runs a tool of perftest. Returns the numbers of the last line that consists only of numbers.
fn perftest(tool: &str, args: &LinkArgs, rest: &[&str]) -> anyhow::Result<Vec<f64>> {
    let command = |options: &RdmaOptions| {
        let mut command = Command::new(tool);
        command.args(["-F", "-p", &RAW_PORT.to_string()]).args(rest);
        if let Some(device) = &options.adapter.device {
            command.args(["-d", device]);
        }
        if let Some(gid) = options.adapter.gid {
            command.args(["-x", &gid.to_string()]);
        }
        command.stdin(Stdio::null()).stderr(Stdio::null());
        command
    };
    let start = |command: &mut Command| {
        let started = command.stdout(Stdio::piped()).spawn();
        started.with_context(|| format!("starting {tool}; it is in the package perftest"))
    };
    let mut server = start(&mut command(&args.rdma))?;
    let until = Instant::now() + Duration::from_secs(RAW_S_MAX);
    // The tool prints nothing when it listens.
    let client = loop {
        thread::sleep(Duration::from_millis(300));
        let done = command(args.client()).arg("127.0.0.1").output()?;
        if done.status.success() || Instant::now() > until {
            break done;
        }
    };
    // A server without a client does not end by itself.
    let _ = server.kill();
    let _ = server.wait();
    let said = String::from_utf8_lossy(&client.stdout);
    match numbers(&said) {
        Some(columns) if client.status.success() => Ok(columns),
        _ => bail!("{tool} failed: {said}"),
    }
}

fn numbers(text: &str) -> Option<Vec<f64>> {
    let columns = |line: &str| -> Option<Vec<f64>> {
        line.split_whitespace()
            .map(|word| word.parse().ok())
            .collect()
    };
    let lines = text.lines().rev().filter_map(columns);
    let mut long_enough = lines.filter(|columns| columns.len() >= 4);
    long_enough.next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn perftest_is_read() {
        let text = "\
---------------------------------------------------------------------------------------
 Link type       : Ethernet
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]
 64      1000          100.10         900.20       150.25              160.00   \t\t3.0
---------------------------------------------------------------------------------------
";
        assert_eq!(numbers(text).unwrap()[4], 150.25);
        assert_eq!(numbers("1 2\nnothing"), None);
    }

    #[test]
    fn shm_and_tcp_are_measured_anywhere() {
        let args = LinkArgs {
            only: vec![LinkOf::Shm, LinkOf::Tcp],
            rdma: RdmaOptions::default(),
            rdma_client: None,
            perftest: false,
            quick: true,
            json: None,
        };
        for link in [LinkOf::Shm, LinkOf::Tcp] {
            let times = round_trips(pair(link, &args).unwrap(), 64, 30).unwrap();
            assert_eq!(times.len(), 30);
            assert!(stream(pair(link, &args).unwrap(), 1 << 20, 16).unwrap() > 0.0);
        }
    }
}
