//! The texts and tables of a page.

use super::page::{bandwidth, bandwidth_limit, escaped, percent, rtt_limit, show_bytes, table};
use crate::{
    FoundBy, LEVELS_RTT_NS, PcieRequirements, Recording, Requirements, SLOPE_BPS, show_bits_per_s,
    show_ns,
};

pub(super) fn summary(found: &Requirements) -> String {
    let recording = &found.recording;
    let (answer, facts) = (answer(found), facts(found));
    let mut html = format!("<p class=\"answer\">{answer}</p>\n<div class=\"facts\">");
    for (number, what) in facts {
        html += &format!(
            "<div><b>{}</b><span>{}</span></div>",
            escaped(&number),
            escaped(&what)
        );
    }
    html += "</div>\n";
    html += &notes(&recording.notes);
    html + &format!(
        "<p class=\"quiet\">Sending a call costs {}, answering one locally {} (from: {}). GPU: {}.</p>\n",
        show_ns(found.constants.start_ns),
        show_ns(found.constants.time_local_ns),
        escaped(&found.constants.source),
        match recording.devices.is_empty() {
            true => "not recorded".into(),
            false => escaped(&recording.devices.join(", ")),
        }
    )
}

/// Returns the sentence that answers which network is needed.
fn answer(found: &Requirements) -> String {
    let perfect = percent(found.perfect.simulated);
    let measured = found.without_network.map_or(String::new(), |measured| {
        format!(
            " Without a network {} was measured; the replay alone says {}.",
            percent(measured.known.overhead),
            percent(measured.foreseen)
        )
    });
    let verdict = match found.can_be_met {
        true => {
            let widest = found.rtt_max.last();
            let limit = widest.map_or(String::new(), |point| {
                format!(
                    "At {} the round trip may take {} (closed form: {}). ",
                    show_bits_per_s(point.bits_per_s),
                    rtt_limit(point.rtt_ns.simulated),
                    rtt_limit(point.rtt_ns.closed_form)
                )
            });
            format!("{limit}With a perfect network the overhead is {perfect}.")
        }
        false if found.is_uncertain() => format!(
            "No network is sure to keep it within {}: with a perfect one the overhead is {perfect}, and {} are kept below the \
             budget.",
            found.budget,
            percent(found.margin.margin)
        ),
        false => format!(
            "No network keeps it within {}: with a perfect one the overhead is {perfect} already.",
            found.budget
        ),
    };
    verdict + &measured
}

/// Returns the numbers below the answer, each with what it is.
fn facts(found: &Requirements) -> [(String, String); 6] {
    let recording = &found.recording;
    let how = match recording.found_by {
        FoundBy::Marks => "marked by the program".into(),
        FoundBy::Period { calls, .. } => format!("found by a period of {calls} calls"),
        FoundBy::Whole => "the whole recording".into(),
    };
    let busy = percent(recording.gpu_busy_ns / recording.step_ns);
    [
        (
            show_ns(recording.step_ns),
            format!(
                "an iteration locally; {} to {} over all",
                show_ns(recording.step_ns_min),
                show_ns(recording.step_ns_max)
            ),
        ),
        (
            found.budget.to_string(),
            format!("budget, at {}", found.level),
        ),
        (
            recording.calls.to_string(),
            counted(
                "calls on a thread",
                "calls on {} threads",
                recording.threads,
            ),
        ),
        (busy, "of it the GPU is busy".into()),
        (
            format!("{} of {}", recording.iteration, recording.iterations),
            format!("iterations: {how}"),
        ),
        (
            percent(recording.replay_error_max),
            "the local replay is off, at most".into(),
        ),
    ]
}

fn counted(one: &str, many: &str, count: usize) -> String {
    match count {
        1 => one.into(),
        _ => many.replace("{}", &count.to_string()),
    }
}

fn notes(notes: &[String]) -> String {
    if notes.is_empty() {
        return String::new();
    }
    let notes = notes
        .iter()
        .map(|n| format!("<li class=\"note\">{}</li>", escaped(n)));
    format!("<ul class=\"notes\">{}</ul>\n", notes.collect::<String>())
}

pub(super) fn frontier(found: &Requirements) -> String {
    let by_bandwidth: Vec<Vec<String>> = found
        .rtt_max
        .iter()
        .map(|point| {
            vec![
                show_bits_per_s(point.bits_per_s),
                rtt_limit(point.rtt_ns.simulated),
                rtt_limit(point.rtt_ns.closed_form),
            ]
        })
        .collect();
    let by_rtt: Vec<Vec<String>> = found
        .bandwidth_min
        .iter()
        .map(|point| {
            vec![
                show_ns(point.rtt_ns),
                bandwidth_limit(point.bits_per_s.simulated),
                bandwidth_limit(point.bits_per_s.closed_form),
            ]
        })
        .collect();
    format!(
        "<div class=\"pair\">\n<div><h3>The largest round-trip time</h3>\n{}</div>\n<div><h3>The smallest bandwidth</h3>\n{}</div>\n</div>\n",
        table(&["bandwidth", "simulated", "closed form"], &by_bandwidth),
        table(&["round-trip time", "simulated", "closed form"], &by_rtt)
    )
}

pub(super) fn known(found: &Requirements) -> String {
    let rows: Vec<Vec<String>> = found
        .known
        .iter()
        .map(|known| {
            vec![
                format!(
                    "{}<br><span class=\"quiet\" title=\"{}\">{}</span>",
                    escaped(known.name),
                    escaped(known.source),
                    escaped(known.what)
                ),
                show_ns(known.network.rtt_ns),
                bandwidth(known.network.bits_per_s),
                percent(known.overhead.simulated),
                yes_no(known.fits.simulated),
                percent(known.overhead.closed_form),
                yes_no(known.fits.closed_form),
            ]
        })
        .collect();
    let head = [
        "network",
        "RTT",
        "bandwidth",
        "simulated",
        "fits",
        "closed form",
        "fits",
    ];
    table(&head, &rows)
}

fn yes_no(is: bool) -> String {
    match is {
        true => "<span class=\"yes\">yes</span>".into(),
        false => "<span class=\"no\">no</span>".into(),
    }
}

pub(super) fn classes(recording: &Recording) -> String {
    let calls: usize = recording.classes.iter().map(|c| c.calls).sum();
    let time_ns: f64 = recording.classes.iter().map(|c| c.time_ns).sum();
    let rows: Vec<Vec<String>> = recording
        .classes
        .iter()
        .map(|class| {
            vec![
                escaped(class.class),
                class.calls.to_string(),
                bar(class.calls as f64 / calls.max(1) as f64),
                show_ns(class.time_ns),
                bar(class.time_ns / time_ns.max(1.0)),
                show_bytes(class.request_bytes),
                show_bytes(class.response_bytes),
            ]
        })
        .collect();
    let head = [
        "class",
        "calls",
        "of all",
        "time, locally",
        "of all",
        "sent",
        "received",
    ];
    table(&head, &rows)
}

/// A bar of at most 90 pixels, with the percentage.
fn bar(part: f64) -> String {
    let part = part.clamp(0.0, 1.0);
    format!(
        "<span class=\"bar\" style=\"width:{:.0}px\"></span> {:.0} %",
        part * 90.0,
        part * 100.0
    )
}

pub(super) fn calls(found: &Requirements) -> String {
    let rows: Vec<Vec<String>> = found
        .calls
        .iter()
        .map(|call| {
            vec![
                format!("<code>{}</code>", escaped(&call.function)),
                call.calls.to_string(),
                call.mode.name().into(),
                show_bytes(call.bytes),
                show_ns(call.local_ns),
                show_ns(call.remote_ns),
                match call.freed_ns > 0.0 {
                    true => format!("\u{2212}{}", show_ns(call.freed_ns)),
                    false => String::new(),
                },
                escaped(&call.advice),
            ]
        })
        .collect();
    let head = [
        "function",
        "calls",
        "is",
        "bytes",
        "locally",
        "remotely",
        "if not waited for",
        "what helps",
    ];
    format!(
        "<p>At {} and {} this iteration takes {} longer; over all {} iterations it is {} to {}. The functions that add \
         most first. Times are from call to return, all calls together; the \
         last number is what the iteration would gain.</p>\n<div class=\"advice\">{}</div>\n",
        show_ns(found.at.rtt_ns),
        bandwidth(found.at.bits_per_s),
        percent(found.at_overhead.simulated),
        found.at_spread.iterations,
        percent(found.at_spread.min),
        percent(found.at_spread.max),
        table(&head, &rows)
    )
}

pub(super) fn levels(found: &Requirements) -> String {
    let rows: Vec<Vec<String>> = found
        .levels
        .iter()
        .map(|level| {
            vec![
                escaped(&level.level),
                level.async_calls.to_string(),
                level.sync_calls.to_string(),
                level.local_calls.to_string(),
                percent(level.perfect.simulated),
                rtt_limit(level.rtt_ns_max.simulated),
                rtt_limit(level.rtt_ns_max.closed_form),
                bandwidth_limit(level.bits_per_s_min.simulated),
                bandwidth_limit(level.bits_per_s_min.closed_form),
            ]
        })
        .collect();
    let rtt = format!("RTT at {}", show_bits_per_s(SLOPE_BPS));
    let bits = format!("bandwidth at {}", show_ns(LEVELS_RTT_NS));
    let head = [
        "level",
        "async",
        "sync",
        "local",
        "perfect network",
        rtt.as_str(),
        "closed form",
        bits.as_str(),
        "closed form",
    ];
    table(&head, &rows)
}

pub(super) fn pcie_summary(found: &PcieRequirements) -> String {
    format!(
        "<p class=\"answer\">Behind a PCIe whose reads take up to {} it stays within {} of local (if no delay were hidden: \
         {}).</p>\n<p class=\"quiet\">Iteration {}, {} locally, replayed {}. The performance model of DxPU, section 3.4: \
         kernels and memsets begin later, reads of host memory are limited by the tags of the GPU.</p>\n{}",
        rtt_limit(found.rtt_ns_max.simulated),
        found.budget,
        rtt_limit(found.rtt_ns_max.closed_form),
        found.iteration,
        show_ns(found.step_ns),
        show_ns(found.replayed_ns),
        notes(&found.notes)
    )
}

pub(super) fn pcie(found: &PcieRequirements) -> String {
    let rows: Vec<Vec<String>> = found
        .points
        .iter()
        .map(|point| {
            vec![
                show_ns(point.rtt_ns),
                format!("{:.2} GB/s", point.read_bytes_per_s / 1e9),
                percent(point.overhead.simulated),
                percent(point.overhead.closed_form),
            ]
        })
        .collect();
    table(
        &["round trip", "reads", "simulated", "no delay hidden"],
        &rows,
    )
}
