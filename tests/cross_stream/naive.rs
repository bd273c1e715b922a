//! What a caching allocator does that does not know of other streams.

use std::collections::HashMap;
use std::sync::Arc;

use gpucache::device::{Device, Stream};

pub struct Naive {
    device: Arc<dyn Device>,
    free: HashMap<(Stream, u64), Vec<u64>>,
}

impl Naive {
    pub fn new(device: Arc<dyn Device>) -> Self {
        Naive { device, free: HashMap::new() }
    }

    pub fn alloc(&mut self, bytes: u64, stream: Stream) -> u64 {
        let cached = self.free.entry((stream, bytes)).or_default().pop();
        cached.unwrap_or_else(|| self.device.malloc(bytes).unwrap())
    }

    pub fn free(&mut self, address: u64, bytes: u64, stream: Stream) {
        self.free.entry((stream, bytes)).or_default().push(address);
    }
}

impl Drop for Naive {
    fn drop(&mut self) {
        for address in self.free.values().flatten() {
            self.device.free(*address).unwrap();
        }
    }
}
