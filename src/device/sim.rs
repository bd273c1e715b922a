//! A simulated GPU.

/// A simulated GPU (to be built: see the issue).
#[derive(Debug)]
pub struct SimDevice {}
