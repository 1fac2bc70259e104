//! The packet simulation as the PCIe of a recorded iteration.

use outboard_dxpu::sim::{Chain, Setup, Work, play};
use outboard_model::{Fabric, Late, Traffic};
use outboard_trace::GpuWork;

/// Bytes that a GPU reads for a kernel, a memset or a copy: commands and their place.
const COMMAND_BYTES: u64 = 128;
/// Bytes of a semaphore: an event, or a wait of one stream for another.
const EVENT_BYTES: u64 = 16;
const DOORBELL_BYTES: u64 = 8;

/// One proxy, or none, with GPUs that all play the same iteration.
pub(crate) struct Simulated {
    setup: Setup,
    gpus: u32,
    /// Each node of a graph reads commands, and not only the graph.
    nodes_read: bool,
    native: Native,
    part: Part,
}

/// Traffic that counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    All,
    /// Doorbells and events take no longer than natively, as in the paper's model.
    WithoutSignals,
}

/// Latencies without proxies, which are in the recording already.
#[derive(Clone, Copy)]
struct Native {
    read_ps: u64,
    event_ps: u64,
    doorbell_ps: u64,
}

impl Simulated {
    pub(crate) fn new(setup: Setup, gpus: u32, nodes_read: bool) -> Simulated {
        let native = Setup {
            proxies: None,
            gpus: 1,
            ..setup
        };
        let alone = |work| {
            let chain = Chain {
                gpu: 0,
                from_ps: 0,
                works: &[work],
            };
            play(&native, &[chain]).0.ended_ps
        };
        Simulated {
            setup: Setup { gpus, ..setup },
            gpus,
            nodes_read,
            native: Native {
                read_ps: alone(READ_COMMAND),
                event_ps: alone(EVENT),
                doorbell_ps: alone(DOORBELL),
            },
            part: Part::All,
        }
    }

    pub(crate) fn with(self, part: Part) -> Simulated {
        Simulated { part, ..self }
    }

    /// Works that a unit does after it is due, and the number of reads before it begins.
    fn works(&self, unit: &Traffic) -> (Vec<Work>, usize) {
        let wait = unit
            .waits_for_others
            .then_some(Work::Read { bytes: EVENT_BYTES });
        let mut works: Vec<Work> = wait.into_iter().collect();
        let nodes = match (unit.kind, self.nodes_read) {
            (GpuWork::Graph, true) => unit.nodes.max(1),
            _ => 1,
        };
        works.extend((0..nodes).map(|_| READ_COMMAND));
        let reads = works.len();
        let bytes = unit.bytes.max(1);
        works.push(match unit.kind {
            GpuWork::CopyToDevice => Work::Read { bytes },
            GpuWork::CopyToHost => Work::Write { bytes },
            _ => Work::Compute {
                ps: ps(unit.duration_ns),
            },
        });
        works.push(EVENT);
        (works, reads)
    }

    fn late(&self, unit: &Traffic, reads: usize, rung_ps: u64, ended_ps: &[u64]) -> Late {
        let native = self.native;
        let (due_ps, called_ps) = (ps(unit.due_ns), ps(unit.called_ns));
        let (begun_ps, done_ps) = (ended_ps[reads - 1], ended_ps[reads]);
        let read_ps = reads as u64 * native.read_ps;
        let took_ns = ns(done_ps - begun_ps);
        // What a copy's own latency adds, if the recorded one was slow for another reason.
        let delta_ns = (ns(begun_ps - due_ps) - ns(read_ps)) / reads as f64;
        let duration_ns = match unit.kind {
            GpuWork::CopyToDevice => took_ns.max(unit.duration_ns + delta_ns),
            GpuWork::CopyToHost => took_ns.max(unit.duration_ns + delta_ns / 2.0),
            _ => unit.duration_ns,
        };
        let more = |since_ps: u64, native_ps: u64| ns(since_ps.saturating_sub(native_ps));
        let (doorbell_ns, seen_ns) = match self.part {
            Part::All => (
                more(rung_ps - called_ps, native.doorbell_ps),
                more(ended_ps[reads + 1] - done_ps, native.event_ps),
            ),
            Part::WithoutSignals => (0.0, 0.0),
        };
        Late {
            doorbell_ns,
            begin_ns: more(begun_ps - due_ps, read_ps),
            duration_ns,
            seen_ns,
        }
    }
}

const READ_COMMAND: Work = Work::Read {
    bytes: COMMAND_BYTES,
};
const EVENT: Work = Work::Write { bytes: EVENT_BYTES };
const DOORBELL: Work = Work::HostWrite {
    bytes: DOORBELL_BYTES,
    unit_bytes: DOORBELL_BYTES as u32,
};

impl Fabric for Simulated {
    /// GPUs of one proxy wait for each other at the end of an iteration: the latest counts.
    fn play(&mut self, traffic: &[Traffic]) -> Vec<Late> {
        let works: Vec<_> = traffic.iter().map(|unit| self.works(unit)).collect();
        let mut chains = Vec::with_capacity(2 * traffic.len() * self.gpus as usize);
        for gpu in 0..self.gpus {
            for (unit, (works, _)) in traffic.iter().zip(&works) {
                let chain = |from_ns, works| Chain {
                    gpu,
                    from_ps: ps(from_ns),
                    works,
                };
                chains.push(chain(unit.called_ns, &[DOORBELL]));
                chains.push(chain(unit.due_ns, works));
            }
        }
        let (_, ended_ps) = play(&self.setup, &chains);
        let of_gpus = ended_ps.chunks_exact(2 * traffic.len().max(1));
        let mut latest = vec![Late::default(); traffic.len()];
        for ended_ps in of_gpus {
            let units = ended_ps.chunks_exact(2).zip(traffic.iter().zip(&works));
            for (latest, (ended_ps, (unit, (_, reads)))) in latest.iter_mut().zip(units) {
                let late = self.late(unit, *reads, ended_ps[0][0], &ended_ps[1]);
                *latest = Late {
                    doorbell_ns: late.doorbell_ns.max(latest.doorbell_ns),
                    begin_ns: late.begin_ns.max(latest.begin_ns),
                    duration_ns: late.duration_ns.max(latest.duration_ns),
                    seen_ns: late.seen_ns.max(latest.seen_ns),
                };
            }
        }
        latest
    }
}

fn ps(ns: f64) -> u64 {
    (ns.max(0.0) * 1e3) as u64
}

fn ns(ps: u64) -> f64 {
    ps as f64 / 1e3
}
