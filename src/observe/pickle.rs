//! Python's pickle, protocol 2, with the opcodes that PyTorch's web viewer knows and no memo [spec 12.5].

use std::io::{self, BufWriter, Write};

use super::encode::Encoder;

const MARK: u8 = b'(';

/// Frames what `value` writes as one pickle.
pub(crate) fn write<W: Write>(
    out: W,
    value: impl FnOnce(&mut Pickle<BufWriter<W>>) -> io::Result<()>,
) -> io::Result<()> {
    let mut pickle = Pickle { out: BufWriter::new(out), open: Vec::new() };
    pickle.out.write_all(&[0x80, 2])?;
    value(&mut pickle)?;
    pickle.out.write_all(b".")?;
    pickle.out.flush()
}

/// Writes values. An empty container has no mark, so that a mark is written with the first item only.
pub(crate) struct Pickle<W> {
    out: W,
    /// For each open container: whether its mark was written.
    open: Vec<bool>,
}

impl<W: Write> Pickle<W> {
    fn begin(&mut self, empty: u8) -> io::Result<()> {
        self.item()?;
        self.open.push(false);
        self.out.write_all(&[empty])
    }

    fn end(&mut self, fill: u8) -> io::Result<()> {
        if self.open.pop() == Some(true) { self.out.write_all(&[fill]) } else { Ok(()) }
    }

    /// Something comes into the innermost container.
    fn item(&mut self) -> io::Result<()> {
        match self.open.last_mut() {
            Some(marked @ false) => {
                *marked = true;
                self.out.write_all(&[MARK])
            }
            _ => Ok(()),
        }
    }

    fn text(&mut self, value: &str) -> io::Result<()> {
        let len = u32::try_from(value.len())
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "a text of 4 GiB or more"))?;
        self.out.write_all(b"X")?;
        self.out.write_all(&len.to_le_bytes())?;
        self.out.write_all(value.as_bytes())
    }

    fn number(&mut self, value: i128) -> io::Result<()> {
        if let Ok(byte) = u8::try_from(value) {
            self.out.write_all(&[b'K', byte])
        } else if let Ok(short) = u16::try_from(value) {
            self.out.write_all(b"M")?;
            self.out.write_all(&short.to_le_bytes())
        } else if let Ok(int) = i32::try_from(value) {
            self.out.write_all(b"J")?;
            self.out.write_all(&int.to_le_bytes())
        } else {
            // Bits of the magnitude plus the sign, in whole bytes.
            let magnitude = if value < 0 { !value } else { value };
            let bytes = (128 - magnitude.leading_zeros()) as usize / 8 + 1;
            self.out.write_all(&[0x8a, bytes as u8])?;
            self.out.write_all(&value.to_le_bytes()[..bytes])
        }
    }
}

impl<W: Write> Encoder for Pickle<W> {
    fn begin_dict(&mut self) -> io::Result<()> {
        self.begin(b'}')
    }

    fn end_dict(&mut self) -> io::Result<()> {
        self.end(b'u')
    }

    fn begin_list(&mut self) -> io::Result<()> {
        self.begin(b']')
    }

    fn end_list(&mut self) -> io::Result<()> {
        self.end(b'e')
    }

    fn key(&mut self, key: &str) -> io::Result<()> {
        self.str(key)
    }

    fn str(&mut self, value: &str) -> io::Result<()> {
        self.item()?;
        self.text(value)
    }

    fn int(&mut self, value: i128) -> io::Result<()> {
        self.item()?;
        self.number(value)
    }

    fn float(&mut self, value: f64) -> io::Result<()> {
        self.item()?;
        self.out.write_all(b"G")?;
        self.out.write_all(&value.to_be_bytes())
    }

    fn bool(&mut self, value: bool) -> io::Result<()> {
        self.item()?;
        self.out.write_all(&[if value { 0x88 } else { 0x89 }])
    }

    fn pair(&mut self, a: u64, b: u64) -> io::Result<()> {
        self.item()?;
        self.number(a.into())?;
        self.number(b.into())?;
        self.out.write_all(&[0x86])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pickled(value: impl FnOnce(&mut Pickle<BufWriter<&mut Vec<u8>>>) -> io::Result<()>) -> String {
        let mut bytes = Vec::new();
        write(&mut bytes, value).unwrap();
        bytes.iter().map(|b| format!("{b:02x}")).collect::<Vec<_>>().join(" ")
    }

    /// The check value of [spec 12.5]. Its hexadecimal text ends in `5d 75 65 2e`, which Python refuses ("odd number
    /// of items for SETITEMS"); the sentence below it has the right order, `5d 65 75 2e`.
    #[test]
    fn check_value_of_the_specification() {
        let bytes = pickled(|e| {
            e.begin_dict()?;
            e.key("segments")?;
            e.begin_list()?;
            e.begin_dict()?;
            e.key_int("device", 0)?;
            e.key_int("address", 139_637_976_727_552_u64)?;
            e.key("segment_pool_id")?;
            e.pair(0, 0)?;
            e.key_bool("is_expandable", false)?;
            e.key_int("x", -1)?;
            e.key("f")?;
            e.float(0.0)?;
            e.key("blocks")?;
            e.begin_list()?;
            e.end_list()?;
            e.end_dict()?;
            e.end_list()?;
            e.key("device_traces")?;
            e.begin_list()?;
            e.begin_list()?;
            e.end_list()?;
            e.end_list()?;
            e.end_dict()
        });
        let expected = "80 02 7d 28 58 08 00 00 00 73 65 67 6d 65 6e 74 73 5d 28 7d 28 58 06 00 00 00 64 65 76 69 63 65 4b 00 \
            58 07 00 00 00 61 64 64 72 65 73 73 8a 06 00 00 00 00 00 7f 58 0f 00 00 00 73 65 67 6d 65 6e 74 5f 70 \
            6f 6f 6c 5f 69 64 4b 00 4b 00 86 58 0d 00 00 00 69 73 5f 65 78 70 61 6e 64 61 62 6c 65 89 58 01 00 00 \
            00 78 4a ff ff ff ff 58 01 00 00 00 66 47 00 00 00 00 00 00 00 00 58 06 00 00 00 62 6c 6f 63 6b 73 5d \
            75 65 58 0d 00 00 00 64 65 76 69 63 65 5f 74 72 61 63 65 73 5d 28 5d 65 75 2e";
        assert_eq!(bytes, expected);
    }

    #[test]
    fn integers_take_the_shortest_form() {
        let int = |v: i128| pickled(|e| e.int(v))[6..].trim_end_matches(" 2e").to_owned();
        assert_eq!(int(0), "4b 00");
        assert_eq!(int(255), "4b ff");
        assert_eq!(int(256), "4d 00 01");
        assert_eq!(int(65_536), "4a 00 00 01 00");
        assert_eq!(int(-1), "4a ff ff ff ff");
        assert_eq!(int(i128::from(i32::MIN)), "4a 00 00 00 80");
        assert_eq!(int(1 << 31), "8a 05 00 00 00 80 00");
        assert_eq!(int((1 << 39) - 1), "8a 05 ff ff ff ff 7f");
        assert_eq!(int(-(1 << 39)), "8a 05 00 00 00 00 80");
        assert_eq!(int(i128::from(u64::MAX)), "8a 09 ff ff ff ff ff ff ff ff 00");
    }
}
