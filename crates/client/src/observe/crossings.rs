//! Counts of copies between two servers: those that went straight from one to the other, and those
//! that went through this process, by the reason.

use std::sync::atomic::{AtomicU64, Ordering};

/// Reason why a copy between two servers goes through this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Through {
    /// Too short to gain.
    Short,
    /// A level of `--optimise` below the highest, or an emulated network.
    Asked,
    /// The destination's address is none that another server can be sent to: not tcp, or encrypted
    /// and known by a certificate.
    Address,
    /// The destination's server awaits no other (`--peer-copies`).
    NotAwaited,
    /// The source's server did not reach the other one: it may not connect there
    /// (`--peer-copies`), or nothing that knows the secret answers.
    NotReached,
    /// A way that there was has ended, or said nothing for too long.
    Broken,
    /// A copy to or from an array, of which only its server knows the size.
    Array,
}

const REASONS: [(Through, &str); 7] = [
    (Through::Short, "short"),
    (Through::Asked, "asked"),
    (Through::Address, "address"),
    (Through::NotAwaited, "not_awaited"),
    (Through::NotReached, "not_reached"),
    (Through::Broken, "broken"),
    (Through::Array, "array"),
];

static THROUGH: [AtomicU64; REASONS.len()] = [const { AtomicU64::new(0) }; REASONS.len()];
static STRAIGHT: AtomicU64 = AtomicU64::new(0);
static STRAIGHT_BYTES: AtomicU64 = AtomicU64::new(0);

pub(crate) fn went_straight(bytes: u64) {
    STRAIGHT.fetch_add(1, Ordering::Relaxed);
    STRAIGHT_BYTES.fetch_add(bytes, Ordering::Relaxed);
}

pub(crate) fn went_through(why: Through) {
    let counts = REASONS.iter().zip(&THROUGH);
    for (_, count) in counts.filter(|((reason, _), _)| *reason == why) {
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// Straight copies, their bytes, and the other copies by their reasons.
type Counts = (u64, u64, Vec<(&'static str, u64)>);

/// Returns the counts; None if there was no copy between servers.
fn counts() -> Option<Counts> {
    let through = REASONS.iter().zip(&THROUGH);
    let through = through.map(|((_, name), count)| (*name, count.load(Ordering::Relaxed)));
    let through: Vec<_> = through.filter(|(_, count)| *count > 0).collect();
    let straight = STRAIGHT.load(Ordering::Relaxed);
    let bytes = STRAIGHT_BYTES.load(Ordering::Relaxed);
    (straight > 0 || !through.is_empty()).then_some((straight, bytes, through))
}

/// Returns the counts as a field of a JSON object, after a comma.
pub(crate) fn to_json() -> String {
    let Some((straight, bytes, through)) = counts() else {
        return String::new();
    };
    let through = through.iter().map(|(name, n)| format!("\"{name}\": {n}"));
    let through: Vec<_> = through.collect();
    format!(
        ",\n  \"between_servers\": {{\"straight\": {straight}, \"straight_bytes\": {bytes}, \"through_here\": {{{}}}}}",
        through.join(", ")
    )
}

/// Returns the counts as readable text, after a semicolon.
pub(crate) fn to_line() -> String {
    let Some((straight, bytes, through)) = counts() else {
        return String::new();
    };
    let through = through.iter().map(|(name, n)| format!("{n} {name}"));
    let through: Vec<_> = through.collect();
    let through = match through.is_empty() {
        true => "none".into(),
        false => through.join(", "),
    };
    format!(
        "; copies between servers: {straight} straight ({bytes} bytes), through here: {through}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_copy_is_counted_once() {
        assert_eq!((to_json(), to_line()), (String::new(), String::new()));
        for (reason, _) in REASONS {
            went_through(reason);
        }
        went_through(Through::Broken);
        went_straight(5);
        went_straight(6);
        let json = to_json();
        assert!(
            json.contains(r#""straight": 2, "straight_bytes": 11"#),
            "{json}"
        );
        assert!(json.contains(r#""short": 1, "asked": 1"#), "{json}");
        assert!(json.contains(r#""broken": 2"#), "{json}");
        let line = to_line();
        assert!(
            line.contains("2 straight (11 bytes), through here: 1 short"),
            "{line}"
        );
    }
}
