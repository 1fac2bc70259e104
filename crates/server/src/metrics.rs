//! The metrics of a server, declared once: their text for Prometheus and their table in the
//! documentation come from the declaration.

use std::fmt::Write as _;

use outboard_wire::doc::{Refusal, ServerStatus, SessionEnd, TenantStatus, WAIT_BOUNDS_US};

/// One metric.
pub struct Metric {
    name: &'static str,
    kind: Kind,
    help: &'static str,
    read: fn(&ServerStatus) -> Samples,
}

#[derive(Clone, Copy)]
enum Kind {
    Counter,
    Gauge,
    Histogram,
}

enum Samples {
    One(f64),
    /// Values by a label, whose values are few.
    By(&'static str, Vec<(String, f64)>),
    /// Counts of the buckets, and the sum in seconds.
    Buckets(Vec<u64>, f64),
}

use Kind::{Counter, Gauge, Histogram};
use Samples::{Buckets, By, One};

/// All metrics, in the order in which they are shown.
pub const METRICS: &[Metric] = &[
    Metric {
        name: "outboard_info",
        kind: Gauge,
        help: "Always 1; the label has the release",
        read: |s| By("release", vec![(s.release.clone(), 1.0)]),
    },
    Metric {
        name: "outboard_uptime_seconds",
        kind: Gauge,
        help: "Time since the server started",
        read: |s| One(s.uptime_ms as f64 / 1e3),
    },
    Metric {
        name: "outboard_sessions",
        kind: Gauge,
        help: "Programs that use the server now",
        read: |s| One(s.sessions.len() as f64),
    },
    Metric {
        name: "outboard_sessions_limit",
        kind: Gauge,
        help: "Programs served at the same time, at most (--sessions-max)",
        read: |s| One(s.sessions_max as f64),
    },
    Metric {
        name: "outboard_spares_ready",
        kind: Gauge,
        help: "Workers that are ready for the next programs (--spare)",
        read: |s| One(s.spares_ready as f64),
    },
    Metric {
        name: "outboard_sessions_started_total",
        kind: Counter,
        help: "Programs that have got a place",
        read: |s| One(s.totals.sessions as f64),
    },
    Metric {
        name: "outboard_sessions_ended_total",
        kind: Counter,
        help: "Sessions that have ended, by reason",
        read: |s| {
            By(
                "reason",
                by(SessionEnd::ALL.map(SessionEnd::name), &s.totals.ends),
            )
        },
    },
    Metric {
        name: "outboard_refusals_total",
        kind: Counter,
        help: "Refused connections, by reason",
        read: |s| {
            By(
                "reason",
                by(Refusal::ALL.map(Refusal::name), &s.totals.refusals),
            )
        },
    },
    Metric {
        name: "outboard_session_messages_total",
        kind: Counter,
        help: "Messages executed, of all sessions",
        read: |s| One(s.totals.messages as f64),
    },
    Metric {
        name: "outboard_session_failures_total",
        kind: Counter,
        help: "Messages that failed, of all sessions",
        read: |s| One(s.totals.failures as f64),
    },
    Metric {
        name: "outboard_session_received_bytes_total",
        kind: Counter,
        help: "Bytes of messages and their data from clients",
        read: |s| One(s.totals.received_bytes as f64),
    },
    Metric {
        name: "outboard_session_sent_bytes_total",
        kind: Counter,
        help: "Bytes of replies and their data to clients",
        read: |s| One(s.totals.sent_bytes as f64),
    },
    Metric {
        name: "outboard_session_executing_seconds_total",
        kind: Counter,
        help: "Time spent in the device's calls, of all sessions",
        read: |s| One(s.totals.executing_ns as f64 / 1e9),
    },
    Metric {
        name: "outboard_wait_seconds",
        kind: Histogram,
        help: "Time from a message that waits for the GPU to its reply",
        read: |s| {
            Buckets(
                s.totals.wait_counts.clone(),
                s.totals.waiting_ns as f64 / 1e9,
            )
        },
    },
    Metric {
        name: "outboard_device_sessions",
        kind: Gauge,
        help: "Sessions that have memory on a device",
        read: |s| By("device", gpus(s, |gpu| gpu.sessions)),
    },
    Metric {
        name: "outboard_device_memory_bytes",
        kind: Gauge,
        help: "Memory of a device that sessions have allocated",
        read: |s| By("device", gpus(s, |gpu| gpu.used_bytes)),
    },
    Metric {
        name: "outboard_device_memory_limit_bytes",
        kind: Gauge,
        help: "Memory of a device",
        read: |s| By("device", gpus(s, |gpu| gpu.memory_bytes)),
    },
    Metric {
        name: "outboard_tenant_sessions",
        kind: Gauge,
        help: "Sessions of a tenant now",
        read: |s| By("tenant", tenants(s, |of| of.sessions)),
    },
    Metric {
        name: "outboard_tenant_memory_bytes",
        kind: Gauge,
        help: "Memory of all devices that a tenant's sessions have allocated",
        read: |s| By("tenant", tenants(s, |of| of.memory_bytes.iter().sum())),
    },
    Metric {
        name: "outboard_tenant_host_memory_bytes",
        kind: Gauge,
        help: "Memory of the server's machine that workers use for a tenant",
        read: |s| By("tenant", tenants(s, |of| of.host_memory_bytes)),
    },
    Metric {
        name: "outboard_tenant_refusals_total",
        kind: Counter,
        help: "Connections refused because a tenant's share was used up (--share)",
        read: |s| By("tenant", tenants(s, |of| of.refusals)),
    },
    Metric {
        name: "outboard_tenant_memory_refusals_total",
        kind: Counter,
        help: "Requests of a tenant's sessions for memory that were refused",
        read: |s| By("tenant", tenants(s, |of| of.memory_refusals)),
    },
];

/// Names of tenants have no quotes: those of tokens are letters, digits and `. _ - @`.
fn tenants(status: &ServerStatus, number: fn(&TenantStatus) -> u64) -> Vec<(String, f64)> {
    let of = |of: &TenantStatus| (of.name.clone(), number(of) as f64);
    status.tenants.iter().map(of).collect()
}

fn by<const N: usize>(names: [&'static str; N], counts: &[u64]) -> Vec<(String, f64)> {
    let counts = counts.iter().map(|count| *count as f64);
    names.map(String::from).into_iter().zip(counts).collect()
}

fn gpus(
    status: &ServerStatus,
    number: fn(&outboard_wire::doc::GpuStatus) -> u64,
) -> Vec<(String, f64)> {
    let gpus = status.gpus.iter().enumerate();
    gpus.map(|(at, gpu)| (at.to_string(), number(gpu) as f64))
        .collect()
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Counter => "counter",
            Gauge => "gauge",
            Histogram => "histogram",
        }
    }
}

/// Returns the text that Prometheus reads, in its format 0.0.4.
pub fn exposition(status: &ServerStatus) -> String {
    let mut out = String::new();
    for Metric {
        name,
        kind,
        help,
        read,
    } in METRICS
    {
        // Writing to a string does not fail.
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {}", kind.name());
        match read(status) {
            One(value) => {
                let _ = writeln!(out, "{name} {value}");
            }
            By(label, values) => {
                for (of, value) in values {
                    let _ = writeln!(out, "{name}{{{label}=\"{of}\"}} {value}");
                }
            }
            Buckets(counts, sum) => {
                let mut below = 0;
                for (bound_us, count) in WAIT_BOUNDS_US.iter().zip(&counts) {
                    below += count;
                    let bound = *bound_us as f64 / 1e6;
                    let _ = writeln!(out, "{name}_bucket{{le=\"{bound}\"}} {below}");
                }
                let all: u64 = counts.iter().sum();
                let _ = writeln!(out, "{name}_bucket{{le=\"+Inf\"}} {all}");
                let _ = writeln!(out, "{name}_sum {sum}\n{name}_count {all}");
            }
        }
    }
    out
}

/// Returns the documentation's table of the metrics.
pub fn table() -> String {
    let mut out = String::from("| metric | kind | meaning |\n|---|---|---|\n");
    for metric in METRICS {
        let label = match (metric.read)(&ServerStatus::default()) {
            By(label, _) => format!("{{{label}}}"),
            One(_) | Buckets(..) => String::new(),
        };
        let (name, kind, help) = (metric.name, metric.kind.name(), metric.help);
        let _ = writeln!(out, "| `{name}{label}` | {kind} | {help} |");
    }
    out
}

#[cfg(test)]
mod tests {
    use outboard_wire::doc::{GpuStatus, Totals, WAIT_BUCKETS};

    use super::*;

    #[test]
    fn buckets_are_cumulative_and_names_are_valid() {
        let mut counts = vec![0; WAIT_BUCKETS];
        (counts[0], counts[WAIT_BUCKETS - 1]) = (2, 3);
        let status = ServerStatus {
            gpus: vec![GpuStatus::default(); 2],
            totals: Totals {
                wait_counts: counts,
                ends: vec![1; SessionEnd::ALL.len()],
                ..Totals::default()
            },
            ..ServerStatus::default()
        };
        let text = exposition(&status);
        for line in [
            "outboard_wait_seconds_bucket{le=\"0.00002\"} 2",
            "outboard_wait_seconds_bucket{le=\"10\"} 2",
            "outboard_wait_seconds_bucket{le=\"+Inf\"} 5",
            "outboard_wait_seconds_count 5",
            "outboard_sessions_ended_total{reason=\"asked\"} 1",
            "outboard_device_memory_bytes{device=\"1\"} 0",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
        }
        for metric in METRICS {
            let is_counter = matches!(metric.kind, Counter);
            assert_eq!(
                metric.name.ends_with("_total"),
                is_counter,
                "{}",
                metric.name
            );
        }
    }

    /// The page is written with `OUTBOARD_GOLDEN=write`.
    #[test]
    fn the_page_has_the_table() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operating.md");
        let page = std::fs::read_to_string(path).unwrap();
        let (begin, end) = ("<!-- metrics -->\n", "<!-- end of metrics -->\n");
        let (before, rest) = page.split_once(begin).unwrap();
        let (old, after) = rest.split_once(end).unwrap();
        if std::env::var_os("OUTBOARD_GOLDEN").is_some() {
            std::fs::write(path, [before, begin, &table(), end, after].concat()).unwrap();
            return;
        }
        assert_eq!(old, table(), "docs/operating.md has another table");
    }
}
