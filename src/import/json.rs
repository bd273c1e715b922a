//! JSON into an [`Arena`].

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use serde::de::{DeserializeSeed, MapAccess, SeqAccess, Visitor};

use super::arena::{Arena, Id, Node};
use super::error::{ImportError, Position};

/// Reads one JSON text. serde_json refuses nesting of more than 128 levels.
pub(crate) fn read(bytes: &[u8]) -> Result<Arena, ImportError> {
    let mut builder = Builder { arena: Arena::new(), keys: HashMap::new() };
    let mut text = serde_json::Deserializer::from_slice(bytes);
    let root = Value(&mut builder).deserialize(&mut text).and_then(|root| text.end().map(|()| root));
    match root {
        Ok(root) => {
            builder.arena.set_root(root);
            Ok(builder.arena)
        }
        Err(e) => Err(ImportError::new(Position::Line(e.line() as u64, e.column() as u64), reason(&e))),
    }
}

/// The message without the place, which the error has as numbers.
fn reason(e: &serde_json::Error) -> String {
    let text = e.to_string();
    match text.rfind(" at line ") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}

struct Builder {
    arena: Arena,
    /// Keys repeat in every block and entry; each is stored once.
    keys: HashMap<Box<str>, Id>,
}

impl Builder {
    fn add<E: serde::de::Error>(&mut self, node: Node) -> Result<Id, E> {
        self.arena.add(node).ok_or_else(|| E::custom("more than 2^32 values"))
    }

    fn key<E: serde::de::Error>(&mut self, key: &str) -> Result<Id, E> {
        if let Some(&id) = self.keys.get(key) {
            return Ok(id);
        }
        let id = self.add(Node::Str(Arc::from(key)))?;
        self.keys.insert(key.into(), id);
        Ok(id)
    }
}

/// Reads one value.
struct Value<'a>(&'a mut Builder);

impl<'de> DeserializeSeed<'de> for Value<'_> {
    type Value = Id;

    fn deserialize<D: serde::Deserializer<'de>>(self, from: D) -> Result<Id, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Value<'_> {
    type Value = Id;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<Id, E> {
        self.0.add(Node::None)
    }

    fn visit_bool<E: serde::de::Error>(self, v: bool) -> Result<Id, E> {
        self.0.add(Node::Bool(v))
    }

    fn visit_i64<E: serde::de::Error>(self, v: i64) -> Result<Id, E> {
        self.0.add(Node::Int(v.into()))
    }

    fn visit_u64<E: serde::de::Error>(self, v: u64) -> Result<Id, E> {
        self.0.add(Node::Int(v.into()))
    }

    fn visit_f64<E: serde::de::Error>(self, v: f64) -> Result<Id, E> {
        self.0.add(Node::Float(v))
    }

    fn visit_str<E: serde::de::Error>(self, v: &str) -> Result<Id, E> {
        self.0.add(Node::Str(Arc::from(v)))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Id, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element_seed(Value(self.0))? {
            items.push(item);
        }
        self.0.add(Node::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Id, A::Error> {
        let mut items = Vec::new();
        while let Some(key) = map.next_key::<std::borrow::Cow<'de, str>>()? {
            items.push(self.0.key(&key)?);
            items.push(map.next_value_seed(Value(self.0))?);
        }
        self.0.add(Node::Dict(items))
    }
}
