//! Private pools [spec 14.1 to 14.4].

use std::collections::BTreeSet;

use super::{DEFAULT_POOL, Failure, Model, PoolId, Stream};

#[derive(Debug, Default)]
pub(crate) struct PrivatePool {
    pub(crate) users: u64,
    /// What PyTorch counts: see [spec 23.3].
    pub(crate) driver_allocations: i64,
    /// A graph may know its addresses.
    pub(crate) captured: bool,
}

/// Which requests an active pool takes.
#[derive(Debug, Clone)]
pub(crate) enum Filter {
    /// Those of the calling thread: the model has one thread.
    Thread,
    Streams(BTreeSet<Stream>),
    /// All of them, and whoever began it does not say why: it may be a capture.
    All,
}

impl Model {
    pub(crate) fn create_or_increment(&mut self, id: PoolId) {
        self.private.entry(id).or_default().users += 1;
    }

    pub(crate) fn knows_pool(&self, id: PoolId) -> bool {
        self.private.contains_key(&id)
    }

    pub(crate) fn begin_allocate(&mut self, id: PoolId, filter: Filter) -> Result<(), Failure> {
        let already = self.active.iter().any(|(active, _)| *active == id);
        if already && !self.leaks_use_of_failed_begin() {
            return Err(Failure::Pool);
        }
        self.create_or_increment(id);
        if already {
            return Err(Failure::Pool);
        }
        if !matches!(filter, Filter::Thread) {
            self.private.get_mut(&id).expect("just made").captured = true;
        }
        self.active.push((id, filter));
        Ok(())
    }

    pub(crate) fn end_allocate(&mut self, id: PoolId) -> Result<(), Failure> {
        let at = self.active.iter().position(|(active, _)| *active == id);
        let at = at.ok_or(Failure::Pool)?;
        self.active.remove(at);
        Ok(())
    }

    pub(crate) fn release_pool(&mut self, id: PoolId) {
        self.private.get_mut(&id).expect("the pool exists").users -= 1;
    }

    pub(crate) fn set_use_on_oom(&mut self, id: PoolId, on: bool) {
        if on {
            self.use_on_oom.insert(id);
        } else {
            self.use_on_oom.remove(&id);
        }
    }

    pub(crate) fn set_no_split(&mut self, id: PoolId) {
        self.no_split.insert(id);
    }

    /// What dropping the last `MemPool` object does.
    pub(crate) fn destroy_pool(&mut self, id: PoolId) {
        self.set_use_on_oom(id, false);
        self.release_pool(id);
        self.release_all(Some(id));
    }

    /// [spec 2.4]: the newest active pool that takes the stream's requests.
    pub(crate) fn target_pool(&self, stream: Stream) -> PoolId {
        let takes = |filter: &Filter| match filter {
            Filter::Thread | Filter::All => true,
            Filter::Streams(streams) => streams.contains(&stream),
        };
        self.active.iter().rev().find(|(_, filter)| takes(filter)).map_or(DEFAULT_POOL, |&(id, _)| id)
    }

    pub(crate) fn count_driver_allocation(&mut self, id: PoolId) {
        if let Some(pool) = self.private.get_mut(&id) {
            pool.driver_allocations += 1;
        }
    }

    pub(crate) fn count_driver_free(&mut self, id: PoolId) {
        if let Some(pool) = self.private.get_mut(&id) {
            pool.driver_allocations -= 1;
        }
    }

    pub(crate) fn forget_if_empty(&mut self, id: PoolId) {
        if self.holds_nothing(id) {
            self.private.remove(&id);
        }
    }
}
