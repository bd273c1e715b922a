//! A diagnosis as text for people.

use std::fmt;

use super::finding::{Diagnosis, Figure, Finding, Outcome, Value};
use crate::units::format_size as size;

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Value::Bytes(bytes) => f.pad(&size(bytes)),
            Value::Count(count) => f.pad(&count.to_string()),
            Value::BytesPerSecond(rate) => f.pad(&format!("{}/s", size(rate as u64))),
            Value::Seconds(seconds) => f.pad(&format!("{seconds:.3} s")),
        }
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<42} {:>12}", self.name, self.value)
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let alone = match self.sufficient {
            Some(false) if self.cause != super::Cause::TooSmall => "; not enough by itself",
            _ => "",
        };
        writeln!(f, "{} ({}, {}{alone})", self.cause.title(), size(self.bytes), self.confidence.name())?;
        write_wrapped(f, &self.explanation)?;
        for figure in &self.figures {
            writeln!(f, "     {figure}")?;
        }
        for holder in &self.holders {
            writeln!(f, "     {:>12}  {}", size(holder.bytes), holder.what)?;
        }
        write_wrapped(f, &format!("What to do: {}.", self.remedy))
    }
}

/// Words in lines of a readable length, indented; a line break after each.
fn write_wrapped(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    const WIDTH: usize = 100;
    let mut line = String::from("  ");
    for word in text.split_whitespace() {
        if line.len() + 1 + word.len() > WIDTH && line.len() > 2 {
            writeln!(f, "{line}")?;
            line.truncate(2);
        }
        line.push(' ');
        line.push_str(word);
    }
    writeln!(f, "{line}")
}

/// The numbered findings, each with a line break at its end.
pub(crate) fn write_findings(f: &mut impl fmt::Write, findings: &[Finding]) -> fmt::Result {
    for (n, finding) in (1..).zip(findings) {
        write!(f, "{n}. {finding}")?;
    }
    Ok(())
}

impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "GPU {}: {} allocated, {} reserved",
            self.device,
            size(self.allocated),
            size(self.reserved)
        )?;
        if let Some(used) = self.device_used {
            write!(f, ", {} in use on the device", size(used))?;
        }
        writeln!(f)?;
        if let Some(request) = &self.request {
            write!(f, "A request of {} on stream {:#x} ", size(request.bytes), request.stream)?;
            match self.outcome {
                Outcome::Fails => writeln!(f, "fails.")?,
                _ => writeln!(f, "can be served.")?,
            }
        }
        match (self.outcome, self.findings.is_empty()) {
            (Outcome::Fails, true) => f.write_str(
                "By the figures it would fit now: memory came back meanwhile, or the driver could not use what is free.\n",
            ),
            (Outcome::Overview, true) => f.write_str("Nothing remarkable: what is reserved is in use.\n"),
            _ => write_findings(f, &self.findings),
        }
    }
}
