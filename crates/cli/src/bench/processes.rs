//! Memory and processor time of processes of this machine, from /proc.

use std::{
    collections::{HashMap, HashSet},
    fs,
    time::Instant,
};

use rustix::param::page_size;
use serde::Serialize;

/// Memory of some processes together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(super) struct Usage {
    /// Proportional size: memory shared by several processes is divided among them.
    pub(super) pss_bytes: u64,
    pub(super) rss_bytes: u64,
    pub(super) processes: usize,
}

impl Usage {
    /// Sums the processes that are alive.
    pub(super) fn of(pids: impl IntoIterator<Item = u32>) -> Usage {
        let mut sum = Usage::default();
        for pid in pids {
            let Some(rss_bytes) = rss_bytes(pid).filter(|bytes| *bytes > 0) else {
                continue;
            };
            sum.rss_bytes += rss_bytes;
            sum.pss_bytes += pss_bytes(pid).unwrap_or(0);
            sum.processes += 1;
        }
        sum
    }
}

/// The processor time of some processes since a moment.
pub(super) struct Watch {
    start: Instant,
    cpu_ns: HashMap<u32, u64>,
}

impl Watch {
    pub(super) fn start(pids: &[u32]) -> Watch {
        let cpu_ns = pids.iter().filter_map(|pid| Some((*pid, cpu_ns(*pid)?)));
        Watch {
            start: Instant::now(),
            cpu_ns: cpu_ns.collect(),
        }
    }

    /// Returns the use of a core since the start, in percent, by processes that still live.
    pub(super) fn percent(self) -> f64 {
        let used = |(pid, then): (&u32, &u64)| Some(cpu_ns(*pid)?.saturating_sub(*then));
        let used_ns: u64 = self.cpu_ns.iter().filter_map(used).sum();
        used_ns as f64 / self.start.elapsed().as_nanos() as f64 * 100.0
    }
}

/// Returns a process and all its descendants.
pub(super) fn family(root: u32) -> Vec<u32> {
    let (mut found, mut seen) = (vec![root], HashSet::from([root]));
    let mut at = 0;
    while let Some(&pid) = found.get(at) {
        at += 1;
        for task in fs::read_dir(format!("/proc/{pid}/task"))
            .into_iter()
            .flatten()
            .flatten()
        {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            let children = children
                .split_whitespace()
                .filter_map(|pid| pid.parse().ok());
            found.extend(children.filter(|child| seen.insert(*child)));
        }
    }
    found
}

/// Returns the time for which the threads of a process have run. The scheduler counts nanoseconds,
/// whereas /proc/PID/stat has hundredths of a second.
fn cpu_ns(pid: u32) -> Option<u64> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten();
    let run_ns = |task: fs::DirEntry| {
        let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    };
    Some(tasks.filter_map(run_ns).sum())
}

fn pss_bytes(pid: u32) -> Option<u64> {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    line.split_whitespace()
        .next()?
        .parse::<u64>()
        .ok()
        .map(|kib| kib << 10)
}

fn rss_bytes(pid: u32) -> Option<u64> {
    let statm = fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    let pages: u64 = statm.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * page_size() as u64)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn this_process_uses_time_and_memory() {
        let me = vec![std::process::id()];
        let watch = Watch::start(&me);
        let (start, mut sum) = (Instant::now(), 0u64);
        while start.elapsed().as_millis() < 100 {
            sum = std::hint::black_box(sum + 1);
        }
        let percent = watch.percent();
        assert!(percent > 1.0, "{percent}");
        let usage = Usage::of(me);
        assert!(usage.rss_bytes > 100 << 10, "{usage:?}");
        assert!(usage.pss_bytes > 0, "{usage:?}");
        assert_eq!(usage.processes, 1);
    }

    #[test]
    fn a_process_that_sleeps_computes_nothing() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(100));
        let watch = Watch::start(&[child.id()]);
        std::thread::sleep(std::time::Duration::from_millis(100));
        assert!(watch.percent() < 1.0);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn children_belong_to_the_family_and_the_dead_count_for_nothing() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        assert!(family(std::process::id()).contains(&child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(Usage::of([child.id()]), Usage::default());
    }
}
