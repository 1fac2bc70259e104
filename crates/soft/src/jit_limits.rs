//! Options of the compiler and linker that show in a kernel's attributes. The options of a link are
//! in the linked text's first line, which stays with it wherever the program keeps it.

use outboard_api::enums::CU_JIT_MAX_REGISTERS;
use outboard_device::Failure;
use outboard_wire::doc::{self, JitOptions};

use super::wait::invalid;

/// First words of a linked text with a register limit, which follows them.
const LIMIT_PREFIX: &str = "// linked, registers of a thread at most ";
/// Least register limit.
const REGISTERS_MIN: u32 = 16;

/// The compiler's options that show in a kernel's attributes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct JitLimits {
    pub(super) registers_max: Option<u32>,
}

impl JitLimits {
    pub(super) fn parse(options: &[u8]) -> Result<JitLimits, Failure> {
        if options.is_empty() {
            return Ok(JitLimits::default());
        }
        let options: JitOptions =
            doc::from_bytes(options).map_err(|error| invalid(format!("JIT options: {error}")))?;
        let mut given = options.numbers.iter();
        let limit = given.rfind(|(key, value)| *key == CU_JIT_MAX_REGISTERS && *value > 0);
        Ok(JitLimits {
            registers_max: limit.map(|(_, registers)| (*registers).max(REGISTERS_MIN)),
        })
    }
}

/// Returns the register limit with which a text was linked.
pub(super) fn registers_max(text: &str) -> Option<u32> {
    let (limit, _) = text.strip_prefix(LIMIT_PREFIX)?.split_once('\n')?;
    limit.parse().ok()
}

/// Returns a linked text's first line, for a register limit.
pub(super) fn first_line(registers_max: u32) -> String {
    format!("{LIMIT_PREFIX}{registers_max}\n")
}
