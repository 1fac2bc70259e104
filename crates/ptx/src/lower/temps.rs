//! Scratch registers of one instruction.

use crate::code::{Pred, Row};

/// Scratch registers of one instruction, reused by the next.
#[derive(Default)]
pub(super) struct Temps {
    pub(super) rows32: (Vec<Row>, usize),
    pub(super) rows64: (Vec<Row>, usize),
    pub(super) preds: (Vec<Pred>, usize),
}

impl Temps {
    pub(super) fn reset(&mut self) {
        (self.rows32.1, self.rows64.1, self.preds.1) = (0, 0, 0);
    }
}
