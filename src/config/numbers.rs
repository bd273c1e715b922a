//! C's text-to-number conversions, which PyTorch applies to option values [spec 15.2]: they read the longest
//! prefix that is a number and ignore the rest, so `200mb` is 200 and `-1` is 2^64 - 1.

/// Why a text is no number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NumberError {
    /// It does not begin with one.
    Missing,
    /// The type cannot hold it.
    OutOfRange,
}

/// C's `strtoull` in base 10: a minus sign wraps around.
pub(super) fn stoull(text: &str) -> Result<u64, NumberError> {
    let (negative, rest) = sign(text);
    let digits = &rest[..digits_len(rest, 10)];
    if digits.is_empty() {
        return Err(NumberError::Missing);
    }
    let value: u64 = digits.parse().map_err(|_| NumberError::OutOfRange)?;
    Ok(if negative { value.wrapping_neg() } else { value })
}

/// C's `strtod`: decimal and hexadecimal numbers, `inf` and `nan`. Like glibc it refuses what rounds to a
/// subnormal.
pub(super) fn stod(text: &str) -> Result<f64, NumberError> {
    let (negative, rest) = sign(text);
    let rest = rest.to_ascii_lowercase();
    let magnitude = if rest.starts_with("inf") {
        f64::INFINITY
    } else if rest.starts_with("nan") {
        f64::NAN
    } else {
        let (value, nonzero) = match rest.strip_prefix("0x") {
            Some(hex) => hexadecimal(hex),
            None => decimal(&rest)?,
        };
        if value.is_infinite() || (nonzero && !value.is_normal()) {
            return Err(NumberError::OutOfRange);
        }
        value
    };
    Ok(if negative { -magnitude } else { magnitude })
}

/// The value of the longest decimal prefix, and whether a digit of its mantissa is not 0.
fn decimal(text: &str) -> Result<(f64, bool), NumberError> {
    let mantissa = mantissa_len(text, 10);
    if !text[..mantissa].contains(|c: char| c.is_ascii_digit()) {
        return Err(NumberError::Missing);
    }
    let end = mantissa + exponent_len(&text[mantissa..], 'e');
    let value = text[..end].parse().map_err(|_| NumberError::Missing)?;
    Ok((value, text[..mantissa].contains(|c: char| c.is_ascii_digit() && c != '0')))
}

/// The same for the text after `0x`. No digits: the number was the `0` before the `x`.
fn hexadecimal(text: &str) -> (f64, bool) {
    let mantissa = &text[..mantissa_len(text, 16)];
    let (mut value, mut scale, mut fraction) = (0.0_f64, 0_i32, false);
    for c in mantissa.chars() {
        match c.to_digit(16) {
            Some(digit) => {
                value = value * 16.0 + f64::from(digit);
                scale = scale.saturating_sub(if fraction { 4 } else { 0 });
            }
            None => fraction = true,
        }
    }
    let tail = &text[mantissa.len()..];
    let power = match exponent_len(tail, 'p') {
        0 => 0,
        // An exponent too long for an i32 is far out of range either way.
        end => tail[1..end].parse().unwrap_or(if tail[1..].starts_with('-') { i32::MIN } else { i32::MAX }),
    };
    (value * 2.0_f64.powi(scale.saturating_add(power)), value != 0.0)
}

fn sign(text: &str) -> (bool, &str) {
    match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    }
}

fn digits_len(text: &str, radix: u32) -> usize {
    text.find(|c: char| !c.is_digit(radix)).unwrap_or(text.len())
}

/// Length of `digits[.digits]`.
fn mantissa_len(text: &str, radix: u32) -> usize {
    let whole = digits_len(text, radix);
    match text[whole..].strip_prefix('.') {
        Some(rest) => whole + 1 + digits_len(rest, radix),
        None => whole,
    }
}

/// Length of `e[sign]digits`, 0 if that is not what follows.
fn exponent_len(text: &str, letter: char) -> usize {
    let Some(rest) = text.strip_prefix(letter) else { return 0 };
    let signed = usize::from(rest.starts_with(['+', '-']));
    match digits_len(&rest[signed..], 10) {
        0 => 0,
        digits => 1 + signed + digits,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Every line was answered by PyTorch 2.11.0.
    #[test]
    fn stoull_reads_prefixes_like_c() {
        for (text, value) in [
            ("200mb", Ok(200)),
            ("-1", Ok(u64::MAX)),
            ("+30", Ok(30)),
            ("0x40", Ok(0)),
            ("-18446744073709551615", Ok(1)),
            ("-18446744073709551616", Err(NumberError::OutOfRange)),
            ("99999999999999999999", Err(NumberError::OutOfRange)),
            ("abc", Err(NumberError::Missing)),
            ("+-5", Err(NumberError::Missing)),
            ("", Err(NumberError::Missing)),
        ] {
            assert_eq!(stoull(text), value, "{text}");
        }
    }

    #[test]
    fn stod_reads_prefixes_like_c() {
        for (text, value) in [
            (".5x", Ok(0.5)),
            ("+.5", Ok(0.5)),
            ("5.e-1", Ok(0.5)),
            ("5e-1e", Ok(0.5)),
            ("1e-", Ok(1.0)),
            ("0x1p-1", Ok(0.5)),
            ("0x.8", Ok(0.5)),
            ("0x", Ok(0.0)),
            ("-.5", Ok(-0.5)),
            ("infinity", Ok(f64::INFINITY)),
            ("0e-999", Ok(0.0)),
            ("1e400", Err(NumberError::OutOfRange)),
            ("1e-400", Err(NumberError::OutOfRange)),
            ("1e-310", Err(NumberError::OutOfRange)),
            ("0x1p99999999999", Err(NumberError::OutOfRange)),
            (".", Err(NumberError::Missing)),
            ("abc", Err(NumberError::Missing)),
        ] {
            assert_eq!(stod(text), value, "{text}");
        }
        assert!(stod("nan").is_ok_and(f64::is_nan));
    }
}
