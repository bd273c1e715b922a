//! What `--query-gpu` and `--query-compute-apps` can ask for, in nvidia-smi's names and gpucache's own.

use crate::machine::{Figures, Gpu, Machine, Process};

/// One column.
pub(super) struct Field<T> {
    pub(super) name: &'static str,
    /// What nvidia-smi calls it too.
    alias: Option<&'static str>,
    pub(super) unit: Option<&'static str>,
    /// The value without its unit; `None`: not known.
    pub(super) value: fn(&T) -> Option<String>,
}

/// A GPU with what is known of the machine.
pub(super) type GpuRow<'a> = (&'a Machine, &'a Gpu);
/// A process with its GPU.
pub(super) type AppRow<'a> = (&'a Gpu, &'a Process);

const MIB: Option<&str> = Some("MiB");

/// As nvidia-smi: rounded down.
fn mib(bytes: u64) -> String {
    (bytes >> 20).to_string()
}

fn of_gpu(row: &GpuRow<'_>, figure: fn(&Figures) -> u64) -> Option<u64> {
    row.1.exported().as_ref().map(figure)
}

fn of_app(row: &AppRow<'_>, figure: fn(&Figures) -> u64) -> Option<u64> {
    row.1.gpucache.as_ref().map(figure)
}

macro_rules! field {
    ($name:literal, $unit:expr, $value:expr) => {
        Field { name: $name, alias: None, unit: $unit, value: $value }
    };
    ($name:literal | $alias:literal, $unit:expr, $value:expr) => {
        Field { name: $name, alias: Some($alias), unit: $unit, value: $value }
    };
}

pub(super) fn of_gpus<'a>() -> Vec<Field<GpuRow<'a>>> {
    vec![
        field!("index", None, |row| Some(row.1.index.to_string())),
        field!("uuid" | "gpu_uuid", None, |row| row.1.uuid.clone()),
        field!("name" | "gpu_name", None, |row| Some(row.1.name.clone())),
        field!("driver_version", None, |row| row.0.driver_version.clone()),
        field!("memory.total", MIB, |row| Some(mib(row.1.memory_total))),
        field!("memory.used", MIB, |row| row.1.memory_used.map(mib)),
        field!("memory.free", MIB, |row| row.1.memory_free.map(mib)),
        field!("utilization.gpu", Some("%"), |row| row.1.utilization.map(|percent| percent.to_string())),
        field!("temperature.gpu", None, |row| row.1.temperature.map(|degrees| degrees.to_string())),
        field!("power.draw", Some("W"), |row| row.1.power.map(|watts| format!("{watts:.2}"))),
        field!("gpucache.allocated", MIB, |row| of_gpu(row, |f| f.allocated).map(mib)),
        field!("gpucache.max_allocated", MIB, |row| of_gpu(row, |f| f.max_allocated).map(mib)),
        field!("gpucache.reserved", MIB, |row| of_gpu(row, |f| f.reserved).map(mib)),
        field!("gpucache.max_reserved", MIB, |row| of_gpu(row, |f| f.max_reserved).map(mib)),
        field!("gpucache.inactive_split", MIB, |row| of_gpu(row, |f| f.inactive_split).map(mib)),
        field!("gpucache.allocators", None, |row| of_gpu(row, |f| f.allocators).map(|n| n.to_string())),
    ]
}

pub(super) fn of_apps<'a>() -> Vec<Field<AppRow<'a>>> {
    vec![
        field!("gpu_name", None, |row| Some(row.0.name.clone())),
        field!("gpu_uuid", None, |row| row.0.uuid.clone()),
        field!("gpu_index", None, |row| Some(row.0.index.to_string())),
        field!("pid", None, |row| Some(row.1.pid.to_string())),
        field!("process_name" | "name", None, |row| Some(row.1.name.clone())),
        field!("used_gpu_memory" | "used_memory", MIB, |row| row.1.used_memory.map(mib)),
        field!("gpucache.allocated", MIB, |row| of_app(row, |f| f.allocated).map(mib)),
        field!("gpucache.max_allocated", MIB, |row| of_app(row, |f| f.max_allocated).map(mib)),
        field!("gpucache.reserved", MIB, |row| of_app(row, |f| f.reserved).map(mib)),
        field!("gpucache.max_reserved", MIB, |row| of_app(row, |f| f.max_reserved).map(mib)),
        field!("gpucache.inactive_split", MIB, |row| of_app(row, |f| f.inactive_split).map(mib)),
        field!("gpucache.allowed", MIB, |row| of_app(row, |f| f.allowed).map(mib)),
        field!("gpucache.num_alloc_retries", None, |row| of_app(row, |f| f.num_alloc_retries)
            .map(|n| n.to_string())),
        field!("gpucache.num_ooms", None, |row| of_app(row, |f| f.num_ooms).map(|n| n.to_string())),
    ]
}

/// The named fields in the order asked for.
pub(super) fn choose<T>(known: &[Field<T>], names: &[String]) -> Result<Vec<Field<T>>, String> {
    let find = |name: &String| {
        let name = name.trim();
        let is = |field: &&Field<T>| field.name == name || field.alias == Some(name);
        let field = known.iter().find(is).ok_or_else(|| {
            let all: Vec<&str> = known.iter().map(|field| field.name).collect();
            format!("'{name}' is not a field that can be asked for; there are: {}", all.join(", "))
        })?;
        Ok(Field { ..*field })
    };
    names.iter().map(find).collect()
}

/// How `--format` wants it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Format {
    pub(super) no_header: bool,
    pub(super) no_units: bool,
}

impl std::str::FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut format = Format::default();
        let mut csv = false;
        for word in text.split(',') {
            match word.trim() {
                "csv" => csv = true,
                "noheader" => format.no_header = true,
                "nounits" => format.no_units = true,
                other => return Err(format!("'{other}' is no format: write csv[,noheader][,nounits]")),
            }
        }
        if csv { Ok(format) } else { Err("only csv is known: write csv[,noheader][,nounits]".to_owned()) }
    }
}

/// nvidia-smi's csv: a comma and a blank between the values, no quotes.
pub(super) fn csv<T>(fields: &[Field<T>], rows: &[T], format: Format) -> String {
    let mut lines = Vec::new();
    if !format.no_header {
        let head = |field: &Field<T>| match field.unit {
            Some(unit) => format!("{} [{unit}]", field.name),
            _ => field.name.to_owned(),
        };
        lines.push(fields.iter().map(head).collect::<Vec<_>>().join(", "));
    }
    for row in rows {
        let cell = |field: &Field<T>| match ((field.value)(row), field.unit) {
            (None, _) => "[N/A]".to_owned(),
            (Some(value), Some(unit)) if !format.no_units => format!("{value} {unit}"),
            (Some(value), _) => value,
        };
        lines.push(fields.iter().map(cell).collect::<Vec<_>>().join(", "));
    }
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::tests::machine;

    fn names(text: &str) -> Vec<String> {
        text.split(',').map(str::to_owned).collect()
    }

    #[test]
    fn csv_is_nvidia_smis() {
        let machine = machine();
        let rows: Vec<GpuRow<'_>> = machine.gpus.iter().map(|gpu| (&machine, gpu)).collect();
        let fields =
            choose(&of_gpus(), &names("index, gpu_name,memory.used,power.draw,gpucache.reserved")).unwrap();
        let text = csv(&fields, &rows, Format::default());
        let expected = "index, name, memory.used [MiB], power.draw [W], gpucache.reserved [MiB]\n\
                        0, NVIDIA H200, 20480 MiB, 512.50 W, 4096 MiB\n";
        assert_eq!(text, expected);
        let bare = csv(&fields, &rows, "csv,noheader,nounits".parse().unwrap());
        assert_eq!(bare, "0, NVIDIA H200, 20480, 512.50, 4096\n");
    }

    #[test]
    fn processes_that_do_not_export_have_no_figures() {
        let machine = machine();
        let rows: Vec<AppRow<'_>> = machine.gpus[0].processes.iter().map(|p| (&machine.gpus[0], p)).collect();
        let fields = choose(&of_apps(), &names("pid,name,used_memory,gpucache.max_reserved")).unwrap();
        let text = csv(&fields, &rows, "csv, noheader".parse().unwrap());
        assert_eq!(text, "7, python, 5120 MiB, 6144 MiB\n9, other, 14336 MiB, [N/A]\n");
    }

    #[test]
    fn every_name_is_unique_and_wrong_ones_are_refused() {
        let mut all: Vec<&str> = of_apps().iter().flat_map(|f| [Some(f.name), f.alias]).flatten().collect();
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
        let error = choose(&of_gpus(), &names("index,quack")).err().unwrap();
        assert!(error.starts_with("'quack' is not a field") && error.contains("memory.used"), "{error}");
        for text in ["", "json", "noheader", "csv,quiet"] {
            assert!(text.parse::<Format>().is_err(), "{text}");
        }
    }
}
