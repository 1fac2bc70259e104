//! Requirements that every kind of link meets. [`conformance_suite!`](crate::conformance_suite)
//! makes a test of each requirement for one [`Fixture`].

pub mod frames;
pub mod liveness;
pub mod outgoing;
pub mod placed;
pub mod processes;

use std::{
    fs,
    io::Write as _,
    path::PathBuf,
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use outboard_trust::TlsState;
use outboard_wire::{Room, limits::FRAME_BYTES_MAX, network::Network};

use crate::{
    Endpoint, Error, KernelTls, Link, Listener, RdmaOptions, Receiver, Sender, Stream, Wait,
    connect, emulated::End, kernel_tls, rdma, stamp::STAMP_BYTES,
};

/// Time after which a test fails that still waits: long enough for a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A kind of link, and how tests make links of it.
pub trait Fixture: Sync {
    /// Returns an address where no server listens.
    fn endpoint(&self) -> Endpoint;

    /// Turns an established link into the one under test.
    fn wrap(&self, link: Link, _end: End) -> Link {
        link
    }

    /// Returns the reason why links of this kind cannot be tested on this machine.
    fn lacks(&self) -> Option<String> {
        None
    }

    /// Returns the address that a client uses for a server that listens at `endpoint`.
    fn seen_by_client(&self, endpoint: Endpoint) -> Endpoint {
        endpoint
    }

    /// Applies what the supervisor would tell a worker of its inherited socket.
    fn adopt(&self, stream: Stream) -> Stream {
        stream
    }

    /// Makes a client's connection one that sends what the link under test receives.
    fn raw(&self, stream: Stream) -> Stream {
        stream
    }

    /// Returns the bytes sent over a tcp connection before a frame's length.
    fn front(&self) -> Vec<u8> {
        Vec::new()
    }
}

/// Returns the rounds of a case that has `many`: fewer on a guest's emulated processors
/// (`OUTBOARD_FEW_ROUNDS`).
fn rounds(many: usize) -> usize {
    match std::env::var_os("OUTBOARD_FEW_ROUNDS") {
        None => many,
        Some(_) => many.div_ceil(8),
    }
}

/// Records of a test's link with its first keys: few, so that tests change them.
const RECORDS_BEFORE_UPDATE: u64 = 3;

/// Links over tcp on this host.
pub struct TcpFixture;

impl Fixture for TcpFixture {
    fn endpoint(&self) -> Endpoint {
        "tcp://127.0.0.1:0".parse().expect("a valid endpoint")
    }
}

/// Encrypted links over tcp on this host, as they are after the handshake. Keys change soon.
#[derive(Debug, Clone, Copy, Default)]
pub struct TlsFixture {
    /// Ends whose records the kernel makes and reads.
    pub in_kernel: InKernel,
}

/// Ends of a link that use the kernel's TLS.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum InKernel {
    #[default]
    None,
    Server,
    Client,
    Both,
}

impl InKernel {
    fn has(self, end: End) -> bool {
        match end {
            End::Server => matches!(self, Self::Server | Self::Both),
            End::Client => matches!(self, Self::Client | Self::Both),
        }
    }
}

impl Fixture for TlsFixture {
    fn endpoint(&self) -> Endpoint {
        TcpFixture.endpoint()
    }

    fn wrap(&self, link: Link, end: End) -> Link {
        match link {
            Link::Tcp(link) => {
                let records = tls_state(end).resume();
                let in_kernel = self.in_kernel.has(end);
                let link = link.encrypted(records.expect("keys"), in_kernel);
                assert_eq!(link.is_in_kernel(), in_kernel, "{end:?}");
                Link::Tcp(link)
            }
            other => other,
        }
    }

    /// If the kernel's TLS must not be skipped (`OUTBOARD_KERNEL_TLS_REQUIRED`), reports nothing as
    /// lacking.
    fn lacks(&self) -> Option<String> {
        let is_required = std::env::var_os("OUTBOARD_KERNEL_TLS_REQUIRED").is_some();
        match kernel_tls() {
            _ if self.in_kernel == InKernel::None || is_required => None,
            KernelTls::Used => None,
            other => Some(other.to_string()),
        }
    }

    fn raw(&self, stream: Stream) -> Stream {
        let stream = stream.resume(Some(tls_state(End::Client)));
        stream.expect("keys")
    }
}

fn tls_state(end: End) -> TlsState {
    let (to_client, to_server) = ([1; 32], [2; 32]);
    match end {
        End::Client => TlsState::before_update(to_server, to_client, RECORDS_BEFORE_UPDATE),
        End::Server => TlsState::before_update(to_client, to_server, RECORDS_BEFORE_UPDATE),
    }
}

/// Links over RDMA devices of this machine. The server uses the device of `OUTBOARD_RDMA`, or the
/// first; the client uses that of `OUTBOARD_RDMA_CLIENT`, or the server's. A cable connects two
/// different devices.
pub struct RdmaFixture;

impl Fixture for RdmaFixture {
    fn endpoint(&self) -> Endpoint {
        "rdma://127.0.0.1:0".parse().expect("a valid endpoint")
    }

    /// If tests must not be skipped (`OUTBOARD_RDMA_REQUIRED`), reports nothing as lacking; what is
    /// lacking then fails them.
    fn lacks(&self) -> Option<String> {
        if std::env::var_os("OUTBOARD_RDMA_REQUIRED").is_some() {
            return None;
        }
        rdma::check(&RdmaOptions::default())
            .err()
            .map(|error| error.to_string())
    }

    fn adopt(&self, stream: Stream) -> Stream {
        stream
            .with_rdma(RdmaOptions::default())
            .expect("a tcp connection")
    }

    fn seen_by_client(&self, endpoint: Endpoint) -> Endpoint {
        let said = std::env::var("OUTBOARD_RDMA_CLIENT").unwrap_or_default();
        endpoint.with_rdma(said.parse().expect("RDMA options"))
    }
}

/// Links over shared memory; the folder of the sockets is removed with it.
pub struct ShmFixture(PathBuf);

impl Default for ShmFixture {
    fn default() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = format!("outboard-link-{}-{count}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        fs::create_dir_all(&folder).expect("a folder for sockets");
        Self(folder)
    }
}

impl Fixture for ShmFixture {
    fn endpoint(&self) -> Endpoint {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        Endpoint::Shm(self.0.join(count.to_string()))
    }
}

/// The links of another fixture, with an emulated network between their ends.
pub struct EmulatedFixture<F> {
    carrier: F,
    network: Network,
}

impl<F> EmulatedFixture<F> {
    /// Uses a network with every kind of delay, all of them short.
    pub fn new(carrier: F) -> Self {
        Self::with(
            carrier,
            "rtt=40us,bandwidth=100Gbps,jitter=2us,tail=500us@0.1%",
        )
    }

    pub fn with(carrier: F, network: &str) -> Self {
        Self {
            carrier,
            network: network.parse().expect("a network"),
        }
    }
}

impl<F: Fixture> Fixture for EmulatedFixture<F> {
    fn endpoint(&self) -> Endpoint {
        self.carrier.endpoint()
    }

    fn wrap(&self, link: Link, end: End) -> Link {
        let link = self.carrier.wrap(link, end);
        link.emulated(&self.network, end)
            .expect("an emulated network")
    }

    /// A stamp whose time has passed.
    fn front(&self) -> Vec<u8> {
        let mut stamp = (STAMP_BYTES as u32).to_le_bytes().to_vec();
        stamp.extend([0; STAMP_BYTES]);
        stamp
    }
}

impl Drop for ShmFixture {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns true if a case can run here; prints it if not.
pub fn is_possible(fixture: &impl Fixture, case: &str) -> bool {
    match fixture.lacks() {
        None => true,
        Some(why) => {
            not_run(case, why);
            false
        }
    }
}

/// Prints that a test cannot run here, past the test harness, which would keep it to itself.
/// `make test` counts these lines.
pub fn not_run(case: &str, why: impl std::fmt::Display) {
    let _ = writeln!(std::io::stderr().lock(), "NOT RUN: {case}: {why}");
}

/// Both ends of a link, in this process: the server's, then the client's.
pub fn pair(fixture: &impl Fixture) -> ((Sender, Receiver), (Sender, Receiver)) {
    let listener = Listener::bind(&fixture.endpoint()).expect("to listen");
    let endpoint = fixture.seen_by_client(listener.endpoint().clone());
    let client = thread::spawn(move || {
        let stream = connect(&endpoint, PATIENCE).expect("to connect");
        stream.into_link_client(soon()).expect("a client's link")
    });
    let (stream, _) = listener.accept(Some(soon())).expect("a client");
    let server = stream.into_link_server().expect("a server's link");
    let client = client.join().expect("the client's thread");
    let server = fixture.wrap(server, End::Server);
    let client = fixture.wrap(client, End::Client);
    (server.split(), client.split())
}

/// Sends a frame whose content follows from its number, and flushes.
pub fn send(sender: &mut Sender, number: u64, len: usize) -> Result<(), Error> {
    commit_frame(sender, number, len)?;
    sender.flush()
}

/// Commits a frame whose content follows from its number.
pub(crate) fn commit_frame(sender: &mut Sender, number: u64, len: usize) -> Result<(), Error> {
    let mut frame = sender.reserve(len)?;
    fill(&mut frame, number, len);
    frame.commit()
}

/// Writes `len` bytes that follow from the frame's number.
pub(crate) fn fill(room: &mut impl Room, number: u64, len: usize) {
    let mut content = vec![0; len];
    write_frame(&mut content, number);
    room.put(&content).expect("room");
}

/// Receives the frame that [`send`] sent, and checks it.
pub fn expect_frame(receiver: &mut Receiver, number: u64, len: usize) {
    let frame = receiver
        .recv(Wait::Until(soon()))
        .expect("a frame")
        .expect("a frame in time");
    assert_eq!(frame.len(), len, "length of frame {number}");
    check_frame(frame, number);
}

/// Expects the end of the link as what comes next.
pub fn expect_end(receiver: &mut Receiver) {
    for _ in 0..2 {
        match receiver.recv(Wait::Until(soon())) {
            Err(error) => assert!(error.is_disconnect(), "{error}"),
            Ok(frame) => unreachable!("not the end: {:?}", frame.map(<[u8]>::len)),
        }
    }
}

/// Returns the time [`PATIENCE`] from now.
pub fn soon() -> Instant {
    Instant::now() + PATIENCE
}

/// Lengths at the boundaries of anything in this crate.
pub fn interesting_lens() -> Vec<usize> {
    let mut lens: Vec<usize> = (1..=130).collect();
    for power in 8..=20 {
        let power = 1usize << power;
        lens.extend([power - 9, power - 8, power - 1, power, power + 1, power + 8]);
    }
    lens.extend([FRAME_BYTES_MAX - 1, FRAME_BYTES_MAX]);
    lens.retain(|&len| len <= FRAME_BYTES_MAX);
    lens
}

/// Pseudorandom numbers, equal in every run.
pub fn random_numbers(seed: u64) -> impl FnMut() -> u64 {
    // splitmix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014.
    let mut state = seed;
    move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

pub(crate) fn write_frame(frame: &mut [u8], number: u64) {
    for (index, word) in frame.chunks_mut(8).enumerate() {
        let value = content(number, index);
        word.copy_from_slice(&value.to_le_bytes()[..word.len()]);
    }
}

pub(crate) fn check_frame(frame: &[u8], number: u64) {
    for (index, word) in frame.chunks(8).enumerate() {
        let value = content(number, index);
        assert_eq!(
            word,
            &value.to_le_bytes()[..word.len()],
            "frame {number}, word {index}"
        );
    }
}

fn content(number: u64, index: usize) -> u64 {
    (number ^ (index as u64) << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ number
}

/// Makes a test of each case of the suite for one [`Fixture`], and the entry point of the processes
/// that some cases start.
#[macro_export]
macro_rules! conformance_suite {
    ($fixture:expr) => {
        $crate::conformance_suite!(@frames $fixture;
            every_length_arrives_whole_and_in_order
            a_frame_may_be_shorter_than_reserved
            wrong_use_is_an_error_and_harms_nothing
            a_frame_may_come_in_parts
            many_small_frames
            back_pressure_holds_the_sender_back
            both_directions_at_once
        );
        $crate::conformance_suite!(@placed $fixture;
            long_frames_are_placed_and_short_ones_are_not
            a_placed_frame_goes_on_in_a_later_call
            a_peer_that_goes_away_in_a_placed_frame
            a_place_that_does_not_fit_is_refused
            back_pressure_holds_while_frames_are_kept
        );
        $crate::conformance_suite!(@outgoing $fixture;
            frames_of_many_threads_keep_their_order
            a_helper_ends_with_its_link
            what_a_helper_meets_is_told_to_the_next_sender
            a_helper_without_work_costs_nothing
            back_pressure_reaches_threads_that_post
            the_last_flush_ends_in_time
            a_forked_child_leaves_the_helper_alone
        );
        $crate::conformance_suite!(@liveness $fixture;
            what_was_sent_before_the_end_is_delivered
            the_end_of_one_direction_leaves_the_other
            a_closing_side_with_unread_frames_loses_none_of_its_own
            a_sender_learns_that_nobody_receives
            waiting_ends_in_time
            a_waker_ends_waiting_once
            a_waker_is_heard_among_frames
            a_closer_ends_a_blocked_receiver_and_a_blocked_sender
            waiting_costs_no_processor_time
            file_descriptors_arrive_by_tag_or_not_at_all
            noise_from_the_peer_is_an_error
            a_forked_child_does_not_end_the_link
        );
        $crate::conformance_suite!(@processes $fixture;
            a_peer_killed_in_mid_stream
            a_peer_killed_while_it_is_waited_for
            a_peer_killed_while_it_keeps_the_sender_waiting
            a_peer_killed_whose_forked_child_lives
            a_worker_killed_that_inherited_its_socket
        );

        /// Not a test: the entry point of the processes that `processes` starts.
        #[test]
        fn child() {
            $crate::conformance::processes::child_main(&$fixture);
        }
    };
    (@processes $fixture:expr; $($case:ident)*) => {$(
        #[test]
        fn $case() {
            if $crate::conformance::is_possible(&$fixture, stringify!($case)) {
                $crate::conformance::processes::$case(&$fixture, module_path!());
            }
        }
    )*};
    (@$module:ident $fixture:expr; $($case:ident)*) => {$(
        #[test]
        fn $case() {
            if $crate::conformance::is_possible(&$fixture, stringify!($case)) {
                $crate::conformance::$module::$case(&$fixture);
            }
        }
    )*};
}
