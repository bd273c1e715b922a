//! Counts of values up to fixed bounds.

/// Upper bounds of block sizes, in bytes: every fourfold from the smallest block to 32 GiB.
const SIZES: [f64; 14] = [
    512.0,
    2048.0,
    8192.0,
    32_768.0,
    131_072.0,
    524_288.0,
    2_097_152.0,
    8_388_608.0,
    33_554_432.0,
    134_217_728.0,
    536_870_912.0,
    2_147_483_648.0,
    8_589_934_592.0,
    34_359_738_368.0,
];

/// Upper bounds of ages, in seconds: from one kernel launch to a day.
const AGES: [f64; 9] = [0.001, 0.01, 0.1, 1.0, 10.0, 60.0, 600.0, 3600.0, 86_400.0];

/// How many values are at most so large.
#[derive(Debug, Clone, PartialEq)]
pub struct Histogram {
    bounds: &'static [f64],
    /// One per bound, and one for what is larger than all of them.
    counts: Vec<u64>,
}

impl Histogram {
    /// Of block sizes in bytes.
    pub(crate) fn of_sizes() -> Self {
        Self::with_bounds(&SIZES)
    }

    /// Of ages in seconds.
    pub(crate) fn of_ages() -> Self {
        Self::with_bounds(&AGES)
    }

    fn with_bounds(bounds: &'static [f64]) -> Self {
        Histogram { bounds, counts: vec![0; bounds.len() + 1] }
    }

    pub(crate) fn add(&mut self, value: f64) {
        self.counts[self.bounds.partition_point(|bound| *bound < value)] += 1;
    }

    /// Number of values.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Each upper bound (inclusive; the last is infinite) with the number of values that are not above it.
    pub fn cumulative(&self) -> impl Iterator<Item = (f64, u64)> + '_ {
        let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
        bounds.zip(self.counts.iter().scan(0, |sum, count| {
            *sum += count;
            Some(*sum)
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_inclusive_and_counts_cumulative() {
        let mut sizes = Histogram::of_sizes();
        for size in [512.0, 513.0, 2048.0, 1e12] {
            sizes.add(size);
        }
        let counts: Vec<_> = sizes.cumulative().collect();
        assert_eq!(counts[..3], [(512.0, 1), (2048.0, 3), (8192.0, 3)]);
        assert_eq!(counts[13..], [(34_359_738_368.0, 3), (f64::INFINITY, 4)]);
        assert_eq!(sizes.count(), 4);
    }
}
