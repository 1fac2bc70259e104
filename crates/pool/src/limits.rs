//! Limits of a pool, units last.

/// Bytes of the name of a box, a host, a holder or a model.
pub const NAME_BYTES_MAX: usize = 64;
/// Bytes of the address of a box's server.
pub const URL_BYTES_MAX: usize = 256;
/// Bytes of a claim's UID.
pub const UID_BYTES_MAX: usize = 64;
/// Bytes of the text of a drain or a taint.
pub const REASON_BYTES_MAX: usize = 256;
/// GPUs of one claim, and of one box.
pub const CLAIM_GPUS_MAX: u32 = 512;
pub const BOX_GPUS_MAX: usize = 64;
/// Ends of NVLinks, and network adapters, near a GPU.
pub const NEAR_NVLINKS_MAX: usize = 36;
pub const NEAR_NICS_MAX: usize = 16;
/// Networks of one claim that are good enough, and of them those that an error shows.
pub const LINK_NEEDS_MAX: usize = 32;
pub const LINK_NEEDS_SHOWN: usize = 3;
/// Boxes, GPUs and hosts of a pool.
pub const BOXES_MAX: usize = 16_384;
pub const GPUS_MAX: usize = 131_072;
pub const HOSTS_MAX: usize = 131_072;
/// Entries of a host's table, which are reserved when the host joins.
pub const HOST_ENTRIES: u16 = 512;
/// Claims that wait, at most; further ones are refused.
pub const QUEUE_MAX: usize = 100_000;
/// Claims that are looked at, at most, each time that GPUs become free.
pub const QUEUE_LOOKS_MAX: usize = 256;
/// Groups with equally many free GPUs that are looked at for `Fit::Fgd`.
pub const FGD_LOOKS_MAX: usize = 8;
/// Time after which a waiting claim comes before all others, and nothing passes it.
pub const QUEUE_PATIENCE_MS: u64 = 600_000;
/// Time after which a waiting claim is forgotten if its client does not ask again.
pub const QUEUE_SILENCE_MS: u64 = 15_000;
/// Highest priority.
pub const PRIORITY_MAX: u8 = 9;
/// Time of a lease without a renewal: by default, at least and at most.
pub const TERM_DEFAULT_MS: u64 = 30_000;
pub const TERM_MIN_MS: u64 = 1_000;
pub const TERM_MAX_MS: u64 = 3_600_000;
/// Time without a session or a call after which GPUs may be taken back: at least and at most.
pub const IDLE_MIN_MS: u64 = 1_000;
pub const IDLE_MAX_MS: u64 = 7 * 86_400_000;
/// Time before that at which the holder is told, at most; a quarter of a shorter time.
pub const IDLE_NOTICE_MS: u64 = 60_000;
/// Time between the end of a lease and the moment when its GPUs are free although their box has
/// said nothing: clocks may differ by so much over one term.
pub const MARGIN_MS: u64 = 2_000;
/// Time within which a holder whose connection has ended may come back.
pub const HOLDER_GRACE_MS: u64 = 300;
/// Time between two reports of a box, at most, while nothing happens.
pub const REPORT_MS: u64 = 2_000;
/// Time without a report after which nothing of a box is given out.
pub const BOX_SILENCE_MS: u64 = 7_000;
/// Time after whose end a suspect GPU is given out again: after the first failure, doubled by each
/// further one, and at most.
pub const SUSPECT_MS: u64 = 3_000;
pub const SUSPECT_MS_MAX: u64 = 60_000;
/// Failed sessions in a row after which a GPU counts as broken.
pub const FAILURES_MAX: u32 = 5;
/// Time within which a box whose connection has ended reports again, or counts as silent.
pub const BOX_GRACE_MS: u64 = 500;
/// Spares of one group, and rules about spares.
pub const SPARES_MAX: u32 = 512;
pub const SPARE_RULES_MAX: usize = 64;
/// Leases that are over and still known by their claims' UIDs.
pub const LEASES_OVER_MAX: usize = 10_000;
/// Objects whose last change a manager remembers for those who watch it.
pub const CHANGES_MAX: usize = 65_536;
/// Entries of the audit that the store keeps, the GPUs of all of them, and those of one: the oldest
/// entries are dropped.
pub const AUDIT_ENTRIES_MAX: usize = 8_192;
pub const AUDIT_GPUS_MAX: usize = 65_536;
pub const AUDIT_ENTRY_GPUS_MAX: usize = 64;
/// Samples of the pool's numbers that are kept, the time between two at first, and at most.
pub const HISTORY_MAX: usize = 512;
pub const HISTORY_STEP_MS: u64 = 1_000;
pub const HISTORY_STEP_MS_MAX: u64 = 1_024_000;
/// Changes of one answer to those who watch, and entries of one about the audit.
pub const EVENTS_MAX: usize = 1_000;
/// Length of a grant.
pub const GRANT_BYTES_MAX: usize = 8 << 10;
/// Changes that a store keeps for those who watch it.
pub const CHANGES_KEPT: usize = 4_096;
/// Largest file of a box's floors.
pub const FLOORS_BYTES_MAX: u64 = 64 << 10;
