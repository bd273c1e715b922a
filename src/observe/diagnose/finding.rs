//! The outcome of a diagnosis.

use super::evidence::Wanted;

/// What keeps memory from those who want it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Cause {
    /// Other processes hold memory of the device.
    OtherProcess,
    /// Live memory grows, allocation by allocation, at the same call sites: a leak is suspected.
    Growing,
    /// Enough is free inside segments, in pieces that are too small, beside live blocks that pin the segments.
    Fragmented,
    /// A cached block that would fit belongs to another stream.
    OtherStream,
    /// Freed blocks wait for another stream, or for the end of a capture.
    PendingFree,
    /// Idle memory belongs to another pool than the request's.
    PrivatePool,
    /// The program's own limit.
    Cap,
    /// The CUDA context, loaded modules and other libraries of this process.
    Context,
    /// The cache: freed by the program, kept for its next request.
    Cached,
    /// What is live at the same time is more than the device has.
    TooSmall,
}

impl Cause {
    /// All causes.
    pub const ALL: [Cause; 10] = [
        Cause::OtherProcess,
        Cause::Growing,
        Cause::Fragmented,
        Cause::OtherStream,
        Cause::PendingFree,
        Cause::PrivatePool,
        Cause::Cap,
        Cause::Context,
        Cause::Cached,
        Cause::TooSmall,
    ];

    /// A word for programs, such as `other_process`.
    pub const fn name(self) -> &'static str {
        match self {
            Cause::OtherProcess => "other_process",
            Cause::Growing => "growing",
            Cause::Fragmented => "fragmented",
            Cause::OtherStream => "other_stream",
            Cause::PendingFree => "pending_free",
            Cause::PrivatePool => "private_pool",
            Cause::Cap => "cap",
            Cause::Context => "context",
            Cause::Cached => "cached",
            Cause::TooSmall => "too_small",
        }
    }

    /// The same for people.
    pub const fn title(self) -> &'static str {
        match self {
            Cause::OtherProcess => "other processes hold the memory",
            Cause::Growing => "in use and growing (leak suspected)",
            Cause::Fragmented => "fragmented",
            Cause::OtherStream => "held by another stream",
            Cause::PendingFree => "freed, but another stream may still use it",
            Cause::PrivatePool => "held by another pool",
            Cause::Cap => "the program's own limit",
            Cause::Context => "CUDA context and other libraries of this process",
            Cause::Cached => "cached, not lost",
            Cause::TooSmall => "the device is too small for what is in use",
        }
    }
}

/// How sure a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Confidence {
    /// It would explain the figures; others would too.
    Possible,
    /// The figures speak for it.
    Likely,
    /// The figures leave no other reading.
    Certain,
}

impl Confidence {
    /// `possible`, `likely` or `certain`.
    pub const fn name(self) -> &'static str {
        match self {
            Confidence::Possible => "possible",
            Confidence::Likely => "likely",
            Confidence::Certain => "certain",
        }
    }
}

/// A number that speaks for a finding.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Figure {
    /// What it is.
    pub name: &'static str,
    /// How much.
    pub value: Value,
}

/// A number with its unit.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Value {
    /// Bytes.
    Bytes(u64),
    /// A count.
    Count(u64),
    /// Bytes per second.
    BytesPerSecond(f64),
    /// Seconds.
    Seconds(f64),
}

impl Figure {
    pub(super) fn bytes(name: &'static str, value: u64) -> Self {
        Figure { name, value: Value::Bytes(value) }
    }

    pub(super) fn count(name: &'static str, value: u64) -> Self {
        Figure { name, value: Value::Count(value) }
    }
}

/// Who or what holds a part of the bytes: a process, a call site, a block, a stream, a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// Which one.
    pub what: String,
    /// How many bytes.
    pub bytes: u64,
}

/// One cause, with what speaks for it and what to do.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Finding {
    /// The cause.
    pub cause: Cause,
    /// Bytes that it holds back.
    pub bytes: u64,
    /// How sure it is.
    pub confidence: Confidence,
    /// For a request that fails: whether it would succeed with this cause gone and all else as it is.
    pub sufficient: Option<bool>,
    /// The numbers.
    pub figures: Vec<Figure>,
    /// Those who hold most of the bytes, largest first; at most five.
    pub holders: Vec<Holder>,
    /// What the numbers mean, in one or two sentences.
    pub explanation: String,
    /// The call or option that helps.
    pub remedy: String,
}

/// Whether the request can be served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// No request was asked about.
    Overview,
    /// It would be served.
    Fits,
    /// It fails.
    Fails,
}

/// An explanation of a device's memory, or of one request.
///
/// `Display` is the text for people.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Diagnosis {
    /// Device ordinal.
    pub device: u32,
    /// The request that was asked about.
    pub request: Option<Wanted>,
    /// Whether it can be served.
    pub outcome: Outcome,
    /// Bytes of blocks in clients' hands.
    pub allocated: u64,
    /// Bytes held from the driver.
    pub reserved: u64,
    /// Bytes in use on the device, by everybody, where that is known.
    pub device_used: Option<u64>,
    /// The causes. For a request that fails: those first whose end alone would let it through; then the surer, then the
    /// larger ones. Otherwise the surer, then the larger ones.
    pub findings: Vec<Finding>,
}

impl Diagnosis {
    /// The first cause, if there is any.
    pub fn first(&self) -> Option<Cause> {
        self.findings.first().map(|f| f.cause)
    }

    /// The causes in order.
    pub fn causes(&self) -> Vec<Cause> {
        self.findings.iter().map(|f| f.cause).collect()
    }
}
