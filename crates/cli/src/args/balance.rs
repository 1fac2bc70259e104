//! Arguments of `outboard balance`.

use std::{net::SocketAddr, path::PathBuf};

use clap::{
    Subcommand,
    builder::{PossibleValuesParser, TypedValueParser},
};
use outboard_balance::engine::Phase;

use super::JsonArgs;

/// Give connections to one address to several servers, and keep each where it is
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Examples:
  outboard balance check balance.toml                is the file right?
  outboard balance run balance.toml
  outboard balance run --take-over balance.toml      a new version in place of the running one
  outboard balance status                            services, backends, connections, drops by reason
  outboard balance drain 203.0.113.1:4833            no new clients; those that are there stay
  outboard balance drain 203.0.113.1:4833 --end
  outboard balance explain --pcap capture.pcap       where its frames would go now, and why
  outboard balance replay balance.toml in.pcap out.pcap
  outboard balance reload                            read the file again, as SIGHUP does

docs/balance.md describes the file.")]
pub(crate) enum BalanceCommand {
    /// Pass packets until Ctrl-C
    #[command(
        after_help = "Examples:\n  outboard balance run balance.toml\n  outboard balance run --take-over balance.toml      a new version in place of the running one"
    )]
    Run {
        /// Configuration file
        #[arg(value_name = "FILE")]
        config: PathBuf,
        /// Go on in place of the balancer that answers at the socket: it hands over interfaces and
        /// connections, and ends. Packets wait in the kernel's queues meanwhile
        #[arg(long)]
        take_over: bool,
        #[command(flatten)]
        api: ApiArgs,
    },
    /// Check a configuration file
    #[command(after_help = "Example:\n  outboard balance check balance.toml")]
    Check {
        #[arg(value_name = "FILE")]
        config: PathBuf,
        #[command(flatten)]
        json: JsonArgs,
    },
    /// Show services, backends, connections and dropped frames
    #[command(
        after_help = "Examples:\n  outboard balance status\n  outboard balance status --json --api http://127.0.0.1:9186 --api-token balance.token"
    )]
    Status {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        json: JsonArgs,
    },
    /// Show rates of packets, connections and dropped frames, again and again
    #[command(
        after_help = "Examples:\n  outboard balance top --interval-ms 500\n  outboard balance top --count 1"
    )]
    Top {
        #[command(flatten)]
        api: ApiArgs,
        /// Milliseconds between two views
        #[arg(long, default_value_t = 1000, value_name = "MS", value_parser = clap::value_parser!(u64).range(100..))]
        interval_ms: u64,
        /// Number of views, all of them until Ctrl-C if absent
        #[arg(long, value_name = "COUNT")]
        count: Option<u64>,
    },
    /// Give a backend no new clients
    #[command(
        after_help = "Examples:\n  outboard balance drain 203.0.113.1:4833\n  outboard balance drain 203.0.113.1:4833 --end"
    )]
    Drain {
        #[arg(value_name = "ADDRESS:PORT")]
        backend: SocketAddr,
        /// Give it new clients again
        #[arg(long)]
        end: bool,
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        json: JsonArgs,
    },
    /// Show connections
    #[command(
        after_help = "Examples:\n  outboard balance flows --limit 20\n  outboard balance flows --phase established --json"
    )]
    Flows {
        #[command(flatten)]
        api: ApiArgs,
        /// Number of connections at most
        #[arg(long, default_value_t = 1000, value_name = "COUNT")]
        limit: usize,
        /// Only connections in this phase, as established or syn_sent
        #[arg(long, value_name = "PHASE", value_parser = phase())]
        phase: Option<Phase>,
        #[command(flatten)]
        json: JsonArgs,
    },
    /// Say where a frame would go now, and why
    #[command(
        after_help = "Examples:\n  outboard balance explain --pcap capture.pcap\n  outboard balance explain '45 00 00 28 ...'           on a TUN device"
    )]
    Explain {
        /// The frame's bytes in hexadecimal, from its Ethernet header on, or from its IP header on
        /// with a TUN device
        #[arg(value_name = "PACKET", required_unless_present = "pcap")]
        packet: Option<String>,
        /// A capture whose frames are explained
        #[arg(long, value_name = "FILE", conflicts_with = "packet")]
        pcap: Option<PathBuf>,
        /// Number of the interface where it comes in, by the file's order
        #[arg(long, default_value_t = 0, value_name = "NUMBER")]
        port: u16,
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        json: JsonArgs,
    },
    /// Pass a capture through a balancer, by the capture's clock, and write what comes out
    #[command(after_help = "Example:\n  outboard balance replay balance.toml in.pcap out.pcap")]
    Replay {
        /// Configuration file
        #[arg(value_name = "FILE")]
        config: PathBuf,
        /// Capture of Ethernet frames (pcap)
        #[arg(value_name = "IN.pcap")]
        input: PathBuf,
        /// Capture that is written
        #[arg(value_name = "OUT.pcap")]
        output: PathBuf,
        #[command(flatten)]
        json: JsonArgs,
    },
    /// Have the configuration file read again: whole, or not at all
    #[command(
        after_help = "Example:\n  outboard balance check balance.toml && outboard balance reload"
    )]
    Reload {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        json: JsonArgs,
    },
}

#[derive(Debug, clap::Args)]
pub(crate) struct ApiArgs {
    /// The balancer's socket for commands, or http://ADDRESS:PORT, its address for control
    /// [default: $XDG_RUNTIME_DIR/outboard-balance.sock, or /run/outboard-balance.sock without
    /// XDG_RUNTIME_DIR; the file's `api` for run]
    #[arg(long, value_name = "PATH|URL", env = "OUTBOARD_BALANCE_API")]
    pub(crate) api: Option<PathBuf>,
    /// File with the token for http://, which only its owner can read
    #[arg(long, value_name = "FILE", env = "OUTBOARD_BALANCE_TOKEN_FILE")]
    pub(crate) api_token: Option<PathBuf>,
}

fn phase() -> impl TypedValueParser<Value = Phase> {
    let names = Phase::ALL.iter().map(|one| one.label());
    PossibleValuesParser::new(names).try_map(|name| {
        let mut all = Phase::ALL.iter().copied();
        all.find(|one| one.label() == name).ok_or("no phase")
    })
}
