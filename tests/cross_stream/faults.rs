//! Every driver call of a buffer's life failing once, on the fake driver.

use std::panic::{AssertUnwindSafe, catch_unwind};

use gpucache::Result;

use super::cuda::Gpu;

const LEN: usize = 1000;

/// Buffers made, used by two streams, copied, dropped and taken apart.
fn life(gpu: &Gpu, allocator: &gpucache::Allocator) -> Result<()> {
    let mut buffer = allocator.alloc_zeros::<u32>(LEN, &gpu.a)?;
    let other = allocator.clone_htod(&vec![1; LEN], &gpu.b)?;
    buffer.copy_from(&other)?;
    buffer.copy_from_on(&other, &gpu.b)?;
    drop(buffer.on_mut(&gpu.b));
    let copy = allocator.clone_dtod(&buffer, &gpu.b)?;
    buffer.fill_zeros()?;
    drop(other);
    let (memory, _) = copy.into_typed();
    memory.free()?;
    buffer.record_stream(&gpu.b);
    buffer.free()?;
    allocator.empty_cache()?;
    Ok(())
}

#[test]
fn no_failing_call_panics_or_leaks() {
    let Some(gpu) = Gpu::new() else { return };
    let Some(fake) = gpu.driver.fake() else { return };
    for code in [2, 400, 700] {
        let mut failures = 0;
        for nth in 1.. {
            let allocator = gpu.allocator("");
            let (before, events) = (fake.report().calls, fake.report().events);
            fake.fail("*", nth, code);
            let outcome = catch_unwind(AssertUnwindSafe(|| life(&gpu, &allocator)));
            fake.fail("*", 0, 0);
            let reached = fake.report().calls >= before + nth;
            // What could not be reported where it happened waits in cudarc's context.
            let _ = gpu.device.context().check_err();
            let outcome = outcome.unwrap_or_else(|_| panic!("call {nth} failing with {code}: panicked"));
            failures += u64::from(outcome.is_err());
            gpu.finish();
            allocator.verify().unwrap();
            assert_eq!(allocator.memory_allocated(), 0, "call {nth} failing with {code}");
            allocator.empty_cache().unwrap();
            assert_eq!(allocator.memory_reserved(), 0, "call {nth} failing with {code}");
            drop(allocator);
            fake.assert_clean();
            // One that the driver refused to destroy is lost.
            assert!(fake.report().events <= events + 1, "call {nth} failing with {code}");
            if !reached {
                assert!(nth > 50, "the sweep saw only {nth} calls");
                assert!(outcome.is_ok(), "{outcome:?} without a fault");
                break;
            }
        }
        assert!(failures > 20, "only {failures} faults were reported");
    }
    fake.forget_memory();
}
