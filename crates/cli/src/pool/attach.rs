//! GPUs that a host has without a program, until they are detached.

use std::{process::ExitCode, time::Duration};

use anyhow::Context as _;
use outboard_manager::{Client, ClientError, Operation};
use outboard_pool::{
    Uuid,
    api::{Claimed, Granted, LeaseView, PoolError, PoolView},
    record::LeaseState,
};
use serde_json::json;

use super::{
    claim::{claim_without_program, host_name, wait_for},
    client,
};
use crate::args::{PoolAttachArgs, PoolDetachArgs};

const LOOK_AGAIN: Duration = Duration::from_millis(300);

pub(super) fn attach(args: &PoolAttachArgs) -> anyhow::Result<ExitCode> {
    let mut client = client(&args.claim.manager)?;
    let mut claim = claim_without_program(&args.claim)?;
    if let Some(host) = &args.host {
        claim.host.clone_from(host);
    }
    claim.owner = args.holder.clone().unwrap_or_else(|| claim.host.clone());
    claim.attach = true;
    let granted = wait_for(&mut client, &claim, !args.claim.wish.no_wait)?;
    let lease: LeaseView = client.get(&Operation::Lease.path(&[&granted.lease]))?;
    let gpus: Vec<String> = lease.gpus.iter().map(Uuid::to_string).collect();
    let has = format!(
        "host {} has {} by the lease {}",
        claim.host,
        gpus.join(","),
        lease.lease
    );
    // What is attached stays so if that cannot be written.
    args.claim
        .json
        .say(&lease, || format!("{has}\n"))
        .context(has)
}

pub(super) fn detach(args: &PoolDetachArgs) -> anyhow::Result<ExitCode> {
    let mut client = client(&args.gpu.manager)?;
    let uuid = args.gpu.uuid;
    let path = Operation::Detach.path(&[&uuid]);
    let body = json!({ "force": args.force });
    let mut lease: LeaseView = client.post(&path, &body, Duration::ZERO)?;
    let path = Operation::Lease.path(&[&lease.lease]);
    let mut is_told = false;
    while lease.detaching.contains(&uuid) && !args.no_wait {
        if !std::mem::replace(&mut is_told, true) && !args.force {
            eprintln!("outboard: waiting until no program uses {uuid}");
        }
        std::thread::sleep(LOOK_AGAIN);
        match client.get(&path) {
            Ok(now) => lease = now,
            // The manager may come back.
            Err(ClientError::Io { .. } | ClientError::Refused(PoolError::NotNow(_))) => {}
            Err(error) => return Err(error.into()),
        }
    }
    args.gpu
        .json
        .say(&lease, || match lease.detaching.contains(&uuid) {
            true => format!("{uuid} goes when no program uses it any more\n"),
            false => format!("{uuid} is free\n"),
        })
}

/// Returns the grants of the GPUs that are attached to this host.
pub(super) fn granted(client: &mut Client) -> anyhow::Result<Granted> {
    let host = host_name();
    let view: PoolView = client.get(&Operation::List.path(&[]))?;
    let is_ours = |lease: &&LeaseView| {
        lease.claim.attach && lease.claim.host == host && lease.state == LeaseState::Granted
    };
    let mut refused = None;
    for lease in view.leases.iter().filter(is_ours) {
        let path = Operation::Grants.path(&[&lease.lease]);
        match client.post(&path, &json!({}), Duration::ZERO) {
            Ok(Claimed::Granted(granted)) if !granted.boxes.is_empty() => return Ok(granted),
            Ok(_) => {}
            // Those of another holder.
            Err(error @ ClientError::Refused(PoolError::Forbidden(_))) => refused = Some(error),
            Err(error) => return Err(error.into()),
        }
    }
    let none = format!("no GPU is attached to this host, {host} (outboard pool attach {host})");
    match refused {
        Some(error) => Err(error).context(format!("the GPUs attached to this host, {host}")),
        None => anyhow::bail!(none),
    }
}
