//! `outboard pool`: the manager of a pool, and requests to it. `claim` has what `outboard run` does
//! before the program, `hold` what keeps its lease while the program runs, `news` what the program
//! is told meanwhile, `restart` what runs it again when it has lost a GPU.

mod attach;
mod audit;
mod claim;
mod grants;
mod hold;
mod inventory;
mod news;
mod restart;
mod simulate;
mod spares;

use std::{path::Path, process::ExitCode, time::Duration};

use anyhow::Context as _;
use outboard_manager::{Client, Operation, Options, ProofFiles, Server};
use outboard_pool::{
    LinkSource,
    api::{GpuView, LeaseView, PoolView, Tables},
    record::{Condition, Health},
    show_link,
};
use outboard_trust::{Fingerprint, Store, Token, date};
use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    args::{
        JsonArgs, ManagerArgs, PoolAskArgs, PoolBoxArgs, PoolCommand, PoolGpuArgs, PoolReleaseArgs,
        PoolServeArgs, PoolTokenArgs,
    },
    said::print,
    serve::{own_certificate, own_key},
};

pub(crate) use claim::{Leased, host_name, lease_for, state_folder};
pub(crate) use hold::hold;
pub(crate) use restart::run as run_again;

pub(crate) fn pool(command: PoolCommand) -> anyhow::Result<ExitCode> {
    match command {
        PoolCommand::Serve(args) => serve(args),
        PoolCommand::List(args) => {
            let view: PoolView = ask(&args, Operation::List)?;
            args.json.say(&view, || listed(&view))
        }
        PoolCommand::Tables(args) => {
            let tables: Tables = ask(&args, Operation::Tables)?;
            args.json.say(&tables, || tabled(&tables))
        }
        PoolCommand::Audit(args) => audit::audit(&args),
        PoolCommand::Claim(args) => claim::claim(&args),
        PoolCommand::Release(args) => release(&args),
        PoolCommand::Attach(args) => attach::attach(&args),
        PoolCommand::Detach(args) => attach::detach(&args),
        PoolCommand::Drain(args) => drain(&args.of, Some(&args.reason)),
        PoolCommand::Undrain(args) => drain(&args, None),
        PoolCommand::Forget(args) => {
            let path = Operation::Forget.path(&[&args.name]);
            let holds = json!({ "box": args.name, "forgotten": true });
            tell(&args.manager, &path, &json!({}), (&args.json, &holds))
        }
        PoolCommand::Taint(args) => taint(&args.of, Some(&args.reason), args.broken),
        PoolCommand::Untaint(args) => taint(&args, None, false),
        PoolCommand::Quota(args) => {
            let path = Operation::Quota.path(&[&args.owner]);
            let holds = json!({ "holder": args.owner, "gpus": args.gpus });
            let body = json!({ "gpus": args.gpus });
            tell(&args.manager, &path, &body, (&args.json, &holds))
        }
        PoolCommand::Spares(args) => spares::spares(&args),
        PoolCommand::Inventory(args) => inventory::inventory(&args),
        PoolCommand::Simulate(args) => simulate::simulate(&args),
    }
}

fn serve(args: PoolServeArgs) -> anyhow::Result<ExitCode> {
    let (proof, pin) = proof_of(&args)?;
    if !args.insecure && !args.listen.ip().is_loopback() {
        anyhow::ensure!(
            proof.is_some(),
            "{} is reached by other machines, and requests, tokens and grants are not encrypted: add --tls or \
             --certificate, and --tokens; on a network that you trust --insecure; or listen on 127.0.0.1, and come through a \
             tunnel",
            args.listen
        );
        anyhow::ensure!(
            args.tokens.is_some(),
            "{} is reached by other machines, and everybody who connects could claim GPUs: name who may by --tokens, or \
             serve everybody with --insecure",
            args.listen
        );
    }
    let scheme = if proof.is_some() { "https" } else { "http" };
    let tokens = args.tokens.map(std::path::absolute).transpose()?;
    if let Some(file) = &tokens {
        Store::read(file).context("--tokens (outboard token create makes the file)")?;
    }
    let server = Server::bind(Options {
        listen: args.listen,
        store: args.store,
        store_ca: args.store_ca,
        grant_key: args.grant_key,
        address: args.advertise.map(|url| url.to_string()),
        idle_reclaim_ms: args
            .idle_reclaim
            .map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
        tokens,
        proof,
    })?;
    let pin = pin.map_or(String::new(), |pin| format!("?fingerprint={pin}"));
    let address = server.address()?;
    print(format!("manager at {scheme}://{address}{pin}\n").as_bytes())?;
    server.run()?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the files for encrypted connections, if these are asked for, and the fingerprint by
/// which clients know the manager; None if they check its certificate.
fn proof_of(args: &PoolServeArgs) -> anyhow::Result<(Option<ProofFiles>, Option<Fingerprint>)> {
    let certificate = own_certificate(args.certificate.as_deref(), args.key.as_deref())?;
    if !args.tls && certificate.is_none() {
        anyhow::ensure!(
            args.tls_key.is_none(),
            "--tls-key is for encrypted connections: add --tls"
        );
        return Ok((None, None));
    }
    let key = match &certificate {
        // Clients that expect a key get the certificate's, unless another one is named.
        Some(_) if args.tls_key.is_none() => None,
        _ => Some(own_key(args.tls_key.clone())?),
    };
    let pin = key.as_ref().map(|(_, pin)| *pin);
    let pin = pin.filter(|_| certificate.is_none());
    let files = ProofFiles {
        key: key.map(|(file, _)| file),
        certificate: certificate.map(|(chain, key, _)| (chain, key)),
    };
    Ok((Some(files), pin))
}

/// Returns the text of the token in a file.
pub(crate) fn bearer(file: Option<&Path>) -> anyhow::Result<Option<String>> {
    let token = file.map(Token::read).transpose()?;
    Ok(token.map(|token| token.to_text()))
}

fn client(manager: &ManagerArgs) -> anyhow::Result<Client> {
    let PoolTokenArgs {
        pool_token_file,
        pool_ca,
    } = &manager.token;
    let bearer = bearer(pool_token_file.as_deref())?;
    Ok(Client::new(manager.pool.clone(), bearer, pool_ca.clone()))
}

fn ask<T: serde::de::DeserializeOwned>(args: &PoolAskArgs, of: Operation) -> anyhow::Result<T> {
    Ok(client(&args.manager)?.get(&of.path(&[]))?)
}

/// Tells the manager something, and says what holds then: as JSON, or nothing.
fn tell(
    manager: &ManagerArgs,
    path: &str,
    body: &Value,
    (json, holds): (&JsonArgs, &impl Serialize),
) -> anyhow::Result<ExitCode> {
    let _: Value = client(manager)?.post(path, body, Duration::ZERO)?;
    json.say(holds, String::new)
}

/// Drains a box for a reason; without one its GPUs are given out again.
fn drain(args: &PoolBoxArgs, reason: Option<&str>) -> anyhow::Result<ExitCode> {
    let path = Operation::Drain.path(&[&args.name]);
    let holds = json!({ "box": args.name, "drained": reason.is_some(), "reason": reason });
    let body = json!({ "reason": reason });
    tell(&args.manager, &path, &body, (&args.json, &holds))
}

/// Taints a GPU for a reason; without one it is given out again.
fn taint(args: &PoolGpuArgs, reason: Option<&str>, broken: bool) -> anyhow::Result<ExitCode> {
    let path = Operation::Taint.path(&[&args.uuid]);
    let holds = json!({ "gpu": args.uuid, "tainted": reason.is_some(), "reason": reason, "broken": broken });
    let body = json!({ "reason": reason, "broken": broken });
    tell(&args.manager, &path, &body, (&args.json, &holds))
}

fn release(args: &PoolReleaseArgs) -> anyhow::Result<ExitCode> {
    let path = Operation::Release.path(&[&args.lease]);
    let lease: LeaseView = client(&args.manager)?.post(&path, &json!({}), Duration::ZERO)?;
    args.json.say(&lease, String::new)
}

fn listed(view: &PoolView) -> String {
    let mut out = format!(
        "{:20} {:4} {:40} {:24} {:8} {:>6} {:>6}\n",
        "box", "slot", "gpu", "model", "state", "lease", "epoch"
    );
    for gpu in &view.gpus {
        let GpuView {
            facts,
            of,
            slot,
            epoch,
            lease,
            state,
            reason,
            health,
        } = gpu;
        let lease = lease.map_or("-".into(), |lease| lease.to_string());
        let state = state.word();
        let reason = reason
            .as_ref()
            .map_or(String::new(), |why| format!("  {}", shown(why)));
        let reason = reason + &unhealthy(health);
        let (uuid, model, of) = (facts.uuid.to_string(), shown(&facts.model), shown(of));
        out.push_str(&format!(
            "{of:20} {slot:4} {uuid:40} {model:24} {state:8} {lease:>6} {epoch:>6}{reason}\n"
        ));
    }
    out + &leases_listed(view) + &waiting_listed(view) + &checks_listed(view)
}

/// Returns a number of GPUs as a sentence has it.
fn counted(gpus: usize) -> String {
    let plural = if gpus == 1 { "" } else { "s" };
    format!("{gpus} GPU{plural}")
}

fn leases_listed(view: &PoolView) -> String {
    let mut out = String::new();
    for lease in &view.leases {
        let (claim, left) = (&lease.claim, lease.left_ms / 1_000);
        out.push_str(&format!(
            "lease {}: {} of {} has {}, {left} s left, {}{}\n",
            lease.lease,
            claim.owner,
            claim.host,
            counted(lease.gpus.len()),
            format!("{:?}", lease.state).to_lowercase(),
            if claim.attach {
                ", attached to the host"
            } else {
                ""
            }
        ));
        for uuid in &lease.detaching {
            out.push_str(&format!("  {uuid} is being detached\n"));
        }
        for notice in &lease.notices {
            let of = notice.of.as_deref();
            let of = of.map_or(String::new(), |of| format!(" of box {}", shown(of)));
            let left = notice.left_ms;
            let left = left.map_or(String::new(), |ms| {
                format!(", taken back in {} s", ms / 1_000)
            });
            out.push_str(&format!(
                "  notice {}{of}: {}{left}\n",
                notice.what.word(),
                shown(&notice.reason)
            ));
        }
        for lost in &lease.lost {
            let replaced = match lost.replaced {
                true => "a spare has its place",
                false => "no spare has its place",
            };
            out.push_str(&format!(
                "  lost {}: {}; {replaced}\n",
                lost.uuid,
                shown(&lost.reason)
            ));
        }
    }
    out
}

fn waiting_listed(view: &PoolView) -> String {
    let mut out = String::new();
    for waiting in &view.queue {
        let claim = &waiting.claim;
        out.push_str(&format!(
            "waiting {}: {} of {} for {} GPUs, {} s\n",
            waiting.position,
            claim.owner,
            claim.host,
            claim.gpus,
            waiting.waited_ms / 1_000
        ));
    }
    let more = view.waiting.saturating_sub(view.queue.len());
    if more > 0 {
        out.push_str(&format!("and {more} more claims wait\n"));
    }
    out
}

fn checks_listed(view: &PoolView) -> String {
    let mut out = String::new();
    for of in &view.boxes {
        if let Some(link) = &of.link {
            let source = match link.source {
                LinkSource::Measured => "measured",
                LinkSource::Told => "as it says",
            };
            let (of, link) = (shown(&of.of), show_link(link));
            out.push_str(&format!("box {of}: its network has {link}, {source}\n"));
        }
        if let Some(why) = &of.link_fails {
            out.push_str(&format!(
                "box {}: its network could not be measured: {}\n",
                shown(&of.of),
                shown(why)
            ));
        }
        if let Some(why) = &of.check {
            out.push_str(&format!(
                "box {}: its check of GPUs fails: {}\n",
                shown(&of.of),
                shown(why)
            ));
        }
    }
    out
}

/// Returns a text from elsewhere without what controls a terminal.
fn shown(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for char in text.chars() {
        match char.is_control() {
            true => plain.extend(char.escape_default()),
            false => plain.push(char),
        }
    }
    plain
}

/// Returns what is to be said of a GPU's health: nothing of a healthy one.
fn unhealthy(health: &Health) -> String {
    match (&health.reason, health.condition) {
        (_, Condition::Healthy) => String::new(),
        (reason, condition) => format!(
            "  {} since {}: {}",
            format!("{condition:?}").to_lowercase(),
            date(health.since_s),
            shown(reason.as_deref().unwrap_or("no reason is known"))
        ),
    }
}

fn tabled(tables: &Tables) -> String {
    let mut out = String::new();
    for host in &tables.hosts {
        out.push_str(&format!(
            "host {} (node {}), {} entries\nentry used bus device memory-base    memory-limit   box slot path\n",
            host.host, host.node, host.reserved
        ));
        for e in &host.entries {
            let hex = |at: Option<u64>| at.map_or("-".into(), |at| format!("{at:#x}"));
            out.push_str(&format!(
                "{:5} {:4} {:3} {:6} {:14} {:14} {:3} {:4} {:4}\n",
                e.entry,
                u8::from(e.used),
                e.bus,
                e.device,
                hex(e.memory_base),
                hex(e.memory_limit),
                e.of,
                e.slot,
                e.path
            ));
        }
    }
    for of in &tables.boxes {
        out.push_str(&format!(
            "box {} (node {})\nentry valid used slot host path health\n",
            shown(&of.of),
            of.node
        ));
        for e in &of.entries {
            let host = e.host.map_or("-".into(), |host| host.to_string());
            out.push_str(&format!(
                "{:5} {:5} {:4} {:4} {host:>4} {:4} {}{}\n",
                e.entry,
                u8::from(e.valid),
                u8::from(e.used),
                e.slot,
                e.path,
                format!("{:?}", e.health.condition).to_lowercase(),
                e.health
                    .reason
                    .as_ref()
                    .map_or(String::new(), |why| format!(
                        " since {}: {}",
                        date(e.health.since_s),
                        shown(why)
                    ))
            ));
        }
    }
    out
}
