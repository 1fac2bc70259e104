//! Variables of modules: which memory the client's copies may use, and which variable an address
//! belongs to.

use outboard_device::{Cx, Failure};
use outboard_wire::messages;

use super::{Nvidia, calls::MemoryAt};

impl Nvidia {
    pub(super) fn variable_find(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::VariableFind,
    ) -> Result<messages::VariableFindReply, Failure> {
        self.enter(cx)?;
        // The variables of an unloaded module stay until its code is released.
        self.reap();
        let found = match self.in_window(m.va, 1) {
            // The client knows its own allocations; one freed there may still be mapped here.
            Ok(()) => None,
            Err(_) => self.driver.device_memory_at(m.va)?,
        };
        let device = |memory: &MemoryAt| {
            let is_it = |gpu: &super::Gpu| gpu.ordinal == memory.ordinal;
            self.devices.iter().position(is_it)
        };
        let Some((memory, device)) = found.and_then(|memory| Some((memory, device(&memory)?)))
        else {
            let (base, len, device) = (0, 0, 0);
            return Ok(messages::VariableFindReply { base, len, device });
        };
        self.take_variable(memory.base, memory.bytes);
        Ok(messages::VariableFindReply {
            base: memory.base,
            len: memory.bytes,
            device: device as i32,
        })
    }

    /// Lets the client's copies use a variable, or memory of a module around one.
    pub(super) fn take_variable(&mut self, va: u64, len: u64) {
        let added = self.addresses.insert_rest(va, len);
        self.variables.extend(added);
    }

    /// Ends the use of a module's variables, which is unloaded. Other modules keep those that the
    /// client knows by name; it asks again about memory that it knows by an address.
    pub(super) fn release_variables(&mut self) {
        for base in std::mem::take(&mut self.variables) {
            self.addresses.remove(base);
        }
        let libraries = self.libraries.iter();
        let named: Vec<_> = libraries
            .flat_map(|(_, library)| library.variables.clone())
            .collect();
        for (va, len) in named {
            self.take_variable(va, len);
        }
    }
}
