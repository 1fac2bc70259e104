//! The phases of a connection, as nf_conntrack has them, and the windows of both sides.

use super::packet::{ACK, FIN, RST, SYN, Segment};
use super::reason::Reason;
use serde::{Deserialize, Serialize};

/// Distance from the last known byte within which a segment fits if the other side's window is not
/// known.
const BLIND_WINDOW: u32 = 65_535;
/// Such a distance where the other side's segments are never seen.
const ONE_SIDED_WINDOW: u32 = 1 << 20;
/// Window of the least size, for segments that are late.
const WINDOW_MIN: u32 = 66_000;
/// Largest shift of a window (RFC 7323).
const SCALE_MAX: u8 = 14;
const WINDOW_MAX: u32 = (u16::MAX as u32) << SCALE_MAX;
/// Data that may follow a first fragment, whose length says nothing of its packet's.
const FRAGMENTED_MAX: u32 = 65_535;

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
    Doubtful "doubtful" 10_800 "A reset came that its receiver may not have taken; the next segment restores it."
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

    pub(super) fn is_udp(self) -> bool {
        matches!(self, Phase::UdpNew | Phase::UdpAnswered | Phase::UdpStream)
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
    /// It has sent a first fragment: it may have sent more than is known.
    is_cut: bool,
    /// Shift of its windows, if its SYN told one.
    scale: Option<u8>,
    /// The byte after the last one sent.
    end: u32,
    /// The first number of the handshake, plus one.
    begin: u32,
    /// The byte of the other side's that it expects next.
    acknowledged: u32,
    /// Largest window that it has offered, in bytes.
    window: u32,
    /// Number after its FIN.
    fin: Option<u32>,
}

/// Numbers of a segment that did not fit, while those that are known may be old.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Candidate {
    side: Side,
    end: u32,
    acknowledged: u32,
}

/// State of a side when it reset the connection.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Reset {
    side: Side,
    end: u32,
    acknowledged: u32,
}

/// Sequence numbers of a connection.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Numbers {
    client: Sent,
    backend: Sent,
    /// Number that a backend expects which still has an older connection with these ports: the
    /// client's reset with this number ends that one, and not this.
    challenge: Option<u32>,
    /// Segments may have passed that are not known: numbers are learned anew if both sides' agree.
    is_stale: bool,
    candidate: Option<Candidate>,
    reset: Option<Reset>,
    /// Only the client's packets are seen: the backend answers directly.
    pub is_one_sided: bool,
}

/// Effect of a segment on its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    pub phase: Phase,
    /// Its numbers are within the window; one that is not changes nothing.
    pub fits: bool,
}

impl Step {
    fn inside(phase: Phase) -> Step {
        Step { phase, fits: true }
    }

    fn outside(phase: Phase) -> Step {
        Step { phase, fits: false }
    }
}

/// Returns whether `number` lies from `low` to `high`, modulo 2^32.
fn within(number: u32, low: u32, high: u32) -> bool {
    number.wrapping_sub(low) <= high.wrapping_sub(low)
}

/// Returns whether two numbers are at most `distance` apart.
fn is_near(number: u32, other: u32, distance: u32) -> bool {
    let (low, high) = (other.wrapping_sub(distance), other.wrapping_add(distance));
    within(number, low, high)
}

fn is_after(number: u32, other: u32) -> bool {
    (number.wrapping_sub(other) as i32) > 0
}

fn later(number: u32, other: u32) -> u32 {
    if is_after(number, other) {
        number
    } else {
        other
    }
}

impl Sent {
    /// Notes a segment that fits.
    fn note(&mut self, segment: &Segment, is_cut: bool) {
        if segment.is(SYN) {
            self.begin = segment.sequence.wrapping_add(1);
            self.scale = segment.scale;
            self.window = 0;
        }
        if segment.is(SYN) || !self.is_known || is_after(segment.end(), self.end) {
            self.end = segment.end();
        }
        self.is_known = true;
        self.is_cut |= is_cut;
        // The window of a SYN is not scaled.
        let scale = self.scale.filter(|_| !segment.is(SYN)).unwrap_or_default();
        let window = u32::from(segment.window) << scale.min(SCALE_MAX);
        self.window = self.window.max(window);
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

    /// Data of the other side's that it may not have acknowledged yet, and a little more.
    fn reach(&self, other: &Sent) -> u32 {
        let cut = if other.is_cut { FRAGMENTED_MAX } else { 0 };
        self.window.max(WINDOW_MIN) + cut
    }

    fn check(&self) -> Result<(), &'static str> {
        match () {
            () if self.scale.is_some_and(|scale| scale > SCALE_MAX) => {
                Err("a window scale above 14")
            }
            () if self.window > WINDOW_MAX => Err("a window above 1 GiB"),
            () if !self.is_known && (self.has_acknowledged || self.fin.is_some()) => {
                Err("numbers of a side that has sent nothing")
            }
            () => Ok(()),
        }
    }
}

impl Numbers {
    /// Begins with the client's SYN.
    pub(super) fn begin(segment: &Segment, is_one_sided: bool) -> Numbers {
        let mut numbers = Numbers {
            is_one_sided,
            ..Numbers::default()
        };
        numbers.client.note(segment, false);
        numbers
    }

    /// Begins with a segment in the middle. What its sender's SYN told is not known: its window may
    /// be as large as windows are.
    pub(super) fn adopt(segment: &Segment, is_one_sided: bool, is_cut: bool) -> Numbers {
        let mut numbers = Numbers {
            is_one_sided,
            is_stale: true,
            ..Numbers::default()
        };
        numbers.client.scale = Some(SCALE_MAX);
        numbers.backend.scale = Some(SCALE_MAX);
        numbers.client.note(segment, is_cut);
        numbers
    }

    /// Returns these numbers for a balancer that begins later, while segments pass.
    pub(super) fn stale(mut self) -> Numbers {
        self.is_stale = true;
        self
    }

    /// Returns what no balancer would note of a connection in a phase.
    pub(super) fn check(&self, phase: Phase, is_direct: bool) -> Result<(), &'static str> {
        self.client.check()?;
        self.backend.check()?;
        let fins = [self.client.fin, self.backend.fin].into_iter().flatten();
        let fins_min = match phase {
            Phase::FinWait | Phase::CloseWait => 1,
            Phase::LastAck | Phase::TimeWait => 2,
            _ => 0,
        };
        let is_answered = !matches!(phase, Phase::SynSent | Phase::Adopted | Phase::Close);
        match () {
            () if self.is_one_sided != is_direct => Err("numbers of another way to forward"),
            () if !self.client.is_known => Err("a connection without its client's numbers"),
            () if is_answered && !is_direct && !self.backend.is_known => {
                Err("a phase that needs the backend's numbers")
            }
            () if is_direct && self.backend.is_known => {
                Err("numbers of a backend that is not seen")
            }
            () if fins.count() < fins_min => Err("a phase of a connection that nobody has ended"),
            () => Ok(()),
        }
    }

    /// Notes a segment and returns the connection's phase after it, or why it is not sent on. One
    /// that is out of the window is sent on, since its receiver knows better, and changes nothing.
    pub fn follow(
        &mut self,
        phase: Phase,
        side: Side,
        segment: &Segment,
        is_cut: bool,
    ) -> Result<Step, Reason> {
        if segment.is(RST) {
            return self.follow_reset(phase, side, segment);
        }
        match phase {
            Phase::SynSent | Phase::SynReceived => {
                self.follow_opening(phase, side, segment, is_cut)
            }
            // An endpoint answers a SYN that does not belong; its numbers mean nothing.
            _ if segment.is(SYN) => Ok(Step::outside(phase)),
            _ => Ok(self.follow_open(phase, side, segment, is_cut)),
        }
    }

    fn sides(&self, side: Side) -> (&Sent, &Sent) {
        match side {
            Side::Client => (&self.client, &self.backend),
            Side::Backend => (&self.backend, &self.client),
        }
    }

    fn sides_mut(&mut self, side: Side) -> (&mut Sent, &mut Sent) {
        match side {
            Side::Client => (&mut self.client, &mut self.backend),
            Side::Backend => (&mut self.backend, &mut self.client),
        }
    }

    /// Follows a segment of a handshake. Who acknowledges the other's first number has seen it.
    fn follow_opening(
        &mut self,
        phase: Phase,
        side: Side,
        segment: &Segment,
        is_cut: bool,
    ) -> Result<Step, Reason> {
        let is_syn = segment.is(SYN);
        if phase == Phase::SynSent && side == Side::Backend && !is_syn && segment.is(ACK) {
            self.challenge = Some(segment.acknowledged);
            return Ok(Step::outside(phase));
        }
        let next = match side {
            Side::Client => self.client_opens(phase, segment)?,
            Side::Backend => self.backend_opens(phase, segment)?,
        };
        let is_another = segment.sequence.wrapping_add(1) != self.client.begin;
        if side == Side::Client && is_syn && phase == Phase::SynReceived && is_another {
            return Ok(Step::outside(phase));
        }
        self.sides_mut(side).0.note(segment, is_cut);
        if side == Side::Backend && is_syn {
            // Windows are scaled if both say so.
            let is_scaled = self.client.scale.is_some() && self.backend.scale.is_some();
            for sent in [&mut self.client, &mut self.backend] {
                sent.scale = sent.scale.filter(|_| is_scaled);
            }
        }
        Ok(Step::inside(if next.is_half_open() {
            next
        } else {
            self.closing().unwrap_or(next)
        }))
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

    fn follow_open(&mut self, phase: Phase, side: Side, segment: &Segment, is_cut: bool) -> Step {
        let is_learned = !self.fits(side, segment);
        if is_learned && !self.learn(side, segment) {
            return Step::outside(phase);
        }
        self.sides_mut(side).0.note(segment, is_cut);
        let next = match phase {
            // Until the backend has answered, all is the word of one who may not be the client.
            Phase::Adopted if side == Side::Client && !self.is_one_sided && !is_learned => {
                return Step::inside(phase);
            }
            Phase::Close if !self.goes_on(side) => return Step::inside(phase),
            Phase::Close => Phase::Doubtful,
            Phase::Adopted | Phase::Doubtful => Phase::Established,
            phase => phase,
        };
        self.is_stale = false;
        self.candidate = None;
        Step::inside(self.closing().unwrap_or(next))
    }

    /// Returns whether a side has sent or acknowledged something since it reset the connection: it
    /// was somebody else who did.
    fn goes_on(&self, side: Side) -> bool {
        let (own, _) = self.sides(side);
        let has_news = |reset: Reset| {
            is_after(own.end, reset.end) || is_after(own.acknowledged, reset.acknowledged)
        };
        self.reset
            .is_some_and(|reset| reset.side == side && has_news(reset))
    }

    /// Returns whether a segment's numbers show that it is the backend's, wherever it came from.
    pub(super) fn is_backends(&self, phase: Phase, segment: &Segment) -> bool {
        if segment.is(RST) || !segment.is(ACK) {
            return false;
        }
        match phase {
            Phase::SynSent | Phase::SynReceived => self.backend_opens(phase, segment).is_ok(),
            _ => {
                let is_known = self.backend.is_known && !self.is_stale;
                is_known && !segment.is(SYN) && self.fits(Side::Backend, segment)
            }
        }
    }

    /// Returns whether a segment lies within the window that the other side offered, and
    /// acknowledges what that has sent, as nf_conntrack decides it.
    fn fits(&self, side: Side, segment: &Segment) -> bool {
        let (own, other) = self.sides(side);
        let sequence_fits = if own.is_known {
            let low = own.end.wrapping_sub(other.reach(own));
            !is_after(segment.sequence, self.high(side)) && !is_after(low, segment.end())
        } else {
            let reach = other.reach(own);
            !other.has_acknowledged || is_near(segment.sequence, other.acknowledged, reach)
        };
        let acknowledged = segment.acknowledged;
        let acknowledged_fits = if !segment.is(ACK) {
            true
        } else if other.is_known {
            let cut = if other.is_cut { FRAGMENTED_MAX } else { 0 };
            let low = other.end.wrapping_sub(own.reach(other));
            !is_after(low, acknowledged) && !is_after(acknowledged, other.end.wrapping_add(cut))
        } else {
            !own.has_acknowledged || is_near(acknowledged, own.acknowledged, own.reach(other))
        };
        sequence_fits && acknowledged_fits
    }

    /// Returns the highest number that a side may send.
    fn high(&self, side: Side) -> u32 {
        let (own, other) = self.sides(side);
        let unknown = if self.is_one_sided {
            ONE_SIDED_WINDOW
        } else {
            BLIND_WINDOW
        };
        if other.has_acknowledged {
            later(own.end, other.acknowledged.wrapping_add(other.window))
        } else {
            own.end.wrapping_add(unknown)
        }
    }

    /// Learns numbers anew, if those that are known may be old: a segment that does not fit must
    /// agree with one of the other side's. Returns whether it did.
    fn learn(&mut self, side: Side, segment: &Segment) -> bool {
        if !self.is_stale || !segment.is(ACK) {
            return false;
        }
        let new = Candidate {
            side,
            end: segment.end(),
            acknowledged: segment.acknowledged,
        };
        let is_one_sided = self.is_one_sided;
        let (own, other) = self.sides(side);
        let reach = own.reach(other).max(other.reach(own));
        let agreed = self.candidate.filter(|old| {
            if is_one_sided {
                return is_near(old.end, new.end, reach)
                    && is_near(old.acknowledged, new.acknowledged, reach);
            }
            old.side != side
                && is_near(old.acknowledged, new.end, reach)
                && is_near(old.end, new.acknowledged, reach)
        });
        self.candidate = Some(new);
        let Some(old) = agreed else {
            return false;
        };
        for one in [old, new] {
            let (sent, _) = self.sides_mut(one.side);
            (sent.end, sent.acknowledged) = (one.end, one.acknowledged);
            (sent.is_known, sent.has_acknowledged) = (true, true);
        }
        true
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

    /// Follows a reset. Its receiver takes it if it has the very number that comes next, and else
    /// asks its sender, who resets again if it was the one (RFC 5961).
    fn follow_reset(
        &mut self,
        phase: Phase,
        side: Side,
        segment: &Segment,
    ) -> Result<Step, Reason> {
        let is_told = self.challenge == Some(segment.sequence);
        if phase == Phase::SynSent && side == Side::Client && is_told {
            return Ok(Step::outside(phase));
        }
        let (own, other) = self.sides(side);
        let is_answer = !own.is_known && matches!(phase, Phase::SynSent | Phase::SynReceived);
        let (fits, is_exact) = if is_answer {
            // A backend that refuses acknowledges the SYN.
            let fits = segment.is(ACK) && within(segment.acknowledged, other.begin, other.end);
            (fits, fits)
        } else {
            let low = if other.has_acknowledged {
                other.acknowledged
            } else {
                own.end.wrapping_sub(BLIND_WINDOW)
            };
            let is_next = other.has_acknowledged && segment.sequence == other.acknowledged;
            let fits = own.is_known && within(segment.sequence, low, self.high(side));
            (fits, is_next || fits && segment.sequence == own.end)
        };
        if is_exact {
            self.reset = Some(Reset {
                side,
                end: later(own.end, segment.sequence),
                acknowledged: own.acknowledged,
            });
            return Ok(Step::inside(Phase::Close));
        }
        match phase {
            _ if !fits && self.is_stale => Ok(Step::outside(phase)),
            _ if !fits => Err(Reason::ResetOutOfWindow),
            Phase::Established => Ok(Step::inside(Phase::Doubtful)),
            phase => Ok(Step::inside(phase)),
        }
    }
}
