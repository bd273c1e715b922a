//! The default pool, and private ones for graph captures.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::RwLock;
use smallvec::SmallVec;

use super::block::Pool;
use crate::device::Stream;
use crate::error::{Error, Result};
use crate::observe::snapshot::PoolId;

/// Which requests go to a private pool.
pub(crate) type Filter = Arc<dyn Fn(Stream) -> bool + Send + Sync>;

#[derive(Debug)]
struct Private {
    pool: Arc<Pool>,
    uses: u64,
}

#[derive(Default)]
struct Table {
    private: BTreeMap<PoolId, Private>,
    /// Pools that are being allocated to.
    active: Vec<(PoolId, Arc<Pool>, Filter)>,
}

/// All pools of one allocator.
#[derive(Default)]
pub(super) struct Pools {
    pub(super) default: Arc<Pool>,
    table: RwLock<Table>,
    /// Length of the table's `active`: 0 spares everybody the lock.
    active: AtomicUsize,
}

/// Where a request goes.
#[derive(Debug)]
pub(super) struct Route {
    pub(super) pool: Arc<Pool>,
    /// The request is part of a capture.
    pub(super) capturing: bool,
}

impl Pools {
    /// The pool for a request. The filters are called without a lock.
    pub(super) fn route(&self, stream: Stream) -> Route {
        if self.is_capturing() {
            let active: SmallVec<[(Arc<Pool>, Filter); 2]> = self
                .table
                .read()
                .active
                .iter()
                .map(|(_, pool, filter)| (pool.clone(), filter.clone()))
                .collect();
            if let Some((pool, _)) = active.into_iter().find(|(_, filter)| filter(stream)) {
                return Route { pool, capturing: true };
            }
        }
        Route { pool: self.default.clone(), capturing: false }
    }

    /// Whether some capture is under way.
    pub(super) fn is_capturing(&self) -> bool {
        self.active.load(Ordering::Acquire) > 0
    }

    pub(super) fn begin(&self, id: PoolId, filter: Filter) -> Result<()> {
        let mut table = self.table.write();
        if table.active.iter().any(|(active, ..)| *active == id) {
            return Err(misuse(id, "is being allocated to already"));
        }
        let fresh = || Private { pool: Arc::default(), uses: 0 };
        let private = table.private.entry(id).or_insert_with(fresh);
        private.uses += 1;
        let pool = private.pool.clone();
        table.active.push((id, pool, filter));
        self.active.store(table.active.len(), Ordering::Release);
        Ok(())
    }

    pub(super) fn end(&self, id: PoolId) -> Result<()> {
        let mut table = self.table.write();
        let found = table.active.iter().position(|(active, ..)| *active == id);
        let ended = table.active.remove(found.ok_or_else(|| misuse(id, "is not being allocated to"))?);
        self.active.store(table.active.len(), Ordering::Release);
        // The filter is user code, its drop too.
        drop(table);
        drop(ended);
        Ok(())
    }

    pub(super) fn release_use(&self, id: PoolId) -> Result<()> {
        let mut table = self.table.write();
        let private = table.private.get_mut(&id).filter(|private| private.uses > 0);
        private.ok_or_else(|| misuse(id, "has no user"))?.uses -= 1;
        Ok(())
    }

    /// Pools whose idle memory may be given back: the default one, and those without users.
    pub(super) fn releasable(&self) -> Vec<Arc<Pool>> {
        let table = self.table.read();
        let unused = table.private.values().filter(|private| private.uses == 0);
        std::iter::once(&self.default).chain(unused.map(|private| &private.pool)).cloned().collect()
    }

    /// Forgets pools that have neither users nor blocks.
    pub(super) fn forget_empty(&self) {
        let empty = |private: &Private| private.uses == 0 && private.pool.blocks.load(Ordering::Acquire) == 0;
        self.table.write().private.retain(|_, private| !empty(private));
    }

    /// Every pool.
    pub(super) fn all(&self) -> Vec<Arc<Pool>> {
        let table = self.table.read();
        std::iter::once(&self.default).chain(table.private.values().map(|p| &p.pool)).cloned().collect()
    }
}

impl fmt::Debug for Pools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let private = self.table.read().private.keys().copied().collect::<Vec<_>>();
        f.debug_struct("Pools").field("private", &private).finish_non_exhaustive()
    }
}

fn misuse(id: PoolId, what: &str) -> Error {
    Error::Pool(format!("pinned memory pool ({}, {}) {what}", id.0, id.1))
}
