//! `outboard bench sessions`: measures the cost of many sessions, idle and busy.

use std::{
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;
use serde::Serialize;

use super::{
    Interrupt, Interrupted, Output, Setting,
    cases::Operation,
    print,
    processes::{Usage, Watch, family},
    report::{Machine, now_s, time},
    side::{Side, Starting, Target},
    statistics::{median, quantile, sorted},
};
use crate::args::SessionsArgs;

const FORMAT: u32 = 1;
/// Time for which idle sessions are watched. The clock of CPU time ticks a hundred times a second.
const IDLE_MS: u64 = 3_000;
const IDLE_QUICK_MS: u64 = 500;
/// Sessions opened one after the other to measure opening; the rest are opened in groups.
const TIMED_CONNECTIONS: usize = 4;
const CROWD: usize = 8;
const LATENCY_SAMPLES: usize = 2_000;
const LATENCY_MS: u64 = 1_000;
const LATENCY_QUICK_MS: u64 = 100;
const BUSY_ROUNDS: usize = 3;
const BUSY_MS: u64 = 2_000;
const BUSY_QUICK_MS: u64 = 200;
const BUSY_SAMPLES: usize = usize::MAX;

#[derive(Serialize)]
struct SessionResults {
    format: u32,
    release: &'static str,
    time_s: u64,
    machine: Machine,
    device: String,
    quick: bool,
    idle: Vec<Idle>,
    busy: Vec<Busy>,
    /// The reason of each measurement that failed.
    errors: Vec<String>,
}

/// Sessions that do nothing, on one side.
#[derive(Serialize)]
struct Idle {
    side: String,
    sessions: usize,
    /// From the start of a program to a current context, while the other sessions exist.
    connect_ms: f64,
    connect_ms_max: f64,
    /// All of the server's processes together; `None` if the server is not on this machine or not
    /// our own.
    server: Option<Usage>,
    /// Percent of a core.
    server_cpu_percent: Option<f64>,
    clients: Usage,
    clients_cpu_percent: f64,
    /// Decrease of the GPU's free memory since the first session; `None` without a local driver.
    gpu_bytes: Option<u64>,
    /// Launch and synchronise of one more session, while the others are idle.
    latency_ns: f64,
    latency_p90_ns: f64,
}

/// Sessions that all do the same work at once.
#[derive(Serialize)]
struct Busy {
    side: String,
    sessions: usize,
    /// Of all sessions together; the median of the rounds.
    steps_per_s: f64,
    rounds_steps_per_s: Vec<f64>,
    /// Ratio of the throughput to that of as many local processes.
    ratio_to_local: Option<f64>,
}

pub(super) fn sessions(args: SessionsArgs, interrupt: &Interrupt) -> anyhow::Result<ExitCode> {
    let json = args.targets.json.as_deref().map(Output::open).transpose()?;
    let mut idle_counts = args.sessions.clone();
    idle_counts.retain(|count| *count > 0);
    idle_counts.sort_unstable();
    idle_counts.dedup();
    let most = idle_counts
        .iter()
        .chain(&args.busy)
        .max()
        .copied()
        .unwrap_or(0);
    let mut setting = Setting::new(&args.targets, usize::from(most) + 1, interrupt)?;
    let mut results = SessionResults {
        format: FORMAT,
        release: env!("CARGO_PKG_VERSION"),
        time_s: now_s(),
        machine: Machine::this(),
        device: String::new(),
        quick: args.quick,
        idle: Vec::new(),
        busy: Vec::new(),
        errors: Vec::new(),
    };
    let measured = measure(&mut setting, &args, &idle_counts, &mut results, interrupt);
    let interrupted = measured
        .as_ref()
        .is_err_and(|error| error.is::<Interrupted>());
    if let Err(error) = &measured {
        results.errors.push(crate::said::whole(error));
    }
    // After an interruption the results are kept; without results the file's former contents are.
    if let Some(output) = json
        && !(interrupted && results.is_empty())
    {
        output.write(&results)?;
    }
    if interrupted {
        return measured.map(|()| ExitCode::SUCCESS);
    }
    match results.errors.as_slice() {
        [] => Ok(ExitCode::SUCCESS),
        errors => {
            let said = setting.explain(anyhow::anyhow!("{}", errors.join("\n")));
            eprintln!("outboard: {said}");
            Ok(ExitCode::FAILURE)
        }
    }
}

impl SessionResults {
    fn is_empty(&self) -> bool {
        self.idle.is_empty() && self.busy.is_empty()
    }

    /// Records a failure and continues, if only this number of sessions was impossible.
    fn fail(&mut self, target: &Target, count: u16, error: anyhow::Error) -> anyhow::Result<()> {
        if error.is::<Interrupted>() {
            return Err(error);
        }
        let why = format!(
            "{}, {count} sessions: {}",
            target.name,
            crate::said::whole(&error)
        );
        print(&format!("{why}\n"))?;
        self.errors.push(why);
        Ok(())
    }
}

fn measure(
    setting: &mut Setting,
    args: &SessionsArgs,
    idle_counts: &[u16],
    results: &mut SessionResults,
    interrupt: &Interrupt,
) -> anyhow::Result<()> {
    let targets = setting.targets.clone();
    // It sees the memory of the whole GPU.
    let mut observer = match targets.iter().find(|target| target.url.is_none()) {
        Some(local) => Some(Side::start(local, &setting.folder, interrupt)?),
        None => None,
    };
    if !idle_counts.is_empty() {
        print(IDLE_HEAD)?;
    }
    for target in targets.iter().filter(|target| target.url.is_some()) {
        let mut crowd = Crowd::new(setting, target, interrupt);
        for &count in idle_counts {
            let idle = match crowd.idle(count.into(), args.quick, observer.as_mut()) {
                Ok(idle) => idle,
                // More than the server or the machine has room for; earlier results remain valid.
                Err(error) => {
                    results.fail(target, count, error)?;
                    break;
                }
            };
            print(&idle.line())?;
            results.device = crowd.device();
            results.idle.push(idle);
        }
    }
    drop(observer);
    if !args.busy.is_empty() {
        print(BUSY_HEAD)?;
    }
    for &count in &args.busy {
        let (device, all) = busy(setting, &targets, count.into(), args.quick, interrupt)?;
        results.device = device;
        for busy in all {
            print(&busy.line())?;
            results.busy.push(busy);
        }
    }
    Ok(())
}

/// Sessions of one side that were opened and are idle.
struct Crowd<'a> {
    setting: &'a Setting,
    target: &'a Target,
    interrupt: &'a Interrupt,
    idle: Vec<Side>,
    free_before: Option<u64>,
}

impl<'a> Crowd<'a> {
    fn new(setting: &'a Setting, target: &'a Target, interrupt: &'a Interrupt) -> Crowd<'a> {
        Crowd {
            setting,
            target,
            interrupt,
            idle: Vec::new(),
            free_before: None,
        }
    }

    fn idle(
        &mut self,
        count: usize,
        is_quick: bool,
        observer: Option<&mut Side>,
    ) -> anyhow::Result<Idle> {
        let free = |side: Option<&mut Side>| side.map(Side::free_bytes).transpose();
        let mut observer = observer;
        if self.free_before.is_none() {
            self.free_before = free(observer.as_deref_mut())?;
        }
        let timed = count.saturating_sub(self.idle.len()).min(TIMED_CONNECTIONS);
        self.grow(count - timed)?;
        let mut connect_ms = Vec::new();
        while self.idle.len() < count {
            let side = Side::start(self.target, &self.setting.folder, self.interrupt)?;
            connect_ms.push(side.ready.connect_ns as f64 / 1e6);
            self.idle.push(side);
        }
        let connect_ms = sorted(&connect_ms);
        let span = Duration::from_millis(if is_quick { IDLE_QUICK_MS } else { IDLE_MS });
        let (server, clients) = (self.server(), self.clients());
        let watches = (server.as_deref().map(Watch::start), Watch::start(&clients));
        self.sleep(span)?;
        let server_cpu_percent = watches.0.map(Watch::percent);
        let clients_cpu_percent = watches.1.percent();
        let gpu_bytes = match (self.free_before, free(observer)?) {
            (Some(before), Some(now)) => Some(before.saturating_sub(now)),
            _ => None,
        };
        let (latency_ns, latency_p90_ns) = self.latency(is_quick)?;
        Ok(Idle {
            side: self.target.name.clone(),
            sessions: count,
            connect_ms: median(&connect_ms).unwrap_or(f64::NAN),
            connect_ms_max: connect_ms.last().copied().unwrap_or(f64::NAN),
            server_cpu_percent,
            server: server.map(Usage::of),
            clients_cpu_percent,
            clients: Usage::of(clients),
            gpu_bytes,
            latency_ns,
            latency_p90_ns,
        })
    }

    fn grow(&mut self, count: usize) -> anyhow::Result<()> {
        while self.idle.len() < count {
            let some = (count - self.idle.len()).min(CROWD);
            let starting: anyhow::Result<Vec<Starting>> = (0..some)
                .map(|_| Side::launch(self.target, &self.setting.folder, self.interrupt))
                .collect();
            for side in starting? {
                let sides = self.idle.len();
                let side = side
                    .ready()
                    .with_context(|| format!("beside {sides} sessions"))?;
                self.idle.push(side);
            }
        }
        Ok(())
    }

    fn latency(&self, is_quick: bool) -> anyhow::Result<(f64, f64)> {
        let budget = Duration::from_millis(if is_quick {
            LATENCY_QUICK_MS
        } else {
            LATENCY_MS
        });
        let mut side = Side::start(self.target, &self.setting.folder, self.interrupt)?;
        let work = Operation::LaunchSynchronize;
        let (ns, _) = side.run("launch + synchronise", work, LATENCY_SAMPLES, budget)?;
        let ns = sorted(&ns);
        let at = |share| quantile(&ns, share).unwrap_or(f64::NAN);
        Ok((at(0.5), at(0.9)))
    }

    fn server(&self) -> Option<Vec<u32>> {
        let server = self.setting.server.as_ref()?;
        Some(family(server.pid()))
    }

    fn clients(&self) -> Vec<u32> {
        self.idle.iter().map(Side::pid).collect()
    }

    fn device(&self) -> String {
        let first = self.idle.first();
        first.map_or(String::new(), |side| side.ready.device.clone())
    }

    fn sleep(&self, span: Duration) -> anyhow::Result<()> {
        let deadline = Instant::now() + span;
        while let Some(left) = deadline.checked_duration_since(Instant::now()) {
            self.interrupt.check()?;
            thread::sleep(left.min(Duration::from_millis(50)));
        }
        Ok(())
    }
}

impl Drop for Crowd<'_> {
    fn drop(&mut self) {
        // All at once: one after the other a driver would take minutes.
        self.idle.iter_mut().for_each(Side::dismiss);
    }
}

/// Measures `count` sessions on each target, which work at once; the targets take turns. Also
/// returns the name of their device.
fn busy(
    setting: &Setting,
    targets: &[Target],
    count: usize,
    is_quick: bool,
    interrupt: &Interrupt,
) -> anyhow::Result<(String, Vec<Busy>)> {
    let budget = Duration::from_millis(if is_quick { BUSY_QUICK_MS } else { BUSY_MS });
    let mut rounds = vec![Vec::new(); targets.len()];
    let mut crowds: Vec<Vec<Side>> = Vec::new();
    for target in targets {
        let starting: anyhow::Result<Vec<Starting>> = (0..count)
            .map(|_| Side::launch(target, &setting.folder, interrupt))
            .collect();
        crowds.push(
            starting?
                .into_iter()
                .map(Starting::ready)
                .collect::<anyhow::Result<_>>()?,
        );
    }
    for _ in 0..if is_quick { 1 } else { BUSY_ROUNDS } {
        for (crowd, rates) in crowds.iter_mut().zip(&mut rounds) {
            for side in crowd.iter_mut() {
                side.ask(Operation::Step, BUSY_SAMPLES, budget)?;
            }
            let mut rate = 0.0;
            for side in crowd.iter_mut() {
                let name = side.target.name.clone();
                let (ns, span_ns) = side.samples(budget).with_context(|| name)?;
                rate += ns.len() as f64 / (span_ns as f64 / 1e9);
            }
            rates.push(rate);
        }
    }
    let local = targets.iter().position(|target| target.url.is_none());
    let local = local.and_then(|at| median(&rounds[at]));
    let of = |(target, rates): (&Target, Vec<f64>)| {
        let steps_per_s = median(&rates).unwrap_or(0.0);
        Busy {
            side: target.name.clone(),
            sessions: count,
            steps_per_s,
            rounds_steps_per_s: rates,
            ratio_to_local: local
                .filter(|_| target.url.is_some())
                .map(|local| steps_per_s / local),
        }
    };
    let device = crowds
        .iter()
        .flatten()
        .map(|side| &side.ready.device)
        .next();
    let device = device.cloned().unwrap_or_default();
    Ok((device, targets.iter().zip(rounds).map(of).collect()))
}

const IDLE_HEAD: &str = "\
idle                  connect  longest   server CPU    server PSS   clients CPU   clients PSS    GPU memory   launch + synchronise (90 %)
";

impl Idle {
    fn line(&self) -> String {
        let mib = |bytes: u64| format!("{:.0} MiB", bytes as f64 / f64::from(1 << 20));
        let or_dash = |text: Option<String>| text.unwrap_or("-".into());
        format!(
            "{:6} {:4} idle {:>10} {:>8} {:>12} {:>13} {:>13} {:>13} {:>13} {:>14} ({})\n",
            self.side,
            self.sessions,
            format!("{:.0} ms", self.connect_ms),
            format!("{:.0} ms", self.connect_ms_max),
            or_dash(self.server_cpu_percent.map(|p| format!("{p:.1} %"))),
            or_dash(self.server.map(|server| mib(server.pss_bytes))),
            format!("{:.1} %", self.clients_cpu_percent),
            mib(self.clients.pss_bytes),
            or_dash(self.gpu_bytes.map(mib)),
            time(self.latency_ns),
            time(self.latency_p90_ns),
        )
    }
}

const BUSY_HEAD: &str = "
busy, all doing the same: 64 KiB in, 20 kernels, synchronise, 4 bytes out
";

impl Busy {
    fn line(&self) -> String {
        let ratio = match self.ratio_to_local {
            Some(ratio) => format!(" {ratio:.2} of local's"),
            None => String::new(),
        };
        format!(
            "{:6} {:4} busy {:>12.0} steps/s{ratio}\n",
            self.side, self.sessions, self.steps_per_s
        )
    }
}
