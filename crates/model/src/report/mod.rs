//! Writes the answer as one page of HTML, which loads nothing and runs no script.

mod chart;
mod heat;
mod page;
mod tables;
mod tracks;

use crate::{PcieRequirements, Requirements};

pub use tracks::Timeline;

/// Returns the page for a network.
pub fn html(found: &Requirements, timeline: &Timeline) -> String {
    let recording = &found.recording;
    let mut body = tables::summary(found);
    body += &page::section(
        "Overhead over bandwidth and round-trip time",
        &heat::maps(found),
    );
    body += &page::section("What it needs", &tables::frontier(found));
    body += &page::section(
        "How it grows with the round-trip time",
        &chart::slopes(found),
    );
    body += &page::section("Known networks", &tables::known(found));
    body += &page::section("One iteration", &tracks::pictures(timeline, found.at));
    body += &page::section("Calls by class", &tables::classes(recording));
    body += &page::section("What calls cost", &tables::calls(found));
    body += &page::section("Levels of optimisation", &tables::levels(found));
    page::page(&recording.program, &body)
}

/// Returns the page for a longer PCIe.
pub fn pcie_html(found: &PcieRequirements) -> String {
    let body = tables::pcie_summary(found)
        + &page::section(
            "How it grows with the round-trip time",
            &(chart::pcie(found) + &tables::pcie(found)),
        );
    page::page(&found.program, &body)
}
