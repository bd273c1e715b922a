//! What simulated kernels wrote, kept sparse: one number for each written range.

use std::collections::BTreeMap;

/// A piece of physical memory and an offset in it. Piece 0 is all memory of `malloc`, at its addresses; other
/// pieces are physical handles, so that two mappings of one handle show the same content.
pub(super) type Place = (u64, u64);

/// Written ranges: start to end offset (in the same piece) and value.
#[derive(Debug, Default)]
pub(super) struct Content {
    ranges: BTreeMap<Place, (u64, u64)>,
}

impl Content {
    pub(super) fn write(&mut self, (piece, start): Place, bytes: u64, value: u64) {
        self.erase((piece, start), bytes);
        self.ranges.insert((piece, start), (start + bytes, value));
    }

    /// Forgets a range: its bytes read as never written.
    pub(super) fn erase(&mut self, (piece, start): Place, bytes: u64) {
        let end = start + bytes;
        // A range that begins before and reaches in keeps its ends.
        if let Some((&at, &(old_end, value))) = self.ranges.range((piece, 0)..(piece, start)).next_back()
            && old_end > start
        {
            self.ranges.insert(at, (start, value));
            self.keep_tail(piece, end, old_end, value);
        }
        while let Some((&at, &(old_end, value))) = self.ranges.range((piece, start)..(piece, end)).next() {
            self.ranges.remove(&at);
            self.keep_tail(piece, end, old_end, value);
        }
    }

    fn keep_tail(&mut self, piece: u64, end: u64, old_end: u64, value: u64) {
        if old_end > end {
            self.ranges.insert((piece, end), (old_end, value));
        }
    }

    /// The value at a place and the offset where that answer stops being true (at most `limit`).
    pub(super) fn read(&self, (piece, offset): Place, limit: u64) -> (Option<u64>, u64) {
        if let Some((_, &(end, value))) = self.ranges.range((piece, 0)..=(piece, offset)).next_back()
            && end > offset
        {
            return (Some(value), end.min(limit));
        }
        let next = self.ranges.range((piece, offset)..(piece, limit)).next();
        (None, next.map_or(limit, |(&(_, start), _)| start))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_into_the_middle_leaves_both_ends() {
        let mut content = Content::default();
        content.write((0, 100), 100, 1);
        content.write((0, 140), 20, 2);
        content.write((7, 0), 1000, 9);
        let values = [99, 100, 139, 140, 159, 160, 199, 200].map(|at| content.read((0, at), 1 << 20).0);
        assert_eq!(values, [None, Some(1), Some(1), Some(2), Some(2), Some(1), Some(1), None]);
        content.erase((0, 0), 150);
        assert_eq!(content.read((0, 120), 500), (None, 150));
        assert_eq!(content.read((0, 150), 500), (Some(2), 160));
        content.erase((7, 0), 1000);
        assert_eq!(content.read((7, 0), 1000), (None, 1000));
    }
}
