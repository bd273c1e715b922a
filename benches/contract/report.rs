//! The CSV file.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

/// Writes one line per repetition.
pub(crate) struct Csv {
    out: Box<dyn Write>,
    name: String,
}

impl Csv {
    pub(crate) fn create(path: Option<&Path>, name: &str) -> io::Result<Self> {
        let mut out: Box<dyn Write> = match path {
            Some(path) => Box::new(
                File::create(path)
                    .map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display())))?,
            ),
            None => Box::new(io::stdout()),
        };
        writeln!(out, "impl,scenario,case,threads,rep,metric,value")?;
        Ok(Csv { out, name: name.to_owned() })
    }

    pub(crate) fn row(&mut self, cell: Cell<'_>, rep: u32, value: f64) -> io::Result<()> {
        let Cell { scenario, case, threads, metric } = cell;
        writeln!(self.out, "{},{scenario},{case},{threads},{rep},{metric},{value:.3}", self.name)?;
        self.out.flush()
    }
}

/// What a value is of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cell<'a> {
    pub(crate) scenario: &'a str,
    pub(crate) case: &'a str,
    pub(crate) threads: usize,
    pub(crate) metric: &'a str,
}

impl<'a> Cell<'a> {
    pub(crate) fn new(scenario: &'a str, case: &'a str, metric: &'a str) -> Self {
        Cell { scenario, case, threads: 1, metric }
    }
}
