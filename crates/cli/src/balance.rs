//! `outboard balance`: runs a balancer, and asks a running one.

use std::{
    collections::BTreeMap,
    env,
    fmt::Write as _,
    fs::{self, File},
    io::{self, BufReader, BufWriter, IsTerminal as _},
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use outboard_balance::{
    config::{Config, ConfigError},
    control::{
        self, Api, BackendStatus, Bytes, FRAMES_MAX, Flow, Means, QUESTION_BYTES_MAX, Question,
        Start, Status,
    },
    engine::{Phase, Reason},
    replay::{self, ReplayError, Replayed},
};
use outboard_flow::traffic::pcap::Reader;
use outboard_link::Endpoint;
use serde_json::json;

use crate::{
    args::{ApiArgs, BalanceCommand, JsonArgs},
    exit::WrongSettings,
    peer,
    said::print,
};

/// Bytes of frames that one command has explained. Each is two digits there.
const EXPLAINED_BYTES_MAX: usize = QUESTION_BYTES_MAX / 4;
/// Longest text of a token.
const TOKEN_BYTES_MAX: u64 = 4096;

pub(crate) fn balance(command: BalanceCommand) -> anyhow::Result<ExitCode> {
    match command {
        BalanceCommand::Run {
            config,
            take_over,
            api,
        } => run(&config, api, take_over),
        BalanceCommand::Check { config, json } => check(&config, &json),
        BalanceCommand::Status { api, json } => status(&api_of(api)?, &json),
        BalanceCommand::Top {
            api,
            interval_ms,
            count,
        } => top(&api_of(api)?, Duration::from_millis(interval_ms), count),
        BalanceCommand::Drain {
            backend,
            end,
            api,
            json,
        } => {
            let question = Question::Drain {
                backend,
                drain: !end,
            };
            let services: usize = api_of(api)?.ask(&question)?;
            let holds = json!({ "backend": backend, "drained": !end, "services": services });
            json.say(&holds, String::new)
        }
        BalanceCommand::Flows {
            api,
            limit,
            phase,
            json,
        } => flows(&api_of(api)?, limit, phase, &json),
        BalanceCommand::Explain {
            packet,
            pcap,
            port,
            api,
            json,
        } => explain(packet.as_deref(), pcap.as_deref(), port, api, &json),
        BalanceCommand::Replay {
            config,
            input,
            output,
            json,
        } => replay(&config, &input, &output, &json),
        BalanceCommand::Reload { api, json } => {
            let () = api_of(api)?.ask(&Question::Reload)?;
            json.say(&json!({ "reloaded": true }), String::new)
        }
    }
}

fn path_of(api: ApiArgs) -> PathBuf {
    let default = || {
        let folder = env::var_os("XDG_RUNTIME_DIR").filter(|folder| !folder.is_empty());
        let folder = folder.map_or_else(|| PathBuf::from("/run"), PathBuf::from);
        folder.join("outboard-balance.sock")
    };
    api.api.unwrap_or_else(default)
}

/// Finds a running balancer: at its socket, or at its address for control.
fn api_of(api: ApiArgs) -> anyhow::Result<Api> {
    let token = api.api_token.clone();
    let path = path_of(api);
    let Some(address) = path.to_str().and_then(|text| text.strip_prefix("http://")) else {
        return Ok(Api::Socket(path));
    };
    let wrong =
        |what: &str| WrongSettings::of(&anyhow::anyhow!("--api {}: {what}", path.display()));
    let address = address.trim_end_matches('/').parse();
    let address = address.map_err(|_| wrong("http:// needs an IP address and a port"))?;
    let token = token.ok_or_else(|| wrong("http:// needs --api-token"))?;
    let token = secret(&token).map_err(anyhow::Error::msg)?;
    Ok(Api::Http {
        address,
        token: token.trim().into(),
    })
}

fn secret(file: &Path) -> Result<String, String> {
    outboard_trust::read_secret(file, TOKEN_BYTES_MAX).map_err(|error| error.to_string())
}

fn run(config: &Path, api: ApiArgs, take_over: bool) -> anyhow::Result<ExitCode> {
    let start = if take_over {
        Start::TakeOver
    } else {
        Start::Anew
    };
    let means = Means { greet, secret };
    let ran = control::run(config, &path_of(api), start, means, |interfaces| {
        println!("balancing on {}", interfaces.join(", "));
    });
    match ran {
        // Exit code 2, as for other settings: nothing was done.
        Err(control::RunError::Config(error)) => return Err(wrong_settings(config, &error).into()),
        ran => ran?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Asks a server whether it answers within a time.
fn greet(url: &str, timeout: Duration) -> Result<(), String> {
    let endpoint: Endpoint = url.parse().map_err(|error| format!("{url}: {error}"))?;
    peer::greet_within(&endpoint, timeout).map_err(|error| crate::said::whole(&error))
}

fn check(file: &Path, json: &JsonArgs) -> anyhow::Result<ExitCode> {
    let config = Config::read(file).map_err(|error| wrong_settings(file, &error))?;
    control::check(&config, Means { greet, secret })
        .map_err(|error| WrongSettings::of(&anyhow::anyhow!("{}: {error}", file.display())))?;
    let backends: usize = config.services.iter().map(|one| one.backends.len()).sum();
    let services = config.services.len();
    let holds = json!({ "right": true, "services": services, "backends": backends });
    json.say(&holds, || {
        format!("right: {services} services, {backends} backends\n")
    })
}

fn wrong_settings(file: &Path, error: &ConfigError) -> WrongSettings {
    WrongSettings::of(&anyhow::anyhow!("{}: {error}", file.display()))
}

fn state_of(backend: &BackendStatus) -> &'static str {
    match (backend.is_removed, backend.is_up, backend.is_drained) {
        (true, ..) => "removed",
        (_, false, _) => "down",
        (_, _, true) => "drained",
        _ if backend.share < 100 => "starting",
        _ => "up",
    }
}

/// Escapes characters that would change a terminal.
fn shown(name: &str) -> String {
    let one = |one: char| match one.is_control() {
        true => one.escape_default().to_string(),
        false => one.to_string(),
    };
    name.chars().map(one).collect()
}

fn status(api: &Api, json: &JsonArgs) -> anyhow::Result<ExitCode> {
    let status: Status = api.ask(&Question::Status)?;
    let text = status_text(&status)?;
    json.say(&status, || text)
}

fn status_text(status: &Status) -> anyhow::Result<String> {
    let mut out = String::new();
    for service in &status.services {
        let forward = serde_json::to_value(service.forward)?;
        writeln!(
            out,
            "{} {}/{} {} {} opened{}",
            shown(&service.name),
            service.address,
            service.protocol,
            forward.as_str().unwrap_or_default(),
            service.opened,
            if service.is_removed { ", removed" } else { "" }
        )?;
        for one in &service.backends {
            writeln!(
                out,
                "  {:<28} {:<9} weight {:<5} {} connections, {} opened",
                one.address,
                state_of(one),
                one.weight,
                one.connections,
                one.opened
            )?;
        }
    }
    writeln!(
        out,
        "{} connections, {} half-open; packets from clients {}, from backends {}",
        status.connections, status.half_open, status.packets[0], status.packets[1]
    )?;
    for reason in &status.exhausted {
        writeln!(out, "new clients were refused in the last minute: {reason}")?;
    }
    for (reason, count) in &status.dropped {
        writeln!(out, "{:<9} {count:>10} {reason}", fate(reason))?;
    }
    for interface in &status.interfaces_gone {
        writeln!(out, "interface {interface} is gone")?;
    }
    Ok(out)
}

/// Says what becomes of a frame that is not sent on. One that is not for the balancer is its
/// host's.
fn fate(reason: &str) -> &'static str {
    if reason == Reason::NotOurs.label() {
        "passed by"
    } else {
        "dropped"
    }
}

/// Shows rates until the balancer ends, or `count` views were shown.
fn top(api: &Api, interval: Duration, count: Option<u64>) -> anyhow::Result<ExitCode> {
    let is_terminal = std::io::stdout().is_terminal();
    let mut before: Status = api.ask(&Question::Status)?;
    let mut since = Instant::now();
    let mut shown = 0;
    while count.is_none_or(|count| shown < count) {
        std::thread::sleep(interval);
        let now: Status = api.ask(&Question::Status)?;
        let seconds = since.elapsed().as_secs_f64();
        since = Instant::now();
        let mut out = String::new();
        if is_terminal {
            // The cursor to the upper left, and nothing below it.
            out.push_str("\x1b[H\x1b[2J");
        }
        rates(&mut out, &before, &now, seconds)?;
        print(out.as_bytes())?;
        before = now;
        shown += 1;
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes what has changed from one status to another, each second.
fn rates(out: &mut String, before: &Status, now: &Status, seconds: f64) -> std::fmt::Result {
    // A balancer that began anew counts from zero.
    let rate = |before: u64, now: u64| now.saturating_sub(before) as f64 / seconds;
    for (side, name) in ["clients", "backends"].iter().enumerate() {
        writeln!(
            out,
            "from {name:<9} {:>12.0} packets/s {:>10.3} Gbit/s",
            rate(before.packets[side], now.packets[side]),
            rate(before.bytes[side], now.bytes[side]) * 8.0 / 1e9,
        )?;
    }
    writeln!(
        out,
        "connections    {:>12} open, {} half-open, {:.0} opened/s",
        now.connections,
        now.half_open,
        rate(before.opened, now.opened)
    )?;
    for service in &now.services {
        writeln!(
            out,
            "{} {}/{}",
            shown(&service.name),
            service.address,
            service.protocol
        )?;
        let old = before.services.iter().find(|one| one.name == service.name);
        for one in &service.backends {
            let old =
                old.and_then(|old| old.backends.iter().find(|two| two.address == one.address));
            writeln!(
                out,
                "  {:<28} {:<9} {:>8} connections {:>8.0} opened/s",
                one.address,
                state_of(one),
                one.connections,
                rate(old.map_or(0, |old| old.opened), one.opened)
            )?;
        }
    }
    for (reason, count) in &now.dropped {
        let old = before.dropped.get(reason).copied().unwrap_or_default();
        if *count > old {
            let fate = format!("{}/s", fate(reason));
            writeln!(out, "{fate:<11} {:>10.0} {reason}", rate(old, *count))?;
        }
    }
    Ok(())
}

fn flows(
    api: &Api,
    limit: usize,
    phase: Option<Phase>,
    json: &JsonArgs,
) -> anyhow::Result<ExitCode> {
    let flows: Vec<Flow> = api.ask(&Question::Flows { limit, phase })?;
    let mut out = String::new();
    for flow in &flows {
        let source = flow.source.as_ref().map(|source| format!(" as {source}"));
        writeln!(
            out,
            "{} {} > {} > {}{} {} {}+{} packets",
            flow.protocol,
            flow.client,
            flow.service,
            flow.backend,
            source.unwrap_or_default(),
            flow.phase,
            flow.packets[0],
            flow.packets[1]
        )?;
    }
    json.say(&flows, || out)
}

fn explain(
    packet: Option<&str>,
    pcap: Option<&Path>,
    port: u16,
    api: ApiArgs,
    json: &JsonArgs,
) -> anyhow::Result<ExitCode> {
    let mut frames = match (packet, pcap) {
        (Some(packet), _) => vec![packet.parse::<Bytes>().map_err(anyhow::Error::msg)?],
        (None, Some(path)) => read_capture(path).with_context(|| path.display().to_string())?,
        (None, None) => Vec::new(),
    };
    let api = api_of(api)?;
    let mut explained: Vec<Vec<String>> = Vec::new();
    while !frames.is_empty() {
        let mut length = 0;
        let fits = |one: &&Bytes| {
            length += one.0.len();
            length <= EXPLAINED_BYTES_MAX
        };
        // One frame is never too long: captures have them of at most 256 KiB.
        let count = frames.iter().take_while(fits).count().max(1);
        let rest = frames.split_off(count);
        let question = Question::Explain { frames, port };
        explained.extend(api.ask::<Vec<Vec<String>>>(&question)?);
        frames = rest;
    }
    let mut out = String::new();
    for (number, steps) in explained.iter().enumerate() {
        let several = explained.len() > 1;
        let prefix = if several {
            format!("{}: ", number + 1)
        } else {
            String::new()
        };
        writeln!(out, "{prefix}{}", steps.join("\n  "))?;
    }
    json.say(&explained, || out)
}

/// Passes a capture through a balancer of a file that runs nowhere else.
fn replay(config: &Path, input: &Path, output: &Path, json: &JsonArgs) -> anyhow::Result<ExitCode> {
    let config = Config::read(config).map_err(|error| wrong_settings(config, &error))?;
    let name = |path: &Path| path.display().to_string();
    let frames = BufReader::new(File::open(input).with_context(|| name(input))?);
    let is_same = output.exists() && input.canonicalize()? == output.canonicalize()?;
    anyhow::ensure!(!is_same, "{} would be overwritten", name(input));
    let mut replayed = Replayed::default();
    let out = Output::new(output).with_context(|| name(output))?;
    let done = replay::replay(&config, frames, BufWriter::new(&out.file), &mut replayed);
    // Of a capture that is cut the frames before are there; what is no capture replaces nothing.
    let is_kept = match &done {
        Ok(()) => true,
        Err(ReplayError::Write(_)) => false,
        Err(_) => replayed.read > 0,
    };
    if is_kept {
        out.keep().with_context(|| name(output))?;
    }
    let mut text = format!(
        "{} frames read, {} sent, {} connections opened\n",
        replayed.read, replayed.sent, replayed.opened
    );
    if replayed.other > 0 {
        writeln!(text, "left out {:>9} neither IPv4 nor IPv6", replayed.other)?;
    }
    for (reason, count) in &replayed.dropped {
        writeln!(text, "dropped {count:>10} {}", reason.label())?;
    }
    let dropped = replayed.dropped.iter();
    let dropped: BTreeMap<_, _> = dropped.map(|(why, count)| (why.label(), count)).collect();
    let holds = json!({
        "read": replayed.read,
        "sent": replayed.sent,
        "opened": replayed.opened,
        "other": replayed.other,
        "dropped": dropped,
    });
    let printed = json.say(&holds, || text)?;
    done.with_context(|| name(input))?;
    Ok(printed)
}

/// A file that takes the place of another once it is whole.
struct Output {
    file: File,
    /// Where it is written, and its place; `None` for a device or pipe, which is written to itself.
    paths: Option<(PathBuf, PathBuf)>,
}

impl Output {
    fn new(path: &Path) -> io::Result<Output> {
        let outboard_files::Output::Replaces(path) = outboard_files::output(path)? else {
            let file = outboard_files::open_stream(path)?;
            return Ok(Output { file, paths: None });
        };
        let before = fs::metadata(&path);
        let mut beside = path.clone().into_os_string();
        beside.push(format!(".{}.new", std::process::id()));
        let file = File::create_new(&beside)?;
        let output = Output {
            file,
            paths: Some((beside.into(), path)),
        };
        if let Ok(before) = before {
            output.file.set_permissions(before.permissions())?;
        }
        Ok(output)
    }

    fn keep(mut self) -> io::Result<()> {
        match self.paths.take() {
            Some((beside, path)) => {
                fs::rename(&beside, path).inspect_err(|_| drop(fs::remove_file(&beside)))
            }
            None => Ok(()),
        }
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if let Some((beside, _)) = &self.paths {
            let _ = fs::remove_file(beside);
        }
    }
}

fn read_capture(path: &Path) -> anyhow::Result<Vec<Bytes>> {
    let file = BufReader::new(outboard_files::open(path)?);
    let mut reader = Reader::new(file).context("no capture that is understood (pcap)")?;
    let mut frames = Vec::new();
    while let Some(record) = reader.read()? {
        if frames.len() == FRAMES_MAX {
            break;
        }
        frames.push(Bytes(record.bytes));
    }
    Ok(frames)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_greeting_is_awaited_for_the_time_that_is_given() {
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("tcp://{}", silent.local_addr().unwrap());
        let begin = Instant::now();
        let error = greet(&url, Duration::from_millis(300)).unwrap_err();
        assert!(begin.elapsed() < Duration::from_secs(3), "{error}");
        assert!(begin.elapsed() >= Duration::from_millis(300), "{error}");
    }
}
