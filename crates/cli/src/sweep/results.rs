//! The results of a sweep so far: the file from which it continues, and the table.

use std::{io::Write, path::Path};

use anyhow::Context as _;
use outboard_wire::network::Network;
use serde::{Deserialize, Serialize};

use crate::{bench::median, require::nameless};

const FORMAT: u32 = 1;
/// Longest file that is read.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// The file. A sweep continues only if everything except the runs is unchanged.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SweepResults {
    format: u32,
    pub(super) plan: Plan,
    pub(super) runs: Vec<Run>,
}

/// The program of a sweep, and its metric.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Plan {
    pub(super) program: Vec<String>,
    pub(super) gpu: String,
    /// `None`: the duration of the whole run, in seconds.
    pub(super) metric: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Run {
    pub(super) round: u32,
    /// `None`: the real network.
    pub(super) network: Option<Network>,
    pub(super) seconds: f64,
    pub(super) value: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
}

impl SweepResults {
    /// Reads the file if it belongs to this very sweep; starts a new one if there is no file, or
    /// one without a run.
    pub(super) fn open(path: &Path, plan: Plan) -> anyhow::Result<SweepResults> {
        let text = match outboard_files::read_text(path, FILE_BYTES_MAX) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return SweepResults::begin(path, plan);
            }
            Err(error) => {
                return Err(error).with_context(|| format!("reading {}", path.display()));
            }
        };
        let is_ours = |results: &SweepResults| results.format == FORMAT;
        let results: SweepResults = serde_json::from_str(&text)
            .ok()
            .filter(is_ours)
            .with_context(|| {
                format!(
                    "{} is no file of a sweep of this release; another --out leaves it alone",
                    path.display()
                )
            })?;
        if results.plan != plan && results.runs.is_empty() {
            // It came no further than its plan.
            return SweepResults::begin(path, plan);
        }
        if results.plan != plan {
            anyhow::bail!(
                "{} is of another sweep: there {}, here {}; another --out leaves it alone",
                path.display(),
                results.plan.text(),
                plan.text()
            );
        }
        Ok(results)
    }

    /// Starts a new file. One that cannot be written is noticed before anything is run.
    fn begin(path: &Path, plan: Plan) -> anyhow::Result<SweepResults> {
        let new = SweepResults {
            format: FORMAT,
            plan,
            runs: Vec::new(),
        };
        new.save(path)?;
        Ok(new)
    }

    /// Saves the results. The file has either its former contents or all of these.
    pub(super) fn save(&self, path: &Path) -> anyhow::Result<()> {
        let write = || -> anyhow::Result<()> {
            let folder = match path.parent() {
                Some(folder) if !folder.as_os_str().is_empty() => folder,
                _ => Path::new("."),
            };
            let mut file = tempfile::Builder::new()
                .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644))
                .tempfile_in(folder)
                .map_err(nameless)?;
            let mut text = serde_json::to_vec_pretty(self)?;
            text.push(b'\n');
            file.write_all(&text).map_err(nameless)?;
            file.persist(path)?;
            Ok(())
        };
        write().with_context(|| format!("writing {}", path.display()))
    }

    pub(super) fn has(&self, round: u32, network: Option<Network>) -> bool {
        self.runs
            .iter()
            .any(|run| run.round == round && run.network == network && run.error.is_none())
    }

    /// Adds a run, in place of one that failed before.
    pub(super) fn add(&mut self, run: Run) {
        self.runs
            .retain(|old| (old.round, old.network) != (run.round, run.network));
        self.runs.push(run);
    }

    /// Returns the median of the rounds on one network.
    pub(super) fn value(&self, network: Option<Network>) -> Option<f64> {
        let values: Vec<f64> = self.of(network).filter_map(|run| run.value).collect();
        median(&values)
    }

    /// Returns the median of the ratios within each round, so that a round in which the machine was
    /// slower counts alike for both.
    pub(super) fn ratio(&self, network: Network) -> Option<f64> {
        let ratios: Vec<f64> = self
            .of(Some(network))
            .filter_map(|run| {
                let base = self.of(None).find(|base| base.round == run.round)?;
                Some(run.value? / base.value.filter(|value| *value > 0.0)?)
            })
            .collect();
        median(&ratios)
    }

    fn of(&self, network: Option<Network>) -> impl Iterator<Item = &Run> {
        self.runs.iter().filter(move |run| run.network == network)
    }

    /// Formats the table: rows are round trips, columns bandwidths.
    pub(super) fn table(&self, networks: &[Vec<Network>]) -> String {
        const WIDTH: usize = 20;
        let what = match &self.plan.metric {
            Some(metric) => format!("what matches {metric}"),
            None => "seconds of the whole run".into(),
        };
        let base = self
            .value(None)
            .map_or("-".into(), |value| format!("{value:.4}"));
        let mut text = format!(
            "\n{what}: the median of the rounds, in brackets over that without an emulated network ({base})\n{:<12}",
            ""
        );
        for network in networks
            .iter()
            .flat_map(|row| row.first().map(|_| row))
            .take(1)
        {
            for one in network {
                let head = one
                    .bandwidth()
                    .map_or("unbounded".into(), |bandwidth| bandwidth.to_string());
                text += &format!("{head:>WIDTH$}");
            }
        }
        text += "\n";
        for row in networks {
            let rtt = row
                .first()
                .map(|network| outboard_wire::network::show_duration(network.rtt()));
            text += &format!("{:<12}", rtt.unwrap_or_default());
            for network in row {
                let cell = match (self.value(Some(*network)), self.ratio(*network)) {
                    (Some(value), Some(ratio)) => format!("{value:.4} ({ratio:.3})"),
                    (Some(value), None) => format!("{value:.4}"),
                    (None, _) => "failed".into(),
                };
                text += &format!("{cell:>WIDTH$}");
            }
            text += "\n";
        }
        text
    }
}

impl Plan {
    fn text(&self) -> String {
        let metric = self.metric.as_deref().unwrap_or("the whole run's time");
        format!("{:?} on {} for {metric:?}", self.program, self.gpu)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn plan() -> Plan {
        Plan {
            program: vec!["a".into()],
            gpu: "shm:///x".into(),
            metric: None,
        }
    }

    fn run(round: u32, network: Option<&str>, value: Option<f64>) -> Run {
        Run {
            round,
            network: network.map(|text| text.parse().unwrap()),
            seconds: 1.0,
            value,
            error: value.is_none().then(|| "why".into()),
        }
    }

    #[test]
    fn ratios_are_formed_within_a_round() {
        let mut results = SweepResults {
            format: FORMAT,
            plan: plan(),
            runs: Vec::new(),
        };
        // The machine is three times as slow in the second round.
        for (round, base) in [(0, 1.0), (1, 3.0), (2, 1.0)] {
            results.add(run(round, None, Some(base)));
            results.add(run(round, Some("rtt=1us"), Some(2.0 * base)));
        }
        let network = "rtt=1us".parse().unwrap();
        assert_eq!(results.ratio(network), Some(2.0));
        assert_eq!(results.value(Some(network)), Some(2.0));
        // A failed run is repeated, once.
        results.add(run(3, Some("rtt=1us"), None));
        assert!(!results.has(3, Some(network)) && results.has(2, Some(network)));
        results.add(run(3, Some("rtt=1us"), Some(9.0)));
        assert!(results.has(3, Some(network)));
        assert_eq!(results.runs.len(), 7);
    }

    #[test]
    fn a_sweep_goes_on_with_its_own_file_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sweep.json");
        let mut empty = plan();
        empty.metric = Some("y".into());
        SweepResults::open(&path, empty).unwrap();
        let mut results = SweepResults::open(&path, plan()).unwrap();
        results.add(run(0, None, Some(1.0)));
        results.save(&path).unwrap();
        let again = SweepResults::open(&path, plan()).unwrap();
        assert!(again.has(0, None) && again.runs.len() == 1);
        let mut other = plan();
        other.metric = Some("x".into());
        let said = SweepResults::open(&path, other).unwrap_err().to_string();
        assert!(
            said.contains("another sweep") && said.contains("\"x\""),
            "{said}"
        );
        for junk in [
            "",
            "{}",
            "not json",
            "{\"format\": 2, \"plan\": {}, \"runs\": []}",
        ] {
            fs::write(&path, junk).unwrap();
            let said = SweepResults::open(&path, plan()).unwrap_err().to_string();
            assert!(said.contains("no file of a sweep"), "{said}");
            assert_eq!(fs::read_to_string(&path).unwrap(), junk);
        }
        assert!(SweepResults::open(Path::new("/nonexistent/x"), plan()).is_err());
    }
}
