//! One face for the model and for the crate's allocator, so that a test drives both alike.

use std::collections::BTreeMap;

use super::device::Call;
use super::pools::Filter;
use super::{Failure, Model, Stream};

pub(crate) trait Subject {
    fn alloc(&mut self, bytes: u64, stream: Stream) -> Result<u64, Failure>;
    fn free(&mut self, address: u64) -> Result<(), Failure>;
    fn record_stream(&mut self, address: u64, stream: Stream);
    fn hold(&mut self, stream: Stream);
    fn release(&mut self, stream: Stream);
    fn empty_cache(&mut self);
    fn set_fraction(&mut self, fraction: f64);
    fn fraction(&self) -> f64;
    fn set_settings(&mut self, text: &str);
    fn reset_peak(&mut self);
    fn reset_accumulated(&mut self);
    /// All 122 by their flat names.
    fn stats(&self) -> BTreeMap<String, i64>;
    /// Every driver call so far.
    fn calls(&mut self) -> &[Call];
    /// A private pool with one user; its handle.
    fn create_pool(&mut self) -> usize;
    /// Requests go to the pool until [`end_pool`](Subject::end_pool).
    fn begin_pool(&mut self, pool: usize) -> Result<(), Failure>;
    fn end_pool(&mut self, pool: usize);
    fn set_use_on_oom(&mut self, pool: usize);
    fn set_no_split(&mut self, pool: usize);
    fn drop_pool(&mut self, pool: usize);
    /// Every invariant that the subject can check of itself.
    fn verify(&self);
}

impl Subject for Model {
    fn alloc(&mut self, bytes: u64, stream: Stream) -> Result<u64, Failure> {
        Model::alloc(self, bytes, stream)
    }
    fn free(&mut self, address: u64) -> Result<(), Failure> {
        Model::free(self, address)
    }
    fn record_stream(&mut self, address: u64, stream: Stream) {
        Model::record_stream(self, address, stream);
    }
    fn hold(&mut self, stream: Stream) {
        Model::hold(self, stream);
    }
    fn release(&mut self, stream: Stream) {
        Model::release(self, stream);
    }
    fn empty_cache(&mut self) {
        Model::empty_cache(self);
    }
    fn set_fraction(&mut self, fraction: f64) {
        Model::set_fraction(self, fraction);
    }
    fn fraction(&self) -> f64 {
        self.allowed.map_or(1.0, |allowed| allowed as f64 / self.device.total as f64)
    }
    fn set_settings(&mut self, text: &str) {
        Model::set_settings(self, text);
    }
    fn reset_peak(&mut self) {
        Model::reset_peak(self);
    }
    fn reset_accumulated(&mut self) {
        Model::reset_accumulated(self);
    }
    fn stats(&self) -> BTreeMap<String, i64> {
        self.stats.flat()
    }
    fn calls(&mut self) -> &[Call] {
        &self.device.calls
    }
    fn create_pool(&mut self) -> usize {
        let number = self.private.len() + 1;
        self.create_or_increment((0, number as u64));
        number
    }
    fn begin_pool(&mut self, pool: usize) -> Result<(), Failure> {
        self.begin_allocate((0, pool as u64), Filter::All)
    }
    fn end_pool(&mut self, pool: usize) {
        self.end_allocate((0, pool as u64)).expect("the pool is active");
        self.release_pool((0, pool as u64));
    }
    fn set_use_on_oom(&mut self, pool: usize) {
        Model::set_use_on_oom(self, (0, pool as u64), true);
    }
    fn set_no_split(&mut self, pool: usize) {
        Model::set_no_split(self, (0, pool as u64));
    }
    fn drop_pool(&mut self, pool: usize) {
        self.destroy_pool((0, pool as u64));
    }
    fn verify(&self) {
        let total: u64 = self.blocks.values().filter(|block| block.mapped).map(|block| block.size).sum();
        assert_eq!(
            total as i64,
            self.stats.flat()["reserved_bytes.all.current"],
            "blocks tile what is reserved"
        );
        assert_eq!(total, self.device.used, "the device holds what is reserved");
    }
}
