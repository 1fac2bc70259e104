//! Numbers by a Zipf distribution.

/// The distribution of 0 up to, not including, a count: number n is drawn in proportion to
/// (n + 1)^-exponent.
pub struct Zipf {
    /// The sum of the shares of all numbers up to each.
    sums: Vec<f64>,
}

impl Zipf {
    pub fn new(count: u32, exponent: f64) -> Zipf {
        let mut sum = 0.0;
        let shares = (1..=count).map(|n| {
            sum += f64::from(n).powf(-exponent);
            sum
        });
        Zipf {
            sums: shares.collect(),
        }
    }

    /// Returns the number for `unit`, which lies between 0 and 1.
    pub fn draw(&self, unit: f64) -> u32 {
        let total = self.sums.last().copied().unwrap_or_default();
        let at = self.sums.partition_point(|sum| *sum <= unit * total);
        at.min(self.sums.len().saturating_sub(1)) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_fall_with_the_exponent() {
        let zipf = Zipf::new(100, 1.0);
        let mut counts = [0; 100];
        let mut random = crate::random::Random::new(1);
        for _ in 0..20_000 {
            counts[zipf.draw(random.unit()) as usize] += 1;
        }
        let ratio = f64::from(counts[0]) / f64::from(counts[9]);
        assert!((8.0..12.5).contains(&ratio), "{ratio}");
        assert_eq!((zipf.draw(0.0), zipf.draw(1.0)), (0, 99));
    }
}
