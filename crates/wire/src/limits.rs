//! Every limit of the protocol, in one place, units last.

/// The longest frame, header included, that either side sends or accepts.
pub const FRAME_BYTES_MAX: usize = (1 << 20) + 4096;
/// The bytes of bulk data that one frame carries at most; longer copies travel as several frames.
pub const CHUNK_BYTES_MAX: usize = 1 << 20;
/// A module image shorter than this is cheaper to send along than to ask for: servers keep none such between sessions.
pub const IMAGE_KEPT_BYTES_MIN: usize = 64 << 10;
/// Capacity of one shared-memory ring, one for each direction.
pub const RING_BYTES: usize = 8 << 20;
/// The same over rdma, where each side locks two of them in memory.
pub const RDMA_RING_BYTES: usize = 4 << 20;
/// Memory of the program's or the GPU's that a session keeps registered with its adapter; what was not used for longest goes.
pub const RDMA_REGISTERED_BYTES_MAX: u64 = 8 << 30;
pub const RDMA_REGISTRATIONS_MAX: usize = 512;
/// GPU memory is registered by allocations, and those longer than this by such pieces of them; so much of it in all, and in so
/// many registrations.
pub const RDMA_GPU_PIECE_BYTES_MAX: u64 = 256 << 20;
pub const RDMA_GPU_BYTES_MAX: u64 = 64 << 30;
pub const RDMA_GPU_REGISTRATIONS_MAX: usize = 512;
/// Pieces of memory, each for the data of one message, that a server has given to its client to write into.
pub const RDMA_GRANTS: usize = 8;
/// How long a rdma link that is dropped waits for the peer's device to take what was sent: as long as a device that loses some
/// packets needs. A peer that is gone is not waited for.
pub const RDMA_LINGER_MS_MAX: u64 = 2_000;
/// How long either side waits for the other during the handshake.
pub const HANDSHAKE_MS_MAX: u64 = 5_000;

/// The tcp port of a server whose address names none.
pub const PORT_DEFAULT: u16 = 4833;
/// The longest path of a unix socket: `sun_path` of unix(7) less its NUL.
pub const UNIX_PATH_BYTES_MAX: usize = 107;
/// Connections that wait for a server to accept them.
pub const ACCEPT_BACKLOG_MAX: u32 = 128;
/// How soon the death of a peer process on the same host is noticed by whoever waits for it.
pub const PEER_DEATH_MS_MAX: u64 = 100;
/// How soon a peer whose host vanished without a word is given up.
pub const PEER_VANISHED_MS_MAX: u64 = 15_000;
/// How long a link that is dropped waits for the peer's host to take what was sent.
pub const LINGER_MS_MAX: u64 = 250;
/// The longest busy wait before a thread sleeps, on a machine with cores to spare: some times what it takes to wake one
/// (46 us were measured in a virtual machine), so that a program which computes between two calls finds its server awake.
pub const SPIN_NS_MAX: u64 = 200_000;
/// The same on a machine of one or two cores, where the peer may need this one.
pub const SPIN_FEW_CORES_NS_MAX: u64 = 20_000;
/// The same over rdma, whose peer is another machine's: some times what it takes to be woken by an adapter, which asks for two more
/// requests and an interrupt.
pub const SPIN_RDMA_NS_MAX: u64 = 1_000_000;
/// Buffered bytes past which a tcp link sends without being asked.
pub const TCP_SEND_BUFFER_BYTES: usize = 256 << 10;
/// So many sends of a program's own threads, this far apart on average, wake the thread that sends for them, on a machine
/// with cores to spare ...
pub const SENDS_CLOSE_MIN: u32 = 4;
pub const SENDS_CLOSE_NS_MAX: u64 = 20_000;
/// ... which looks for more for so long before it sleeps again.
pub const SEND_SPIN_NS_MAX: u64 = 200_000;
/// What a tcp link receives at once, if no longer frame is on its way.
pub const TCP_RECEIVE_BUFFER_BYTES: usize = 32 << 10;
/// A received frame at least this long may be placed in memory of the receiver's choice; what is shorter is copied there
/// faster than a call into the kernel takes.
pub const PLACED_BYTES_MIN: usize = 16 << 10;
/// As much of a frame's start is known, at least, when its place is asked for.
pub const PLACED_HEAD_BYTES: usize = 256;
/// Connections beside a session's own, for the data of long copies over tcp.
pub const LANES_MAX: usize = 8;
/// As many are opened on machines with at least so many cores on both sides, and fewer on smaller ones: one carries 5 to
/// 7 GB/s, four 16 to 18 GB/s.
pub const LANES: usize = 4;
pub const LANES_CORES_MIN: usize = 8;
pub const LANES_FEW: usize = 2;
pub const LANES_FEW_CORES_MIN: usize = 4;
/// A copy at least this long goes over lanes.
pub const LANE_COPY_BYTES_MIN: usize = 2 << 20;
/// The data in one frame of a lane to the server: the less the more evenly copies are shared, the more the fewer messages.
pub const LANE_PIECE_BYTES_MIN: usize = 256 << 10;
pub const LANE_PIECE_BYTES_MAX: usize = 1 << 20;
/// Frames that one lane has brought and whose messages have not come yet.
pub const LANE_FRAMES_AHEAD_MAX: usize = 8;
/// Data of answers that waits for a lane.
pub const LANE_ANSWERS_BYTES_MAX: usize = 32 << 20;
/// How long a server listens for the lanes of a session, and what a stranger who connects there is given to say the key.
pub const LANES_OPEN_MS_MAX: u64 = 5_000;
pub const LANE_GREETING_MS_MAX: u64 = 1_000;
/// Connections to that port whose greeting is awaited.
pub const LANE_GREETINGS_MAX: usize = 16;
/// The secret that tells a session's lanes from strangers.
pub const LANE_KEY_BYTES: usize = 32;
/// How long data that was sent on other lanes may still come when one lane has ended.
pub const LANE_END_MS_MAX: u64 = 1_000;
/// The largest ring that a client maps for a server.
pub const RING_BYTES_MAX: usize = 64 << 20;
/// File descriptors that were received and nobody has asked for yet.
pub const FDS_PENDING_MAX: usize = 64;
/// The longest document of a handshake.
pub const HANDSHAKE_BYTES_MAX: usize = 256 << 10;
/// How close its time must be before whoever waits for a frame of an emulated network stops sleeping and watches the clock:
/// more than a sleep is late by, the kernel's slack of 50 us included.
pub const ARRIVAL_SPIN_NS: u64 = 200_000;
/// How close it must be before the core is no longer given away between two looks, where there are one or two cores.
pub const ARRIVAL_RUDE_NS: u64 = 5_000;
/// How far ahead the arrival of a frame may be: the longest delays that a network may have, behind a full ring at the least
/// bandwidth. What says otherwise is refused, or it would keep its receiver.
pub const ARRIVAL_AHEAD_MS_MAX: u64 = 900_000;
/// How much later than a client read its clock a server may read its own, where both are to be the same clock. Two machines
/// were hardly booted so close to each other.
pub const CLOCKS_APART_MS_MAX: u64 = 60_000;
