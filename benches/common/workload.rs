//! Sizes and random numbers of the workloads; those of the peers' contract are the same in every implementation.

pub(crate) const KIB: usize = 1 << 10;
pub(crate) const MIB: usize = 1 << 20;

/// Sizes of the hot pair (contract).
pub(crate) const PAIR_SIZES: [usize; 7] = [512, 4 * KIB, 64 * KIB, MIB, 4 * MIB, 20 * MIB, 64 * MIB];

/// Sizes of the `depth256` scenario (contract: `kMix`).
pub(crate) const MIX: [usize; 10] =
    [512, 2 * KIB, 4 * KIB, 24 * KIB, 64 * KIB, 300 * KIB, MIB, 2 * MIB, 4 * MIB, 12 * MIB];

/// Sizes of the `threads` scenario (contract: `kThreadMix`).
pub(crate) const THREAD_MIX: [usize; 8] =
    [512, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 2 * MIB, 4 * MIB];

/// Live blocks of the churn.
pub(crate) const CHURN_LIVE: [usize; 4] = [64, 1_024, 4_096, 32_768];

/// Free blocks beside which a pair is measured.
pub(crate) const FREE_BLOCKS: [usize; 4] = [64, 1_024, 8_192, 32_768];

/// xorshift64*, as the contract has it.
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Rng(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(1))
    }

    #[inline]
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// A number in `0..n`.
    #[inline]
    pub(crate) fn below(&mut self, n: usize) -> usize {
        ((self.next() >> 33) % n as u64) as usize
    }

    /// A size from 512 B to below 16 MiB: a power of two at random, then evenly within its octave.
    #[inline]
    pub(crate) fn log_uniform(&mut self) -> usize {
        let octave = 512 << self.below(15);
        octave + self.below(octave)
    }

    /// The block sizes of the contract's `live` scenarios: multiples of 512 B up to 31.5 KiB.
    #[inline]
    pub(crate) fn live_size(&mut self) -> usize {
        512 + 512 * self.below(63)
    }
}

/// The pool whose free blocks a pair is measured against.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pool {
    Small,
    Large,
}

impl Pool {
    pub(crate) const BOTH: [Pool; 2] = [Pool::Small, Pool::Large];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Pool::Small => "small",
            Pool::Large => "large",
        }
    }

    /// The size of the pair that is repeated.
    pub(crate) fn pair_size(self) -> usize {
        match self {
            Pool::Small => 4 * KIB,
            Pool::Large => 2 * MIB,
        }
    }

    /// The largest of its sizes.
    pub(crate) fn largest(self) -> usize {
        match self {
            Pool::Small => 32 * KIB,
            Pool::Large => 5 * MIB,
        }
    }

    /// A random block size in this pool; 63 different ones, so that free blocks crowd in few sizes as real ones do.
    pub(crate) fn size(self, rng: &mut Rng) -> usize {
        match self {
            Pool::Small => rng.live_size(),
            Pool::Large => MIB + 64 * KIB * (1 + rng.below(63)),
        }
    }
}
