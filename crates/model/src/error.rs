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
    #[error("the waits' gpu_ns must rise; {after_ns} comes after {before_ns}")]
    WaitsOutOfOrder { before_ns: f64, after_ns: f64 },
    #[error(
        "the models do not know batches; the level may be sync, or, or+sr or or+sr+local, it is {level}"
    )]
    Batches { level: String },
}
