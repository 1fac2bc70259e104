//! The answer for spreadsheets: a line per network.

use std::fmt::Write as _;

use outboard_model::{PcieRequirements, Requirements};

/// Formats the whole grid, followed by the known networks.
pub(crate) fn grid(found: &Requirements) -> String {
    let mut text = String::from(
        "network,rtt_ns,bits_per_s,overhead_simulated,overhead_closed_form,fits_simulated,fits_closed_form\n",
    );
    let part = found.budget.part();
    let mut line = |name: &str, rtt_ns: f64, bits_per_s: f64, simulated: f64, closed: f64| {
        let (fits_simulated, fits_closed) = (simulated <= part, closed <= part);
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{name},{rtt_ns},{bits_per_s},{simulated:.9},{closed:.9},{fits_simulated},{fits_closed}"
        );
    };
    let rows = found.grid.bandwidths.iter().zip(&found.grid.overhead);
    for (bits_per_s, row) in rows {
        for (rtt_ns, both) in found.grid.rtts_ns.iter().zip(row) {
            line("", *rtt_ns, *bits_per_s, both.simulated, both.closed_form);
        }
    }
    for known in &found.known {
        let (network, both) = (known.network, known.overhead);
        line(
            known.name,
            network.rtt_ns,
            network.bits_per_s,
            both.simulated,
            both.closed_form,
        );
    }
    text
}

pub(crate) fn pcie(found: &PcieRequirements) -> String {
    let mut text =
        String::from("rtt_ns,read_bytes_per_s,overhead_simulated,overhead_closed_form\n");
    for point in &found.points {
        let both = point.overhead;
        let _ = writeln!(
            text,
            "{},{:.0},{:.9},{:.9}",
            point.rtt_ns, point.read_bytes_per_s, both.simulated, both.closed_form
        );
    }
    text
}
