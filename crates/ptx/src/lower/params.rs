//! Positions of functions' parameters and return values.

use super::Context;
use super::function::FRAME_ALIGN;
use crate::code::{Function, ParamSlot};
use crate::error::Error;
use crate::limits::PARAM_BYTES_MAX;
use crate::parse::ast::{self, Variable};
use crate::parse::lexer::clipped;

/// Assigns positions to return values and parameters: a kernel's in parameter space, a function's
/// at the start of its frame.
pub(super) fn place_params(out: &mut Function, function: &ast::Function<'_>) -> Result<(), Error> {
    let mut offset = 0u64;
    let mut place = |vars: &[Variable<'_>]| -> Result<Vec<ParamSlot>, Error> {
        let mut slots = Vec::with_capacity(vars.len());
        for var in vars {
            offset = offset.next_multiple_of(u64::from(var.align.max(1)));
            slots.push(ParamSlot {
                offset: offset as u32,
                bytes: var.bytes as u32,
            });
            offset += var.bytes;
            Context::limit(
                var.at,
                "bytes of parameters",
                offset,
                PARAM_BYTES_MAX.into(),
            )?;
        }
        Ok(slots)
    };
    let returns = place(&function.returns)?;
    let params = place(&function.params)?;
    if !out.params.is_empty() || !out.returns.is_empty() {
        let sizes = |slots: &[ParamSlot]| slots.iter().map(|s| s.bytes).collect::<Vec<_>>();
        if sizes(&out.params) != sizes(&params) || sizes(&out.returns) != sizes(&returns) {
            let message = format!("declarations of `{}` differ", clipped(function.name));
            return Err(Error::Invalid {
                at: function.at,
                message,
            });
        }
    }
    out.kernel |= function.kernel;
    out.frame_bytes = if function.kernel {
        0
    } else {
        (offset as u32).next_multiple_of(FRAME_ALIGN)
    };
    (out.returns, out.params, out.at) = (returns, params, function.at);
    Ok(())
}
