//! Pure rules of size: rounding, segments, pools, splitting [spec 1 to 3].

use crate::config::{Config, Divisions};
use crate::observe::snapshot::PoolKind;

const MIB: u64 = 1 << 20;

/// Rounding unit and smallest remainder worth splitting in a small pool [spec 1].
pub(crate) const MIN_BLOCK: u64 = 512;
/// Rounded sizes up to this go to the small pool.
pub(crate) const SMALL_LIMIT: u64 = MIB;
/// Size of every small segment, and page of small expandable segments.
pub(crate) const SMALL_SEGMENT: u64 = 2 * MIB;
/// Rounded sizes from this on get a segment of their own.
pub(crate) const MIN_OWN_SEGMENT: u64 = 10 * MIB;
/// Granularity of own segments.
pub(crate) const OWN_SEGMENT_ROUNDING: u64 = 2 * MIB;
/// Requests from this on fail at once [spec 11.4].
pub(crate) const REQUEST_CEILING: u64 = 1 << 60;

/// `x` rounded up to a multiple of `m`. Callers keep `x` below the request ceiling, so this cannot overflow.
pub(crate) const fn ceil_to(x: u64, m: u64) -> u64 {
    x.div_ceil(m) * m
}

/// The options that the rules of size depend on, in the form that the hot path reads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rules {
    divisions: Divisions,
    rounds_to_divisions: bool,
    /// Blocks of this size or more are not split.
    pub(crate) max_split: u64,
    /// How much larger than an oversize request a block may be.
    pub(crate) max_non_split_rounding: u64,
    /// Segment for medium requests.
    pub(crate) large_segment: u64,
    /// Expandable segments are on.
    pub(crate) expandable: bool,
    /// A request just below `max_split` may not reuse the segment that it made itself [spec 23.5].
    sticky: bool,
}

impl Rules {
    pub(crate) fn new(config: &Config) -> Self {
        Rules {
            divisions: config.roundup_power2_divisions,
            rounds_to_divisions: config.roundup_power2_divisions != Divisions::default(),
            max_split: config.max_split_size.unwrap_or(u64::MAX),
            max_non_split_rounding: config.max_non_split_rounding.unwrap_or(config.large_segment_size),
            large_segment: config.large_segment_size,
            expandable: config.expandable_segments,
            sticky: config.mirror_defects,
        }
    }

    /// Whether every free block that is large enough may serve, and be split: the default.
    pub(crate) fn allow_every_block(&self) -> bool {
        self.max_split == u64::MAX
    }

    /// The least remainder that is split off a block that may be split [spec 3.3]. `expandable` is the request's mode.
    #[inline]
    pub(crate) fn least_remainder(kind: PoolKind, expandable: bool) -> u64 {
        match kind {
            PoolKind::Large if !expandable => SMALL_LIMIT + 1,
            _ => MIN_BLOCK,
        }
    }

    /// A request (1 byte up to the ceiling) as a block size [spec 2.1].
    #[inline]
    pub(crate) fn round_size(&self, request: u64) -> u64 {
        if request < MIN_BLOCK {
            return MIN_BLOCK;
        }
        if self.rounds_to_divisions {
            let divisions = u64::from(division_count(&self.divisions, request));
            if divisions > 1 && request > MIN_BLOCK * divisions {
                return round_to_division(request, divisions);
            }
        }
        (request + (MIN_BLOCK - 1)) & !(MIN_BLOCK - 1)
    }

    /// What the driver is asked for when a block of `rounded` bytes is missing [spec 2.3].
    pub(crate) fn segment_size(&self, rounded: u64) -> u64 {
        if rounded <= SMALL_LIMIT {
            SMALL_SEGMENT
        } else if rounded < MIN_OWN_SEGMENT {
            self.large_segment
        } else {
            ceil_to(rounded, OWN_SEGMENT_ROUNDING)
        }
    }

    /// Page of an expandable reservation of that kind [spec 13.2].
    pub(crate) fn page_size(&self, kind: PoolKind) -> u64 {
        match kind {
            PoolKind::Small => SMALL_SEGMENT,
            PoolKind::Large => self.large_segment,
        }
    }

    /// Whether the remainder of a block is split off [spec 3.3]. `expandable` is the request's mode.
    #[inline]
    pub(crate) fn should_split(&self, kind: PoolKind, size: u64, remainder: u64, expandable: bool) -> bool {
        remainder >= Rules::least_remainder(kind, expandable)
            && (expandable || kind == PoolKind::Small || size < self.max_split)
    }

    /// Whether an oversize rule forbids serving `size` from a block of `block` bytes [spec 3.2, steps 4 and 5].
    ///
    /// A block no larger than the segment that the request would get is allowed: without that, a size just
    /// below `max_split` would ask the driver anew each time [spec 3.5, 23.5].
    #[inline]
    pub(crate) fn forbids(&self, size: u64, block: u64) -> bool {
        if size < self.max_split {
            block >= self.max_split && (self.sticky || block > self.segment_size(size))
        } else {
            block >= size.saturating_add(self.max_non_split_rounding)
        }
    }
}

/// The pool for a rounded size [spec 2.4].
#[inline]
pub(crate) const fn pool_kind(rounded: u64) -> PoolKind {
    if rounded <= SMALL_LIMIT { PoolKind::Small } else { PoolKind::Large }
}

/// The slot is chosen by the unrounded request [spec 2.2].
fn division_count(divisions: &Divisions, request: u64) -> u32 {
    let slot = request.ilog2().saturating_sub(20).min(15);
    divisions.0[slot as usize]
}

/// Rounds up to the next of `divisions` equal steps between two powers of two [spec 2.1].
fn round_to_division(request: u64, divisions: u64) -> u64 {
    if request.is_power_of_two() {
        return request;
    }
    let floor = 1u64 << request.ilog2();
    ceil_to(request, floor >> divisions.ilog2())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(divisions: [u32; 16]) -> Rules {
        Rules::new(&Config { roundup_power2_divisions: Divisions(divisions), ..Config::default() })
    }

    #[test]
    fn rounds_as_spec_2_2() {
        let plain = rules([0; 16]);
        let table = [(1, 512), (512, 512), (513, 1024), (1_048_575, 1_048_576), (10_485_761, 10_486_272)];
        for (request, block) in table {
            assert_eq!(plain.round_size(request), block);
        }
        let four = rules([4; 16]);
        let table =
            [(1200, 1536), (2049, 2560), (2561, 3072), (1_048_577, 1_310_720), (13_631_488, 14_680_064)];
        for (request, block) in table {
            assert_eq!(four.round_size(request), block);
        }
        assert_eq!(rules([16384; 16]).round_size(16_777_217), 16_778_240);
        assert_eq!(rules([1; 16]).round_size(3_145_729), 3_146_240);
    }

    #[test]
    fn segments_as_spec_2_3() {
        let plain = rules([0; 16]);
        let table =
            [(1 << 20, 2 << 20), (10_485_248, 20 << 20), (10 << 20, 10 << 20), (10_486_272, 12 << 20)];
        for (rounded, segment) in table {
            assert_eq!(plain.segment_size(rounded), segment);
        }
    }
}
