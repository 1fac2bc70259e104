//! Which request is which, and its first answer.

use outboard_pool::{
    Manager, Uuid,
    api::{Claimed, Granted, Join, PoolError, Report},
    record::Claim,
};
use outboard_trust::{Identity, hex};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;

use crate::{
    document,
    http::Request,
    limits,
    metrics::{Load, metrics},
    openapi,
    operations::{
        AuditRequest, ClaimRequest, DetachRequest, DrainAction, DrainForm, FailedRequest, Form,
        Found, HoldRequest, Operation, QuotaRequest, ReasonRequest, Role, RowsRequest,
        SparesRequest, TaintRequest, WatchRequest,
    },
    page,
    roles::Caller,
};

/// Result of a request.
pub(crate) enum Outcome {
    /// Status and JSON.
    Answer(u16, Vec<u8>),
    /// Text of another form.
    Text(u16, Form, String),
    /// The answer waits for something.
    Wait(Wait),
}

/// A request that waits for its answer.
pub(crate) enum Wait {
    Report(Report),
    Claim(Claim),
    /// A lease, and how much its holder has been told, if it wants to be told more at once.
    Hold(u64, Option<u64>),
    /// The revision after which changes are asked for, and the longest time to wait for one.
    Watch(String, u64),
}

/// The manager's process, as requests need it.
pub(crate) struct Own<'a> {
    pub(crate) key: &'a Identity,
    pub(crate) load: Load,
    pub(crate) asks_token: bool,
}

/// Handles a request. Its answer may be sent once what the manager has written is durable.
pub(crate) fn handle(
    manager: &mut Manager,
    now_ms: u64,
    own: &Own<'_>,
    caller: &Caller,
    request: &Request,
) -> Outcome {
    let found = Operation::find(&request.method, &request.path);
    let is_of_box = |(operation, _): &Found| operation.role() == Role::Box;
    // A box only tells what is.
    let name = caller
        .name()
        .filter(|_| !found.as_ref().is_ok_and(is_of_box));
    manager.note_caller(name.as_deref());
    let done = found.and_then(|(operation, names)| match operation.role() {
        Role::Public | Role::Reader => show(manager, now_ms, own, (operation, &names), request),
        Role::Holder => of_holder(
            manager,
            now_ms,
            own.key,
            (operation, &names),
            (caller, request),
        ),
        Role::Box => of_box(manager, now_ms, operation, caller, request),
        Role::Operator => {
            caller.may_operate()?;
            if operation == Operation::Detach {
                return detach(manager, now_ms, &names, request);
            }
            operate(manager, now_ms, (operation, &names), request)?;
            document(&json!({}))
        }
        Role::Form => {
            let form = DrainForm::of(&request.body)?;
            caller.may_operate()?;
            let reason = (form.action == DrainAction::Drain).then_some(form.reason);
            manager.drain(now_ms, &form.of, reason)?;
            Ok(Outcome::Text(303, operation.says(), String::new()))
        }
    });
    manager.note_caller(None);
    done.unwrap_or_else(|error| refused(request, error.status(), &error))
}

/// Returns whether a request needs no token.
pub(crate) fn is_public(request: &Request) -> bool {
    let found = Operation::find(&request.method, &request.path);
    found.is_ok_and(|(operation, _)| operation.role() == Role::Public)
}

/// Returns whether a request asks for GPUs.
pub(crate) fn is_claim(request: &Request) -> bool {
    let found = Operation::find(&request.method, &request.path);
    found.is_ok_and(|(operation, _)| operation == Operation::Claim)
}

/// Returns the token that a request has: in its head, or in the page's form.
pub(crate) fn token_of(request: &Request) -> Option<String> {
    let found = Operation::find(&request.method, &request.path);
    let is_form = found.is_ok_and(|(operation, _)| operation.role() == Role::Form);
    match is_form {
        true => DrainForm::of(&request.body).ok().map(|form| form.token),
        false => request.bearer.clone(),
    }
}

/// Returns a refusal, as a page if the request is a page's.
pub(crate) fn refused(request: &Request, status: u16, error: &PoolError) -> Outcome {
    let found = Operation::find(&request.method, &request.path);
    match found.map(|(operation, _)| operation.says()) {
        Ok(Form::Html | Form::Redirect) => Outcome::Text(status, Form::Html, page::refused(error)),
        _ => Outcome::Answer(status, serde_json::to_vec(error).unwrap_or_default()),
    }
}

/// Returns further lines of an answer's head.
pub(crate) fn more_of(status: u16, form: Form) -> String {
    let mut more = String::new();
    if form == Form::Html {
        more.push_str(&format!("Content-Security-Policy: {}\r\n", page::POLICY));
        more.push_str("Referrer-Policy: same-origin\r\n");
        if status == 401 {
            more.push_str("WWW-Authenticate: Basic realm=\"outboard pool\", charset=\"UTF-8\"\r\n");
        }
    }
    if form == Form::Redirect {
        more.push_str(&format!("Location: {}\r\n", Operation::Page.path(&[])));
    }
    more
}

fn text(operation: Operation, text: String) -> Outcome {
    Outcome::Text(200, operation.says(), text)
}

/// Handles a request that changes nothing.
fn show(
    manager: &Manager,
    now_ms: u64,
    own: &Own<'_>,
    (operation, names): (Operation, &[String]),
    request: &Request,
) -> Result<Outcome, PoolError> {
    match operation {
        Operation::List => document(&manager.view(now_ms)),
        Operation::Tables => document(&manager.tables()),
        Operation::Lease => document(&manager.lease_view(now_ms, lease_of(names)?)?),
        Operation::Quotas => document(&manager.quotas()),
        Operation::Spares => document(&manager.spares_view()),
        Operation::Audit => document(&manager.audit(&AuditRequest::of(&request.query)?)?),
        Operation::History => document(&manager.history()),
        Operation::Leader => document(&json!({ "incarnation": manager.incarnation() })),
        Operation::Openapi => Ok(Outcome::Answer(200, openapi::document()?)),
        Operation::Metrics => Ok(text(operation, metrics(manager, now_ms, own.load))),
        Operation::Page => Ok(text(operation, page::page(manager, now_ms, own.asks_token))),
        Operation::PageScript => Ok(text(operation, page::SCRIPT.into())),
        Operation::PageStyle => Ok(text(operation, page::STYLE.into())),
        Operation::PageRows => {
            let asked = RowsRequest::of(&request.query)?;
            document(&page::changes(manager, now_ms, &asked.after)?)
        }
        Operation::Watch => {
            let asked = WatchRequest::of(&request.query)?;
            if own.load.watchers >= limits::WATCHERS_MAX {
                return Err(PoolError::Busy(format!(
                    "{} clients watch already; try again later",
                    limits::WATCHERS_MAX
                )));
            }
            let wait_ms = asked.wait_ms.unwrap_or(limits::WATCH_MS_MAX);
            let wait_ms = wait_ms.min(limits::WATCH_MS_MAX);
            Ok(Outcome::Wait(Wait::Watch(asked.after, wait_ms)))
        }
        _ => Err(unknown(request)),
    }
}

/// Handles a request of a box.
fn of_box(
    manager: &mut Manager,
    now_ms: u64,
    operation: Operation,
    caller: &Caller,
    request: &Request,
) -> Result<Outcome, PoolError> {
    match operation {
        Operation::Join => {
            let join: Join = body(request)?;
            caller.may_speak_for(&join.name)?;
            let answer = manager.join(now_ms, &join)?;
            tracing::info!(
                name = join.name,
                gpus = join.gpus.len(),
                url = join.url,
                "a box joins"
            );
            document(&answer)
        }
        Operation::Report => {
            let report: Report = body(request)?;
            caller.may_speak_for(&report.name)?;
            manager.report(now_ms, &report)?;
            Ok(Outcome::Wait(Wait::Report(report)))
        }
        _ => Err(unknown(request)),
    }
}

/// Handles a claim, or a request of a lease's holder.
fn of_holder(
    manager: &mut Manager,
    now_ms: u64,
    key: &Identity,
    (operation, names): (Operation, &[String]),
    (caller, request): (&Caller, &Request),
) -> Result<Outcome, PoolError> {
    if operation == Operation::Claim {
        let asked: ClaimRequest = body(request)?;
        let mut claim = asked.claim;
        if claim.attach {
            caller.may_operate()?;
        }
        claim.owner = caller.owner(&claim.owner)?;
        return match manager.claim(now_ms, &claim, asked.wait)? {
            Claimed::Granted(granted) => document(&granted_answer(granted, key)?),
            Claimed::Waiting { .. } => Ok(Outcome::Wait(Wait::Claim(claim))),
        };
    }
    let id = lease_of(names)?;
    caller.may_end(manager.owner_of(id)?)?;
    match operation {
        Operation::Hold => {
            let HoldRequest { news } = body(request)?;
            manager.hold(now_ms, id)?;
            Ok(Outcome::Wait(Wait::Hold(id, news)))
        }
        Operation::Release => {
            manager.release(now_ms, id)?;
            document(&manager.lease_view(now_ms, id)?)
        }
        Operation::Grants => match manager.grants_of(id)? {
            Claimed::Granted(granted) => document(&granted_answer(granted, key)?),
            Claimed::Waiting { .. } => Err(unknown(request)),
        },
        Operation::Failed => {
            let FailedRequest { of, reason } = body(request)?;
            manager.session_failed(now_ms, id, &of, &reason)?;
            document(&manager.lease_view(now_ms, id)?)
        }
        _ => Err(unknown(request)),
    }
}

fn detach(
    manager: &mut Manager,
    now_ms: u64,
    names: &[String],
    request: &Request,
) -> Result<Outcome, PoolError> {
    let DetachRequest { force } = body(request)?;
    let uuid = names.first().map_or("", String::as_str);
    let uuid: Uuid = uuid.parse().map_err(|error| wrong(&error))?;
    let lease = manager.detach(now_ms, &uuid, force)?;
    document(&manager.lease_view(now_ms, lease)?)
}

fn operate(
    manager: &mut Manager,
    now_ms: u64,
    (operation, names): (Operation, &[String]),
    request: &Request,
) -> Result<(), PoolError> {
    let name = names.first().map_or("", String::as_str);
    match operation {
        Operation::Drain => {
            let ReasonRequest { reason } = body(request)?;
            manager.drain(now_ms, name, reason)
        }
        Operation::Forget => manager.forget_box(name),
        Operation::Taint => {
            let TaintRequest { reason, broken } = body(request)?;
            let uuid: Uuid = name.parse().map_err(|error| wrong(&error))?;
            match (broken, reason) {
                (true, Some(reason)) => manager.is_broken(now_ms, &uuid, &reason),
                (true, None) => Err(wrong(&"a broken GPU needs a reason")),
                (false, reason) => manager.taint(now_ms, &uuid, reason),
            }
        }
        Operation::Quota => {
            let QuotaRequest { gpus } = body(request)?;
            manager.quota(now_ms, name, gpus)
        }
        Operation::SetSpares => {
            let asked: SparesRequest = body(request)?;
            manager.set_spares(now_ms, &asked.into())
        }
        _ => Err(unknown(request)),
    }
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

fn body<T: DeserializeOwned>(request: &Request) -> Result<T, PoolError> {
    document::read(&request.body).map_err(|error| wrong(&error))
}

/// Returns the lease that a path names.
fn lease_of(names: &[String]) -> Result<u64, PoolError> {
    let text = names.first().map_or("", String::as_str);
    text.parse()
        .map_err(|_| wrong(&format!("{text:?} is no lease")))
}

fn wrong(error: &impl ToString) -> PoolError {
    PoolError::Wrong(error.to_string())
}

fn unknown(request: &Request) -> PoolError {
    PoolError::Unknown(format!("there is no {} {}", request.method, request.path))
}
