//! Byte counts as text.

/// A text that is not a size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{text}' is not a size: write a number of bytes, or one with K, M, G or T (powers of 1024), like 512M, 1.5GiB"
)]
pub struct ParseSizeError {
    text: String,
}

/// PyTorch's text for a byte count: two decimals and bytes, KiB, MiB or GiB, the limits inclusive [spec 11.5].
pub fn format_size(bytes: u64) -> String {
    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;
    let (unit, name) = if bytes <= KIB {
        return format!("{bytes} bytes");
    } else if bytes <= MIB {
        (KIB, "KiB")
    } else if bytes <= GIB {
        (MIB, "MiB")
    } else {
        (GIB, "GiB")
    };
    format!("{:.2} {name}", bytes as f64 / unit as f64)
}

/// A short text for lists and pictures: `512 B`, `1.5 MiB`, `140 GiB`. At most one decimal, none from 100 on.
pub fn short_size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = usize::from(value < 99.95);
    let number = format!("{value:.digits$}");
    format!("{} {}", number.strip_suffix(".0").unwrap_or(&number), UNITS[unit])
}

/// A number of things: `1 segment`, `2 segments`.
pub fn count(n: usize, thing: &str) -> String {
    format!("{n} {thing}{}", if n == 1 { "" } else { "s" })
}

/// Reads a size from a command line: `200`, `3M`, `12GiB`, `1.5g`, `7 KB`.
///
/// Units are powers of 1024 however they are written, as in PyTorch's `_mb` options. A fraction of a byte is cut
/// off.
///
/// # Errors
/// The text is no number with a known unit, or the size does not fit 64 bits.
pub fn parse_size(text: &str) -> Result<u64, ParseSizeError> {
    parse(text.trim()).ok_or_else(|| ParseSizeError { text: text.to_owned() })
}

fn parse(text: &str) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let shift = match unit.trim_start().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return None,
    };
    if !number.contains('.') {
        return number.parse::<u64>().ok()?.checked_mul(1 << shift);
    }
    let bytes = number.parse::<f64>().ok()? * (1_u64 << shift) as f64;
    (bytes < 2.0_f64.powi(64)).then_some(bytes as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_sizes_use_the_unit_that_fits() {
        let cases = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1536, "1.5 KiB"),
            ((2 << 20) - 512, "2 MiB"),
            (20 << 20, "20 MiB"),
            (150_109_880_320, "140 GiB"),
        ];
        for (bytes, text) in cases {
            assert_eq!(short_size(bytes), text);
        }
    }

    #[test]
    fn sizes_are_pytorchs() {
        for (bytes, text) in [
            (0, "0 bytes"),
            (1, "1 bytes"),
            (1024, "1024 bytes"),
            (1025, "1.00 KiB"),
            (1536, "1.50 KiB"),
            (1_048_576, "1024.00 KiB"),
            (1_048_577, "1.00 MiB"),
            (2_097_152, "2.00 MiB"),
            (1_073_741_824, "1024.00 MiB"),
            (1_073_741_825, "1.00 GiB"),
            (11 << 30, "11.00 GiB"),
            ((1 << 60) - 1, "1073741824.00 GiB"),
            (u64::MAX, "17179869184.00 GiB"),
        ] {
            assert_eq!(format_size(bytes), text);
        }
    }

    #[test]
    fn sizes_are_read_in_the_usual_spellings() {
        for (text, bytes) in [
            ("200", 200),
            ("200B", 200),
            ("3M", 3 << 20),
            ("12GiB", 12 << 30),
            ("12gb", 12 << 30),
            (" 7 KB ", 7 << 10),
            ("1.5g", 3 << 29),
            (".5M", 1 << 19),
            ("16T", 16 << 40),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn bad_sizes_say_what_to_write() {
        for text in [
            "",
            "M",
            ".",
            "12X",
            "-3M",
            "1e9",
            "1.2.3",
            "99999999999999999999",
            "17179869184G",
            "99999999999.5G",
        ] {
            let error = parse_size(text).unwrap_err().to_string();
            assert!(error.starts_with(&format!("'{text}' is not a size")), "{error}");
        }
    }
}
