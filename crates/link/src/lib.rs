//! Links: ordered, reliable pipes of byte frames between a CUDA program and the process that has the GPU.
//!
//! What this crate does *not* do: it gives frames no meaning, starts no thread, keeps no session and never
//! reconnects. A frame is 1 to [`FRAME_BYTES_MAX`](outboard_wire::limits::FRAME_BYTES_MAX) opaque bytes and arrives
//! whole, once, and in order, or not at all.
//!
//! ```text
//!  connect(&Endpoint)  ──► Stream ──┐                        ┌── Stream ◄── Listener::accept()
//!                            hello  │  raw bytes, deadlines  │  welcome
//!      Stream::into_link_client() ──┤                        ├── Stream::into_link_server()
//!                                   ▼                        ▼
//!                                 Link ──split──► Sender, Receiver
//!                                         shm: two rings in one memfd     tcp: length-prefixed frames
//!                                         rdma: two rings, each written by the other side's adapter
//!                                         emulated: one of these, and no frame before its time
//! ```
//!
//! * [`Sender::reserve`] hands out room for one frame where the link wants it (in the ring itself over shm), and
//!   [`Sender::commit`] publishes it. Over tcp and rdma frames leave at [`Sender::flush`].
//! * Several threads share a link by a lock around its [`Sender`], [`Sender::post`] under the lock, and
//!   [`Flusher::flush`] without it. A thread of the caller's may run a [`Helper`], which then does the sending.
//! * [`Receiver::recv`] yields frames in place. Over shm and rdma the bytes lie in memory that the peer can still write: a
//!   decoder copies every scalar out once, and checks the copy.
//! * [`Receiver::recv_placed`] receives long frames into memory of the caller's: pinned memory, a copy's destination.
//! * [`LaneListener`] and [`open_lanes`] make further connections between the two sides of a session, for who wants more
//!   bytes a second than one connection carries; each is a link of its own, and no order holds between links.
//! * [`Stream::into_emulated_client`] and [`Stream::into_emulated_server`] make a link as if a network lay in between; see
//!   [`emulated`]. [`dial`] does so where the hello asks for it.
//! * A peer that dies is noticed by whoever waits for it, within
//!   [`PEER_DEATH_MS_MAX`](outboard_wire::limits::PEER_DEATH_MS_MAX) on one host, and within
//!   [`PEER_VANISHED_MS_MAX`](outboard_wire::limits::PEER_VANISHED_MS_MAX) when a host disappears without a word.
//! * Everything read from the peer is checked: what breaks a rule is [`Error::PeerMisbehaved`], never a panic.
//! * File descriptors are close-on-exec. A forked child may drop its copies of a link: only the process that made a
//!   link can close it.

#[cfg(all(feature = "conformance", not(loom)))]
pub mod conformance;
#[cfg(not(loom))]
mod dial;
#[cfg(not(loom))]
pub mod emulated;
#[cfg(not(loom))]
mod endpoint;
#[cfg_attr(loom, allow(dead_code))]
mod error;
#[cfg(not(loom))]
mod handles;
#[cfg(not(loom))]
mod lanes;
#[cfg(not(loom))]
mod link;
#[cfg(not(loom))]
mod listener;
#[cfg(not(loom))]
mod place;
#[cfg(not(loom))]
pub mod rdma;
pub mod shm;
#[cfg(not(loom))]
mod spin;
#[cfg(not(loom))]
mod stream;
mod sync;
#[cfg(not(loom))]
mod sys;
pub mod tcp;

#[cfg(not(loom))]
pub use crate::{
    dial::{DialError, dial},
    endpoint::{Endpoint, EndpointError, Host},
    handles::{Closer, Waker},
    lanes::{LaneKey, LaneListener, lanes_are_said, lanes_wanted, open_lanes},
    link::{Flusher, Helper, Kind, Link, Receiver, Sender, Wait},
    listener::{Listener, connect},
    place::{DeviceMemory, Frame, Lasting, Payload, Place, Placer, Reach, Segment},
    rdma::{
        Bulk, DeviceBulk, GpuMemory, RdmaCounts, RdmaDevice, RdmaError, RdmaOptions, RdmaPort,
        RdmaTarget, RdmaUse, Registered, Registrar, rdma_devices,
    },
    stream::{Peer, Stream},
};
pub use error::Error;

#[cfg(not(loom))]
#[doc(hidden)]
pub use crate::{shm::fuzz_ring, tcp::deframer::fuzz_deframer};
