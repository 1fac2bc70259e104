//! Two nodes that exchange transactions over a network that loses packets, without I/O: the numbers
//! and acknowledgements of [`reliable`](crate::reliable) in both directions, and the packets of
//! [`packet`](crate::packet).
//!
//! The caller sends what is appended to `out`, hands in what arrives, and calls
//! [`Connection::overdue`] from time to time.

use crate::{
    packet::{Body, End, Joiner, Node, PART_BYTES_MAX, Packet, PacketError, Route, split},
    reliable::{Arrival, Full, Receiver, Sender},
    tlp::{Tlp, TlpError},
};

/// Reason why a transaction is not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    #[error(transparent)]
    Full(#[from] Full),
    #[error(transparent)]
    Tlp(#[from] TlpError),
}

/// Counts of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Transactions that have arrived, each once.
    pub arrived: u64,
    /// Packets that were sent again.
    pub repeated: u64,
    /// Packets that had arrived before.
    pub again: u64,
    /// Packets that came before one that was lost, and were thrown away.
    pub early: u64,
}

/// One end of a connection.
#[derive(Debug)]
pub struct Connection {
    /// Way of acknowledgements.
    way: Route,
    packets_max: usize,
    sender: Sender,
    receiver: Receiver,
    joiner: Joiner,
    counts: Counts,
}

impl Connection {
    /// Makes the end of the node `own`. It holds at most `packets_max` packets, and repeats them if
    /// nothing was acknowledged for `again_after_ns`.
    pub fn new(own: Node, peer: Node, packets_max: usize, again_after_ns: u64) -> Connection {
        let end = |node| End { node, slot: 0 };
        Connection {
            way: Route {
                from: end(own),
                to: end(peer),
                path: 0,
            },
            packets_max,
            sender: Sender::new(packets_max, again_after_ns),
            receiver: Receiver::default(),
            joiner: Joiner::default(),
            counts: Counts::default(),
        }
    }

    pub fn counts(&self) -> Counts {
        Counts {
            repeated: self.sender.repeated(),
            ..self.counts
        }
    }

    /// Packets that were sent and are not acknowledged.
    pub fn held(&self) -> usize {
        self.sender.held()
    }

    /// Sends a transaction whole, or refuses it whole.
    pub fn send(
        &mut self,
        tlp: &Tlp<'_>,
        route: Route,
        now_ns: u64,
        out: &mut Vec<Vec<u8>>,
    ) -> Result<(), SendError> {
        if !self
            .sender
            .has_room(1 + tlp.data.len().div_ceil(PART_BYTES_MAX))
        {
            return Err(Full(self.packets_max).into());
        }
        let begin = out.len();
        split(tlp, route, self.sender.next(), |packet| {
            out.push(packet.to_vec());
        })?;
        for packet in &out[begin..] {
            self.sender.hold(packet, now_ns)?;
        }
        Ok(())
    }

    /// Takes a packet that arrives; returns the transaction that it completes, with its route.
    pub fn take(
        &mut self,
        bytes: &[u8],
        now_ns: u64,
        out: &mut Vec<Vec<u8>>,
    ) -> Result<Option<(Route, Tlp<'_>)>, PacketError> {
        let packet = Packet::parse(bytes)?;
        let nodes = (packet.route.from.node, packet.route.to.node);
        if nodes != (self.way.to.node, self.way.from.node) {
            return Err(PacketError::Foreign(packet.route.from.node));
        }
        match packet.body {
            Body::Acknowledged => self.sender.acknowledged(packet.sequence, now_ns),
            Body::Missing => {
                let again = self.sender.missing(packet.sequence, now_ns);
                out.extend(again.map(<[u8]>::to_vec));
            }
            Body::Header { .. } | Body::Data(_) => {
                let arrival = self.receiver.arrived(packet.sequence);
                match arrival {
                    Arrival::Next | Arrival::Again => out.push(self.answer(Body::Acknowledged)),
                    Arrival::Early(true) => out.push(self.answer(Body::Missing)),
                    Arrival::Early(false) => {}
                }
                match arrival {
                    Arrival::Again => self.counts.again += 1,
                    Arrival::Early(_) => self.counts.early += 1,
                    Arrival::Next => {
                        let whole = self.joiner.take(&packet)?;
                        self.counts.arrived += u64::from(whole.is_some());
                        return Ok(whole);
                    }
                }
            }
        }
        Ok(None)
    }

    fn answer(&self, body: Body<'_>) -> Vec<u8> {
        let mut bytes = Vec::new();
        let packet = Packet {
            route: self.way,
            sequence: self.receiver.next(),
            part: 0,
            tlp_data_bytes: 0,
            body,
        };
        packet.emit(&mut bytes);
        bytes
    }

    /// Appends the packets to send again, if nothing was acknowledged for too long.
    pub fn overdue(&mut self, now_ns: u64, out: &mut Vec<Vec<u8>>) {
        out.extend(self.sender.overdue(now_ns).map(<[u8]>::to_vec));
    }
}
