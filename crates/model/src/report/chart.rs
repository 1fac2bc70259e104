//! Figure 10: overhead over round-trip time.

use super::page::{escaped, percent};
use crate::{Both, LevelSlope, PcieRequirements, Requirements, show_bits_per_s};

const WIDTH: f64 = 520.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 42.0;
const TICKS: usize = 5;

struct Curve {
    name: String,
    /// Number of the colour in the style sheet: s1 to s4.
    colour: usize,
    is_dashed: bool,
    points: Vec<(f64, f64)>,
}

pub(super) fn slopes(found: &Requirements) -> String {
    let rtts_us: Vec<f64> = found.slope.rtts_ns.iter().map(|ns| ns / 1e3).collect();
    let curve = |level: &LevelSlope, name: String, colour, of: fn(&Both<f64>) -> f64| Curve {
        name,
        colour,
        is_dashed: colour == 2 && level.level == found.level,
        points: rtts_us
            .iter()
            .copied()
            .zip(level.overhead.iter().map(of))
            .collect(),
    };
    let simulated = |both: &Both<f64>| both.simulated;
    let levels = found.slope.levels.iter().enumerate();
    let all: Vec<Curve> = levels
        .map(|(index, level)| Curve {
            is_dashed: false,
            ..curve(level, level.level.clone(), index + 1, simulated)
        })
        .collect();
    let asked = found.slope.levels.iter().find(|l| l.level == found.level);
    let both: Vec<Curve> = asked.map_or(Vec::new(), |level| {
        vec![
            curve(level, "simulated".into(), 1, simulated),
            curve(level, "closed form".into(), 2, |both| both.closed_form),
        ]
    });
    let bandwidth = show_bits_per_s(found.slope.bits_per_s);
    let per_us = asked.map_or(String::new(), |level| {
        format!(
            "Each microsecond adds {} of the local time by simulation, {} by the closed form.",
            percent(level.per_us.simulated),
            percent(level.per_us.closed_form)
        )
    });
    let budget = Some(found.budget.part());
    format!(
        "<div class=\"pair\">\n<figure><h3>At {}</h3>\n{}<figcaption>At {bandwidth}. {per_us}</figcaption></figure>\n\
         <figure><h3>At each level, simulated</h3>\n{}<figcaption>At {bandwidth}.</figcaption></figure>\n</div>\n",
        escaped(&found.level),
        chart(&both, budget),
        chart(&all, budget),
    )
}

pub(super) fn pcie(found: &PcieRequirements) -> String {
    let curve = |name: &str, colour, of: fn(&Both<f64>) -> f64| Curve {
        name: name.into(),
        colour,
        is_dashed: colour == 2,
        points: found
            .points
            .iter()
            .map(|p| (p.rtt_ns / 1e3, of(&p.overhead)))
            .collect(),
    };
    let curves = [
        curve("simulated", 1, |both| both.simulated),
        curve("no delay hidden", 2, |both| both.closed_form),
    ];
    format!(
        "<figure class=\"small\">{}</figure>\n",
        chart(&curves, Some(found.budget.part()))
    )
}

fn chart(curves: &[Curve], budget: Option<f64>) -> String {
    let points = || curves.iter().flat_map(|curve| &curve.points);
    let x_max = nice(points().map(|p| p.0).fold(0.0, f64::max));
    let y_most = points().map(|p| p.1).fold(0.01, f64::max);
    let y_least = points().map(|p| p.1).fold(0.0, f64::min);
    let step = nice((y_most - y_least) / TICKS as f64);
    let (y_min, y_max) = (
        (y_least / step).floor() * step,
        (y_most / step).ceil() * step,
    );
    let x = |value: f64| LEFT + value / x_max * (WIDTH - LEFT - RIGHT);
    let y = |value: f64| TOP + (y_max - value) / (y_max - y_min) * (HEIGHT - TOP - BOTTOM);
    let mut svg = String::new();
    let mut tick = y_min;
    while tick <= y_max + step / 2.0 {
        let at = y(tick);
        svg += &format!(
            "<path class=\"axis\" d=\"M{LEFT} {at:.1}H{:.1}\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\n",
            WIDTH - RIGHT,
            LEFT - 7.0,
            at + 4.0,
            tick_label(tick, step)
        );
        tick += step;
    }
    for index in 0..=TICKS {
        let value = x_max * index as f64 / TICKS as f64;
        svg += &format!(
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\n",
            x(value),
            HEIGHT - BOTTOM + 17.0,
            (value * 10.0).round() / 10.0
        );
    }
    svg += &format!(
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">round-trip time, \u{b5}s</text>\n",
        (LEFT + WIDTH - RIGHT) / 2.0,
        HEIGHT - 6.0
    );
    let budget = budget.filter(|budget| (y_min..=y_max).contains(budget));
    if let Some(budget) = budget {
        let (at, right) = (y(budget), WIDTH - RIGHT);
        svg += &format!("<path class=\"limit\" d=\"M{LEFT} {at:.1}H{right:.1}\"/>\n");
    }
    for curve in curves {
        let path: Vec<String> = curve
            .points
            .iter()
            .map(|(at, value)| format!("{:.1} {:.1}", x(*at), y(*value)))
            .collect();
        let dashed = if curve.is_dashed { " dashed" } else { "" };
        svg += &format!(
            "<path class=\"curve s{}{dashed}\" d=\"M{}\"/>\n",
            curve.colour,
            path.join("L")
        );
    }
    let mut key = String::from("<ul class=\"key\">");
    for curve in curves {
        let name = escaped(&curve.name);
        key += &format!("<li><i class=\"f{}\"></i>{name}</li>", curve.colour);
    }
    if budget.is_some() {
        key += "<li><i class=\"dots\"></i>budget</li>";
    }
    format!(
        "{key}</ul><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"overhead over the round-trip time\">\n\
         {svg}</svg>\n"
    )
}

fn tick_label(part: f64, step: f64) -> String {
    let percent = part * 100.0;
    match step * 100.0 {
        step if step >= 1.0 => format!("{percent:.0} %"),
        step if step >= 0.1 => format!("{percent:.1} %"),
        _ => format!("{percent:.2} %"),
    }
    .replace("-0 %", "0 %")
}

/// Rounds up to 1, 2, 5, 10 and so on.
fn nice(number: f64) -> f64 {
    let unit = 10_f64.powf(number.max(1e-9).log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0];
    let step = steps
        .iter()
        .find(|step| **step * unit >= number * 0.999_999);
    step.unwrap_or(&10.0) * unit
}
