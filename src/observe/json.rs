//! JSON text, one value after the other.

use std::io::{self, BufWriter, Write};

use super::encode::Encoder;

/// Writes what `value` writes as one JSON text.
pub(crate) fn write<W: Write>(
    out: W,
    value: impl FnOnce(&mut Json<BufWriter<W>>) -> io::Result<()>,
) -> io::Result<()> {
    let mut json = Json { out: BufWriter::new(out), open: Vec::new(), after_key: false };
    value(&mut json)?;
    json.out.flush()
}

/// Writes values; commas come before every item but the first.
pub(crate) struct Json<W> {
    out: W,
    /// For each open container: whether it has an item.
    open: Vec<bool>,
    after_key: bool,
}

impl<W: Write> Json<W> {
    fn item(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.after_key) {
            return Ok(());
        }
        match self.open.last_mut() {
            Some(filled @ false) => *filled = true,
            Some(true) => return self.out.write_all(b","),
            None => {}
        }
        Ok(())
    }

    fn begin(&mut self, bracket: u8) -> io::Result<()> {
        self.item()?;
        self.open.push(false);
        self.out.write_all(&[bracket])
    }

    fn end(&mut self, bracket: u8) -> io::Result<()> {
        self.open.pop();
        self.out.write_all(&[bracket])
    }

    fn text(&mut self, value: &str) -> io::Result<()> {
        self.out.write_all(b"\"")?;
        let mut rest = value;
        while let Some(at) = rest.find(|c: char| c < ' ' || c == '"' || c == '\\') {
            self.out.write_all(&rest.as_bytes()[..at])?;
            let special = rest.as_bytes()[at];
            if special < b' ' {
                write!(self.out, "\\u{special:04x}")?;
            } else {
                self.out.write_all(&[b'\\', special])?;
            }
            rest = &rest[at + 1..];
        }
        self.out.write_all(rest.as_bytes())?;
        self.out.write_all(b"\"")
    }
}

impl<W: Write> Encoder for Json<W> {
    fn begin_dict(&mut self) -> io::Result<()> {
        self.begin(b'{')
    }

    fn end_dict(&mut self) -> io::Result<()> {
        self.end(b'}')
    }

    fn begin_list(&mut self) -> io::Result<()> {
        self.begin(b'[')
    }

    fn end_list(&mut self) -> io::Result<()> {
        self.end(b']')
    }

    fn key(&mut self, key: &str) -> io::Result<()> {
        self.item()?;
        self.text(key)?;
        self.after_key = true;
        self.out.write_all(b":")
    }

    fn str(&mut self, value: &str) -> io::Result<()> {
        self.item()?;
        self.text(value)
    }

    fn int(&mut self, value: i128) -> io::Result<()> {
        self.item()?;
        write!(self.out, "{value}")
    }

    fn float(&mut self, value: f64) -> io::Result<()> {
        self.item()?;
        // JSON has no word for infinity and the like.
        if value.is_finite() { write!(self.out, "{value:?}") } else { self.out.write_all(b"null") }
    }

    fn bool(&mut self, value: bool) -> io::Result<()> {
        self.item()?;
        write!(self.out, "{value}")
    }

    fn pair(&mut self, a: u64, b: u64) -> io::Result<()> {
        self.item()?;
        write!(self.out, "[{a},{b}]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_and_escapes() {
        let mut text = Vec::new();
        write(&mut text, |e| {
            e.begin_list()?;
            e.begin_dict()?;
            e.key_str("a\"b", "c\\d\n\u{e9}")?;
            e.key_int("n", u64::MAX)?;
            e.key("f")?;
            e.float(0.0)?;
            e.key("nan")?;
            e.float(f64::NAN)?;
            e.end_dict()?;
            e.begin_list()?;
            e.end_list()?;
            e.pair(0, 7)?;
            e.bool(true)?;
            e.end_list()
        })
        .unwrap();
        assert_eq!(
            String::from_utf8(text).unwrap(),
            "[{\"a\\\"b\":\"c\\\\d\\u000a\u{e9}\",\"n\":18446744073709551615,\"f\":0.0,\"nan\":null},[],[0,7],true]"
        );
    }
}
