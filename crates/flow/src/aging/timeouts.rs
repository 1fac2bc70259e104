//! The phases of a connection, and after what time without a packet each is over.

/// Flags of a TCP header.
pub const FIN: u8 = 1;
pub const SYN: u8 = 2;
pub const RST: u8 = 4;
pub const ACK: u8 = 16;

/// Phase of a connection, as far as its client's packets tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    #[default]
    SynSent,
    Established,
    FinWait,
    Closed,
    Udp,
    UdpStream,
    Other,
}

impl Phase {
    pub const COUNT: usize = 7;

    /// Returns the phase of a connection whose first packet this is.
    pub fn first(protocol: u8, tcp_flags: u8) -> Phase {
        match protocol {
            6 if tcp_flags & RST != 0 => Phase::Closed,
            6 if tcp_flags & SYN != 0 => Phase::SynSent,
            6 => Phase::Established,
            17 => Phase::Udp,
            _ => Phase::Other,
        }
    }

    /// Returns the phase after a further packet.
    #[inline]
    pub fn after(self, tcp_flags: u8) -> Phase {
        match self {
            Phase::Udp | Phase::UdpStream => Phase::UdpStream,
            Phase::Other => Phase::Other,
            _ if tcp_flags & RST != 0 => Phase::Closed,
            // A new connection with the addresses and ports of one that is over.
            Phase::Closed | Phase::FinWait if tcp_flags & SYN != 0 => Phase::SynSent,
            Phase::SynSent | Phase::Established if tcp_flags & FIN != 0 => Phase::FinWait,
            Phase::SynSent if tcp_flags & (ACK | SYN) == ACK => Phase::Established,
            phase => phase,
        }
    }
}

/// Time for each phase, in milliseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeouts([u32; Phase::COUNT]);

impl Timeouts {
    /// The defaults of Linux's nf_conntrack.
    pub const LINUX: Timeouts = Timeouts([
        120_000,
        432_000_000,
        120_000,
        10_000,
        30_000,
        120_000,
        600_000,
    ]);

    /// One time for all phases.
    pub const fn all(ms: u32) -> Timeouts {
        Timeouts([ms; Phase::COUNT])
    }

    #[inline]
    pub fn of(&self, phase: Phase) -> u32 {
        self.0[phase as usize]
    }

    pub fn set(&mut self, phase: Phase, ms: u32) {
        self.0[phase as usize] = ms;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_lead_through_the_phases() {
        let mut phase = Phase::first(6, SYN);
        for (flags, next) in [
            (SYN, Phase::SynSent),
            (ACK, Phase::Established),
            (ACK, Phase::Established),
            (FIN | ACK, Phase::FinWait),
            (ACK, Phase::FinWait),
            (SYN, Phase::SynSent),
            (RST, Phase::Closed),
            (ACK, Phase::Closed),
            (SYN, Phase::SynSent),
            (FIN, Phase::FinWait),
        ] {
            phase = phase.after(flags);
            assert_eq!(phase, next);
        }
        assert_eq!(Phase::first(17, 0).after(0), Phase::UdpStream);
        assert_eq!(Phase::first(1, 0).after(0), Phase::Other);
        assert_eq!(Phase::first(6, ACK), Phase::Established);
        assert_eq!(Timeouts::LINUX.of(Phase::UdpStream), 120_000);
    }
}
