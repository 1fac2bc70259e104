//! Metrics in Prometheus' text format.

use super::status::{BackendStatus, Status};
use std::fmt::Write as _;

struct Text(String);

impl Text {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string does not fail.
        let _ = writeln!(self.0, "# HELP outboard_balance_{name} {help}");
        let _ = writeln!(self.0, "# TYPE outboard_balance_{name} {kind}");
    }

    fn value(&mut self, name: &str, labels: &[(&str, &str)], value: u64) {
        let labels: Vec<_> = labels
            .iter()
            .map(|(label, text)| {
                let text = text
                    .replace('\\', "\\\\")
                    .replace('"', "\\\"")
                    .replace('\n', "\\n");
                format!("{label}=\"{text}\"")
            })
            .collect();
        let labels = if labels.is_empty() {
            String::new()
        } else {
            format!("{{{}}}", labels.join(","))
        };
        let _ = writeln!(self.0, "outboard_balance_{name}{labels} {value}");
    }
}

/// Writes the status in Prometheus' text format.
pub(super) fn exposition(status: &Status) -> String {
    let mut text = Text(String::new());
    add_totals(&mut text, status);
    text.family("interfaces_gone", "gauge", "Interfaces that have vanished");
    text.value("interfaces_gone", &[], status.interfaces_gone.len() as u64);
    for (name, help, values) in [
        ("packets_total", "Packets sent on", status.packets),
        ("bytes_total", "Bytes sent on", status.bytes),
    ] {
        text.family(name, "counter", help);
        text.value(name, &[("from", "client")], values[0]);
        text.value(name, &[("from", "backend")], values[1]);
    }
    text.family("dropped_total", "counter", "Frames not sent on, by reason");
    for (reason, count) in &status.dropped {
        text.value("dropped_total", &[("reason", reason)], *count);
    }
    add_backends(&mut text, status);
    text.0
}

fn add_totals(text: &mut Text, status: &Status) {
    let gauges = [
        ("connections", "Open connections", status.connections),
        (
            "half_open_connections",
            "Connections not confirmed yet",
            status.half_open,
        ),
        (
            "fragmented_packets",
            "Packets of which fragments are due",
            status.fragmented,
        ),
    ];
    for (name, help, value) in gauges {
        text.family(name, "gauge", help);
        text.value(name, &[], value as u64);
    }
    let evicted = status.half_open_evicted;
    let completed = status.checksums_completed;
    let counters = [
        ("opened_total", "Connections opened", status.opened),
        ("expired_total", "Connections over by time", status.expired),
        (
            "half_open_evicted_total",
            "Half-open connections that made room",
            evicted,
        ),
        (
            "over_evicted_total",
            "Connections that were over and made room",
            status.over_evicted,
        ),
        (
            "out_of_window_total",
            "TCP segments out of their connection's window",
            status.out_of_window,
        ),
        (
            "icmp_errors_total",
            "ICMP errors translated",
            status.icmp_errors,
        ),
        ("fragments_total", "Fragments sent on", status.fragments),
        (
            "answered_total",
            "Echoes and neighbours' questions answered",
            status.answered,
        ),
        (
            "checksums_completed_total",
            "Checksums filled in that a host left out",
            completed,
        ),
        (
            "told_too_long_total",
            "Senders told that their packets are too long",
            status.told_too_long,
        ),
        (
            "split_total",
            "Fragments made of packets that were too long",
            status.split,
        ),
    ];
    for (name, help, value) in counters {
        text.family(name, "counter", help);
        text.value(name, &[], value);
    }
}

fn add_backends(text: &mut Text, status: &Status) {
    type Of = fn(&BackendStatus) -> u64;
    let families: [(&str, &str, &str, Of); 4] = [
        (
            "backend_connections",
            "gauge",
            "Open connections of a backend",
            |one| one.connections,
        ),
        (
            "backend_opened_total",
            "counter",
            "Connections opened to a backend",
            |one| one.opened,
        ),
        (
            "backend_up",
            "gauge",
            "1 if the backend's checks succeed",
            |one| one.is_up.into(),
        ),
        (
            "backend_draining",
            "gauge",
            "1 if the backend is drained",
            |one| one.is_drained.into(),
        ),
    ];
    for (name, kind, help, of) in families {
        text.family(name, kind, help);
        for service in &status.services {
            for one in &service.backends {
                let labels = [("service", &*service.name), ("backend", &*one.address)];
                text.value(name, &labels, of(one));
            }
        }
    }
}
