//! Serves an allocator's figures to Prometheus, while some work goes on.
//!
//! `cargo run --release --example metrics_http --features metrics -- 127.0.0.1:9400`, then
//! `curl http://127.0.0.1:9400/metrics`, or in Prometheus' configuration:
//!
//! ```yaml
//! scrape_configs:
//!   - job_name: gpucache
//!     static_configs: [{targets: ["127.0.0.1:9400"]}]
//! ```
//!
//! The server is the smallest that a scraper accepts; a program with an HTTP server of its own adds a route instead.

use std::collections::VecDeque;
use std::env;
use std::error::Error;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use gpucache::metrics::{AllocatorCollector, openmetrics_text};
use gpucache::{Allocator, HistoryOptions};

const TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

fn main() -> Result<(), Box<dyn Error>> {
    let address = env::args().nth(1).unwrap_or_else(|| "127.0.0.1:9400".to_owned());
    let listener = TcpListener::bind(&address).map_err(|e| format!("{address}: {e}"))?;
    println!("http://{}/metrics", listener.local_addr()?);

    let gpu = Allocator::cuda_or_simulated(0);
    // Only the ages of blocks need a history. It may be short: what it forgot has no age.
    gpu.record_memory_history(Some(HistoryOptions::with_max_entries(10_000)));
    let collector = AllocatorCollector::new([&gpu]).with_ages();
    thread::spawn(move || work(&gpu));
    for connection in listener.incoming() {
        // A client that went away is not this program's trouble.
        if let Err(error) = connection.and_then(|stream| answer(&stream, &collector)) {
            eprintln!("{error}");
        }
    }
    Ok(())
}

/// Answers one request.
pub(crate) fn answer(mut stream: &TcpStream, collector: &AllocatorCollector) -> io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    let mut lines = BufReader::new(stream).lines();
    let request = lines.next().transpose()?.unwrap_or_default();
    for header in lines {
        if header?.is_empty() {
            break;
        }
    }
    let (status, body) = match request.split(' ').nth(1) {
        Some("/metrics") => ("200 OK", openmetrics_text(collector).map_err(io::Error::other)?),
        _ => ("404 Not Found", "the figures are at /metrics\n".to_owned()),
    };
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: {TYPE}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )
}

/// Blocks of many sizes come and go.
fn work(gpu: &Allocator) {
    let mut live = VecDeque::new();
    for step in 1_usize.. {
        let bytes = 1 << (10 + step * 7 % 15);
        live.extend(gpu.alloc(bytes));
        if live.len() > 50 {
            live.pop_front();
        }
        thread::sleep(Duration::from_millis(10));
    }
}
