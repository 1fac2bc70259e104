//! All limits of the protocol, in one place, with units at the end of each name.

/// Longest frame, header included, that either side sends or accepts.
pub const FRAME_BYTES_MAX: usize = (1 << 20) + 4096;
/// Bulk data in one frame, at most; longer copies travel as several frames.
pub const CHUNK_BYTES_MAX: usize = 1 << 20;
/// Shortest module image that a server keeps between sessions. A shorter one is cheaper to send
/// again than to ask for.
pub const IMAGE_KEPT_BYTES_MIN: usize = 64 << 10;
/// Capacity of one shared-memory ring, one for each direction.
pub const RING_BYTES: usize = 8 << 20;
/// Capacity of one ring over rdma, where each side locks two rings in memory.
pub const RDMA_RING_BYTES: usize = 4 << 20;
/// Memory of the program or the GPU that a session keeps registered with its adapter. When it is
/// full, the least recently used registration goes.
pub const RDMA_REGISTERED_BYTES_MAX: u64 = 8 << 30;
pub const RDMA_REGISTRATIONS_MAX: usize = 512;
/// GPU memory is registered by allocation, and an allocation longer than this in pieces of this
/// length. The two limits after it hold for all GPU memory of a session: its bytes and its
/// registrations.
pub const RDMA_GPU_PIECE_BYTES_MAX: u64 = 256 << 20;
pub const RDMA_GPU_BYTES_MAX: u64 = 64 << 30;
pub const RDMA_GPU_REGISTRATIONS_MAX: usize = 512;
/// Memory that a session has registered for its endpoints of `net.h` with RDMA devices that the
/// server lends: the sum of all registrations, each of which costs the server's kernel tables.
pub const NET_DEVICE_BYTES_MAX: u64 = 64 << 30;
/// Receive buffers that a server grants its client at any time, each for the data of one message.
pub const RDMA_GRANTS: usize = 8;
/// Time that a dropped rdma link waits for the peer's adapter to take what was sent; enough for an
/// adapter that loses some packets. A peer that is gone is not waited for.
pub const RDMA_LINGER_MS_MAX: u64 = 2_000;
/// Time that either side waits for the other during the handshake.
pub const HANDSHAKE_MS_MAX: u64 = 5_000;
/// How long a profiler's question may go without an answer: for the clock or for records, and for
/// enabling, which may load the server's CUPTI. The profiler gets an error then, and the program
/// goes on.
pub const ACTIVITY_ANSWER_MS_MAX: u64 = 10_000;
pub const ACTIVITY_ENABLE_MS_MAX: u64 = 60_000;

/// Tcp port of a server whose address names none.
pub const PORT_DEFAULT: u16 = 4833;
/// Longest path of a unix socket: `sun_path` of unix(7) less its NUL.
pub const UNIX_PATH_BYTES_MAX: usize = 107;
/// Connections that wait for a server to accept them, at most; the kernel may allow fewer
/// (`net.core.somaxconn`).
pub const ACCEPT_BACKLOG_MAX: u32 = 1024;
/// Time within which a waiting thread notices the death of a peer process on the same host.
pub const PEER_DEATH_MS_MAX: u64 = 100;
/// Time after which a peer is given up whose host vanished without a word.
pub const PEER_VANISHED_MS_MAX: u64 = 15_000;
/// Time that a dropped link waits for the peer's host to take what was sent.
pub const LINGER_MS_MAX: u64 = 250;
/// Longest busy wait before a thread sleeps, on a machine with cores to spare. It is several times
/// the cost of waking a thread (46 us were measured in a virtual machine), so that a program which
/// computes between two calls finds its server awake.
pub const SPIN_NS_MAX: u64 = 200_000;
/// Longest busy wait on a machine of one or two cores, where the peer may need this core.
pub const SPIN_FEW_CORES_NS_MAX: u64 = 20_000;
/// Longest busy wait over rdma, whose peer is another machine. It is several times the cost of
/// being woken by an adapter, which takes two more requests and an interrupt.
pub const SPIN_RDMA_NS_MAX: u64 = 1_000_000;
/// Buffered bytes after which a tcp link sends without being asked.
pub const TCP_SEND_BUFFER_BYTES: usize = 256 << 10;
/// A program's threads have made this many sends, on average at most `SENDS_CLOSE_NS_MAX` apart:
/// then the library's sending thread is woken and sends for them. Only on machines with cores to
/// spare.
pub const SENDS_CLOSE_MIN: u32 = 4;
pub const SENDS_CLOSE_NS_MAX: u64 = 20_000;
/// Time that the sending thread looks for more to send before it sleeps again.
pub const SEND_SPIN_NS_MAX: u64 = 200_000;
/// Bytes that a tcp link receives with one call, unless a longer frame is on its way.
pub const TCP_RECEIVE_BUFFER_BYTES: usize = 32 << 10;
/// Shortest received frame that may be placed in memory of the receiver's choice. A shorter one is
/// copied there faster than a further system call takes.
pub const PLACED_BYTES_MIN: usize = 16 << 10;
/// Bytes of a frame's start that are known, at least, when the receiver is asked where to place it.
pub const PLACED_HEAD_BYTES: usize = 256;
/// Data connections that a session has, at most. They carry the data of long copies over tcp.
pub const DATA_CONNECTIONS_MAX: usize = 8;
/// Data connections that a session opens if both machines have at least
/// `DATA_CONNECTIONS_CORES_MIN` cores; smaller machines open fewer. One carries 5 to 7 GB/s, four
/// 16 to 18 GB/s.
pub const DATA_CONNECTIONS: usize = 4;
pub const DATA_CONNECTIONS_CORES_MIN: usize = 8;
pub const DATA_CONNECTIONS_FEW: usize = 2;
pub const DATA_CONNECTIONS_FEW_CORES_MIN: usize = 4;
/// Shortest copy that uses data connections.
pub const DATA_CONNECTION_COPY_BYTES_MIN: usize = 2 << 20;
/// Data in one frame of a data connection to the server. Smaller pieces share a copy more evenly,
/// larger ones need fewer messages.
pub const DATA_PIECE_BYTES_MIN: usize = 256 << 10;
pub const DATA_PIECE_BYTES_MAX: usize = 1 << 20;
/// Frames of one data connection that have arrived before their messages, at most.
pub const DATA_FRAMES_AHEAD_MAX: usize = 8;
/// Data of replies that waits for a data connection, at most.
pub const DATA_REPLIES_BYTES_MAX: usize = 32 << 20;
/// Time that a client has to open its data connections once it has asked for them.
pub const DATA_CONNECTIONS_OPEN_MS_MAX: u64 = 5_000;
/// Time between two questions to a server that does not answer, and time for its answer.
pub const HEARTBEAT_MS: u64 = 5_000;
/// Questions in a row without an answer, after which a server that has answered one before is taken
/// for lost: 30 to 35 s.
pub const HEARTBEATS_MISSED_MAX: u32 = 3;
/// Questions in a row without an answer, after which a server that has never answered one is taken
/// for lost: 50 to 60 s.
pub const HEARTBEATS_MISSED_AT_FIRST_MAX: u32 = 5;
/// Longest time until a call ends whose server says nothing and moves no byte. The call may begin
/// right after a look at what waits, and a question may be asked in vain before the next look.
pub const SILENCE_MS_MAX: u64 = 60_000;
const _: () =
    assert!(2 * HEARTBEAT_MS * (1 + HEARTBEATS_MISSED_AT_FIRST_MAX as u64) <= SILENCE_MS_MAX);
/// Answers in a row by which neither side has received a byte that the other waits for, after which
/// the connection between them is taken for lost: 35 to 40 s.
pub const HEARTBEATS_STUCK_MAX: u32 = 6;
/// Connections for heartbeats of one session, at most; a further one replaces the oldest.
pub const HEARTBEAT_CONNECTIONS_MAX: usize = 2;
/// Length of the secret that tells a session's data connections from strangers.
pub const SESSION_KEY_BYTES: usize = 32;
/// Length of a token's id.
pub const TOKEN_ID_BYTES: usize = 8;
/// Length of the number that each side of a handshake with a token draws.
pub const NONCE_BYTES: usize = 32;
/// Length of a proof that a side has the token.
pub const PROOF_BYTES: usize = 32;
/// Time that data sent on other data connections has to arrive after one of them has ended.
pub const DATA_CONNECTION_END_MS_MAX: u64 = 1_000;
/// Ways of a session for copies between its server and others, one for each direction.
pub const PEER_WAYS_MAX: usize = 2 * SERVERS_MAX;
/// Time that another server has to connect after this one has made an offer, and to be reached.
pub const PEER_OFFER_MS_MAX: u64 = 10_000;
pub const PEER_CONNECT_MS_MAX: u64 = 3_000;
/// Time without a byte after which a server gives the other one up.
pub const PEER_SILENCE_MS_MAX: u64 = 5_000;
/// Pieces of [`CHUNK_BYTES_MAX`] that are on their way between two servers: those that the client
/// asks for at a time, and those that a server keeps until the client has them written.
pub const PEER_PIECES_AT_ONCE: usize = 8;
pub const PEER_PIECES_AHEAD_MAX: usize = 2 * PEER_PIECES_AT_ONCE;
/// Longest address of another server.
pub const PEER_ADDRESS_BYTES_MAX: usize = 512;
/// Bytes of frames that the links of a session over an emulated network take in before their time:
/// more than what is under way on the network by the least, up to the most. That keeps 100 Gbps
/// full up to a round trip of 40 ms.
pub const READ_AHEAD_BYTES_MIN: usize = 2 << 20;
pub const READ_AHEAD_BYTES_MAX: usize = 256 << 20;
/// Largest ring that a client maps for a server.
pub const RING_BYTES_MAX: usize = 64 << 20;
/// File descriptors that were received and not yet asked for, at most.
pub const FDS_PENDING_MAX: usize = 64;
/// Servers of one program, at most: each has an address window of its own.
pub const SERVERS_MAX: usize = 8;
/// Longest document of a handshake.
pub const HANDSHAKE_BYTES_MAX: usize = 256 << 10;
/// A thread that waits for a frame of an emulated network sleeps until this long before its
/// arrival, then watches the clock. Longer than a sleep is late, the kernel's slack of 50 us
/// included.
pub const ARRIVAL_SPIN_NS: u64 = 200_000;
/// With cores to spare, a thread that receives from an emulated network does not sleep for this
/// long after the last frame, nor for this long before the next. A thread that has slept comes back
/// late and with cold caches, which would count as the network's delay. As long as a client watches
/// the board over shm.
pub const ARRIVAL_WATCH_NS: u64 = 5_000_000;
/// On one or two cores that thread gives its core away between two looks, until this long before
/// the arrival.
pub const ARRIVAL_KEEP_CORE_NS: u64 = 5_000;
/// Furthest in the future that a frame's arrival may be: the longest delay that a network may have,
/// after a full ring at the least bandwidth. A frame that arrives later is refused, or it would
/// hold its receiver up.
pub const ARRIVAL_AHEAD_MS_MAX: u64 = 900_000;
/// Time between the client's reading of its clock and the server's reading, at most, if both are to
/// be the same clock. Two machines are hardly booted so close to each other.
pub const CLOCK_SKEW_MS_MAX: u64 = 60_000;
