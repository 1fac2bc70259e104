use thiserror::Error;

/// Reason why a question about a recording cannot be answered.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum Error {
    #[error("the recording holds no driver call; was the program started with the recorder?")]
    NoCalls,
    #[error(
        "the recording's {calls} driver calls start no work on a GPU and wait for none, so no network is needed for them"
    )]
    NoGpuCalls { calls: usize },
    #[error(
        "the recording's marked iterations hold no driver call between a beginning and its end; \
         do the marks stand around what uses the GPU?"
    )]
    EmptyIterations,
    #[error(
        "the recording has {present} iterations; number {asked} was asked for (they count from 1)"
    )]
    NoSuchIteration { asked: usize, present: usize },
    #[error("iteration {asked} of {present} is left out: {why}; those that count are {used}")]
    LeftOut {
        asked: usize,
        present: usize,
        why: &'static str,
        used: String,
    },
    #[error("the iteration took no time in the recording")]
    NoTime,
    #[error(
        "the recording has no times of the GPU's work, and a longer PCIe delays nothing else; record with CUPTI"
    )]
    NoGpuTimes,
    #[error("{text:?} is no budget; write a percentage of the local time, such as 5%")]
    Budget { text: String },
    #[error("a budget of {percent} % is out of range; it may be 0 % to {percent_max} %")]
    BudgetRange { percent: f64, percent_max: f64 },
    #[error("{text:?} is no confidence; write a percentage, such as 90%")]
    Confidence { text: String },
    #[error(
        "a confidence of {percent} % is out of range; it may be {percent_min} % to {percent_max} %"
    )]
    ConfidenceRange {
        percent: f64,
        percent_min: f64,
        percent_max: f64,
    },
    #[error("{what} must be {must}; it is {value}")]
    Number {
        what: &'static str,
        must: &'static str,
        value: f64,
    },
    #[error(
        "the recording to compare with was made here, not through a server; make it with outboard run --gpu shm://... \
         --emulate rtt=1ns,bandwidth=100Gbps --record FILE"
    )]
    NotThroughServer,
    #[error(
        "the recording to compare with was made through {gpu}, whose own round trip is not known; run the server on the \
         program's machine, and record over shm"
    )]
    NotOverShm { gpu: String },
    #[error(
        "the recording to compare with names no emulated network: plain shm shares memory that no network can; record it \
         with --emulate rtt=1ns,bandwidth=100Gbps"
    )]
    NotEmulated,
    #[error(
        "measured over {network}, it is not without a network, whose cost would count twice; the round trip may be {rtt_max} \
         at most, and the bandwidth {bandwidth_min} at least"
    )]
    WithNetwork {
        network: String,
        rtt_max: String,
        bandwidth_min: String,
    },
    #[error(
        "the recordings to compare with were made over different links: {first} and {other}; record all with the same --emulate"
    )]
    AnotherLink { first: String, other: String },
    #[error(
        "the recordings to compare with were made at different levels: --optimise {first} and {other}; record all with the same"
    )]
    OtherLevels { first: String, other: String },
    #[error(
        "the recording to compare with does not tell its level of optimisation; record it again with this release"
    )]
    NoLevel,
    #[error(
        "the time through the server was measured at --optimise {measured}, and the question is about {asked}: record it \
         with --optimise {asked}, or ask with --optimise {measured}"
    )]
    AnotherLevel { measured: String, asked: String },
    #[error(
        "the recording was made through a server ({gpu}), and what a server costs cannot be told from it; record the program \
         with outboard run --local"
    )]
    NotLocal { gpu: String },
    #[error(
        "the recordings are of different programs: an iteration makes {calls_here} calls here, {calls_through} through the \
         server"
    )]
    AnotherProgram {
        calls_here: usize,
        calls_through: usize,
    },
    #[error("the recordings are of different machines: {here} here, {through} through the server")]
    AnotherMachine { here: String, through: String },
    #[error("the waits' gpu_ns must rise; {after_ns} comes after {before_ns}")]
    WaitsOutOfOrder { before_ns: f64, after_ns: f64 },
    #[error(
        "the models do not know batches; the level may be sync, or, or+sr or or+sr+local, it is {level}"
    )]
    Batches { level: String },
}
