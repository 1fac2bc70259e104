//! Options of `outboard bench`: the cases and the sides.

use std::{path::PathBuf, time::Duration};

use clap::Subcommand;
use outboard_api::optimise::Level;
use outboard_link::{Endpoint, RdmaOptions};
use outboard_wire::network::{self, Bandwidth};

use crate::bench::{By, Carrier, Group, LinkOf, Place, Scope, Verb};

use super::number;

#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
#[command(after_help = "\
Without --gpu it starts a server of its own, and measures shm and tcp. All sides stay up and take turns, round by round; \
ratios are formed within a round. Beside tcp over loopback stands what a plain connection costs for the same.

Examples:
  outboard bench                                     this machine: local, shm and tcp
  outboard bench --gpu tcp://10.0.0.7 --only launches,item
  outboard bench --gpu shm:///a.sock --gpu shm:///b.sock --json ab.json
  outboard bench sessions --sessions 1,8,64          what many sessions cost
  outboard bench emulate                             how exact emulated networks are here
  outboard bench link                                shm, tcp and rdma by themselves
  outboard bench net                                 RDMA operations that a kernel posts")]
pub(crate) struct BenchArgs {
    #[command(flatten)]
    pub(crate) targets: BenchTargets,
    /// Only these groups of cases
    #[arg(long, value_name = "GROUP", value_delimiter = ',', value_enum)]
    pub(crate) only: Vec<Group>,
    /// Few rounds, few sizes: half a minute
    #[arg(long)]
    pub(crate) quick: bool,
    /// Number of turns of each side [default: 10, with --quick 3]
    #[arg(long, value_name = "N", value_parser = number::<u16>(1..=1000))]
    pub(crate) rounds: Option<u16>,
    #[command(subcommand)]
    pub(crate) command: Option<BenchCommand>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Measure the cost of many sessions, idle and busy
    Sessions(SessionsArgs),
    /// Measure the accuracy of emulated networks on this machine, and the cost of emulation
    Emulate(EmulateArgs),
    /// Measure the links themselves: shm, tcp and rdma, without a program
    Link(LinkArgs),
    /// Measure RDMA operations that a kernel posts by itself, to an adapter in software
    Net(NetArgs),
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Every combination of the values given is measured. The adapter runs in the program's process, and a kernel reaches it on the \
local GPU and over shm; without a GPU the figures are those of the software device, and say so. Threads are of one block.

Examples:
  outboard bench net
  outboard bench net --verb put --bytes 8,4096,1048576 --counters gpu --json net.json
  outboard bench net --verb put-value --threads 1,32,256 --queues 1,4 --window 16
  outboard bench net --verb put,send --provider nic,nvlink
  outboard bench net --verb put --provider nic-shm,nic-tcp
  outboard nic run -- outboard bench net --provider proxy,mlx5
  outboard nic run -- outboard bench net --verb put --provider nic-tcp,nic-verbs")]
pub(crate) struct NetArgs {
    #[command(flatten)]
    pub(crate) targets: BenchTargets,
    /// Only these operations [default: all]
    #[arg(long, value_name = "VERB", value_delimiter = ',', value_enum)]
    pub(crate) verb: Vec<Verb>,
    /// Ways by which operations are executed, which take turns
    #[arg(
        long,
        value_name = "PROVIDER",
        value_delimiter = ',',
        value_enum,
        default_value = "nic"
    )]
    pub(crate) provider: Vec<By>,
    /// Bytes of a put, get or message
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "8,4096,65536",
          value_parser = number::<u64>(1..=1 << 24))]
    pub(crate) bytes: Vec<u64>,
    /// Posters: each thread; or each warp, or the block, which put and put-value only
    #[arg(
        long,
        value_name = "SCOPE",
        value_delimiter = ',',
        value_enum,
        default_value = "thread"
    )]
    pub(crate) scope: Vec<Scope>,
    /// Threads of the block
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1",
          value_parser = number::<u32>(1..=1024))]
    pub(crate) threads: Vec<u32>,
    /// Queues, which posters share
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1",
          value_parser = number::<u32>(1..=64))]
    pub(crate) queues: Vec<u32>,
    /// Operations of a poster between two waits
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,64",
          value_parser = number::<u32>(1..=512))]
    pub(crate) window: Vec<u32>,
    /// Where the counters of queues are
    #[arg(
        long,
        value_name = "PLACE",
        value_delimiter = ',',
        value_enum,
        default_value = "host"
    )]
    pub(crate) counters: Vec<Place>,
    /// Operations of each poster [default: 1000, with --quick 50]
    #[arg(long, value_name = "N", value_parser = number::<u32>(1..=1_000_000))]
    pub(crate) operations: Option<u32>,
    /// One round, few operations
    #[arg(long)]
    pub(crate) quick: bool,
    /// Number of turns of each side [default: 3, with --quick 1]
    #[arg(long, value_name = "N", value_parser = number::<u16>(1..=1000))]
    pub(crate) rounds: Option<u16>,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Small frames back and forth and long ones one way, between two threads of this machine; rdma between two devices of it, or \
from one to itself, where there is one. No server is started.

Examples:
  outboard bench link
  outboard bench link --only rdma --rdma device=mlx5_0 --rdma-client device=mlx5_1 --perftest --json link.json")]
pub(crate) struct LinkArgs {
    /// Only these kinds [default: shm, tcp, and rdma if there is a device]
    #[arg(long, value_name = "KIND", value_delimiter = ',', value_enum)]
    pub(crate) only: Vec<LinkOf>,
    /// The server's RDMA device, with the options after the ? of an rdma:// address
    #[arg(
        long,
        value_name = "OPTIONS",
        default_value = "",
        hide_default_value = true
    )]
    pub(crate) rdma: RdmaOptions,
    /// The client's [default: the server's]
    #[arg(long, value_name = "OPTIONS")]
    pub(crate) rdma_client: Option<RdmaOptions>,
    /// Run ib_write_lat, ib_send_lat and ib_write_bw on the same devices, too, and compare
    #[arg(long)]
    pub(crate) perftest: bool,
    /// Few rounds, few samples: some seconds
    #[arg(long)]
    pub(crate) quick: bool,
    /// Also write the results to this file, as JSON; alone or with -, to standard output, and the
    /// text to standard error
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    pub(crate) json: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
No server is started, and nothing but the link is measured. A network that is not exact here is one that this machine is \
too slow or too busy for: on one or two cores both ends give their core away while they wait.

Examples:
  outboard bench emulate
  outboard bench emulate --carrier shm --rtt 3us,8us --bandwidth 400Gbps --json exact.json")]
pub(crate) struct EmulateArgs {
    /// The link that carries the emulated one
    #[arg(
        long,
        value_name = "KIND",
        value_delimiter = ',',
        value_enum,
        default_value = "shm,tcp"
    )]
    pub(crate) carrier: Vec<Carrier>,
    #[arg(long, value_name = "TIME", value_delimiter = ',', value_parser = network::parse_duration,
          default_value = "2us,5us,10us,20us,50us,100us,1ms")]
    pub(crate) rtt: Vec<Duration>,
    #[arg(
        long,
        value_name = "BANDWIDTH",
        value_delimiter = ',',
        default_value = "1Gbps,10Gbps,25Gbps,40Gbps,100Gbps,200Gbps"
    )]
    pub(crate) bandwidth: Vec<Bandwidth>,
    /// Few rounds, few samples: some seconds
    #[arg(long)]
    pub(crate) quick: bool,
    /// Also write the results to this file, as JSON; alone or with -, to standard output, and the
    /// text to standard error
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    pub(crate) json: Option<PathBuf>,
}

/// The sides of the comparison, and the file of the results.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct BenchTargets {
    /// A server to measure, any number of times [default: one of its own, over shm and tcp]
    #[arg(long, value_name = "URL")]
    pub(crate) gpu: Vec<Endpoint>,
    /// Leave the local GPU out
    #[arg(long)]
    pub(crate) no_local: bool,
    /// Levels of optimisation, as in outboard run; several are several sides
    #[arg(long, value_name = "LEVEL", value_delimiter = ',')]
    pub(crate) optimise: Vec<Level>,
    /// Also write the results to this file, as JSON; alone or with -, to standard output, and the
    /// text to standard error
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    pub(crate) json: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct SessionsArgs {
    #[command(flatten)]
    pub(crate) targets: BenchTargets,
    /// Numbers of sessions that are open and idle; 0 for none
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,8,64,256",
          value_parser = number::<u16>(0..=1024))]
    pub(crate) sessions: Vec<u16>,
    /// Numbers of sessions that do the same work at once
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,8",
          value_parser = number::<u16>(1..=256))]
    pub(crate) busy: Vec<u16>,
    /// Watch for shorter times
    #[arg(long)]
    pub(crate) quick: bool,
}
