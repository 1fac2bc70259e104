//! `outboard balance`: runs a balancer, and asks a running one.

use std::{
    env,
    fmt::Write as _,
    fs::File,
    io::BufReader,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::Context as _;
use outboard_balance::{
    config::Config,
    control::{
        self, Flow, Status,
        api::{Question, ask},
    },
};
use outboard_flow::traffic::pcap::Reader;
use outboard_link::Endpoint;

use crate::{
    args::{ApiArgs, BalanceCommand},
    exit::Exit,
    peer, print,
};

/// Frames of a capture that are explained.
const FRAMES_MAX: usize = 1000;

pub(crate) fn balance(command: BalanceCommand) -> anyhow::Result<ExitCode> {
    match command {
        BalanceCommand::Run { config, api } => run(&config, &path_of(api)),
        BalanceCommand::Check { config } => check(&config),
        BalanceCommand::Status { api, json } => status(&path_of(api), json),
        BalanceCommand::Drain { backend, end, api } => {
            let question = Question::Drain {
                backend,
                drain: !end,
            };
            let _: usize = ask(&path_of(api), &question)?;
            Ok(ExitCode::SUCCESS)
        }
        BalanceCommand::Flows { api, limit, json } => flows(&path_of(api), limit, json),
        BalanceCommand::Explain {
            packet,
            pcap,
            port,
            api,
        } => explain(packet.as_deref(), pcap.as_deref(), port, &path_of(api)),
        BalanceCommand::Reload { api } => {
            let () = ask(&path_of(api), &Question::Reload)?;
            Ok(ExitCode::SUCCESS)
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

fn run(config: &Path, api: &Path) -> anyhow::Result<ExitCode> {
    control::run(config, api, greet, |interfaces| {
        println!("balancing on {}", interfaces.join(", "));
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Asks a server whether it answers. Its own time limit holds if it is shorter.
fn greet(url: &str, _timeout: Duration) -> Result<(), String> {
    let endpoint: Endpoint = url.parse().map_err(|error| format!("{url}: {error}"))?;
    peer::greet(&endpoint).map_err(|error| crate::whole(&error))
}

fn check(config: &Path) -> anyhow::Result<ExitCode> {
    match Config::read(config) {
        Ok(config) => {
            let backends: usize = config.services.iter().map(|one| one.backends.len()).sum();
            println!(
                "right: {} services, {backends} backends",
                config.services.len()
            );
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => {
            eprintln!("outboard: {}: {error}", config.display());
            Ok(Exit::USAGE.into())
        }
    }
}

fn status(api: &Path, json: bool) -> anyhow::Result<ExitCode> {
    let status: Status = ask(api, &Question::Status)?;
    if json {
        return print(format!("{}\n", serde_json::to_string_pretty(&status)?).as_bytes());
    }
    let mut out = String::new();
    for service in &status.services {
        let forward = serde_json::to_value(service.forward)?;
        writeln!(
            out,
            "{} {}/{} {} {} opened",
            service.name,
            service.address,
            service.protocol,
            forward.as_str().unwrap_or_default(),
            service.opened
        )?;
        for one in &service.backends {
            let state = match (one.is_removed, one.is_up, one.is_drained) {
                (true, ..) => "removed",
                (_, false, _) => "down",
                (_, _, true) => "drained",
                _ if one.share < 100 => "starting",
                _ => "up",
            };
            writeln!(
                out,
                "  {:<28} {state:<9} weight {:<5} {} connections, {} opened",
                one.address, one.weight, one.connections, one.opened
            )?;
        }
    }
    writeln!(
        out,
        "{} connections, {} half-open; packets from clients {}, from backends {}",
        status.connections, status.half_open, status.packets[0], status.packets[1]
    )?;
    for (reason, count) in &status.dropped {
        writeln!(out, "dropped {count:>10} {reason}")?;
    }
    print(out.as_bytes())
}

fn flows(api: &Path, limit: usize, json: bool) -> anyhow::Result<ExitCode> {
    let question = Question::Flows { limit, phase: None };
    let flows: Vec<Flow> = ask(api, &question)?;
    if json {
        return print(format!("{}\n", serde_json::to_string_pretty(&flows)?).as_bytes());
    }
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
    print(out.as_bytes())
}

fn explain(
    packet: Option<&str>,
    pcap: Option<&Path>,
    port: u16,
    api: &Path,
) -> anyhow::Result<ExitCode> {
    let frames = match (packet, pcap) {
        (Some(packet), _) => vec![bytes_of(packet)?],
        (None, Some(path)) => read_capture(path).with_context(|| path.display().to_string())?,
        (None, None) => Vec::new(),
    };
    let explained: Vec<Vec<String>> = ask(api, &Question::Explain { frames, port })?;
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
    print(out.as_bytes())
}

/// Reads hexadecimal digits, with blanks and colons between bytes.
fn bytes_of(text: &str) -> anyhow::Result<Vec<u8>> {
    let digits: Vec<char> = text
        .chars()
        .filter(|one| !one.is_whitespace() && *one != ':')
        .collect();
    let byte = |pair: &[char]| {
        let text: String = pair.iter().collect();
        u8::from_str_radix(&text, 16)
            .ok()
            .filter(|_| pair.len() == 2 && pair[0] != '+')
    };
    let bytes: Option<Vec<u8>> = digits.chunks(2).map(byte).collect();
    bytes.context("the packet is not whole bytes in hexadecimal")
}

fn read_capture(path: &Path) -> anyhow::Result<Vec<Vec<u8>>> {
    let mut reader = Reader::new(BufReader::new(File::open(path)?))?;
    let mut frames = Vec::new();
    while let Some(record) = reader.read()? {
        if frames.len() == FRAMES_MAX {
            break;
        }
        frames.push(record.bytes);
    }
    Ok(frames)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_read_from_digits() {
        assert_eq!(bytes_of("45 00:ff").expect("three"), [0x45, 0, 0xff]);
        for wrong in ["4", "4g", "+1", "456"] {
            assert!(bytes_of(wrong).is_err(), "{wrong}");
        }
    }
}
