//! Times in seconds since 1970, and lifetimes as users write them.

use std::time::{SystemTime, UNIX_EPOCH};

const DAY_S: u64 = 86_400;
/// Longest lifetime: a hundred years.
const LIFETIME_S_MAX: u64 = 36_525 * DAY_S;

/// Returns the time of the machine's clock.
pub fn now_s() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// Parses a lifetime as 90s, 15m, 12h, 30d or 8w; returns seconds.
pub fn parse_lifetime(text: &str) -> Result<u64, String> {
    let unit = match text.chars().last() {
        Some('s') => 1,
        Some('m') => 60,
        Some('h') => 3_600,
        Some('d') => DAY_S,
        Some('w') => 7 * DAY_S,
        _ => return Err("a lifetime is a number and one of s, m, h, d, w: 30d".into()),
    };
    let digits = &text[..text.len() - 1];
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("{digits:?} is not a whole number"));
    }
    let seconds = digits.parse().ok().and_then(|n: u64| n.checked_mul(unit));
    match seconds {
        Some(0) => Err("no time at all is of no use".into()),
        Some(seconds @ ..=LIFETIME_S_MAX) => Ok(seconds),
        _ => Err("longer than a hundred years".into()),
    }
}

/// Formats a time as 2026-11-23 20:00:00 UTC.
pub fn date(seconds: u64) -> String {
    // Years begin in March, so that the leap day is a year's last.
    let days = seconds / DAY_S + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = match month_from_march {
        from @ ..10 => from + 3,
        from => from - 9,
    };
    let year = 400 * era + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        for (seconds, shown) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_399, "2000-02-28 23:59:59 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (951_868_800, "2000-03-01 00:00:00 UTC"),
            (1_735_689_599, "2024-12-31 23:59:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
        ] {
            assert_eq!(date(seconds), shown);
        }
    }

    #[test]
    fn lifetimes() {
        for (text, seconds) in [("90s", 90), ("1m", 60), ("12h", 43_200), ("30d", 2_592_000)] {
            assert_eq!(parse_lifetime(text), Ok(seconds), "{text}");
        }
        for text in [
            "",
            "30",
            "d",
            "-1d",
            "1.5d",
            "30ä",
            "0s",
            "99999999999999999999d",
            "37000d",
        ] {
            assert!(parse_lifetime(text).is_err(), "{text}");
        }
    }
}
