//! Whatever the order of two threads' steps: where two blocks were surely live at once the peak has both, where
//! they surely were not it has only one, and nobody waits for ever.

use credit_model::Device;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering::SeqCst};
use loom::thread;

const BYTES: i64 = 512;

/// One thread allocates and frees; so does another, and looks at what the first had done before and after.
fn two_pairs(shards: usize, past: &'static [(usize, i64)]) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || {
        let device = Arc::new(Device::new(shards, past));
        let (live, gone) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let first = {
            let (device, live, gone) = (device.clone(), live.clone(), gone.clone());
            thread::spawn(move || {
                device.malloc(0, BYTES);
                live.store(true, SeqCst);
                // Only a look at this flag after it was set, and before the next line, proves an overlap.
                live.store(false, SeqCst);
                device.free(0, BYTES);
                gone.store(true, SeqCst);
            })
        };
        let apart = gone.load(SeqCst);
        device.malloc(1, BYTES);
        let together = live.load(SeqCst);
        device.free(1, BYTES);
        assert!(first.join().is_ok());
        let (current, peak) = device.allocated_bytes();
        assert_eq!(current, 0);
        let before: i64 = past.iter().map(|p| p.1).sum();
        if together {
            assert_eq!(peak, before.max(2 * BYTES));
        }
        if apart {
            assert_eq!(peak, before.max(BYTES));
        }
        assert!(peak == before.max(BYTES) || peak == before.max(2 * BYTES), "{peak}");
    });
}

#[test]
fn no_credit() {
    two_pairs(2, &[]);
}

#[test]
fn credit_for_one_block_here() {
    two_pairs(2, &[(0, BYTES)]);
}

#[test]
fn credit_for_one_block_there() {
    two_pairs(2, &[(1, BYTES)]);
}

#[test]
fn credit_for_one_block_on_an_idle_stream() {
    two_pairs(3, &[(2, BYTES)]);
}

#[test]
fn credit_for_both() {
    two_pairs(2, &[(0, BYTES), (1, BYTES)]);
}
