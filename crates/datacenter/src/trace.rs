//! The trace: machines and tasks in the CSV files of openb.

use outboard_dxpu::random::Random;

use crate::GPU_MILLI;

const MACHINES_HEAD: &str = "sn,cpu_milli,memory_mib,gpu,model";
const TASKS_HEAD: &str = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,";
/// Most GPUs of a machine or task.
pub(crate) const GPUS_MAX: u32 = 64;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    pub cpu_milli: u64,
    pub memory_mib: u64,
    pub gpus: u32,
    pub model: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Task {
    pub cpu_milli: u64,
    pub memory_mib: u64,
    pub gpus: u32,
    /// Part of each of its GPUs; 1,000 if it has several.
    pub gpu_milli: u32,
    /// Models that it accepts; empty: all.
    pub models: Vec<String>,
}

impl Task {
    pub fn all_gpu_milli(&self) -> u64 {
        u64::from(self.gpus) * u64::from(self.gpu_milli)
    }

    pub(crate) fn accepts(&self, model: &str) -> bool {
        self.models.is_empty() || self.models.iter().any(|accepted| accepted == model)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {why}")]
pub struct TraceError {
    pub line: usize,
    pub why: &'static str,
}

pub(crate) fn lines<'a, T>(
    text: &'a str,
    head: &str,
    read: impl Fn(&[&'a str]) -> Result<T, &'static str>,
) -> Result<Vec<T>, TraceError> {
    let mut lines = text.lines().enumerate();
    let is_head = lines
        .next()
        .is_some_and(|(_, first)| first.starts_with(head));
    if !is_head {
        let why = "not the names of the columns that are known";
        return Err(TraceError { line: 1, why });
    }
    let filled = lines.filter(|(_, line)| !line.trim().is_empty());
    let read = |(number, line): (usize, &'a str)| {
        let fields: Vec<&str> = line.trim().split(',').collect();
        read(&fields).map_err(|why| TraceError {
            line: number + 1,
            why,
        })
    };
    filled.map(read).collect()
}

fn number(fields: &[&str], at: usize) -> Result<u64, &'static str> {
    let field = fields.get(at).ok_or("a column is missing")?;
    let parsed = field.parse().map_err(|_| "no number where one is needed")?;
    match parsed {
        0..=0xFFFF_FFFF => Ok(parsed),
        _ => Err("a number of more than 32 bits"),
    }
}

/// Reads a list of machines.
pub fn machines(text: &str) -> Result<Vec<Machine>, TraceError> {
    lines(text, MACHINES_HEAD, |fields| {
        let gpus = number(fields, 3)? as u32;
        if gpus > GPUS_MAX {
            return Err("more than 64 GPUs in a machine");
        }
        Ok(Machine {
            cpu_milli: number(fields, 1)?,
            memory_mib: number(fields, 2)?,
            gpus,
            model: (*fields.get(4).ok_or("a column is missing")?).to_owned(),
        })
    })
}

/// Reads a list of tasks.
pub fn tasks(text: &str) -> Result<Vec<Task>, TraceError> {
    lines(text, TASKS_HEAD, |fields| {
        let (gpus, gpu_milli) = (number(fields, 3)? as u32, number(fields, 4)? as u32);
        if gpus > GPUS_MAX || gpu_milli > GPU_MILLI {
            return Err("more than 64 GPUs, or more than 1,000 thousandths of one");
        }
        if gpus > 1 && gpu_milli != GPU_MILLI || gpus == 1 && gpu_milli == 0 {
            return Err("several GPUs that are not whole, or nothing of one");
        }
        let models = fields.get(5).ok_or("a column is missing")?.split('|');
        Ok(Task {
            cpu_milli: number(fields, 1)?,
            memory_mib: number(fields, 2)?,
            gpus,
            gpu_milli: if gpus == 0 { 0 } else { gpu_milli },
            models: models
                .filter(|model| !model.is_empty())
                .map(str::to_owned)
                .collect(),
        })
    })
}

/// Makes tasks that ask for this share of all GPUs: those of the trace, fewer or more by random
/// choice, in random order.
pub fn arrivals(
    trace: &[Task],
    machines: &[Machine],
    share: f64,
    random: &mut Random,
) -> Vec<Task> {
    let gpus: u64 = machines.iter().map(|machine| u64::from(machine.gpus)).sum();
    let wanted = share * (gpus * u64::from(GPU_MILLI)) as f64;
    let mut chosen = trace.to_vec();
    let mut asked: u64 = trace.iter().map(Task::all_gpu_milli).sum();
    if asked == 0 {
        return chosen;
    }
    while asked as f64 > wanted && !chosen.is_empty() {
        let index = random.below(chosen.len() as u64) as usize;
        asked -= chosen.swap_remove(index).all_gpu_milli();
    }
    loop {
        let more = &trace[random.below(trace.len() as u64) as usize];
        if (asked + more.all_gpu_milli()) as f64 > wanted {
            break;
        }
        asked += more.all_gpu_milli();
        chosen.push(more.clone());
    }
    for index in (1..chosen.len()).rev() {
        chosen.swap(index, random.below(index as u64 + 1) as usize);
    }
    chosen
}
