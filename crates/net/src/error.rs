//! Errors of the calls that set an adapter up. Errors of operations are completions.

use outboard_api::CUresult;

use crate::layout::Layout;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("the adapter has {count_max} {what} at most")]
    TooMany {
        what: &'static str,
        count_max: usize,
    },
    #[error("no memory is registered by key {0:#x}")]
    NoKey(u32),
    #[error("there is no queue pair {0:#x}")]
    NoPair(u32),
    #[error("queue pair {0:#x} is connected: reset it first")]
    Connected(u32),
    #[error("there is no completion queue {0}")]
    NoCompletions(u32),
    #[error("{what} takes {bytes} bytes at a multiple of {alignment}; {given} were given")]
    Memory {
        what: &'static str,
        bytes: usize,
        alignment: usize,
        given: usize,
    },
    #[error("a {what} has 2^{log_min} to 2^{log_max} entries, not 2^{given}")]
    Size {
        what: &'static str,
        log_min: u32,
        log_max: u32,
        given: u32,
    },
    #[error(
        "one of {every_max} entries is signalled at least, so that a warp finds room; not one of {given}"
    )]
    SignalEvery { every_max: u32, given: u32 },
    #[error("the peer has sent {0}")]
    Peer(&'static str),
    #[error("{address}: {why}")]
    Meet { address: String, why: String },
    #[error("queue {0:#x} is unreliable, and the other is not")]
    Reliability(u32),
    #[error("unreliable queues are those of one process with the provider nic")]
    Unreliable,
    #[error("there is no way {name}: {known} are there")]
    NoWay { name: String, known: String },
    #[error("{variable}: {given} is not a time of {us_min} to {us_max} us")]
    Sleep {
        variable: &'static str,
        given: String,
        us_min: u128,
        us_max: u128,
    },
    #[error("the network loses {0} of a million messages: 1,000,000 at most")]
    Loss(u32),
    #[error(
        "messages take {min_ns} to {max_ns} ns: the first is not above the second, nor that above {limit_ns}"
    )]
    Delay {
        min_ns: u64,
        max_ns: u64,
        limit_ns: u64,
    },
    #[error("{0}: `reserved` is 0 here")]
    Reserved(&'static str),
    #[error("memory of 0 bytes cannot be registered")]
    Empty,
    #[error("there is no access {0:#x}: 1 to 15 are bits of `outboard_net_access`")]
    Access(u32),
    #[error("{bytes} bytes at {address:#x} go beyond the end of all addresses")]
    Wraps { address: u64, bytes: u64 },
    #[error("not all of the {bytes} bytes at {address:#x} are mapped here{}", if *.is_written { " and may be written" } else { "" })]
    NotMapped {
        address: u64,
        bytes: u64,
        is_written: bool,
    },
    #[error("{what} at {address:#x}: a queue of this process already lies there")]
    Taken { what: &'static str, address: u64 },
    #[error("a queue takes 2^1 to 2^{log_max} receives, or none if that is 0; not 2^{given}")]
    Receives { log_max: u32, given: u32 },
    #[error("the counters of queue {0:#x} are in its own memory: outboard_net_reset puts it back")]
    CountersOfQueue(u32),
    #[error("there are no flags {0:#x}")]
    Flags(u32),
    #[error("counters begin at a multiple of 64, not at {0:#x}")]
    Counters(u64),
    #[error(
        "the counters of queue {0:#x} are in a GPU's memory: outboard_net_reset_counters takes a copy of them"
    )]
    CountersOfGpu(u32),
    #[error(
        "the program was built with another net.h than this library: {0:?} there, {1:?} here; build it with the library's"
    )]
    Layout(Layout, Layout),
    #[error(
        "the program was built with an older net.h, which does not say its layout; build it with the library's"
    )]
    NoLayout,
    #[error("no memory is left for {0} bytes")]
    OutOfMemory(usize),
    #[error("no thread can be started: {0}")]
    Thread(String),
    #[error("there is no provider {name}: auto, {known} are there")]
    NoProvider { name: String, known: String },
    #[error("the provider {provider} is not possible here: {why}")]
    Impossible { provider: String, why: String },
    #[error("an endpoint of {} has no such call", .0.to_string_lossy())]
    NotOfProvider(&'static std::ffi::CStr),
    #[error("the RDMA device: {0}")]
    Device(String),
    #[error("{variable}: {key} is said twice")]
    Twice { variable: &'static str, key: String },
    #[error("{0}")]
    Session(String),
    #[error("the endpoint is lost with its session at the GPU's server, or with the context: {0}")]
    Lost(CUresult),
    #[error(
        "not all of the {bytes} bytes at {address:#x} are pinned memory (cudaHostAlloc, cudaHostRegister) or of one allocation of a GPU, and the endpoint is where the GPU is: it reaches no other memory of the program"
    )]
    NotPinned { address: u64, bytes: u64 },
    #[error(
        "memory at {0:#x} is registered (cudaHostRegister) or a __managed__ variable, of which the GPU's server has a copy while a kernel runs: take memory of cudaHostAlloc"
    )]
    Copied(u64),
    #[error(
        "{variable}: there is no engine {given}: thread, or gpu with blocks=1 to {blocks_max} and warps=1 to {warps_max}, as gpu,blocks=2,warps=4"
    )]
    NoEngine {
        variable: &'static str,
        given: String,
        blocks_max: u32,
        warps_max: u32,
    },
    #[error("the adapter that is a kernel: {0}")]
    Kernel(String),
    #[error(
        "not all of the {bytes} bytes at {address:#x} are memory that the adapter's kernel reaches: it takes that of its GPU, and pinned memory that is mapped (cudaHostAlloc, cudaHostRegister)"
    )]
    NotReached { address: u64, bytes: u64 },
    #[error(
        "{0} is not there for the adapter that is a kernel (OUTBOARD_NET_ENGINE): its queues are of one process"
    )]
    Unsupported(&'static str),
    #[error(
        "the endpoint is of the process from which this one was forked, and so are its threads: here it can be closed, and another one opened"
    )]
    Forked,
    #[error("{0} is a null pointer")]
    Null(&'static str),
    #[error("threads are about to post to queue {0:#x}, or were ended while they did")]
    Posting(u32),
}

impl From<outboard_verbs::Error> for Error {
    fn from(error: outboard_verbs::Error) -> Error {
        Error::Device(error.to_string())
    }
}
