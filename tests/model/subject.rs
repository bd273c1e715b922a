//! One face for the model and for the crate's allocator, so that a test drives both alike.

use std::collections::BTreeMap;

use super::device::Call;
use super::{Failure, Model, Stream};

pub(crate) trait Subject {
    fn alloc(&mut self, bytes: u64, stream: Stream) -> Result<u64, Failure>;
    fn free(&mut self, address: u64) -> Result<(), Failure>;
    fn record_stream(&mut self, address: u64, stream: Stream);
    fn hold(&mut self, stream: Stream);
    fn release(&mut self, stream: Stream);
    fn empty_cache(&mut self);
    fn set_fraction(&mut self, fraction: f64);
    fn set_settings(&mut self, text: &str);
    fn reset_peak(&mut self);
    fn reset_accumulated(&mut self);
    /// All 122 by their flat names.
    fn stats(&self) -> BTreeMap<String, i64>;
    /// Every driver call so far.
    fn calls(&mut self) -> &[Call];
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
    fn verify(&self) {
        let total: u64 = self.blocks.values().filter(|block| block.mapped).map(|block| block.size).sum();
        assert_eq!(total as i64, self.stats.flat()["reserved_bytes.all.current"], "blocks tile what is reserved");
        assert_eq!(total, self.device.used, "the device holds what is reserved");
    }
}
