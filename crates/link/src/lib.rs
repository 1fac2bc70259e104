//! Links: ordered, reliable pipes of byte frames between a CUDA program and the process that has
//! the GPU.
//!
//! This crate gives frames no meaning, starts no thread, keeps no session and never reconnects. A
//! frame is 1 to [`FRAME_BYTES_MAX`](outboard_wire::limits::FRAME_BYTES_MAX) opaque bytes. It
//! arrives whole, once and in order, or not at all.
//!
//! ```text
//!  connect(&Endpoint)  ──► Stream ──┐                        ┌── Stream ◄── Listener::accept()
//!                            hello  │  raw bytes, deadlines  │  welcome
//!      Stream::into_link_client() ──┤                        ├── Stream::into_link_server()
//!                                   ▼                        ▼
//!                                 Link ──split──► Sender, Receiver
//!                                         shm: two rings in one memfd
//!                                         tcp: frames, each after its length
//!                                         rdma: two rings that the peer's adapter writes
//!          emulated: one of the three, and each frame arrives at its time
//! ```
//!
//! * [`Sender::reserve`] hands out room for one frame (over shm in the ring itself), and
//!   [`Reservation::commit`] publishes it. Over tcp and rdma frames are sent by [`Sender::flush`].
//! * Several threads share a link by a lock around its [`Sender`]: they call [`Sender::post`] under
//!   the lock and [`Flusher::flush`] without it. A thread of the caller may run a [`Helper`], which
//!   then sends for all.
//! * [`Receiver::recv`] yields frames in memory of this process alone. Over shm and rdma it copies
//!   them out of the ring, whose bytes the peer can still write.
//! * Other abilities are asked for: [`Sender::fds`] and [`Receiver::fds`] pass file descriptors
//!   (shm), [`Sender::remote_memory`] and [`Receiver::remote_memory`] use memory that adapters read
//!   and write (rdma), [`Link::data_connections`] says whether the session can have them (tcp).
//! * [`Receiver::recv_placed`] receives long frames into the caller's memory: pinned memory, or a
//!   copy's destination.
//! * [`open_data_connections`] opens data connections of a session, for more bytes a second than
//!   one connection carries. Each is a link of its own, and no order holds between links.
//! * [`Stream::into_emulated_client`] and [`Stream::into_emulated_server`] make a link with a
//!   network's delays; see [`emulated`]. [`dial`] does so if the hello asks for it.
//! * A waiting thread notices a peer's death within
//!   [`PEER_DEATH_MS_MAX`](outboard_wire::limits::PEER_DEATH_MS_MAX) on one host, and within
//!   [`PEER_VANISHED_MS_MAX`](outboard_wire::limits::PEER_VANISHED_MS_MAX) when a host disappears
//!   without a word.
//! * Everything read from the peer is checked: a broken rule is [`Error::PeerMisbehaved`], never a
//!   panic.
//! * File descriptors are close-on-exec. A forked child may drop its copies of a link: only the
//!   process that made a link can close it.

#[cfg(all(feature = "conformance", not(loom)))]
pub mod conformance;
#[cfg(not(loom))]
mod copying;
#[cfg(not(loom))]
pub mod cores;
#[cfg(not(loom))]
mod credentials;
#[cfg(not(loom))]
mod data_connections;
#[cfg(not(loom))]
mod deadline;
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
mod heartbeat;
#[cfg(not(loom))]
mod kernel_tls;
#[cfg(not(loom))]
mod kind;
#[cfg(not(loom))]
mod link;
#[cfg(not(loom))]
mod listener;
#[cfg(not(loom))]
mod opening;
#[cfg(not(loom))]
mod parts;
#[cfg(not(loom))]
mod peer;
#[cfg(not(loom))]
pub mod rdma;
#[cfg(not(loom))]
mod segment;
pub mod shm;
#[cfg(not(loom))]
mod socket;
#[cfg(not(loom))]
mod spin;
#[cfg(not(loom))]
mod stamp;
#[cfg(not(loom))]
mod standard;
#[cfg(not(loom))]
mod stream;
mod sync;
#[cfg(not(loom))]
mod sys;
pub mod tcp;
#[cfg(not(loom))]
mod wake;
#[cfg(not(loom))]
mod wild;

#[cfg(not(loom))]
pub use crate::{
    copying::CopyHelper,
    credentials::{
        CA_VARIABLE, CERTIFICATE_KEY_VARIABLE, CERTIFICATE_VARIABLE, CertificateFiles,
        GRANT_FILE_VARIABLE, KEY_FILE_VARIABLE, TOKEN_FILE_VARIABLE, Way, config_folder,
        default_key_file, use_certificate_files, use_token_file,
    },
    data_connections::{data_connections_are_set, data_connections_wanted, open_data_connections},
    deadline::Wait,
    dial::{dial, greet},
    endpoint::{Endpoint, EndpointError, Host, ListError, SetUp},
    error::RdmaError,
    handles::{Closer, Waker},
    heartbeat::{Heartbeats, received_bytes, unread_bytes, unsent_bytes},
    kernel_tls::{KERNEL_TLS_VARIABLE, KernelTls, kernel_tls},
    kind::LinkKind,
    link::{Exclusive, Flusher, Helper, Link, Receiver, Reservation, Sender},
    listener::{Listener, connect},
    opening::DialError,
    peer::{connect_peer, open_peer, peer_addresses},
    rdma::{
        Bulk, DeviceBulk, GpuMemory, RdmaCounts, RdmaOptions, RdmaTarget, RdmaUse, Registered,
        Registrar,
    },
    segment::{ChooseDestination, Destination, Frame, Granted, Payload, Segment, Tail},
    standard::fill_standard_descriptors,
    stream::{Peer, Stream},
    wake::KnownFd,
    wild::send_programs_memory,
};
pub use error::Error;
#[cfg(not(loom))]
pub use outboard_verbs::{
    Device as RdmaDevice, DeviceMemory, Lasting, Port as RdmaPort, Reach, devices as rdma_devices,
};

#[cfg(not(loom))]
#[doc(hidden)]
pub use crate::{shm::fuzz_ring, tcp::deframer::fuzz_deframer};
