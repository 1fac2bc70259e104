//! The answer as readable text.

use std::fmt::Write as _;

use outboard_model::{
    FoundBy, LEVELS_RTT_NS, Limit, Margin, PcieRequirements, Requirements, SLOPE_BPS,
    WithoutNetwork, show_bits_per_s, show_ns,
};

/// Least error by waits, as a share of an iteration, that is said.
const WAITS_ERROR_SAID: f64 = 0.05;

pub(crate) fn network(found: &Requirements) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write_network(&mut text, found);
    text
}

fn write_network(text: &mut String, found: &Requirements) -> std::fmt::Result {
    head(text, found)?;
    verdict(text, found)?;
    if found.can_be_met {
        frontier(text, found)?;
    }
    range(text, found)?;
    known(text, found)?;
    levels(text, found)?;
    calls(text, found)
}

fn head(text: &mut String, found: &Requirements) -> std::fmt::Result {
    let recording = &found.recording;
    let how = match recording.found_by {
        FoundBy::Marks => "by the program's marks".into(),
        FoundBy::Period { calls, coverage } => format!(
            "by a period of {calls} calls, which {:.0} % of all calls follow",
            coverage * 100.0
        ),
        FoundBy::Whole => "not told apart".into(),
    };
    let threads = match recording.threads {
        1 => "a thread".into(),
        count => format!("{count} threads"),
    };
    writeln!(text, "{}", recording.program)?;
    writeln!(
        text,
        "  iteration {} of {} ({how}): {} calls on {}, {} works of the GPU",
        recording.iteration, recording.iterations, recording.calls, threads, recording.works
    )?;
    writeln!(
        text,
        "  {} locally ({} to {} over all), the GPU busy for {:.0} %; replayed {} (off by {:.1} % at most, over all)",
        show_ns(recording.step_ns),
        show_ns(recording.step_ns_min),
        show_ns(recording.step_ns_max),
        100.0 * recording.gpu_busy_ns / recording.step_ns,
        show_ns(recording.replayed_ns),
        100.0 * recording.replay_error_max
    )?;
    for note in &recording.notes {
        writeln!(text, "  note: {note}")?;
    }
    doubt(text, found)?;
    let constants = &found.constants;
    writeln!(
        text,
        "  sending costs {} a call, a local answer {} (from: {})\n",
        show_ns(constants.start_ns),
        show_ns(constants.time_local_ns),
        constants.source
    )
}

/// Writes the margin, what it is made of, and what would make it smaller.
fn doubt(text: &mut String, found: &Requirements) -> std::fmt::Result {
    let margin = &found.margin;
    let kept = format!(
        "  {:.1} % are kept below the budget, for a confidence of {}{}",
        100.0 * margin.margin,
        margin.confidence,
        of_nobodys_choice(margin)
    );
    if let Some(measured) = &found.without_network {
        let known = &measured.known;
        let by = match known.pairs {
            0 => "as given".into(),
            1 => "by a pair of recordings".into(),
            count => format!("by {count} pairs of recordings"),
        };
        writeln!(
            text,
            "  without a network it takes {}, {by}; the replay alone says {}\n\
             {kept}: that measurement is off by {:.1} %, what the network adds by {:.1} %",
            longer(known.overhead),
            longer(measured.foreseen),
            100.0 * margin.noise,
            100.0 * margin.model_error
        )?;
        if WithoutNetwork::is_worth(margin.margin, found.budget)
            && margin.noise > margin.model_error
        {
            writeln!(
                text,
                "  note: that is more than half of the budget; more pairs of recordings (--through, --here) leave less in doubt"
            )?;
        }
        return Ok(());
    }
    writeln!(
        text,
        "{kept}: iterations vary by {:.1} %, their replay is off by {:.1} %, the model by {:.1} %",
        100.0 * margin.noise,
        100.0 * margin.replay_error,
        100.0 * margin.model_error
    )?;
    if WithoutNetwork::is_worth(margin.margin, found.budget) {
        writeln!(
            text,
            "  note: that is more than half of the budget; recorded without a network as well (--through), less is in doubt"
        )?;
    }
    if margin.waits_error >= WAITS_ERROR_SAID {
        writeln!(
            text,
            "  note: each of {} waits may take longer than foreseen, together {:.1} % of it; `outboard run --emulate` measures it",
            found.waits,
            100.0 * margin.waits_error
        )?;
    }
    Ok(())
}

/// Returns why a confidence that nobody asked for is what it is.
fn of_nobodys_choice(margin: &Margin) -> String {
    match margin.double_exceeds {
        Some(_) if margin.confidence.is_above(margin.asked) => format!(
            ", raised from {}: as sure as double the figure exceeds it",
            margin.asked
        ),
        Some(share) if margin.asked.is_least() => format!(
            " (double the figure exceeds it with only {:.0} %)",
            100.0 * share
        ),
        _ => String::new(),
    }
}

fn verdict(text: &mut String, found: &Requirements) -> std::fmt::Result {
    let (simulated, closed) = (found.perfect.simulated, found.perfect.closed_form);
    let perfect = format!(
        "a perfect one: {}, by the closed form {}",
        longer(simulated),
        longer(closed)
    );
    let (level, budget) = (&found.level, found.budget);
    match found.can_be_met {
        true => writeln!(
            text,
            "At {level}, to take no more than {budget} longer than locally, the network must be, by simulation and by the \
             closed form\n({perfect}):\n"
        ),
        false if found.is_uncertain() => writeln!(
            text,
            "At {level}, no network is sure to keep it within {budget} of local ({perfect}); {:.1} % are kept below that.\n",
            100.0 * found.margin.margin
        ),
        false => writeln!(
            text,
            "At {level}, no network keeps it within {budget} of local ({perfect}).\n"
        ),
    }
}

fn frontier(text: &mut String, found: &Requirements) -> std::fmt::Result {
    writeln!(
        text,
        "  {:<12} {:>14} {:>14}      {:<10} {:>14} {:>14}",
        "bandwidth", "RTT at most", "closed form", "RTT", "at least", "closed form"
    )?;
    let rows = found.rtt_max.len().max(found.bandwidth_min.len());
    for row in 0..rows {
        let left = found.rtt_max.get(row).map_or(String::new(), |point| {
            format!(
                "{:<12} {:>14} {:>14}",
                show_bits_per_s(point.bits_per_s),
                rtt_limit(point.rtt_ns.simulated),
                rtt_limit(point.rtt_ns.closed_form)
            )
        });
        let right = found.bandwidth_min.get(row).map_or(String::new(), |point| {
            format!(
                "{:<10} {:>14} {:>14}",
                show_ns(point.rtt_ns),
                bandwidth_limit(point.bits_per_s.simulated),
                bandwidth_limit(point.bits_per_s.closed_form)
            )
        });
        writeln!(text, "{}", format!("  {left:<42}      {right}").trim_end())?;
    }
    writeln!(text)
}

/// Writes between which round-trip times nothing is sure.
fn range(text: &mut String, found: &Requirements) -> std::fmt::Result {
    let (Some(keeps), Some(breaks)) = (found.rtt_max.last(), found.rtt_beyond.last()) else {
        return Ok(());
    };
    let (keeps_ns, breaks_ns) = (keeps.rtt_ns.simulated, breaks.rtt_ns.simulated);
    if found.margin.margin == 0.0 || breaks_ns.at().is_none() {
        return Ok(());
    }
    let keeps_to = match keeps_ns {
        Limit::Never => "no round trip is sure to keep the budget".into(),
        limit => format!("the budget is kept up to {}", rtt_limit(limit)),
    };
    writeln!(
        text,
        "  At {}, with a confidence of {}: {keeps_to}, and it is exceeded from {} on; between, run it to know.\n",
        show_bits_per_s(keeps.bits_per_s),
        found.margin.confidence,
        rtt_limit(breaks_ns)
    )
}

fn known(text: &mut String, found: &Requirements) -> std::fmt::Result {
    writeln!(
        text,
        "  {:<18} {:>9} {:>9} {:>10} {:>12}   fits",
        "known network", "RTT", "bandwidth", "overhead", "closed form"
    )?;
    for known in &found.known {
        writeln!(
            text,
            "  {:<18} {:>9} {:>9} {:>10} {:>12}   {}",
            known.name,
            show_ns(known.network.rtt_ns),
            show_bits_per_s(known.network.bits_per_s),
            percent(known.overhead.simulated),
            percent(known.overhead.closed_form),
            match (known.fits.simulated, known.fits.closed_form) {
                (true, true) => "yes",
                (true, false) => "yes; not by the closed form",
                (false, true) => "no; by the closed form it does",
                (false, false) => "no",
            }
        )?;
    }
    writeln!(text)
}

fn levels(text: &mut String, found: &Requirements) -> std::fmt::Result {
    writeln!(
        text,
        "  {:<12} {:>7} {:>7} {:>7} {:>9} {:>13} {:>13} {:>10}",
        "level",
        "async",
        "sync",
        "local",
        "perfect",
        format!("RTT, {}", show_bits_per_s(SLOPE_BPS)),
        format!("at {}", show_ns(LEVELS_RTT_NS)),
        "per us"
    )?;
    for (level, slope) in found.levels.iter().zip(&found.slope.levels) {
        writeln!(
            text,
            "  {:<12} {:>7} {:>7} {:>7} {:>9} {:>13} {:>13} {:>10}",
            level.level,
            level.async_calls,
            level.sync_calls,
            level.local_calls,
            percent(level.perfect.simulated),
            rtt_limit(level.rtt_ns_max.simulated),
            bandwidth_limit(level.bits_per_s_min.simulated),
            percent(slope.per_us.simulated)
        )?;
    }
    writeln!(text)
}

fn calls(text: &mut String, found: &Requirements) -> std::fmt::Result {
    let spread = found.at_spread;
    writeln!(
        text,
        "  at {} and {} this iteration takes {} (closed form: {}); of {} iterations the median {}, {} to {}",
        show_ns(found.at.rtt_ns),
        show_bits_per_s(found.at.bits_per_s),
        longer(found.at_overhead.simulated),
        percent(found.at_overhead.closed_form),
        spread.iterations,
        percent(spread.median),
        percent(spread.min),
        percent(spread.max)
    )?;
    writeln!(text, "  what calls cost there, those that add most first")?;
    writeln!(
        text,
        "  {:<32} {:>7} {:>6} {:>10} {:>10} {:>14}",
        "function", "calls", "is", "locally", "remotely", "not waited for"
    )?;
    for call in &found.calls {
        let freed = match call.freed_ns > 0.0 {
            true => format!("-{}", show_ns(call.freed_ns)),
            false => String::new(),
        };
        let line = format!(
            "  {:<32} {:>7} {:>6} {:>10} {:>10} {:>14}   {}",
            call.function,
            call.calls,
            call.mode.name(),
            show_ns(call.local_ns),
            show_ns(call.remote_ns),
            freed,
            call.advice
        );
        writeln!(text, "{}", line.trim_end())?;
    }
    Ok(())
}

pub(crate) fn pcie(found: &PcieRequirements) -> String {
    let mut text = String::new();
    let _ = write_pcie(&mut text, found);
    text
}

fn write_pcie(text: &mut String, found: &PcieRequirements) -> std::fmt::Result {
    writeln!(text, "{}", found.program)?;
    writeln!(
        text,
        "  iteration {}: {} locally, replayed {}",
        found.iteration,
        show_ns(found.step_ns),
        show_ns(found.replayed_ns)
    )?;
    for note in &found.notes {
        writeln!(text, "  note: {note}")?;
    }
    let rtt_ns_max = found.rtt_ns_max;
    writeln!(
        text,
        "\nTo take no more than {} longer, a PCIe read's round trip may be {} at most (if no delay were hidden: {}).\n",
        found.budget,
        rtt_limit(rtt_ns_max.simulated),
        rtt_limit(rtt_ns_max.closed_form)
    )?;
    writeln!(
        text,
        "  {:<10} {:>14} {:>10} {:>12}",
        "RTT", "reads, GB/s", "overhead", "none hidden"
    )?;
    for point in &found.points {
        writeln!(
            text,
            "  {:<10} {:>14.2} {:>10} {:>12}",
            show_ns(point.rtt_ns),
            point.read_bytes_per_s / 1e9,
            percent(point.overhead.simulated),
            percent(point.overhead.closed_form)
        )?;
    }
    Ok(())
}

fn longer(part: f64) -> String {
    match part < 0.0 {
        true => format!("{} shorter than locally", percent(-part)),
        false => format!("{} longer than locally", percent(part)),
    }
}

fn percent(part: f64) -> String {
    let percent = part * 100.0;
    match percent.abs() {
        // No sign for an overhead shown as zero.
        small if small < 0.005 => "0.00 %".into(),
        small if small < 10.0 => format!("{percent:.2} %"),
        _ => format!("{percent:.0} %"),
    }
}

fn rtt_limit(limit: Limit) -> String {
    match limit {
        Limit::Never => "none".into(),
        Limit::At(rtt_ns) => show_ns(rtt_ns),
        Limit::Any => "any".into(),
    }
}

fn bandwidth_limit(limit: Limit) -> String {
    match limit {
        Limit::Never => "none".into(),
        Limit::At(bits_per_s) => show_bits_per_s(bits_per_s),
        Limit::Any => "any".into(),
    }
}
