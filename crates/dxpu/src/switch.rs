//! The PCIe switch that a host's proxy shows: one bridge up, one down for each entry of Table 2.
//!
//! Bridges have the registers of a type 1 header (PCI-to-PCI bridge): bus numbers, three windows,
//! and a PCI Express capability whose slot status says whether a GPU is there.

use crate::tables::Window;

pub const BUSES: u16 = 0x18;
pub const IO_WINDOW: u16 = 0x1C;
pub const MEMORY_WINDOW: u16 = 0x20;
pub const PREFETCHABLE_WINDOW: u16 = 0x24;
pub const PREFETCHABLE_BASE_HIGH: u16 = 0x28;
pub const PREFETCHABLE_LIMIT_HIGH: u16 = 0x2C;
pub const CAPABILITIES: u16 = 0x34;
/// Slot control and status, in the PCI Express capability at 0x40.
pub const SLOT_STATUS: u16 = 0x58;
/// Bits of the slot status: a GPU came or went, and a GPU is there.
pub const PRESENCE_CHANGED: u32 = 1 << 19;
pub const PRESENT: u32 = 1 << 22;
const COMMAND: u16 = 0x04;
const REGISTERS: usize = 64;
const CLASS_BRIDGE: u32 = 0x0604_0000;
const HEADER_BRIDGE: u32 = 0x0001_0000;

/// Type of a bridge's port, as its capability has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Port {
    Up = 5,
    Down = 6,
}

/// Registers of one bridge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bridge {
    registers: [u32; REGISTERS],
}

impl Bridge {
    pub fn new(port: Port) -> Bridge {
        let mut registers = [0; REGISTERS];
        // An experimental vendor; the device's number tells the two ports apart.
        registers[0] = (0x0D00 + port as u32) << 16 | 0x1D0F;
        registers[2] = CLASS_BRIDGE << 8;
        registers[3] = HEADER_BRIDGE;
        registers[usize::from(IO_WINDOW / 4)] = 0x0000_00F0;
        registers[usize::from(MEMORY_WINDOW / 4)] = 0x0000_FFF0;
        registers[usize::from(PREFETCHABLE_WINDOW / 4)] = 0x0001_FFF1;
        registers[usize::from(CAPABILITIES / 4)] = 0x40;
        let has_slot = u32::from(port == Port::Down);
        registers[0x10] = 0x0002_0010 | (port as u32) << 20 | has_slot << 24;
        // Surprise, and hot plug.
        registers[0x15] = has_slot * 0x60;
        Bridge { registers }
    }

    pub fn read(&self, register: u16) -> u32 {
        self.registers
            .get(usize::from(register / 4))
            .copied()
            .unwrap_or(0)
    }

    /// Writes the bytes that `enable` names, as far as they can be written.
    pub fn write(&mut self, register: u16, value: u32, enable: u8) {
        let enabled = (0..4).filter(|byte| enable >> byte & 1 != 0);
        let mask = enabled.fold(0_u32, |mask, byte| mask | 0xFF << (8 * byte));
        let writable = match register {
            COMMAND => 0x0000_0407,
            BUSES => 0xFFFF_FFFF,
            IO_WINDOW => 0x0000_F0F0,
            MEMORY_WINDOW | PREFETCHABLE_WINDOW => 0xFFF0_FFF0,
            PREFETCHABLE_BASE_HIGH | PREFETCHABLE_LIMIT_HIGH => 0xFFFF_FFFF,
            SLOT_STATUS => 0x0000_1FFF,
            _ => 0,
        };
        let Some(old) = self.registers.get_mut(usize::from(register / 4)) else {
            return;
        };
        if register == SLOT_STATUS && value & mask & PRESENCE_CHANGED != 0 {
            *old &= !PRESENCE_CHANGED;
        }
        *old = *old & !(mask & writable) | value & mask & writable;
    }

    pub fn primary(&self) -> u8 {
        self.read(BUSES) as u8
    }

    pub fn secondary(&self) -> u8 {
        (self.read(BUSES) >> 8) as u8
    }

    pub fn subordinate(&self) -> u8 {
        (self.read(BUSES) >> 16) as u8
    }

    /// Returns the window of memory below 4 GiB; none if its limit is below its base.
    pub fn memory(&self) -> Option<Window> {
        let value = self.read(MEMORY_WINDOW);
        let base = u64::from(value & 0xFFF0) << 16;
        let limit = u64::from(value >> 16 & 0xFFF0) << 16 | 0xF_FFFF;
        (base <= limit).then_some(Window { base, limit })
    }

    pub fn prefetchable(&self) -> Option<Window> {
        let value = self.read(PREFETCHABLE_WINDOW);
        let high = |register| u64::from(self.read(register)) << 32;
        let base = high(PREFETCHABLE_BASE_HIGH) | u64::from(value & 0xFFF0) << 16;
        let low = u64::from(value >> 16 & 0xFFF0) << 16 | 0xF_FFFF;
        let limit = high(PREFETCHABLE_LIMIT_HIGH) | low;
        (base <= limit).then_some(Window { base, limit })
    }

    pub fn io(&self) -> Option<Window> {
        let value = self.read(IO_WINDOW);
        let base = u64::from(value & 0xF0) << 8;
        let limit = u64::from(value >> 8 & 0xF0) << 8 | 0xFFF;
        (base <= limit).then_some(Window { base, limit })
    }

    /// Shows that a GPU has come or gone.
    pub fn plug(&mut self, is_present: bool) {
        let status = &mut self.registers[usize::from(SLOT_STATUS / 4)];
        let present = if is_present { PRESENT } else { 0 };
        *status = *status & !PRESENT | present | PRESENCE_CHANGED;
    }
}
