//! The frame of a page, and functions that all its parts use.

use crate::{Limit, show_bits_per_s, show_ns};

const STYLE: &str = include_str!("style.css");

pub(super) fn page(program: &str, body: &str) -> String {
    let program = escaped(program);
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>Network requirements of {program}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n\
         <h1>Network requirements of <code>{program}</code></h1>\n{body}</main>\n</body>\n</html>\n"
    )
}

pub(super) fn section(title: &str, body: &str) -> String {
    format!("<section>\n<h2>{}</h2>\n{body}</section>\n", escaped(title))
}

/// Escapes names, which come from programs and count as text, whatever they look like.
pub(super) fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            c if c.is_control() => safe.push('\u{fffd}'),
            c => safe.push(c),
        }
    }
    safe
}

/// Makes a table of cells that are HTML already; the first column is text, the others are numbers.
pub(super) fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let mut html = String::from("<div class=\"wide\"><table>\n<thead><tr>");
    for name in head {
        html += &format!("<th scope=\"col\">{}</th>", escaped(name));
    }
    html += "</tr></thead>\n<tbody>\n";
    for row in rows {
        html += "<tr>";
        for (index, cell) in row.iter().enumerate() {
            html += &match index {
                0 => format!("<th scope=\"row\">{cell}</th>"),
                _ => format!("<td>{cell}</td>"),
            };
        }
        html += "</tr>\n";
    }
    html + "</tbody></table></div>\n"
}

pub(super) fn percent(part: f64) -> String {
    let percent = part * 100.0;
    match percent.abs() {
        small if small < 0.005 => "0 %".into(),
        small if small < 10.0 => format!("{percent:.2} %"),
        _ => format!("{percent:.0} %"),
    }
}

pub(super) fn rtt_limit(limit: Limit) -> String {
    match limit {
        Limit::Never => "none".into(),
        Limit::At(rtt_ns) => show_ns(rtt_ns),
        Limit::Any => "any".into(),
    }
}

pub(super) fn bandwidth_limit(limit: Limit) -> String {
    match limit {
        Limit::Never => "none".into(),
        Limit::At(bits_per_s) => show_bits_per_s(bits_per_s),
        Limit::Any => "any".into(),
    }
}

pub(super) fn bandwidth(bits_per_s: f64) -> String {
    match bits_per_s.is_finite() {
        true => show_bits_per_s(bits_per_s),
        false => "no end of bandwidth".into(),
    }
}

pub(super) fn show_bytes(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["B", "kB", "MB", "GB"];
    let mut number = bytes as f64;
    let mut unit = 0;
    while number >= 1_000.0 && unit + 1 < UNITS.len() {
        number /= 1_000.0;
        unit += 1;
    }
    match unit {
        0 => format!("{bytes} B"),
        _ => format!("{number:.1} {}", UNITS[unit]),
    }
}
