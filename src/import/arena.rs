//! Values as they come out of a file.
//!
//! Nodes are numbered and name each other by number: a pickle may share values and even build cycles, and with
//! numbers neither costs memory, recursion or care at drop.

use std::sync::Arc;

/// Number of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Id(u32);

/// One value.
#[derive(Debug, PartialEq)]
pub(crate) enum Node {
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Str(Arc<str>),
    /// Lists and tuples.
    List(Vec<Id>),
    /// Keys and values alternate, in the file's order.
    Dict(Vec<Id>),
}

impl Node {
    /// What it is, for messages.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Node::None => "None",
            Node::Bool(_) => "a bool",
            Node::Int(_) => "an integer",
            Node::Float(_) => "a float",
            Node::Str(_) => "a string",
            Node::List(_) => "a list",
            Node::Dict(_) => "a dictionary",
        }
    }
}

/// All values of a file and the outermost one.
#[derive(Debug)]
pub(crate) struct Arena {
    nodes: Vec<Node>,
    root: Id,
}

impl Arena {
    const NONE: Id = Id(0);

    pub(crate) fn new() -> Self {
        // None and the bools are one byte in a pickle; sharing them keeps the memory per byte of input low.
        Arena { nodes: vec![Node::None, Node::Bool(false), Node::Bool(true)], root: Self::NONE }
    }

    /// `None` when there are 2^32 nodes.
    pub(crate) fn add(&mut self, node: Node) -> Option<Id> {
        match node {
            Node::None => return Some(Self::NONE),
            Node::Bool(b) => return Some(Id(1 + u32::from(b))),
            _ => {}
        }
        let id = u32::try_from(self.nodes.len()).ok()?;
        self.nodes.push(node);
        Some(Id(id))
    }

    pub(crate) fn get(&self, id: Id) -> &Node {
        &self.nodes[id.0 as usize]
    }

    pub(crate) fn get_mut(&mut self, id: Id) -> &mut Node {
        &mut self.nodes[id.0 as usize]
    }

    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    pub(crate) fn set_root(&mut self, root: Id) {
        self.root = root;
    }

    pub(crate) fn root(&self) -> Id {
        self.root
    }
}
