//! Blocks that one thread allocates and another frees.

use std::sync::mpsc::sync_channel;
use std::thread;

use gpucache::device::Stream;

use super::must;
use super::subject::Subject;
use super::workload::{Rng, THREAD_MIX};

/// Blocks that travel to the freeing thread at once, so that the channel's own cost hardly shows.
pub(crate) const BATCH: usize = 64;

/// The calling thread allocates on its stream, a thread of its own frees.
pub(crate) struct Handoff<S> {
    subject: S,
    stream: Stream,
    rng: Rng,
}

impl<S: Subject> Handoff<S> {
    pub(crate) fn new(subject: S, stream: Stream, thread: usize) -> Self {
        Handoff { subject, stream, rng: Rng::new(100 + thread as u64) }
    }

    /// Goes on while `more(pairs so far)` says so; the number of pairs. Returns when every block was freed.
    pub(crate) fn run(mut self, more: impl Fn(u64) -> bool) -> u64 {
        let (full, arriving) = sync_channel::<Vec<S::Block>>(2);
        let (emptied, empty) = sync_channel::<Vec<S::Block>>(2);
        let subject = self.subject;
        thread::scope(|scope| {
            scope.spawn(move || {
                for mut batch in arriving {
                    batch.drain(..).for_each(|block| subject.free(block));
                    if emptied.send(batch).is_err() {
                        return;
                    }
                }
            });
            // Batches come back empty, so that the heap is not measured.
            let mut spare = vec![Vec::with_capacity(BATCH), Vec::with_capacity(BATCH)];
            let mut pairs = 0;
            while more(pairs) {
                let mut batch = spare.pop().or_else(|| empty.recv().ok()).unwrap_or_default();
                for _ in 0..BATCH {
                    let bytes = THREAD_MIX[self.rng.below(THREAD_MIX.len())];
                    batch.push(must(subject.alloc(bytes, self.stream)));
                }
                if full.send(batch).is_err() {
                    break;
                }
                pairs += BATCH as u64;
            }
            // Ends the other thread's loop; the scope waits for it.
            drop(full);
            pairs
        })
    }
}
