//! Caches in the states that pairs are measured in.

use gpucache::device::Stream;

use super::subject::Subject;
use super::workload::{Pool, Rng};
use super::{must, put};

/// Different sizes that the churn draws from, so that drawing costs one load.
const SIZES: usize = 4_096;

/// A fixed number of live blocks of log-uniform sizes, of which a random one is replaced.
pub(crate) struct Churn<S: Subject> {
    subject: S,
    stream: Stream,
    rng: Rng,
    sizes: Vec<usize>,
    live: Vec<Option<S::Block>>,
}

impl<S: Subject> Churn<S> {
    /// Fills the cache, and replaces until its segments suffice.
    pub(crate) fn new(subject: S, stream: Stream, live: usize) -> Self {
        let mut rng = Rng::new(live as u64);
        let sizes: Vec<usize> = (0..SIZES).map(|_| rng.log_uniform()).collect();
        let mut churn = Churn { subject, stream, rng, sizes, live: (0..live).map(|_| None).collect() };
        for slot in 0..live {
            churn.replace(slot);
        }
        for _ in 0..(20 * live).max(20_000) {
            churn.step();
        }
        churn
    }

    /// Frees a random block and allocates another in its place.
    #[inline]
    pub(crate) fn step(&mut self) {
        let slot = self.rng.below(self.live.len());
        self.replace(slot);
    }

    #[inline]
    fn replace(&mut self, slot: usize) {
        let place = &mut self.live[slot];
        if let Some(block) = place.take() {
            self.subject.free(block);
        }
        let bytes = self.sizes[self.rng.below(SIZES)];
        put(place, must(self.subject.alloc(bytes, self.stream)));
    }
}

impl<S: Subject> Drop for Churn<S> {
    fn drop(&mut self) {
        for block in self.live.drain(..).flatten() {
            self.subject.free(block);
        }
    }
}

/// A cache with many free blocks, none of which can merge: every second one of twice as many was freed.
pub(crate) struct Holes<S: Subject> {
    subject: S,
    stream: Stream,
    sizes: Vec<usize>,
    next: usize,
    live: Vec<S::Block>,
}

impl<S: Subject> Holes<S> {
    /// Whether the device has the memory.
    pub(crate) fn fit(subject: S, pool: Pool, free: usize) -> bool {
        let needed = (2 * free * pool.largest()) as u64;
        needed <= must(subject.allocator().mem_get_info()).free
    }

    pub(crate) fn new(subject: S, stream: Stream, pool: Pool, free: usize) -> Self {
        let mut rng = Rng::new(11);
        let all: Vec<S::Block> =
            (0..2 * free).map(|_| must(subject.alloc(pool.size(&mut rng), stream))).collect();
        let mut live = Vec::with_capacity(free);
        for (i, block) in all.into_iter().enumerate() {
            if i % 2 == 0 {
                subject.free(block);
            } else {
                live.push(block);
            }
        }
        let sizes = (0..256).map(|_| pool.size(&mut rng)).collect();
        Holes { subject, stream, sizes, next: 0, live }
    }

    /// A pair of the next of 256 random sizes, so that no two neighbouring pairs meet in one free block.
    #[inline]
    pub(crate) fn varied_pair(&mut self) {
        let bytes = self.sizes[self.next % self.sizes.len()];
        self.next += 1;
        self.subject.pair(bytes, self.stream);
    }
}

impl<S: Subject> Drop for Holes<S> {
    fn drop(&mut self) {
        for block in self.live.drain(..) {
            self.subject.free(block);
        }
    }
}
