//! Tagged accounting: which scopes a block counts for, and what each scope has in use.
//!
//! A block carries the number of a *tag*, a set of scopes: the scope that it was allocated for, those that its
//! thread has entered, and the parents of all of them. Tag 0 is the empty set, and all that unscoped requests see.

use std::cell::RefCell;
use std::collections::HashMap;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::shard::Grant;
use super::shards::Shard;
use super::{Core, attention};
use crate::device::Stream;
use crate::error::{Error, Result};
use crate::size::REQUEST_CEILING;
use crate::stats::Stat;

/// What one scope has in use [`Allocator::scopes`](crate::Allocator::scopes).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScopeStats {
    /// The scope's name, after those of its parents: `"model/kv-cache"`.
    pub name: String,
    /// Its budget in bytes, if it has one.
    pub budget: Option<u64>,
    /// Bytes of its live blocks, as `allocated_bytes` counts them; those of its children included.
    pub bytes: Stat,
    /// Its live allocations, those of its children included.
    pub allocations: Stat,
}

/// All scopes of one allocator. Its lock is a leaf: it may be taken under a shard's.
#[derive(Debug, Default)]
pub(crate) struct Scopes {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// By id. None is ever removed.
    scopes: Vec<Node>,
    /// Members of tag `n + 1`, ascending.
    tags: Vec<Arc<[u32]>>,
    numbers: HashMap<Arc<[u32]>, u32>,
    /// Guards alive, on all threads.
    entered: usize,
}

#[derive(Debug)]
struct Node {
    name: String,
    parent: Option<u32>,
    budget: Option<u64>,
    bytes: Stat,
    allocations: Stat,
    /// Bytes of requests under way, which count for the budget.
    promised: u64,
}

/// A scope that the thread has entered.
struct Entered {
    /// Address of the core. A guard keeps it alive, so that the address is not used again.
    core: usize,
    token: u64,
    scope: u32,
    /// This scope, its parents and everything entered before.
    tag: u32,
}

thread_local! {
    static ENTERED: RefCell<Vec<Entered>> = const { RefCell::new(Vec::new()) };
}

impl State {
    fn find_or_create(&mut self, parent: Option<u32>, name: &str) -> u32 {
        let name = match parent {
            Some(parent) => format!("{}/{name}", self.scopes[parent as usize].name),
            None => name.to_owned(),
        };
        if let Some(id) = self.scopes.iter().position(|s| s.parent == parent && s.name == name) {
            return id as u32;
        }
        let (bytes, allocations) = Default::default();
        self.scopes.push(Node { name, parent, budget: None, bytes, allocations, promised: 0 });
        (self.scopes.len() - 1) as u32
    }

    fn members(&self, tag: u32) -> Arc<[u32]> {
        tag.checked_sub(1).map_or_else(|| Arc::from([]), |at| self.tags[at as usize].clone())
    }

    /// The tag of everything in `tag`, and `scope` with its parents.
    fn extended(&mut self, tag: u32, scope: u32) -> u32 {
        let mut members = self.members(tag).to_vec();
        let mut next = Some(scope);
        while let Some(scope) = next {
            members.push(scope);
            next = self.scopes[scope as usize].parent;
        }
        members.sort_unstable();
        members.dedup();
        let members: Arc<[u32]> = members.into();
        if let Some(&known) = self.numbers.get(&members) {
            return known;
        }
        self.tags.push(members.clone());
        let tag = self.tags.len() as u32;
        self.numbers.insert(members, tag);
        tag
    }

    fn change(&mut self, tag: u32, mut change: impl FnMut(&mut Node)) {
        for &scope in &*self.members(tag) {
            change(&mut self.scopes[scope as usize]);
        }
    }

    /// Sets bytes aside in every scope of the tag, or in none.
    fn promise(&mut self, tag: u32, bytes: u64) -> Result<()> {
        for &scope in &*self.members(tag) {
            let node = &self.scopes[scope as usize];
            let in_use = node.bytes.current as u64 + node.promised;
            if let Some(budget) = node.budget
                && in_use.saturating_add(bytes) > budget
            {
                return Err(Error::ScopeBudget {
                    scope: node.name.clone(),
                    budget,
                    in_use,
                    requested: bytes,
                });
            }
        }
        self.change(tag, |node| node.promised += bytes);
        Ok(())
    }
}

fn count(stat: &mut Stat, by: i64) {
    stat.current += by;
    stat.peak = stat.peak.max(stat.current);
    stat.allocated += by.max(0);
    stat.freed -= by.min(0);
}

impl Scopes {
    pub(crate) fn find_or_create(&self, parent: Option<u32>, name: &str) -> u32 {
        self.state.lock().find_or_create(parent, name)
    }

    pub(crate) fn set_budget(&self, scope: u32, budget: Option<u64>) {
        self.state.lock().scopes[scope as usize].budget = budget;
    }

    pub(crate) fn stats(&self) -> Vec<ScopeStats> {
        self.state.lock().scopes.iter().map(Node::stats).collect()
    }

    pub(crate) fn stats_of(&self, scope: u32) -> ScopeStats {
        self.state.lock().scopes[scope as usize].stats()
    }

    /// A block of a tag is no longer a client's.
    #[cold]
    pub(crate) fn release(&self, tag: u32, bytes: u64) {
        self.state.lock().change(tag, |node| {
            count(&mut node.bytes, -(bytes as i64));
            count(&mut node.allocations, -1);
        });
    }

    /// A promise is kept with a block of `size` bytes, or is void.
    fn keep(&self, tag: u32, promised: u64, size: Option<u64>) {
        self.state.lock().change(tag, |node| {
            node.promised -= promised;
            if let Some(size) = size {
                count(&mut node.bytes, size as i64);
                count(&mut node.allocations, 1);
            }
        });
    }

    pub(crate) fn reset_peak(&self) {
        for node in &mut self.state.lock().scopes {
            for stat in [&mut node.bytes, &mut node.allocations] {
                stat.peak = stat.current;
            }
        }
    }

    pub(crate) fn reset_accumulated(&self) {
        for node in &mut self.state.lock().scopes {
            for stat in [&mut node.bytes, &mut node.allocations] {
                (stat.allocated, stat.freed) = (0, 0);
            }
        }
    }
}

impl Node {
    fn stats(&self) -> ScopeStats {
        ScopeStats {
            name: self.name.clone(),
            budget: self.budget,
            bytes: self.bytes,
            allocations: self.allocations,
        }
    }
}

impl Core {
    fn identity(&self) -> usize {
        std::ptr::from_ref(self) as usize
    }

    /// The tag of what the calling thread has entered.
    pub(super) fn entered_tag(&self) -> u32 {
        let newest = |all: &RefCell<Vec<Entered>>| {
            all.borrow().iter().rev().find(|e| e.core == self.identity()).map_or(0, |e| e.tag)
        };
        // A thread that is ending has left every scope.
        ENTERED.try_with(newest).unwrap_or(0)
    }

    /// The tag of a request for `scope` by the calling thread.
    pub(crate) fn tag_for(&self, scope: u32) -> u32 {
        let entered = self.entered_tag();
        self.shared.scopes.state.lock().extended(entered, scope)
    }

    /// Requests of the calling thread count for `scope` until [`leave_scope`](Core::leave_scope) with the answer.
    pub(crate) fn enter_scope(&self, scope: u32) -> u64 {
        static TOKENS: AtomicU64 = AtomicU64::new(0);
        let token = TOKENS.fetch_add(1, Ordering::Relaxed);
        let tag = self.tag_for(scope);
        // A thread that is ending counts for nothing any more.
        let _ = ENTERED
            .try_with(|all| all.borrow_mut().push(Entered { core: self.identity(), token, scope, tag }));
        let mut state = self.shared.scopes.state.lock();
        state.entered += 1;
        self.attend(attention::SCOPES);
        token
    }

    pub(crate) fn leave_scope(&self, token: u64) {
        let mut state = self.shared.scopes.state.lock();
        // Guards may go in any order, so the tags of what stays are made anew.
        let _ = ENTERED.try_with(|all| {
            let mut all = all.borrow_mut();
            all.retain(|e| e.token != token);
            let mut tag = 0;
            for entered in all.iter_mut().filter(|e| e.core == self.identity()) {
                tag = state.extended(tag, entered.scope);
                entered.tag = tag;
            }
        });
        state.entered -= 1;
        if state.entered == 0 {
            self.relax(attention::SCOPES);
        }
    }

    /// [`malloc`](Core::malloc) that counts for a tag (not 0), within the budgets of its scopes.
    #[cold]
    pub(crate) fn malloc_scoped(
        &self,
        bytes: u64,
        stream: Stream,
        tag: u32,
        site: &'static Location<'static>,
    ) -> Result<(&Arc<Shard>, Grant)> {
        if bytes >= REQUEST_CEILING {
            return Err(Error::TooLarge { requested: bytes });
        }
        let scopes = &self.shared.scopes;
        let rounded = self.shard(stream).lock().rules.round_size(bytes);
        scopes.state.lock().promise(tag, rounded)?;
        let outcome = self.malloc(bytes, stream, tag, site);
        // While caching is off nothing is counted, and no block could carry the tag.
        let counted = outcome.as_ref().ok().filter(|(_, grant)| !grant.block.is_none());
        scopes.keep(tag, rounded, counted.map(|(shard, grant)| shard.lock().slab[grant.block].size));
        outcome
    }
}
