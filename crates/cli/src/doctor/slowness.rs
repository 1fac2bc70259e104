//! Likely reasons why programs are slower here than they need be, and what helps.

use std::{env, fs, path::Path};

use outboard_api::optimise::{self, Level};
use outboard_link::{Endpoint, cores, data_connections_are_set, data_connections_wanted, emulated};
use outboard_wire::{
    doc::{StatusAnswer, StatusQuestion},
    limits::{DATA_CONNECTIONS, DATA_CONNECTIONS_CORES_MIN},
};
use rustix::process::{Resource, getrlimit};

use super::finding::Finding;
use crate::peer::StatusQueries;

/// Pinned memory of a program that trains, at least, in bytes.
const LOCKED_BYTES_MIN: u64 = 1 << 30;
/// Drivers of processors whose governor "powersave" goes by the load.
const GOES_BY_LOAD: [&str; 2] = ["intel_pstate", "amd-pstate-epp"];

/// Looks at this machine and this environment.
pub(super) fn of_this_machine() -> Vec<Finding> {
    let mut findings = vec![
        data_connections(cores::count(), data_connections_wanted()),
        governor(Path::new("/sys/devices/system/cpu/cpu0/cpufreq")),
        locked_memory(getrlimit(Resource::Memlock).current),
    ];
    findings.extend(variables(|name| env::var(name).ok()));
    if cfg!(debug_assertions) {
        findings.push(Finding::note(
            "build",
            "this is a debug build, several times slower",
            "make install, make wheel: they make release builds",
        ));
    }
    findings
}

/// Asks a server why it may be slow. A server that does not say is not complained about.
pub(super) fn of_server(endpoint: &Endpoint) -> Option<Finding> {
    const WHAT: &str = "speed of the server";
    let mut queries = StatusQueries::open(endpoint).ok()?;
    let Ok(StatusAnswer::Now(status)) = queries.ask(StatusQuestion::Now) else {
        return None;
    };
    let others = status.sessions.len();
    let mut reasons = status.slow_by;
    if others > 0 {
        reasons.push(format!("{others} sessions share it now (outboard top)"));
    }
    Some(match reasons.is_empty() {
        true => Finding::ok(WHAT, "no setting slows it down, and it has no session"),
        false => Finding::note(
            WHAT,
            reasons.join("; "),
            "start it without these options, from a release build, or wait until it is free",
        ),
    })
}

fn data_connections(cores: usize, wanted: usize) -> Finding {
    const WHAT: &str = "data connections";
    let found = format!("{wanted} for long copies over tcp, with {cores} cores");
    match wanted >= DATA_CONNECTIONS || data_connections_are_set() {
        true => Finding::ok(WHAT, found),
        false => Finding::note(
            WHAT,
            found,
            format!(
                "{DATA_CONNECTIONS_CORES_MIN} cores for this process, at both ends, carry {DATA_CONNECTIONS}: taskset, cgroups and containers' limits count; matters for copies of 2 MiB and more"
            ),
        ),
    }
}

/// Looks how the processor's frequency is chosen.
fn governor(folder: &Path) -> Finding {
    const WHAT: &str = "processor frequency";
    let read = |name| fs::read_to_string(folder.join(name)).unwrap_or_default();
    let (governor, driver) = (read("scaling_governor"), read("scaling_driver"));
    match (governor.trim(), driver.trim()) {
        ("", _) => Finding::ok(WHAT, "the system does not say how it is chosen"),
        ("powersave", driver) if !GOES_BY_LOAD.contains(&driver) => Finding::note(
            WHAT,
            "the governor powersave keeps it low",
            "cpupower frequency-set -g performance; matters for calls that wait",
        ),
        (governor, _) => Finding::ok(WHAT, format!("the governor is {governor}")),
    }
}

fn locked_memory(limit: Option<u64>) -> Finding {
    const WHAT: &str = "locked memory";
    let is_privileged = rustix::process::geteuid().is_root();
    match limit.filter(|limit| *limit < LOCKED_BYTES_MIN && !is_privileged) {
        None => Finding::ok(WHAT, "its limit suffices"),
        Some(limit) => Finding::note(
            WHAT,
            format!(
                "{} KiB at most, so a server here pins little memory for copies",
                limit >> 10
            ),
            "ulimit -l unlimited; LimitMEMLOCK=infinity of a systemd unit; --ulimit memlock=-1 of a container",
        ),
    }
}

/// Looks for variables that make programs slow, and may have been forgotten.
fn variables(value: impl Fn(&str) -> Option<String>) -> Vec<Finding> {
    const WHAT: &str = "environment";
    let highest = Level::default().to_string();
    let slow = [
        (optimise::VARIABLE, "calls wait that need not"),
        (
            emulated::VARIABLE,
            "messages are delayed as by that network",
        ),
        ("OUTBOARD_RECORD", "every call is recorded"),
        ("CUDA_LAUNCH_BLOCKING", "each launch waits for its kernel"),
    ];
    let set = slow.iter().filter_map(|(name, effect)| {
        let value = value(name).filter(|value| !value.is_empty() && value != "0")?;
        (value != highest).then_some((*name, value, *effect))
    });
    set.map(|(name, value, effect)| {
        let found = format!("{name} is {value}: {effect}");
        Finding::note(WHAT, found, format!("unset {name}"))
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Verdict;

    #[test]
    fn few_cores_are_told() {
        assert_eq!(data_connections(2, 0).verdict, Verdict::Note);
        assert_eq!(data_connections(4, 2).verdict, Verdict::Note);
        assert_eq!(data_connections(16, DATA_CONNECTIONS).verdict, Verdict::Ok);
    }

    #[test]
    fn a_governor_that_saves_power_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let verdict = |governor: &str, driver: &str| {
            fs::write(folder.path().join("scaling_governor"), governor).unwrap();
            fs::write(folder.path().join("scaling_driver"), driver).unwrap();
            governor_verdict(folder.path())
        };
        assert_eq!(verdict("powersave\n", "acpi-cpufreq\n"), Verdict::Note);
        assert_eq!(verdict("powersave\n", "intel_pstate\n"), Verdict::Ok);
        assert_eq!(verdict("performance\n", "acpi-cpufreq\n"), Verdict::Ok);
        assert_eq!(governor_verdict(Path::new("/proc/nowhere")), Verdict::Ok);
    }

    fn governor_verdict(folder: &Path) -> Verdict {
        governor(folder).verdict
    }

    #[test]
    fn forgotten_variables_are_told() {
        let set = |name: &str| match name {
            "OUTBOARD_OPTIMISE" => Some("sync".to_string()),
            "CUDA_LAUNCH_BLOCKING" => Some("0".to_string()),
            _ => None,
        };
        let findings = variables(set);
        assert_eq!(findings.len(), 1);
        assert!(findings[0].found.contains("OUTBOARD_OPTIMISE is sync"));
        let highest = Level::default().to_string();
        assert!(
            variables(|_| Some(highest.clone())).len() < 4,
            "the default level slows nothing"
        );
    }
}
