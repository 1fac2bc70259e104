//! The picture of free, leased and fragmented GPUs over time: SVG without scripts or styles of its
//! own.

use std::fmt::Write as _;

use outboard_pool::api::{HistoryView, Sample};
use outboard_trust::date;

/// Size of the picture, and of the part with the lines.
const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 150.0;
const LEFT: f64 = 48.0;
const RIGHT: f64 = 710.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 126.0;

/// A line: its class, what it is called, and its value in a sample.
type Line = (&'static str, &'static str, fn(&Sample) -> f64);

const LINES: [Line; 3] = [
    ("leased", "leased", |it| f64::from(it.leased)),
    ("free", "free", |it| f64::from(it.free)),
    ("fragmented", "fragmented", fragmented),
];

fn fragmented(sample: &Sample) -> f64 {
    sample.fragmented_milli as f64 / 1_000.0
}

/// Writes the section. `now` ends the lines, so that a quiet pool is not shown as it was.
pub(super) fn history(out: &mut String, view: &HistoryView, now: Sample) {
    out.push_str("<h2>GPUs over time</h2>");
    let mut samples = view.samples.clone();
    samples.push(now.clone());
    let (first_s, last_s) = (samples[0].at_s, now.at_s);
    let most = samples.iter().map(|it| it.gpus.max(1)).max().unwrap_or(1);
    let span_s = last_s.saturating_sub(first_s).max(1) as f64;
    let x = |at_s: u64| LEFT + (RIGHT - LEFT) * at_s.saturating_sub(first_s) as f64 / span_s;
    let y = |gpus: f64| BOTTOM - (BOTTOM - TOP) * gpus / f64::from(most);
    let _ = write!(
        out,
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\"><title>Leased, free and fragmented GPUs</title>\
         <path class=\"axis\" d=\"M{LEFT} {TOP}V{BOTTOM}H{RIGHT}\"/>\
         <text x=\"{}\" y=\"{}\" text-anchor=\"end\">{most}</text>\
         <text x=\"{}\" y=\"{BOTTOM}\" text-anchor=\"end\">0</text>\
         <text x=\"{LEFT}\" y=\"{}\">{}</text>\
         <text x=\"{RIGHT}\" y=\"{}\" text-anchor=\"end\">{}</text>",
        LEFT - 6.0,
        TOP + 10.0,
        LEFT - 6.0,
        BOTTOM + 16.0,
        date(first_s),
        BOTTOM + 16.0,
        date(last_s)
    );
    for (class, _, value) in LINES {
        let _ = write!(out, "<polyline class=\"line {class}\" points=\"");
        for sample in &samples {
            let _ = write!(out, "{:.1},{:.1} ", x(sample.at_s), y(value(sample)));
        }
        out.push_str("\"/>");
    }
    out.push_str("</svg><p>");
    for (class, name, value) in LINES {
        let _ = write!(
            out,
            "<span class=\"{class}\">{:.1} {name}</span> ",
            value(&now)
        );
    }
    let _ = write!(
        out,
        "of {} GPUs. Fragmented are free GPUs of groups in which claims like those that are known find too few.</p>",
        now.gpus
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_has_each_sample() {
        let sample = |at_s, leased| Sample {
            at_s,
            gpus: 8,
            free: 8 - leased,
            leased,
            fragmented_milli: 1_500,
        };
        let view = HistoryView {
            step_ms: 1_000,
            samples: vec![sample(100, 0), sample(101, 4)],
        };
        let mut out = String::new();
        history(&mut out, &view, sample(102, 8));
        assert!(out.contains("class=\"line leased\" points=\"48.0,126.0 379.0,68.0 710.0,10.0 \""));
        assert!(out.contains("class=\"line free\" points=\"48.0,10.0 379.0,68.0 710.0,126.0 \""));
        assert!(out.contains("<span class=\"fragmented\">1.5 fragmented</span>"));
        assert!(!out.contains("style") && !out.contains("script"));
        // A pool that has just begun.
        let mut out = String::new();
        let view = HistoryView {
            step_ms: 1_000,
            samples: vec![],
        };
        history(&mut out, &view, Sample::default());
        assert!(!out.contains("NaN") && !out.contains("inf"), "{out}");
    }
}
