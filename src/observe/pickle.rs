//! Python's pickle, protocol 2, with the opcodes that PyTorch's web viewer knows and no memo [spec 12.5].

use std::io::{self, BufWriter, Write};

use super::encode::Encoder;

const MARK: u8 = b'(';

/// The values between a mark and its `APPENDS` or `SETITEMS`, as in Python: the web viewer passes them all as arguments
/// of one call, which fails for some 100,000. Even, so that a key is never cut from its value.
const BATCH: usize = 1000;

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
    open: Vec<Container>,
}

struct Container {
    /// The opcode that moves the values since the mark into the container.
    fill: u8,
    /// How many values there are since the mark; 0: no mark yet.
    marked: usize,
}

impl<W: Write> Pickle<W> {
    fn begin(&mut self, empty: u8, fill: u8) -> io::Result<()> {
        self.item()?;
        self.open.push(Container { fill, marked: 0 });
        self.out.write_all(&[empty])
    }

    fn end(&mut self) -> io::Result<()> {
        match self.open.pop() {
            Some(Container { fill, marked: 1.. }) => self.out.write_all(&[fill]),
            _ => Ok(()),
        }
    }

    /// Something comes into the innermost container.
    fn item(&mut self) -> io::Result<()> {
        let Some(container) = self.open.last_mut() else { return Ok(()) };
        if container.marked == BATCH {
            self.out.write_all(&[container.fill])?;
            container.marked = 0;
        }
        container.marked += 1;
        if container.marked == 1 { self.out.write_all(&[MARK]) } else { Ok(()) }
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
        self.begin(b'}', b'u')
    }

    fn end_dict(&mut self) -> io::Result<()> {
        self.end()
    }

    fn begin_list(&mut self) -> io::Result<()> {
        self.begin(b']', b'e')
    }

    fn end_list(&mut self) -> io::Result<()> {
        self.end()
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

    #[test]
    fn long_containers_are_filled_in_batches() {
        let fills = |bytes: &str, fill: &str| bytes.split(' ').filter(|b| *b == fill).count();
        for (items, batches) in [(999, 1), (1000, 1), (1001, 2), (2500, 3)] {
            let list = pickled(|e| {
                e.begin_list()?;
                (0..items).try_for_each(|_| e.int(0))?;
                e.end_list()
            });
            assert_eq!((fills(&list, "28"), fills(&list, "65")), (batches, batches), "{items} items");
        }
        // A key and its value stay together: the second batch starts with the key.
        let dict = pickled(|e| {
            e.begin_dict()?;
            (0..501).try_for_each(|_| e.key_int("k", 7))?;
            e.end_dict()
        });
        assert!(dict.ends_with("4b 07 75 28 58 01 00 00 00 6b 4b 07 75 2e"), "{dict}");
    }
}
