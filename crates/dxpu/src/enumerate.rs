//! A root complex that finds the virtual switch at boot, reserves buses and memory for its empty
//! slots, and enumerates a slot after a hot plug; and a GPU's configuration space to be found.

use crate::{
    switch::{
        BUSES, IO_WINDOW, MEMORY_WINDOW, PREFETCHABLE_BASE_HIGH, PREFETCHABLE_LIMIT_HIGH,
        PREFETCHABLE_WINDOW, PRESENCE_CHANGED, PRESENT, SLOT_STATUS,
    },
    tables::Window,
    tlp::{Id, Kind, Request, Status},
};

const BARS: u16 = 0x10;
const COMMAND: u16 = 0x04;
/// Memory and I/O are decoded, and the device may read and write by itself.
const ENABLED: u32 = 7;
const NOBODY: u32 = u32::MAX;
/// Bus of the switch's upper bridge: the one below the root port.
const FIRST_BUS: u8 = 1;
const MEMORY_START: u64 = 0xA000_0000;
const PREFETCHABLE_START: u64 = 1 << 40;
const IO_START: u64 = 0x1000;

/// Answer to a configuration request: its status, and the register if it was read.
pub type Answer = (Status, u32);

/// The links below a root complex: take a configuration request, and return its completion.
pub trait Below {
    fn configure(&mut self, kind: &Kind, value: u32) -> Answer;
}

/// Memory that the BIOS reserves for each slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reserve {
    pub memory_bytes: u64,
    pub prefetchable_bytes: u64,
    pub io_bytes: u64,
}

impl Default for Reserve {
    /// Room for a V100 with 32 GiB.
    fn default() -> Reserve {
        Reserve {
            memory_bytes: 32 << 20,
            prefetchable_bytes: 64 << 30,
            io_bytes: 4 << 10,
        }
    }
}

/// A base address register after enumeration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bar {
    pub number: u8,
    pub window: Window,
    pub is_io: bool,
    pub is_prefetchable: bool,
}

/// A device that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    pub id: Id,
    pub vendor_device: u32,
    pub bars: Vec<Bar>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EnumerateError {
    #[error("no switch is on bus 1")]
    NoSwitch,
    #[error("slot {0} does not exist, or was not reserved")]
    NoSlot(usize),
    #[error("the device in slot {0} does not answer")]
    NoDevice(usize),
    #[error(
        "register {bar} of the device in slot {slot} asks for {bytes} bytes, more than is left"
    )]
    TooLarge { slot: usize, bar: u8, bytes: u64 },
}

/// A slot as the BIOS left it.
#[derive(Debug, Clone, Copy)]
struct Slot {
    port: Id,
    bus: u8,
    memory: Window,
    prefetchable: Window,
    io: Window,
}

/// Root complex with one root port.
#[derive(Debug, Default)]
pub struct RootComplex {
    slots: Vec<Slot>,
    tag: u16,
}

impl RootComplex {
    fn request(&mut self) -> Request {
        self.tag = (self.tag + 1) % 256;
        Request {
            requester: Id::default(),
            tag: self.tag,
            first_enable: 15,
            last_enable: 0,
        }
    }

    fn read(&mut self, below: &mut impl Below, target: Id, register: u16) -> u32 {
        let kind = Kind::ConfigurationRead {
            request: self.request(),
            target,
            register,
            is_local: target.bus() == FIRST_BUS,
        };
        match below.configure(&kind, 0) {
            (Status::Successful, value) => value,
            _ => NOBODY,
        }
    }

    fn write(&mut self, below: &mut impl Below, target: Id, register: u16, value: u32) {
        let kind = Kind::ConfigurationWrite {
            request: self.request(),
            target,
            register,
            is_local: target.bus() == FIRST_BUS,
        };
        below.configure(&kind, value);
    }

    /// Boots: numbers the switch's buses and gives each slot its windows. Returns the slots.
    pub fn boot(
        &mut self,
        below: &mut impl Below,
        reserve: Reserve,
    ) -> Result<usize, EnumerateError> {
        let up = Id::new(FIRST_BUS, 0, 0);
        if self.read(below, up, 0) == NOBODY {
            return Err(EnumerateError::NoSwitch);
        }
        let inner = FIRST_BUS + 1;
        let buses = |primary: u8, secondary: u8, last: u8| {
            u32::from(primary) | u32::from(secondary) << 8 | u32::from(last) << 16
        };
        self.write(below, up, BUSES, buses(FIRST_BUS, inner, u8::MAX));
        self.slots.clear();
        for device in 0..32 {
            let port = Id::new(inner, device, 0);
            if self.read(below, port, 0) == NOBODY {
                break;
            }
            let (number, bus) = (u64::from(device), inner + 1 + device);
            let window = |start: u64, bytes: u64| Window {
                base: start + number * bytes,
                limit: start + (number + 1) * bytes - 1,
            };
            let slot = Slot {
                port,
                bus,
                memory: window(MEMORY_START, reserve.memory_bytes),
                prefetchable: window(PREFETCHABLE_START, reserve.prefetchable_bytes),
                io: window(IO_START, reserve.io_bytes),
            };
            self.write(below, port, BUSES, buses(inner, bus, bus));
            self.open(below, &slot);
            self.slots.push(slot);
        }
        let last = self.slots.last().map_or(inner, |slot| slot.bus);
        self.write(below, up, BUSES, buses(FIRST_BUS, inner, last));
        self.write(below, up, COMMAND, ENABLED);
        Ok(self.slots.len())
    }

    fn open(&mut self, below: &mut impl Below, slot: &Slot) {
        let both = |window: &Window| {
            (window.base >> 16) as u32 & 0xFFF0 | ((window.limit >> 16) as u32 & 0xFFF0) << 16
        };
        let io = (slot.io.base >> 8) as u32 & 0xF0 | (slot.io.limit as u32) & 0xF000;
        self.write(below, slot.port, IO_WINDOW, io);
        self.write(below, slot.port, MEMORY_WINDOW, both(&slot.memory));
        self.write(
            below,
            slot.port,
            PREFETCHABLE_WINDOW,
            both(&slot.prefetchable),
        );
        let high = |address: u64| (address >> 32) as u32;
        let (base, limit) = (slot.prefetchable.base, slot.prefetchable.limit);
        self.write(below, slot.port, PREFETCHABLE_BASE_HIGH, high(base));
        self.write(below, slot.port, PREFETCHABLE_LIMIT_HIGH, high(limit));
        self.write(below, slot.port, COMMAND, ENABLED);
    }

    /// Looks which slots have changed since the last look: their numbers, and whether a device is
    /// there now.
    pub fn changed(&mut self, below: &mut impl Below) -> Vec<(usize, bool)> {
        let mut changed = Vec::new();
        for number in 0..self.slots.len() {
            let port = self.slots[number].port;
            let status = self.read(below, port, SLOT_STATUS);
            if status & PRESENCE_CHANGED != 0 {
                changed.push((number, status & PRESENT != 0));
                self.write(below, port, SLOT_STATUS, PRESENCE_CHANGED);
            }
        }
        changed
    }

    /// Enumerates the device in a slot: measures its registers and gives them addresses from the
    /// slot's windows, the largest first.
    pub fn enumerate(
        &mut self,
        below: &mut impl Below,
        number: usize,
    ) -> Result<Found, EnumerateError> {
        let slot = *self
            .slots
            .get(number)
            .ok_or(EnumerateError::NoSlot(number))?;
        let id = Id::new(slot.bus, 0, 0);
        let vendor_device = self.read(below, id, 0);
        if vendor_device == NOBODY {
            return Err(EnumerateError::NoDevice(number));
        }
        let mut asked = self.measure(below, id);
        asked.sort_by_key(|asked| std::cmp::Reverse(asked.bytes));
        let mut next = [slot.io.base, slot.memory.base, slot.prefetchable.base];
        let limits = [slot.io.limit, slot.memory.limit, slot.prefetchable.limit];
        let mut bars = Vec::new();
        for bar in asked {
            let kind = match (bar.is_io, bar.is_prefetchable) {
                (true, _) => 0,
                (_, false) => 1,
                (_, true) => 2,
            };
            let base = next[kind].next_multiple_of(bar.bytes);
            let limit = base + (bar.bytes - 1);
            if limit > limits[kind] {
                let (slot, bytes) = (number, bar.bytes);
                return Err(EnumerateError::TooLarge {
                    slot,
                    bar: bar.number,
                    bytes,
                });
            }
            next[kind] = limit + 1;
            let register = BARS + 4 * u16::from(bar.number);
            self.write(below, id, register, base as u32);
            if bar.is_wide {
                self.write(below, id, register + 4, (base >> 32) as u32);
            }
            bars.push(Bar {
                number: bar.number,
                window: Window { base, limit },
                is_io: bar.is_io,
                is_prefetchable: bar.is_prefetchable,
            });
        }
        self.write(below, id, COMMAND, ENABLED);
        bars.sort_by_key(|bar| bar.number);
        Ok(Found {
            id,
            vendor_device,
            bars,
        })
    }

    fn measure(&mut self, below: &mut impl Below, id: Id) -> Vec<Asked> {
        let (mut asked, mut number) = (Vec::new(), 0);
        while number < 6 {
            let register = BARS + 4 * u16::from(number);
            self.write(below, id, register, NOBODY);
            let low = self.read(below, id, register);
            let is_io = low & 1 != 0;
            let is_wide = !is_io && low & 4 != 0;
            let high = match is_wide {
                true => {
                    self.write(below, id, register + 4, NOBODY);
                    self.read(below, id, register + 4)
                }
                false => NOBODY,
            };
            let mask = u64::from(high) << 32 | u64::from(low & if is_io { !3 } else { !15 });
            if low != 0 && mask != 0 {
                asked.push(Asked {
                    number,
                    bytes: (!mask).wrapping_add(1).max(16),
                    is_io,
                    is_wide,
                    is_prefetchable: !is_io && low & 8 != 0,
                });
            }
            number += if is_wide { 2 } else { 1 };
        }
        asked
    }
}

/// Size and kind that a register asks for.
struct Asked {
    number: u8,
    bytes: u64,
    is_io: bool,
    is_wide: bool,
    is_prefetchable: bool,
}

/// Configuration space of a GPU, with the registers of a V100: 16 MiB, its memory, 32 MiB, I/O.
#[derive(Debug, Clone)]
pub struct Gpu {
    bars: [u32; 6],
    masks: [u32; 6],
    command: u32,
    /// Learned from configuration writes, as PCIe devices do.
    pub id: Id,
}

impl Gpu {
    /// Makes a GPU whose memory has this many bytes, a power of two of 16 or more.
    pub fn new(memory_bytes: u64) -> Gpu {
        let wide = !(memory_bytes.next_power_of_two().max(16) - 1);
        let masks = [
            !0xFF_FFFF,
            wide as u32 & !15 | 12,
            (wide >> 32) as u32,
            !0x1FF_FFFF | 12,
            NOBODY,
            !0x7F | 1,
        ];
        Gpu {
            bars: [0, 12, 0, 12, 0, 1],
            masks,
            command: 0,
            id: Id::default(),
        }
    }

    pub fn is_enabled(&self) -> bool {
        self.command & ENABLED == ENABLED
    }

    /// Answers a configuration request.
    pub fn configure(&mut self, kind: &Kind, value: u32) -> Answer {
        let done = (Status::Successful, 0);
        match *kind {
            Kind::ConfigurationRead {
                register,
                is_local: true,
                ..
            } => {
                let value = match register {
                    0 => 0x1DB1_10DE,
                    COMMAND => self.command,
                    8 => 0x0302_00A1,
                    0x10..=0x24 => self.bars[usize::from(register - BARS) / 4],
                    _ => 0,
                };
                (Status::Successful, value)
            }
            Kind::ConfigurationWrite {
                register,
                target,
                is_local: true,
                ..
            } => {
                self.id = target;
                match register {
                    COMMAND => self.command = value & 0x407,
                    0x10..=0x24 => {
                        let number = usize::from(register - BARS) / 4;
                        let kind = match number {
                            2 | 4 => 0,
                            5 => 3,
                            _ => 15,
                        };
                        let kept = self.bars[number] & kind;
                        self.bars[number] = value & self.masks[number] & !kind | kept;
                    }
                    _ => {}
                }
                done
            }
            _ => (Status::UnsupportedRequest, 0),
        }
    }
}
