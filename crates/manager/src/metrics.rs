//! Numbers for Prometheus.

use std::{
    collections::BTreeMap,
    fmt::{Display, Write as _},
};

use outboard_pool::{
    Manager,
    api::{GpuState, PoolView},
    record::EndReason,
};

/// Numbers of the process that serves.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Load {
    pub(crate) connections: usize,
    pub(crate) watchers: usize,
    /// Bytes of all answers that their clients have not taken.
    pub(crate) output_bytes: usize,
}

/// Returns all metrics, each GPU and each box once.
pub(crate) fn metrics(manager: &Manager, now_ms: u64, load: Load) -> String {
    let view = manager.view(now_ms);
    let mut out = String::new();
    gpus(&mut out, &view);
    holders(&mut out, &view, manager);
    let fragmented = manager.sample().fragmented_milli as f64 / 1_000.0;
    family(
        &mut out,
        ("outboard_pool_fragmented_gpus", "gauge"),
        "Free GPUs that claims like those that are known cannot use",
        std::iter::once((String::new(), fragmented)),
    );
    let ended = EndReason::ALL.into_iter();
    let ended = ended.map(|why| (labels(&[("reason", why.word())]), manager.ended(why)));
    family(
        &mut out,
        ("outboard_pool_leases_ended_total", "counter"),
        "Leases that have ended since the manager's start, by reason",
        ended,
    );
    for (name, help, value) in [
        (
            "outboard_pool_leases",
            "Leases that are not over",
            view.leases.len(),
        ),
        (
            "outboard_pool_waiting",
            "Claims that wait",
            manager.waiting_count(),
        ),
        (
            "outboard_pool_connections",
            "Connections to the manager",
            load.connections,
        ),
        (
            "outboard_pool_watchers",
            "Connections that wait for changes",
            load.watchers,
        ),
    ] {
        gauge(
            &mut out,
            name,
            help,
            std::iter::once((String::new(), value)),
        );
    }
    out
}

fn gpus(out: &mut String, view: &PoolView) {
    let mut by_state: BTreeMap<GpuState, usize> = GpuState::ALL.map(|state| (state, 0)).into();
    for gpu in &view.gpus {
        *by_state.entry(gpu.state).or_default() += 1;
    }
    let states = by_state.iter();
    let states = states.map(|(state, count)| (labels(&[("state", state.word())]), *count));
    gauge(
        out,
        "outboard_pool_gpus",
        "GPUs of the pool, by state",
        states,
    );
    let gpus = view.gpus.iter().map(|gpu| {
        let labels = labels(&[
            ("uuid", &gpu.facts.uuid.to_string()),
            ("box", &gpu.of),
            ("slot", &gpu.slot.to_string()),
            ("model", &gpu.facts.model),
            ("state", gpu.state.word()),
        ]);
        (labels, 1)
    });
    gauge(
        out,
        "outboard_pool_gpu_info",
        "Each GPU, with its state",
        gpus,
    );
    let boxes = view.boxes.iter();
    let boxes = boxes.map(|of| (labels(&[("box", &of.of)]), usize::from(of.heard)));
    gauge(
        out,
        "outboard_pool_box_up",
        "Whether the box reports",
        boxes,
    );
}

fn holders(out: &mut String, view: &PoolView, manager: &Manager) {
    let mut held = BTreeMap::<&str, usize>::new();
    for lease in &view.leases {
        *held.entry(&lease.claim.owner).or_default() += lease.gpus.len();
    }
    let held = held.into_iter();
    let held = held.map(|(owner, count)| (labels(&[("holder", owner)]), count));
    gauge(
        out,
        "outboard_pool_holder_gpus",
        "GPUs of a holder's leases",
        held,
    );
    let quotas = manager.quotas().quotas.into_iter();
    let quotas = quotas.map(|it| {
        (
            labels(&[("holder", &it.quota.owner)]),
            it.quota.gpus as usize,
        )
    });
    gauge(
        out,
        "outboard_pool_holder_quota",
        "GPUs that a holder may have",
        quotas,
    );
}

fn gauge(out: &mut String, name: &str, help: &str, values: impl Iterator<Item = (String, usize)>) {
    family(out, (name, "gauge"), help, values);
}

fn family<T: Display>(
    out: &mut String,
    (name, kind): (&str, &str),
    help: &str,
    values: impl Iterator<Item = (String, T)>,
) {
    let mut values = values.peekable();
    if values.peek().is_none() {
        return;
    }
    // Text can always be appended to text.
    let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    for (labels, value) in values {
        let _ = writeln!(out, "{name}{labels} {value}");
    }
}

fn labels(labels: &[(&str, &str)]) -> String {
    let label = |(name, value): &(&str, &str)| {
        let value = value.replace('\\', "\\\\").replace('"', "\\\"");
        format!("{name}=\"{}\"", value.replace('\n', "\\n"))
    };
    let labels: Vec<String> = labels.iter().map(label).collect();
    format!("{{{}}}", labels.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_end_no_label() {
        let made = labels(&[("model", "a\"} 1\nx\\"), ("b", "")]);
        assert_eq!(made, r#"{model="a\"} 1\nx\\",b=""}"#);
    }
}
