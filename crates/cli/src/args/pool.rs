//! Options of the pool.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use clap::ValueEnum;
use outboard_datacenter::Shape;
use outboard_link::Endpoint;
use outboard_manager::{ManagerUrl, ManagerUrls, Operation, StoreUrl};
use outboard_model::Budget;
use outboard_pool::{
    limits,
    record::{Fit, Same},
};

use outboard_trust::parse_lifetime;
use outboard_wire::network::Network;

use super::{DeviceArg, JsonArgs, number, time};

/// The manager of a pool.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ManagerArgs {
    /// The pool's manager; several with commas
    #[arg(long, value_name = "URL", env = "OUTBOARD_POOL")]
    pub(crate) pool: ManagerUrls,
    #[command(flatten)]
    pub(crate) token: PoolTokenArgs,
}

#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct PoolTokenArgs {
    /// File with the token for the pool's manager (outboard token create)
    #[arg(long, value_name = "FILE", env = "OUTBOARD_POOL_TOKEN_FILE")]
    pub(crate) pool_token_file: Option<PathBuf>,
    /// File of authorities, in PEM form, one of which must have signed the certificate of a manager
    /// whose https address has no fingerprint [default: the system's authorities]
    #[arg(long, value_name = "FILE", env = "OUTBOARD_POOL_CA")]
    pub(crate) pool_ca: Option<PathBuf>,
}

/// A server that is a GPU box of a pool.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct BoxArgs {
    /// Give this machine's GPUs to a pool: programs are served only with a lease of its manager,
    /// and see only the GPUs of their lease (docs/pool.md)
    #[arg(long, value_name = "URL")]
    pub(crate) pool: Option<ManagerUrls>,
    /// Name of this box in the pool [default: the host's name]
    #[arg(long, value_name = "NAME", requires = "pool",
          value_parser = |text: &str| parse_name("a box", text))]
    pub(crate) pool_name: Option<String>,
    /// Address of this server, as programs of the pool reach it [default: the first --listen]
    #[arg(long, value_name = "URL", requires = "pool")]
    pub(crate) pool_address: Option<String>,
    /// Folder for what this box must not forget, on a disk of its own machine [default:
    /// $XDG_STATE_HOME/outboard/NAME or ~/.local/state/outboard/NAME]
    #[arg(long, value_name = "DIR", requires = "pool")]
    pub(crate) pool_state: Option<PathBuf>,
    /// File with the token for the pool's manager; its name is to be box.NAME
    #[arg(long, value_name = "FILE", requires = "pool")]
    pub(crate) pool_token_file: Option<PathBuf>,
    /// File of authorities, in PEM form, one of which must have signed the certificate of a manager
    /// whose https address has no fingerprint [default: the system's authorities]
    #[arg(long, value_name = "FILE", requires = "pool")]
    pub(crate) pool_ca: Option<PathBuf>,
    /// Command of the shell that prints a line for each broken GPU, its UUID and the reason. It
    /// runs every 2 s, for at most 4 s
    #[arg(long, value_name = "COMMAND", requires = "pool")]
    pub(crate) pool_check: Option<String>,
    /// Network between programs' machines and this one, as outboard probe measures it there:
    /// rtt=20us,bandwidth=25Gbps, or a known one. Only round trip and bandwidth count. Programs
    /// that run with --for are placed by it [default: not known, and none of them is placed here]
    #[arg(long, value_name = "NETWORK", requires = "pool", conflicts_with = "pool_probe", value_parser = parse_link)]
    pub(crate) pool_link: Option<Network>,
    /// Measure that network when this server begins, to an Outboard server where programs run
    #[arg(long, value_name = "URL", requires = "pool")]
    pub(crate) pool_probe: Option<Endpoint>,
}

/// A recording of a program, by which a pool's boxes are chosen.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct NeedArgs {
    /// Use only GPUs whose boxes have a network that is good enough for the program of this
    /// recording, as outboard require finds it
    #[arg(long = "for", value_name = "RECORDING", requires = "pool")]
    pub(crate) recording: Option<PathBuf>,
    /// Overhead of an iteration over its local time that --for allows
    #[arg(
        long,
        value_name = "PERCENT",
        default_value = "5%",
        requires = "recording",
        allow_hyphen_values = true
    )]
    pub(crate) budget: Budget,
}

fn parse_link(text: &str) -> Result<Network, String> {
    let network: Network = text
        .parse()
        .map_err(|error: outboard_wire::network::NetworkError| error.to_string())?;
    match network.bandwidth() {
        Some(_) => Ok(network),
        None => Err("the network of a box has a bandwidth, as rtt=20us,bandwidth=25Gbps".into()),
    }
}

/// A program that runs with GPUs of a pool.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct PoolRunArgs {
    /// Ask this pool's manager for GPUs, and give them back when the program has ended
    #[arg(long, value_name = "URL", conflicts_with = "local")]
    pub(crate) pool: Option<ManagerUrls>,
    #[command(flatten)]
    pub(crate) token: PoolTokenArgs,
    #[command(flatten)]
    pub(crate) wish: WishArgs,
    #[command(flatten)]
    pub(crate) need: NeedArgs,
    /// Run the program again if it ended because its GPU or the GPU's box was lost, at most N times
    #[arg(long, value_name = "N", requires = "pool", default_value_t = 0,
          value_parser = number::<u32>(0..=1_000))]
    pub(crate) restart: u32,
    /// Use the GPUs that are attached to this host (outboard pool attach), instead of a lease of
    /// the program's own
    #[arg(long, requires = "pool", conflicts_with_all = ["gpus", "restart", "model", "same", "fit", "priority", "term", "idle", "no_wait", "recording"])]
    pub(crate) attached: bool,
}

/// The GPUs that a program asks a pool for.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct WishArgs {
    /// Word of the GPUs' model, in any case, as H200
    #[arg(long, value_name = "NAME")]
    pub(crate) model: Option<String>,
    /// Something that all the GPUs have in common
    #[arg(long, value_enum)]
    pub(crate) same: Option<SameArg>,
    /// The choice between places that have enough GPUs
    #[arg(long, value_enum, default_value_t)]
    pub(crate) fit: FitArg,
    /// Place in the queue, 9 first
    #[arg(long, value_name = "N", default_value_t = 0,
          value_parser = number::<u8>(0..=limits::PRIORITY_MAX as i64))]
    pub(crate) priority: u8,
    /// Time after which the GPUs of a host that is lost are taken back, as 30s
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = time(limits::TERM_MIN_MS..=limits::TERM_MAX_MS))]
    pub(crate) term: Duration,
    /// Time without a session or a call after which the GPUs are taken back, as 30m; the manager
    /// may have a shorter one [default: the manager's]
    #[arg(long, value_name = "TIME", value_parser = time(limits::IDLE_MIN_MS..=limits::IDLE_MAX_MS))]
    pub(crate) idle: Option<Duration>,
    /// Fail if no such GPUs are free, instead of waiting for them
    #[arg(long)]
    pub(crate) no_wait: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SameArg {
    /// One machine
    Box,
    /// Joined by NVLink
    Nvlink,
    /// Below one PCIe bridge
    Bridge,
    /// Behind one proxy (NIC) of a box
    Proxy,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum FitArg {
    /// Fill what is fullest, so that large groups stay whole
    #[default]
    Best,
    /// The box that joined first
    First,
    /// The emptiest boxes, one GPU of each in turn
    Spread,
    /// Where the fewest GPUs become useless for claims like those there were (FGD)
    Fgd,
}

impl From<SameArg> for Same {
    fn from(same: SameArg) -> Same {
        match same {
            SameArg::Box => Same::Box,
            SameArg::Nvlink => Same::Nvlink,
            SameArg::Bridge => Same::Bridge,
            SameArg::Proxy => Same::Proxy,
        }
    }
}

impl From<FitArg> for Fit {
    fn from(fit: FitArg) -> Fit {
        match fit {
            FitArg::Best => Fit::Best,
            FitArg::First => Fit::First,
            FitArg::Spread => Fit::Spread,
            FitArg::Fgd => Fit::Fgd,
        }
    }
}

/// Give out GPUs of many machines, and take them back
#[derive(Debug, clap::Subcommand)]
#[command(after_help = "\
One manager knows the GPUs of all boxes (outboard serve --pool URL) and leases them to programs (outboard run --pool URL). \
docs/pool.md says how to run a pool, and what happens when part of it fails.

Examples:
  outboard pool serve --store /var/lib/outboard/pool
  outboard serve --pool http://manager:4834 --listen tcp://10.0.0.7
  outboard run --pool http://manager:4834 --gpus 2 --model H200 -- python train.py
  outboard pool list --pool http://manager:4834
  outboard pool drain --pool http://manager:4834 box7 --reason repair")]
pub(crate) enum PoolCommand {
    /// Run the manager
    Serve(PoolServeArgs),
    #[command(about = Operation::List.about())]
    List(PoolAskArgs),
    #[command(about = Operation::Tables.about())]
    Tables(PoolAskArgs),
    #[command(about = Operation::Audit.about())]
    Audit(PoolAuditArgs),
    #[command(about = Operation::Claim.about())]
    Claim(PoolClaimArgs),
    #[command(about = Operation::Release.about())]
    Release(PoolReleaseArgs),
    /// Give GPUs to a host, until they are detached: programs there see them with run --attached
    Attach(PoolAttachArgs),
    #[command(about = Operation::Detach.about())]
    Detach(PoolDetachArgs),
    #[command(about = Operation::Drain.about())]
    Drain(PoolDrainArgs),
    /// Give out the GPUs of a drained box again
    Undrain(PoolBoxArgs),
    #[command(about = Operation::Forget.about())]
    Forget(PoolBoxArgs),
    #[command(about = Operation::Taint.about())]
    Taint(PoolTaintArgs),
    /// Give out a tainted GPU again
    Untaint(PoolGpuArgs),
    #[command(about = Operation::Quota.about())]
    Quota(PoolQuotaArgs),
    /// Hold GPUs back, to take the place of broken ones; or say how many are enough
    Spares(PoolSparesArgs),
    /// Show the GPUs of this machine as outboard serve --pool reports them: their UUIDs, models and
    /// memory, and the NVLinks, GPUs and network adapters that are near each
    Inventory(PoolInventoryArgs),
    /// Play a trace of tasks on servers with GPUs and on a pool: what nobody can use
    Simulate(PoolSimulateArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct PoolServeArgs {
    /// File of the pool's records, made if it does not exist, with the manager's key beside it; or
    /// an etcd cluster for several managers, one of which leads:
    /// etcd://HOST:PORT,HOST:PORT/POOL, etcds:// over TLS
    #[arg(long, value_name = "FILE|URL")]
    pub(crate) store: StoreUrl,
    /// File of authorities, in PEM form, one of which must have signed the certificates of etcds://
    #[arg(long, value_name = "FILE")]
    pub(crate) store_ca: Option<PathBuf>,
    /// File of the key that signs grants, made if it does not exist; with etcd, the same one for
    /// all managers [default: beside the store's file]
    #[arg(long, value_name = "FILE")]
    pub(crate) grant_key: Option<PathBuf>,
    /// Address of this manager, as the others tell it to clients [default: where it listens]
    #[arg(long, value_name = "URL")]
    pub(crate) advertise: Option<ManagerUrl>,
    /// Take the GPUs of leases back that had no session or call for this time, as 30m; the holder
    /// is told a minute before [default: never, unless the claim says so]
    #[arg(long, value_name = "TIME", value_parser = time(limits::IDLE_MIN_MS..=limits::IDLE_MAX_MS))]
    pub(crate) idle_reclaim: Option<Duration>,
    /// Address for requests, over HTTP, or HTTPS with --tls or --certificate
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:4834")]
    pub(crate) listen: SocketAddr,
    /// Answer only requests with one of the tokens in this file (outboard token create): box.NAME
    /// is the box NAME, operator.NAME may do everything else, others may claim
    #[arg(long, value_name = "FILE")]
    pub(crate) tokens: Option<PathBuf>,
    /// Encrypt all requests; the address that is printed has the fingerprint of the key
    #[arg(long)]
    pub(crate) tls: bool,
    /// File with the key of --tls (outboard keygen) [default: $XDG_CONFIG_HOME/outboard/key, or
    /// ~/.config/outboard/key]
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_key: Option<PathBuf>,
    /// File of the manager's certificate, in PEM form, and of those that signed it: encrypt all
    /// requests, and clients check it instead of a fingerprint. It is read anew when it has changed
    #[arg(long, value_name = "FILE", requires = "key")]
    pub(crate) certificate: Option<PathBuf>,
    /// File of the certificate's private key, in PEM form
    #[arg(long, value_name = "FILE", requires = "certificate")]
    pub(crate) key: Option<PathBuf>,
    /// Listen beyond this machine although requests are not encrypted, or need no token
    #[arg(long)]
    pub(crate) insecure: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct PoolAskArgs {
    #[command(flatten)]
    pub(crate) manager: ManagerArgs,
    #[command(flatten)]
    pub(crate) json: JsonArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct PoolInventoryArgs {
    /// The device whose GPUs are shown
    #[arg(long, value_enum, default_value_t = DeviceArg::Auto)]
    pub(crate) device: DeviceArg,
    #[command(flatten)]
    pub(crate) json: JsonArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct PoolAuditArgs {
    #[command(flatten)]
    pub(crate) ask: PoolAskArgs,
    /// Only what concerns this GPU
    #[arg(long, value_name = "UUID")]
    pub(crate) gpu: Option<outboard_pool::Uuid>,
    /// Only leases of this holder
    #[arg(long, value_name = "NAME", value_parser = |text: &str| parse_name("a holder", text))]
    pub(crate) holder: Option<String>,
    /// Only the last so much time, as 12h or 7d
    #[arg(long, value_name = "TIME", value_parser = parse_lifetime)]
    pub(crate) since: Option<u64>,
    /// Only entries after this number: what is new since the last time
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) after: u64,
}

/// A claim of GPUs without a program.
#[derive(Debug, clap::Args)]
pub(crate) struct ClaimArgs {
    #[command(flatten)]
    pub(crate) manager: ManagerArgs,
    /// Number of GPUs
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = number::<u32>(1..=i64::from(limits::CLAIM_GPUS_MAX)))]
    pub(crate) gpus: u32,
    #[command(flatten)]
    pub(crate) wish: WishArgs,
    #[command(flatten)]
    pub(crate) need: NeedArgs,
    /// The caller's own name of the claim: the same claim comes again with it [default: a new one]
    #[arg(long, value_name = "NAME")]
    pub(crate) uid: Option<String>,
    #[command(flatten)]
    pub(crate) json: JsonArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct PoolClaimArgs {
    #[command(flatten)]
    pub(crate) claim: ClaimArgs,
    /// File for the grants, which must not exist: OUTBOARD_GRANT_FILE names it to programs
    #[arg(long, value_name = "FILE")]
    pub(crate) grants: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct PoolAttachArgs {
    /// Name of the host [default: this one]
    pub(crate) host: Option<String>,
    #[command(flatten)]
    pub(crate) claim: ClaimArgs,
    /// Name of the token whose programs may use them [default: the host's name]
    #[arg(long, value_name = "NAME")]
    pub(crate) holder: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct PoolDetachArgs {
    #[command(flatten)]
    pub(crate) gpu: PoolGpuArgs,
    /// End the programs' sessions with it now: their calls fail with
    /// CUDA_ERROR_DEVICE_UNAVAILABLE
    #[arg(long)]
    pub(crate) force: bool,
    /// Return at once; the GPU goes when the last program that uses it has ended
    #[arg(long)]
    pub(crate) no_wait: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct PoolReleaseArgs {
    #[command(flatten)]
    pub(crate) manager: ManagerArgs,
    /// Number of the lease
    pub(crate) lease: u64,
    #[command(flatten)]
    pub(crate) json: JsonArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct PoolDrainArgs {
    #[command(flatten)]
    pub(crate) of: PoolBoxArgs,
    /// Reason, for the list
    #[arg(long, default_value = "drained")]
    pub(crate) reason: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct PoolBoxArgs {
    #[command(flatten)]
    pub(crate) manager: ManagerArgs,
    /// Name of the box
    #[arg(value_parser = |text: &str| parse_name("a box", text))]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) json: JsonArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct PoolTaintArgs {
    #[command(flatten)]
    pub(crate) of: PoolGpuArgs,
    /// Reason, for the list
    #[arg(long, default_value = "tainted")]
    pub(crate) reason: String,
    /// It is broken: a spare takes its place in its lease
    #[arg(long)]
    pub(crate) broken: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct PoolGpuArgs {
    #[command(flatten)]
    pub(crate) manager: ManagerArgs,
    /// UUID of the GPU
    pub(crate) uuid: outboard_pool::Uuid,
    #[command(flatten)]
    pub(crate) json: JsonArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct PoolQuotaArgs {
    #[command(flatten)]
    pub(crate) manager: ManagerArgs,
    /// Name of the holder
    #[arg(value_parser = |text: &str| parse_name("a holder", text))]
    pub(crate) owner: String,
    /// Number of GPUs [default: no bound]
    pub(crate) gpus: Option<u32>,
    #[command(flatten)]
    pub(crate) json: JsonArgs,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Without a number: the spares that are held back now. With --afr: how many are enough, without a manager.

Examples:
  outboard pool spares 2 --model H200 --per nvlink
  outboard pool spares --afr 9% --repair 3d --target 99.9% --gpus 512")]
pub(crate) struct PoolSparesArgs {
    /// GPUs to hold back; 0: none
    #[arg(value_name = "N", value_parser = number::<u32>(0..=i64::from(limits::SPARES_MAX)))]
    pub(crate) count: Option<u32>,
    /// The pool's manager; several with commas
    #[arg(long, value_name = "URL", env = "OUTBOARD_POOL")]
    pub(crate) pool: Option<ManagerUrls>,
    #[command(flatten)]
    pub(crate) token: PoolTokenArgs,
    /// Model of the GPUs, or whole words of it in any case [default: as many of each model]
    #[arg(long, value_name = "NAME", requires = "count")]
    pub(crate) model: Option<String>,
    /// Hold the spares back in each group of this kind [default: in the whole pool]
    #[arg(long, value_enum, requires = "count")]
    pub(crate) per: Option<SameArg>,
    /// Part of the GPUs that fail within a year, as 9%
    #[arg(long, value_name = "PART", value_parser = parse_part, conflicts_with = "count",
          requires_all = ["repair", "gpus"])]
    pub(crate) afr: Option<f64>,
    /// Time until a failed GPU is back, as 3d
    #[arg(long, value_name = "TIME", value_parser = parse_lifetime, requires = "afr")]
    pub(crate) repair: Option<u64>,
    /// Part of the time in which there are to be enough
    #[arg(long, value_name = "PART", value_parser = parse_part, requires = "afr", default_value = "99.9%")]
    pub(crate) target: f64,
    /// Number of GPUs
    #[arg(long, value_name = "N", requires = "afr", value_parser = number::<u32>(1..=limits::GPUS_MAX as i64))]
    pub(crate) gpus: Option<u32>,
    #[command(flatten)]
    pub(crate) json: JsonArgs,
}

/// Checks a name as the manager does.
fn parse_name(what: &str, text: &str) -> Result<String, String> {
    let checked = outboard_pool::check_name(what, text);
    checked.map_or_else(|error| Err(error.to_string()), |()| Ok(text.into()))
}

/// Parses a part of a whole: 9%, 0.09.
fn parse_part(text: &str) -> Result<f64, String> {
    let (digits, scale) = match text.strip_suffix('%') {
        Some(digits) => (digits, 0.01),
        None => (text, 1.0),
    };
    let part = digits.parse::<f64>().ok().map(|number| number * scale);
    let part = part.filter(|part| (0.0..1.0).contains(part) && *part > 0.0);
    part.ok_or_else(|| "a part is more than 0 and less than 100%".into())
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
TRACE is a folder with machines.csv and tasks.csv, or the file of tasks, with --machines. Their columns are openb's: \
sn,cpu_milli,memory_mib,gpu,model and name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,...

Or TRACE is a file of services whose instances come and go: instance_sn,role,app_name,cpu_request,... Then machines of \
--shape are added as they are needed, and it is said how many.

Examples:
  outboard pool simulate disaggregated_DLRM_trace.csv
  outboard pool simulate openb_pod_list_default.csv --machines openb_node_list_gpu_node.csv --seeds 10")]
pub(crate) struct PoolSimulateArgs {
    /// The trace: a folder, or its file of tasks
    pub(crate) trace: PathBuf,
    /// File of the machines
    #[arg(long, value_name = "FILE", conflicts_with = "shape")]
    pub(crate) machines: Option<PathBuf>,
    /// Processors, GPUs and GiB of memory of a server, for services
    #[arg(long, value_name = "CPUS,GPUS,GIB", default_value = "192,8,1536", value_parser = parse_shape)]
    pub(crate) shape: Shape,
    /// Runs with different orders of the tasks; the results are means
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = number::<u32>(1..=1_000))]
    pub(crate) seeds: u32,
    /// GPUs that all tasks together ask for, as a part of those there are
    #[arg(long, value_name = "PART", default_value = "130%", value_parser = parse_asked)]
    pub(crate) asked: f64,
    /// Play the tasks of the trace as they are, in their order
    #[arg(long, conflicts_with_all = ["asked", "seeds"])]
    pub(crate) as_is: bool,
    #[command(flatten)]
    pub(crate) json: JsonArgs,
}

fn parse_shape(text: &str) -> Result<Shape, String> {
    let numbers: Option<Vec<u32>> = text.split(',').map(|part| part.parse().ok()).collect();
    match numbers.as_deref() {
        Some(&[cpus @ 1..=4_096, gpus @ 1..=64, gib @ 1..=65_536]) => Ok(Shape {
            cpus,
            gpus,
            memory_mib: u64::from(gib) << 10,
        }),
        _ => Err(
            "a server has 1 to 4096 processors, 1 to 64 GPUs and 1 to 65536 GiB, as 192,8,1536"
                .into(),
        ),
    }
}

/// Parses the share of all GPUs that tasks ask for: 130%, 1.3.
fn parse_asked(text: &str) -> Result<f64, String> {
    let (digits, scale) = match text.strip_suffix('%') {
        Some(digits) => (digits, 0.01),
        None => (text, 1.0),
    };
    let asked = digits.parse::<f64>().ok().map(|number| number * scale);
    let asked = asked.filter(|asked| (0.01..=10.0).contains(asked));
    asked.ok_or_else(|| "tasks ask for 1% to 1000% of the GPUs".into())
}

/// Arguments of the process that holds a lease for a program.
#[derive(Debug, clap::Args)]
pub(crate) struct PoolHoldArgs {
    #[command(flatten)]
    pub(crate) manager: ManagerArgs,
    #[arg(long)]
    pub(crate) lease: u64,
    #[arg(long)]
    pub(crate) term_ms: u64,
    #[arg(long)]
    pub(crate) grants: PathBuf,
    /// Number of a descriptor of the program's process
    #[arg(long)]
    pub(crate) program: i32,
    /// Whether this process is the holder, or starts it
    #[arg(long)]
    pub(crate) detached: bool,
    /// Keep the lease after the program, because it is the host's
    #[arg(long)]
    pub(crate) keep: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms() {
        let parse_term = time(limits::TERM_MIN_MS..=limits::TERM_MAX_MS);
        for (text, ms) in [
            ("1s", 1_000),
            ("1500ms", 1_500),
            ("10m", 600_000),
            ("1h", 3_600_000),
        ] {
            assert_eq!(parse_term(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        assert_eq!(parse_name("a holder", "a@b-1"), Ok("a@b-1".into()));
        for wrong in ["", "a b", "a\r\nX: y", "a/b", "\u{e9}"] {
            assert!(parse_name("a holder", wrong).is_err(), "{wrong:?}");
        }
        assert_eq!(parse_part("9%"), Ok(0.09));
        assert_eq!(parse_part("0.5"), Ok(0.5));
        for wrong in ["", "%", "0", "100%", "-1%", "nan", "inf"] {
            assert!(parse_part(wrong).is_err(), "{wrong}");
            assert!(parse_asked(wrong).is_err() || wrong == "100%", "{wrong}");
        }
        for wrong in [
            "",
            "s",
            "1",
            "-1s",
            "+2s",
            "1.5s",
            "0s",
            "999ms",
            "2h",
            "99999999999999999999h",
        ] {
            assert!(parse_term(wrong).is_err(), "{wrong}");
        }
    }
}
