//! The page for people: tables of the pool, made here, and a form that drains a box. A small script
//! follows the changes and takes the tables anew.
//!
//! Names, addresses and reasons come from boxes and clients: all text passes [`Text`].

mod history;

use std::fmt::{self, Display, Write as _};

use outboard_pool::{
    Manager,
    api::{GpuState, PoolError, PoolView},
    record::Condition,
    show_link,
};
use outboard_trust::date;

use crate::{limits::PAGE_ROWS_MAX, operations::Operation};

pub(crate) const SCRIPT: &str = include_str!("page.js");
pub(crate) const STYLE: &str = include_str!("page.css");
/// Nothing but the page's own script and style is loaded, run or sent to.
pub(crate) const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
    form-action 'self'; base-uri 'none'; frame-ancestors 'none'";
/// Interval at which a browser without scripts loads the page again.
const REFRESH_S: u32 = 5;

/// Text in a page: nothing of it is markup.
struct Text<T>(T);

impl<T: Display> Display for Text<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for letter in self.0.to_string().chars() {
            match letter {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                // Marks that turn the direction of writing show one text as another.
                '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => f.write_str("\u{fffd}")?,
                _ if letter.is_control() => f.write_str("\u{fffd}")?,
                _ => f.write_char(letter)?,
            }
        }
        Ok(())
    }
}

/// A table's cell: its text, and the class that it has.
type Cell<'a> = (&'static str, Box<dyn Display + 'a>);

fn cell<'a>(text: impl Display + 'a) -> Cell<'a> {
    ("", Box::new(text))
}

fn number<'a>(text: impl Display + 'a) -> Cell<'a> {
    ("n", Box::new(text))
}

/// Returns the whole page. `asks_token` says that the form needs an operator's token.
pub(crate) fn page(manager: &Manager, now_ms: u64, asks_token: bool) -> String {
    let view = manager.view(now_ms);
    let mut out = head("the pool");
    let _ = write!(
        out,
        "<noscript><meta http-equiv=\"refresh\" content=\"{REFRESH_S}\"></noscript>\
         <script src=\"{}\" defer></script></head><body><header><h1>Pool {}</h1><span id=\"live\"></span></header>\
         <main data-revision=\"{}\">",
        Operation::PageScript.path(&[]),
        Text(&view.pool),
        Text(&view.revision)
    );
    summary(&mut out, &view);
    history::history(&mut out, &manager.history(), manager.sample());
    out.push_str(&form(&view, asks_token));
    boxes(&mut out, &view);
    leases(&mut out, &view);
    queue(&mut out, &view, manager.waiting_count());
    spares(&mut out, manager);
    gpus(&mut out, &view);
    out.push_str("</main></body></html>\n");
    out
}

/// Returns the page that says why a request was refused.
pub(crate) fn refused(error: &PoolError) -> String {
    let home = Operation::Page.path(&[]);
    format!(
        "{}</head><body><h1>Refused</h1><p class=\"error\">{}</p><p><a href=\"{home}\">The pool</a></p></body></html>\n",
        head("refused"),
        Text(error)
    )
}

fn head(title: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Outboard: {title}</title>\
         <meta name=\"viewport\" content=\"width=device-width\">\
         <link rel=\"stylesheet\" href=\"{}\">",
        Operation::PageStyle.path(&[])
    )
}

fn summary(out: &mut String, view: &PoolView) {
    let count = |state: GpuState| view.gpus.iter().filter(|gpu| gpu.state == state).count();
    let states = GpuState::ALL.map(|state| (state.word(), count(state)));
    let states = states.iter().filter(|(_, count)| *count > 0);
    let states =
        states.map(|(word, count)| format!("<span class=\"{word}\">{count} {word}</span>"));
    let states: Vec<String> = states.collect();
    let _ = write!(
        out,
        "<section id=\"summary\"><p>{} GPUs in {} boxes: {}</p></section>",
        view.gpus.len(),
        view.boxes.len(),
        states.join(", ")
    );
}

fn form(view: &PoolView, asks_token: bool) -> String {
    let mut out = format!(
        "<form method=\"post\" action=\"{}\"><label>Box <select name=\"box\" required>",
        Operation::PageDrain.path(&[])
    );
    for of in view.boxes.iter().take(PAGE_ROWS_MAX) {
        let _ = write!(out, "<option>{}</option>", Text(&of.of));
    }
    out.push_str(
        "</select></label><label>Reason <input name=\"reason\" maxlength=\"200\" value=\"drained\"></label>",
    );
    if asks_token {
        out.push_str(
            "<label>Operator's token <input name=\"token\" type=\"password\" autocomplete=\"off\" required></label>",
        );
    }
    out.push_str(
        "<button name=\"action\" value=\"drain\">Drain</button>\
         <button name=\"action\" value=\"undrain\">Undrain</button></form>",
    );
    out
}

fn boxes(out: &mut String, view: &PoolView) {
    let rows = view.boxes.iter().map(|of| {
        let state = match (of.heard, &of.drained) {
            (false, _) => "silent",
            (true, Some(_)) => "drained",
            (true, None) => "",
        };
        vec![
            cell(&of.of),
            number(of.node),
            cell(&of.url),
            number(of.gpus),
            (
                state,
                Box::new(if state.is_empty() { "reports" } else { state }),
            ),
            cell(of.drained.as_deref().unwrap_or("")),
            match &of.link {
                Some(link) => cell(show_link(link)),
                None => cell("not known"),
            },
        ]
    });
    let titles = [
        "box", "node", "address", "GPUs", "state", "reason", "network",
    ];
    table(out, ("boxes", "Boxes"), &titles, rows, view.boxes.len());
}

fn gpus(out: &mut String, view: &PoolView) {
    let rows = view.gpus.iter().map(|gpu| {
        let health = match (gpu.health.condition, &gpu.health.reason) {
            (Condition::Healthy, _) => ("", String::from("healthy")),
            (condition, reason) => {
                let word = if condition == Condition::Broken {
                    "broken"
                } else {
                    "suspect"
                };
                let reason = reason.as_deref().unwrap_or("no reason is known");
                (
                    word,
                    format!("{word} since {}: {reason}", date(gpu.health.since_s)),
                )
            }
        };
        let lease = gpu.lease.map_or(String::new(), |lease| lease.to_string());
        vec![
            cell(&gpu.of),
            number(gpu.slot),
            cell(gpu.facts.uuid),
            cell(&gpu.facts.model),
            number(format!("{} GiB", gpu.facts.memory_bytes >> 30)),
            cell(gpu.facts.nvlink.as_deref().unwrap_or("")),
            (gpu.state.word(), Box::new(gpu.state.word())),
            number(lease),
            (health.0, Box::new(health.1)),
            cell(gpu.reason.as_deref().unwrap_or("")),
        ]
    });
    let titles = [
        "box", "slot", "UUID", "model", "memory", "NVLink", "state", "lease", "health", "reason",
    ];
    table(out, ("gpus", "GPUs"), &titles, rows, view.gpus.len());
}

fn leases(out: &mut String, view: &PoolView) {
    let rows = view.leases.iter().map(|lease| {
        let state = format!("{:?}", lease.state).to_lowercase();
        let lost = lease.lost.iter();
        let lost: Vec<String> = lost
            .map(|it| format!("{}: {}", it.uuid, it.reason))
            .collect();
        vec![
            number(lease.lease),
            cell(&lease.claim.owner),
            cell(&lease.claim.host),
            number(lease.gpus.len()),
            cell(lease.boxes.join(" ")),
            cell(state),
            number(format!("{} s", lease.left_ms / 1_000)),
            cell(lost.join("; ")),
        ]
    });
    let titles = [
        "lease", "holder", "host", "GPUs", "boxes", "state", "left", "lost",
    ];
    table(out, ("leases", "Leases"), &titles, rows, view.leases.len());
}

fn queue(out: &mut String, view: &PoolView, count: usize) {
    let rows = view.queue.iter().map(|waiting| {
        vec![
            number(waiting.position),
            cell(&waiting.claim.owner),
            cell(&waiting.claim.host),
            number(waiting.claim.gpus),
            cell(waiting.claim.model.as_deref().unwrap_or("any")),
            number(waiting.claim.priority),
            number(format!("{} s", waiting.waited_ms / 1_000)),
        ]
    });
    let titles = [
        "place", "holder", "host", "GPUs", "model", "priority", "waits",
    ];
    table(out, ("queue", "Waiting claims"), &titles, rows, count);
}

fn spares(out: &mut String, manager: &Manager) {
    let view = manager.spares_view();
    let rows = view.rules.iter().map(|rule| {
        let per = rule
            .per
            .map_or("the pool".into(), |same| format!("{same:?}").to_lowercase());
        vec![
            cell(rule.model.as_deref().unwrap_or("each model")),
            number(rule.gpus),
            cell(per),
        ]
    });
    let title = format!("Spares: {} held back", view.held.len());
    let titles = ["models", "spares", "of each"];
    table(out, ("spares", &title), &titles, rows, view.rules.len());
}

/// Writes a table's section. Rows beyond the limit are left out, and said so; `count` is their
/// number with those that the view itself leaves out.
fn table<'a>(
    out: &mut String,
    (id, title): (&str, &str),
    titles: &[&str],
    rows: impl Iterator<Item = Vec<Cell<'a>>>,
    count: usize,
) {
    let _ = write!(out, "<section id=\"{id}\"><h2>{}</h2>", Text(title));
    if count == 0 {
        out.push_str("<p class=\"none\">none</p></section>");
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
        out.push_str("<tr>");
        for (class, text) in row {
            match class {
                "" => write!(out, "<td>{}</td>", Text(text)),
                _ => write!(out, "<td class=\"{class}\">{}</td>", Text(text)),
            }
            .unwrap_or_default();
        }
        out.push_str("</tr>");
    }
    out.push_str("</tbody></table>");
    if count > shown {
        let _ = write!(out, "<p class=\"none\">and {} more</p>", count - shown);
    }
    out.push_str("</section>");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_no_markup() {
        let made = Text("<b a='\"'>&\n\u{202e}x").to_string();
        assert_eq!(made, "&lt;b a=&#39;&quot;&#39;&gt;&amp;\u{fffd}\u{fffd}x");
    }
}
