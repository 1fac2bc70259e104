//! The meeting of a program whose queue is one of an RDMA device at the server: the program meets
//! others as one with a device of its own does, and the server connects.

use std::net::TcpStream;

use outboard_verbs::Remote;
use outboard_wire::doc::{NetAnswer, NetCall, NetReach};

use super::session::{NOTHING, Number, done, wrong};
use crate::{
    error::Error,
    meet::{Meeting, Window},
    reach,
};

/// Says where a queue pair is reached, in words of the wire.
pub(super) fn said(of: &Remote) -> NetReach {
    NetReach {
        number: of.number,
        psn: of.psn,
        gid: of.gid,
        lid: of.lid,
        mtu: of.mtu,
    }
}

/// Reads where a queue pair is reached, as the other side has said it.
pub(super) fn heard(of: &NetReach) -> Remote {
    reach::checked(Remote {
        number: of.number,
        psn: of.psn,
        gid: of.gid,
        lid: of.lid,
        mtu: of.mtu,
    })
}

/// Connects a queue to one of another process. Returns the memory that it offers.
pub(super) fn meet(
    number: &Number,
    qpn: u32,
    meeting: Meeting<'_>,
    mine: Window,
) -> Result<Window, Error> {
    let of_mine = match number.call(&NetCall::Reached { qpn }, NOTHING)? {
        NetAnswer::Reached(of_mine) => heard(&of_mine),
        other => return Err(wrong(&other)),
    };
    let connect = |theirs: &Remote, _: &TcpStream| {
        let peer = said(theirs);
        done(number.call(&NetCall::Reach { qpn, peer }, NOTHING)?)
    };
    reach::meet(meeting, &of_mine, (mine, 0), connect).map(|(window, _)| window)
}
