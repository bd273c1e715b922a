//! Python's pickle into an [`Arena`]: plain data only, protocols 0 to 5.
//!
//! A pickle is a program. The opcodes that name classes and call functions are refused by name, so that nothing in a
//! file can run. The machine has a stack of values and no recursion; each opcode adds at most one value, so that
//! memory is bounded by the length of the file.

use std::collections::HashMap;
use std::sync::Arc;

use super::arena::{Arena, Id, Node};
use super::error::{ImportError, Position};

/// Highest protocol there is.
const NEWEST_PROTOCOL: u8 = 5;
/// Bytes of the longest integer: 64 bits and a sign fit easily.
const LONGEST_INT: usize = 16;

/// Reads one pickle. Bytes after its end are an error, as two pickles in one file are not a snapshot.
pub(crate) fn read(bytes: &[u8]) -> Result<Arena, ImportError> {
    let mut machine = Machine::new(bytes);
    loop {
        machine.op_at = machine.at;
        let op = machine.byte()?;
        if op == b'.' {
            return machine.finish();
        }
        machine.step(op)?;
    }
}

struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Where the current opcode is, for messages.
    op_at: usize,
    arena: Arena,
    stack: Vec<Id>,
    /// Heights of the stack at each open mark.
    marks: Vec<usize>,
    memo: HashMap<u32, Id>,
}

type Step<T = ()> = Result<T, ImportError>;

impl<'a> Machine<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        let (arena, stack, marks, memo) = (Arena::new(), Vec::new(), Vec::new(), HashMap::new());
        Machine { bytes, at: 0, op_at: 0, arena, stack, marks, memo }
    }

    fn finish(mut self) -> Step<Arena> {
        let root = self.pop()?;
        if !self.stack.is_empty() || !self.marks.is_empty() {
            return self.fail("the pickle ends with values left over");
        }
        if self.at != self.bytes.len() {
            return self.fail(format!("{} bytes follow the end of the pickle", self.bytes.len() - self.at));
        }
        self.arena.set_root(root);
        Ok(self.arena)
    }

    fn step(&mut self, op: u8) -> Step {
        match op {
            0x80 => self.protocol(),
            0x95 => self.frame(),
            b'(' => {
                self.marks.push(self.stack.len());
                Ok(())
            }
            b'0' => self.pop().map(drop),
            b'1' => self.since_mark().map(drop),
            b'2' => {
                let top = self.pop()?;
                self.stack.extend([top, top]);
                Ok(())
            }
            b'N' => self.push(Node::None),
            0x88 => self.push(Node::Bool(true)),
            0x89 => self.push(Node::Bool(false)),
            b'I' | b'L' | b'F' | b'J' | b'K' | b'M' | 0x8a | 0x8b | b'G' => self.number(op),
            b'S' | b'V' | b'T' | b'U' | b'X' | 0x8c | 0x8d => self.string(op),
            b']' | b'l' | b'a' | b'e' | b')' | b't' | 0x85..=0x87 => self.list(op),
            b'}' | b'd' | b's' | b'u' => self.dict(op),
            b'p' | b'q' | b'r' | 0x94 | b'g' | b'h' | b'j' => self.memo(op),
            _ => self.refuse(op),
        }
    }

    fn protocol(&mut self) -> Step {
        match self.byte()? {
            known if known <= NEWEST_PROTOCOL => Ok(()),
            other => self.fail(format!("pickle protocol {other} is not known (0 to {NEWEST_PROTOCOL} are)")),
        }
    }

    fn frame(&mut self) -> Step {
        let length = u64::from_le_bytes(self.array()?);
        let left = (self.bytes.len() - self.at) as u64;
        if length <= left {
            return Ok(());
        }
        self.fail(format!("a frame of {length} bytes, but only {left} are left: the file is truncated"))
    }

    fn number(&mut self, op: u8) -> Step {
        let node = match op {
            b'I' => match self.line()? {
                "00" => Node::Bool(false),
                "01" => Node::Bool(true),
                text => Node::Int(self.parsed(text)?),
            },
            b'L' => {
                let text = self.line()?;
                Node::Int(self.parsed(text.strip_suffix('L').unwrap_or(text))?)
            }
            b'F' => {
                let text = self.line()?;
                Node::Float(self.parsed(text)?)
            }
            b'J' => Node::Int(i32::from_le_bytes(self.array()?).into()),
            b'K' => Node::Int(self.byte()?.into()),
            b'M' => Node::Int(u16::from_le_bytes(self.array()?).into()),
            0x8a => {
                let length = usize::from(self.byte()?);
                Node::Int(self.long(length)?)
            }
            0x8b => {
                let length = u32::from_le_bytes(self.array()?) as usize;
                Node::Int(self.long(length)?)
            }
            _ => Node::Float(f64::from_be_bytes(self.array()?)),
        };
        self.push(node)
    }

    /// A little-endian two's complement number.
    fn long(&mut self, length: usize) -> Step<i128> {
        if length > LONGEST_INT {
            return self.fail(format!("an integer of {length} bytes; at most {LONGEST_INT} are supported"));
        }
        let digits = self.take(length)?;
        let negative = digits.last().is_some_and(|last| last & 0x80 != 0);
        let mut all = [if negative { 0xff } else { 0 }; LONGEST_INT];
        all[..length].copy_from_slice(digits);
        Ok(i128::from_le_bytes(all))
    }

    fn string(&mut self, op: u8) -> Step {
        let text: Arc<str> = match op {
            b'S' => {
                let line = self.line()?;
                let quoted = ['\'', '"'].iter().find_map(|&q| line.strip_prefix(q)?.strip_suffix(q));
                match quoted {
                    Some(text) => unescape(text).into(),
                    None => return self.fail("a string without quotes"),
                }
            }
            b'V' => unescape(self.line()?).into(),
            b'U' | 0x8c => {
                let length = usize::from(self.byte()?);
                self.utf8(length)?.into()
            }
            b'T' | b'X' => {
                let length = u32::from_le_bytes(self.array()?) as usize;
                self.utf8(length)?.into()
            }
            _ => {
                let length = usize::try_from(u64::from_le_bytes(self.array()?)).unwrap_or(usize::MAX);
                self.utf8(length)?.into()
            }
        };
        self.push(Node::Str(text))
    }

    fn list(&mut self, op: u8) -> Step {
        let items = match op {
            b']' | b')' => Vec::new(),
            b'l' | b't' => self.since_mark()?,
            0x85..=0x87 => {
                let count = usize::from(op - 0x84);
                let from = self.stack.len().checked_sub(count).filter(|&from| from >= self.floor());
                let Some(from) = from else { return self.underflow() };
                self.stack.split_off(from)
            }
            b'a' => {
                let item = self.pop()?;
                return self.extend_top(true, &[item]);
            }
            _ => {
                let items = self.since_mark()?;
                return self.extend_top(true, &items);
            }
        };
        self.push(Node::List(items))
    }

    fn dict(&mut self, op: u8) -> Step {
        let items = match op {
            b'}' => Vec::new(),
            b's' => {
                let value = self.pop()?;
                let key = self.pop()?;
                return self.extend_top(false, &[key, value]);
            }
            _ => self.since_mark()?,
        };
        if items.len() % 2 != 0 {
            return self.fail("a dictionary with a key that has no value");
        }
        if op == b'u' { self.extend_top(false, &items) } else { self.push(Node::Dict(items)) }
    }

    fn extend_top(&mut self, list: bool, items: &[Id]) -> Step {
        if self.stack.len() <= self.floor() {
            return self.underflow();
        }
        let Some(&top) = self.stack.last() else { return self.underflow() };
        match self.arena.get_mut(top) {
            Node::List(all) if list => all.extend_from_slice(items),
            Node::Dict(all) if !list => all.extend_from_slice(items),
            other => {
                let (expected, found) = (if list { "list" } else { "dictionary" }, other.kind());
                return self.fail(format!("items for a {expected}, but below them is {found}"));
            }
        }
        Ok(())
    }

    fn memo(&mut self, op: u8) -> Step {
        let key = match op {
            b'p' | b'g' => {
                let text = self.line()?;
                self.parsed(text)?
            }
            b'q' | b'h' => self.byte()?.into(),
            b'r' | b'j' => u32::from_le_bytes(self.array()?),
            _ => self.memo.len() as u32,
        };
        if matches!(op, b'g' | b'h' | b'j') {
            let Some(&id) = self.memo.get(&key) else {
                return self.fail(format!("memo {key} was never stored"));
            };
            self.stack.push(id);
        } else {
            let Some(&top) = self.stack.last() else { return self.underflow() };
            self.memo.insert(key, top);
        }
        Ok(())
    }

    fn refuse(&self, op: u8) -> Step {
        let name = match op {
            b'c' | 0x93 => "names a Python class or function (GLOBAL)",
            b'R' => "calls a Python function (REDUCE)",
            b'b' => "sets an object's state (BUILD)",
            b'i' | b'o' | 0x81 | 0x92 => "makes a Python object (INST, OBJ, NEWOBJ)",
            0x82..=0x84 => "uses an extension registry (EXT)",
            b'P' | b'Q' => "refers to something outside the file (PERSID)",
            b'B' | b'C' | 0x8e | 0x96 => "holds bytes, which a snapshot never has",
            0x8f..=0x91 => "holds a set, which a snapshot never has",
            0x97 | 0x98 => "refers to a buffer outside the file",
            _ => {
                return self
                    .fail(format!("opcode {op:#04x} is not known; this is no pickle, or it is damaged"));
            }
        };
        self.fail(format!("opcode {op:#04x} {name}; only plain data is read, nothing in a file is run"))
    }

    fn push(&mut self, node: Node) -> Step {
        match self.arena.add(node) {
            Some(id) => {
                self.stack.push(id);
                Ok(())
            }
            None => self.fail("more than 2^32 values"),
        }
    }

    /// Height below which the stack belongs to the containers outside the innermost mark.
    fn floor(&self) -> usize {
        self.marks.last().copied().unwrap_or(0)
    }

    fn pop(&mut self) -> Step<Id> {
        if self.stack.len() <= self.floor() {
            return self.underflow();
        }
        match self.stack.pop() {
            Some(id) => Ok(id),
            None => self.underflow(),
        }
    }

    fn since_mark(&mut self) -> Step<Vec<Id>> {
        match self.marks.pop() {
            Some(mark) => Ok(self.stack.split_off(mark)),
            None => self.fail("the end of a group that never began"),
        }
    }

    fn underflow<T>(&self) -> Step<T> {
        self.fail("a value is needed, but there is none: this is no pickle, or it is damaged")
    }

    fn fail<T>(&self, what: impl Into<String>) -> Step<T> {
        Err(ImportError::new(Position::Byte(self.op_at as u64), what))
    }

    fn take(&mut self, length: usize) -> Step<&'a [u8]> {
        let end = self.at.checked_add(length).filter(|&end| end <= self.bytes.len());
        let Some(end) = end else {
            return self.fail(format!("{length} bytes are needed, the file ends before: it is truncated"));
        };
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    fn byte(&mut self) -> Step<u8> {
        self.take(1).map(|b| b[0])
    }

    fn array<const N: usize>(&mut self) -> Step<[u8; N]> {
        let mut all = [0; N];
        all.copy_from_slice(self.take(N)?);
        Ok(all)
    }

    fn utf8(&mut self, length: usize) -> Step<&'a str> {
        match std::str::from_utf8(self.take(length)?) {
            Ok(text) => Ok(text),
            Err(e) => self.fail(format!("a string that is not UTF-8: {e}")),
        }
    }

    /// The argument of a text opcode, up to the end of the line.
    fn line(&mut self) -> Step<&'a str> {
        let Some(length) = self.bytes[self.at..].iter().position(|&b| b == b'\n') else {
            return self.fail("the file ends within an argument: it is truncated");
        };
        let line = self.utf8(length)?;
        self.at += 1;
        Ok(line.strip_suffix('\r').unwrap_or(line))
    }

    fn parsed<T: std::str::FromStr>(&self, text: &str) -> Step<T> {
        match text.trim().parse() {
            Ok(value) => Ok(value),
            Err(_) => self.fail(format!("'{}' is not a number", text.chars().take(40).collect::<String>())),
        }
    }
}

/// Protocol 0 writes special characters as `\uXXXX`, `\xXX`, `\n` and the like; what is malformed stays as it is.
fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let kind = rest.chars().next();
        let digits = match kind {
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            _ => 0,
        };
        let code =
            rest.get(1..=digits).filter(|_| digits > 0).and_then(|hex| u32::from_str_radix(hex, 16).ok());
        if let Some(c) = code.and_then(char::from_u32) {
            out.push(c);
            rest = &rest[1 + digits..];
            continue;
        }
        let plain = match kind {
            Some('n') => '\n',
            Some('t') => '\t',
            Some('r') => '\r',
            Some(c @ ('\\' | '\'' | '"')) => c,
            _ => {
                out.push('\\');
                continue;
            }
        };
        out.push(plain);
        rest = &rest[1..];
    }
    out.push_str(rest);
    out
}
