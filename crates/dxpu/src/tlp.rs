//! Transaction layer packets in PCIe's encoding (PCI Express Base Specification, section 2.2).
//!
//! ```text
//!  DW 0   fmt type | T9 TC T8 attr | TD EP attr AT length
//!  DW 1   requester, tag, byte enables          completion: completer, status, byte count
//!  DW 2   address, or the device addressed      completion: requester, tag, lower address
//!  DW 3   only with 4-DW headers: the address's lower half
//! ```
//!
//! Written: memory, I/O, configuration, completion and message. Refused by name: prefixes, atomic
//! operations, locked reads, digests (packets have their own check), translated addresses.

/// Longest payload: 1,024 doublewords.
pub const DATA_BYTES_MAX: usize = 4_096;
/// Longest header: 4 doublewords.
pub const HEADER_BYTES_MAX: usize = 16;
/// Requests do not cross a border of this many bytes.
const BORDER_BYTES: u64 = 4_096;
const TAG_MAX: u16 = 1 << 10;
const FORMAT_4DW: u8 = 1;
const FORMAT_DATA: u8 = 2;

/// Bytes that are no transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TlpError {
    #[error("a transaction of {have} bytes, cut off: {need} are needed")]
    Short { have: usize, need: usize },
    #[error("a transaction with {have} bytes after its {need}")]
    Long { have: usize, need: usize },
    #[error("{0} is not supported")]
    Unsupported(&'static str),
    #[error("a malformed transaction: {0}")]
    Malformed(&'static str),
}

/// Bus, device and function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, PartialOrd, Ord, Hash)]
pub struct Id(pub u16);

impl Id {
    pub fn new(bus: u8, device: u8, function: u8) -> Id {
        Id(u16::from(bus) << 8 | u16::from(device & 31) << 3 | u16::from(function & 7))
    }

    pub fn bus(self) -> u8 {
        (self.0 >> 8) as u8
    }

    pub fn device(self) -> u8 {
        (self.0 >> 3) as u8 & 31
    }

    pub fn function(self) -> u8 {
        self.0 as u8 & 7
    }
}

/// Fields that all transactions have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Common {
    /// 0 to 7.
    pub traffic_class: u8,
    /// Ordering and snooping, 3 bits.
    pub attributes: u8,
    /// The data are known to be wrong.
    pub is_poisoned: bool,
    pub has_hint: bool,
}

/// Sender of a request, the number by which its completions find it, and the bytes that count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Request {
    pub requester: Id,
    /// 10 bits.
    pub tag: u16,
    /// One bit for each byte of the first doubleword.
    pub first_enable: u8,
    /// One bit for each byte of the last doubleword; 0 if there is only one.
    pub last_enable: u8,
}

/// Result of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    Successful,
    UnsupportedRequest,
    ConfigurationRetry,
    CompleterAbort,
}

/// Way in which a message finds its receiver (table 2-18 of the specification).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageRoute {
    ToRootComplex,
    ByAddress(u64),
    ById(Id),
    BroadcastFromRoot,
    /// Ends at the receiver of the link.
    Local,
    GatheredToRoot,
}

/// Type of a transaction, and the fields that only it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    MemoryRead {
        request: Request,
        address: u64,
        dwords: u16,
    },
    MemoryWrite {
        request: Request,
        address: u64,
    },
    IoRead {
        request: Request,
        address: u32,
    },
    IoWrite {
        request: Request,
        address: u32,
    },
    /// `is_local`: type 0, for the device at the other end of the link.
    ConfigurationRead {
        request: Request,
        target: Id,
        register: u16,
        is_local: bool,
    },
    ConfigurationWrite {
        request: Request,
        target: Id,
        register: u16,
        is_local: bool,
    },
    Completion {
        completer: Id,
        requester: Id,
        tag: u16,
        status: Status,
        /// Bytes of the request that are still to come, these included; 1 to 4,096.
        byte_count: u16,
        lower_address: u8,
    },
    Message {
        requester: Id,
        tag: u16,
        code: u8,
        route: MessageRoute,
        /// The last two doublewords, if the route does not use them.
        fields: u64,
    },
}

/// A transaction with its data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tlp<'a> {
    pub common: Common,
    pub kind: Kind,
    /// Whole doublewords.
    pub data: &'a [u8],
}

/// First doubleword of a header.
struct First {
    format: u8,
    kind: u8,
    length: u16,
    common: Common,
    tag_high: u16,
}

impl First {
    fn header_bytes(&self) -> usize {
        if self.format & FORMAT_4DW != 0 {
            16
        } else {
            12
        }
    }

    fn has_data(&self) -> bool {
        self.format & FORMAT_DATA != 0
    }

    fn data_bytes(&self) -> usize {
        if self.has_data() {
            usize::from(self.length) * 4
        } else {
            0
        }
    }
}

fn first(bytes: &[u8]) -> Result<First, TlpError> {
    let [a, b, c, d] = doubleword(bytes, 0)?;
    let format = a >> 5;
    if format > 3 {
        return Err(TlpError::Unsupported("a prefix"));
    }
    if b & 2 != 0 || c & 0x0C != 0 {
        return Err(TlpError::Unsupported("a translated address"));
    }
    if c & 0x80 != 0 {
        return Err(TlpError::Unsupported("a digest"));
    }
    let length = u16::from(c & 3) << 8 | u16::from(d);
    Ok(First {
        format,
        kind: a & 31,
        length: if length == 0 { 1_024 } else { length },
        common: Common {
            traffic_class: b >> 4 & 7,
            attributes: b & 4 | c >> 4 & 3,
            is_poisoned: c & 0x40 != 0,
            has_hint: b & 1 != 0,
        },
        tag_high: u16::from(b & 0x80) << 2 | u16::from(b & 8) << 5,
    })
}

fn doubleword(bytes: &[u8], number: usize) -> Result<[u8; 4], TlpError> {
    let part = bytes.get(number * 4..number * 4 + 4);
    let short = TlpError::Short {
        have: bytes.len(),
        need: number * 4 + 4,
    };
    part.and_then(|part| part.try_into().ok()).ok_or(short)
}

fn half(high: u8, low: u8) -> u16 {
    u16::from_be_bytes([high, low])
}

/// Returns the length of a transaction's header by its first byte.
pub fn header_bytes(bytes: &[u8]) -> Result<usize, TlpError> {
    Ok(first(bytes)?.header_bytes())
}

/// Returns the length of the data that a header announces.
pub fn data_bytes(header: &[u8]) -> Result<usize, TlpError> {
    Ok(first(header)?.data_bytes())
}

impl<'a> Tlp<'a> {
    pub fn new(kind: Kind, data: &'a [u8]) -> Tlp<'a> {
        Tlp {
            common: Common::default(),
            kind,
            data,
        }
    }

    /// Reads one transaction, which is all that `bytes` contain.
    pub fn parse(bytes: &'a [u8]) -> Result<Tlp<'a>, TlpError> {
        let (have, header) = (bytes.len(), header_bytes(bytes)?);
        let data = bytes.get(header..);
        let need = header;
        Tlp::from_parts(bytes, data.ok_or(TlpError::Short { have, need })?)
    }

    /// Reads a transaction whose header and data are apart.
    pub fn from_parts(header: &[u8], data: &'a [u8]) -> Result<Tlp<'a>, TlpError> {
        let first = first(header)?;
        let (have, need) = (data.len(), first.data_bytes());
        match have.cmp(&need) {
            std::cmp::Ordering::Less => return Err(TlpError::Short { have, need }),
            std::cmp::Ordering::Greater => return Err(TlpError::Long { have, need }),
            std::cmp::Ordering::Equal => {}
        }
        let kind = kind_of(&first, header)?;
        let tlp = Tlp {
            common: first.common,
            kind,
            data,
        };
        tlp.check(first.length)?;
        Ok(tlp)
    }

    /// Appends the transaction to `out`.
    pub fn emit(&self, out: &mut Vec<u8>) -> Result<(), TlpError> {
        self.emit_header(out)?;
        out.extend_from_slice(self.data);
        Ok(())
    }

    /// Appends the header alone.
    pub fn emit_header(&self, out: &mut Vec<u8>) -> Result<(), TlpError> {
        let dwords = self.dwords()?;
        self.check(dwords)?;
        let (kind, is_long, words, tag) = self.words();
        let format = u8::from(is_long) | if self.data.is_empty() { 0 } else { FORMAT_DATA };
        let common = self.common;
        let length = if self.kind_has_length() {
            dwords & 1_023
        } else {
            0
        };
        out.extend_from_slice(&[
            format << 5 | kind,
            (tag >> 2 & 0x80) as u8
                | common.traffic_class << 4
                | (tag >> 5 & 8) as u8
                | common.attributes & 4
                | u8::from(common.has_hint),
            u8::from(common.is_poisoned) << 6 | (common.attributes & 3) << 4 | (length >> 8) as u8,
            length as u8,
        ]);
        for word in &words[..if is_long { 3 } else { 2 }] {
            out.extend_from_slice(&word.to_be_bytes());
        }
        Ok(())
    }

    /// Returns true if completions answer it.
    pub fn is_posted(&self) -> bool {
        matches!(
            self.kind,
            Kind::MemoryWrite { .. } | Kind::Message { .. } | Kind::Completion { .. }
        )
    }

    fn kind_has_length(&self) -> bool {
        !self.data.is_empty()
            || !matches!(self.kind, Kind::Completion { .. } | Kind::Message { .. })
    }

    fn dwords(&self) -> Result<u16, TlpError> {
        if !self.data.len().is_multiple_of(4) || self.data.len() > DATA_BYTES_MAX {
            return Err(TlpError::Malformed(
                "data that are not 1 to 1,024 doublewords",
            ));
        }
        Ok(match self.kind {
            Kind::MemoryRead { dwords, .. } => dwords,
            Kind::IoRead { .. } | Kind::ConfigurationRead { .. } => 1,
            _ => (self.data.len() / 4) as u16,
        })
    }

    /// Returns the type, whether the header has 4 doublewords, the doublewords after the first, and
    /// the tag.
    fn words(&self) -> (u8, bool, [u32; 3], u16) {
        let of = |id: Id, tag: u16| u32::from(id.0) << 16 | u32::from(tag & 0xFF) << 8;
        let asked = |r: &Request| {
            of(r.requester, r.tag) | u32::from(r.last_enable) << 4 | u32::from(r.first_enable)
        };
        match &self.kind {
            Kind::MemoryRead {
                request, address, ..
            }
            | Kind::MemoryWrite { request, address } => {
                let (high, low) = ((address >> 32) as u32, *address as u32);
                let is_long = high != 0;
                let words = if is_long {
                    [asked(request), high, low]
                } else {
                    [asked(request), low, 0]
                };
                (0, is_long, words, request.tag)
            }
            Kind::IoRead { request, address } | Kind::IoWrite { request, address } => {
                (2, false, [asked(request), *address, 0], request.tag)
            }
            Kind::ConfigurationRead {
                request,
                target,
                register,
                is_local,
            }
            | Kind::ConfigurationWrite {
                request,
                target,
                register,
                is_local,
            } => {
                let word = u32::from(target.0) << 16 | u32::from(*register);
                let kind = if *is_local { 4 } else { 5 };
                (kind, false, [asked(request), word, 0], request.tag)
            }
            Kind::Completion {
                completer,
                requester,
                tag,
                status,
                byte_count,
                lower_address,
            } => {
                let status = status_number(*status);
                let count = u32::from(*byte_count) & 0xFFF;
                let one = u32::from(completer.0) << 16 | status << 13 | count;
                let two = of(*requester, *tag) | u32::from(*lower_address & 0x7F);
                (10, false, [one, two, 0], *tag)
            }
            Kind::Message {
                requester,
                tag,
                code,
                route,
                fields,
            } => {
                let (number, fields) = message_words(route, *fields);
                let word = of(*requester, *tag) | u32::from(*code);
                let halves = [(fields >> 32) as u32, fields as u32];
                (16 | number, true, [word, halves[0], halves[1]], *tag)
            }
        }
    }

    /// Checks the specification's rules about lengths, byte enables and addresses.
    fn check(&self, dwords: u16) -> Result<(), TlpError> {
        if self.common.traffic_class > 7 || self.common.attributes > 7 {
            return Err(TlpError::Malformed(
                "a class or attributes of more than 3 bits",
            ));
        }
        match &self.kind {
            Kind::MemoryRead {
                request, address, ..
            }
            | Kind::MemoryWrite { request, address } => {
                let is_write = matches!(self.kind, Kind::MemoryWrite { .. });
                if is_write == self.data.is_empty() {
                    return Err(TlpError::Malformed(
                        "a write without data, or a read with data",
                    ));
                }
                check_memory(request, *address, dwords)
            }
            Kind::IoRead { request, address } | Kind::IoWrite { request, address } => {
                if address & 3 != 0 {
                    return Err(TlpError::Malformed("an address between doublewords"));
                }
                self.check_single(request, dwords)
            }
            Kind::ConfigurationRead {
                request, register, ..
            }
            | Kind::ConfigurationWrite {
                request, register, ..
            } => {
                if register & 3 != 0 || *register > 0xFFF {
                    return Err(TlpError::Malformed("a register that does not exist"));
                }
                self.check_single(request, dwords)
            }
            Kind::Completion {
                tag,
                byte_count,
                lower_address,
                ..
            } => {
                if *tag >= TAG_MAX || !(1..=4_096).contains(byte_count) || *lower_address > 0x7F {
                    return Err(TlpError::Malformed(
                        "a completion whose numbers are out of range",
                    ));
                }
                let first = usize::from(lower_address & 3);
                if self.data.len() > (usize::from(*byte_count) + first).next_multiple_of(4) {
                    return Err(TlpError::Malformed(
                        "a completion with more data than its byte count",
                    ));
                }
                Ok(())
            }
            Kind::Message { tag, route, .. } => match (*tag >= TAG_MAX, route) {
                (true, _) => Err(TlpError::Malformed("a tag of more than 10 bits")),
                (_, MessageRoute::ByAddress(address)) if address & 3 != 0 => {
                    Err(TlpError::Malformed("an address between doublewords"))
                }
                _ => Ok(()),
            },
        }
    }

    fn check_single(&self, request: &Request, dwords: u16) -> Result<(), TlpError> {
        let is_write = matches!(
            self.kind,
            Kind::IoWrite { .. } | Kind::ConfigurationWrite { .. }
        );
        let is_right = dwords == 1
            && (self.data.len() == 4) == is_write
            && request.last_enable == 0
            && request.first_enable < 16
            && request.tag < TAG_MAX
            && self.common.traffic_class == 0;
        match is_right {
            true => Ok(()),
            false => Err(TlpError::Malformed(
                "a request of I/O or configuration that is not one doubleword of class 0",
            )),
        }
    }
}

fn status_number(status: Status) -> u32 {
    match status {
        Status::Successful => 0,
        Status::UnsupportedRequest => 1,
        Status::ConfigurationRetry => 2,
        Status::CompleterAbort => 4,
    }
}

/// Returns the number of a message's route, and its last two doublewords.
fn message_words(route: &MessageRoute, fields: u64) -> (u8, u64) {
    match route {
        MessageRoute::ToRootComplex => (0, fields),
        MessageRoute::ByAddress(address) => (1, *address),
        MessageRoute::ById(id) => (2, u64::from(id.0) << 48 | fields & 0xFFFF_FFFF_FFFF),
        MessageRoute::BroadcastFromRoot => (3, fields),
        MessageRoute::Local => (4, fields),
        MessageRoute::GatheredToRoot => (5, fields),
    }
}

fn check_memory(request: &Request, address: u64, dwords: u16) -> Result<(), TlpError> {
    if address & 3 != 0 {
        return Err(TlpError::Malformed("an address between doublewords"));
    }
    if request.tag >= TAG_MAX || request.first_enable > 15 || request.last_enable > 15 {
        return Err(TlpError::Malformed("a tag or byte enables out of range"));
    }
    if !(1..=1_024).contains(&dwords) {
        return Err(TlpError::Malformed(
            "a length that is not 1 to 1,024 doublewords",
        ));
    }
    let is_right = match dwords {
        1 => request.last_enable == 0,
        _ => request.first_enable != 0 && request.last_enable != 0,
    };
    if !is_right {
        return Err(TlpError::Malformed(
            "byte enables that do not go with the length",
        ));
    }
    if address % BORDER_BYTES + u64::from(dwords) * 4 > BORDER_BYTES {
        return Err(TlpError::Malformed(
            "a request across a border of 4,096 bytes",
        ));
    }
    Ok(())
}

fn kind_of(first: &First, header: &[u8]) -> Result<Kind, TlpError> {
    let [a, b, c, d] = doubleword(header, 1)?;
    let tag = first.tag_high | u16::from(c);
    let request = Request {
        requester: Id(half(a, b)),
        tag,
        first_enable: d & 15,
        last_enable: d >> 4,
    };
    let low = u32::from_be_bytes(doubleword(header, 2)?);
    let is_long = first.format & FORMAT_4DW != 0;
    let (is_write, register) = (first.has_data(), (low & 0xFFC) as u16);
    let target = Id((low >> 16) as u16);
    Ok(match first.kind {
        0 => memory(first, header, request, low)?,
        2 | 4 | 5 if is_long => {
            return Err(TlpError::Malformed("a long header without an address"));
        }
        2 if is_write => Kind::IoWrite {
            request,
            address: low,
        },
        2 => Kind::IoRead {
            request,
            address: low,
        },
        4 | 5 if is_write => Kind::ConfigurationWrite {
            request,
            target,
            register,
            is_local: first.kind == 4,
        },
        4 | 5 => Kind::ConfigurationRead {
            request,
            target,
            register,
            is_local: first.kind == 4,
        },
        10 if is_long => return Err(TlpError::Malformed("a completion with a long header")),
        10 => completion(first, header, low)?,
        16..=23 if is_long => message(first, header, request)?,
        16..=23 => return Err(TlpError::Malformed("a message with a short header")),
        1 | 11 => return Err(TlpError::Unsupported("a locked read")),
        12..=14 => return Err(TlpError::Unsupported("an atomic operation")),
        _ => return Err(TlpError::Unsupported("this type of transaction")),
    })
}

fn memory(first: &First, header: &[u8], request: Request, low: u32) -> Result<Kind, TlpError> {
    let address = match first.format & FORMAT_4DW {
        0 => u64::from(low),
        _ => u64::from(low) << 32 | u64::from(u32::from_be_bytes(doubleword(header, 3)?)),
    };
    if first.format & FORMAT_4DW != 0 && low == 0 {
        return Err(TlpError::Malformed(
            "a long header for an address below 4 GiB",
        ));
    }
    Ok(match first.has_data() {
        true => Kind::MemoryWrite { request, address },
        false => Kind::MemoryRead {
            request,
            address,
            dwords: first.length,
        },
    })
}

fn completion(first: &First, header: &[u8], two: u32) -> Result<Kind, TlpError> {
    let one = u32::from_be_bytes(doubleword(header, 1)?);
    let count = (one & 0xFFF) as u16;
    let status = match one >> 13 & 7 {
        0 => Status::Successful,
        1 => Status::UnsupportedRequest,
        2 => Status::ConfigurationRetry,
        4 => Status::CompleterAbort,
        _ => return Err(TlpError::Malformed("a completion of unknown status")),
    };
    Ok(Kind::Completion {
        completer: Id((one >> 16) as u16),
        requester: Id((two >> 16) as u16),
        tag: first.tag_high | (two >> 8 & 0xFF) as u16,
        status,
        byte_count: if count == 0 { 4_096 } else { count },
        lower_address: (two & 0x7F) as u8,
    })
}

fn message(first: &First, header: &[u8], request: Request) -> Result<Kind, TlpError> {
    let high = u64::from(u32::from_be_bytes(doubleword(header, 2)?));
    let all = high << 32 | u64::from(u32::from_be_bytes(doubleword(header, 3)?));
    let (route, fields) = match first.kind & 7 {
        0 => (MessageRoute::ToRootComplex, all),
        1 => (MessageRoute::ByAddress(all), 0),
        2 => (
            MessageRoute::ById(Id((all >> 48) as u16)),
            all & 0xFFFF_FFFF_FFFF,
        ),
        3 => (MessageRoute::BroadcastFromRoot, all),
        4 => (MessageRoute::Local, all),
        5 => (MessageRoute::GatheredToRoot, all),
        _ => return Err(TlpError::Malformed("a message of unknown route")),
    };
    Ok(Kind::Message {
        requester: request.requester,
        tag: request.tag,
        code: request.last_enable << 4 | request.first_enable,
        route,
        fields,
    })
}
