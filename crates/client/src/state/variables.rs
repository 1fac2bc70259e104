//! Variables of modules that the program knows by their addresses alone: a kernel handed one out.

use outboard_api::CUresult;
use outboard_wire::messages;

use super::{Driver, host_memory, wire_context};

/// End of the addresses that a GPU and a program can share.
const ADDRESSES_END: u64 = 1 << 57;

/// Contents of an address that no table held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Learned {
    /// A variable, which the tables hold now.
    Variable,
    /// Memory of the program, or an address that cannot be a variable's.
    Program,
    /// No memory of this process and no variable: perhaps the variable of a module that was
    /// unloaded.
    Nothing,
}

impl Driver {
    /// Asks the server for the variable at an address that no table here holds; returns whether
    /// there is one.
    pub(crate) fn learn_variable(&self, address: u64) -> Result<bool, CUresult> {
        Ok(self.learn(address)? == Learned::Variable)
    }

    /// Asks the server what lies at an address that no table here holds. Memory that is mapped in
    /// this process is the program's, and not asked about.
    #[cold]
    pub(crate) fn learn(&self, address: u64) -> Result<Learned, CUresult> {
        if !(1..ADDRESSES_END).contains(&address)
            || self.memory.lock().in_window(address)
            || host_memory::is_mapped(address, 1)
        {
            return Ok(Learned::Program);
        }
        if self.libraries.is_empty() {
            return Ok(Learned::Nothing);
        }
        let (base, bytes, device) = self.session.call(
            wire_context(),
            &messages::VariableFind { va: address },
            |reply| (reply.base, reply.len, reply.device),
        )?;
        let is_around =
            base <= address && address - base < bytes && base.checked_add(bytes).is_some();
        if !is_around {
            return Ok(Learned::Nothing);
        }
        let context = match self.contexts.current() {
            Ok(current) if current.device == device => current.handle,
            _ => self.primary_context(device)?,
        };
        let mut memory = self.memory.lock();
        memory.adopt_of_module(base, bytes, context, device);
        Ok(Learned::Variable)
    }
}
