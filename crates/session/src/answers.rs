//! Sends replies that have become ready, and turns adapter copies into ordinary copies.

use std::time::Instant;

use outboard_device::{Cx, Device, Failure, Pending, images::ImageStore};
use outboard_wire::messages::CopyOut;
use tracing::trace;

use super::{
    data_connections::{Answer, DataConnections},
    exposed::Source,
    message_stats::{self, MessageStats},
    outbox::{Outbox, Placed},
    waiting::WaitingList,
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
    };
    let m = CopyOut {
        src: source.src,
        len: source.len,
        stream: source.stream,
    };
    device.copy_out(&mut cx, &m)
}

/// Sends the replies that are ready.
pub(super) fn send_answers(
    waiting: &mut WaitingList,
    outbox: &mut Outbox,
    data_connections: &DataConnections,
    stats: &mut MessageStats,
) -> Result<(), outboard_link::Error> {
    let now = Instant::now();
    for (entry, result) in waiting.take_ready(now) {
        stats.waited(entry.op, now - entry.since);
        let (op, token) = (entry.op, entry.token);
        if let (Some(source), Ok(()), true) = (&entry.source, &result, token != 0) {
            let bytes = outbox.take_from_device(token, source, entry.to)?;
            stats.answered(op, bytes);
            trace!(
                op = message_stats::name(op),
                token, "answered from the device's memory"
            );
            continue;
        }
        let entry = match &result {
            Ok(()) if token != 0 => match outbox.place(entry)? {
                Placed::Yes(bytes) => {
                    stats.answered(op, bytes);
                    trace!(
                        op = message_stats::name(op),
                        token, "answered from where it lay"
                    );
                    continue;
                }
                Placed::No(entry) => entry,
            },
            _ => entry,
        };
        let result = result.and_then(|()| entry.reply_data());
        if entry.on_data_connection
            && token != 0
            && let Ok(Some(data)) = &result
        {
            let bytes = data.len();
            let header = outbox.data_connection_header(token)?;
            match data_connections.give(Answer { header, entry }) {
                None => {
                    outbox.gave();
                    stats.answered(op, bytes);
                    trace!(
                        op = message_stats::name(op),
                        token, "answered on a data connection"
                    );
                }
                Some(Answer { entry, .. }) => {
                    let data = entry.reply_data().ok().flatten().unwrap_or_default();
                    let len = (data.len() as u32).to_le_bytes();
                    stats.answered(op, data.len());
                    outbox.reply(op, token, &[&len, data])?;
                }
            }
            continue;
        }
        match (result, entry.token) {
            (Ok(_), 0) => {}
            (Ok(None), token) => outbox.reply(entry.op, token, &[])?,
            (Ok(Some(data)), token) => {
                stats.answered(entry.op, data.len());
                let len = (data.len() as u32).to_le_bytes();
                outbox.reply(entry.op, token, &[&len, data])?;
            }
            (Err(failure), 0) => {
                stats.failed(entry.op);
                outbox.fault(entry.op, &failure)?;
            }
            (Err(failure), token) => {
                stats.failed(entry.op);
                outbox.failure(token, &failure)?;
            }
        }
        trace!(
            op = message_stats::name(entry.op),
            token = entry.token,
            "answered"
        );
    }
    Ok(())
}
