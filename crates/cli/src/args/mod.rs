//! The command line, declared once.

mod balance;
mod bench;
mod hand_over;
mod json;
mod nic;
mod pool;
mod requirements;
mod seeing;
mod shares;
mod trace;
mod trust;

use std::{
    collections::BTreeMap, ffi::OsString, ops::RangeInclusive, os::fd::RawFd, path::PathBuf,
    str::FromStr, time::Duration,
};

use clap::{Parser, Subcommand, ValueEnum};
use outboard_api::optimise::{LEVELS, Level, VARIABLE};
use outboard_link::{Endpoint, ListError, emulated};
use outboard_model::{Budget, Pcie};
use outboard_server::limits;
use outboard_soft::{Capability, Checks};
use outboard_wire::network::{self, Bandwidth, KNOWN, Network};
use regex_lite::Regex;

use crate::exit;

pub(crate) use balance::{ApiArgs, BalanceCommand};
pub(crate) use bench::{
    BenchArgs, BenchCommand, BenchTargets, EmulateArgs, LinkArgs, NetArgs, SessionsArgs,
};
pub(crate) use hand_over::HandOverArgs;
pub(crate) use json::{JsonArgs, check_result_file};
pub(crate) use nic::{NicCommand, NicRunArgs};
pub(crate) use pool::{
    BoxArgs, ClaimArgs, ManagerArgs, NeedArgs, PoolAskArgs, PoolAttachArgs, PoolAuditArgs,
    PoolBoxArgs, PoolClaimArgs, PoolCommand, PoolDetachArgs, PoolGpuArgs, PoolHoldArgs,
    PoolInventoryArgs, PoolReleaseArgs, PoolRunArgs, PoolServeArgs, PoolSimulateArgs,
    PoolSparesArgs, PoolTokenArgs, WishArgs,
};
pub(crate) use requirements::{CalibrateArgs, LevelOfRemoting, LinkKind, RequireArgs};
pub(crate) use seeing::{LogFormat, SeeingArgs, SortArg, TopArgs};
pub(crate) use shares::{IdleArgs, SharesArgs};
pub(crate) use trace::{CutArgs, ExportArgs, ShowArgs, TraceCommand};
pub(crate) use trust::{
    KernelTlsArg, KeygenArgs, SandboxArg, TokenCommand, TokenFileArgs, TokensArgs, TrustArgs,
};

/// Servers of one program, in the order of their GPUs.
#[derive(Debug, Clone)]
pub(crate) struct Servers(pub(crate) Vec<Endpoint>);

impl FromStr for Servers {
    type Err = ListError;

    fn from_str(urls: &str) -> Result<Self, ListError> {
        Endpoint::list(urls).map(Servers)
    }
}

const EXAMPLES: &str = "\
Examples:
  outboard serve                                     offer this machine's GPU to this machine
  outboard serve --tls --authorized friends --listen tcp://10.0.0.7
                                                     offer it to those whose keys the file lists (outboard keygen)
  outboard run --gpu tcp://10.0.0.7 -- python train.py
  outboard doctor --gpu tcp://10.0.0.7               what works, what does not, what to do
  outboard top tcp://10.0.0.7                        who uses it, and what they wait for
  outboard bench                                     what calls and copies cost, beside the local GPU
  outboard run --record a.trace -- python train.py   put every call down
  outboard trace show a.trace                        what the calls were
  outboard probe tcp://10.0.0.7                      how good the network to it is
  outboard require recording --budget 5%             how good it must be for a recorded program

Environment:
  OUTBOARD_GPU       the address of the server, in place of --gpu; of several servers for outboard run
  OUTBOARD_POOL      the address of a pool's manager, in place of --pool of outboard pool
  OUTBOARD_POOL_CA   the file of the authorities for managers' certificates, in place of --pool-ca
  OUTBOARD_GRANT_FILE  the file with the grants of a lease, which outboard run --pool makes
  OUTBOARD_LEASE     the number of the program's lease, which outboard run --pool sets, as OUTBOARD_POOL
  OUTBOARD_CA        the file of the authorities for servers' certificates, in place of --ca
  OUTBOARD_CERTIFICATE, OUTBOARD_CERTIFICATE_KEY  the program's own certificate, in place of --certificate and --key
  OUTBOARD_KEY_FILE  the file with the key of this side for tcps addresses, in place of the user's own
  OUTBOARD_TOKEN_FILE  the file with the token for the server, in place of --token-file
  OUTBOARD_KERNEL_TLS  off: programs encrypt their tcps connections themselves, also where the kernel can
  OUTBOARD_OPTIMISE  which calls wait for the server, in place of --optimise (see outboard run --help)
  OUTBOARD_EMULATE   the network to emulate, in place of --emulate (see outboard run --help)
  OUTBOARD_STATS     a file for the counts of each call, - for a line on standard error
  OUTBOARD_STATS_TIMES  1: the file says how long calls took, too, and what of it was sending and waiting
  OUTBOARD_RECORD    a file for a recording of every call, in place of --record
  OUTBOARD_LOG       what to log to standard error: error, warn, info, debug, trace, or directives as outboard_session=debug";

/// Use a GPU in another process or machine as if it were here.
#[derive(Debug, Parser)]
#[command(name = "outboard", version, arg_required_else_help = true)]
#[command(after_help = help_of_all())]
pub(crate) struct Args {
    /// The form of log messages on standard error
    #[arg(
        long,
        value_enum,
        value_name = "FORMAT",
        env = "OUTBOARD_LOG_FORMAT",
        default_value_t,
        global = true
    )]
    pub(crate) log_format: LogFormat,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Offer this machine's GPU, or its CPU in place of one, to other processes and machines
    Serve(Box<ServeArgs>),
    /// Run a program with the GPU of a server
    Run(RunArgs),
    /// Report what works here, what does not, and the remedies
    Doctor(DoctorArgs),
    /// Show the sessions and GPUs of a server, and what each waits for
    Top(TopArgs),
    /// Measure the cost of calls, round trips, copies and launches, and of the local GPU if there
    /// is one
    Bench(BenchArgs),
    /// Measure the network to a server: round trips and bandwidth, idle and loaded
    Probe(ProbeArgs),
    /// Run a program over a grid of emulated networks
    Sweep(SweepArgs),
    /// Measure the cost of sending and answering calls here, for outboard require
    Calibrate(CalibrateArgs),
    /// Find the networks that are good enough for a recorded program
    Require(RequireArgs),
    /// Show a recording of a program, or convert it for other tools
    #[command(subcommand)]
    Trace(TraceCommand),
    #[command(subcommand)]
    Balance(BalanceCommand),
    #[command(subcommand)]
    Token(TokenCommand),
    /// Make a key, by which a server or a program is known over encrypted connections
    Keygen(KeygenArgs),
    #[command(subcommand)]
    Pool(PoolCommand),
    #[command(subcommand)]
    Nic(NicCommand),
    /// Print the completions for a shell
    Completions { shell: clap_complete::Shell },
    /// Print the manual page
    Man,
    #[command(hide = true)]
    PoolHold(PoolHoldArgs),
    #[command(hide = true)]
    Worker(WorkerArgs),
    #[command(hide = true)]
    BenchWorker,
    #[command(hide = true)]
    BenchNetPeer,
    #[command(hide = true)]
    TryLibrary { path: PathBuf },
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Whoever can connect can use the GPU and run any code on it. A shm address is open to your own user, root, and the users \
of --allow-uid. A tcp address beyond this machine needs --tls and --authorized or --tokens, or --insecure on a network \
that you trust; rdma needs --insecure, also with --tls.

Examples:
  outboard serve                                     shm, at the default address
  outboard serve --listen tcp://127.0.0.1:0          a port of the system's choice, printed on standard output
  outboard serve --listen shm:///run/gpu.sock --memory 8GiB --sessions-max 4
  outboard serve --listen shm:///run/gpu.sock --allow-uid 1001 --socket-group 100
  outboard serve --insecure --listen rdma://10.0.0.7 RoCE or InfiniBand, by the device that has this address
  outboard serve --insecure --listen 'rdma://10.0.0.7?device=mlx5_0&gid=3&traffic_class=106'
  outboard serve --insecure --tls --authorized friends --listen rdma://10.0.0.7
  outboard serve --device soft --threads 8           without a GPU
  outboard serve --config serve.toml --check-config  is the file right?
  outboard serve --device soft --capability 9.0 --memory 4GiB")]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    pub(crate) config: ConfigArgs,
    #[command(flatten)]
    pub(crate) json: JsonArgs,
    /// Address to listen on, any number of times: shm:///PATH, tcp://HOST[:PORT] or
    /// rdma://HOST[:PORT], port 0 for any [default: shm://$XDG_RUNTIME_DIR/outboard.sock, or
    /// shm:///tmp/outboard-UID/server.sock without XDG_RUNTIME_DIR]
    #[arg(long, value_name = "URL")]
    pub(crate) listen: Vec<Endpoint>,
    /// The device that programs use
    #[arg(long, value_enum, default_value_t = DeviceArg::Auto)]
    pub(crate) device: DeviceArg,
    /// Device memory that one program may allocate on each device, as 8GiB or 500MB; the soft
    /// device reports it as its size [default: all; for the soft device half of this machine's, at
    /// most 8GiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) memory: Option<u64>,
    /// Threads of the soft device, for each program [default: one for each core]
    #[arg(long, value_name = "N", value_parser = number::<u16>(1..=1024))]
    pub(crate) threads: Option<u16>,
    /// Soft devices that each program sees [default: 1]
    #[arg(long, value_name = "N", value_parser = number::<u8>(1..=64))]
    pub(crate) devices: Option<u8>,
    /// Compute capability of the soft device: 7.5, 8.0, 8.6, 8.9, 9.0, 10.0 or 12.0. PTX for later
    /// ones is refused as by such a GPU; PTX that is newer than 8.0 and not supported is refused
    /// with its line (docs/software-gpu.md) [default: 8.0]
    #[arg(long, value_name = "X.Y")]
    pub(crate) capability: Option<Capability>,
    #[command(flatten)]
    pub(crate) watch: WatchArgs,
    /// Programs served at the same time; further ones are refused
    #[arg(long, value_name = "N", default_value_t = limits::SESSIONS_DEFAULT_MAX as u16,
          value_parser = number::<u16>(1..=4096))]
    pub(crate) sessions_max: u16,
    /// Workers kept ready for the next programs, which then do not wait for the driver to start;
    /// each holds one CUDA context on the first GPU while it waits (some hundred MiB of its
    /// memory), and takes no processor time. 0: none
    #[arg(long, value_name = "N", default_value_t = limits::SPARES_DEFAULT as u8,
          value_parser = number::<u8>(0..=limits::SPARES_MAX as i64))]
    pub(crate) spare: u8,
    /// Stop at the end of standard input, as when the program that started the server through a
    /// pipe ends, however it does
    #[arg(long)]
    pub(crate) until_eof: bool,
    #[command(flatten)]
    pub(crate) cache: CacheArgs,
    #[command(flatten)]
    pub(crate) seeing: SeeingArgs,
    #[command(flatten)]
    pub(crate) trust: TrustArgs,
    #[command(flatten)]
    pub(crate) idle: IdleArgs,
    #[command(flatten)]
    pub(crate) shares: SharesArgs,
    #[command(flatten)]
    pub(crate) hand_over: HandOverArgs,
    #[command(flatten)]
    pub(crate) pool: BoxArgs,
}

/// The file of the settings.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct ConfigArgs {
    /// File of settings (TOML): the options here without their dashes, as sessions-max = 8; what
    /// stands on the command line wins [default: $XDG_CONFIG_HOME/outboard/serve.toml or
    /// ~/.config/outboard/serve.toml, else /etc/outboard/serve.toml, if there is one]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Read no file of settings
    #[arg(long, conflicts_with = "config")]
    pub(crate) no_config: bool,
    /// Check the settings and this machine, print what holds (--json), and end
    #[arg(long)]
    pub(crate) check_config: bool,
    /// File that was read.
    #[arg(skip)]
    pub(crate) read: Option<PathBuf>,
    /// Options that are set, and their values.
    #[arg(skip)]
    pub(crate) set: BTreeMap<String, Vec<String>>,
}

/// Options by which the soft device watches kernels.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct WatchArgs {
    /// Check the kernels of the soft device for mistakes, any of memory, race, uninitialised,
    /// barrier, or all: the program prints the findings, after =========, and they are logged here
    /// (docs/software-gpu.md)
    #[arg(long, value_name = "LIST")]
    pub(crate) check: Option<Checks>,
    /// With --check: a launch with findings fails with CUDA_ERROR_LAUNCH_FAILED
    #[arg(long, requires = "check")]
    pub(crate) check_fail: bool,
    /// Run blocks, warps and diverged lanes of the soft device in an order drawn from this number,
    /// the same every time
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
}

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct CacheArgs {
    /// Folder for GPU code, so that each client sends it once [default:
    /// $XDG_CACHE_HOME/outboard/images, or ~/.cache/outboard/images]
    #[arg(long, value_name = "DIR", conflicts_with = "no_cache")]
    pub(crate) cache: Option<PathBuf>,
    /// Keep no GPU code between programs
    #[arg(long)]
    pub(crate) no_cache: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DeviceArg {
    /// The machine's GPUs if there are any, otherwise soft
    Auto,
    /// The machine's GPUs, through its driver
    Nvidia,
    /// PTX on the CPU: real results, slowly
    Soft,
}

#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("what_for").multiple(true))]
#[command(after_help = "\
The exit code is the program's own; 126 or 127 where it cannot be started, 1 where no server answers.

Examples:
  outboard run -- ./vectoradd                        the server of this machine, at its default address
  outboard run --gpu tcp://10.0.0.7 -- python train.py --epochs 3
  outboard run --gpu 'rdma://10.0.0.7?device=mlx5_1' -- python train.py
  OUTBOARD_GPU=tcp://10.0.0.7 outboard run -- python train.py
  outboard run --gpu tcp://10.0.0.7,tcp://10.0.0.8 -- python train.py
                                                     with the GPUs of both servers (docs/design/several-servers.md)
  outboard run --pool http://manager:4834 --gpus 2 --model H200 -- python train.py
                                                     with GPUs of a pool (docs/pool.md)
  outboard run --stats -- ./vectoradd                say at the end what its calls were
  outboard run --optimise sync -- ./vectoradd        how slow it would be if every call waited
  outboard run --emulate rtt=20us,bandwidth=25Gbps -- ./vectoradd
                                                     how slow it would be with the GPU behind that network
  outboard run --record a.trace -- python train.py   put every call down, for outboard trace
  outboard run --local --record a.trace -- python train.py
                                                     the same of this machine's own GPU, with its times

A program with several processes writes one recording for each that uses the GPU: FILE, and FILE.PID for the others.")]
pub(crate) struct RunArgs {
    /// The server, or several with commas between them: the program sees all their GPUs, in this
    /// order; may be repeated [default: shm, at its default address]
    #[arg(long, value_name = "URL,...", env = "OUTBOARD_GPU")]
    pub(crate) gpu: Vec<Servers>,
    /// Show the program the first N GPUs only, as CUDA_VISIBLE_DEVICES=0,...,N-1 does; an error if
    /// there are fewer. With --pool: the number of GPUs to ask for [default: 1]
    #[arg(long, value_name = "N", value_parser = number::<u16>(1..=i64::from(u16::MAX)), conflicts_with = "local")]
    pub(crate) gpus: Option<u16>,
    #[command(flatten)]
    pub(crate) pool: PoolRunArgs,
    #[command(flatten)]
    pub(crate) token: TokenFileArgs,
    /// Print the numbers of calls that were answered locally, sent without waiting, and waited for
    #[arg(long)]
    pub(crate) stats: bool,
    /// Leave the program's own libcupti.so.13 in place: torch.profiler then sees no GPU
    #[arg(long)]
    pub(crate) no_profiler: bool,
    /// The calls that wait for the server; results are the same at every level
    #[arg(long, value_name = "LEVEL", env = VARIABLE, default_value_t, long_help = levels_help())]
    pub(crate) optimise: Level,
    /// Delay messages between program and server as this network would: rtt=10us,bandwidth=1Gbps,
    /// or a known one
    #[arg(long, value_name = "NETWORK", env = emulated::VARIABLE, long_help = networks_help())]
    pub(crate) emulate: Option<Network>,
    /// Use this machine's own driver, to record what remoting would send; OUTBOARD_DRIVER may name
    /// another one
    #[arg(long, requires = "what_for", conflicts_with = "stats")]
    pub(crate) local: bool,
    /// With --local: emulate a longer PCIe, as DxPU does: rtt=6.8us,tags=140,mrs=128.
    /// Kernels, memsets and copies begin later, copies to the device are slower
    #[arg(
        long,
        value_name = "PCIE",
        requires = "local",
        conflicts_with = "emulate",
        group = "what_for"
    )]
    pub(crate) emulate_pcie: Option<Pcie>,
    /// Record every driver call to this file; an existing recording is replaced, any other file is
    /// not
    #[arg(long, value_name = "FILE", group = "what_for")]
    pub(crate) record: Option<PathBuf>,
    /// The ranges (NVTX, outboard.mark) that are iterations [default: those with "iteration" in
    /// their name]
    #[arg(long, value_name = "NAME", requires = "record")]
    pub(crate) iterations: Option<String>,
    /// With --local: let N iterations pass before the GPU is timed. They show the times of calls
    /// without the timing, which makes calls slower; predictions use these times
    #[arg(long, value_name = "N", requires = "record", requires = "local")]
    pub(crate) untimed: Option<u32>,
    /// The program and its arguments; one whose name begins with - comes after --
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    pub(crate) program: Vec<OsString>,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "The exit code is 0 only where everything is well.")]
pub(crate) struct DoctorArgs {
    /// The server [default: shm, at its default address]
    #[arg(long, value_name = "URL", env = "OUTBOARD_GPU")]
    pub(crate) gpu: Option<Endpoint>,
    #[command(flatten)]
    pub(crate) token: TokenFileArgs,
    #[command(flatten)]
    pub(crate) json: JsonArgs,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
A round trip is one message there and back, as a call that waits makes it: the network's own, and what both ends need for \
a message. Loaded means while the connections of the line above carry all they can. Nothing runs on the GPU.

A recording is judged by the idle round trip and the slower direction of one connection. Both ends' work on a message is \
in that round trip and in the model as well, so that the answer errs on the side of caution. The exit code is 3 where a \
recording's overhead is over the budget.

Examples:
  outboard probe tcp://10.0.0.7
  outboard probe shm:///tmp/gpu.sock --seconds 1 --json
  outboard probe tcp://10.0.0.7 --connections 8      as many as a session has at most
  outboard probe tcp://10.0.0.7 --recording a.trace  would this program do over it?")]
pub(crate) struct ProbeArgs {
    /// The server [default: OUTBOARD_GPU, else shm at its default address]
    #[arg(value_name = "URL", env = "OUTBOARD_GPU")]
    pub(crate) gpu: Option<Endpoint>,
    #[command(flatten)]
    pub(crate) token: TokenFileArgs,
    /// Duration of the measurement, in seconds
    #[arg(long, value_name = "S", default_value_t = 5,
          value_parser = number::<u16>(1..=3600))]
    pub(crate) seconds: u16,
    /// Recordings of programs, any number of times: show the cost of this network for each, and
    /// whether it keeps the budget
    #[arg(long, value_name = "FILE")]
    pub(crate) recording: Vec<PathBuf>,
    /// Allowed overhead of a recording's iteration over its local time
    #[arg(
        long,
        value_name = "PERCENT",
        default_value = "5%",
        allow_hyphen_values = true
    )]
    pub(crate) budget: Budget,
    /// The costs of sending, for the recordings, as outboard calibrate writes them [default:
    /// published numbers]
    #[arg(long, value_name = "FILE")]
    pub(crate) constants: Option<PathBuf>,
    /// Number of connections for bandwidth over several connections
    #[arg(long, value_name = "N", default_value_t = 4,
          value_parser = number::<u8>(1..=16))]
    pub(crate) connections: u8,
    #[command(flatten)]
    pub(crate) json: JsonArgs,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
In each round the program runs once without emulation and once on each network. What was measured is kept in --out after \
every run: the same command goes on where it was ended, and repeats what failed. The exit code is 0 where every run \
succeeded, 1 where one failed, 130 where it was interrupted.

Examples:
  outboard sweep --rtt 2us,10us,100us --bandwidth 1Gbps,100Gbps --out s.json -- python train.py --steps 50
  outboard sweep --rtt 10us --out s.json --metric 'step: ([0-9.]+) ms' -- python train.py")]
pub(crate) struct SweepArgs {
    /// A server on this machine [default: shm, at its default address]
    #[arg(long, value_name = "URL", env = "OUTBOARD_GPU")]
    pub(crate) gpu: Option<Endpoint>,
    /// Round-trip times, as 2us,0.1ms
    #[arg(long, value_name = "TIME,...", required = true, value_delimiter = ',', value_parser = network::parse_duration,
          allow_hyphen_values = true)]
    pub(crate) rtt: Vec<Duration>,
    /// Bandwidths, as 1Gbps,12.5GB/s [default: without bound]
    #[arg(long, value_name = "RATE,...", value_delimiter = ',')]
    pub(crate) bandwidth: Vec<Bandwidth>,
    /// Number of turns of each network
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = number::<u32>(1..=1000))]
    pub(crate) rounds: u32,
    /// A regular expression: the number in its first group, at its last match on standard output,
    /// is the measured value [default: the seconds of the whole run]
    #[arg(long, value_name = "REGEX", value_parser = parse_metric)]
    pub(crate) metric: Option<Regex>,
    /// The file of the results (JSON)
    #[arg(long, value_name = "FILE")]
    pub(crate) out: PathBuf,
    #[command(flatten)]
    pub(crate) json: JsonArgs,
    /// Time limit of one run, in seconds
    #[arg(long, value_name = "S", default_value_t = 600, value_parser = number::<u32>(1..=86_400))]
    pub(crate) timeout_s: u32,
    /// Continue with other networks after a run fails
    #[arg(long)]
    pub(crate) keep_going: bool,
    /// The program and its arguments; one whose name begins with - comes after --
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    pub(crate) program: Vec<OsString>,
}

/// Arguments with which the supervisor starts a worker.
#[derive(Debug, clap::Args)]
pub(crate) struct WorkerArgs {
    #[arg(long)]
    pub(crate) control: RawFd,
}

fn help_of_all() -> String {
    format!("{EXAMPLES}\n\n{}", exit::table())
}

fn levels_help() -> String {
    let mut help = String::from(
        "Which calls wait for the server, to see what each optimisation is worth; results are the same at every level:",
    );
    for (form, meaning) in LEVELS {
        help.push_str(&format!("\n- {form}: {meaning}"));
    }
    help
}

fn networks_help() -> String {
    let mut help = String::from(
        "Delay what goes between program and server as this network would. Both must be on one machine, over shm (which is \
         more exact) or tcp. A network has these parts, of which it needs one of the first two:
- rtt=10us: what an empty message takes there and back
- bandwidth=1Gbps: what each direction carries; bits as 1Gbps or 1Gbit/s, bytes as 125MB/s
- jitter=2us: what a message takes longer, on average, each way (exponentially distributed; order is kept)
- tail=50us@0.1%: of so many messages each takes that much longer
- seed=7: other draws for jitter and tail
or it is a known one, which such parts may follow:",
    );
    for known in KNOWN {
        let network = known.network();
        help.push_str(&format!("\n- {}: {}; {network}", known.name, known.what));
    }
    help
}

/// Returns a parser of whole numbers within a range. Its error names the range, whatever is wrong.
fn number<T: TryFrom<i64>>(
    range: RangeInclusive<i64>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync {
    move |text| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        let number = number.and_then(|number| T::try_from(number).ok());
        let (least, most) = (range.start(), range.end());
        number.ok_or_else(|| format!("it is a whole number from {least} to {most}"))
    }
}

/// Returns a parser of times within a range of milliseconds: 500ms, 5s, 10m, 1h.
fn time(
    ms: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<Duration, String> + Clone + Send + Sync {
    move |text| {
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let unit = match &text[digits.len()..] {
            "ms" => Some(1),
            "s" => Some(1_000),
            "m" => Some(60_000),
            "h" => Some(3_600_000),
            _ => None,
        };
        let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
        let number: Option<u64> = digits.parse().ok().filter(|_| is_number);
        let found = number.zip(unit).and_then(|(n, unit)| n.checked_mul(unit));
        let found = found.filter(|found| ms.contains(found));
        let (least, most) = (shown(*ms.start()), shown(*ms.end()));
        found
            .map(Duration::from_millis)
            .ok_or_else(|| format!("it is a time from {least} to {most}, as 500ms, 5s, 10m or 1h"))
    }
}

fn shown(ms: u64) -> String {
    match ms {
        0..1_000 => format!("{ms}ms"),
        1_000..60_000 => format!("{}s", ms / 1_000),
        60_000..3_600_000 => format!("{}m", ms / 60_000),
        _ => format!("{}h", ms / 3_600_000),
    }
}

/// Parses bytes with a decimal or binary unit: 1048576, 500MB, 8GiB.
fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit: u64 = match &text[digits.len()..] {
        "" | "B" => 1,
        "kB" | "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "TB" => 1_000_000_000_000,
        "KiB" | "K" => 1 << 10,
        "MiB" | "M" => 1 << 20,
        "GiB" | "G" => 1 << 30,
        "TiB" | "T" => 1 << 40,
        other => {
            return Err(format!(
                "there is no unit {other:?}; use B, kB, MB, GB, TB, KiB, MiB, GiB or TiB"
            ));
        }
    };
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("{digits:?} is not a whole number"));
    }
    let number: Option<u64> = digits.parse().ok();
    match number.and_then(|number| number.checked_mul(unit)) {
        Some(0) => Err("no program can work with 0 bytes".into()),
        Some(bytes) => Ok(bytes),
        None => Err("more bytes than an address has".into()),
    }
}

/// Parses a regular expression with a group, which finds the value.
fn parse_metric(text: &str) -> Result<Regex, String> {
    let metric =
        Regex::new(text).map_err(|error| format!("it is no regular expression: {error}"))?;
    match metric.captures_len() {
        1 => Err("it has no group, as ([0-9.]+), around the number".into()),
        _ => Ok(metric),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_declaration_is_consistent() {
        use clap::CommandFactory;
        Args::command().debug_assert();
    }

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("1", 1),
            ("8GiB", 8 << 30),
            ("500MB", 500_000_000),
            ("2G", 2 << 30),
            ("1TiB", 1 << 40),
            ("64KiB", 65_536),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in [
            "",
            "0",
            "GiB",
            "-1",
            "1.5GiB",
            "8 GiB",
            "8gib",
            "8XB",
            "99999999999GiB",
        ] {
            assert!(parse_size(text).is_err(), "{text}");
        }
        let long = parse_size("99999999999999999999GiB").unwrap_err();
        assert!(long.contains("more bytes"), "{long}");
    }

    #[test]
    fn times() {
        let parse = time(100..=3_600_000);
        for (text, ms) in [
            ("100ms", 100),
            ("5s", 5_000),
            ("2m", 120_000),
            ("1h", 3_600_000),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in [
            "",
            "5",
            "s",
            "-5s",
            "+5s",
            "1.5s",
            "99ms",
            "61m",
            "5 s",
            "99999999999999999999h",
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains("from 100ms to 1h"), "{text}: {error}");
        }
    }

    #[test]
    fn a_metric_has_a_group() {
        assert!(parse_metric(r"step: ([0-9.]+) ms").is_ok());
        assert!(parse_metric("(").unwrap_err().contains("no regular"));
        let without = parse_metric("step").unwrap_err();
        assert!(without.contains("no group"), "{without}");
    }

    #[test]
    fn what_follows_the_program_is_the_programs() {
        let args = Args::parse_from([
            "outboard", "run", "--stats", "--", "ls", "--gpu", "x", "--", "-l",
        ]);
        let Command::Run(run) = args.command else {
            panic!("not run");
        };
        assert_eq!(run.program, ["ls", "--gpu", "x", "--", "-l"]);
        assert!(run.stats);
    }

    #[test]
    fn a_mistyped_option_is_no_program() {
        let said = |arguments: &[&str]| {
            let error = Args::try_parse_from(arguments).unwrap_err();
            (error.exit_code(), error.to_string())
        };
        for (name, more) in [("run", &[][..]), ("sweep", &["--rtt", "1us", "--out", "f"])] {
            let mut arguments = vec!["outboard", name];
            arguments.extend(more);
            arguments.extend(["--bogus", "--", "true"]);
            let (code, text) = said(&arguments);
            assert_eq!(code, 2, "{text}");
            assert!(text.contains("unexpected argument '--bogus'"), "{text}");
        }
        assert_eq!(said(&["outboard", "run"]).0, 2);
        let of = |arguments: &[&str]| match Args::parse_from(arguments).command {
            Command::Run(run) => run.program,
            other => panic!("{other:?}"),
        };
        assert_eq!(of(&["outboard", "run", "ls", "-l"]), ["ls", "-l"]);
        let dashed = ["outboard", "run", "--", "--odd", "--", "-l"];
        assert_eq!(of(&dashed), ["--odd", "--", "-l"]);
    }
}
