//! `outboard trace`: a summary of a recording, and its conversion for a viewer of time lines.

use std::{
    fmt::Write as _,
    fs,
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context as _;
use outboard_files::Output;
use outboard_trace::{
    Error, Trace, chrome, cut,
    summary::{Durations, Gpu, Sum, Summary},
};

use crate::{
    args::{CutArgs, ExportArgs, ShowArgs, TraceCommand},
    require::write_whole,
};

/// Length at which names are cut in tables.
const NAME_CHARS_MAX: usize = 60;
/// Length of the bar for 100 %.
const BAR_CHARS: f64 = 30.0;

pub(crate) fn trace(command: TraceCommand) -> anyhow::Result<ExitCode> {
    match command {
        TraceCommand::Show(args) => show(&args),
        TraceCommand::Export(args) => export(&args),
        TraceCommand::Cut(args) => cut(&args),
    }
}

/// Reads a recording. The error names the file once.
pub(crate) fn read(path: &Path) -> anyhow::Result<Trace> {
    outboard_trace::read(path).map_err(|error| {
        let what = match error {
            Error::Io { what, .. } => what,
            other => other.to_string(),
        };
        anyhow::anyhow!("reading the recording {}: {what}", path.display())
    })
}

/// Refuses a recording of several servers where one link is asked about.
pub(crate) fn one_server(trace: &Trace, path: &Path) -> anyhow::Result<()> {
    let count = trace.about.servers.len();
    anyhow::ensure!(
        count < 2,
        "the recording {} is of {count} servers, and what a network costs is computed for one: \
         `outboard trace cut --server N` keeps one server's calls",
        path.display()
    );
    Ok(())
}

/// Reads a recording whose iterations are the ranges of this name, if one is given, and says so if
/// it has none.
pub(crate) fn read_with(path: &Path, iterations: Option<&String>) -> anyhow::Result<Trace> {
    let mut trace = read(path)?;
    if let Some(name) = iterations {
        trace.about.iterations = Some(name.clone());
        if cut::count(&trace) == 0 {
            eprintln!("outboard: note: the recording has no range that is named {name:?}");
        }
    }
    Ok(trace)
}

fn show(args: &ShowArgs) -> anyhow::Result<ExitCode> {
    let trace = read_with(&args.file, args.iterations.as_ref())?;
    let summary = Summary::of(&trace);
    let text = table(&summary, args.top)?;
    args.json.say(&summary, || text)
}

fn cut(args: &CutArgs) -> anyhow::Result<ExitCode> {
    let mut trace = read(&args.file)?;
    if let Some(number) = args.server {
        trace = cut::server(&trace, number - 1).with_context(|| {
            let held = match trace.about.servers.len() {
                0 | 1 => "the recording is of one server already".into(),
                count => format!("the program used {count}"),
            };
            format!(
                "{}: there is no server {number}: {held}",
                args.file.display()
            )
        })?;
    }
    let present = cut::count(&trace);
    let (from, to) = args.iterations.unwrap_or((1, present));
    let part = match (args.server, args.iterations) {
        (Some(_), None) => Some(trace),
        _ => cut::iterations(&trace, from..=to),
    };
    let Some(mut part) = part else {
        anyhow::bail!(match present {
            0 => format!(
                "{}: no iterations are marked (NVTX, outboard.mark)",
                args.file.display()
            ),
            _ => format!(
                "{}: there is no iteration {to}; there are {present}",
                args.file.display()
            ),
        });
    };
    if let Some(program) = &args.program {
        part.about.argv = vec![program.clone()];
    }
    let context = || format!("writing {}", args.out.display());
    anyhow::ensure!(
        !args.out.exists() || outboard_trace::is_recording(&args.out).with_context(context)?,
        "{} is there, and no recording: it is not replaced",
        args.out.display()
    );
    let Output::Replaces(out) = outboard_files::output(&args.out).with_context(context)? else {
        anyhow::bail!("{} is no place for a recording", args.out.display());
    };
    // The output is written to another file first, and renamed when it is whole; it may be the
    // input file.
    let mut unfinished = out.clone().into_os_string();
    unfinished.push(".part");
    let unfinished = PathBuf::from(unfinished);
    let written = outboard_trace::write(&unfinished, &part)
        .map_err(|error| match error {
            Error::Io { what, .. } => anyhow::anyhow!("{}: {what}", context()),
            other => anyhow::Error::new(other).context(context()),
        })
        .and_then(|()| fs::rename(&unfinished, &out).with_context(context));
    if written.is_err() {
        let _ = fs::remove_file(&unfinished);
    }
    written.map(|()| ExitCode::SUCCESS)
}

fn export(args: &ExportArgs) -> anyhow::Result<ExitCode> {
    let trace = read(&args.file)?;
    let write = |to: &mut dyn Write| {
        let mut out = BufWriter::new(to);
        chrome::export(&mut out, &trace)?;
        out.flush()
    };
    match args.out == Path::new("-") {
        true => write(&mut io::stdout().lock()).context("writing standard output")?,
        false => write_whole(&args.out, |file| write(file))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn table(summary: &Summary, top: usize) -> Result<String, std::fmt::Error> {
    let mut out = String::new();
    about(&mut out, summary)?;
    classes(&mut out, summary)?;
    servers(&mut out, summary)?;
    functions(&mut out, summary, top)?;
    if let Some(iterations) = &summary.iterations {
        durations(&mut out, "iterations", iterations)?;
    }
    match &summary.gpu {
        Some(gpu) => gpu_table(&mut out, gpu, top)?,
        None => writeln!(out, "\nthere are no times of the GPU in this recording")?,
    }
    Ok(out)
}

/// Writes what was recorded, and whether all of it was.
fn about(out: &mut String, summary: &Summary) -> std::fmt::Result {
    let about = &summary.about;
    writeln!(out, "{}", about.argv.join(" "))?;
    let devices: Vec<&str> = about.devices.iter().map(|d| d.name.as_str()).collect();
    match &about.gpu {
        Some(gpu) => writeln!(
            out,
            "  on {} behind {gpu}, optimise {}",
            devices.join(", "),
            about.optimise.as_deref().unwrap_or("?")
        )?,
        None if devices.is_empty() => writeln!(
            out,
            "  where it ran is not known: the recording ends before that"
        )?,
        None => writeln!(out, "  on {}, here", devices.join(", "))?,
    }
    writeln!(
        out,
        "  {}, {} calls by {} threads on {} streams, {} refused",
        time(summary.duration_ns),
        summary.calls.calls,
        summary.threads,
        summary.streams,
        summary.refused
    )?;
    if !summary.complete {
        writeln!(
            out,
            "  not complete: the program did not end by itself, or still runs"
        )?;
    }
    if summary.lost > 0 {
        writeln!(
            out,
            "  {} records are missing: they came too fast",
            summary.lost
        )?;
    }
    Ok(())
}

fn classes(out: &mut String, summary: &Summary) -> std::fmt::Result {
    writeln!(
        out,
        "\n{:14} {:>10} {:>7} {:>12} {:>12} {:>12}",
        "class", "calls", "", "time", "sent", "answered"
    )?;
    for (class, sum) in &summary.by_class {
        class_row(out, class, sum)?;
    }
    class_row(out, "all", &summary.calls)?;
    let bandwidth = &summary.bandwidth;
    writeln!(
        out,
        "\nbandwidth {:.1} MB/s: {:.1} to the GPU, {:.1} back",
        bandwidth.both_mb_per_s, bandwidth.request_mb_per_s, bandwidth.response_mb_per_s
    )?;
    Ok(())
}

/// Writes the calls for each server, if there are several.
fn servers(out: &mut String, summary: &Summary) -> std::fmt::Result {
    if summary.by_server.is_empty() {
        return Ok(());
    }
    writeln!(
        out,
        "\n{:32} {:>10} {:>7} {:>12} {:>12} {:>12}",
        "server", "calls", "", "time", "sent", "answered"
    )?;
    for server in &summary.by_server {
        write!(out, "{:18}", server.gpu)?;
        class_row(out, "", &server.sum)?;
    }
    Ok(())
}

fn functions(out: &mut String, summary: &Summary, top: usize) -> std::fmt::Result {
    writeln!(
        out,
        "\n{:44} {:12} {:>9} {:>10} {:>10}",
        "function", "class", "calls", "time", "each"
    )?;
    for function in summary.functions.iter().take(top) {
        writeln!(
            out,
            "{:44} {:12} {:>9} {:>10} {:>10}",
            function.name,
            function.class,
            function.sum.calls,
            time(function.sum.duration_ns),
            time(function.sum.duration_ns / function.sum.calls.max(1))
        )?;
    }
    Ok(())
}

fn class_row(out: &mut String, class: &str, sum: &Sum) -> std::fmt::Result {
    writeln!(
        out,
        "{class:14} {:>10} {:>6.1}% {:>12} {:>12} {:>12}",
        sum.calls,
        sum.share * 100.0,
        time(sum.duration_ns),
        bytes(sum.request_bytes),
        bytes(sum.response_bytes)
    )
}

fn gpu_table(out: &mut String, gpu: &Gpu, top: usize) -> std::fmt::Result {
    writeln!(
        out,
        "\nGPU busy {} ({:.1}% of the time), in kernels {} ({:.1}%)",
        time(gpu.busy_ns),
        gpu.busy_share * 100.0,
        time(gpu.kernel_ns),
        gpu.kernel_share * 100.0
    )?;
    for (kind, sum) in &gpu.work {
        writeln!(
            out,
            "  {kind:16} {:>9} {:>10} {:>12}",
            sum.count,
            time(sum.total_ns),
            bytes(sum.bytes)
        )?;
    }
    let Some(kernels) = &gpu.kernels else {
        return Ok(());
    };
    durations(out, "kernels", kernels)?;
    writeln!(
        out,
        "  up to 10 us: {:.1}% of the kernels, {:.1}% of their time",
        gpu.short_kernels_share * 100.0,
        gpu.short_kernels_time_share * 100.0
    )?;
    writeln!(
        out,
        "\n{:>10} {:>9} {:>8} {:>8}",
        "up to", "kernels", "of all", "of time"
    )?;
    let last = gpu.distribution.iter().rposition(|b| b.count > 0);
    let first = gpu.distribution.iter().position(|b| b.count > 0);
    for bucket in &gpu.distribution[first.unwrap_or(0)..last.map_or(0, |last| last + 1)] {
        writeln!(
            out,
            "{:>10} {:>9} {:>7.1}% {:>7.1}% {}",
            bucket.up_to_ns.map_or("more".into(), time),
            bucket.count,
            bucket.count_cdf * 100.0,
            bucket.time_cdf * 100.0,
            "#".repeat((bucket.count_cdf * BAR_CHARS) as usize)
        )?;
    }
    writeln!(
        out,
        "\n{:62} {:>9} {:>10} {:>10}",
        "kernel", "count", "time", "each"
    )?;
    for kernel in gpu.top_kernels.iter().take(top) {
        let name: String = kernel.name.chars().take(NAME_CHARS_MAX).collect();
        writeln!(
            out,
            "{name:62} {:>9} {:>10} {:>10}",
            kernel.count,
            time(kernel.total_ns),
            time(kernel.mean_ns)
        )?;
    }
    Ok(())
}

fn durations(out: &mut String, what: &str, of: &Durations) -> std::fmt::Result {
    writeln!(
        out,
        "\n{} {what}: mean {}, median {}, 90% up to {}, 99% up to {}, {} to {}",
        of.count,
        time(of.mean_ns),
        time(of.median_ns),
        time(of.p90_ns),
        time(of.p99_ns),
        time(of.min_ns),
        time(of.max_ns)
    )
}

fn time(ns: u64) -> String {
    let ns = ns as f64;
    match ns {
        _ if ns < 1e3 => format!("{ns:.0} ns"),
        _ if ns < 1e6 => format!("{:.1} us", ns / 1e3),
        _ if ns < 1e9 => format!("{:.1} ms", ns / 1e6),
        _ => format!("{:.2} s", ns / 1e9),
    }
}

fn bytes(bytes: u64) -> String {
    let count = bytes as f64;
    match count {
        _ if count < 1e3 => format!("{bytes} B"),
        _ if count < 1e6 => format!("{:.1} kB", count / 1e3),
        _ if count < 1e9 => format!("{:.1} MB", count / 1e6),
        _ => format!("{:.2} GB", count / 1e9),
    }
}
