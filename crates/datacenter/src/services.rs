//! Services whose instances come and go: how many machines they need, as servers with GPUs and as a
//! pool.
//!
//! The format is that of "GPU-Disaggregated Serving for Deep Learning Recommendation Models at
//! Scale" (NSDI 2025). It has no list of machines: a shape is assumed, and a machine is added when
//! an instance finds no place. None is taken away.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::trace::{GPUS_MAX, TraceError, lines};

pub const SERVICES_HEAD: &str = "instance_sn,role,app_name,cpu_request,";
const INSTANCE_CPUS_MAX: u32 = 1 << 16;
const SECONDS_MAX: f64 = 1e10;

/// Part of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Instance {
    pub app: String,
    pub cpus: u32,
    pub gpus: u32,
    pub memory_mib: u64,
    /// Instances of its service on one machine, at most.
    pub together_max: u32,
    /// It was there before the trace if that is 0, and stays after it without an end.
    pub from_s: u64,
    pub until_s: Option<u64>,
}

/// Machine that is added when one is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    pub cpus: u32,
    pub memory_mib: u64,
    /// GPUs of a server, or of a box.
    pub gpus: u32,
}

/// Places of GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fleet {
    /// Every server has GPUs.
    Servers,
    /// Servers with GPUs for instances that have some, and others without.
    TwoKinds,
    /// Hosts without GPUs, and boxes whose GPUs any host may have.
    Pool,
}

pub const FLEETS: [(&str, Fleet); 3] = [
    ("servers", Fleet::Servers),
    ("servers of two kinds", Fleet::TwoKinds),
    ("pool", Fleet::Pool),
];

/// Machines that were needed, and what of them was used in the mean over time.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Needed {
    /// Servers, or hosts.
    pub machines: u32,
    pub gpus: u64,
    pub cpus: u64,
    pub gpus_used: f64,
    pub cpus_used: f64,
    /// GPUs and processors that were used at the most.
    pub gpus_peak: u64,
    pub cpus_peak: u64,
    /// Instances that no machine of this shape can have.
    pub refused: usize,
}

/// Reads a list of instances.
pub fn services(text: &str) -> Result<Vec<Instance>, TraceError> {
    lines(text, SERVICES_HEAD, |fields| {
        let field = |at: usize| fields.get(at).copied().ok_or("a column is missing");
        let number = |at: usize, max: f64| {
            let number: f64 = field(at)?
                .parse()
                .map_err(|_| "no number where one is needed")?;
            match (0.0..=max).contains(&number) {
                true => Ok(number),
                false => Err("a number that is negative or too large"),
            }
        };
        let seconds = |at: usize| match field(at)? {
            "" | "NaN" => Ok(None),
            _ => number(at, SECONDS_MAX).map(|seconds| Some(seconds as u64)),
        };
        let together_max = match field(13)? {
            "-1" => u32::MAX,
            _ => number(13, f64::from(INSTANCE_CPUS_MAX))? as u32,
        };
        Ok(Instance {
            app: field(2)?.to_owned(),
            cpus: number(3, f64::from(INSTANCE_CPUS_MAX))?.ceil() as u32,
            gpus: number(5, f64::from(GPUS_MAX))? as u32,
            memory_mib: (number(9, 1e6)? * 1024.0) as u64,
            together_max,
            from_s: seconds(14)?.unwrap_or(0),
            until_s: seconds(16)?,
        })
    })
}

/// Plays instances as they come and go. Each goes to the machine that has the fewest processors
/// left for it.
pub fn needed(instances: &[Instance], shape: Shape, fleet: Fleet) -> Needed {
    let mut playing = Playing {
        shape,
        fleet,
        machines: Vec::new(),
        by_cpus: BTreeSet::new(),
        needed: Needed::default(),
        gpus: 0,
        cpus: 0,
    };
    // Those that leave at a time do so before others come.
    let mut order: BTreeMap<(u64, bool, usize), ()> = BTreeMap::new();
    let mut end_s = 0;
    for (number, instance) in instances.iter().enumerate() {
        order.insert((instance.from_s, true, number), ());
        end_s = end_s
            .max(instance.from_s)
            .max(instance.until_s.unwrap_or(0));
        if let Some(until_s) = instance.until_s {
            // One that comes and goes within a second was there, too.
            order.insert((until_s.max(instance.from_s + 1), false, number), ());
        }
    }
    let mut at: HashMap<usize, usize> = HashMap::new();
    let (mut before_s, mut gpu_s, mut cpu_s) = (0, 0.0, 0.0);
    for (now_s, is_new, number) in order.into_keys() {
        let lasted_s = now_s.min(end_s).saturating_sub(before_s) as f64;
        gpu_s += lasted_s * playing.gpus as f64;
        cpu_s += lasted_s * playing.cpus as f64;
        before_s = before_s.max(now_s.min(end_s));
        let instance = &instances[number];
        if is_new {
            match playing.place(instance) {
                Some(machine) => drop(at.insert(number, machine)),
                None => playing.needed.refused += 1,
            }
        } else if let Some(machine) = at.remove(&number) {
            playing.leave(instance, machine);
        }
    }
    playing.finish(gpu_s / end_s.max(1) as f64, cpu_s / end_s.max(1) as f64)
}

struct Machine {
    cpus: u32,
    memory_mib: u64,
    gpus: u32,
    has_gpus: bool,
    apps: HashMap<String, u32>,
}

struct Playing {
    shape: Shape,
    fleet: Fleet,
    machines: Vec<Machine>,
    /// Machines by the processors that they have left.
    by_cpus: BTreeSet<(u32, usize)>,
    needed: Needed,
    /// Used now.
    gpus: u64,
    cpus: u64,
}

impl Playing {
    fn place(&mut self, instance: &Instance) -> Option<usize> {
        let is_pool = self.fleet == Fleet::Pool;
        let fits = |machine: &Machine| {
            let together = machine.apps.get(&instance.app).copied().unwrap_or(0);
            machine.cpus >= instance.cpus
                && machine.memory_mib >= instance.memory_mib
                && together < instance.together_max
                && (is_pool || machine.gpus >= instance.gpus)
                && (self.fleet != Fleet::TwoKinds || machine.has_gpus == (instance.gpus > 0))
        };
        let enough = self.by_cpus.range((instance.cpus, 0)..);
        let found = enough
            .map(|(_, number)| *number)
            .find(|number| fits(&self.machines[*number]));
        let number = match found {
            Some(number) => number,
            None => {
                let has_gpus = match self.fleet {
                    Fleet::Servers => true,
                    Fleet::TwoKinds => instance.gpus > 0,
                    Fleet::Pool => false,
                };
                let new = Machine {
                    cpus: self.shape.cpus,
                    memory_mib: self.shape.memory_mib,
                    gpus: if has_gpus { self.shape.gpus } else { 0 },
                    has_gpus,
                    apps: HashMap::new(),
                };
                if !fits(&new) {
                    return None;
                }
                self.machines.push(new);
                self.machines.len() - 1
            }
        };
        self.change(number, |machine| {
            machine.cpus -= instance.cpus;
            machine.memory_mib -= instance.memory_mib;
            machine.gpus = machine.gpus.saturating_sub(instance.gpus);
            *machine.apps.entry(instance.app.clone()).or_default() += 1;
        });
        self.gpus += u64::from(instance.gpus);
        self.cpus += u64::from(instance.cpus);
        let needed = &mut self.needed;
        needed.gpus_peak = needed.gpus_peak.max(self.gpus);
        needed.cpus_peak = needed.cpus_peak.max(self.cpus);
        Some(number)
    }

    fn leave(&mut self, instance: &Instance, number: usize) {
        self.change(number, |machine| {
            machine.cpus += instance.cpus;
            machine.memory_mib += instance.memory_mib;
            if machine.has_gpus {
                machine.gpus += instance.gpus;
            }
            if let Some(together) = machine.apps.get_mut(&instance.app) {
                *together -= 1;
            }
        });
        self.gpus -= u64::from(instance.gpus);
        self.cpus -= u64::from(instance.cpus);
    }

    fn change(&mut self, number: usize, change: impl FnOnce(&mut Machine)) {
        let machine = &mut self.machines[number];
        self.by_cpus.remove(&(machine.cpus, number));
        change(machine);
        self.by_cpus.insert((machine.cpus, number));
    }

    fn finish(self, gpus_used: f64, cpus_used: f64) -> Needed {
        let machines = self.machines.len() as u64;
        let a_box = u64::from(self.shape.gpus.max(1));
        let gpus = match self.fleet {
            // Whole boxes.
            Fleet::Pool => self.needed.gpus_peak.div_ceil(a_box) * a_box,
            _ => self.machines.iter().filter(|it| it.has_gpus).count() as u64 * a_box,
        };
        let cpus = machines * u64::from(self.shape.cpus);
        let part = |used: f64, all: u64| used / (all.max(1)) as f64;
        Needed {
            machines: machines as u32,
            gpus,
            cpus,
            gpus_used: part(gpus_used, gpus),
            cpus_used: part(cpus_used, cpus),
            ..self.needed
        }
    }
}
