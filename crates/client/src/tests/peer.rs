//! The server of a test: a thread that notes each message and answers by the test's script.

use std::{sync::Arc, thread};

use outboard_api::CUresult;
use outboard_link::{Link, Sender, Wait};
use outboard_wire::{
    Message, Reader, Writer,
    frame::{HEADER_BYTES, ReplyHeader, RequestHeader},
    messages::{FaultNote, LibraryLoadReply, PrintNote, Request},
};
use parking_lot::Mutex;

use super::library;

/// The answer to one message.
pub(super) enum Answer {
    /// A reply of zeros, which every request accepts, or the library of the tests.
    Usual,
    /// The reply with these fields.
    Reply(Vec<u8>),
    /// An error in place of a reply.
    Error(CUresult),
    /// No reply.
    Nothing,
    /// A reply when the script releases it.
    Later,
    /// Bytes that are no reply.
    Raw(Vec<u8>),
    /// The end of the connection.
    Leave,
}

/// Sends messages that nobody asked for, and replies that were put off.
pub(super) struct Notes<'s> {
    sender: &'s mut Sender,
    late: &'s mut Vec<u32>,
    /// The context of the message at hand.
    context: u64,
}

impl Notes<'_> {
    pub(super) fn fault(&mut self, status: CUresult) {
        let note = FaultNote {
            op: 0,
            status: status.0,
            sticky: u8::from(status.is_sticky()),
            context: self.context,
            ended: 0,
            message: b"a test",
        };
        self.send(FaultNote::NUMBER, &note);
    }

    pub(super) fn print(&mut self, text: &[u8]) {
        self.send(PrintNote::NUMBER, &PrintNote { fd: 1, text });
    }

    /// Sends the replies that were put off.
    pub(super) fn release(&mut self) {
        self.release_with(&[0; 64]);
    }

    /// Sends the replies that were put off, with these fields.
    pub(super) fn release_with(&mut self, body: &[u8]) {
        for token in self.late.drain(..) {
            let head = header(0, token, CUresult::CUDA_SUCCESS);
            send(self.sender, head, body);
        }
    }

    fn send<'a, M: Message<'a>>(&mut self, number: u16, note: &M) {
        send(
            self.sender,
            header(number, 0, CUresult::CUDA_SUCCESS),
            &encoded(note),
        );
    }
}

/// Returns a message's fields as they are sent.
pub(super) fn encoded<'a, M: Message<'a>>(message: &M) -> Vec<u8> {
    let mut bytes = vec![0; message.encoded_len()];
    message
        .encode(&mut Writer::new(&mut bytes))
        .expect("room for it");
    bytes
}

/// The test's view of its server.
pub(super) struct Peer {
    seen: Arc<Mutex<Vec<String>>>,
}

impl Peer {
    /// Starts a server. `script` decides about answers; it is called for each message, also for
    /// those without a reply, and can send notes before the answer.
    pub(super) fn start(
        link: Link,
        script: impl FnMut(&Request<'_>, &mut Notes<'_>) -> Answer + Send + 'static,
    ) -> Peer {
        let seen = Arc::new(Mutex::default());
        let noted = seen.clone();
        thread::spawn(move || serve(link, script, &noted));
        Peer { seen }
    }

    /// Returns all messages so far, as they are printed.
    pub(super) fn seen(&self) -> Vec<String> {
        self.seen.lock().clone()
    }
}

/// Serves until either side ends.
fn serve(
    link: Link,
    mut script: impl FnMut(&Request<'_>, &mut Notes<'_>) -> Answer,
    seen: &Mutex<Vec<String>>,
) {
    let (mut sender, mut receiver) = link.split();
    let mut late = Vec::new();
    while let Ok(frame) = receiver.recv(Wait::Forever) {
        let Some(frame) = frame else { continue };
        let mut reader = Reader::new(frame);
        let request = RequestHeader::decode(&mut reader)
            .and_then(|header| Ok((header, Request::decode(header.op, &mut reader)?)));
        let (asked, request) = request.expect("a message");
        seen.lock().push(format!("{request:?}"));
        let answer = script(
            &request,
            &mut Notes {
                sender: &mut sender,
                late: &mut late,
                context: asked.context,
            },
        );
        let (status, body) = match answer {
            Answer::Usual => (CUresult::CUDA_SUCCESS, usual(&request)),
            Answer::Reply(body) => (CUresult::CUDA_SUCCESS, body),
            Answer::Error(status) => (status, vec![0; 4]),
            Answer::Nothing => continue,
            Answer::Later => {
                late.push(asked.token);
                continue;
            }
            Answer::Raw(bytes) => {
                let _ = sender.send(&[&bytes]).and_then(|()| sender.flush());
                continue;
            }
            Answer::Leave => return,
        };
        if asked.token != 0 {
            send(&mut sender, header(0, asked.token, status), &body);
        }
    }
}

fn usual(request: &Request<'_>) -> Vec<u8> {
    match request {
        Request::LibraryLoad(_) => encoded(&LibraryLoadReply {
            status: 0,
            missing: 0,
            card: library().into(),
            info_log: Vec::new().into(),
            error_log: Vec::new().into(),
        }),
        _ => vec![0; 64],
    }
}

fn header(note: u16, token: u32, status: CUresult) -> ReplyHeader {
    ReplyHeader {
        note,
        placed: 0,
        token,
        status: status.0,
        replies_before: 0,
    }
}

fn send(sender: &mut Sender, header: ReplyHeader, body: &[u8]) {
    let mut head = [0; HEADER_BYTES];
    header
        .encode(&mut Writer::new(&mut head))
        .expect("room for it");
    // A client that has gone needs no reply.
    let _ = sender.send(&[&head, body]).and_then(|()| sender.flush());
}
