//! `memory_summary()` in PyTorch's layout [spec 10].

use super::{MemoryStats, Stat, StatArray};

const WIDTH: usize = 75;

/// How the numbers of a row are written, and how its unit is chosen [spec 10.2].
#[derive(Debug)]
struct Format {
    units: &'static [&'static str],
    /// A reference value this large takes the next unit.
    limit: f64,
    divisor: i64,
    /// Columns of the number.
    width: usize,
}

/// Bytes.
const SIZE: Format = Format {
    units: &["B  ", "KiB", "MiB", "GiB", "TiB", "PiB"],
    limit: 768.0 * 1024.0,
    divisor: 1024,
    width: 6,
};

/// Pieces. The blank after the unit is part of the cell.
const COUNT: Format = Format { units: &["  ", "K ", "M "], limit: 750_000.0, divisor: 1000, width: 7 };

impl Format {
    fn cell(&self, mut value: i64, reference: i64) -> String {
        let mut reference = reference as f64;
        let mut unit = self.units[0];
        for next in &self.units[1..] {
            if reference < self.limit {
                break;
            }
            unit = next;
            value = value.div_euclid(self.divisor);
            reference /= self.divisor as f64;
        }
        format!("{value:>width$} {unit}", width = self.width)
    }

    /// Every row of a group takes its units from the group's first row.
    fn row(&self, label: &str, stat: &Stat, reference: &Stat) -> String {
        let [a, b, c, d] = [
            self.cell(stat.current, reference.current),
            self.cell(stat.peak, reference.peak),
            self.cell(stat.allocated, reference.allocated),
            self.cell(stat.freed, reference.freed),
        ];
        format!(" {label:<21} | {a} | {b} | {c} | {d} ")
    }
}

/// The statistics as a table for people, byte for byte PyTorch's but for the product's name in line 2.
///
/// `device` is the ordinal in the title; `abbreviated` leaves out the rows by pool. Every line ends with a newline.
pub fn memory_summary(stats: &MemoryStats, device: u32, abbreviated: bool) -> String {
    memory_summary_as("gpucache", stats, device, abbreviated)
}

/// The same under another product's name; `"PyTorch"` gives PyTorch's own text, for comparisons.
pub fn memory_summary_as(product: &str, stats: &MemoryStats, device: u32, abbreviated: bool) -> String {
    let thin = "-".repeat(WIDTH);
    let mut lines = head(product, stats, device);
    for (label, array, format) in groups(stats) {
        lines.push(thin.clone());
        lines.push(format.row(label, &array.all, &array.all));
        if !abbreviated {
            lines.push(format.row("      from large pool", &array.large_pool, &array.all));
            lines.push(format.row("      from small pool", &array.small_pool, &array.all));
        }
    }
    for (label, stat) in [
        ("Oversize allocations", &stats.oversize_allocations),
        ("Oversize GPU segments", &stats.oversize_segments),
    ] {
        lines.push(thin.clone());
        lines.push(COUNT.row(label, stat, stat));
    }
    lines.push("=".repeat(WIDTH));
    lines.into_iter().flat_map(|line| ["|".to_owned(), line, "|\n".to_owned()]).collect()
}

/// Lines 1 to 6.
fn head(product: &str, stats: &MemoryStats, device: u32) -> Vec<String> {
    let thick = "=".repeat(WIDTH);
    // The index takes the room that the name leaves: 17 columns in PyTorch.
    let room = 24_usize.saturating_sub(product.chars().count());
    vec![
        thick.clone(),
        format!("{:18}{product} CUDA memory summary, device ID {device:<room$} ", ""),
        "-".repeat(WIDTH),
        format!(
            "{:12}CUDA OOMs: {:<12} | {:7}cudaMalloc retries: {:<8}  ",
            "", stats.num_ooms, "", stats.num_alloc_retries
        ),
        thick,
        format!("{:8}Metric{:9}| Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  ", "", ""),
    ]
}

fn groups(stats: &MemoryStats) -> [(&'static str, &StatArray, Format); 9] {
    [
        ("Allocated memory", &stats.allocated_bytes, SIZE),
        ("Active memory", &stats.active_bytes, SIZE),
        ("Requested memory", &stats.requested_bytes, SIZE),
        ("GPU reserved memory", &stats.reserved_bytes, SIZE),
        ("Non-releasable memory", &stats.inactive_split_bytes, SIZE),
        ("Allocations", &stats.allocation, COUNT),
        ("Active allocs", &stats.active, COUNT),
        ("GPU reserved segments", &stats.segment, COUNT),
        ("Non-releasable allocs", &stats.inactive_split, COUNT),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// [spec 10.2]
    #[test]
    fn cells_change_unit_at_the_thresholds() {
        for (value, cell) in [
            (0, "     0 B  "),
            (786_431, "786431 B  "),
            (786_432, "   768 KiB"),
            (805_306_367, "786431 KiB"),
            (805_306_368, "   768 MiB"),
            (824_633_720_831, "786431 MiB"),
            (824_633_720_832, "   768 GiB"),
            (1 << 60, "  1024 PiB"),
        ] {
            assert_eq!(SIZE.cell(value, value), cell);
        }
        for (value, cell) in [
            (749_999, " 749999   "),
            (750_000, "    750 K "),
            (749_999_999, " 749999 K "),
            (750_000_000, "    750 M "),
            (12_345_678_901_234, "12345678 M "),
        ] {
            assert_eq!(COUNT.cell(value, value), cell);
        }
    }

    #[test]
    fn the_reference_chooses_the_unit() {
        assert_eq!(SIZE.cell(1023, 786_432), "     0 KiB");
        assert_eq!(COUNT.cell(800_000, 1), " 800000   ");
    }
}
