//! The time that an iteration may take longer than locally.

use std::{fmt, str::FromStr};

use serde::Serialize;

use crate::Error;

/// Largest budget; a larger one is taken for a mistake.
pub const BUDGET_PERCENT_MAX: f64 = 1_000.0;

/// A share of the local time: `5%`.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Serialize)]
#[serde(transparent)]
pub struct Budget {
    part: f64,
}

impl Budget {
    pub fn percent(percent: f64) -> Result<Budget, Error> {
        match (0.0..=BUDGET_PERCENT_MAX).contains(&percent) {
            true => Ok(Budget {
                part: percent / 100.0,
            }),
            false => Err(Error::BudgetRange {
                percent,
                percent_max: BUDGET_PERCENT_MAX,
            }),
        }
    }

    /// Returns 0.05 for 5 %.
    pub fn part(self) -> f64 {
        self.part
    }
}

impl FromStr for Budget {
    type Err = Error;

    fn from_str(text: &str) -> Result<Budget, Error> {
        let error = || Error::Budget { text: text.into() };
        // A sign is required: without it, 0.05 could be a share or a percentage.
        let number = text.trim().strip_suffix('%').ok_or_else(error)?;
        let percent: f64 = number.trim().parse().map_err(|_| error())?;
        match percent.is_nan() {
            true => Err(error()),
            false => Budget::percent(percent),
        }
    }
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} %", (self.part * 1e8).round() / 1e6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets() {
        for (text, part, shown) in [
            ("5%", 0.05, "5 %"),
            ("0%", 0.0, "0 %"),
            ("2.5 %", 0.025, "2.5 %"),
            ("1000%", 10.0, "1000 %"),
        ] {
            let budget: Budget = text.parse().unwrap();
            assert!((budget.part() - part).abs() < 1e-12, "{text}");
            assert_eq!(budget.to_string(), shown);
        }
        for text in ["", "%", "5", "0.05", "five%", "5%%", "nan%", "5percent"] {
            let error = text.parse::<Budget>().unwrap_err();
            assert_eq!(error, Error::Budget { text: text.into() });
        }
        for text in ["-1%", "1001%", "inf%", "-inf%"] {
            let error = text.parse::<Budget>().unwrap_err();
            assert!(matches!(error, Error::BudgetRange { .. }), "{text}");
        }
    }
}
