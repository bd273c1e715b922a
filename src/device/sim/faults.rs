//! Failures on purpose, and how a simulated call says no.

use super::log::CallKind;
use crate::device::DeviceError;

/// Error numbers of the CUDA driver that the simulation answers with.
pub mod code {
    /// `CUDA_ERROR_INVALID_VALUE`: an address, size or range that is not what it should be.
    pub const INVALID_VALUE: u32 = 1;
    /// `CUDA_ERROR_INVALID_DEVICE`: an ordinal that names no device.
    pub const INVALID_DEVICE: u32 = 101;
    /// `CUDA_ERROR_INVALID_HANDLE`: an event, stream or memory handle that does not exist (any more).
    pub const INVALID_HANDLE: u32 = 400;
    /// `CUDA_ERROR_LAUNCH_TIMEOUT`: a wait that would never end.
    pub const LAUNCH_TIMEOUT: u32 = 702;
    /// `CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED`.
    pub const HOST_MEMORY_ALREADY_REGISTERED: u32 = 712;
    /// `CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED`.
    pub const HOST_MEMORY_NOT_REGISTERED: u32 = 713;
    /// `CUDA_ERROR_LAUNCH_FAILED`: a kernel died, the context is lost, every call fails from then on.
    pub const LAUNCH_FAILED: u32 = 719;
    /// `CUDA_ERROR_NOT_PERMITTED`: such as a fabric handle on a machine without a fabric.
    pub const NOT_PERMITTED: u32 = 800;
    /// `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED`.
    pub const STREAM_CAPTURE_UNSUPPORTED: u32 = 900;
    /// `CUDA_ERROR_STREAM_CAPTURE_INVALIDATED`.
    pub const STREAM_CAPTURE_INVALIDATED: u32 = 901;
    /// `CUDA_ERROR_STREAM_CAPTURE_MERGE`.
    pub const STREAM_CAPTURE_MERGE: u32 = 902;
    /// `CUDA_ERROR_STREAM_CAPTURE_UNMATCHED`.
    pub const STREAM_CAPTURE_UNMATCHED: u32 = 903;
    /// `CUDA_ERROR_STREAM_CAPTURE_UNJOINED`.
    pub const STREAM_CAPTURE_UNJOINED: u32 = 904;
    /// `CUDA_ERROR_STREAM_CAPTURE_ISOLATION`.
    pub const STREAM_CAPTURE_ISOLATION: u32 = 905;
    /// `CUDA_ERROR_STREAM_CAPTURE_IMPLICIT`.
    pub const STREAM_CAPTURE_IMPLICIT: u32 = 906;
    /// `CUDA_ERROR_CAPTURED_EVENT`.
    pub const CAPTURED_EVENT: u32 = 907;
}

fn code_name(code: u32) -> &'static str {
    match code {
        code::INVALID_VALUE => "CUDA_ERROR_INVALID_VALUE",
        code::INVALID_DEVICE => "CUDA_ERROR_INVALID_DEVICE",
        code::INVALID_HANDLE => "CUDA_ERROR_INVALID_HANDLE",
        code::LAUNCH_TIMEOUT => "CUDA_ERROR_LAUNCH_TIMEOUT",
        code::HOST_MEMORY_ALREADY_REGISTERED => "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
        code::HOST_MEMORY_NOT_REGISTERED => "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
        code::LAUNCH_FAILED => "CUDA_ERROR_LAUNCH_FAILED",
        code::NOT_PERMITTED => "CUDA_ERROR_NOT_PERMITTED",
        code::STREAM_CAPTURE_UNSUPPORTED => "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
        code::STREAM_CAPTURE_INVALIDATED => "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
        code::STREAM_CAPTURE_MERGE => "CUDA_ERROR_STREAM_CAPTURE_MERGE",
        code::STREAM_CAPTURE_UNMATCHED => "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED",
        code::STREAM_CAPTURE_UNJOINED => "CUDA_ERROR_STREAM_CAPTURE_UNJOINED",
        code::STREAM_CAPTURE_ISOLATION => "CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
        code::STREAM_CAPTURE_IMPLICIT => "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
        code::CAPTURED_EVENT => "CUDA_ERROR_CAPTURED_EVENT",
        _ => "CUDA_ERROR_UNKNOWN",
    }
}

/// How a call is made to fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Fault {
    /// [`DeviceError::OutOfMemory`].
    OutOfMemory,
    /// [`DeviceError::NotSupported`].
    NotSupported,
    /// [`DeviceError::ShuttingDown`].
    ShuttingDown,
    /// [`DeviceError::Driver`] with this error number (see [`code`]).
    Driver(u32),
}

impl Fault {
    /// The error that `call` answers with.
    pub(super) fn error(self, call: &'static str) -> DeviceError {
        match self {
            Fault::OutOfMemory => DeviceError::OutOfMemory { call },
            Fault::NotSupported => DeviceError::NotSupported { call },
            Fault::ShuttingDown => DeviceError::ShuttingDown { call },
            Fault::Driver(code) => DeviceError::Driver { call, code, name: code_name(code).to_owned() },
        }
    }
}

/// Why a simulated operation says no. The name of the call is added where it is known.
#[derive(Debug)]
pub(super) enum Refusal {
    /// An answer that a correct program must expect.
    Plain(Fault),
    /// The caller broke a rule of the driver: the answer, and what was wrong.
    Misuse(Fault, String),
}

impl Refusal {
    pub(super) fn misuse(code: u32, what: impl Into<String>) -> Self {
        Refusal::Misuse(Fault::Driver(code), what.into())
    }
}

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Self {
        Refusal::Plain(fault)
    }
}

/// The result of a simulated operation.
pub(super) type Outcome<T> = Result<T, Refusal>;

/// One planned failure.
#[derive(Debug)]
struct Plan {
    /// `None`: calls of every kind count.
    kind: Option<CallKind>,
    /// Calls that still pass; at 0 the next one fails.
    passing: u64,
    fault: Fault,
    forever: bool,
}

/// The failures planned for one process.
#[derive(Debug, Default)]
pub(super) struct Faults {
    plans: Vec<Plan>,
    pub(super) broken: bool,
    pub(super) shutting_down: bool,
    /// Asynchronous error that the next `pending_error` reports.
    pub(super) pending: Option<Fault>,
}

impl Faults {
    /// Call number `n` from now (1: the next) of `kind` fails; with `forever` all later ones too.
    pub(super) fn plan(&mut self, kind: Option<CallKind>, n: u64, fault: Fault, forever: bool) {
        self.plans.push(Plan { kind, passing: n.saturating_sub(1), fault, forever });
    }

    pub(super) fn clear(&mut self) {
        *self = Faults::default();
    }

    /// Counts a call and says whether it is to fail.
    pub(super) fn check(&mut self, kind: CallKind) -> Outcome<()> {
        if self.broken {
            return Err(Fault::Driver(code::LAUNCH_FAILED).into());
        }
        if self.shutting_down {
            return Err(Fault::ShuttingDown.into());
        }
        let mut hit = None;
        // Every plan sees every call, so that two plans count alike.
        self.plans.retain_mut(|plan| {
            if plan.kind.is_some_and(|k| k != kind) {
                return true;
            }
            if plan.passing > 0 {
                plan.passing -= 1;
                return true;
            }
            hit.get_or_insert(plan.fault);
            plan.forever
        });
        hit.map_or(Ok(()), |fault| Err(fault.into()))
    }
}
