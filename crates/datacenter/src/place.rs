//! Placement of tasks, and what is left that nobody can use.
//!
//! A policy gives each machine that has room a score; the first of the best is taken. Scores are
//! whole numbers of 0 to 100, as in the published experiment, for ties decide much: drawn at
//! random instead, FGD loses five points.

use outboard_dxpu::random::Random;
use rustc_hash::FxHashMap;

use crate::{
    GPU_MILLI, Machine, Task,
    fgd::{Need, fragment},
};

/// Place of GPUs and processors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Architecture {
    /// A task's GPUs and processors are in one server.
    Servers,
    /// Any GPUs go with any server's processors.
    Pool,
    /// As [`Architecture::Pool`], but a task's GPUs are of one box, joined by NVLink.
    Groups,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    Random,
    /// Least room left: processors and GPUs, each as part of the largest machine's.
    BestFit,
    /// Least growth of the GPU share that a task drawn from the trace could not use.
    Fgd,
}

/// Result of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Outcome {
    /// Share of all GPUs given out when tasks had asked for all of them.
    pub at_all_asked: f64,
    /// Share given out at the end.
    pub gpus_used: f64,
    pub cpus_used: f64,
    pub placed: usize,
    pub refused: usize,
}

#[derive(Debug, Clone)]
struct State {
    cpu: u64,
    memory: u64,
    gpus: Vec<u32>,
    model: String,
}

/// A kind of task, and its share of the trace.
struct Typical {
    task: Task,
    share: f64,
}

/// Shares of kinds that the rest of the trace is left out for.
const POPULAR: f64 = 0.95;
/// The largest machine: 128 vCPU and 8 GPUs.
const CPU_MAX: f64 = 128_000.0;
const GPU_MAX: f64 = 8_000.0;

fn typical(trace: &[Task]) -> Vec<Typical> {
    let mut counts: FxHashMap<Task, usize> = FxHashMap::default();
    for task in trace {
        let kind = Task {
            memory_mib: 0,
            ..task.clone()
        };
        *counts.entry(kind).or_default() += 1;
    }
    let mut kinds: Vec<_> = counts.into_iter().collect();
    kinds.sort_by(|a, b| {
        let of = |t: &Task| (t.gpus, t.gpu_milli, t.cpu_milli, t.models.clone());
        b.1.cmp(&a.1).then_with(|| of(&a.0).cmp(&of(&b.0)))
    });
    let (mut kept, mut sum) = (Vec::new(), 0);
    for (task, count) in kinds {
        if sum as f64 >= POPULAR * trace.len() as f64 {
            break;
        }
        sum += count;
        kept.push(Typical {
            task,
            share: count as f64,
        });
    }
    kept.iter_mut().for_each(|kind| kind.share /= sum as f64);
    kept
}

impl State {
    fn gpu_left(&self) -> u64 {
        self.gpus.iter().map(|left| u64::from(*left)).sum()
    }

    fn has_gpus(&self, task: &Task) -> bool {
        task.gpus == 0 || need(task).is_met(&self.gpus) && task.accepts(&self.model)
    }

    fn has_cpu(&self, task: &Task) -> bool {
        self.cpu >= task.cpu_milli && self.memory >= task.memory_mib
    }

    /// GPU share that a task of the trace cannot use, in the mean.
    fn fragment(&self, kinds: &[Typical]) -> f64 {
        let all = self.gpu_left();
        if all == 0 {
            return 0.0;
        }
        let lost = |task: &Task| {
            if task.gpus == 0 || !self.has_gpus(task) || self.cpu < task.cpu_milli {
                return all;
            }
            need(task).lost(&self.gpus)
        };
        fragment(kinds.iter().map(|kind| (kind.share, lost(&kind.task))))
    }

    /// Takes processors and memory.
    fn take_cpu(&mut self, task: &Task) {
        self.cpu -= task.cpu_milli;
        self.memory -= task.memory_mib;
    }

    /// Takes GPUs: a part of this one, or the fullest that suffice.
    fn take_gpus(&mut self, task: &Task, gpu: Option<usize>) {
        if let Some(gpu) = gpu {
            self.gpus[gpu] -= task.gpu_milli;
            return;
        }
        for _ in 0..task.gpus {
            let fit = self.gpus.iter_mut().filter(|left| **left >= task.gpu_milli);
            if let Some(left) = fit.min() {
                *left -= task.gpu_milli;
            }
        }
    }
}

fn need(task: &Task) -> Need {
    Need {
        gpus: task.gpus,
        gpu_milli: task.gpu_milli,
    }
}

fn sigmoid_score(fell_by: f64) -> i64 {
    (100.0 / (1.0 + (-fell_by / f64::from(GPU_MILLI)).exp())) as i64
}

/// Returns a machine's score for a task, and the GPU of which it would get a part.
fn score(
    policy: Policy,
    state: &State,
    task: &Task,
    kinds: &[Typical],
    random: &mut Random,
) -> (i64, Option<usize>) {
    let is_part = task.gpus == 1 && task.gpu_milli < GPU_MILLI;
    let fitting = || (0..state.gpus.len()).filter(|gpu| state.gpus[*gpu] >= task.gpu_milli);
    match policy {
        Policy::Random => {
            let count = fitting().count().max(1) as u64;
            let gpu = if is_part {
                fitting().nth(random.below(count) as usize)
            } else {
                None
            };
            (0, gpu)
        }
        Policy::BestFit => {
            let cpu = (state.cpu - task.cpu_milli) as f64 / CPU_MAX;
            let gpu = state.gpu_left().saturating_sub(task.all_gpu_milli()) as f64 / GPU_MAX;
            (((1.0 - 0.5 * cpu - 0.5 * gpu) * 100.0) as i64, None)
        }
        Policy::Fgd => {
            let before = state.fragment(kinds);
            let after = |gpu: Option<usize>| {
                let mut next = state.clone();
                next.cpu -= task.cpu_milli;
                next.take_gpus(task, gpu);
                sigmoid_score(before - next.fragment(kinds))
            };
            if !is_part {
                return (after(None), None);
            }
            let mut best = (-1, None);
            for gpu in fitting() {
                let score = after(Some(gpu));
                if score > best.0 {
                    best = (score, Some(gpu));
                }
            }
            best
        }
    }
}

/// Scores of machines by kind of task, kept until the machine changes.
type Kept = FxHashMap<(usize, Task), (i64, Option<usize>)>;

/// Plays tasks in their order.
pub fn play(
    machines: &[Machine],
    trace: &[Task],
    arriving: &[Task],
    (architecture, policy): (Architecture, Policy),
    random: &mut Random,
) -> Outcome {
    let mut states: Vec<State> = machines.iter().map(state).collect();
    let kinds = typical(trace);
    let all_gpu: u64 = states.iter().map(State::gpu_left).sum();
    let all_cpu: u64 = states.iter().map(|state| state.cpu).sum();
    let (mut asked, mut used, mut cpu_used) = (0, 0, 0);
    let (mut outcome, mut kept) = (Outcome::default(), Kept::default());
    for task in arriving {
        asked += task.all_gpu_milli();
        let is_placed = match architecture {
            Architecture::Servers => {
                in_server(&mut states, task, policy, &kinds, &mut kept, random)
            }
            Architecture::Pool => in_pool(&mut states, task, false),
            Architecture::Groups => in_pool(&mut states, task, true),
        };
        match is_placed {
            true => {
                used += task.all_gpu_milli();
                cpu_used += task.cpu_milli;
                outcome.placed += 1;
            }
            false => outcome.refused += 1,
        }
        if asked <= all_gpu {
            outcome.at_all_asked = used as f64 / all_gpu.max(1) as f64;
        }
    }
    outcome.gpus_used = used as f64 / all_gpu.max(1) as f64;
    outcome.cpus_used = cpu_used as f64 / all_cpu.max(1) as f64;
    outcome
}

fn state(machine: &Machine) -> State {
    State {
        cpu: machine.cpu_milli,
        memory: machine.memory_mib,
        gpus: vec![GPU_MILLI; machine.gpus as usize],
        model: machine.model.clone(),
    }
}

fn in_server(
    states: &mut [State],
    task: &Task,
    policy: Policy,
    kinds: &[Typical],
    kept: &mut Kept,
    random: &mut Random,
) -> bool {
    let mut best: Option<(i64, usize, Option<usize>)> = None;
    let mut ties = 0;
    let kind = Task {
        memory_mib: 0,
        ..task.clone()
    };
    for (number, state) in states.iter().enumerate() {
        if !state.has_cpu(task) || !state.has_gpus(task) {
            continue;
        }
        let (score, gpu) = match policy {
            Policy::Fgd => *kept
                .entry((number, kind.clone()))
                .or_insert_with(|| score(policy, state, task, kinds, random)),
            _ => score(policy, state, task, kinds, random),
        };
        if best.is_none_or(|(best, _, _)| score > best) {
            (best, ties) = (Some((score, number, gpu)), 1);
        } else if policy == Policy::Random {
            ties += 1;
            if random.below(ties) == 0 {
                best = Some((score, number, gpu));
            }
        }
    }
    let Some((_, number, gpu)) = best else {
        return false;
    };
    states[number].take_cpu(task);
    states[number].take_gpus(task, gpu);
    kept.retain(|(changed, _), _| *changed != number);
    true
}

/// Takes processors where least is left, and GPUs anywhere, or in one box; the fullest first.
fn in_pool(states: &mut [State], task: &Task, is_grouped: bool) -> bool {
    let hosts = (0..states.len()).filter(|number| states[*number].has_cpu(task));
    let Some(host) = hosts.min_by_key(|number| states[*number].cpu) else {
        return false;
    };
    let mut taken = Vec::new();
    if is_grouped && task.gpus > 0 {
        let boxes = (0..states.len()).filter(|number| states[*number].has_gpus(task));
        let Some(chosen) = boxes.min_by_key(|number| states[*number].gpu_left()) else {
            return false;
        };
        states[chosen].take_gpus(task, None);
    } else {
        for (number, state) in states.iter().enumerate() {
            if task.gpus > 0 && task.accepts(&state.model) {
                let fit = (0..state.gpus.len()).filter(|gpu| state.gpus[*gpu] >= task.gpu_milli);
                taken.extend(fit.map(|gpu| (state.gpus[gpu], number, gpu)));
            }
        }
        taken.sort_unstable();
        if taken.len() < task.gpus as usize {
            return false;
        }
        for (_, number, gpu) in taken.into_iter().take(task.gpus as usize) {
            states[number].gpus[gpu] -= task.gpu_milli;
        }
    }
    states[host].take_cpu(task);
    true
}
