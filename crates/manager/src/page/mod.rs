//! The page for people: tables of the pool, made here, and a form that drains a box. A script
//! follows the changes, and asks for the rows that have changed.
//!
//! - `sections`, `rows`, `history`, `text`: markup; `changes`: that of changes.
//! - `page.ts`: the script, from which `make page-script` makes `page.js`.
//!
//! Names, addresses and reasons come from boxes and clients: all text passes [`Text`].

mod changes;
mod history;
mod rows;
mod sections;
mod text;

use std::fmt::Write as _;

use outboard_pool::{
    Manager,
    api::{PoolError, PoolView},
};

use crate::{limits::PAGE_ROWS_MAX, operations::Operation};
pub(crate) use changes::changes;
use text::Text;

pub(crate) const SCRIPT: &str = include_str!("page.js");
pub(crate) const STYLE: &str = include_str!("page.css");
/// Nothing but the page's own script and style is loaded, run or sent to.
pub(crate) const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
    form-action 'self'; base-uri 'none'; frame-ancestors 'none'";
/// Interval at which a browser without scripts loads the page again.
const REFRESH_S: u32 = 5;

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
    section(&mut out, "summary", |out| sections::summary(out, &view));
    section(&mut out, "history", |out| {
        history::history(out, &manager.history(), manager.sample());
    });
    out.push_str(&form(&view, asks_token));
    section(&mut out, "boxes", |out| sections::boxes(out, &view));
    section(&mut out, "leases", |out| sections::leases(out, &view));
    let waiting = manager.waiting_count();
    section(&mut out, "queue", |out| {
        sections::queue(out, &view, waiting);
    });
    section(&mut out, "spares", |out| {
        sections::spares(out, &manager.spares_view());
    });
    section(&mut out, "gpus", |out| sections::gpus(out, &view));
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

fn section(out: &mut String, id: &str, fill: impl FnOnce(&mut String)) {
    let _ = write!(out, "<section id=\"{id}\">");
    fill(out);
    out.push_str("</section>");
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
