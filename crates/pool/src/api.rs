//! The documents that the manager and others exchange, as JSON over HTTP.

#[cfg(feature = "schemas")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{
    grant::Grant,
    link::LinkFacts,
    record::{
        AuditEntry, Claim, EndReason, GpuFacts, Health, LeaseState, QuotaRecord, SpareRecord,
    },
    uuid::Uuid,
};

/// A box begins, or begins anew.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(JsonSchema))]
pub struct Join {
    pub name: String,
    /// Drawn once and kept on the box's disk.
    pub identity: String,
    /// Drawn by each process.
    pub instance: String,
    /// Address of its server.
    pub url: String,
    pub gpus: Vec<GpuFacts>,
    /// Network between programs and this box, if it is known.
    #[serde(default)]
    pub link: Option<LinkFacts>,
    /// Reason for which it could not be measured.
    #[serde(default)]
    pub link_fails: Option<String>,
}

/// A box reports, and waits for news.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(JsonSchema))]
pub struct Report {
    pub name: String,
    pub instance: String,
    /// The last answer's.
    pub incarnation: u64,
    pub revision: u64,
    pub gpus: Vec<GpuReport>,
    /// Leases whose sessions run, with the address window of one.
    #[serde(default)]
    pub windows: Vec<Window>,
    /// Reason for which the check of its GPUs fails.
    #[serde(default)]
    pub check: Option<String>,
    /// Highest number of a lease that the box has been told of.
    #[serde(default)]
    pub lease_last: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(JsonSchema))]
pub struct GpuReport {
    pub uuid: Uuid,
    /// The floor that is on the disk.
    pub floor: u64,
    /// Lowest epoch of a session that has not ended.
    pub busy: Option<u64>,
    /// Highest epoch of one.
    #[serde(default)]
    pub busy_last: Option<u64>,
    /// Reason for which the box says that it is broken.
    #[serde(default)]
    pub broken: Option<String>,
    /// Sessions of it whose workers failed, since the box's process began.
    #[serde(default)]
    pub failures: u32,
    /// Time since its last session or call, by the box's clock; 0: there is one now. `None`: the
    /// box does not say.
    #[serde(default)]
    pub idle_ms: Option<u64>,
}

/// Device addresses of a lease's session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(JsonSchema))]
pub struct Window {
    pub lease: u64,
    pub base: u64,
    pub bytes: u64,
}

/// The manager's answer to a box.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(JsonSchema))]
pub struct BoxAnswer {
    /// The pool's id.
    pub pool: String,
    pub incarnation: u64,
    /// The manager's time.
    pub now_ms: u64,
    /// Changes when leases of the box do.
    pub revision: u64,
    /// Time until the next report, if there are no news.
    pub wait_ms: u64,
    /// The manager's public key, by which grants are checked.
    pub key: String,
    pub floors: Vec<(Uuid, u64)>,
    pub leases: Vec<BoxLease>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(JsonSchema))]
pub struct BoxLease {
    pub lease: u64,
    pub deadline_ms: u64,
}

/// The manager's answer to a claim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Claimed {
    Granted(Granted),
    /// It waits. The client asks again, with the same UID.
    Waiting {
        position: usize,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(JsonSchema))]
pub struct Granted {
    pub lease: u64,
    pub term_ms: u64,
    pub boxes: Vec<GrantedBox>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(JsonSchema))]
pub struct GrantedBox {
    pub name: String,
    pub url: String,
    pub grant: Grant,
    /// The signed grant, in hexadecimal digits.
    pub signed: String,
}

/// A lease, as holders and operators see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(JsonSchema))]
pub struct LeaseView {
    pub lease: u64,
    pub claim: Claim,
    pub state: LeaseState,
    pub reason: Option<EndReason>,
    pub gpus: Vec<Uuid>,
    /// GPUs that leave the host's lease, and are not free yet.
    #[serde(default)]
    pub detaching: Vec<Uuid>,
    pub boxes: Vec<String>,
    /// Time left until the deadline.
    pub left_ms: u64,
    /// GPUs that are broken, that their boxes no longer have, or whose box was silent.
    pub lost: Vec<LostView>,
    /// Changes when a GPU is lost, replaced, attached or detached, and with each notice.
    pub news: u64,
    /// Time since the last report of each box that serves it; `None`: it is silent.
    pub heard_ms: Vec<Option<u64>>,
    #[serde(default)]
    pub notices: Vec<Notice>,
}

/// Something that a holder is to know before it loses GPUs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(JsonSchema))]
pub struct Notice {
    pub what: NoticeKind,
    /// The box that is drained.
    #[serde(rename = "box")]
    pub of: Option<String>,
    pub reason: String,
    /// Time until the GPUs are taken back; `None`: the lease stays.
    pub left_ms: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum NoticeKind {
    /// Nobody uses the GPUs: a session or a call takes the notice away.
    Idle,
    /// A box is drained: its GPUs are to be given back soon.
    Drain,
}

impl NoticeKind {
    pub fn word(self) -> &'static str {
        match self {
            NoticeKind::Idle => "idle",
            NoticeKind::Drain => "drain",
        }
    }
}

/// A GPU that a holder has lost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(JsonSchema))]
pub struct LostView {
    pub uuid: Uuid,
    pub reason: String,
    /// Whether a spare has its place.
    pub replaced: bool,
}

/// The manager's answer to a holder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(JsonSchema))]
pub struct Held {
    pub left_ms: u64,
    #[serde(default)]
    pub news: u64,
    #[serde(default)]
    pub lost: Vec<LostView>,
    #[serde(default)]
    pub notices: Vec<Notice>,
}

/// Rules about spares, and what is held back now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(JsonSchema))]
pub struct SparesView {
    pub rules: Vec<SpareRecord>,
    pub held: Vec<Uuid>,
}

/// A GPU, as operators see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(JsonSchema))]
pub struct GpuView {
    #[serde(flatten)]
    pub facts: GpuFacts,
    #[serde(rename = "box")]
    pub of: String,
    pub slot: u16,
    pub epoch: u64,
    pub lease: Option<u64>,
    pub state: GpuState,
    /// Reason for a taint or a drain.
    pub reason: Option<String>,
    pub health: Health,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum GpuState {
    Free,
    Leased,
    /// Its lease is over, and its box has not confirmed it.
    Ending,
    /// It is held back, to take the place of a broken one.
    Spare,
    /// A session failed: it is given out again after a pause.
    Suspect,
    Broken,
    /// Its box is drained.
    Drained,
    Tainted,
    /// Its box does not report.
    Silent,
    /// Its box no longer has it.
    Gone,
}

impl GpuState {
    pub const ALL: [GpuState; 10] = [
        GpuState::Free,
        GpuState::Leased,
        GpuState::Ending,
        GpuState::Spare,
        GpuState::Suspect,
        GpuState::Broken,
        GpuState::Drained,
        GpuState::Tainted,
        GpuState::Silent,
        GpuState::Gone,
    ];

    /// Returns the word that lists and metrics have.
    pub fn word(self) -> &'static str {
        match self {
            GpuState::Free => "free",
            GpuState::Leased => "leased",
            GpuState::Ending => "ending",
            GpuState::Spare => "spare",
            GpuState::Suspect => "suspect",
            GpuState::Broken => "broken",
            GpuState::Drained => "drained",
            GpuState::Tainted => "tainted",
            GpuState::Silent => "silent",
            GpuState::Gone => "gone",
        }
    }
}

/// A box, as operators see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(JsonSchema))]
pub struct BoxView {
    #[serde(rename = "box")]
    pub of: String,
    pub node: u32,
    /// Address of its server.
    pub url: String,
    /// Number of its GPUs, those that are gone included.
    pub gpus: usize,
    /// Reason for a drain.
    pub drained: Option<String>,
    /// Whether it reports.
    pub heard: bool,
    /// Reason for which its check of GPUs fails.
    #[serde(default)]
    pub check: Option<String>,
    /// Its network, if that is known.
    #[serde(default)]
    pub link: Option<LinkFacts>,
    /// Reason for which it could not be measured.
    #[serde(default)]
    pub link_fails: Option<String>,
}

/// A holder's bound, and what it has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(JsonSchema))]
pub struct QuotaView {
    #[serde(flatten)]
    pub quota: QuotaRecord,
    pub used: u32,
}

/// Bounds of all holders that have one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(JsonSchema))]
pub struct QuotasView {
    pub quotas: Vec<QuotaView>,
}

/// A claim that waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(JsonSchema))]
pub struct WaitingView {
    pub claim: Claim,
    pub position: usize,
    pub waited_ms: u64,
}

/// The pool, as operators see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(JsonSchema))]
pub struct PoolView {
    pub pool: String,
    pub incarnation: u64,
    /// Place in the sequence of changes from which a watch goes on.
    #[serde(default)]
    pub revision: String,
    #[serde(default)]
    pub boxes: Vec<BoxView>,
    pub gpus: Vec<GpuView>,
    pub leases: Vec<LeaseView>,
    /// The first claims that wait.
    pub queue: Vec<WaitingView>,
    /// Number of all claims that wait.
    #[serde(default)]
    pub waiting: usize,
}

/// Changes after a revision: each object once, as it is now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(JsonSchema))]
pub struct Changes {
    /// Place from which the next watch goes on.
    pub revision: String,
    /// True if there are more: ask again at once.
    pub more: bool,
    pub events: Vec<Event>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(JsonSchema))]
pub struct Event {
    pub revision: String,
    /// Name of the object: a box's name, a GPU's UUID, a lease's number, a claim's UID, a holder.
    pub name: String,
    pub object: Object,
}

/// An object of the pool; `null`: it is no longer there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Object {
    Box(Option<BoxView>),
    Gpu(Option<Box<GpuView>>),
    Lease(Option<Box<LeaseView>>),
    /// A claim that waits. Afterwards it has a lease, or was given up.
    Claim(Option<WaitingView>),
    Quota(Option<QuotaView>),
    Spares(SparesView),
}

/// Entries of the audit, oldest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(JsonSchema))]
pub struct AuditView {
    /// Number of the last entry that was looked at: the next question goes on after it.
    pub revision: u64,
    /// True if there are more: ask again at once.
    pub more: bool,
    /// Number of entries after the question's that are no longer known, since only the last are
    /// kept.
    pub dropped: u64,
    pub entries: Vec<AuditEntry>,
}

/// GPUs of the pool at a time.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(JsonSchema))]
pub struct Sample {
    /// In seconds since 1970.
    pub at_s: u64,
    /// GPUs that are known, those that can be given out, and those that leases have.
    pub gpus: u32,
    pub free: u32,
    pub leased: u32,
    /// Thousandths of free GPUs that a claim like those that are known cannot use, in the mean: it
    /// wants more of one group than there are.
    pub fragmented_milli: u64,
}

/// The pool's numbers over time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(JsonSchema))]
pub struct HistoryView {
    /// Time between the last samples.
    pub step_ms: u64,
    pub samples: Vec<Sample>,
}

/// The mapping tables of hosts and boxes: the paper's Tables 2 and 3.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(JsonSchema))]
pub struct Tables {
    pub hosts: Vec<HostTable>,
    pub boxes: Vec<BoxTable>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(JsonSchema))]
pub struct HostTable {
    pub host: String,
    pub node: u32,
    /// Entries that are not used are left out.
    pub entries: Vec<HostEntry>,
    pub reserved: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(JsonSchema))]
pub struct HostEntry {
    pub entry: u16,
    pub used: bool,
    pub bus: u32,
    pub device: u32,
    /// Window of device addresses of the session, once one has run.
    pub memory_base: Option<u64>,
    pub memory_limit: Option<u64>,
    /// Node number of the GPU's box.
    #[serde(rename = "box")]
    pub of: u32,
    pub slot: u16,
    pub path: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(JsonSchema))]
pub struct BoxTable {
    #[serde(rename = "box")]
    pub of: String,
    pub node: u32,
    pub entries: Vec<BoxEntry>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(JsonSchema))]
pub struct BoxEntry {
    pub entry: u16,
    /// Whether the last inventory has the GPU.
    pub valid: bool,
    pub used: bool,
    pub slot: u16,
    /// Node number of the host.
    pub host: Option<u32>,
    pub path: u16,
    #[serde(default)]
    pub health: Health,
}

/// Reason why a request is refused.
#[derive(Debug, Clone, PartialEq, Eq, Error, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(JsonSchema))]
#[serde(tag = "error", content = "text", rename_all = "lowercase")]
pub enum PoolError {
    /// The request itself is wrong.
    #[error("{0}")]
    Wrong(String),
    #[error("{0}")]
    Forbidden(String),
    #[error("{0}")]
    Unknown(String),
    /// Changes since that revision are no longer known.
    #[error("{0}")]
    Gone(String),
    /// It contradicts what there is.
    #[error("{0}")]
    Conflict(String),
    /// Waiting does not help.
    #[error("{0}")]
    Impossible(String),
    /// Another manager leads.
    #[error("{0}")]
    Elsewhere(String),
    /// Waiting helps.
    #[error("{0}")]
    Busy(String),
    /// The manager cannot say just now.
    #[error("{0}")]
    NotNow(String),
}

impl PoolError {
    /// Returns the HTTP status.
    pub fn status(&self) -> u16 {
        match self {
            PoolError::Wrong(_) => 400,
            PoolError::Forbidden(_) => 403,
            PoolError::Unknown(_) => 404,
            PoolError::Conflict(_) => 409,
            PoolError::Gone(_) => 410,
            PoolError::Elsewhere(_) => 421,
            PoolError::Impossible(_) => 422,
            PoolError::Busy(_) => 429,
            PoolError::NotNow(_) => 503,
        }
    }
}
