//! Each driver call of a busy program fails once, at every position, for lack of memory and with an error that no one
//! expects: the error arrives, the books stay right, nobody's memory is reused too early, nothing is lost, and the
//! allocator goes on working.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Duration;

use gpucache::device::sim::{CallKind, Fault, SimDevice, code};
use gpucache::device::{DeviceError, Stream};
use gpucache::{Allocation, Allocator, Config, Error};

const MIB: usize = 1 << 20;
const MAIN: Stream = Stream::DEFAULT;
const SIDE: Stream = Stream::from_raw(0x10);
const THIRD: Stream = Stream::from_raw(0x20);

const OPTIONS: [&str; 5] = [
    "",
    "expandable_segments:True",
    "max_split_size_mb:32,garbage_collection_threshold:0.5",
    "expandable_segments:True,max_split_size_mb:32,garbage_collection_threshold:0.5",
    "borrow_across_streams:True,release_idle_after_ms:1000,fraction_of_process:True",
];

/// Calls that release something: the one that fails may lose it, because nothing can be done but go on.
/// (Of `free` that is true of memory that was allocated past the cache; a segment stays in the cache.)
const RELEASES: [CallKind; 5] =
    [CallKind::Free, CallKind::EventDestroy, CallKind::MemRelease, CallKind::MemUnmap, CallKind::AddressFree];
const UNCACHED: usize = 5000;
/// Requests that fail without any fault.
const IMPOSSIBLE: usize = 1;

const FAULTS: [Fault; 2] = [Fault::OutOfMemory, Fault::Driver(code::LAUNCH_FAILED)];

fn device() -> SimDevice {
    SimDevice::new(400 << 20)
}

fn allocator(device: &SimDevice, options: &str) -> Allocator {
    let config = Config::parse(options).unwrap();
    Allocator::builder().device(Arc::new(device.clone())).config(config).build().unwrap()
}

/// A program that goes on after every error.
struct Program<'a> {
    allocator: &'a Allocator,
    device: &'a SimDevice,
    errors: Vec<Error>,
    next_value: u64,
}

impl Program<'_> {
    fn note<T>(&mut self, outcome: gpucache::Result<T>) -> Option<T> {
        outcome.map_err(|error| self.errors.push(error)).ok()
    }

    /// Memory that a kernel of its stream has written.
    fn alloc(&mut self, bytes: usize, stream: Stream) -> Option<(Allocation, u64)> {
        let outcome = self.allocator.alloc_on(bytes, stream);
        let block = self.note(outcome)?;
        self.next_value += 1;
        self.device.write(stream, block.address(), bytes as u64, self.next_value);
        Some((block, self.next_value))
    }

    /// A kernel on `stream` reads it; then it is freed.
    fn read_and_free(&mut self, block: Option<(Allocation, u64)>, stream: Stream) {
        let Some((block, value)) = block else { return };
        self.device.expect(stream, block.address(), block.len() as u64, value);
        block.record_stream(stream);
        let outcome = block.free();
        self.note(outcome);
    }

    fn empty_cache(&mut self) {
        let outcome = self.allocator.empty_cache();
        self.note(outcome);
    }

    fn run(&mut self) {
        let parameters = [self.alloc(1000, MAIN), self.alloc(30 * MIB, MAIN), self.alloc(4 * MIB, SIDE)];
        self.streams();
        self.pools();
        self.limits();
        self.decay();
        for block in parameters {
            self.read_and_free(block, MAIN);
        }
        self.empty_cache();
    }

    /// Blocks that other streams use, polled for and waited for.
    fn streams(&mut self) {
        self.device.hold(SIDE);
        for bytes in [3000, 3 * MIB, 50 * MIB] {
            let block = self.alloc(bytes, MAIN);
            self.read_and_free(block, SIDE);
            // The same size again must not be the same memory while the reader waits.
            let other = self.alloc(bytes, MAIN);
            self.read_and_free(other, MAIN);
        }
        let two = self.alloc(12 * MIB, THIRD);
        if let Some((block, _)) = &two {
            block.record_stream(MAIN);
        }
        self.read_and_free(two, SIDE);
        self.device.release(SIDE);
        let polled = self.alloc(3 * MIB, MAIN);
        self.read_and_free(polled, MAIN);
        self.device.hold(SIDE);
        let waited = self.alloc(60 * MIB, MAIN);
        self.read_and_free(waited, SIDE);
        self.empty_cache();
        self.device.release(SIDE);
    }

    fn pools(&mut self) {
        let allocator = self.allocator.clone();
        let pool = allocator.create_pool();
        pool.set_use_on_oom(true);
        let outcome = pool.scope(|| {
            let block = self.alloc(5 * MIB, MAIN);
            self.read_and_free(block, SIDE);
            let block = self.alloc(40 * MIB, SIDE);
            self.read_and_free(block, SIDE);
            self.alloc(2000, MAIN)
        });
        let kept = self.note(outcome).flatten();
        drop(pool);
        let block = self.alloc(6 * MIB, MAIN);
        self.read_and_free(block, THIRD);
        self.read_and_free(kept, SIDE);
    }

    /// The ladder: at the cap, at the end of the device, and past both.
    fn limits(&mut self) {
        let _ = self.allocator.set_per_process_memory_fraction(0.5);
        let cached = [self.alloc(70 * MIB, MAIN), self.alloc(50 * MIB, SIDE)];
        for block in cached {
            self.read_and_free(block, MAIN);
        }
        let forced = self.alloc(130 * MIB, MAIN);
        self.read_and_free(forced, MAIN);
        let _ = self.allocator.set_per_process_memory_fraction(1.0);
        let forced = self.alloc(300 * MIB, SIDE);
        self.read_and_free(forced, SIDE);
        let impossible = self.alloc(500 * MIB, MAIN);
        assert!(impossible.is_none());
        let forecast = self.allocator.would_allocate(350 * MIB, THIRD);
        self.note(forecast);
        let _ = self.allocator.caching_allocator_enable(false);
        let uncached = self.alloc(UNCACHED, MAIN);
        self.read_and_free(uncached, MAIN);
        let _ = self.allocator.caching_allocator_enable(true);
    }

    fn decay(&mut self) {
        for _ in 0..2 {
            let block = self.alloc(25 * MIB, THIRD);
            self.read_and_free(block, THIRD);
            let outcome = self.allocator.release_idle();
            self.note(outcome);
            self.device.advance(Duration::from_secs(2));
        }
        let outcome = self.allocator.release_idle();
        self.note(outcome);
    }
}

fn run(allocator: &Allocator, device: &SimDevice) -> Vec<Error> {
    let mut program = Program { allocator, device, errors: Vec::new(), next_value: 0 };
    program.run();
    device.release_all();
    program.errors
}

fn check_books(kind: CallKind, allocator: &Allocator, device: &SimDevice, told: &str) {
    allocator.verify().unwrap_or_else(|text| panic!("{told}: {text}"));
    assert_eq!(allocator.memory_stats().allocation.all.current, 0, "{told}");
    assert_eq!(device.misuses(), Vec::<String>::new(), "{told}");
    assert_eq!(device.mismatches(), Vec::<String>::new(), "{told}");
    if !RELEASES.contains(&kind) {
        assert_eq!(allocator.memory_reserved(), device.used(), "{told}");
    }
}

/// What is left of everything, now that the allocator is gone too.
fn check_leaks(kind: CallKind, device: &SimDevice, told: &str) {
    let leaks = device.leaks();
    let may_lose = usize::from(RELEASES.contains(&kind));
    assert!(leaks.len() <= may_lose, "{told}: {leaks:?}");
    let uncached = format!("+{UNCACHED}");
    assert!(kind != CallKind::Free || leaks.iter().all(|l| l.ends_with(&uncached)), "{told}: {leaks:?}");
}

/// Only the request that cannot be met, and what the fault explains.
fn check_errors(errors: &[Error], fault: Fault, told: &str) {
    let mut unexplained = 0;
    for error in errors {
        match (error, fault) {
            (Error::OutOfMemory(_), _) => unexplained += 1,
            (Error::Device(DeviceError::OutOfMemory { .. }), Fault::OutOfMemory)
            | (Error::Device(DeviceError::Driver { code: code::LAUNCH_FAILED, .. }), Fault::Driver(_)) => {}
            _ => panic!("{told}: {error:?}"),
        }
    }
    // One call that lacks memory can fail one request; any other fault can hit the impossible one.
    let more = usize::from(fault == Fault::OutOfMemory);
    assert!((IMPOSSIBLE - 1..=IMPOSSIBLE + more).contains(&unexplained), "{told}: {errors:?}");
    assert!(errors.len() <= IMPOSSIBLE + 2, "{told}: one fault, but {errors:?}");
}

/// One position: the fault, and everything that must hold afterwards.
fn sweep(options: &str, kind: CallKind, n: u64, fault: Fault) {
    let told = format!("'{options}': {} number {n}: {fault:?}", kind.name());
    let device = device();
    let allocator = allocator(&device, options);
    device.fail_nth(kind, n, fault);
    let errors = run(&allocator, &device);
    device.clear_faults();
    check_errors(&errors, fault, &told);
    // It goes on as if nothing had been.
    let errors = run(&allocator, &device);
    assert_eq!(errors.len(), IMPOSSIBLE, "{told}: afterwards {errors:?}");
    check_books(kind, &allocator, &device, &told);
    drop(allocator);
    check_leaks(kind, &device, &told);
}

#[test]
fn every_call_may_fail() {
    let mut positions = 0;
    for options in OPTIONS {
        let sound = device();
        let errors = run(&allocator(&sound, options), &sound);
        assert_eq!(errors.len(), IMPOSSIBLE, "{errors:?}");
        sound.assert_clean();
        let mut covered = Vec::new();
        for &kind in CallKind::ALL {
            let calls = sound.calls(kind);
            for (n, fault) in (1..=calls).flat_map(|n| FAULTS.map(|fault| (n, fault))) {
                sweep(options, kind, n, fault);
                positions += 1;
            }
            covered.extend((calls > 0).then(|| format!("{} {calls}", kind.name())));
        }
        println!("'{options}': {}", covered.join(", "));
    }
    println!("{positions} positions");
    assert!(positions > 1000, "the program shrank: {positions} positions");
}

/// An allocator that goes while it caches, and while frees wait for a stream.
fn end(options: &str, fault: impl Fn(&SimDevice)) -> SimDevice {
    let device = device();
    let allocator = allocator(&device, options);
    device.hold(SIDE);
    let pool = allocator.create_pool();
    let in_pool = pool.scope(|| allocator.alloc(30 * MIB).unwrap()).unwrap();
    let blocks = [1000, 3 * MIB, 60 * MIB].map(|bytes| allocator.alloc(bytes).unwrap());
    drop(pool);
    drop(allocator.alloc_on(40 * MIB, THIRD).unwrap());
    in_pool.record_stream(SIDE);
    blocks[1].record_stream(SIDE);
    drop(in_pool);
    drop(blocks);
    device.reset_calls();
    fault(&device);
    drop(allocator);
    device.clear_faults();
    device
}

#[test]
fn every_call_of_the_end_may_fail() {
    for options in ["", "expandable_segments:True"] {
        let sound = end(options, |_| ());
        sound.assert_clean();
        for &kind in CallKind::ALL {
            for n in 1..=sound.calls(kind) {
                let device = end(options, |device| device.fail_nth(kind, n, FAULTS[1]));
                let told = format!("'{options}': {} number {n}", kind.name());
                assert_eq!(device.misuses(), Vec::<String>::new(), "{told}");
                check_leaks(kind, &device, &told);
            }
        }
    }
}

/// A driver that is gone, and one that answers nothing but errors: the end comes all the same.
#[test]
fn the_end_of_a_driver() {
    for options in OPTIONS {
        end(options, |device| device.set_broken(true));
        end(options, |device| device.set_shutting_down(true));
    }
}
