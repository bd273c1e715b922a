//! A handle that only looks.

use std::fmt;
use std::sync::{Arc, Weak};

use super::{Allocator, Owner};

/// Does not keep the allocator open; for threads and registries.
#[derive(Clone)]
pub(crate) struct WeakAllocator(Weak<Owner>);

impl WeakAllocator {
    /// `None` once the last handle is gone.
    pub(crate) fn upgrade(&self) -> Option<Allocator> {
        self.0.upgrade().map(|owner| Allocator { owner })
    }
}

impl fmt::Debug for WeakAllocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WeakAllocator")
    }
}

impl Allocator {
    pub(crate) fn downgrade(&self) -> WeakAllocator {
        WeakAllocator(Arc::downgrade(&self.owner))
    }
}
