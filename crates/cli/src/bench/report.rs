//! The table and the JSON of `outboard bench`.

use std::{
    fs,
    time::{SystemTime, UNIX_EPOCH},
};

use outboard_link::Endpoint;
use serde::Serialize;

use super::{
    cases::{BANDWIDTH_BYTES_MIN, Case, Group, RawExchange},
    is_loopback,
    side::Side,
    statistics::Figures,
};

const FORMAT: u32 = 1;
const TITLE_WIDTH: usize = 40;
const CELL_WIDTH: usize = 38;

/// Everything measured in one run.
#[derive(Serialize)]
pub(super) struct Report {
    format: u32,
    release: &'static str,
    /// Seconds since 1970, UTC.
    time_s: u64,
    machine: Machine,
    rounds: usize,
    quick: bool,
    /// Nothing ended the run early.
    complete: bool,
    sides: Vec<About>,
    cases: Vec<Row>,
}

#[derive(Serialize)]
pub(super) struct Machine {
    cpu: String,
    cores: usize,
}

/// A side, and its own description.
#[derive(Serialize)]
struct About {
    name: String,
    url: Option<String>,
    optimise: Option<String>,
    device: String,
    driver_version: u32,
    connect_ms: f64,
    first_result_ms: f64,
    #[serde(skip)]
    has_raw: bool,
    #[serde(skip)]
    is_elsewhere: bool,
}

/// One case on every side.
#[derive(Serialize)]
pub(super) struct Row {
    group: Group,
    name: String,
    title: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    /// Bytes that the plain connection carries, if it is more than a round trip.
    #[serde(skip)]
    raw_bytes: Option<u64>,
    /// In the order of the sides; empty for a case of the plain socket only.
    sides: Vec<Cell>,
    /// Figures of a plain tcp connection over loopback for the same exchange.
    #[serde(skip_serializing_if = "Option::is_none")]
    raw: Option<Figures>,
}

#[derive(Default, Serialize)]
struct Cell {
    side: String,
    #[serde(skip)]
    bytes: Option<u64>,
    #[serde(flatten)]
    figures: Option<Figures>,
    /// Reason for missing figures.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// Ratio to the time of the local side.
    #[serde(skip_serializing_if = "Option::is_none")]
    ratio_to_local: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gigabytes_per_s: Option<f64>,
    /// For a tcp side over loopback that waits: the excess over the plain round trip.
    #[serde(skip_serializing_if = "Option::is_none")]
    over_raw_ns: Option<f64>,
    /// For a tcp side over loopback that copies: the fraction of the plain connection's bandwidth.
    #[serde(skip_serializing_if = "Option::is_none")]
    share_of_raw: Option<f64>,
}

impl Machine {
    pub(super) fn this() -> Machine {
        let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = info
            .lines()
            .find_map(|line| line.strip_prefix("model name"));
        Machine {
            cpu: model
                .map_or("unknown", |m| m.trim_start_matches(['\t', ' ', ':']))
                .into(),
            cores: outboard_link::cores::count(),
        }
    }
}

pub(super) fn now_s() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |time| time.as_secs())
}

impl Report {
    pub(super) fn new(rounds: usize, quick: bool, sides: &[Side]) -> Report {
        let about = |side: &Side| About {
            name: side.target.name.clone(),
            url: side.target.url.as_ref().map(ToString::to_string),
            optimise: side.target.optimise.clone(),
            device: side.ready.device.clone(),
            driver_version: side.ready.driver_version,
            connect_ms: side.ready.connect_ns as f64 / 1e6,
            first_result_ms: side.ready.first_result_ns as f64 / 1e6,
            has_raw: side.target.url.as_ref().is_some_and(is_loopback),
            is_elsewhere: matches!(&side.target.url, Some(url @ Endpoint::Tcp { .. }) if !is_loopback(url)),
        };
        Report {
            format: FORMAT,
            release: env!("CARGO_PKG_VERSION"),
            time_s: now_s(),
            machine: Machine::this(),
            rounds,
            quick,
            complete: false,
            sides: sides.iter().map(about).collect(),
            cases: Vec::new(),
        }
    }

    /// Returns the sides, and the table's first line.
    pub(super) fn head(&self) -> String {
        let mut text = String::new();
        for side in &self.sides {
            text += &format!(
                "{}: {}, CUDA {}.{}, connected in {:.0} ms, first result after {:.0} ms\n",
                side.name,
                side.device,
                side.driver_version / 1000,
                side.driver_version % 1000 / 10,
                side.connect_ms,
                side.first_result_ms,
            );
        }
        text += &format!("\n{:TITLE_WIDTH$}", "");
        for side in &self.sides {
            text += &format!("{:>CELL_WIDTH$}", side.name);
        }
        if self.sides.iter().any(|side| side.has_raw) {
            text += &format!("{:>CELL_WIDTH$}", "plain tcp");
        }
        text + "\n"
    }

    pub(super) fn group_line(&self, group: Group) -> String {
        format!("{}\n", format!("{group:?}").to_lowercase())
    }

    /// Keeps a row; returns its line.
    pub(super) fn add(&mut self, row: Row) -> String {
        let mut line = format!("  {:width$}", row.title, width = TITLE_WIDTH - 2);
        for at in 0..self.sides.len() {
            let text = row.sides.get(at).map(Cell::text).unwrap_or_default();
            line += &format!("{text:>CELL_WIDTH$}");
        }
        if let Some(raw) = &row.raw {
            line += &format!("{:>CELL_WIDTH$}", figures(raw, row.raw_bytes));
        }
        self.cases.push(row);
        line + "\n"
    }

    pub(super) fn is_empty(&self) -> bool {
        self.cases.is_empty()
    }

    pub(super) fn end(&mut self, complete: bool) {
        self.complete = complete;
    }

    /// Returns the reason of each case that could not be measured.
    pub(super) fn failures(&self) -> Vec<String> {
        let cells = self.cases.iter().flat_map(|row| &row.sides);
        cells.filter_map(|cell| cell.error.clone()).collect()
    }

    pub(super) fn notes(&self) -> String {
        let mut text = format!(
            "\nMedians of {} rounds in which the sides took turns, in brackets the 10th and 90th percentile.\n",
            self.rounds
        );
        if self.sides.iter().any(|side| side.url.is_none()) {
            text += "x: time over the local side's.";
        }
        if self.sides.iter().any(|side| side.has_raw) {
            text +=
                " +: over a plain tcp round trip. %: of the bandwidth of one plain tcp connection.";
        }
        if self.sides.iter().any(|side| side.is_elsewhere) {
            text += " No plain connection was measured to a server that is elsewhere.";
        }
        text.trim_end().to_owned() + "\n"
    }
}

impl Row {
    pub(super) fn new(
        case: &Case,
        sides: &[Side],
        times: &[Result<Vec<Vec<f64>>, String>],
        raw_times: &[Vec<f64>],
    ) -> Row {
        let raw = Figures::new(raw_times);
        let all: Vec<Option<Figures>> = times
            .iter()
            .map(|rounds| Figures::new(rounds.as_ref().ok()?))
            .collect();
        let local = sides.iter().position(|side| side.target.url.is_none());
        let cell = |(at, side): (usize, &Side)| {
            let Some(figures) = all[at].clone() else {
                let error = times[at].as_ref().err()?.clone();
                return Some(Cell {
                    side: side.target.name.clone(),
                    error: Some(error),
                    ..Cell::default()
                });
            };
            let local = local
                .filter(|local| *local != at)
                .and_then(|at| all[at].as_ref());
            let has_raw = side.target.url.as_ref().is_some_and(is_loopback);
            let raw = raw.as_ref().filter(|_| has_raw);
            Some(Cell {
                side: side.target.name.clone(),
                bytes: case.bytes,
                ratio_to_local: local.and_then(|local| figures.ratio_to(local)),
                gigabytes_per_s: case.bytes.map(|bytes| bytes as f64 / figures.median_ns),
                over_raw_ns: raw
                    .filter(|_| matches!(case.raw, Some(RawExchange::RoundTrip { .. })))
                    .map(|raw| figures.median_ns - raw.median_ns),
                share_of_raw: raw
                    .filter(|_| matches!(case.raw, Some(RawExchange::OneWay { .. })))
                    .and_then(|raw| figures.ratio_to(raw))
                    .map(|ratio| 1.0 / ratio),
                figures: Some(figures),
                error: None,
            })
        };
        Row {
            group: case.group,
            name: case.name.clone(),
            title: case.title.clone(),
            bytes: case.bytes,
            raw_bytes: case
                .bytes
                .filter(|_| matches!(case.raw, Some(RawExchange::OneWay { .. }))),
            sides: sides.iter().enumerate().filter_map(cell).collect(),
            raw,
        }
    }
}

impl Cell {
    fn text(&self) -> String {
        let Some(all) = &self.figures else {
            return "failed".into();
        };
        let mut text = figures(all, self.bytes);
        if let Some(ratio) = self.ratio_to_local {
            text += &format!(" {ratio:.2}x");
        }
        if let Some(over) = self.over_raw_ns {
            text += &format!(
                " {}{}",
                if over < 0.0 { "-" } else { "+" },
                time(over.abs())
            );
        }
        if let Some(share) = self.share_of_raw {
            text += &format!(" {:.0}%", share * 100.0);
        }
        text
    }
}

/// Formats the median, and the bandwidth or the percentiles.
fn figures(figures: &Figures, bytes: Option<u64>) -> String {
    let unit = Unit::of(figures.median_ns);
    let median = unit.format(figures.median_ns);
    match bytes {
        // For a large copy the bandwidth says more than the spread.
        Some(bytes) if bytes >= BANDWIDTH_BYTES_MIN => format!(
            "{median} {} {:.2} GB/s",
            unit.name,
            bytes as f64 / figures.median_ns
        ),
        _ => format!(
            "{median} {} ({}-{})",
            unit.name,
            unit.format(figures.p10_ns),
            unit.format(figures.p90_ns)
        ),
    }
}

struct Unit {
    name: &'static str,
    ns: f64,
}

impl Unit {
    fn of(ns: f64) -> Unit {
        let (name, ns) = match ns {
            ..1e3 => ("ns", 1.0),
            1e3..1e6 => ("us", 1e3),
            1e6..1e9 => ("ms", 1e6),
            _ => ("s", 1e9),
        };
        Unit { name, ns }
    }

    /// Formats a number with three digits.
    fn format(&self, ns: f64) -> String {
        let value = ns / self.ns;
        let digits = match value {
            ..10.0 => 2,
            10.0..100.0 => 1,
            _ => 0,
        };
        format!("{value:.digits$}")
    }
}

pub(crate) fn time(ns: f64) -> String {
    let unit = Unit::of(ns);
    format!("{} {}", unit.format(ns), unit.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_three_digits_and_a_unit() {
        let texts = [0.0, 9.876, 98.76, 1_234.0, 45_600.0, 7.89e6, 1.5e9, 123e9].map(time);
        assert_eq!(
            texts,
            [
                "0.00 ns", "9.88 ns", "98.8 ns", "1.23 us", "45.6 us", "7.89 ms", "1.50 s", "123 s"
            ]
        );
    }
}
