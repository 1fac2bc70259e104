//! A case of `outboard bench net`, and its figures.

use anyhow::bail;
use clap::ValueEnum;
use outboard_net::{Engine, Error, Provider, Way, wqe::opcode};
use serde::{Deserialize, Serialize};

/// A value in the entry, beside the numbers of operations.
const VALUE: u32 = 0x100 | opcode::WRITE as u32;
const WARP: u32 = 32;
/// Entries of each ring, as a logarithm.
pub(super) const LOG_ENTRIES: u32 = 10;
const THREADS_MAX: u32 = 1024;
const WORD_BYTES: u64 = 8;

/// An operation that a kernel posts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Verb {
    Put,
    PutValue,
    Get,
    FetchAdd,
    CompareSwap,
    Send,
    PutImm,
    Nop,
}

impl Verb {
    /// The number of the operation.
    pub(super) fn number(self) -> u32 {
        match self {
            Verb::Put => opcode::WRITE.into(),
            Verb::PutValue => VALUE,
            Verb::Get => opcode::READ.into(),
            Verb::FetchAdd => opcode::FETCH_ADD.into(),
            Verb::CompareSwap => opcode::COMPARE_SWAP.into(),
            Verb::Send => opcode::SEND.into(),
            Verb::PutImm => opcode::WRITE_IMM.into(),
            Verb::Nop => opcode::NOP.into(),
        }
    }

    /// Returns the bytes that an operation moves, of those asked for.
    pub(super) fn bytes(self, asked: u64) -> u64 {
        match self {
            Verb::Put | Verb::Get | Verb::Send | Verb::PutImm => asked,
            Verb::PutValue | Verb::FetchAdd | Verb::CompareSwap => WORD_BYTES,
            Verb::Nop => 0,
        }
    }

    pub(super) fn has_sizes(self) -> bool {
        matches!(self, Verb::Put | Verb::Get | Verb::Send | Verb::PutImm)
    }

    /// Returns true for an operation that takes a receive of the peer.
    pub(super) fn is_received(self) -> bool {
        matches!(self, Verb::Send | Verb::PutImm)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Scope {
    Thread,
    Warp,
    Block,
}

impl Scope {
    /// Returns how many of the threads post.
    fn posters(self, threads: u32) -> u32 {
        match self {
            Scope::Thread => threads,
            Scope::Warp => threads / WARP,
            Scope::Block => 1,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Place {
    Host,
    Gpu,
}

/// Way by which operations are executed; of `nic` also between two processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum By {
    /// The adapter in software, of one process
    Nic,
    /// The adapter in software as a kernel of the GPU (OUTBOARD_NET_ENGINE says of how many warps)
    NicGpu,
    /// Two adapters of two processes, by memory of both
    NicShm,
    /// Two adapters of two processes, over tcp
    NicTcp,
    /// Two adapters of two processes, by verbs of an RDMA device
    NicVerbs,
    /// Loads and stores of the threads that post, in the GPU's own memory
    Nvlink,
    /// A thread that posts by verbs
    Proxy,
    /// An adapter in hardware, or outboard nic run's
    Mlx5,
}

impl By {
    pub(super) fn provider(self) -> Provider {
        match self {
            By::Nic | By::NicGpu | By::NicShm | By::NicTcp | By::NicVerbs => Provider::Nic,
            By::Nvlink => Provider::Nvlink,
            By::Proxy => Provider::Proxy,
            By::Mlx5 => Provider::Mlx5,
        }
    }

    /// Returns what executes the entries of `nic`; none if that is left open.
    pub(super) fn engine(self) -> Result<Option<Engine>, Error> {
        if self != By::NicGpu {
            return Ok(None);
        }
        match Engine::asked()? {
            Engine::Thread => Ok(Some(Engine::GPU)),
            asked => Ok(Some(asked)),
        }
    }

    /// Returns how entries reach another process; none within one.
    pub(super) fn way(self) -> Option<Way> {
        match self {
            By::NicShm => Some(Way::Shm),
            By::NicTcp => Some(Way::Tcp),
            By::NicVerbs => Some(Way::Verbs),
            _ => None,
        }
    }
}

/// One combination of the values asked for.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct NetCase {
    pub(super) provider: By,
    pub(super) verb: Verb,
    pub(super) scope: Scope,
    pub(super) threads: u32,
    pub(super) queues: u32,
    pub(super) bytes: u64,
    /// Operations of a poster between two waits.
    pub(super) window: u32,
    pub(super) counters: Place,
    pub(super) operations: u32,
}

impl NetCase {
    pub(super) fn posters(&self) -> u32 {
        self.scope.posters(self.threads)
    }

    /// Returns the bytes between the memory of two posters.
    pub(super) fn stride(&self) -> u64 {
        self.bytes.next_multiple_of(WORD_BYTES).max(WORD_BYTES)
    }

    /// Returns the first thread that receives, if somebody has to; and all threads of the block.
    pub(super) fn threads_with_receivers(&self) -> (u32, u32) {
        if !self.verb.is_received() {
            return (0, self.threads);
        }
        let receiver = self.threads.next_multiple_of(WARP);
        (receiver, receiver + self.queues)
    }

    pub(super) fn check(&self) -> anyhow::Result<()> {
        let threads = self.threads_with_receivers().1;
        if threads > THREADS_MAX {
            bail!(
                "{threads} threads, of which {} receive: {THREADS_MAX} at most",
                self.queues
            );
        }
        if self.verb.is_received() && self.queues > self.threads {
            bail!("{} needs a poster for each queue", name(self.verb));
        }
        if self.verb.is_received() && self.provider.way().is_some() {
            bail!(
                "the other process has nobody who receives: no {}",
                name(self.verb)
            );
        }
        if self.scope != Scope::Thread && !matches!(self.verb, Verb::Put | Verb::PutValue) {
            bail!(
                "warps and blocks put and put-value here, and do not {}",
                name(self.verb)
            );
        }
        if self.scope != Scope::Thread && !self.threads.is_multiple_of(WARP) {
            bail!(
                "{} threads are no whole warps: --threads of a {} is a multiple of {WARP}",
                self.threads,
                name(self.scope)
            );
        }
        Ok(())
    }
}

/// Resources of the GPU that a run takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Taken {
    /// Of a thread.
    pub(super) registers: u32,
    /// One for each block.
    pub(super) processors: u32,
}

/// The figures of one run.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct NetFigures {
    /// From the first post to the last completion, for one poster's operation.
    pub(super) us_each: f64,
    /// In ticks of the GPU's clock, until the call returns.
    pub(super) post_ticks: f64,
    pub(super) million_a_second: f64,
    pub(super) gigabytes_a_second: f64,
    #[serde(flatten)]
    pub(super) taken: Taken,
}

impl NetFigures {
    pub(super) fn new(case: &NetCase, ns: u64, posting_ticks: u64, taken: Taken) -> NetFigures {
        let all = f64::from(case.posters()) * f64::from(case.operations);
        let us = (ns as f64 / 1e3).max(1e-3);
        NetFigures {
            us_each: us / f64::from(case.operations),
            post_ticks: posting_ticks as f64 / all,
            million_a_second: all / us,
            gigabytes_a_second: all * case.bytes as f64 / us / 1e3,
            taken,
        }
    }
}

/// Returns the name by which a value is asked for.
pub(super) fn name<T: ValueEnum>(value: T) -> String {
    let value = value.to_possible_value();
    value.map_or_else(String::new, |value| value.get_name().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_of_all_posters() {
        let case = NetCase {
            provider: By::Nic,
            verb: Verb::Put,
            scope: Scope::Warp,
            threads: 64,
            queues: 1,
            bytes: 1000,
            window: 1,
            counters: Place::Host,
            operations: 10,
        };
        // Two warps, 10 puts of 1,000 bytes each, in 10 us.
        let taken = Taken {
            registers: 68,
            processors: 1,
        };
        let figures = NetFigures::new(&case, 10_000, 400, taken);
        assert_eq!((figures.us_each, figures.post_ticks), (1.0, 20.0));
        assert_eq!(figures.million_a_second, 2.0);
        assert_eq!(figures.gigabytes_a_second, 2.0);
    }
}
