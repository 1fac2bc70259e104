//! Which request is which, and its first answer.

use outboard_pool::{
    Manager, Uuid,
    api::{Claimed, Granted, Join, PoolError, Report},
    record::{Claim, SpareRecord},
};
use outboard_trust::{Identity, hex};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::json;

use crate::{http::Request, roles::Caller};

/// Result of a request.
pub(crate) enum Outcome {
    /// Status and JSON.
    Answer(u16, Vec<u8>),
    /// Text for Prometheus.
    Text(String),
    /// The answer waits for something.
    Wait(Wait),
}

/// A request that waits for its answer.
pub(crate) enum Wait {
    Report(Report),
    Claim(Claim),
    /// A lease, and how much its holder has been told, if it wants to be told more at once.
    Hold(u64, Option<u64>),
}

/// A claim, as clients send it.
#[derive(Debug, Deserialize)]
struct ClaimRequest {
    claim: Claim,
    #[serde(default)]
    wait: bool,
}

#[derive(Debug, Deserialize)]
struct ReasonRequest {
    reason: Option<String>,
}

#[derive(Debug, Deserialize)]
struct TaintRequest {
    reason: Option<String>,
    /// Whether a spare is to take its place.
    #[serde(default)]
    broken: bool,
}

#[derive(Debug, Default, Deserialize)]
struct HoldRequest {
    /// As of the last answer.
    #[serde(default)]
    news: Option<u64>,
}

#[derive(Debug, Deserialize)]
struct FailedRequest {
    #[serde(rename = "box")]
    of: String,
    reason: String,
}

#[derive(Debug, Deserialize)]
struct QuotaRequest {
    gpus: Option<u32>,
}

/// Handles a request. Its answer may be sent once what the manager has written is durable.
pub(crate) fn handle(
    manager: &mut Manager,
    now_ms: u64,
    key: &Identity,
    caller: &Caller,
    request: &Request,
) -> Outcome {
    let path = request.path.split('/').skip(1).collect::<Vec<_>>();
    let is_post = request.method == "POST";
    let done = match (request.method.as_str(), &path[..]) {
        ("POST", ["v1", "boxes", "join"]) => body::<Join>(request).and_then(|join| {
            caller.may_speak_for(&join.name)?;
            let answer = manager.join(now_ms, &join)?;
            tracing::info!(
                name = join.name,
                gpus = join.gpus.len(),
                url = join.url,
                "a box joins"
            );
            document(&answer)
        }),
        ("POST", ["v1", "boxes", "report"]) => body::<Report>(request).and_then(|report| {
            caller.may_speak_for(&report.name)?;
            manager.report(now_ms, &report)?;
            Ok(Outcome::Wait(Wait::Report(report)))
        }),
        ("POST", ["v1", "claims"]) => body::<ClaimRequest>(request).and_then(|asked| {
            let mut claim = asked.claim;
            claim.owner = caller.owner(&claim.owner)?;
            match manager.claim(now_ms, &claim, asked.wait)? {
                Claimed::Granted(granted) => document(&granted_answer(granted, key)?),
                Claimed::Waiting { .. } => Ok(Outcome::Wait(Wait::Claim(claim))),
            }
        }),
        ("POST", ["v1", "leases", id, action]) => number(id).and_then(|id| {
            caller.may_end(manager.owner_of(id)?)?;
            of_lease(manager, now_ms, key, (id, action), request)
        }),
        ("GET", ["v1", "leases", id]) => {
            number(id).and_then(|id| document(&manager.lease_view(now_ms, id)?))
        }
        ("GET", ["v1", "leader"]) => document(&json!({ "incarnation": manager.incarnation() })),
        ("GET", ["v1", "pool"]) => document(&manager.view(now_ms)),
        ("GET", ["v1", "spares"]) => document(&manager.spares_view()),
        ("GET", ["v1", "tables"]) => document(&manager.tables()),
        ("GET", ["metrics"]) => Ok(Outcome::Text(metrics(manager, now_ms))),
        _ if is_post => caller
            .may_operate()
            .and_then(|()| operate(manager, now_ms, &path, request)),
        _ => Err(unknown(request)),
    };
    done.unwrap_or_else(|error| refusal(&error))
}

/// Handles a request of a lease's holder.
fn of_lease(
    manager: &mut Manager,
    now_ms: u64,
    key: &Identity,
    (id, action): (u64, &str),
    request: &Request,
) -> Result<Outcome, PoolError> {
    match action {
        "hold" => {
            let HoldRequest { news } = body(request)?;
            manager.hold(now_ms, id)?;
            Ok(Outcome::Wait(Wait::Hold(id, news)))
        }
        "release" => {
            manager.release(now_ms, id)?;
            document(&manager.lease_view(now_ms, id)?)
        }
        "grants" => match manager.grants_of(id)? {
            Claimed::Granted(granted) => document(&granted_answer(granted, key)?),
            Claimed::Waiting { .. } => Err(unknown(request)),
        },
        "failed" => {
            let FailedRequest { of, reason } = body(request)?;
            manager.session_failed(now_ms, id, &of, &reason)?;
            document(&manager.lease_view(now_ms, id)?)
        }
        _ => Err(unknown(request)),
    }
}

fn operate(
    manager: &mut Manager,
    now_ms: u64,
    path: &[&str],
    request: &Request,
) -> Result<Outcome, PoolError> {
    match *path {
        ["v1", "boxes", name, "drain"] => {
            let ReasonRequest { reason } = body(request)?;
            manager.drain(now_ms, name, reason)?;
        }
        ["v1", "gpus", uuid, "taint"] => {
            let TaintRequest { reason, broken } = body(request)?;
            let uuid: Uuid = uuid.parse().map_err(|error| wrong(&error))?;
            match (broken, reason) {
                (true, Some(reason)) => manager.is_broken(now_ms, &uuid, &reason)?,
                (true, None) => return Err(wrong(&"a broken GPU needs a reason")),
                (false, reason) => manager.taint(now_ms, &uuid, reason)?,
            }
        }
        ["v1", "quotas", owner] => {
            let QuotaRequest { gpus } = body(request)?;
            manager.quota(now_ms, owner, gpus)?;
        }
        ["v1", "spares"] => {
            let rule: SpareRecord = body(request)?;
            manager.set_spares(now_ms, &rule)?;
        }
        _ => return Err(unknown(request)),
    }
    document(&json!({}))
}

/// Signs the grants of a claim's answer.
pub(crate) fn granted_answer(mut granted: Granted, key: &Identity) -> Result<Claimed, PoolError> {
    for of in &mut granted.boxes {
        let signed = of.grant.sign(key);
        let signed = signed.map_err(|error| PoolError::NotNow(error.to_string()))?;
        of.signed = hex::encode(&signed);
    }
    Ok(Claimed::Granted(granted))
}

pub(crate) fn document(document: &impl Serialize) -> Result<Outcome, PoolError> {
    let bytes = serde_json::to_vec(document);
    let bytes = bytes.map_err(|error| PoolError::NotNow(error.to_string()))?;
    Ok(Outcome::Answer(200, bytes))
}

pub(crate) fn refusal(error: &PoolError) -> Outcome {
    let bytes = serde_json::to_vec(error).unwrap_or_default();
    Outcome::Answer(error.status(), bytes)
}

fn metrics(manager: &Manager, now_ms: u64) -> String {
    let view = manager.view(now_ms);
    let mut by_state = std::collections::BTreeMap::<String, usize>::new();
    for gpu in &view.gpus {
        let state = format!("{:?}", gpu.state).to_lowercase();
        *by_state.entry(state).or_default() += 1;
    }
    let mut out = String::from(
        "# HELP outboard_pool_gpus GPUs of the pool, by state\n# TYPE outboard_pool_gpus gauge\n",
    );
    for (state, count) in by_state {
        out.push_str(&format!(
            "outboard_pool_gpus{{state=\"{state}\"}} {count}\n"
        ));
    }
    for (name, help, value) in [
        (
            "outboard_pool_leases",
            "Leases that are not over",
            view.leases.len(),
        ),
        (
            "outboard_pool_waiting",
            "Claims that wait",
            view.queue.len(),
        ),
    ] {
        out.push_str(&format!(
            "# HELP {name} {help}\n# TYPE {name} gauge\n{name} {value}\n"
        ));
    }
    out
}

fn body<T: DeserializeOwned>(request: &Request) -> Result<T, PoolError> {
    serde_json::from_slice(&request.body).map_err(|error| wrong(&error))
}

fn number(text: &str) -> Result<u64, PoolError> {
    text.parse()
        .map_err(|_| wrong(&format!("{text:?} is no lease")))
}

fn wrong(error: &impl ToString) -> PoolError {
    PoolError::Wrong(error.to_string())
}

fn unknown(request: &Request) -> PoolError {
    PoolError::Unknown(format!("there is no {} {}", request.method, request.path))
}
