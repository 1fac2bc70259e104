//! Executes one message: decodes it, checks it against every session's limits, and answers it here
//! or hands it to the device.

use std::{
    thread,
    time::{Duration, Instant},
};

use outboard_api::CUresult;
use outboard_device::{self as device, Cx, Device, Failure, Outcome, Pending, images::ImageStore};
use outboard_link::RdmaTarget;
use outboard_wire::{
    DecodeError, Message, Op, Reader, Writer, doc,
    handshake::Purpose,
    limits::CHUNK_BYTES_MAX,
    messages::{
        CopyOut, Echo, EchoReply, FenceContext, FenceStream, ImageGet, ImageGetReply, ImageOffer,
        ImageOfferReply, ImagePut, Request, gives_back, is_bulk, is_light, is_question,
    },
};

use super::{
    exposed::{Exposed, Source},
    foresight::{Awaited, Fence},
    limits,
    waiting::Queue,
};

/// The result of executing a message.
pub(super) struct Executed {
    pub(super) outcome: Result<Outcome, Failure>,
    /// The stream whose order a pending answer follows.
    pub(super) stream: Option<u64>,
    /// Length of the data in a pending reply, in bytes, if the reply has data.
    pub(super) reply_bytes: Option<u64>,
    /// Client memory that the reply's data is written to, if the link has remote memory.
    pub(super) to: Option<RdmaTarget>,
    /// Device memory that the adapter reads the data from, once the pending mark is reached.
    pub(super) source: Option<Source>,
}

impl Executed {
    /// A fence that was made before its message came.
    pub(super) fn foreseen(fence: Pending, awaited: Option<Awaited>) -> Executed {
        let stream = match awaited {
            Some(Awaited::Fence(Fence { stream, .. })) => stream,
            _ => None,
        };
        Executed {
            stream,
            ..Executed::of(Ok(Outcome::Wait(fence)))
        }
    }

    pub(super) fn of(outcome: Result<Outcome, Failure>) -> Executed {
        Executed {
            outcome,
            stream: None,
            reply_bytes: None,
            to: None,
            source: None,
        }
    }
}

/// Returns the queue that a fence waits for, if the message is a fence.
///
/// No fence may be answered before the copies sent before it. Copies of its own queue are always
/// answered first, even if they become ordinary copies after the fence was executed. Copies of
/// other queues must become ordinary copies before the fence is executed; for a context's fence
/// these are the copies of all streams.
pub(super) fn fence_queue(op: u16, context: u64, body: &Reader<'_>) -> Option<Queue> {
    match op {
        FenceStream::NUMBER => {
            let fence = FenceStream::decode(&mut body.clone()).ok()?;
            let stream = fence.stream;
            Some(Queue::Stream { context, stream })
        }
        FenceContext::NUMBER => Some(Queue::Own),
        _ => None,
    }
}

/// Executes one message. The error means that the client broke the protocol; every other failure is
/// in `Executed::outcome`.
pub(super) fn execute<'a>(
    device: &mut dyn Device,
    purpose: Purpose,
    cx: &mut Cx<'_>,
    exposed: &mut Exposed,
    op: u16,
    mut body: Reader<'a>,
    reply: &mut Vec<u8>,
) -> Result<Executed, DecodeError> {
    let (request, to) = without_target(Request::decode(op, &mut body)?);
    body.end()?;
    let (stream, reply_bytes) = match &request {
        Request::CopyOut(m) => (Some(m.stream), Some(m.len)),
        Request::CopyBoxOut(m) => (Some(m.stream), Some(box_bytes(m.desc))),
        Request::FenceStream(m) => (Some(m.stream), None),
        Request::Echo(m) => (None, Some(u64::from(m.answer_bytes))),
        _ => (None, None),
    };
    let mut source = None;
    let outcome = check(purpose, op, reply_bytes)
        .and_then(|()| match &request {
            Request::CopyOut(m) => {
                source = exposed.source(device, cx.context, m);
                let pending = match &source {
                    Some(source) => device.mark(cx, source.stream),
                    None => device.copy_out(cx, m),
                };
                pending.map(Outcome::Wait)
            }
            Request::MemoryExpose(m) => lay_out(&exposed.expose(device, m)?, reply),
            Request::MemoryConceal(m) => {
                exposed.conceal(m.base);
                Ok(Outcome::Done)
            }
            Request::Ping(_) => Ok(Outcome::Done),
            Request::Echo(m) => echo(m, reply),
            Request::ImageOffer(m) => offer(cx.images, m, reply),
            Request::ImagePut(m) => put(cx.images, m),
            Request::ImageGet(m) => get(cx.images, m, reply),
            request => {
                match request {
                    Request::MemUnmap(m) => exposed.forget(m.va, m.len),
                    Request::AllocationUnmap(m) => exposed.forget(m.va, m.len),
                    Request::AllocationAccess(m) => exposed.forget(m.va, m.len),
                    _ => {}
                }
                device::dispatch(device, cx, request, reply)
            }
        })
        .and_then(|outcome| fits_frame(reply.len()).map(|()| outcome));
    Ok(Executed {
        outcome,
        stream,
        reply_bytes,
        to,
        source,
    })
}

/// Makes a copy into the client's memory an ordinary copy, and returns that memory beside it.
fn without_target(request: Request<'_>) -> (Request<'_>, Option<RdmaTarget>) {
    match request {
        Request::CopyOutTo(m) => {
            let (src, len, stream) = (m.src, m.len, m.stream);
            let to = RdmaTarget {
                address: m.to,
                key: m.key,
            };
            (Request::CopyOut(CopyOut { src, len, stream }), Some(to))
        }
        request => (request, None),
    }
}

/// Refuses a reply that is longer than one frame.
fn fits_frame(len: usize) -> Result<(), Failure> {
    match len {
        0..=limits::REPLY_BYTES_MAX => Ok(()),
        _ => Err(Failure::new(
            CUresult::CUDA_ERROR_NOT_SUPPORTED,
            format!(
                "an answer of {len} bytes; at most {} fit into a frame (REPLY_BYTES_MAX)",
                limits::REPLY_BYTES_MAX
            ),
        )),
    }
}

fn check(purpose: Purpose, op: u16, reply_bytes: Option<u64>) -> Result<(), Failure> {
    if purpose != Purpose::Session && !is_question(op) {
        return Err(Failure::new(
            CUresult::CUDA_ERROR_NOT_PERMITTED,
            "this connection was opened for questions about the devices only",
        ));
    }
    check_budget(op)?;
    match reply_bytes {
        Some(len) if len > CHUNK_BYTES_MAX as u64 => Err(too_long(len)),
        _ => Ok(()),
    }
}

/// Refuses a message that may take memory if the client has used up its budget. One that brings
/// data first waits a little for work that gives memory back.
fn check_budget(op: u16) -> Result<(), Failure> {
    outboard_budget::settle();
    if is_bulk(op) && outboard_budget::is_tight() && outboard_budget::check().is_ok() {
        let until = Instant::now() + Duration::from_millis(limits::TIGHT_MS_MAX);
        while outboard_budget::is_tight() && Instant::now() < until {
            thread::sleep(Duration::from_micros(limits::TIGHT_LOOK_US));
        }
    }
    match (gives_back(op), is_light(op)) {
        (true, _) => Ok(()),
        (false, true) => Ok(outboard_budget::check_light()?),
        (false, false) => Ok(outboard_budget::check()?),
    }
}

fn too_long(len: u64) -> Failure {
    Failure::new(
        CUresult::CUDA_ERROR_INVALID_VALUE,
        format!(
            "{len} bytes asked for in one answer; at most {CHUNK_BYTES_MAX} fit (CHUNK_BYTES_MAX)"
        ),
    )
}

/// Length of the box's rows without padding, in bytes. Returns 0 for a description that cannot be
/// decoded, which the device then refuses.
pub(super) fn box_bytes(desc: &[u8]) -> u64 {
    doc::from_bytes::<doc::CopyBox>(desc).map_or(0, |desc| {
        desc.width
            .saturating_mul(desc.height)
            .saturating_mul(desc.depth)
    })
}

fn offer(
    images: &mut ImageStore,
    m: &ImageOffer<'_>,
    reply: &mut Vec<u8>,
) -> Result<Outcome, Failure> {
    let hash = ImageStore::hash(m.hash)?;
    let present = u8::from(images.offer(&hash, m.len));
    lay_out(&ImageOfferReply { present }, reply)
}

fn put(images: &mut ImageStore, m: &ImagePut<'_>) -> Result<Outcome, Failure> {
    let hash = ImageStore::hash(m.hash)?;
    images.put(&hash, m.offset, m.len, m.data)?;
    Ok(Outcome::Done)
}

fn get(images: &mut ImageStore, m: &ImageGet<'_>, reply: &mut Vec<u8>) -> Result<Outcome, Failure> {
    if m.len > CHUNK_BYTES_MAX as u64 {
        return Err(too_long(m.len));
    }
    let image = images.get(&ImageStore::hash(m.hash)?)?;
    let data = usize::try_from(m.offset)
        .ok()
        .zip(
            m.offset
                .checked_add(m.len)
                .and_then(|end| usize::try_from(end).ok()),
        )
        .and_then(|(start, end)| image.get(start..end))
        .ok_or_else(|| {
            Failure::new(
                CUresult::CUDA_ERROR_INVALID_VALUE,
                format!(
                    "{} bytes at {} of an image of {}",
                    m.len,
                    m.offset,
                    image.len()
                ),
            )
        })?;
    lay_out(&ImageGetReply { data: data.into() }, reply)
}

fn echo(m: &Echo<'_>, reply: &mut Vec<u8>) -> Result<Outcome, Failure> {
    let data = vec![0; m.answer_bytes as usize];
    lay_out(
        &EchoReply {
            data: data[..].into(),
        },
        reply,
    )
}

pub(super) fn lay_out<'a, M: Message<'a>>(
    answer: &M,
    reply: &mut Vec<u8>,
) -> Result<Outcome, Failure> {
    reply.resize(answer.encoded_len(), 0);
    answer
        .encode(&mut Writer::new(reply))
        .map_err(|e| Failure::new(CUresult::CUDA_ERROR_UNKNOWN, e.to_string()))?;
    Ok(Outcome::Done)
}
