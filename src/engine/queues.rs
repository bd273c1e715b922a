//! Events that freed blocks wait for, in one queue per stream.

use std::collections::VecDeque;

use crate::device::{DeviceResult, Event, Stream};
use crate::pool::block::BlockId;

/// An event, and the pending block that waits for it.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) event: Event,
    /// Place of the block's shard in the order of creation.
    pub(super) shard: u32,
    pub(super) block: BlockId,
}

/// The queues by ascending stream, each in order of recording. Empty ones stay, so that a program that goes on
/// using the same streams makes no heap call.
#[derive(Debug, Default)]
pub(super) struct Queues {
    by_stream: Vec<(Stream, VecDeque<Waiting>)>,
    /// Entries in all queues.
    waiting: usize,
    /// Place of the queue that an entry was added to last.
    pushed: usize,
}

impl Queues {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    #[inline]
    pub(super) fn push(&mut self, stream: Stream, waiting: Waiting) {
        if self.by_stream.get(self.pushed).is_none_or(|queue| queue.0 != stream) {
            self.pushed = self.place_of(stream);
        }
        self.by_stream[self.pushed].1.push_back(waiting);
        self.waiting += 1;
    }

    /// The place of a stream's queue, made if need be.
    #[inline(never)]
    fn place_of(&mut self, stream: Stream) -> usize {
        self.by_stream.binary_search_by_key(&stream, |queue| queue.0).unwrap_or_else(|at| {
            self.by_stream.insert(at, (stream, VecDeque::new()));
            at
        })
    }

    /// Takes from every queue the entries up to the first one whose event is not done.
    #[inline]
    pub(super) fn take_done(
        &mut self,
        mut is_done: impl FnMut(Event) -> DeviceResult<bool>,
        mut taken: impl FnMut(Waiting),
    ) -> DeviceResult<()> {
        let mut unseen = self.waiting;
        for (_, queue) in &mut self.by_stream {
            unseen -= queue.len();
            while let Some(front) = queue.front()
                && is_done(front.event)?
            {
                self.waiting -= 1;
                if let Some(waiting) = queue.pop_front() {
                    taken(waiting);
                }
            }
            if unseen == 0 {
                break;
            }
        }
        Ok(())
    }

    /// All entries in the order of [`into_waiting`](Self::into_waiting).
    pub(super) fn iter(&self) -> impl Iterator<Item = (Stream, &Waiting)> {
        self.by_stream.iter().flat_map(|(stream, queue)| queue.iter().map(|waiting| (*stream, waiting)))
    }

    /// All entries: by stream, then in order of recording.
    pub(super) fn into_waiting(self) -> impl Iterator<Item = (Stream, Waiting)> {
        self.by_stream
            .into_iter()
            .flat_map(|(stream, queue)| queue.into_iter().map(move |waiting| (stream, waiting)))
    }
}
