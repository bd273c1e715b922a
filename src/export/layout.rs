//! What stands where in an export file.

/// The first word.
pub(super) const MAGIC: u64 = u64::from_ne_bytes(*b"GPUCACHE");
/// The second word: version 1 in the lower half, the length in bytes in the upper. A reader of another version or of
/// the other byte order sees another number.
pub(super) const VERSION: u64 = 1 | (BYTES as u64) << 32;
/// Length of the file in words.
pub(super) const WORDS: usize = 64;
/// Length of the file in bytes.
pub(super) const BYTES: usize = WORDS * 8;
/// Magic, version, sequence number.
pub(super) const HEAD: usize = 3;
/// Index of the sequence number.
pub(super) const SEQUENCE: usize = 2;

/// The words behind the head.
pub(super) type Body = [u64; WORDS - HEAD];

const NUMBERS: usize = 21;
const PROCESS_NAME: std::ops::Range<usize> = NUMBERS..NUMBERS + 4;
const DEVICE_NAME: std::ops::Range<usize> = NUMBERS + 4..NUMBERS + 12;

/// What a process exports of one allocator. Byte counts are in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Exported {
    /// Process id, in the process's own namespace.
    pub pid: u64,
    /// When the process started, in clock ticks since boot; 0 where the system does not tell.
    pub start_time: u64,
    /// The namespace of the process id; 0 where the system does not tell.
    pub pid_namespace: u64,
    /// Name of the program, at most 32 bytes.
    pub process: String,
    /// Device ordinal, as the process counts.
    pub device: u64,
    /// The device's UUID as two words, the first byte highest; zeros where unknown.
    pub uuid: [u64; 2],
    /// 1 for a simulated device, else 0.
    pub simulated: u64,
    /// The device's name, at most 64 bytes.
    pub device_name: String,
    /// When the figures were written, in milliseconds since 1970.
    pub updated_ms: u64,
    /// The device's memory.
    pub total: u64,
    /// Bytes that the allocator may reserve: the cap, or the device's memory.
    pub allowed: u64,
    /// `memory_allocated`.
    pub allocated: u64,
    /// `max_memory_allocated`.
    pub max_allocated: u64,
    /// `memory_reserved`.
    pub reserved: u64,
    /// `max_memory_reserved`.
    pub max_reserved: u64,
    /// `active_bytes.all.current`.
    pub active: u64,
    /// `inactive_split_bytes.all.current`.
    pub inactive_split: u64,
    /// `allocation.all.current`.
    pub allocations: u64,
    /// `allocation.all.allocated`: allocations so far.
    pub allocations_made: u64,
    /// `num_alloc_retries`.
    pub retries: u64,
    /// `num_ooms`.
    pub ooms: u64,
    /// `num_device_alloc + num_device_free`.
    pub driver_calls: u64,
}

impl Exported {
    /// The numbers in the order of the file.
    fn numbers(&mut self) -> [&mut u64; NUMBERS] {
        let [uuid_high, uuid_low] = &mut self.uuid;
        [
            &mut self.pid,
            &mut self.start_time,
            &mut self.pid_namespace,
            &mut self.device,
            uuid_high,
            uuid_low,
            &mut self.simulated,
            &mut self.updated_ms,
            &mut self.total,
            &mut self.allowed,
            &mut self.allocated,
            &mut self.max_allocated,
            &mut self.reserved,
            &mut self.max_reserved,
            &mut self.active,
            &mut self.inactive_split,
            &mut self.allocations,
            &mut self.allocations_made,
            &mut self.retries,
            &mut self.ooms,
            &mut self.driver_calls,
        ]
    }

    pub(super) fn to_body(&self) -> Body {
        let mut copy = self.clone();
        let mut body = [0; WORDS - HEAD];
        for (word, number) in body.iter_mut().zip(copy.numbers()) {
            *word = *number;
        }
        put_text(&mut body[PROCESS_NAME], &self.process);
        put_text(&mut body[DEVICE_NAME], &self.device_name);
        body
    }

    pub(super) fn from_body(body: &Body) -> Self {
        let mut exported = Exported {
            process: text(&body[PROCESS_NAME]),
            device_name: text(&body[DEVICE_NAME]),
            ..Exported::default()
        };
        for (number, word) in exported.numbers().into_iter().zip(body) {
            *number = *word;
        }
        exported
    }

    /// The device's UUID as NVML writes it, `GPU-...`; `None` where unknown.
    pub fn uuid_text(&self) -> Option<String> {
        let [high, low] = self.uuid;
        (self.uuid != [0, 0]).then(|| {
            format!(
                "GPU-{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
                high >> 32,
                high >> 16 & 0xffff,
                high & 0xffff,
                low >> 48,
                low & 0xffff_ffff_ffff
            )
        })
    }
}

fn put_text(words: &mut [u64], text: &str) {
    let mut bytes = text.bytes();
    for word in words {
        *word = u64::from_ne_bytes(std::array::from_fn(|_| bytes.next().unwrap_or(0)));
    }
}

/// Text from another process, on its way to a terminal: control characters are replaced.
fn text(words: &[u64]) -> String {
    let bytes: Vec<u8> =
        words.iter().flat_map(|word| word.to_ne_bytes()).take_while(|byte| *byte != 0).collect();
    String::from_utf8_lossy(&bytes).chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let mut exported =
            Exported { process: "p".repeat(32), device_name: "H200".into(), ..Exported::default() };
        for (value, number) in exported.numbers().into_iter().enumerate() {
            *number = value as u64 + 1;
        }
        assert_eq!(Exported::from_body(&exported.to_body()), exported);
    }

    #[test]
    fn texts_are_cut_and_harmless() {
        let exported =
            Exported { process: "\u{1b}[31m".into(), device_name: "x".repeat(99), ..Exported::default() };
        let read = Exported::from_body(&exported.to_body());
        assert_eq!((read.process.as_str(), read.device_name.len()), ("\u{fffd}[31m", 64));
    }

    #[test]
    fn uuid_text_is_nvidia_smis() {
        let uuid = [0x1a2b_3c4d_0001_0203, 0x0405_0607_0809_aaff];
        let exported = Exported { uuid, ..Exported::default() };
        assert_eq!(exported.uuid_text().as_deref(), Some("GPU-1a2b3c4d-0001-0203-0405-06070809aaff"));
        assert_eq!(Exported::default().uuid_text(), None);
    }
}
