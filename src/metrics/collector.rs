//! OpenMetrics text through prometheus-client.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use super::families::{Family, Kind, Number, families};
use super::figures::Figures;
use crate::Allocator;
use crate::allocator::WeakAllocator;

/// Gives allocators to a prometheus-client `Registry`: each scrape reads them anew.
///
/// One collector for all allocators of a registry, because a name may come only once in a scrape. It does not keep
/// them alive: one whose last handle is gone is left out.
#[derive(Debug, Clone)]
pub struct AllocatorCollector {
    allocators: Vec<WeakAllocator>,
    ages: bool,
}

impl AllocatorCollector {
    /// A collector of these allocators.
    pub fn new<'a>(allocators: impl IntoIterator<Item = &'a Allocator>) -> Self {
        let allocators = allocators.into_iter().map(Allocator::downgrade).collect();
        AllocatorCollector { allocators, ages: false }
    }

    /// Also the ages of blocks, at the price that [`Figures::with_ages`] tells.
    #[must_use]
    pub fn with_ages(mut self) -> Self {
        self.ages = true;
        self
    }

    fn read(&self) -> Vec<Figures> {
        let alive = self.allocators.iter().filter_map(WeakAllocator::upgrade);
        alive.map(|a| if self.ages { Figures::with_ages(&a) } else { Figures::of(&a) }).collect()
    }
}

impl Collector for AllocatorCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for family in families(&self.read()) {
            let kind = match family.kind {
                Kind::Gauge => MetricType::Gauge,
                Kind::Counter => MetricType::Counter,
            };
            encode_family(&family, encoder.encode_descriptor(&family.name, &family.help, None, kind)?)?;
        }
        Ok(())
    }
}

fn encode_family(family: &Family, mut encoder: MetricEncoder<'_>) -> fmt::Result {
    for sample in &family.samples {
        let labels: Vec<(&str, &str)> =
            sample.labels.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let encoder = encoder.encode_family(&labels)?;
        match (family.kind, sample.number) {
            (Kind::Gauge, Number::Integer(value)) => ConstGauge::new(value).encode(encoder),
            (Kind::Gauge, Number::Real(value)) => ConstGauge::new(value).encode(encoder),
            (Kind::Counter, Number::Integer(value)) => {
                ConstCounter::new(u64::try_from(value).unwrap_or(0)).encode(encoder)
            }
            (Kind::Counter, Number::Real(value)) => ConstCounter::new(value).encode(encoder),
        }?;
    }
    Ok(())
}

/// The figures as OpenMetrics text, for a program without a registry of its own. To be served as
/// `application/openmetrics-text; version=1.0.0; charset=utf-8`.
///
/// # Errors
/// None today: writing to a string does not fail.
pub fn openmetrics_text(collector: &AllocatorCollector) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(collector.clone()));
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}
