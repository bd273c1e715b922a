//! The table for people.

use crate::machine::{Gpu, Machine, Process};
use crate::style::{BAD, FAINT, HEAD, paint};

/// Two tables, as nvidia-smi has them: GPUs and processes.
pub(super) fn table(machine: &Machine) -> String {
    let mut lines = Vec::new();
    match (&machine.driver_version, &machine.nvml_error) {
        (Some(driver), _) => {
            let cuda = machine.cuda_version.as_deref().unwrap_or("?");
            lines.push(format!("Driver {driver}, CUDA {cuda}"));
        }
        (None, Some(error)) => lines.push(format!("No NVML: {error}. Only processes that export are shown.")),
        (None, None) => {}
    }
    lines.push(String::new());
    lines.push(paint(
        HEAD,
        &format!(
            "{:<4} {:<28} {:>27} {:>5} {:>5} {:>7}",
            "GPU", "name", "memory used / total", "util", "temp", "power"
        ),
    ));
    lines.extend(machine.gpus.iter().map(gpu_line));
    lines.push(String::new());
    let processes: Vec<_> = machine.processes().collect();
    if processes.is_empty() {
        lines.push("No processes.".to_owned());
    } else {
        let head = format!(
            "{:<4} {:>8} {:<20} {:>11} | {:>11} {:>11} {:>11} {:>11} {:>5}",
            "GPU", "PID", "process", "used", "allocated", "peak", "reserved", "peak", "OOM"
        );
        lines.push(paint(HEAD, &head));
        lines.extend(processes.into_iter().map(|(gpu, process)| process_line(gpu, process)));
    }
    lines.join("\n") + "\n"
}

fn gpu_line(gpu: &Gpu) -> String {
    let known = |value: Option<String>| value.unwrap_or_else(|| "N/A".to_owned());
    let simulated = if gpu.simulated { " (simulated)" } else { "" };
    format!(
        "{:<4} {:<28} {:>27} {:>5} {:>5} {:>7}",
        gpu.index,
        cut(&format!("{}{simulated}", gpu.name), 28),
        format!("{} / {}", gpu.memory_used.map_or("N/A".to_owned(), mib), mib(gpu.memory_total)),
        known(gpu.utilization.map(|percent| format!("{percent}%"))),
        known(gpu.temperature.map(|degrees| format!("{degrees}C"))),
        known(gpu.power.map(|watts| format!("{watts:.0}W"))),
    )
}

fn process_line(gpu: &Gpu, process: &Process) -> String {
    let used = process.used_memory.map_or("N/A".to_owned(), mib);
    let head = format!("{:<4} {:>8} {:<20} {used:>11} |", gpu.index, process.pid, cut(&process.name, 20));
    let Some(f) = &process.gpucache else {
        return format!("{head} {}", paint(FAINT, "does not export"));
    };
    let ooms = format!("{:>5}", f.num_ooms);
    let figures =
        [f.allocated, f.max_allocated, f.reserved, f.max_reserved].map(|bytes| format!("{:>11}", mib(bytes)));
    format!("{head} {} {}", figures.join(" "), if f.num_ooms > 0 { paint(BAD, &ooms) } else { ooms })
}

fn mib(bytes: u64) -> String {
    format!("{}MiB", bytes >> 20)
}

fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width - 1).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::tests::machine;

    #[test]
    fn figures_stand_beside_nvmls() {
        let plain = anstream::adapter::strip_str(&table(&machine())).to_string();
        let expected = "\
Driver 570.86, CUDA 12.8

GPU  name                                 memory used / total  util  temp   power
0    NVIDIA H200                          20480MiB / 81920MiB   93%   41C    512W

GPU       PID process                     used |   allocated        peak    reserved        peak   OOM
0           7 python                   5120MiB |     3072MiB     5120MiB     4096MiB     6144MiB     0
0           9 other                   14336MiB | does not export
";
        assert_eq!(plain, expected);
    }

    #[test]
    fn long_names_are_cut() {
        assert_eq!(cut("abcdef", 6), "abcdef");
        assert_eq!(cut("abcdefg", 6), "abcde…");
    }
}
