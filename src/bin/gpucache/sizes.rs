//! Sizes as people write them.

/// Reads `1073741824`, `512K`, `8.6G`, `8.6GiB` (binary units) as bytes.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    let wrong = || {
        format!("'{text}' is not a size: give bytes, or a number with K, M, G or T (binary), such as 8.6G")
    };
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let shift = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err(wrong()),
    };
    let bytes = number.parse::<f64>().map_err(|_| wrong())? * 2_f64.powi(shift);
    if bytes < 1.0 || bytes >= 2_f64.powi(63) {
        return Err(format!("'{text}' is out of range"));
    }
    Ok(bytes as u64)
}

/// `bytes` with two decimals and the largest fitting unit.
pub(crate) fn show(bytes: i64) -> String {
    let units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} bytes") } else { format!("{value:.2} {}", units[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_as_written() {
        for (text, bytes) in [("512", 512), ("2M", 2 << 20), ("1.5GiB", 3 << 29), ("1 t", 1 << 40)] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for text in ["", "G", "-1", "1X", "1e9", "0", "99999999999T"] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert_eq!((show(512), show(3 << 29)), ("512 bytes".to_owned(), "1.50 GiB".to_owned()));
    }
}
