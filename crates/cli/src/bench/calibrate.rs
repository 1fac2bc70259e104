//! `outboard calibrate`: measures the constants of the cost model on this machine.
//!
//! The list gives the cases of the bench that determine each constant. "local" is this machine's
//! own driver, if there is one:
//!
//! ```text
//!  time_local_ns      cuCtxGetDevice
//!  start_ns           a launch, the call alone, between other things that a program does
//!  start_ns_per_byte  copies to the device, the calls alone: the difference of two lengths
//!  copy_ns_per_byte   copies to the device from pageable memory, waited for: as above
//!  device_ns_per_byte copies from pinned memory, locally: as above
//!  server_ns          a launch of 1,000 queued ones: the excess over local, and over sending them
//!  receive_ns         launch + synchronise: the excess over local, minus a plain round trip,
//!                     start_ns and server_ns
//! ```
//!
//! The last three need a local GPU, and the last one a link that is not over a network.

use std::{process::ExitCode, time::Duration};

use anyhow::Context;
use outboard_api::optimise::Level;
use outboard_link::Endpoint;
use outboard_model::{Constants, WaitCost, show_ns};

use super::{
    CASE_MS, CASE_QUICK_MS, Interrupt, Interrupted, ROUNDS, ROUNDS_QUICK, SAMPLES_MAX,
    SAMPLES_QUICK_MAX, Setting,
    cases::{Operation, RawExchange, Receiver},
    is_loopback,
    side::Side,
    socket,
    statistics::{Figures, median},
};
use crate::args::{BenchTargets, CalibrateArgs, LinkKind};

const SMALL_BYTES: usize = 64 << 10;
const LARGE_BYTES: usize = 1 << 20;

const LONG_BYTES: usize = 16 << 20;

/// Time of a byte in a program over that of a byte that is copied again and again, which is in the
/// caches: measured with programs that copy 1 to 39 MB a step (docs/requirements.md).
const COLD: f64 = 1.27;
/// Means of what programs showed on four machines; they cannot be told by calls alone.
const PROCESSOR_MORE: f64 = 0.03;
const HANDOFF_MORE: f64 = 0.05;

/// Lengths of the kernels that are waited for.
const WAITS_NS: [u64; 4] = [0, 100_000, 1_000_000, 3_000_000];
/// Requests of a wait for a kernel: the launch, the copy, the wait. A kernel that has a length
/// hides all but the first.
const WAIT_REQUESTS: f64 = 3.0;

const WORKS: [Operation; 10 + WAITS_NS.len()] = [
    Operation::ContextDevice,
    Operation::LaunchBetween,
    Operation::ToDeviceCall { bytes: SMALL_BYTES },
    Operation::ToDeviceCall { bytes: LARGE_BYTES },
    Operation::LaunchQueued,
    Operation::LaunchSynchronize,
    to_device(LARGE_BYTES, false),
    to_device(LONG_BYTES, false),
    to_device(LARGE_BYTES, true),
    to_device(LONG_BYTES, true),
    item_after(WAITS_NS[0]),
    item_after(WAITS_NS[1]),
    item_after(WAITS_NS[2]),
    item_after(WAITS_NS[3]),
];

const fn to_device(bytes: usize, pinned: bool) -> Operation {
    Operation::ToDevice { bytes, pinned }
}

const fn item_after(kernel_ns: u64) -> Operation {
    Operation::ItemAfter { kernel_ns }
}

/// Durations per call of each of [`WORKS`], in nanoseconds.
#[derive(Debug, Clone, Copy)]
struct Measured {
    local_call: f64,
    sent_call: f64,
    small_copy: f64,
    large_copy: f64,
    launch_queued: f64,
    launch_wait: f64,
    /// A large and a long copy.
    pageable: [f64; 2],
    pinned: [f64; 2],
    /// Waits for kernels of [`WAITS_NS`].
    waits: [f64; WAITS_NS.len()],
}

pub(crate) fn calibrate(args: CalibrateArgs) -> anyhow::Result<ExitCode> {
    if let Some(path) = &args.json {
        crate::require::check_writable(path)?;
    }
    let interrupt = Interrupt::install()?;
    match measure_here(&args, &interrupt) {
        Err(error) if error.is::<Interrupted>() => {
            eprintln!("outboard: interrupted");
            Ok(crate::exit::Exit::INTERRUPTED.into())
        }
        Err(error) => Err(error),
        Ok(constants) => {
            let mut outputs = crate::require::Outputs::default();
            if let Some(path) = &args.json {
                let mut text = serde_json::to_string_pretty(&constants)?;
                text.push('\n');
                outputs.add(path, text);
            }
            outputs.finish(&for_people(&constants))?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn measure_here(args: &CalibrateArgs, interrupt: &Interrupt) -> anyhow::Result<Constants> {
    let targets = BenchTargets {
        gpu: args.gpu.iter().cloned().collect(),
        no_local: false,
        optimise: vec![Level::default()],
        json: None,
    };
    let mut setting = Setting::new(&targets, 1, interrupt)?;
    if args.gpu.is_none() {
        setting.targets.retain(|target| {
            target
                .url
                .as_ref()
                .is_none_or(|url| is_kind(url, args.link))
        });
    }
    let mut sides = setting.sides(interrupt)?;
    let measured =
        rounds(&mut sides, args.quick, interrupt).map_err(|error| setting.explain(error))?;
    let (remote, here) = match measured.as_slice() {
        [remote] => (remote, None),
        [here, remote] => (remote, Some(here)),
        _ => anyhow::bail!("there is no server to measure"),
    };
    let side = sides.last().context("there is no server to measure")?;
    let url = side
        .target
        .url
        .as_ref()
        .context("there is no server to measure")?;
    let round_trip_ns = match (url, is_loopback(url)) {
        (Endpoint::Shm(_), _) => Some(0.0),
        (_, true) => Some(plain_round_trip(args.quick)?),
        _ => None,
    };
    let mut constants = constants(remote, here, round_trip_ns);
    constants.source = source(side, url, here.is_some(), round_trip_ns.is_some());
    constants.check()?;
    Ok(constants)
}

fn is_kind(url: &Endpoint, kind: LinkKind) -> bool {
    matches!(url, Endpoint::Shm(_)) == (kind == LinkKind::Shm)
}

/// Measures every work on every side, in turns.
fn rounds(
    sides: &mut [Side],
    is_quick: bool,
    interrupt: &Interrupt,
) -> anyhow::Result<Vec<Measured>> {
    let (rounds, samples, budget) = extent(is_quick);
    let mut times = vec![vec![Vec::new(); WORKS.len()]; sides.len()];
    for _ in 0..rounds {
        for (index, work) in WORKS.into_iter().enumerate() {
            for (side, times) in sides.iter_mut().zip(&mut times) {
                interrupt.check()?;
                let (ns, _) = side.run("calibrating", work, samples, budget)?;
                times[index].push(ns);
            }
        }
    }
    let figure = |rounds: &Vec<Vec<f64>>| {
        let figures = Figures::new(rounds).context("nothing was measured")?;
        anyhow::Ok(figures.median_ns)
    };
    let measured = |works: &Vec<Vec<Vec<f64>>>| {
        anyhow::Ok(Measured {
            local_call: figure(&works[0])?,
            sent_call: figure(&works[1])?,
            small_copy: figure(&works[2])?,
            large_copy: figure(&works[3])?,
            launch_queued: figure(&works[4])?,
            launch_wait: figure(&works[5])?,
            pageable: [figure(&works[6])?, figure(&works[7])?],
            pinned: [figure(&works[8])?, figure(&works[9])?],
            waits: [
                figure(&works[10])?,
                figure(&works[11])?,
                figure(&works[12])?,
                figure(&works[13])?,
            ],
        })
    };
    times.iter().map(measured).collect()
}

fn extent(is_quick: bool) -> (usize, usize, Duration) {
    match is_quick {
        true => (
            ROUNDS_QUICK,
            SAMPLES_QUICK_MAX,
            Duration::from_millis(CASE_QUICK_MS),
        ),
        false => (ROUNDS, SAMPLES_MAX, Duration::from_millis(CASE_MS)),
    }
}

fn plain_round_trip(is_quick: bool) -> anyhow::Result<f64> {
    let (_, samples, budget) = extent(is_quick);
    let ping = RawExchange::RoundTrip {
        receiver: Receiver::Usual,
    };
    let ns = socket::measure(ping, samples, budget).context("a plain tcp connection")?;
    median(&ns).context("a plain tcp connection")
}

/// Computes the constants. None is below 0: if a remote call is the faster one, there is no cost.
fn constants(remote: &Measured, here: Option<&Measured>, round_trip_ns: Option<f64>) -> Constants {
    let bytes = (LARGE_BYTES - SMALL_BYTES) as f64;
    let start_ns = remote.sent_call;
    let server_ns = here.map_or(0.0, |here| {
        (remote.launch_queued - here.launch_queued.max(start_ns)).max(0.0)
    });
    let receive_ns = here
        .zip(round_trip_ns)
        .map_or(0.0, |(here, round_trip_ns)| {
            // The launch and the wait are two requests, one after the other.
            let explained = round_trip_ns + 2.0 * start_ns + 2.0 * server_ns;
            (remote.launch_wait - here.launch_wait - explained).max(0.0)
        });
    let explained = here.and(round_trip_ns).map(|round_trip_ns| {
        let once = start_ns + server_ns;
        let hidden = |kernel_ns| match kernel_ns {
            0 => WAIT_REQUESTS * once,
            _ => once,
        };
        WAITS_NS.map(|kernel_ns| round_trip_ns + receive_ns + hidden(kernel_ns))
    });
    let longer = (LONG_BYTES - LARGE_BYTES) as f64;
    let a_byte = |[large, long]: [f64; 2]| ((long - large) / longer).max(0.0);
    Constants {
        source: String::new(),
        copy_ns_per_byte: COLD * a_byte(remote.pageable),
        device_ns_per_byte: here.map_or(0.0, |here| a_byte(here.pinned)),
        waits_for_copies: false,
        start_ns,
        start_ns_per_byte: COLD * ((remote.large_copy - remote.small_copy) / bytes).max(0.0),
        processor_more: PROCESSOR_MORE,
        handoff_more: HANDOFF_MORE,
        time_local_ns: remote.local_call,
        receive_ns,
        server_ns,
        waits: waits(remote, here, explained),
    }
}

/// Computes what waits cost beyond the other constants, by the length of the kernel; if these do
/// not explain the shortest, beyond that one. Without a local GPU a wait there is taken to last as
/// long as its kernel.
fn waits(
    remote: &Measured,
    here: Option<&Measured>,
    explained: Option<[f64; WAITS_NS.len()]>,
) -> Vec<WaitCost> {
    let here = here.map_or(WAITS_NS.map(|ns| ns as f64), |here| here.waits);
    let excess = |index: usize| remote.waits[index] - here[index];
    let costs = WAITS_NS.into_iter().enumerate().map(|(index, ns)| {
        let known = explained.map_or(excess(0), |explained| explained[index]);
        WaitCost {
            gpu_ns: ns as f64,
            more_ns: (excess(index) - known).max(0.0),
        }
    });
    costs.collect()
}

fn source(side: &Side, url: &Endpoint, has_local: bool, has_round_trip: bool) -> String {
    let left_out = match (has_local, has_round_trip) {
        (true, true) => "",
        (true, false) => "; receive_ns is part of the network's round trip",
        (false, _) => "; without a local GPU, server_ns and receive_ns are not known and 0",
    };
    let link = match url {
        Endpoint::Shm(_) => "shm".to_owned(),
        url => url.to_string(),
    };
    format!(
        "outboard calibrate {}, {link}, {}{left_out}",
        env!("CARGO_PKG_VERSION"),
        side.ready.device
    )
}

fn for_people(constants: &Constants) -> String {
    let waits: String = constants
        .waits
        .iter()
        .map(|wait| {
            let length = show_ns(wait.gpu_ns);
            format!("  a wait of {length:17}{}\n", show_ns(wait.more_ns))
        })
        .collect();
    format!(
        "{}\n  sending a call             {}\n  sending a MiB takes more   {}\n  a MiB of a long copy       {}\n  answering a call locally   {}\n  \
         the server, a request      {}\n  receiving an answer        {}\n{waits}",
        constants.source,
        show_ns(constants.start_ns),
        show_ns(constants.start_ns_per_byte * (1 << 20) as f64),
        show_ns(constants.copy_ns_per_byte * (1 << 20) as f64),
        show_ns(constants.time_local_ns),
        show_ns(constants.server_ns),
        show_ns(constants.receive_ns),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const REMOTE: Measured = Measured {
        local_call: 30.0,
        sent_call: 200.0,
        small_copy: 10_000.0,
        large_copy: 10_000.0 + 983_040.0 * 0.25,
        launch_queued: 3_000.0,
        launch_wait: 50_000.0,
        pageable: [200_000.0, 200_000.0 + 15_728_640.0 * 0.5],
        pinned: [200_000.0, 200_000.0 + 15_728_640.0 * 0.25],
        waits: [50_000.0, 150_000.0, 1_060_000.0, 3_090_000.0],
    };
    const HERE: Measured = Measured {
        local_call: 10.0,
        sent_call: 500.0,
        small_copy: 5_000.0,
        large_copy: 50_000.0,
        launch_queued: 2_500.0,
        launch_wait: 12_000.0,
        pageable: [100_000.0, 2_000_000.0],
        pinned: [100_000.0, 100_000.0 + 15_728_640.0 * 0.125],
        waits: [14_000.0, 112_000.0, 1_010_000.0, 3_008_000.0],
    };

    #[test]
    fn constants_are_what_is_left() {
        let found = constants(&REMOTE, Some(&HERE), Some(20_000.0));
        assert_eq!((found.start_ns, found.time_local_ns), (200.0, 30.0));
        assert_eq!(found.start_ns_per_byte, COLD * 0.25);
        assert_eq!(
            (found.copy_ns_per_byte, found.device_ns_per_byte),
            (COLD * 0.5, 0.125)
        );
        assert_eq!(found.server_ns, 500.0);
        assert_eq!(
            found.receive_ns,
            50_000.0 - 12_000.0 - 20_000.0 - 400.0 - 1_000.0
        );
    }

    #[test]
    fn waits_cost_by_length() {
        let more =
            |found: &Constants| -> Vec<f64> { found.waits.iter().map(|w| w.more_ns).collect() };
        let found = constants(&REMOTE, Some(&HERE), Some(20_000.0));
        let lengths: Vec<f64> = found.waits.iter().map(|wait| wait.gpu_ns).collect();
        assert_eq!(lengths, WAITS_NS.map(|ns| ns as f64));
        let receive_ns = found.receive_ns;
        let known = 20_000.0 + 200.0 + 500.0 + receive_ns;
        let beyond = [36_000.0 - 1_400.0, 38_000.0, 50_000.0, 82_000.0];
        assert_eq!(more(&found), beyond.map(|ns: f64| (ns - known).max(0.0)));
        // Over a network, and without a local GPU, the shortest is what the others are beyond.
        let far = constants(&REMOTE, Some(&HERE), None);
        assert_eq!(more(&far), [0.0, 2_000.0, 14_000.0, 46_000.0]);
        let alone = constants(&REMOTE, None, Some(20_000.0));
        assert_eq!(more(&alone), [0.0, 0.0, 10_000.0, 40_000.0]);
        assert!(found.check().is_ok() && far.check().is_ok() && alone.check().is_ok());
    }

    #[test]
    fn what_cannot_be_told_apart_is_nothing() {
        let alone = constants(&REMOTE, None, Some(20_000.0));
        assert_eq!((alone.server_ns, alone.receive_ns), (0.0, 0.0));
        let far = constants(&REMOTE, Some(&HERE), None);
        assert_eq!((far.server_ns, far.receive_ns), (500.0, 0.0));
        // Faster than locally.
        let found = constants(&HERE, Some(&REMOTE), Some(0.0));
        assert_eq!((found.server_ns, found.receive_ns), (0.0, 0.0));
        assert!(found.check().is_ok());
    }
}
