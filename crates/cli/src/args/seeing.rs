//! Options of `outboard serve` that show what it does, and those of `outboard top`.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
};

use clap::ValueEnum;
use outboard_link::Endpoint;

use super::{JsonArgs, TokenFileArgs, number};

/// Options by which a server tells what it does.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct SeeingArgs {
    /// Answer requests for metrics over HTTP, for Prometheus: a port of this machine's loopback, or
    /// ADDRESS:PORT for others; port 0 for any. There is no password
    #[arg(long, value_name = "ADDRESS", value_parser = parse_metrics)]
    pub(crate) metrics: Option<SocketAddr>,
    /// Append a line of JSON to this file for each session that has ended, and for refused
    /// connections, some each second at most
    #[arg(long, value_name = "FILE")]
    pub(crate) audit: Option<PathBuf>,
}

/// The form of log messages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// Lines for people
    #[default]
    Text,
    /// One JSON document a line
    Json,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Who may connect to a server may ask this. Sessions can be ended by the server's own user and root only, over its local socket.

Keys: m memory, r messages, b bytes, w waits, a age, s session sort; k ends a session; q quits.

Examples:
  outboard top
  outboard top tcp://10.0.0.7 --once                 one screen, as text
  outboard top --json                                everything that is known
  outboard top --end 12                              end session 12")]
pub(crate) struct TopArgs {
    /// The server [default: OUTBOARD_GPU, else shm at its default address]
    #[arg(value_name = "URL", env = "OUTBOARD_GPU")]
    pub(crate) gpu: Option<Endpoint>,
    /// Show one screen and end
    #[arg(long)]
    pub(crate) once: bool,
    #[command(flatten)]
    pub(crate) json: JsonArgs,
    /// Time between two screens, in seconds
    #[arg(long, value_name = "S", default_value_t = 2,
          value_parser = number::<u16>(1..=3600))]
    pub(crate) interval: u16,
    /// The column by which sessions are sorted
    #[arg(long, value_enum, default_value_t = SortArg::Messages)]
    pub(crate) sort: SortArg,
    /// End this session
    #[arg(long, value_name = "SESSION", conflicts_with_all = ["once", "json"])]
    pub(crate) end: Option<u64>,
    #[command(flatten)]
    pub(crate) token: TokenFileArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SortArg {
    /// Messages a second
    Messages,
    /// Bytes a second, both ways
    Bytes,
    /// Device memory
    Memory,
    /// Mean of the latest waits
    Wait,
    /// The oldest first
    Age,
    /// The session's number
    Session,
}

fn parse_metrics(text: &str) -> Result<SocketAddr, String> {
    if let Ok(port) = text.trim_start_matches(':').parse::<u16>() {
        return Ok((Ipv4Addr::LOCALHOST, port).into());
    }
    text.parse()
        .map_err(|_| format!("{text:?} is neither a port nor ADDRESS:PORT, as 10.0.0.7:9184"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_is_of_the_loopback() {
        for (text, address) in [
            ("9184", "127.0.0.1:9184"),
            (":0", "127.0.0.1:0"),
            ("10.0.0.7:1", "10.0.0.7:1"),
            ("[::]:9184", "[::]:9184"),
        ] {
            assert_eq!(parse_metrics(text).unwrap().to_string(), address);
        }
        for text in ["", "host", "65536", "10.0.0.7"] {
            assert!(parse_metrics(text).is_err(), "{text}");
        }
    }
}
