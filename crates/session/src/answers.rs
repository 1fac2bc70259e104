//! Sends replies that have become ready, and turns adapter copies into ordinary copies.

use std::{cell::Cell, time::Instant};

use outboard_device::{Cx, Device, Failure, Pending, images::ImageStore};
use outboard_wire::messages::CopyOut;
use tracing::trace;

use super::{
    aside::Room,
    data_connections::{Answer, DataConnections},
    exposed::Source,
    limits,
    message_stats::{self, Counters},
    outbox::{Outbox, Placed},
    waiting::{Waiting, WaitingList},
};

/// Starts an ordinary copy from the device in place of one that the adapter was to read.
pub(super) fn restaged(
    device: &mut dyn Device,
    images: &mut ImageStore,
    source: &Source,
) -> Result<Pending, Failure> {
    let mut no_fds = |_| Err(Failure::unsupported("a file descriptor with a copy"));
    let mut cx = Cx {
        context: source.context,
        images,
        placed: None,
        fds: &mut no_fds,
        service: &mut |_, _| true,
        unserved: Some(&Cell::new(false)),
    };
    let m = CopyOut {
        src: source.src,
        len: source.len,
        stream: source.stream,
    };
    device.copy_out(&mut cx, &m)
}

/// Treatment of data for which there is no room on its way to the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WithoutRoom {
    /// It is left, with all that becomes ready after it, and the client is served meanwhile.
    Leave,
    /// It is waited for: something must reach the client after it.
    Wait,
}

/// Returns whether a reply can be sent at once, as far as it is known.
pub(super) fn has_room(
    entry: &Waiting,
    own: Option<&Room>,
    data_connections: &DataConnections,
) -> bool {
    let is_own = || own.is_none_or(Room::is_there);
    let is_theirs = || !entry.on_data_connection || data_connections.have_room();
    !entry.gives_data() || is_own() && is_theirs()
}

/// Sends the replies that are ready.
pub(super) fn send_answers(
    waiting: &mut WaitingList,
    outbox: &mut Outbox,
    data_connections: &DataConnections,
    stats: &Counters,
    without_room: WithoutRoom,
) -> Result<(), outboard_link::Error> {
    let now = Instant::now();
    let (own, pending) = (outbox.room(), waiting.len());
    let mut sent_bytes = 0;
    let may_go = |entry: &Waiting| {
        let is_turn = own.is_none() || sent_bytes < limits::SENT_BYTES_MAX;
        sent_bytes += entry.bytes();
        without_room == WithoutRoom::Wait
            || is_turn && has_room(entry, own.as_ref(), data_connections)
    };
    for (entry, result) in waiting.take_ready(now, may_go) {
        stats.waited(entry.op, now - entry.since);
        let Some(entry) = answer_for_peer(entry, &result, outbox, stats)? else {
            continue;
        };
        let Some(entry) = answer_in_place(entry, &result, outbox, stats)? else {
            continue;
        };
        let result = result.and_then(|()| entry.reply_data());
        match (result, entry.token) {
            (Ok(_), 0) => {}
            (Ok(Some(_)), _) if entry.on_data_connection => {
                answer_on_data_connection(entry, outbox, data_connections, stats)?;
                continue;
            }
            (Ok(Some(data)), _) if outbox.leaves(data.len(), pending, now) => {
                stats.answered(entry.op, data.len());
                trace_answer(entry.op, entry.token, "answered by another thread");
                outbox.leave(entry)?;
                continue;
            }
            (Ok(None), token) => outbox.reply(entry.op, token, &[])?,
            (Ok(Some(data)), token) => reply_with_data(entry.op, token, data, outbox, stats)?,
            (Err(failure), 0) => {
                stats.failed(entry.op);
                outbox.fault(entry.of, &failure)?;
            }
            (Err(failure), token) => {
                stats.failed(entry.op);
                outbox.failure(token, &failure)?;
            }
        }
        trace_answer(entry.op, entry.token, "answered");
    }
    Ok(())
}

/// Gives data that is for another server to the way there, and answers without it. Returns any
/// other entry, and one whose copy failed.
fn answer_for_peer(
    mut entry: Waiting,
    result: &Result<(), Failure>,
    outbox: &mut Outbox,
    stats: &Counters,
) -> Result<Option<Waiting>, outboard_link::Error> {
    let Some((way, number)) = entry.to_peer.take().filter(|_| result.is_ok()) else {
        return Ok(Some(entry));
    };
    let (op, token) = (entry.op, entry.token);
    match way.give(number, entry) {
        Ok(()) => {
            stats.answered(op, 0);
            outbox.reply(op, token, &[])?;
        }
        Err(failure) => {
            stats.failed(op);
            outbox.failure(token, &failure)?;
        }
    }
    trace_answer(op, token, "answered, for another server");
    Ok(None)
}

/// Answers with data that an adapter reads where it lies. Returns the entry if its data must be
/// copied, or if it has none to send.
fn answer_in_place(
    entry: Waiting,
    result: &Result<(), Failure>,
    outbox: &mut Outbox,
    stats: &Counters,
) -> Result<Option<Waiting>, outboard_link::Error> {
    let (op, token) = (entry.op, entry.token);
    if result.is_err() || token == 0 {
        return Ok(Some(entry));
    }
    if let Some(source) = &entry.source {
        let bytes = outbox.take_from_device(token, source, entry.to)?;
        stats.answered(op, bytes);
        trace_answer(op, token, "answered from the device's memory");
        return Ok(None);
    }
    match outbox.place(entry)? {
        Placed::Yes(bytes) => {
            stats.answered(op, bytes);
            trace_answer(op, token, "answered from where it lay");
            Ok(None)
        }
        Placed::No(entry) => Ok(Some(entry)),
    }
}

/// Gives the reply's data to a data connection, or sends it as an ordinary reply if there is none.
fn answer_on_data_connection(
    entry: Waiting,
    outbox: &mut Outbox,
    data_connections: &DataConnections,
    stats: &Counters,
) -> Result<(), outboard_link::Error> {
    let (op, token) = (entry.op, entry.token);
    let bytes = entry.reply_data().ok().flatten().map_or(0, <[u8]>::len);
    let header = outbox.data_connection_header(token)?;
    match data_connections.give(Answer { header, entry }) {
        None => {
            outbox.gave();
            stats.answered(op, bytes);
            trace_answer(op, token, "answered on a data connection");
            Ok(())
        }
        Some(Answer { entry, .. }) => {
            let data = entry.reply_data().ok().flatten().unwrap_or_default();
            reply_with_data(op, token, data, outbox, stats)
        }
    }
}

fn reply_with_data(
    op: u16,
    token: u32,
    data: &[u8],
    outbox: &mut Outbox,
    stats: &Counters,
) -> Result<(), outboard_link::Error> {
    stats.answered(op, data.len());
    let len = (data.len() as u32).to_le_bytes();
    outbox.reply(op, token, &[&len, data])
}

fn trace_answer(op: u16, token: u32, how: &str) {
    trace!(op = message_stats::name(op), token, "{how}");
}
