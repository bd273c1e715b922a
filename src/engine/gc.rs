//! Garbage collection: under a cap, segments that were idle longest go back early [spec 8.3].

use std::sync::atomic::Ordering;

use super::Core;
use super::parts::DEFAULT_POOL;
use crate::config::Config;
use crate::device::DeviceResult;
use crate::observe::snapshot::PoolKind;

impl Core {
    pub(super) fn collect_garbage(&self, config: &Config) -> DeviceResult<()> {
        let (total, allowed) = {
            let ledger = self.ledger.lock();
            (ledger.total_reserved, ledger.allowed_max.unwrap_or(u64::MAX))
        };
        let limit = (config.garbage_collection_threshold * allowed as f64) as u64;
        if total <= limit {
            return Ok(());
        }
        let target = total - limit;
        let now = self.shared.large_searches.load(Ordering::Relaxed);
        // Another thread may have searched, and freed a block, since.
        let age = |base: u64| now.saturating_sub(base) as f64;
        let (mut ages, mut count) = self.idle_ages(now);
        let mut reclaimed = 0;
        let mut progress = true;
        while reclaimed < target && progress && count > 0.0 {
            let threshold = ages / count;
            let gone = self.release_aged(|block| age(block.gc_base) >= threshold)?;
            progress = !gone.is_empty();
            for (size, base) in gone {
                reclaimed += size;
                ages -= age(base);
                count -= 1.0;
            }
        }
        Ok(())
    }

    /// Sum and number of the ages of unsplit free blocks in the default large pool, in searches.
    fn idle_ages(&self, now: u64) -> (f64, f64) {
        let mut sum = 0.0;
        let mut count = 0.0;
        for shard in self.shards.by_stream() {
            let state = shard.lock();
            for (_, block) in state.free_blocks(DEFAULT_POOL, PoolKind::Large) {
                if !block.is_split() {
                    sum += now.saturating_sub(block.gc_base) as f64;
                    count += 1.0;
                }
            }
        }
        (sum, count)
    }
}
