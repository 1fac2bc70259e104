//! Variables of modules that the program knows by their addresses alone: a kernel handed one out.

use outboard_api::CUresult;
use outboard_wire::messages;

use super::{Driver, host_memory, wire_context};

/// End of the addresses that a GPU and a program can share.
const ADDRESSES_END: u64 = 1 << 57;

impl Driver {
    /// Asks the server for the variable at an address that no table here holds; returns whether
    /// there is one. Memory that is mapped in this process is the program's, and not asked about.
    #[cold]
    pub(crate) fn learn_variable(&self, address: u64) -> Result<bool, CUresult> {
        if !(1..ADDRESSES_END).contains(&address)
            || self.libraries.is_empty()
            || self.memory.lock().in_window(address)
            || host_memory::is_mapped(address, 1)
        {
            return Ok(false);
        }
        let (base, bytes, device) = self.session.call(
            wire_context(),
            &messages::VariableFind { va: address },
            |reply| (reply.base, reply.len, reply.device),
        )?;
        let is_around =
            base <= address && address - base < bytes && base.checked_add(bytes).is_some();
        if !is_around {
            return Ok(false);
        }
        let context = match self.contexts.current() {
            Ok(current) if current.device == device => current.handle,
            _ => self.primary_context(device)?,
        };
        let mut memory = self.memory.lock();
        memory.adopt_of_module(base, bytes, context, device);
        Ok(true)
    }
}
