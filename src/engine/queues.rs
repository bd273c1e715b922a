//! Events that freed blocks wait for, in one queue per stream.

use std::collections::VecDeque;

use crate::device::{Event, Stream};
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
}

impl Queues {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// How many queues there are, empty ones included.
    pub(super) fn len(&self) -> usize {
        self.by_stream.len()
    }

    pub(super) fn push(&mut self, stream: Stream, waiting: Waiting) {
        let at = match self.by_stream.binary_search_by_key(&stream, |queue| queue.0) {
            Ok(at) => at,
            Err(at) => {
                self.by_stream.insert(at, (stream, VecDeque::new()));
                at
            }
        };
        self.by_stream[at].1.push_back(waiting);
        self.waiting += 1;
    }

    /// The oldest entry of the queue at a place.
    pub(super) fn front(&self, at: usize) -> Option<&Waiting> {
        self.by_stream[at].1.front()
    }

    /// Takes the oldest entry of the queue at a place.
    pub(super) fn pop(&mut self, at: usize) -> Option<Waiting> {
        let waiting = self.by_stream[at].1.pop_front()?;
        self.waiting -= 1;
        Some(waiting)
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
