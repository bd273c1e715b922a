//! How `top` looks.

use gpucache::units::format_size;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Cell, Paragraph, Row, Sparkline, Table, TableState};

use super::state::{Key, State, key};
use crate::machine::{Gpu, Process};

const ALLOCATED: Color = Color::Green;
const CACHED: Color = Color::Yellow;
const OTHERS: Color = Color::DarkGray;

pub(super) fn draw(frame: &mut Frame<'_>, state: &State) {
    let gpu_lines = 2 * state.machine.gpus.len().max(1) as u16;
    let layout = Layout::vertical([
        Constraint::Length(1),
        Constraint::Max(gpu_lines),
        Constraint::Length(1),
        Constraint::Min(4),
        Constraint::Max(7),
        Constraint::Length(1),
    ]);
    let [title, gpus, gap, table, curve, keys] = layout.areas(frame.area());
    frame.render_widget(title_line(state), title);
    draw_gpus(frame, state, gpus);
    frame.render_widget(legend(), gap);
    draw_table(frame, state, table);
    draw_curve(frame, state, curve);
    let order = state.order.name();
    let stopped = if state.stopped { "  stopped" } else { "" };
    let keys_text = format!("q end  ↑↓ select  s order: {order}  space stop{stopped}");
    frame.render_widget(Line::from(keys_text).dim(), keys);
}

fn title_line(state: &State) -> Line<'static> {
    let machine = &state.machine;
    let driver = match (&machine.driver_version, &machine.nvml_error) {
        (Some(version), _) => {
            format!("driver {version}, CUDA {}", machine.cuda_version.as_deref().unwrap_or("?"))
        }
        (None, Some(_)) => "no NVML: only exporting processes are shown".to_owned(),
        (None, None) => String::new(),
    };
    Line::from(vec!["gpucache top".bold(), Span::raw("  "), Span::raw(driver).dim()])
}

fn legend() -> Line<'static> {
    let item = |color, text: &'static str| [Span::styled("█", color), Span::raw(text).dim()];
    let items = [item(ALLOCATED, " allocated  "), item(CACHED, " cached  "), item(OTHERS, " other use")];
    Line::from(items.into_iter().flatten().collect::<Vec<_>>())
}

fn draw_gpus(frame: &mut Frame<'_>, state: &State, area: Rect) {
    if state.machine.gpus.is_empty() {
        let text = "No GPU, and no process exports. Start one with GPUCACHE_EXPORT=1.";
        frame.render_widget(Paragraph::new(text), area);
        return;
    }
    let width = usize::from(area.width);
    let lines: Vec<Line<'_>> =
        state.machine.gpus.iter().flat_map(|gpu| [gpu_text(gpu), gpu_bar(gpu, width)]).collect();
    frame.render_widget(Paragraph::new(lines), area);
}

fn gpu_text(gpu: &Gpu) -> Line<'static> {
    let mut text = vec![format!("GPU {} {}", gpu.index, gpu.name).bold()];
    if gpu.simulated {
        text.push(" (simulated)".into());
    }
    let used = gpu.memory_used.map_or("?".to_owned(), format_size);
    text.push(format!("  {used} of {} used", format_size(gpu.memory_total)).into());
    if let Some(figures) = gpu.exported() {
        let (allocated, reserved) = (format_size(figures.allocated), format_size(figures.reserved));
        text.push(format!("  allocated {allocated}, reserved {reserved}").into());
    }
    text.extend(gpu.utilization.map(|percent| format!("  {percent} %").into()));
    text.extend(gpu.temperature.map(|degrees| format!("  {degrees} °C").into()));
    text.extend(gpu.power.map(|watts| format!("  {watts:.0} W").into()));
    Line::from(text)
}

/// The device's memory as a bar: allocated, cached, in other use, free.
fn gpu_bar(gpu: &Gpu, width: usize) -> Line<'static> {
    let figures = gpu.exported().unwrap_or_default();
    let total = gpu.memory_total.max(1) as f64;
    // Ends of the parts, so that rounding leaves no gap.
    let end = |bytes: u64| ((bytes as f64 / total * width as f64).round() as usize).min(width);
    let allocated = end(figures.allocated);
    let reserved = end(figures.reserved).max(allocated);
    let used = end(gpu.memory_used.unwrap_or(0)).max(reserved);
    let part = |from: usize, to: usize, color| Span::styled("█".repeat(to - from), color);
    Line::from(vec![
        part(0, allocated, ALLOCATED),
        part(allocated, reserved, CACHED),
        part(reserved, used, OTHERS),
        Span::raw("░".repeat(width - used)).fg(OTHERS),
    ])
}

fn draw_table(frame: &mut Frame<'_>, state: &State, area: Rect) {
    let rows = state.rows();
    let at = rows.iter().position(|(gpu, process)| Some(&key(gpu, process)) == state.selected.as_ref());
    let head = [
        "GPU",
        "PID",
        "process",
        "NVML",
        "allocated",
        "peak",
        "reserved",
        "peak",
        "cached",
        "allocs/s",
        "retries",
        "OOM",
    ];
    let right = |text: &str| Line::from(text.to_owned()).right_aligned();
    let cells =
        head.iter().enumerate().map(|(at, text)| if at < 3 { Line::from(*text) } else { right(text) });
    let widths = [3, 8, 16, 11, 11, 11, 11, 11, 8, 9, 7, 4].map(Constraint::Length);
    let table = Table::new(rows.iter().map(|(gpu, process)| row(state, gpu, process)), widths)
        .header(Row::new(cells).style(Modifier::BOLD))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    frame.render_stateful_widget(table, area, &mut TableState::new().with_selected(at));
}

fn row(state: &State, gpu: &Gpu, process: &Process) -> Row<'static> {
    let right = |text: String| Cell::from(Line::from(text).right_aligned());
    let mut cells = vec![
        Cell::from(gpu.index.to_string()),
        Cell::from(process.pid.to_string()),
        Cell::from(process.name.clone()),
        right(process.used_memory.map_or("-".to_owned(), format_size)),
    ];
    if let Some(f) = &process.gpucache {
        cells.extend(
            [f.allocated, f.max_allocated, f.reserved, f.max_reserved].map(|bytes| right(format_size(bytes))),
        );
        let cached = f.reserved.saturating_sub(f.allocated) as f64 / f.reserved.max(1) as f64;
        cells.push(right(format!("{:.1} %", cached * 100.0)));
        let rate = state.tracks.get(&key(gpu, process)).and_then(|track| track.rate);
        cells.push(right(rate.map_or("-".to_owned(), |rate| format!("{rate:.0}"))));
        cells.push(right(f.num_alloc_retries.to_string()));
        let ooms = right(f.num_ooms.to_string());
        cells.push(if f.num_ooms > 0 { ooms.fg(Color::Red) } else { ooms });
    }
    Row::new(cells)
}

fn draw_curve(frame: &mut Frame<'_>, state: &State, area: Rect) {
    let Some((key, track)) = selected(state) else { return };
    let width = usize::from(area.width);
    let newest = track.reserved.len().saturating_sub(width);
    let values: Vec<u64> = track.reserved.iter().skip(newest).copied().collect();
    let top = values.iter().max().copied().unwrap_or(0);
    let title = format!(" process {}: held memory, at most {} ", key.1, format_size(top));
    let block = Block::new().borders(ratatui::widgets::Borders::TOP).title(title);
    frame.render_widget(Sparkline::default().block(block).data(values).max(top.max(1)).fg(CACHED), area);
}

fn selected(state: &State) -> Option<(&Key, &super::state::Track)> {
    state.tracks.get_key_value(state.selected.as_ref()?)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::machine::Machine;
    use crate::machine::tests::machine;

    fn screen(state: &State, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, state)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn gpus_processes_and_a_curve() {
        let mut state = State::default();
        let start = Instant::now();
        state.take(machine(), start);
        state.take(machine(), start + Duration::from_secs(1));
        state.select(1);
        let text = screen(&state, 140, 20);
        for part in [
            "gpucache top  driver 570.86, CUDA 12.8",
            "GPU 0 NVIDIA H200  20.00 GiB of 80.00 GiB used  allocated 3.00 GiB, reserved 4.00 GiB  93 %  41 °C  512 W",
            "7        python              5.00 GiB    3.00 GiB    5.00 GiB    4.00 GiB    6.00 GiB   25.0 %         0       0    0",
            "9        other              14.00 GiB",
            "process 7: held memory, at most 4.00 GiB",
            "s order: reserved",
        ] {
            assert!(text.contains(part), "no '{part}' in\n{text}");
        }
    }

    /// 80 columns for 80 GiB: 3 allocated, 1 cached, 16 in other use.
    #[test]
    fn the_bar_is_to_scale() {
        let mut gpu = machine().gpus.remove(0);
        let lengths = |gpu: &Gpu| -> Vec<usize> {
            gpu_bar(gpu, 80).spans.iter().map(|s| s.content.chars().count()).collect()
        };
        assert_eq!(lengths(&gpu), [3, 1, 16, 60]);
        gpu.memory_used = None;
        assert_eq!(lengths(&gpu), [3, 1, 0, 76]);
        gpu.memory_total = 1;
        assert_eq!(lengths(&gpu), [80, 0, 0, 0]);
    }

    #[test]
    fn nothing_to_show_and_no_room() {
        let mut state = State::default();
        let machine = Machine { nvml_error: Some("no library".into()), ..Machine::default() };
        state.take(machine, Instant::now());
        let text = screen(&state, 80, 12);
        assert!(text.contains("no NVML") && text.contains("GPUCACHE_EXPORT=1"), "{text}");
        state.take(super::tests::machine(), Instant::now());
        for (width, height) in [(1, 1), (10, 3), (40, 6)] {
            screen(&state, width, height);
        }
    }
}
