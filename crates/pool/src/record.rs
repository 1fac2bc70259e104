//! The records of a store: their keys and contents.

#[cfg(feature = "schemas")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    limits::TERM_DEFAULT_MS,
    link::{LinkFacts, LinkNeed},
    near::Near,
    uuid::Uuid,
};

/// Version of these records. A manager refuses a store of a later one.
pub const FORMAT: u32 = 4;
/// The record of the pool itself.
pub const POOL_KEY: &str = "pool";

pub(crate) const GPU_PREFIX: &str = "gpu/";
pub(crate) const BOX_PREFIX: &str = "box/";
pub(crate) const HOST_PREFIX: &str = "host/";
pub(crate) const LEASE_PREFIX: &str = "lease/";
pub(crate) const QUOTA_PREFIX: &str = "quota/";
pub(crate) const SPARES_PREFIX: &str = "spares/";
pub(crate) const AUDIT_PREFIX: &str = "audit/";

/// The pool: every start of a manager rewrites it, and every transaction compares it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolRecord {
    pub format: u32,
    /// Hexadecimal digits, drawn when the store was made.
    pub id: String,
    pub incarnation: u64,
    /// Public key of its managers.
    #[serde(default)]
    pub key: Option<String>,
}

/// Facts about a GPU, as its box finds them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(JsonSchema))]
pub struct GpuFacts {
    pub uuid: Uuid,
    pub model: String,
    pub memory_bytes: u64,
    pub capability: (i32, i32),
    /// Domain, bus and device, as CUDA and NVML show them.
    pub pci: (u32, u32, u32),
    /// GPUs with the same name of a box are joined by NVLink.
    pub nvlink: Option<String>,
    /// GPUs with the same name of a box are below one PCIe bridge.
    pub bridge: Option<String>,
    /// Number of the box's proxy (NIC) that the GPU is nearest to.
    pub proxy: u16,
    /// Things near it, if its box knows them.
    #[serde(default)]
    pub near: Near,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuRecord {
    pub facts: GpuFacts,
    /// Name of its box.
    pub of: String,
    /// Its place in the box.
    pub slot: u16,
    /// Epoch of the last lease. It only grows.
    pub epoch: u64,
    pub lease: Option<u64>,
    /// Whether the box's last inventory has it.
    pub present: bool,
    /// Reason for which it is not given out.
    pub taint: Option<String>,
    #[serde(default)]
    pub health: Health,
}

/// Health of a GPU, as its sessions and its box show it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(JsonSchema))]
pub struct Health {
    pub condition: Condition,
    /// Reason for the condition, unless it is healthy.
    pub reason: Option<String>,
    /// Time of the last change, in seconds since 1970. Nothing is decided by it.
    pub since_s: u64,
    /// Failed sessions in a row.
    pub failures: u32,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Condition {
    #[default]
    Healthy,
    /// A session failed: it is given out again after a pause, which grows with each failure.
    Suspect,
    /// It is not given out until an operator says so.
    Broken,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BoxRecord {
    pub name: String,
    pub node: u32,
    /// Drawn by the box when it began; tells it from another one of this name.
    pub identity: String,
    /// Address of its server.
    pub url: String,
    /// Reason for which nothing of it is given out.
    pub drained: Option<String>,
    /// Its network, if that is known.
    #[serde(default)]
    pub link: Option<LinkFacts>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostRecord {
    pub name: String,
    pub node: u32,
    /// Entries of its table.
    pub entries: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum LeaseState {
    Granted,
    /// Boxes are to confirm that its sessions are over.
    Ending,
    Over,
}

/// Reason for a lease's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum EndReason {
    Released,
    /// The holder's connection ended and did not come back.
    HolderGone,
    Expired,
    /// The last of its GPUs was detached from the host.
    Detached,
    /// Nobody used its GPUs for the time that it, or the pool's operator, allows.
    Idle,
}

impl EndReason {
    pub const ALL: [EndReason; 5] = [
        EndReason::Released,
        EndReason::HolderGone,
        EndReason::Expired,
        EndReason::Detached,
        EndReason::Idle,
    ];

    pub fn word(self) -> &'static str {
        match self {
            EndReason::Released => "released",
            EndReason::HolderGone => "holdergone",
            EndReason::Expired => "expired",
            EndReason::Detached => "detached",
            EndReason::Idle => "idle",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leased {
    pub uuid: Uuid,
    pub epoch: u64,
    /// Entry of the host's table.
    pub entry: u16,
    /// Whether the GPU is free again.
    pub free: bool,
    /// Reason for which the holder has lost it: it is broken, gone, or its box does not answer.
    #[serde(default)]
    pub lost: Option<String>,
    /// Whether a spare has its entry.
    #[serde(default)]
    pub replaced: bool,
    /// UID of the claim that attached it, if it was not the lease's first.
    #[serde(default)]
    pub attached_by: Option<String>,
    /// Networks that are good enough for that claim.
    #[serde(default)]
    pub links: Vec<LinkNeed>,
    /// State of its way out of the lease of a host.
    #[serde(default)]
    pub detach: Detach,
    /// Its sessions were ended for the detach, rather than waited for.
    #[serde(default)]
    pub is_forced: bool,
    /// Name of the token of who asked for the detach.
    #[serde(default)]
    pub detached_by: Option<String>,
    /// Time at which the lease got it, in seconds since 1970. Nothing is decided by it.
    #[serde(default)]
    pub since_s: u64,
}

/// Way of a GPU out of the lease of a host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Detach {
    #[default]
    No,
    /// No grant names it any more; its sessions go on.
    Waits,
    /// Its sessions are to end, if there are any.
    Out,
}

impl Leased {
    /// Returns whether the holder can begin sessions with it.
    pub(crate) fn is_granted(&self) -> bool {
        !self.replaced && self.detach == Detach::No
    }

    /// Returns whether it is the lease's no more: a spare has its place, or it was detached.
    pub(crate) fn is_out(&self) -> bool {
        self.replaced || self.detach == Detach::Out
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseRecord {
    pub id: u64,
    pub claim: Claim,
    pub state: LeaseState,
    pub reason: Option<EndReason>,
    /// Name of the one who ended it; `None`: the manager itself did.
    #[serde(default)]
    pub ended_by: Option<String>,
    pub gpus: Vec<Leased>,
}

/// One entry of the audit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(JsonSchema))]
pub struct AuditEntry {
    /// Its place: numbers are consecutive, over all starts of managers.
    pub number: u64,
    /// In seconds since 1970, by the manager's clock.
    pub at_s: u64,
    pub what: AuditKind,
    pub lease: Option<u64>,
    pub holder: Option<String>,
    pub host: Option<String>,
    pub gpus: Vec<AuditGpu>,
    /// The box that it is about.
    #[serde(rename = "box")]
    pub of: Option<String>,
    /// Cause for which GPUs are taken back.
    pub cause: Option<Cause>,
    /// Name of the token of the one who did it; `None`: the manager itself.
    pub by: Option<String>,
    /// Text of an operator, or of what was found.
    pub reason: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(JsonSchema))]
pub struct AuditGpu {
    pub uuid: Uuid,
    /// Name of its box at that time.
    #[serde(rename = "box")]
    pub of: String,
    /// Epoch of the lease, and the time at which it got the GPU.
    pub epoch: Option<u64>,
    pub since_s: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum AuditKind {
    /// A lease has got these GPUs.
    Given,
    /// A lease is over: its GPUs are taken back when their sessions have ended.
    Ended,
    /// The holder was told that its GPUs will be taken back.
    Noticed,
    /// An attached GPU is asked back.
    Detaching,
    /// No lease has these GPUs any more.
    Taken,
    Drained,
    Undrained,
    Tainted,
    Untainted,
    /// It is not given out until it is untainted.
    Broken,
    /// The box is no longer known.
    Forgotten,
}

impl AuditKind {
    pub fn word(self) -> &'static str {
        match self {
            AuditKind::Given => "given",
            AuditKind::Ended => "ended",
            AuditKind::Noticed => "noticed",
            AuditKind::Detaching => "detaching",
            AuditKind::Taken => "taken",
            AuditKind::Drained => "drained",
            AuditKind::Undrained => "undrained",
            AuditKind::Tainted => "tainted",
            AuditKind::Untainted => "untainted",
            AuditKind::Broken => "broken",
            AuditKind::Forgotten => "forgotten",
        }
    }
}

/// Cause for which a GPU is taken back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Cause {
    Released,
    /// The holder's connection ended and did not come back.
    HolderGone,
    /// The deadline is over.
    Expired,
    /// It was detached from its host when no session had it, or by force.
    Detached,
    Forced,
    /// It was lost, and a spare has its place.
    Lost,
    /// Nobody used it.
    Idle,
}

impl Cause {
    pub fn word(self) -> &'static str {
        match self {
            Cause::Released => "released",
            Cause::HolderGone => "its holder is gone",
            Cause::Expired => "its deadline is over",
            Cause::Detached => "detached",
            Cause::Forced => "detached by force",
            Cause::Lost => "lost",
            Cause::Idle => "nobody used it",
        }
    }
}

/// GPUs that shall have something in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Same {
    Box,
    Nvlink,
    Bridge,
    Proxy,
}

/// The choice between groups that have enough GPUs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Fit {
    /// The group that has the fewest free GPUs: large groups stay whole.
    #[default]
    Best,
    /// The group that joined first.
    First,
    /// The groups that have the most free GPUs, one GPU of each in turn.
    Spread,
    /// The group in which the claims that are known lose least (fragmentation gradient descent).
    Fgd,
}

/// A request for GPUs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(JsonSchema))]
pub struct Claim {
    /// Drawn by the client. A claim that comes again with its UID is the same claim.
    pub uid: String,
    /// Name by which the holder is known; that of the token, if the manager asks for tokens.
    #[serde(default)]
    pub owner: String,
    /// The machine on which the program runs.
    pub host: String,
    pub gpus: u32,
    /// Whole words of the model's name, in any case: `A10` is no word of `A100`.
    pub model: Option<String>,
    pub same: Option<Same>,
    #[serde(default)]
    pub fit: Fit,
    #[serde(default)]
    pub priority: u8,
    /// Time of the lease without a renewal.
    #[serde(default = "term_default")]
    pub term_ms: u64,
    /// Whether the host itself is to have the GPUs, until they are detached.
    #[serde(default)]
    pub attach: bool,
    /// Networks that are good enough: each box's is to be as good as one of them. Without any of
    /// them every box will do, also one whose network is not known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<LinkNeed>,
    /// Time without a session or a call after which the GPUs are taken back.
    #[serde(default)]
    pub idle_ms: Option<u64>,
}

fn term_default() -> u64 {
    TERM_DEFAULT_MS
}

/// GPUs that an owner may have at a time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(JsonSchema))]
pub struct QuotaRecord {
    pub owner: String,
    pub gpus: u32,
}

/// GPUs that are held back, to take the place of broken ones.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(JsonSchema))]
pub struct SpareRecord {
    /// Whole words of the model's name, in any case: `A10` is no word of `A100`. Without it: of
    /// each model.
    pub model: Option<String>,
    /// Kind of group of which each keeps so many; `None`: all GPUs of a model together.
    pub per: Option<Same>,
    pub gpus: u32,
}

pub(crate) fn gpu_key(uuid: &Uuid) -> String {
    format!("{GPU_PREFIX}{uuid}")
}

pub(crate) fn box_key(name: &str) -> String {
    format!("{BOX_PREFIX}{name}")
}

pub(crate) fn host_key(name: &str) -> String {
    format!("{HOST_PREFIX}{name}")
}

/// Keys of the audit sort as its numbers do.
pub(crate) fn audit_key(number: u64) -> String {
    format!("{AUDIT_PREFIX}{number:020}")
}

pub(crate) fn lease_key(id: u64) -> String {
    format!("{LEASE_PREFIX}{id:020}")
}

/// The word of a rule about spares, by which it is known.
pub(crate) fn spares_word(model: Option<&str>) -> String {
    model.map_or("*".into(), str::to_lowercase)
}

pub(crate) fn spares_key(word: &str) -> String {
    format!("{SPARES_PREFIX}{word}")
}

pub(crate) fn quota_key(owner: &str) -> String {
    format!("{QUOTA_PREFIX}{owner}")
}
