//! The figures for the recorder that the program installed behind the `metrics` crate.

use metrics::{Label, counter, describe_counter, describe_gauge, gauge};

use super::families::{Kind, Number, families};
use super::figures::Figures;

/// Sets every figure at the installed recorder; without one nothing happens. To be called as often as the figures
/// should be fresh. The names are those of the OpenMetrics text (a recorder adds `_total` by itself where its format
/// wants it).
pub fn publish(figures: &[Figures]) {
    for family in families(figures) {
        match family.kind {
            Kind::Gauge => describe_gauge!(family.name.clone(), family.help.clone()),
            Kind::Counter => describe_counter!(family.name.clone(), family.help.clone()),
        }
        for sample in family.samples {
            let labels: Vec<Label> =
                sample.labels.into_iter().map(|(name, value)| Label::new(name, value)).collect();
            let value = match sample.number {
                Number::Integer(value) => value as f64,
                Number::Real(value) => value,
            };
            match family.kind {
                Kind::Gauge => gauge!(family.name.clone(), labels).set(value),
                Kind::Counter => counter!(family.name.clone(), labels).absolute(value as u64),
            }
        }
    }
}
