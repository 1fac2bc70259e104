//! The page's sections, each without the element around it.

use std::fmt::Write as _;

use outboard_pool::api::{GpuState, PoolView, SparesView};

use super::{
    rows::{of_box, of_claim, of_gpu, of_lease, of_rule, table},
    text::Text,
};

pub(super) fn summary(out: &mut String, view: &PoolView) {
    let count = |state: GpuState| view.gpus.iter().filter(|gpu| gpu.state == state).count();
    let states = GpuState::ALL.map(|state| (state.word(), count(state)));
    let states = states.iter().filter(|(_, count)| *count > 0);
    let states =
        states.map(|(word, count)| format!("<span class=\"{word}\">{count} {word}</span>"));
    let states: Vec<String> = states.collect();
    let _ = write!(
        out,
        "<p>{} GPUs in {} boxes: {}</p>",
        view.gpus.len(),
        view.boxes.len(),
        states.join(", ")
    );
}

pub(super) fn boxes(out: &mut String, view: &PoolView) {
    let titles = [
        "box", "node", "address", "GPUs", "state", "reason", "network",
    ];
    title(out, "Boxes");
    table(
        out,
        &titles,
        view.boxes.iter().map(of_box),
        view.boxes.len(),
    );
}

pub(super) fn gpus(out: &mut String, view: &PoolView) {
    let titles = [
        "box", "slot", "UUID", "model", "memory", "NVLink", "state", "lease", "health", "reason",
    ];
    title(out, "GPUs");
    table(out, &titles, view.gpus.iter().map(of_gpu), view.gpus.len());
}

pub(super) fn leases(out: &mut String, view: &PoolView) {
    let titles = [
        "lease", "holder", "host", "GPUs", "boxes", "state", "left", "lost",
    ];
    title(out, "Leases");
    table(
        out,
        &titles,
        view.leases.iter().map(of_lease),
        view.leases.len(),
    );
}

pub(super) fn queue(out: &mut String, view: &PoolView, count: usize) {
    let titles = [
        "place", "holder", "host", "GPUs", "model", "priority", "waits",
    ];
    title(out, "Waiting claims");
    table(out, &titles, view.queue.iter().map(of_claim), count);
}

pub(super) fn spares(out: &mut String, view: &SparesView) {
    let titles = ["models", "spares", "of each"];
    title(out, &format!("Spares: {} held back", view.held.len()));
    table(
        out,
        &titles,
        view.rules.iter().map(of_rule),
        view.rules.len(),
    );
}

fn title(out: &mut String, title: &str) {
    let _ = write!(out, "<h2>{}</h2>", Text(title));
}
