//! What the checks found: a line for each, and a table at the end.

use std::time::{Duration, Instant};

/// A check's finding; the error says what is wrong.
pub(crate) type Finding = Result<String, Box<dyn std::error::Error>>;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mark {
    Passed,
    Failed,
    Skipped,
}

impl Mark {
    fn word(self) -> &'static str {
        match self {
            Mark::Passed => "ok",
            Mark::Failed => "FAILED",
            Mark::Skipped => "skipped",
        }
    }
}

struct Row {
    name: String,
    mark: Mark,
    time: Duration,
    text: String,
}

#[derive(Default)]
pub(crate) struct Report {
    rows: Vec<Row>,
}

impl Report {
    /// Runs a check and says what came of it.
    pub(crate) fn check(&mut self, name: &str, check: impl FnOnce() -> Finding) {
        let started = Instant::now();
        let (mark, text) = match check() {
            Ok(text) => (Mark::Passed, text),
            Err(error) => (Mark::Failed, error.to_string()),
        };
        self.add(Row { name: name.to_owned(), mark, time: started.elapsed(), text });
    }

    pub(crate) fn skip(&mut self, name: &str, why: &str) {
        self.add(Row {
            name: name.to_owned(),
            mark: Mark::Skipped,
            time: Duration::ZERO,
            text: why.to_owned(),
        });
    }

    fn add(&mut self, row: Row) {
        println!("{:<8} {:<72} {:>8.2} s  {}", row.mark.word(), row.name, row.time.as_secs_f64(), row.text);
        self.rows.push(row);
    }

    /// Prints the table. Whether nothing failed.
    pub(crate) fn finish(&self) -> bool {
        println!("\n| check | result | seconds | what was found |\n|---|---|---:|---|");
        for row in &self.rows {
            let text = row.text.replace('|', "/").replace('\n', " ");
            println!("| {} | {} | {:.2} | {text} |", row.name, row.mark.word(), row.time.as_secs_f64());
        }
        let failed = self.rows.iter().filter(|row| row.mark == Mark::Failed).count();
        println!("\n{} checks, {failed} failed", self.rows.len());
        failed == 0
    }
}
