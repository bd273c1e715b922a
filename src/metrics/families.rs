//! Names and labels of the figures.

use super::figures::{Blocks, Figures, PoolFigures, PrivatePool};
use super::histogram::Histogram;
use crate::observe::snapshot::PoolKind;

/// What a family's numbers are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A value that goes up and down.
    Gauge,
    /// A sum that only grows, until `reset_accumulated_memory_stats` starts it anew. Its samples are named with
    /// `_total` behind the family's name.
    Counter,
}

/// One number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Number {
    /// Bytes or pieces.
    Integer(i64),
    /// A ratio.
    Real(f64),
}

/// One number of a family with its labels.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Sample {
    /// Names and values, `device` first.
    pub labels: Vec<(&'static str, String)>,
    /// The number.
    pub number: Number,
}

/// Numbers of one name.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Family {
    /// The name, beginning with `gpucache_`.
    pub name: String,
    /// One sentence without a full stop.
    pub help: String,
    /// What its numbers are.
    pub kind: Kind,
    /// Its numbers.
    pub samples: Vec<Sample>,
}

/// Everything that is exported of these allocators. A family without numbers (no private pools, no history) is left
/// out: not every parser of the text takes it.
pub fn families(all: &[Figures]) -> Vec<Family> {
    let mut list = Families { all, list: Vec::new() };
    list.statistics();
    list.device();
    list.pools();
    list.blocks();
    list.list
}

struct Families<'a> {
    all: &'a [Figures],
    list: Vec<Family>,
}

type Labelled = (Vec<(&'static str, String)>, Number);

impl Families<'_> {
    /// One family; `samples` gives each allocator's numbers with the labels beside `device`.
    fn add(
        &mut self,
        name: &str,
        help: impl Into<String>,
        kind: Kind,
        samples: impl Fn(&Figures) -> Vec<Labelled>,
    ) {
        let of_one = |figures: &Figures| {
            let device = ("device", figures.device.to_string());
            samples(figures).into_iter().map(move |(labels, number)| {
                let labels = [device.clone()].into_iter().chain(labels).collect();
                Sample { labels, number }
            })
        };
        let samples: Vec<Sample> = self.all.iter().flat_map(of_one).collect();
        if samples.is_empty() {
            return;
        }
        self.list.push(Family { name: format!("gpucache_{name}"), help: help.into(), kind, samples });
    }

    /// The 122 of PyTorch and `num_oom_rejections`.
    fn statistics(&mut self) {
        let Some(first) = self.all.first() else { return };
        for (index, (name, array)) in first.stats.arrays().into_iter().enumerate() {
            for (field, _) in array.all.fields() {
                let help = format!("PyTorch's {name}.POOL.{field}");
                self.add(&format!("{name}_{field}"), help, kind_of(field), |figures| {
                    let (_, array) = figures.stats.arrays()[index];
                    array
                        .pools()
                        .map(|(pool, stat)| (pool_label(pool), field_of(stat.fields(), field)))
                        .into()
                });
            }
        }
        for (index, (name, stat)) in first.stats.oversize().into_iter().enumerate() {
            for (field, _) in stat.fields() {
                let help = format!("PyTorch's {name}.{field}");
                self.add(&format!("{name}_{field}"), help, kind_of(field), |figures| {
                    vec![(Vec::new(), field_of(figures.stats.oversize()[index].1.fields(), field))]
                });
            }
        }
        let plain = first.stats.plain().map(|(name, _)| name);
        for name in plain.into_iter().chain(["num_oom_rejections"]) {
            let kind = if name == "max_split_size" { Kind::Gauge } else { Kind::Counter };
            self.add(name, format!("PyTorch's {name}"), kind, |figures| {
                vec![(Vec::new(), Number::Integer(figures.stats.get(name).unwrap_or(0)))]
            });
        }
    }

    fn device(&mut self) {
        self.gauge("device_memory_bytes", "Memory of the device", |f| integer(f.total_memory));
        self.gauge("allowed_memory_bytes", "Bytes that the allocator may reserve", |f| {
            integer(f.allowed_memory)
        });
        let help = "Part of the cached bytes that is not in the largest cached block, 0 to 1";
        self.gauge("fragmentation_ratio", help, |f| Number::Real(f.fragmentation()));
        let help = "Part of the reserved bytes that is active, 0 to 1";
        self.gauge("utilisation_ratio", help, |f| Number::Real(f.utilisation()));
    }

    fn gauge(&mut self, name: &str, help: &str, number: impl Fn(&Figures) -> Number) {
        self.add(name, help, Kind::Gauge, |figures| vec![(Vec::new(), number(figures))]);
    }

    fn pools(&mut self) {
        let help = "Part of the pool's cached bytes that is not in its largest cached block, 0 to 1";
        self.add("pool_fragmentation_ratio", help, Kind::Gauge, |f| {
            f.pools.iter().map(|p| (kind_label(p.kind), Number::Real(p.fragmentation()))).collect()
        });
        let private = |of: fn(&PrivatePool) -> u64| {
            move |f: &Figures| {
                let label = |p: &PrivatePool| pool_label(&format!("({},{})", p.id.0, p.id.1));
                f.private.iter().map(|p| (label(p), integer(of(p)))).collect()
            }
        };
        let help = "Bytes that a private pool holds from the driver";
        self.add("private_pool_reserved_bytes", help, Kind::Gauge, private(|p| p.reserved));
        let help = "Bytes of a private pool in clients' hands";
        self.add("private_pool_allocated_bytes", help, Kind::Gauge, private(|p| p.allocated));
    }

    /// The histograms are gauges with a label `le`, not OpenMetrics histograms: those may only grow, and these show
    /// a state. PromQL's `histogram_quantile` takes them as they are (without `rate`).
    fn blocks(&mut self) {
        type Part = fn(&PoolFigures) -> &Blocks;
        let parts: [(&str, &str, &str, Part); 2] =
            [("free", "cached", "freed", |p| &p.free), ("live", "active", "allocated", |p| &p.live)];
        for (word, state, since, part) in parts {
            let help = format!("Bytes of {state} blocks");
            self.add(&format!("{word}_blocks_bytes"), help, Kind::Gauge, |f| {
                f.pools.iter().map(|p| (kind_label(p.kind), integer(part(p).bytes))).collect()
            });
            let help = format!("Bytes of the largest of the {state} blocks");
            self.add(&format!("{word}_blocks_largest_bytes"), help, Kind::Gauge, |f| {
                f.pools.iter().map(|p| (kind_label(p.kind), integer(part(p).largest))).collect()
            });
            let help = format!("Number of {state} blocks of at most so many bytes");
            self.histogram(&format!("{word}_blocks_by_size"), help, |p| Some(&part(p).by_size));
            let help =
                format!("Number of {state} blocks {since} at most so many seconds ago, if a history is kept");
            self.histogram(&format!("{word}_blocks_by_age"), help, |p| part(p).by_age.as_ref());
        }
    }

    fn histogram(&mut self, name: &str, help: String, of: impl Fn(&PoolFigures) -> Option<&Histogram>) {
        self.add(name, help, Kind::Gauge, |f| {
            let mut samples = Vec::new();
            for pool in &f.pools {
                for (bound, count) in of(pool).into_iter().flat_map(Histogram::cumulative) {
                    let mut labels = kind_label(pool.kind);
                    labels.push(("le", bound_text(bound)));
                    samples.push((labels, integer(count)));
                }
            }
            samples
        });
    }
}

fn kind_of(field: &str) -> Kind {
    if ["allocated", "freed"].contains(&field) { Kind::Counter } else { Kind::Gauge }
}

fn field_of(fields: [(&'static str, i64); 4], wanted: &str) -> Number {
    Number::Integer(fields.iter().find(|(name, _)| *name == wanted).map_or(0, |(_, value)| *value))
}

fn integer(value: u64) -> Number {
    Number::Integer(i64::try_from(value).unwrap_or(i64::MAX))
}

fn pool_label(pool: &str) -> Vec<(&'static str, String)> {
    vec![("pool", pool.to_owned())]
}

fn kind_label(kind: PoolKind) -> Vec<(&'static str, String)> {
    pool_label(match kind {
        PoolKind::Small => "small_pool",
        PoolKind::Large => "large_pool",
    })
}

/// OpenMetrics wants a number with a point, and `+Inf`.
fn bound_text(bound: f64) -> String {
    if bound.is_infinite() { "+Inf".to_owned() } else { format!("{bound:?}") }
}
