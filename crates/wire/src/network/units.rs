//! Numbers with their units: times, bits and bytes a second, shares.

use std::{fmt, str::FromStr, time::Duration};

use super::{BANDWIDTH_BPS_MAX, BANDWIDTH_BPS_MIN, Bandwidth, DELAY_NS_MAX, TAIL_PPM_MAX, Tail};

/// Units of time in nanoseconds, first those that are written. Unicode has two letters for micro,
/// and both are read.
const TIMES: [(&str, u64); 6] = [
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
    ("\u{b5}s", 1_000),
    ("\u{3bc}s", 1_000),
];

/// Parses a network's time: more than zero, at most [`DELAY_NS_MAX`].
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    parse_ns(text).map(Duration::from_nanos)
}

/// Writes a time as short as it gets without loss: `1.38us`.
pub fn show_duration(duration: Duration) -> String {
    let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    let (unit, size) = TIMES[..4]
        .iter()
        .find(|(_, size)| ns >= *size)
        .unwrap_or(&("ns", 1));
    format!("{}{unit}", decimal(ns, *size))
}

pub(super) fn parse_ns(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text)?;
    let size = match TIMES.iter().find(|(name, _)| *name == unit) {
        Some((_, size)) => *size,
        None if unit.is_empty() => {
            return Err(format!(
                "{text:?} has no unit, as {number}us has; there are ns, us, ms and s"
            ));
        }
        None => {
            return Err(format!(
                "{unit:?} is no unit of time; there are ns, us, ms and s"
            ));
        }
    };
    let ns = (number * size as f64).round();
    if ns > DELAY_NS_MAX as f64 {
        return Err(format!("{text} is too long: {}", too_long()));
    }
    if ns < 1.0 {
        return Err(format!("{text} is less than a nanosecond"));
    }
    Ok(ns as u64)
}

pub(super) fn too_long() -> String {
    format!(
        "at most {}",
        show_duration(Duration::from_nanos(DELAY_NS_MAX))
    )
}

impl FromStr for Bandwidth {
    type Err = String;

    fn from_str(text: &str) -> Result<Bandwidth, String> {
        const UNITS: &str = "there are kbps, Mbps, Gbps, Tbps (or Gbit/s) for bits, kB/s, MB/s, GB/s, MiB/s, GiB/s for bytes";
        let (number, unit) = split(text)?;
        if unit.is_empty() {
            return Err(format!(
                "{text:?} has no unit, as {number}Gbps has; {UNITS}"
            ));
        }
        let size =
            bits_of(unit).ok_or_else(|| format!("{unit:?} is no unit of bandwidth; {UNITS}"))?;
        let bps = (number * size as f64).round();
        if bps > BANDWIDTH_BPS_MAX as f64 {
            return Err(format!(
                "{text} is more than 10Tbps, the most that is taken for meant"
            ));
        }
        if bps < BANDWIDTH_BPS_MIN as f64 {
            return Err(format!(
                "{text} is less than 1Mbps, the least that is taken for meant"
            ));
        }
        Bandwidth::from_bps(bps as u64).ok_or_else(|| format!("{text} is no bandwidth"))
    }
}

/// Bits a second of one `unit`: a prefix, then a letter for bits or bytes, then "a second".
fn bits_of(unit: &str) -> Option<u64> {
    let each = ["bit/s", "bps", "b/s", "B/s", "Bps"];
    let name = each.into_iter().find(|name| unit.ends_with(name))?;
    let bits = if name.starts_with('B') { 8 } else { 1 };
    let factor = match &unit[..unit.len() - name.len()] {
        "" => 1,
        "k" | "K" => 1_000,
        "M" | "m" => 1_000_000,
        "G" | "g" => 1_000_000_000,
        "T" | "t" => 1_000_000_000_000,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        _ => return None,
    };
    Some(factor * bits)
}

impl fmt::Display for Bandwidth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bps = self.bps();
        let sizes = [("Tbps", 1_000_000_000_000), ("Gbps", 1_000_000_000)];
        let (unit, size) = sizes
            .into_iter()
            .find(|(_, size)| bps >= *size)
            .unwrap_or(("Mbps", 1_000_000));
        write!(f, "{}{unit}", decimal(bps, size))
    }
}

impl FromStr for Tail {
    type Err = String;

    fn from_str(text: &str) -> Result<Tail, String> {
        let Some((extra, share)) = text.split_once('@') else {
            return Err(format!(
                "the tail {text:?} has no share of the messages, as 50us@0.1% has"
            ));
        };
        let (percent, unit) = split(share)?;
        if unit != "%" {
            return Err(format!(
                "the tail's share {share:?} is no percentage, as 0.1% is"
            ));
        }
        let ppm = (percent * 10_000.0).round();
        if ppm < 1.0 || ppm > f64::from(TAIL_PPM_MAX) {
            return Err(format!(
                "the tail's share {share} is not between 0.0001% and 100%"
            ));
        }
        Ok(Tail {
            extra_ns: parse_ns(extra)?,
            ppm: ppm as u32,
        })
    }
}

impl fmt::Display for Tail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let share = decimal(self.ppm.into(), 10_000);
        write!(f, "{}@{share}%", show_duration(self.extra()))
    }
}

/// Splits a text into its number, which must be positive, and what follows.
fn split(text: &str) -> Result<(f64, &str), String> {
    let text = text.trim();
    let bytes = text.as_bytes();
    let belongs = |at: usize| match bytes[at] {
        b'0'..=b'9' | b'.' | b'+' | b'-' => true,
        // An exponent; no unit starts with this letter.
        b'e' | b'E' => {
            at > 0
                && bytes
                    .get(at + 1)
                    .is_some_and(|next| b"0123456789+-".contains(next))
        }
        _ => false,
    };
    let len = (0..bytes.len()).take_while(|at| belongs(*at)).count();
    let (digits, unit) = text.split_at(len);
    let number: f64 = match digits {
        "" => return Err(format!("{text:?} does not begin with a number")),
        digits => digits
            .parse()
            .map_err(|_| format!("{digits:?} is not a number"))?,
    };
    if number < 0.0 {
        return Err(format!("{text} is negative"));
    }
    if number == 0.0 {
        return Err(format!("{text} is nothing; leave it out if that is meant"));
    }
    Ok((number, unit.trim_start()))
}

/// `value / size` for a power of ten `size`, without loss and without trailing zeros.
fn decimal(value: u64, size: u64) -> String {
    let width = size.ilog10() as usize;
    let whole = value / size;
    let rest = format!("{:0width$}", value % size);
    match rest.trim_end_matches('0') {
        "" => whole.to_string(),
        rest => format!("{whole}.{rest}"),
    }
}
