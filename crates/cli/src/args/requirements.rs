//! Options of `outboard calibrate` and `outboard require`.

use std::path::PathBuf;

use clap::ValueEnum;
use outboard_api::optimise::Level;
use outboard_link::Endpoint;
use outboard_model::{Budget, Confidence};
use outboard_wire::network::{Network, parse_duration};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Beside the local GPU, where there is one, it tells the server's own time from the driver's.

Examples:
  outboard calibrate --json constants.json           a server of its own, over tcp within this machine
  outboard calibrate --link shm
  outboard calibrate --gpu tcp://10.0.0.7 --json constants.json
  outboard require recording --constants constants.json")]
pub(crate) struct CalibrateArgs {
    /// The server to measure [default: one of its own]
    #[arg(long, value_name = "URL")]
    pub(crate) gpu: Option<Endpoint>,
    /// The link to measure, of a server of its own
    #[arg(long, value_enum, default_value_t = LinkKind::Tcp, conflicts_with = "gpu")]
    pub(crate) link: LinkKind,
    /// Few rounds
    #[arg(long)]
    pub(crate) quick: bool,
    /// Write the constants to this file; alone or with -, to standard output, in
    /// place of the text
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    pub(crate) json: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LinkKind {
    Shm,
    Tcp,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Two models answer side by side: a replay of the recording, call by call, and the closed form of the literature \
(docs/requirements.md). Neither needs a GPU or a network.

The exit code is 0 where some network keeps the program within the budget, 3 where none does, 1 where the recording or an \
output cannot be used, 2 where the command line is wrong. Files are written whole or not at all.

Examples:
  outboard require recording                         what keeps it within 5 % of local
  outboard require recording --budget 20% --at metro --report out.html
  outboard require recording --at rtt=100us,bandwidth=10Gbps --optimise or
  outboard require recording --json - | jq .known
  outboard require recording --through recording2    sharper: measured without a network as well
  outboard require recording --level pcie            the GPU behind a longer PCIe, driver and program as they are")]
pub(crate) struct RequireArgs {
    /// A recording of the program
    pub(crate) file: PathBuf,
    /// Allowed overhead of an iteration over its local time: 0% to 1000%
    #[arg(
        long,
        value_name = "PERCENT",
        default_value = "5%",
        allow_hyphen_values = true
    )]
    pub(crate) budget: Budget,
    /// The probability with which a figure keeps the budget, as far as the recording's noise and
    /// the replay's error tell: 50% to 99.9% [default: 90%; if the program was measured without a
    /// network, raised from 90% until the figure is as sure to keep the budget as double the figure
    /// is to exceed it, where the errors allow it]
    #[arg(long, value_name = "PERCENT")]
    pub(crate) confidence: Option<Confidence>,
    /// A recording of the same program on the same machine through a server without a network:
    /// --gpu shm://... --emulate rtt=1ns,bandwidth=100Gbps, at the level of --optimise. Leaves less
    /// in doubt, most of all if given several times
    #[arg(long, value_name = "RECORDING", conflicts_with = "without_network")]
    pub(crate) through: Vec<PathBuf>,
    /// Further recordings on the local GPU, each made just before the second, third, ... --through
    #[arg(long, value_name = "RECORDING", requires = "through")]
    pub(crate) here: Vec<PathBuf>,
    /// In place of --through: how much longer an iteration takes through a server without a network
    /// than on the local GPU, as -9.3%, at the level of --optimise
    #[arg(
        long,
        value_name = "PERCENT",
        value_parser = parse_percent,
        allow_hyphen_values = true,
        requires = "without_network_error"
    )]
    pub(crate) without_network: Option<f64>,
    /// Standard deviation of that, as 1% of the time on the local GPU
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent, requires = "without_network")]
    pub(crate) without_network_error: Option<f64>,
    /// The link over which that was measured: 10us at most, 100Gbps at least
    #[arg(
        long,
        value_name = "NETWORK",
        default_value = "rtt=1ns,bandwidth=100Gbps"
    )]
    pub(crate) without_network_at: Network,
    /// The level of remoting: the driver's calls, or the PCIe
    #[arg(long, value_enum, default_value_t = LevelOfRemoting::Api)]
    pub(crate) level: LevelOfRemoting,
    /// The calls that wait for the server, as in outboard run; without batches
    #[arg(long, value_name = "LEVEL", default_value_t)]
    pub(crate) optimise: Level,
    /// The network at which the costs of calls are shown: a known one, or rtt=10us,bandwidth=1Gbps
    #[arg(long, value_name = "NETWORK", default_value = "25gbe-tcp")]
    pub(crate) at: Network,
    /// Number of the iteration in the recording, from 1 [default: that of median duration]
    #[arg(long, value_name = "N")]
    pub(crate) iteration: Option<usize>,
    /// Duration of an iteration without recording, as 12.5ms: the processor's times are scaled to
    /// it, the GPU's are not [default: as recorded]
    #[arg(long, value_name = "TIME", value_parser = parse_step)]
    pub(crate) step: Option<f64>,
    /// The ranges that are iterations [default: as recorded]
    #[arg(long, value_name = "NAME")]
    pub(crate) iterations: Option<String>,
    /// The costs of sending, as outboard calibrate writes them [default: published numbers]
    #[arg(long, value_name = "FILE")]
    pub(crate) constants: Option<PathBuf>,
    /// Write the answer to this file as JSON; alone or with -, to standard output, in
    /// place of the text
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    pub(crate) json: Option<PathBuf>,
    /// Write the overheads of all examined networks to this file, one a line
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,
    /// Write a page with pictures to this file, which loads nothing else
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LevelOfRemoting {
    /// Calls of the driver travel, as in outboard run
    Api,
    /// Packets of the PCIe travel, as in DxPU
    Pcie,
}

fn parse_percent(text: &str) -> Result<f64, String> {
    let number = text.trim().strip_suffix('%').map(str::trim);
    let percent = number.and_then(|number| number.parse::<f64>().ok());
    percent
        .filter(|percent| percent.is_finite())
        .ok_or_else(|| "write a percentage of the local time, such as -9.3%".into())
}

fn parse_step(text: &str) -> Result<f64, String> {
    let step = parse_duration(text)?;
    match step.is_zero() {
        true => Err("an iteration takes some time, as 12.5ms".into()),
        false => Ok(step.as_nanos() as f64),
    }
}
