//! Tables of the page, and their rows.

use std::fmt::{Display, Write as _};

use outboard_pool::{
    api::{BoxView, GpuView, LeaseView, WaitingView},
    record::{Condition, SpareRecord},
    show_link,
};
use outboard_trust::date;

use super::text::Text;
use crate::limits::PAGE_ROWS_MAX;

/// A table's cell: its text, and the class that it has.
type Cell<'a> = (&'static str, Box<dyn Display + 'a>);

/// A row: the name by which it is known, and its cells.
pub(super) struct Row<'a> {
    name: String,
    cells: Vec<Cell<'a>>,
}

fn row<'a>(name: impl ToString, cells: Vec<Cell<'a>>) -> Row<'a> {
    let name = name.to_string();
    Row { name, cells }
}

fn cell<'a>(text: impl Display + 'a) -> Cell<'a> {
    ("", Box::new(text))
}

fn number<'a>(text: impl Display + 'a) -> Cell<'a> {
    ("n", Box::new(text))
}

impl Row<'_> {
    pub(super) fn write(&self, out: &mut String) {
        let _ = write!(out, "<tr data-name=\"{}\">", Text(&self.name));
        for (class, text) in &self.cells {
            let _ = match *class {
                "" => write!(out, "<td>{}</td>", Text(text)),
                class => write!(out, "<td class=\"{class}\">{}</td>", Text(text)),
            };
        }
        out.push_str("</tr>");
    }

    pub(super) fn html(&self) -> String {
        let mut out = String::new();
        self.write(&mut out);
        out
    }
}

pub(super) fn of_box(of: &BoxView) -> Row<'_> {
    let state = match (of.heard, &of.drained) {
        (false, _) => "silent",
        (true, Some(_)) => "drained",
        (true, None) => "",
    };
    let shown = if state.is_empty() { "reports" } else { state };
    let cells = vec![
        cell(&of.of),
        number(of.node),
        cell(&of.url),
        number(of.gpus),
        (state, Box::new(shown)),
        cell(of.drained.as_deref().unwrap_or("")),
        match &of.link {
            Some(link) => cell(show_link(link)),
            None if of.link_fails.is_some() => cell("could not be measured"),
            None => cell("not known"),
        },
    ];
    row(&of.of, cells)
}

pub(super) fn of_gpu(gpu: &GpuView) -> Row<'_> {
    let health = match (gpu.health.condition, &gpu.health.reason) {
        (Condition::Healthy, _) => ("", String::from("healthy")),
        (condition, reason) => {
            let word = match condition == Condition::Broken {
                true => "broken",
                false => "suspect",
            };
            let reason = reason.as_deref().unwrap_or("no reason is known");
            let since = date(gpu.health.since_s);
            (word, format!("{word} since {since}: {reason}"))
        }
    };
    let cells = vec![
        cell(&gpu.of),
        number(gpu.slot),
        cell(gpu.facts.uuid),
        cell(&gpu.facts.model),
        number(format!("{} GiB", gpu.facts.memory_bytes >> 30)),
        cell(gpu.facts.nvlink.as_deref().unwrap_or("")),
        (gpu.state.word(), Box::new(gpu.state.word())),
        number(gpu.lease.map_or(String::new(), |lease| lease.to_string())),
        (health.0, Box::new(health.1)),
        cell(gpu.reason.as_deref().unwrap_or("")),
    ];
    row(gpu.facts.uuid, cells)
}

pub(super) fn of_lease(lease: &LeaseView) -> Row<'_> {
    let lost = lease.lost.iter();
    let lost: Vec<String> = lost
        .map(|it| format!("{}: {}", it.uuid, it.reason))
        .collect();
    let cells = vec![
        number(lease.lease),
        cell(&lease.claim.owner),
        cell(&lease.claim.host),
        number(lease.gpus.len()),
        cell(lease.boxes.join(" ")),
        cell(format!("{:?}", lease.state).to_lowercase()),
        number(format!("{} s", lease.left_ms / 1_000)),
        cell(lost.join("; ")),
    ];
    row(lease.lease, cells)
}

pub(super) fn of_claim(waiting: &WaitingView) -> Row<'_> {
    let cells = vec![
        number(waiting.position),
        cell(&waiting.claim.owner),
        cell(&waiting.claim.host),
        number(waiting.claim.gpus),
        cell(waiting.claim.model.as_deref().unwrap_or("any")),
        number(waiting.claim.priority),
        number(format!("{} s", waiting.waited_ms / 1_000)),
    ];
    row(&waiting.claim.uid, cells)
}

pub(super) fn of_rule(rule: &SpareRecord) -> Row<'_> {
    let per = rule
        .per
        .map_or("the pool".into(), |same| format!("{same:?}").to_lowercase());
    let model = rule.model.as_deref().unwrap_or("each model");
    row(model, vec![cell(model), number(rule.gpus), cell(per)])
}

/// Writes a table. Rows beyond the limit are left out, and said so; `count` is their number with
/// those that the view itself leaves out.
pub(super) fn table<'a>(
    out: &mut String,
    titles: &[&str],
    rows: impl Iterator<Item = Row<'a>>,
    count: usize,
) {
    if count == 0 {
        out.push_str("<p class=\"none\">none</p>");
        return;
    }
    out.push_str("<table><thead><tr>");
    for title in titles {
        let _ = write!(out, "<th>{title}</th>");
    }
    out.push_str("</tr></thead><tbody>");
    let mut shown = 0;
    for row in rows.take(PAGE_ROWS_MAX) {
        shown += 1;
        row.write(out);
    }
    out.push_str("</tbody></table>");
    if count > shown {
        let _ = write!(out, "<p class=\"none\">and {} more</p>", count - shown);
    }
}
