//! News of a program's lease: a file that the lease's holder replaces, and the management library
//! in the program's processes reads.
//!
//! A line is `NUMBER attached UUID DOMAIN:BUS:DEVICE`, `NUMBER detached ...` or `NUMBER lost ...
//! XID`, with hexadecimal addresses. Numbers grow. The file has the last [`EVENTS_MAX`] lines.

use std::fmt;

/// Names the file with the news of the program's lease.
pub const NEWS_VARIABLE: &str = "OUTBOARD_LEASE_NEWS";
/// Events that the file has at most.
pub const EVENTS_MAX: usize = 256;
/// Length of the file.
pub const NEWS_BYTES_MAX: u64 = 64 << 10;

/// A change of a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseEvent {
    pub number: u64,
    pub change: LeaseChange,
    /// UUID of the GPU, as the management library spells it.
    pub uuid: String,
    /// Domain, bus and device of the GPU in its box.
    pub pci: (u32, u32, u32),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseChange {
    Attached,
    Detached,
    /// The GPU is broken, gone, or its box is silent.
    Lost {
        /// Number of the driver's error, if that is the reason.
        xid: Option<u32>,
    },
}

impl fmt::Display for LeaseEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (word, xid) = match self.change {
            LeaseChange::Attached => ("attached", None),
            LeaseChange::Detached => ("detached", None),
            LeaseChange::Lost { xid } => ("lost", xid),
        };
        let (domain, bus, device) = self.pci;
        write!(f, "{} {word} {} ", self.number, self.uuid)?;
        write!(f, "{domain:x}:{bus:x}:{device:x}")?;
        xid.map_or(Ok(()), |xid| write!(f, " {xid}"))
    }
}

/// Reads the file's text. Lines that are no events are left out.
pub fn events(text: &str) -> impl Iterator<Item = LeaseEvent> {
    text.lines().filter_map(event)
}

fn event(line: &str) -> Option<LeaseEvent> {
    let mut words = line.split(' ');
    let number = words.next()?.parse().ok()?;
    let word = words.next()?;
    let uuid = words.next()?.to_owned();
    let mut place = words.next()?.split(':');
    let mut part = || u32::from_str_radix(place.next()?, 16).ok();
    let pci = (part()?, part()?, part()?);
    let xid = words.next().and_then(|digits| digits.parse().ok());
    let change = match word {
        "attached" => LeaseChange::Attached,
        "detached" => LeaseChange::Detached,
        "lost" => LeaseChange::Lost { xid },
        _ => return None,
    };
    Some(LeaseEvent {
        number,
        change,
        uuid,
        pci,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_read_as_it_was_written() {
        let of = |number, change| LeaseEvent {
            number,
            change,
            uuid: "GPU-00112233-4455-6677-8899-aabbccddeeff".into(),
            pci: (0, 0x5d, 0x1f),
        };
        let written = [
            of(1, LeaseChange::Attached),
            of(2, LeaseChange::Detached),
            of(3, LeaseChange::Lost { xid: Some(79) }),
            of(u64::MAX, LeaseChange::Lost { xid: None }),
        ];
        let lines: Vec<String> = written.iter().map(LeaseEvent::to_string).collect();
        assert_eq!(
            lines[2],
            "3 lost GPU-00112233-4455-6677-8899-aabbccddeeff 0:5d:1f 79"
        );
        let text = format!(
            "{}\n5 renamed GPU 0:0:0\n\n6 lost GPU 0:0\nx",
            lines.join("\n")
        );
        assert_eq!(events(&text).collect::<Vec<_>>(), written);
        // The last line is as long as any.
        assert!((lines[3].len() + 1) * EVENTS_MAX < NEWS_BYTES_MAX as usize);
    }
}
