//! Cubins: ELF64 files of machine 190.
//!
//! - A kernel is a function symbol with `STO_CUDA_ENTRY` in its `st_other`.
//! - `.nv.info` has attributes of all functions by symbol index, `.nv.info.<kernel>` those of one
//!   kernel. Both consist of records `{u8 format, u8 attribute, u16 value or size}`; in some
//!   formats a payload follows.
//! - `.nv.shared.<kernel>` is as large as the static shared memory, `.nv.constant3` holds the
//!   module's constants.

use std::collections::HashMap;

use object::{
    LittleEndian as LE, ReadRef as _, SectionIndex,
    elf::{self, FileHeader64, SectionHeader64, Sym64},
    read::elf::{
        FileHeader as _, ProgramHeader as _, SectionHeader as _, SectionTable, Sym as _,
        SymbolTable,
    },
};

use crate::{
    Arch, Attributes, Error, Kernel, Module, Param, Space, Variable, Variant, limits, read,
};

pub(crate) const MAGIC: u32 = u32::from_le_bytes(*b"\x7fELF");
pub(crate) const HEADER_BYTES: usize = 64;

const MACHINE_CUDA: u16 = 190;
/// First `EI_ABIVERSION` (CUDA 13) with the architecture in bits 8 to 15 of `e_flags`; earlier
/// versions have it in the low byte.
const ABI_VERSION_WIDE_FLAGS: u8 = 8;
/// `sm_90a` in `e_flags` before that version; later versions have an attribute of `.nv.compat` for
/// it.
const FLAG_SPECIFIC: u32 = 0x800;
const COMPAT_SPECIFIC: u8 = 0x09;

const STO_CUDA_MANAGED: u8 = 0x04;
const STO_CUDA_ENTRY: u8 = 0x10;

/// First architecture whose `.nv.shared.<kernel>` begins with memory that the system reserves.
const SHARED_RESERVED_ARCH_MIN: u32 = 90;
const SHARED_RESERVED_BYTES: u64 = 1024;

const FORMAT_BYTE: u8 = 2;
const FORMAT_HALF: u8 = 3;
const FORMAT_SIZED: u8 = 4;

/// The attributes read here (`EIATTR_*`, as `cuobjdump -elf` names them).
mod attribute {
    pub(super) const MAX_THREADS: u8 = 0x05;
    pub(super) const PARAM_CBANK: u8 = 0x0a;
    pub(super) const REQNTID: u8 = 0x10;
    pub(super) const FRAME_SIZE: u8 = 0x11;
    pub(super) const KPARAM_INFO: u8 = 0x17;
    pub(super) const CBANK_PARAM_SIZE: u8 = 0x19;
    pub(super) const MAXREG_COUNT: u8 = 0x1b;
    pub(super) const REGCOUNT: u8 = 0x2f;
    pub(super) const CTA_PER_CLUSTER: u8 = 0x3d;
    pub(super) const EXPLICIT_CLUSTER: u8 = 0x3e;
    pub(super) const MAX_CLUSTER_RANK: u8 = 0x3f;
    pub(super) const KPARAM_INFO_V2: u8 = 0x45;
    pub(super) const NUM_BARRIERS: u8 = 0x4c;
}

/// `MAXREG_COUNT` of a kernel without a limit.
const REGISTERS_UNLIMITED: u32 = 255;

/// Reads the content of a cubin.
pub(crate) fn parse(data: &[u8]) -> Result<Module, Error> {
    File::read(data)?.into_module()
}

pub(crate) fn arch(data: &[u8]) -> Result<Arch, Error> {
    File::read(data)?.arch()
}

/// End of the section and program tables, by the header. If the number of sections is too large for
/// the header it is in the first section, and `prefix` must then include that.
pub(crate) fn tables_extent(prefix: &[u8]) -> Result<usize, Error> {
    let header = file_header(prefix)?;
    let section_bytes = u64::from(header.e_shentsize.get(LE));
    let first_section = header.e_shoff.get(LE);
    let mut sections = u64::from(header.e_shnum.get(LE));
    if sections == 0 && first_section != 0 {
        // ELF, "Extended section numbering".
        let known = usize::try_from(first_section)
            .ok()
            .and_then(|at| prefix.get(at.checked_add(32)?..at.checked_add(40)?));
        sections = known
            .and_then(|bytes| bytes.try_into().ok())
            .map_or(1, u64::from_le_bytes);
    }
    let section_table = end(first_section, section_bytes.checked_mul(sections));
    let program_bytes = u64::from(header.e_phentsize.get(LE)) * u64::from(header.e_phnum.get(LE));
    let program_table = end(header.e_phoff.get(LE), Some(program_bytes));
    let tables = section_table.max(program_table).max(HEADER_BYTES as u64);
    read::size(tables, limits::IMAGE_BYTES_MAX, 40, "ELF section table end")
}

/// Bytes of the whole file, by its header and tables: the end of the last table, section or
/// segment.
pub(crate) fn extent(prefix: &[u8]) -> Result<usize, Error> {
    let mut last = tables_extent(prefix)? as u64;
    let tables = read::bytes(prefix, 0, last as usize, "ELF section table")?;
    let header = file_header(tables)?;
    for section in header.section_headers(LE, tables).map_err(elf_error)? {
        if let Some((offset, bytes)) = section.file_range(LE) {
            last = last.max(end(offset, Some(bytes)));
        }
    }
    for segment in header.program_headers(LE, tables).map_err(elf_error)? {
        let (offset, bytes) = segment.file_range(LE);
        last = last.max(end(offset, Some(bytes)));
    }
    read::size(last, limits::IMAGE_BYTES_MAX, 0, "ELF file size")
}

/// Saturates, so that an overflow exceeds the limit.
fn end(offset: u64, bytes: Option<u64>) -> u64 {
    bytes.map_or(u64::MAX, |bytes| {
        if bytes == 0 {
            0
        } else {
            offset.saturating_add(bytes)
        }
    })
}

/// Whether an ELF file is of a GPU, and not of the host.
pub(crate) fn is_cubin(data: &[u8]) -> bool {
    file_header(data).is_ok()
}

fn file_header(data: &[u8]) -> Result<&FileHeader64<LE>, Error> {
    read::bytes(data, 0, HEADER_BYTES, "ELF header")?;
    let header = FileHeader64::<LE>::parse(data).map_err(elf_error)?;
    let machine = header.e_machine.get(LE).0;
    if machine != MACHINE_CUDA {
        return Err(Error::Malformed {
            what: "ELF machine",
            offset: 18,
            expected: "190 (CUDA)",
            found: u64::from(machine),
        });
    }
    Ok(header)
}

struct File<'a> {
    data: &'a [u8],
    header: &'a FileHeader64<LE>,
    sections: SectionTable<'a, FileHeader64<LE>>,
    symbols: SymbolTable<'a, FileHeader64<LE>>,
    /// The first section of each name.
    by_name: HashMap<&'a [u8], SectionIndex>,
    budget: Budget,
}

impl<'a> File<'a> {
    fn read(data: &'a [u8]) -> Result<Self, Error> {
        let len = extent(data)?;
        let data = read::bytes(data, 0, len, "cubin")?;
        let header = file_header(data)?;
        let sections = header.sections(LE, data).map_err(elf_error)?;
        let symbols = sections
            .symbols(LE, data, elf::SHT_SYMTAB)
            .map_err(elf_error)?;
        let mut budget = Budget::new(data.len());
        let mut by_name = HashMap::new();
        for (index, section) in sections.enumerate() {
            let name = sections.section_name(LE, section).map_err(elf_error)?;
            budget.spend(name.len())?;
            by_name.entry(name).or_insert(index);
        }
        Ok(Self {
            data,
            header,
            sections,
            symbols,
            by_name,
            budget,
        })
    }

    fn section(&self, name: &[u8]) -> Option<&'a SectionHeader64<LE>> {
        self.sections.section(*self.by_name.get(name)?).ok()
    }

    fn arch(&self) -> Result<Arch, Error> {
        let flags = self.header.e_flags.get(LE).0;
        let wide = self.header.e_ident.abi_version >= ABI_VERSION_WIDE_FLAGS;
        let number = if wide {
            flags >> 8 & 0xff
        } else {
            flags & 0xff
        };
        if number == 0 {
            return Err(Error::Malformed {
                what: "ELF flags",
                offset: 48,
                expected: "an architecture",
                found: u64::from(flags),
            });
        }
        let mut is_specific = !wide && flags & FLAG_SPECIFIC != 0;
        for record in self.records(b".nv.compat")? {
            let record = record?;
            is_specific |= record.attribute == COMPAT_SPECIFIC && record.value == 1;
        }
        Ok(Arch::new(
            number,
            if is_specific {
                Variant::Specific
            } else {
                Variant::Base
            },
        ))
    }

    fn into_module(mut self) -> Result<Module, Error> {
        let arch = self.arch()?;
        let functions = self.function_attributes()?;
        let constant_bytes = self
            .section(b".nv.constant3")
            .map(|section| section.sh_size.get(LE));
        let mut kernels = Vec::new();
        let mut variables = Vec::new();
        for (index, symbol) in self.symbols.enumerate() {
            if symbol.st_type() == elf::STT_FUNC && symbol.st_other().0 & STO_CUDA_ENTRY != 0 {
                let name = self.symbol_name(symbol)?;
                let mut attributes = functions.get(&index.0).copied().unwrap_or_default();
                attributes.constant_bytes =
                    Some(narrow(constant_bytes.unwrap_or(0), "constant bank size")?);
                self.shared(name, arch, &mut attributes)?;
                let params = self.kernel_info(name, &mut attributes)?;
                kernels.push(Kernel {
                    name: name.to_owned(),
                    params,
                    attributes,
                });
            } else if symbol.st_type() == elf::STT_OBJECT
                && let Some(space) = self.space(symbol)
            {
                let name = self.symbol_name(symbol)?.to_owned();
                variables.push(Variable {
                    name,
                    space,
                    bytes: symbol.st_size(LE),
                });
            }
        }
        let relocatable = self.header.e_type.get(LE) == elf::ET_REL;
        Ok(Module {
            arch,
            relocatable,
            kernels,
            variables,
        })
    }

    fn symbol_name(&mut self, symbol: &Sym64<LE>) -> Result<&'a str, Error> {
        let name = self.symbols.symbol_name(LE, symbol).map_err(elf_error)?;
        if name.len() > limits::NAME_BYTES_MAX {
            let (found, max) = (name.len() as u64, limits::NAME_BYTES_MAX as u64);
            return Err(Error::TooLarge {
                what: "symbol name size",
                offset: 0,
                found,
                max,
            });
        }
        self.budget.spend(name.len())?;
        std::str::from_utf8(name)
            .map_err(|error| Error::Elf(format!("a symbol's name is not UTF-8: {error}")))
    }

    fn space(&self, symbol: &Sym64<LE>) -> Option<Space> {
        // No module has a variable in a section that only extended numbering reaches.
        let section = SectionIndex(usize::from(symbol.st_shndx(LE).0));
        let is_in = |name: &[u8]| self.by_name.get(name) == Some(&section);
        if is_in(b".nv.global") || is_in(b".nv.global.init") {
            let is_managed = symbol.st_other().0 & STO_CUDA_MANAGED != 0;
            Some(if is_managed {
                Space::Managed
            } else {
                Space::Global
            })
        } else {
            is_in(b".nv.constant3").then_some(Space::Constant)
        }
    }

    /// Reads registers and stack frames, which one section holds for all functions, by symbol
    /// index.
    fn function_attributes(&self) -> Result<HashMap<usize, Attributes>, Error> {
        let mut functions: HashMap<usize, Attributes> = HashMap::new();
        for record in self.records(b".nv.info")? {
            let record = record?;
            if !matches!(
                record.attribute,
                attribute::REGCOUNT | attribute::FRAME_SIZE
            ) {
                continue;
            }
            let function = functions.entry(record.u32(0)? as usize).or_default();
            match record.attribute {
                attribute::REGCOUNT => function.registers = Some(record.u32(4)?),
                _ => function.local_bytes = Some(record.u32(4)?),
            }
        }
        Ok(functions)
    }

    fn shared(&self, kernel: &str, arch: Arch, attributes: &mut Attributes) -> Result<(), Error> {
        let name = format!(".nv.shared.{kernel}");
        let bytes = self
            .section(name.as_bytes())
            .map_or(0, |section| section.sh_size.get(LE));
        let reserves = arch.number >= SHARED_RESERVED_ARCH_MIN && bytes >= SHARED_RESERVED_BYTES;
        let reserved = if reserves { SHARED_RESERVED_BYTES } else { 0 };
        attributes.shared_reserved_bytes = Some(narrow(reserved, "reserved shared memory")?);
        attributes.shared_bytes = Some(narrow(bytes - reserved, "shared memory")?);
        Ok(())
    }

    /// Reads the parameters, and the attributes in the kernel's own section.
    fn kernel_info(
        &mut self,
        kernel: &str,
        attributes: &mut Attributes,
    ) -> Result<Vec<Param>, Error> {
        let mut params: Vec<(u16, Param)> = Vec::new();
        let records = self.records(format!(".nv.info.{kernel}").as_bytes())?;
        self.budget.spend(records.data.len())?;
        for record in records {
            let record = record?;
            match record.attribute {
                attribute::KPARAM_INFO | attribute::KPARAM_INFO_V2 => params.push(record.param()?),
                attribute::CBANK_PARAM_SIZE => {
                    attributes.param_bytes = Some(u32::from(record.value));
                }
                attribute::PARAM_CBANK => attributes.param_base = Some(record.u32(4)? & 0xffff),
                attribute::MAX_THREADS => attributes.threads_max = Some(record.triple()?),
                attribute::REQNTID => attributes.threads_required = Some(record.triple()?),
                attribute::CTA_PER_CLUSTER => attributes.cluster_required = Some(record.triple()?),
                attribute::EXPLICIT_CLUSTER => attributes.cluster_explicit = true,
                attribute::MAX_CLUSTER_RANK => attributes.cluster_blocks_max = Some(record.u32(0)?),
                attribute::NUM_BARRIERS => {
                    attributes.barriers = Some(u32::from(record.value & 0xff))
                }
                attribute::MAXREG_COUNT if u32::from(record.value) < REGISTERS_UNLIMITED => {
                    attributes.registers_max = Some(u32::from(record.value));
                }
                _ => {}
            }
        }
        in_order(params)
    }

    /// Returns the records of a section; none if there is no such section.
    fn records(&self, section: &[u8]) -> Result<Records<'a>, Error> {
        let Some(section) = self.section(section) else {
            return Ok(Records {
                data: &[],
                at: 0,
                base: 0,
            });
        };
        let data = match section.file_range(LE) {
            Some((offset, bytes)) => self.data.read_bytes_at(offset, bytes),
            None => Ok(&[][..]),
        };
        let offset = section.sh_offset.get(LE);
        let data = data.map_err(|()| {
            Error::Elf(format!(
                "a section lies outside the file, at offset {offset}"
            ))
        })?;
        Ok(Records {
            data,
            at: 0,
            base: usize::try_from(offset).unwrap_or(usize::MAX),
        })
    }
}

/// Sorts parameters; checks that each appears once and that none overlaps another.
fn in_order(mut params: Vec<(u16, Param)>) -> Result<Vec<Param>, Error> {
    params.sort_by_key(|&(ordinal, _)| ordinal);
    let mut free = 0;
    for (index, &(ordinal, param)) in params.iter().enumerate() {
        let offset = param.offset as usize;
        if usize::from(ordinal) != index {
            let found = u64::from(ordinal);
            return Err(Error::Malformed {
                what: "kernel parameter ordinal",
                offset,
                expected: "each once from 0 on",
                found,
            });
        }
        if param.offset < free {
            let found = u64::from(param.offset);
            return Err(Error::Malformed {
                what: "kernel parameter offset",
                offset,
                expected: "no overlap with the one before",
                found,
            });
        }
        free = param.offset + param.size;
    }
    Ok(params.into_iter().map(|(_, param)| param).collect())
}

struct Records<'a> {
    data: &'a [u8],
    at: usize,
    /// Offset of the section in the file, for errors.
    base: usize,
}

struct Record<'a> {
    attribute: u8,
    /// The value of a byte or half-word record; the payload's size in a sized one.
    value: u16,
    payload: &'a [u8],
    offset: usize,
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= self.data.len() {
            return None;
        }
        let record = self.read();
        if record.is_err() {
            self.at = self.data.len();
        }
        Some(record)
    }
}

impl<'a> Records<'a> {
    fn read(&mut self) -> Result<Record<'a>, Error> {
        const WHAT: &str = "attribute record";
        let offset = self.base.saturating_add(self.at);
        let format = read::u8(self.data, self.at, WHAT)?;
        let attribute = read::u8(self.data, self.at + 1, WHAT)?;
        let value = read::u16(self.data, self.at + 2, WHAT)?;
        let (value, payload) = match format {
            FORMAT_SIZED => (
                value,
                read::bytes(self.data, self.at + 4, usize::from(value), WHAT)?,
            ),
            FORMAT_BYTE => (value & 0xff, &[][..]),
            FORMAT_HALF => (value, &[][..]),
            _ => (0, &[][..]),
        };
        self.at += 4 + payload.len();
        Ok(Record {
            attribute,
            value,
            payload,
            offset,
        })
    }
}

impl Record<'_> {
    fn u32(&self, at: usize) -> Result<u32, Error> {
        read::u32(self.payload, at, "attribute value").map_err(|error| self.located(error))
    }

    fn triple(&self) -> Result<[u32; 3], Error> {
        Ok([self.u32(0)?, self.u32(4)?, self.u32(8)?])
    }

    /// Ordinal and location of a `KPARAM_INFO`: `u32 index, u16 ordinal, u16 offset`, then the
    /// size; in version 1 the size is above 18 bits of other values.
    fn param(&self) -> Result<(u16, Param), Error> {
        let place = self.u32(4)?;
        let size = self.u32(8)?;
        let size = if self.attribute == attribute::KPARAM_INFO {
            size >> 18
        } else {
            size & 0xffff
        };
        Ok((
            place as u16,
            Param {
                offset: place >> 16,
                size,
            },
        ))
    }

    fn located(&self, error: Error) -> Error {
        match error {
            Error::Truncated {
                what,
                offset: at,
                needed,
                available,
            } => Error::Truncated {
                what,
                offset: self.offset.saturating_add(4 + at),
                needed,
                available,
            },
            other => other,
        }
    }
}

/// Bounds the sum of names and attribute sections that are read: a file can point to the same bytes
/// many times.
struct Budget {
    left: usize,
    max: usize,
}

impl Budget {
    fn new(file_bytes: usize) -> Self {
        let max = file_bytes.saturating_mul(4);
        Self { left: max, max }
    }

    fn spend(&mut self, bytes: usize) -> Result<(), Error> {
        self.left = self.left.checked_sub(bytes).ok_or(Error::TooLarge {
            what: "total size of names and attributes",
            offset: 0,
            found: (self.max + bytes) as u64,
            max: self.max as u64,
        })?;
        Ok(())
    }
}

fn narrow(value: u64, what: &'static str) -> Result<u32, Error> {
    u32::try_from(value).map_err(|_| Error::TooLarge {
        what,
        offset: 0,
        found: value,
        max: u64::from(u32::MAX),
    })
}

fn elf_error(error: object::read::Error) -> Error {
    Error::Elf(error.to_string())
}
