//! Figure 9: overhead at each bandwidth and round-trip time.

use super::page::{escaped, percent};
use crate::{Both, Requirements, show_bits_per_s, show_ns};

pub(super) fn maps(found: &Requirements) -> String {
    let budget = found.budget;
    let key = [
        ("gain", "faster than locally".into()),
        ("fits", format!("within {budget}")),
        ("over1", format!("up to {} times that", OVER[0])),
        ("over2", format!("{} times", OVER[1])),
        ("over3", format!("{} times", OVER[2])),
        ("over4", "more".into()),
    ];
    let mut html = String::from("<ul class=\"key\">");
    for (class, text) in key {
        let text = escaped(&text);
        html += &format!("<li><i class=\"{class}\"></i>{text}</li>");
    }
    html += "</ul>\n<figure>\n<h3>Simulated</h3>\n";
    html += &map(found, |both| both.simulated);
    html += "<figcaption>How much longer than locally an iteration takes, or how many times as long: \u{d7}12. \
             Round-trip times to the right, bandwidths down.</figcaption></figure>\n<figure>\n<h3>Closed form</h3>\n";
    html += &map(found, |both| both.closed_form);
    html + "<figcaption>The same by equation 3, which takes the delay of each call for a loss.</figcaption></figure>\n"
}

/// Multiples of the budget at which the colours beyond it end.
const OVER: [f64; 3] = [2.0, 5.0, 20.0];
/// Stands for the budget in those multiples if the budget is smaller.
const PART_MIN: f64 = 0.01;

fn map(found: &Requirements, of: fn(&Both<f64>) -> f64) -> String {
    let grid = &found.grid;
    let mut html = String::from("<div class=\"wide\"><table class=\"heat\">\n<thead><tr><th></th>");
    for rtt_ns in &grid.rtts_ns {
        html += &format!("<th scope=\"col\">{}</th>", show_ns(*rtt_ns));
    }
    html += "</tr></thead>\n<tbody>\n";
    // Fastest bandwidth first, as in the paper's figure.
    for (bits_per_s, row) in grid.bandwidths.iter().zip(&grid.overhead).rev() {
        html += &format!(
            "<tr><th scope=\"row\">{}</th>",
            show_bits_per_s(*bits_per_s)
        );
        for both in row {
            let overhead = of(both);
            let class = class(overhead, found.budget.part());
            html += &format!("<td class=\"{class}\">{}</td>", short(overhead));
        }
        html += "</tr>\n";
    }
    html + "</tbody></table></div>\n"
}

fn class(overhead: f64, budget: f64) -> &'static str {
    let unit = budget.max(PART_MIN);
    if overhead <= budget {
        return if overhead < 0.0 { "gain" } else { "fits" };
    }
    match OVER.iter().position(|times| overhead <= unit * times) {
        Some(0) => "over1",
        Some(1) => "over2",
        Some(2) => "over3",
        _ => "over4",
    }
}

/// Shows an overhead in as many characters as a cell holds.
fn short(overhead: f64) -> String {
    let part = overhead * 100.0;
    match part.abs() {
        large if large >= 999.5 => format!("\u{d7}{:.0}", overhead + 1.0),
        large if large >= 10.0 => format!("{part:.0}%"),
        small if small >= 0.05 => format!("{part:.1}%"),
        _ => percent(0.0).replace(' ', ""),
    }
}
