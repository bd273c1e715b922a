//! `gpucache top`: a live view of GPUs and of the processes that export their figures.

mod state;
mod view;

use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use crate::CommandResult;
use crate::machine::Machine;
use state::State;

/// A live view of GPUs and of the processes that export their figures
///
/// Keys: up and down select a process, s changes the order, space stops and goes on, q ends. A process exports when
/// it calls Allocator::export or runs with GPUCACHE_EXPORT=1. Without an NVIDIA driver those are shown alone.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Seconds between two readings
    #[arg(long, short, value_name = "SECONDS", default_value = "0.5", value_parser = crate::smi::parse_seconds)]
    interval: Duration,
    /// Print a line of JSON per reading instead, for programs
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> CommandResult {
    if args.json {
        loop {
            writeln!(std::io::stdout(), "{}", serde_json::to_string(&Machine::read())?)?;
            thread::sleep(args.interval);
        }
    }
    if !std::io::stdout().is_terminal() {
        return Err("top needs a terminal: use `gpucache top --json` or `gpucache smi` in a script".into());
    }
    let mut terminal = ratatui::try_init()?;
    let ended = watch(&mut terminal, args.interval);
    ratatui::restore();
    ended?;
    Ok(ExitCode::SUCCESS)
}

fn watch(terminal: &mut DefaultTerminal, interval: Duration) -> std::io::Result<()> {
    let mut state = State::default();
    loop {
        if !state.stopped {
            state.take(Machine::read(), Instant::now());
        }
        let next = Instant::now() + interval;
        loop {
            terminal.draw(|frame| view::draw(frame, &state))?;
            let left = next.saturating_duration_since(Instant::now());
            if left.is_zero() || !event::poll(left)? {
                break;
            }
            if let Event::Key(key) = event::read()?
                && key.kind == KeyEventKind::Press
                && !act(&mut state, key)
            {
                return Ok(());
            }
        }
    }
}

/// `false`: the end.
fn act(state: &mut State, key: KeyEvent) -> bool {
    match key.code {
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return false,
        KeyCode::Char('q') | KeyCode::Esc => return false,
        KeyCode::Up | KeyCode::Char('k') => state.select(-1),
        KeyCode::Down | KeyCode::Char('j') => state.select(1),
        KeyCode::Char('s') => state.next_order(),
        KeyCode::Char(' ') => state.stopped = !state.stopped,
        _ => {}
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys() {
        let mut state = State::default();
        let press = |state: &mut State, code| act(state, KeyEvent::new(code, KeyModifiers::NONE));
        assert!(press(&mut state, KeyCode::Char(' ')) && state.stopped);
        assert!(press(&mut state, KeyCode::Char(' ')) && !state.stopped);
        assert!(press(&mut state, KeyCode::Up) && press(&mut state, KeyCode::Char('x')));
        assert!(!press(&mut state, KeyCode::Char('q')));
        assert!(!press(&mut state, KeyCode::Esc));
        assert!(!act(&mut state, KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)));
    }
}
