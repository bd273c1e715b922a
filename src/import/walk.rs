//! Typed access to a file's values, with errors that say where in the structure they are.

use std::fmt;
use std::sync::Arc;

use super::arena::{Arena, Id, Node};
use super::error::{ImportError, Position};

/// More keys than any dictionary of a snapshot has. Keys are searched one by one, which must stay cheap.
const MOST_KEYS: usize = 256;

/// A place in the structure, as a chain from the value to the outermost one.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    parent: Option<&'a Place<'a>>,
    step: Step<'a>,
}

#[derive(Clone, Copy)]
enum Step<'a> {
    Root,
    Key(&'a str),
    Index(usize),
}

impl<'a> Place<'a> {
    pub(crate) const ROOT: Place<'static> = Place { parent: None, step: Step::Root };

    pub(crate) fn key(&'a self, key: &'a str) -> Place<'a> {
        Place { parent: Some(self), step: Step::Key(key) }
    }

    pub(crate) fn index(&'a self, index: usize) -> Place<'a> {
        Place { parent: Some(self), step: Step::Index(index) }
    }

    pub(crate) fn fail(&self, what: impl Into<String>) -> ImportError {
        ImportError::new(Position::Value(self.to_string()), what)
    }
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nested = self.parent.is_some_and(|p| p.parent.is_some());
        if let Some(parent) = self.parent.filter(|_| nested) {
            write!(f, "{parent}")?;
        }
        match self.step {
            Step::Root => f.write_str("outermost value"),
            Step::Key(key) if nested => write!(f, ".{key}"),
            Step::Key(key) => f.write_str(key),
            Step::Index(index) => write!(f, "[{index}]"),
        }
    }
}

type Found<T> = Result<T, ImportError>;

fn wrong(place: &Place<'_>, expected: &str, found: &Node) -> ImportError {
    place.fail(format!("expected {expected}, found {}", found.kind()))
}

/// The items of a list or tuple.
pub(crate) fn list<'a>(arena: &'a Arena, id: Id, place: &Place<'_>) -> Found<&'a [Id]> {
    match arena.get(id) {
        Node::List(items) => Ok(items),
        other => Err(wrong(place, "a list", other)),
    }
}

/// A dictionary whose keys are looked up by name.
pub(crate) struct Dict<'a> {
    arena: &'a Arena,
    items: &'a [Id],
    place: &'a Place<'a>,
}

impl<'a> Dict<'a> {
    pub(crate) fn new(arena: &'a Arena, id: Id, place: &'a Place<'a>) -> Found<Self> {
        match arena.get(id) {
            Node::Dict(items) if items.len() / 2 > MOST_KEYS => Err(place.fail(format!(
                "a dictionary of {} keys, at most {MOST_KEYS} are supported",
                items.len() / 2
            ))),
            Node::Dict(items) => Ok(Dict { arena, items, place }),
            other => Err(wrong(place, "a dictionary", other)),
        }
    }

    /// The value of a key; of several with that name the last, as Python does.
    pub(crate) fn get(&self, key: &str) -> Option<Id> {
        let mut pairs = self.items.chunks_exact(2).rev();
        pairs.find(|pair| matches!(self.arena.get(pair[0]), Node::Str(k) if &**k == key)).map(|pair| pair[1])
    }

    fn need(&self, key: &str) -> Found<&'a Node> {
        match self.get(key) {
            Some(id) => Ok(self.arena.get(id)),
            None => Err(self.place.fail(format!("the key '{key}' is missing"))),
        }
    }

    pub(crate) fn u64(&self, key: &str) -> Found<u64> {
        let node = self.need(key)?;
        match node {
            Node::Int(v) => u64::try_from(*v)
                .map_err(|_| self.place.key(key).fail(format!("{v} is not in the range of unsigned 64 bit"))),
            other => Err(wrong(&self.place.key(key), "an integer", other)),
        }
    }

    pub(crate) fn u32(&self, key: &str) -> Found<u32> {
        let value = self.u64(key)?;
        u32::try_from(value).map_err(|_| self.place.key(key).fail(format!("{value} is too large")))
    }

    pub(crate) fn str(&self, key: &str) -> Found<&'a Arc<str>> {
        match self.need(key)? {
            Node::Str(text) => Ok(text),
            other => Err(wrong(&self.place.key(key), "a string", other)),
        }
    }

    /// A number where there is one, else `default`.
    pub(crate) fn u64_or(&self, key: &str, default: u64) -> Found<u64> {
        if self.get(key).is_some() { self.u64(key) } else { Ok(default) }
    }

    /// A signed number, if there is one of that kind.
    pub(crate) fn i64_if(&self, key: &str) -> Option<i64> {
        match self.arena.get(self.get(key)?) {
            Node::Int(v) => i64::try_from(*v).ok(),
            _ => None,
        }
    }

    /// A float, if there is one.
    pub(crate) fn f64_if(&self, key: &str) -> Option<f64> {
        match self.arena.get(self.get(key)?) {
            Node::Float(v) => Some(*v),
            Node::Int(v) => Some(*v as f64),
            _ => None,
        }
    }

    /// A truth value, if there is one.
    pub(crate) fn bool_if(&self, key: &str) -> Option<bool> {
        match self.arena.get(self.get(key)?) {
            Node::Bool(v) => Some(*v),
            _ => None,
        }
    }

    /// A string, if there is one.
    pub(crate) fn str_if(&self, key: &str) -> Option<&'a Arc<str>> {
        match self.arena.get(self.get(key)?) {
            Node::Str(text) => Some(text),
            _ => None,
        }
    }
}
