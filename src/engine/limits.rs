//! The per-process memory fraction and settings changed at run time [spec 8.1, 15.1].

use super::{Core, attention};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::size::Rules;

impl Core {
    pub(crate) fn set_fraction(&self, fraction: f64) -> Result<()> {
        if !(0.0..=1.0).contains(&fraction) {
            return Err(Error::InvalidFraction { fraction });
        }
        self.apply_fraction(fraction);
        Ok(())
    }

    pub(super) fn apply_fraction(&self, fraction: f64) {
        let total = self.properties.total_memory as f64;
        // For writing, so that no shard is made meanwhile, which would know the old limit.
        let config = self.config.write();
        self.ledger.lock().allowed_max = (fraction < 1.0).then_some((fraction * total) as u64);
        let armed = self.gc_armed(&config);
        self.shards.with_all(|states| {
            for state in states.iter_mut() {
                state.gc_armed = armed;
                state.update_modes();
            }
        });
    }

    pub(crate) fn fraction(&self) -> f64 {
        let total = self.properties.total_memory as f64;
        self.ledger.lock().allowed_max.map_or(1.0, |max| max as f64 / total)
    }

    /// Garbage collection needs a cap and a threshold [spec 8.3].
    pub(super) fn gc_armed(&self, config: &Config) -> bool {
        config.garbage_collection_threshold > 0.0 && self.ledger.lock().allowed_max.is_some()
    }

    pub(crate) fn config(&self) -> Config {
        self.config.read().clone()
    }

    /// Puts a changed configuration in force everywhere.
    pub(crate) fn set_config(&self, change: impl FnOnce(&mut Config) -> Result<()>) -> Result<()> {
        let mut config = self.config.write();
        let mut next = config.clone();
        change(&mut next)?;
        if next.expandable_segments && !self.properties.supports_virtual_memory {
            notice_no_virtual_memory();
            next.expandable_segments = false;
        }
        *config = next;
        self.host.set_config(&config);
        let rules = Rules::new(&config);
        let armed = self.gc_armed(&config);
        if config.caching {
            self.relax(attention::NO_CACHING);
        } else {
            self.attend(attention::NO_CACHING);
        }
        self.shards.with_all(|states| {
            for state in states.iter_mut() {
                state.rules = rules;
                state.gc_armed = armed;
                state.update_modes();
            }
        });
        Ok(())
    }

    /// The bytes that a cap leaves for `more`, if there is a cap.
    pub(super) fn exceeds_cap(&self, more: u64) -> bool {
        let ledger = self.ledger.lock();
        ledger.allowed_max.is_some_and(|max| ledger.total_reserved.saturating_add(more) > max)
    }
}

/// Said once per process: the option has no effect on such a device.
pub(super) fn notice_no_virtual_memory() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        eprintln!("gpucache: expandable_segments is ignored: the device has no virtual memory management");
    });
}
