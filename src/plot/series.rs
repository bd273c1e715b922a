//! Totals over time, thinned out to what a picture can show.

use super::TimeAxis;
use crate::observe::timeline::Point;

/// Corners of a step curve, `(x, value)`.
pub(super) type Curve = Vec<(f64, f64)>;

/// The x of every point: microseconds or entries since the first.
pub(super) fn positions(points: &[Point], axis: TimeAxis) -> Vec<f64> {
    let start = points.first().map_or(0, |p| p.time_us);
    let mut last = 0.0;
    let position = |(index, p): (usize, &Point)| {
        // Clocks can be set back; the axis can't.
        last = match axis {
            TimeAxis::Time => f64::max(last, p.time_us.saturating_sub(start) as f64),
            TimeAxis::Events => index as f64,
        };
        last
    };
    points.iter().enumerate().map(position).collect()
}

/// A step curve with at most four corners per column: first, lowest, highest and last. No peak is lost.
pub(super) fn curve(xs: &[f64], columns: u32, value: impl Fn(usize) -> f64) -> Curve {
    let Some(&end) = xs.last() else { return Vec::new() };
    let column = |x: f64| if end > 0.0 { (x / end * f64::from(columns)) as u32 } else { 0 };
    let mut out: Curve = Vec::new();
    let mut from = 0;
    while from < xs.len() {
        let same = xs[from..].iter().take_while(|&&x| column(x) == column(xs[from])).count();
        let group = from..from + same;
        let extreme = |pick: fn(f64, f64) -> bool| {
            group.clone().reduce(|a, b| if pick(value(b), value(a)) { b } else { a }).unwrap_or(from)
        };
        let mut kept = [from, extreme(|b, a| b < a), extreme(|b, a| b > a), from + same - 1];
        kept.sort_unstable();
        for index in kept {
            step(&mut out, xs[index], value(index));
        }
        from += same;
    }
    out
}

/// Adds a point by a horizontal and a vertical line.
fn step(curve: &mut Curve, x: f64, y: f64) {
    if let Some(&(last_x, last_y)) = curve.last() {
        let level = last_y.to_bits() == y.to_bits();
        if level && last_x >= x {
            return;
        }
        if !level && last_x < x {
            curve.push((x, last_y));
        }
    }
    curve.push((x, y));
}

/// Distance of round marks so that about `count` cover `span`; for bytes in steps of powers of two.
pub(super) fn round_step(span: f64, count: f64, binary: bool) -> f64 {
    let raw = (span / count).max(1e-9);
    if binary {
        return 2_f64.powf(raw.log2().ceil());
    }
    let power = 10_f64.powf(raw.log10().floor());
    let choices = [1.0, 2.0, 5.0, 10.0];
    choices.iter().map(|c| c * power).find(|&step| step >= raw).unwrap_or(10.0 * power)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thinning_keeps_every_peak() {
        let xs: Vec<f64> = (0..100_000).map(f64::from).collect();
        let value = |i: usize| if i == 54_321 { 1e9 } else { (i % 7) as f64 };
        let curve = curve(&xs, 1000, value);
        assert!(curve.len() <= 8 * 1001, "{}", curve.len());
        assert!(curve.iter().any(|&(_, y)| y > 1e8));
        assert!(curve.windows(2).all(|w| w[0].0 <= w[1].0), "x never goes back");
        assert!(curve.last().unwrap().0 > 99_998.5);
    }

    #[test]
    fn steps_are_round() {
        for (span, binary, step) in [(1000.0, false, 200.0), (7.0, false, 2.0), (5e9, true, 1_073_741_824.0)]
        {
            let found = round_step(span, 5.0, binary);
            assert!((found - step).abs() < 1e-6, "{span}: {found}");
        }
    }
}
