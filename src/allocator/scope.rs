//! Tagged accounting: how much memory a part of a program has in use.

use std::panic::Location;

use std::fmt;
use std::marker::PhantomData;

use super::{Allocation, Allocator};
use crate::device::Stream;
use crate::engine::ScopeStats;
use crate::error::Result;

/// A name under which allocations are counted, exactly: current and peak bytes, and how many.
///
/// Allocations count for a scope that made them ([`alloc`](Scope::alloc)) or that their thread has entered
/// ([`enter`](Scope::enter)), wherever and by whomever they are freed. A child counts in its parents, and a scope
/// entered inside another one counts in both. Two handles of one name are one scope.
///
/// What counts is the block's size, as in `allocated_bytes`. Allocations made while caching is off are not counted.
/// A program that uses no scope pays nothing for them; a scoped allocation costs a short lock that all scopes of
/// the allocator share.
///
/// ```
/// use gpucache::{Allocator, Error};
/// use gpucache::device::sim::SimDevice;
///
/// let allocator = Allocator::simulated(SimDevice::new(1 << 30));
/// let cache = allocator.scope("kv-cache").with_budget(64 << 20);
/// let block = cache.alloc(48 << 20)?;
/// assert!(matches!(cache.alloc(32 << 20), Err(Error::ScopeBudget { .. })));
/// {
///     let _inside = cache.enter();
///     drop(allocator.alloc(1000)?);
/// }
/// drop(block);
/// assert_eq!(cache.stats().bytes.current, 0);
/// assert_eq!(cache.stats().bytes.peak, (48 << 20) + 1024);
/// # Ok::<(), gpucache::Error>(())
/// ```
#[derive(Clone)]
pub struct Scope {
    allocator: Allocator,
    id: u32,
}

/// While it lives, every allocation by the thread that made it counts for its scope.
#[must_use = "the scope is left when the guard is dropped"]
pub struct ScopeGuard {
    scope: Scope,
    token: u64,
    /// It belongs to its thread.
    stays: PhantomData<*const ()>,
}

impl Allocator {
    /// The scope of this name, which is made on first use and stays as long as the allocator.
    pub fn scope(&self, name: &str) -> Scope {
        Scope { allocator: self.clone(), id: self.core().shared.scopes.find_or_create(None, name) }
    }

    /// What every scope has in use, in the order in which they were first named.
    pub fn scopes(&self) -> Vec<ScopeStats> {
        self.core().shared.scopes.stats()
    }
}

impl Scope {
    /// Limits the scope, its children included, to so many bytes; see [`set_budget`](Scope::set_budget).
    #[must_use = "the same scope, for chaining"]
    pub fn with_budget(self, bytes: u64) -> Self {
        self.set_budget(Some(bytes));
        self
    }

    /// Sets the limit in bytes, or takes it away. A request that would pass it (after rounding to blocks) fails
    /// with [`Error::ScopeBudget`](crate::Error::ScopeBudget) before anything is done. What is in use stays, also
    /// above the limit; so may the rest of a block that is too small to be split off (at most 1 MiB, more with
    /// `max_split_size_mb`), which counts as in use.
    pub fn set_budget(&self, bytes: Option<u64>) {
        self.allocator.core().shared.scopes.set_budget(self.id, bytes);
    }

    /// The child of this name, made on first use: what counts in it counts in this scope too.
    #[must_use]
    pub fn scope(&self, name: &str) -> Scope {
        let id = self.allocator.core().shared.scopes.find_or_create(Some(self.id), name);
        Scope { allocator: self.allocator.clone(), id }
    }

    /// What it has in use.
    pub fn stats(&self) -> ScopeStats {
        self.allocator.core().shared.scopes.stats_of(self.id)
    }

    /// [`Allocator::alloc`] in this scope.
    ///
    /// # Errors
    /// As [`alloc_on`](Scope::alloc_on).
    #[track_caller]
    pub fn alloc(&self, bytes: usize) -> Result<Allocation> {
        self.alloc_on(bytes, Stream::DEFAULT)
    }

    /// [`Allocator::alloc_on`] in this scope and those that the thread has entered.
    ///
    /// # Errors
    /// [`Error::ScopeBudget`](crate::Error::ScopeBudget) where a budget would be passed, and those of
    /// [`Allocator::alloc_on`].
    #[track_caller]
    pub fn alloc_on(&self, bytes: usize, stream: Stream) -> Result<Allocation> {
        let core = self.allocator.core();
        Allocation::new(core, bytes, stream, core.tag_for(self.id), Location::caller())
    }

    /// Lets every allocation by the calling thread count for this scope until the guard is dropped: those by
    /// address and by libraries that share the allocator as well.
    pub fn enter(&self) -> ScopeGuard {
        let token = self.allocator.core().enter_scope(self.id);
        ScopeGuard { scope: self.clone(), token, stays: PhantomData }
    }
}

impl Drop for ScopeGuard {
    fn drop(&mut self) {
        self.scope.allocator.core().leave_scope(self.token);
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Scope").field(&self.stats()).finish()
    }
}

impl fmt::Debug for ScopeGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ScopeGuard").field(&self.scope).finish()
    }
}
