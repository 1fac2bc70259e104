//! The phases of a connection, as nf_conntrack has them, and the windows of both sides.

use super::packet::{ACK, FIN, RST, SYN, Segment};
use super::reason::Reason;
use serde::{Deserialize, Serialize};

/// Distance from the last known byte within which a reset is accepted if the other side's window
/// is not known.
const BLIND_WINDOW: u32 = 65_535;

macro_rules! phases {
    ($($name:ident $label:literal $seconds:literal $text:literal)*) => {
        /// Phase of a connection.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        pub enum Phase {
            $(#[doc = $text] #[serde(rename = $label)] $name,)*
        }

        impl Phase {
            pub const ALL: &[Phase] = &[$(Phase::$name),*];

            pub const fn label(self) -> &'static str {
                match self {
                    $(Phase::$name => $label,)*
                }
            }
        }

        /// Time without a packet after which a connection is over, for each phase.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct Timeouts([u64; Phase::ALL.len()]);

        impl Default for Timeouts {
            /// The defaults of nf_conntrack.
            fn default() -> Timeouts {
                Timeouts([$($seconds * 1000),*])
            }
        }
    };
}

phases! {
    SynSent "syn_sent" 120 "The client's SYN was sent on."
    SynReceived "syn_received" 60 "The backend has answered it."
    Established "established" 432_000 "The client has answered the backend's SYN."
    FinWait "fin_wait" 120 "One side has ended."
    CloseWait "close_wait" 60 "The other side has seen that."
    LastAck "last_ack" 30 "Both sides have ended."
    TimeWait "time_wait" 120 "Both have seen that."
    Close "close" 10 "A side has reset the connection."
    Adopted "adopted" 60 "Begun in the middle; the backend has not answered yet."
    UdpNew "udp_new" 30 "No answer was seen yet."
    UdpAnswered "udp_answered" 30 "One answer was seen."
    UdpStream "udp_stream" 120 "Packets of both sides were seen, and another of the client's."
}

impl Timeouts {
    pub fn of(&self, phase: Phase) -> u64 {
        self.0[phase as usize]
    }

    pub fn set(&mut self, phase: Phase, ms: u64) {
        self.0[phase as usize] = ms;
    }
}

impl Phase {
    /// Returns whether the connection's opening is not yet confirmed by both sides.
    pub fn is_half_open(self) -> bool {
        use Phase::{Adopted, SynReceived, SynSent, UdpNew};
        matches!(self, SynSent | SynReceived | Adopted | UdpNew)
    }

    /// Returns the phase of a UDP connection after a packet of one side.
    pub(super) fn after_udp(self, side: Side, is_one_sided: bool) -> Phase {
        match (self, side) {
            (Phase::UdpNew, Side::Backend) => Phase::UdpAnswered,
            (Phase::UdpNew, Side::Client) if is_one_sided => Phase::UdpStream,
            (Phase::UdpAnswered, Side::Client) => Phase::UdpStream,
            (phase, _) => phase,
        }
    }

    /// Returns whether a SYN of the client opens a new connection in place of this one.
    pub fn is_over(self) -> bool {
        matches!(self, Phase::TimeWait | Phase::Close)
    }
}

/// Sender of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Side {
    Client,
    Backend,
}

/// Sequence numbers of one side, as its packets told.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Sent {
    is_known: bool,
    has_acknowledged: bool,
    /// The byte after the last one sent.
    end: u32,
    /// The first number of the handshake, plus one.
    begin: u32,
    /// The byte of the other side's that it expects next.
    acknowledged: u32,
    /// Largest window that it has offered, in bytes.
    window: u32,
    scale: u8,
    /// Number after its FIN.
    fin: Option<u32>,
}

/// Sequence numbers of a connection.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Numbers {
    client: Sent,
    backend: Sent,
    /// Number that a backend expects which still has an older connection with these ports: the
    /// client's reset with this number ends that one, and not this.
    challenge: Option<u32>,
    /// Only the client's packets are seen: the backend answers directly.
    pub is_one_sided: bool,
}

/// Returns whether `number` lies from `low` to `high`, modulo 2^32.
fn within(number: u32, low: u32, high: u32) -> bool {
    number.wrapping_sub(low) <= high.wrapping_sub(low)
}

fn is_after(number: u32, other: u32) -> bool {
    (number.wrapping_sub(other) as i32) > 0
}

impl Sent {
    fn note(&mut self, segment: &Segment) {
        if !self.is_known || is_after(segment.end(), self.end) {
            self.end = segment.end();
        }
        if segment.is(SYN) {
            self.begin = segment.sequence.wrapping_add(1);
            self.end = segment.end();
            self.scale = segment.scale.unwrap_or_default();
        }
        self.is_known = true;
        // The window of a SYN is not scaled.
        let scale = if segment.is(SYN) { 0 } else { self.scale };
        self.window = self.window.max(u32::from(segment.window) << scale);
        if segment.is(ACK)
            && (!self.has_acknowledged || is_after(segment.acknowledged, self.acknowledged))
        {
            (self.acknowledged, self.has_acknowledged) = (segment.acknowledged, true);
        }
        if segment.is(FIN) {
            self.fin = Some(segment.end());
        }
    }

    fn has_seen_fin_of(&self, other: &Sent) -> bool {
        other
            .fin
            .is_some_and(|fin| self.has_acknowledged && !is_after(fin, self.acknowledged))
    }
}

impl Numbers {
    /// Begins with the client's first segment.
    pub(super) fn begin(segment: &Segment, is_one_sided: bool) -> Numbers {
        let mut numbers = Numbers {
            is_one_sided,
            ..Numbers::default()
        };
        numbers.client.note(segment);
        numbers
    }

    /// Notes a segment and returns the connection's phase after it, or why it does not fit.
    pub fn follow(&mut self, phase: Phase, side: Side, segment: &Segment) -> Result<Phase, Reason> {
        let is_opening = phase == Phase::SynSent;
        if is_opening && side == Side::Backend && !segment.is(SYN | RST) && segment.is(ACK) {
            self.challenge = Some(segment.acknowledged);
            return Ok(phase);
        }
        if segment.is(RST) {
            let answers = self.challenge == Some(segment.sequence);
            if is_opening && side == Side::Client && answers {
                return Ok(phase);
            }
            return self
                .check_reset(phase, side, segment)
                .map(|()| Phase::Close);
        }
        let next = match (phase, side) {
            (Phase::SynSent | Phase::SynReceived, Side::Client) => {
                self.client_opens(phase, segment)?
            }
            (Phase::SynSent | Phase::SynReceived, Side::Backend) => {
                self.backend_opens(phase, segment)?
            }
            (Phase::Adopted, Side::Client) if !self.is_one_sided => phase,
            (Phase::Adopted, _) => Phase::Established,
            // An endpoint answers a SYN that does not belong; its numbers mean nothing.
            _ if segment.is(SYN) => return Ok(phase),
            (phase, _) => phase,
        };
        self.of(side).note(segment);
        Ok(if next.is_half_open() || next == Phase::Close {
            next
        } else {
            self.closing().unwrap_or(next)
        })
    }

    fn of(&mut self, side: Side) -> &mut Sent {
        match side {
            Side::Client => &mut self.client,
            Side::Backend => &mut self.backend,
        }
    }

    fn client_opens(&self, phase: Phase, segment: &Segment) -> Result<Phase, Reason> {
        if segment.is(SYN) {
            let is_answer = segment.is(ACK);
            return if is_answer {
                Err(Reason::BadHandshake)
            } else {
                Ok(phase)
            };
        }
        let fits = if self.is_one_sided {
            within(segment.sequence, self.client.begin, self.client.end)
        } else {
            let backend = &self.backend;
            phase == Phase::SynReceived && within(segment.acknowledged, backend.begin, backend.end)
        };
        if segment.is(ACK) && fits {
            Ok(Phase::Established)
        } else {
            Err(Reason::BadHandshake)
        }
    }

    fn backend_opens(&self, phase: Phase, segment: &Segment) -> Result<Phase, Reason> {
        let client = &self.client;
        let answers = segment.is(ACK) && within(segment.acknowledged, client.begin, client.end);
        match (answers, phase) {
            (true, _) if segment.is(SYN) => Ok(Phase::SynReceived),
            // Data before the client's answer: TCP Fast Open.
            (true, Phase::SynReceived) => Ok(phase),
            _ => Err(Reason::BadHandshake),
        }
    }

    /// Returns the phase if a side has ended.
    fn closing(&self) -> Option<Phase> {
        let (client, backend) = (&self.client, &self.backend);
        let seen = |by: &Sent, other: &Sent| by.has_seen_fin_of(other);
        match (client.fin, backend.fin) {
            (None, None) => None,
            (Some(_), Some(_)) if seen(client, backend) && seen(backend, client) => {
                Some(Phase::TimeWait)
            }
            (Some(_), Some(_)) => Some(Phase::LastAck),
            (Some(_), None) if seen(backend, client) => Some(Phase::CloseWait),
            (None, Some(_)) if seen(client, backend) => Some(Phase::CloseWait),
            _ => Some(Phase::FinWait),
        }
    }

    /// Checks that a reset lies within the window that the other side offered.
    fn check_reset(&self, phase: Phase, side: Side, segment: &Segment) -> Result<(), Reason> {
        let (own, other) = match side {
            Side::Client => (&self.client, &self.backend),
            Side::Backend => (&self.backend, &self.client),
        };
        let fits = if !own.is_known && phase.is_half_open() {
            // A backend that refuses acknowledges the SYN.
            segment.is(ACK) && within(segment.acknowledged, other.begin, other.end)
        } else if other.has_acknowledged {
            let window = other.acknowledged.wrapping_add(other.window);
            let high = if is_after(own.end, window) {
                own.end
            } else {
                window
            };
            within(segment.sequence, other.acknowledged, high)
        } else if own.is_known {
            let low = own.end.wrapping_sub(BLIND_WINDOW);
            within(segment.sequence, low, own.end.wrapping_add(BLIND_WINDOW))
        } else {
            true
        };
        if fits {
            Ok(())
        } else {
            Err(Reason::ResetOutOfWindow)
        }
    }
}
