//! Pure data structures of one stream's cache: no device, no lock.
//!
//! [`block`] keeps block records, [`chain`] links the blocks of a segment, [`index`] finds the best fit,
//! [`set`] puts them together into the free set of one pool.

#![allow(clippy::inline_always)] // as in the engine

pub(crate) mod block;
pub(crate) mod chain;
pub(crate) mod index;
pub(crate) mod set;
mod size_list;
mod sizes;
