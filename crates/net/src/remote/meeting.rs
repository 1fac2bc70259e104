//! The meeting of a program whose endpoint is at a server with another. If that one's endpoint is
//! at a server, too, the servers connect, else the program relays ([`relay`](super::relay)).
//!
//! ```text
//!  server    program that listens                  program that connects    server
//!    │◄── end ───┤                                            ├─── end ────►│
//!    │           │◄───────────────── hello ───────────────────┤             │
//!    │           ├────────────────── hello ──────────────────►│             │
//!    │◄─ await ──┤                                            │             │
//!    │           ├─────── length, server's address, secret ──►│             │
//!    │◄── meet ──┤                                            ├─── join ───►│
//!    │◄────────────────── the servers connect ────────────────────────────►│
//! ```

use std::{io::Write, net::TcpStream, sync::Arc, time::Instant};

use outboard_wire::doc::{NetAnswer, NetCall, NetEnd};

use super::{
    relay::Relay,
    session::{ADDRESS_BYTES_MAX, NOTHING, Number, address, done, wrong},
};
use crate::{
    adapter::Peer,
    error::Error,
    meet::{self, AT_SERVER, BY_VERBS, Hello, Meeting, NOT_BY_VERBS, Window},
    stream::read_by,
    way::Way,
};

const SECRET_BYTES: usize = 32;
/// Why no queue meets another by verbs.
const NO_VERBS: &str =
    "the endpoint is where the GPU is, at a server, whose entries travel by no verbs";

/// Connects a queue of this endpoint to one of another. Returns the memory that it offers, and the
/// stream to an adapter of the other program's own.
pub(super) fn meet(
    number: &Arc<Number>,
    end: NetEnd,
    meeting: Meeting<'_>,
    mine: Window,
) -> Result<(Window, Option<Relay>), Error> {
    let qpn = end.qpn;
    let failed = |why: &dyn ToString| Error::Meet {
        address: meeting.address.into(),
        why: why.to_string(),
    };
    if meeting.way == Some(Way::Verbs) {
        return Err(failed(&NO_VERBS));
    }
    meeting.socket()?;
    if meeting.way == Some(Way::Shm) {
        return Err(failed(&"a server's adapter shares no memory with others"));
    }
    let deadline = Instant::now() + meeting.timeout;
    let hello = Hello {
        peer: Peer {
            qpn: end.qpn,
            epoch: end.epoch,
        },
        window: mine,
        ways: AT_SERVER,
    };
    let (mut stream, theirs) = greet(meeting, hello, deadline).map_err(|why| failed(&why))?;
    let peer = NetEnd {
        qpn: theirs.peer.qpn,
        epoch: theirs.peer.epoch,
    };
    if theirs.ways & AT_SERVER == 0 {
        let relay = Relay::start(number.clone(), qpn, peer, stream)?;
        return Ok((theirs.window, Some(relay)));
    }
    let call = match meeting.listens {
        true => {
            let secret = match number.call(&NetCall::Await { qpn }, NOTHING)? {
                NetAnswer::Secret(secret) => secret,
                other => return Err(wrong(&other)),
            };
            tell(&mut stream, &address(), &secret).map_err(|why| failed(&why))?;
            let timeout_ms = left_ms(deadline);
            NetCall::Meet {
                qpn,
                peer,
                timeout_ms,
            }
        }
        false => {
            let told = hear(&stream, deadline).map_err(|why| failed(&why))?;
            let (address, secret) = told;
            let timeout_ms = left_ms(deadline);
            NetCall::Join {
                qpn,
                peer,
                address,
                secret,
                timeout_ms,
            }
        }
    };
    done(number.call(&call, NOTHING)?)?;
    Ok((theirs.window, None))
}

/// Exchanges hellos with the other program.
fn greet(
    meeting: Meeting<'_>,
    hello: Hello,
    deadline: Instant,
) -> Result<(TcpStream, Hello), String> {
    let socket = meeting.socket().map_err(|error| error.to_string())?;
    let met = match meeting.listens {
        true => meet::listen(socket, hello, deadline),
        false => meet::connect(socket, hello, deadline),
    };
    let (stream, theirs) = met.map_err(|error| error.to_string())?;
    match theirs.ways & BY_VERBS {
        0 => Ok((stream, theirs)),
        _ => Err(NOT_BY_VERBS.into()),
    }
}

fn left_ms(deadline: Instant) -> u32 {
    let left = deadline.saturating_duration_since(Instant::now());
    u32::try_from(left.as_millis()).unwrap_or(u32::MAX)
}

fn tell(stream: &mut TcpStream, address: &str, secret: &[u8; SECRET_BYTES]) -> Result<(), String> {
    if address.is_empty() {
        return Err("this program's server has no address for other servers".into());
    }
    let length = address.len() as u16;
    let bytes = [&length.to_le_bytes(), address.as_bytes(), secret].concat();
    stream.write_all(&bytes).map_err(|error| meet::why(&error))
}

fn hear(stream: &TcpStream, deadline: Instant) -> Result<(String, [u8; SECRET_BYTES]), String> {
    let read = |bytes: &mut [u8]| {
        read_by(stream, bytes, deadline).map_err(|error| {
            format!(
                "the other has not said where its server is: {}",
                meet::why(&error)
            )
        })
    };
    let mut length = [0; 2];
    read(&mut length)?;
    let length = usize::from(u16::from_le_bytes(length));
    if length > ADDRESS_BYTES_MAX {
        return Err(format!("a server's address of {length} bytes"));
    }
    let (mut address, mut secret) = (vec![0; length], [0; SECRET_BYTES]);
    read(&mut address)?;
    read(&mut secret)?;
    let address = String::from_utf8(address);
    Ok((address.map_err(|_| "no address of a server")?, secret))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::stream::tests::{soon, trickling};

    #[test]
    fn a_program_that_trickles_has_no_more_time_than_the_meeting() {
        let said = hear(&trickling(), soon()).unwrap_err();
        assert!(
            said.contains("has not said where its server is: timed out"),
            "{said}"
        );
    }
}
