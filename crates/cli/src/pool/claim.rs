//! A claim, from the request to the file of grants.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::Context as _;
use outboard_link::Endpoint;
use outboard_manager::Client;
use outboard_pool::{
    api::{Claimed, Granted},
    record::Claim,
};
use outboard_trust::{hex, random, write_new_secret};
use serde_json::json;

use super::{client, hold, show};
use crate::{
    args::{ManagerArgs, PoolClaimArgs, RunArgs, WishArgs},
    libraries,
};

/// Longest time that the manager lets a claim wait before it says the position.
const WAIT: Duration = Duration::from_secs(30);

/// The GPUs of a program.
pub(crate) struct Leased {
    pub(crate) servers: Vec<Endpoint>,
    /// File with their grants.
    pub(crate) grants: PathBuf,
}

/// Asks the pool for a program's GPUs, and starts the process that keeps them until this one, or
/// the program that it becomes, has ended.
pub(crate) fn lease_for(args: &RunArgs) -> anyhow::Result<Option<Leased>> {
    let Some(pool) = &args.pool.pool else {
        return Ok(None);
    };
    let manager = ManagerArgs {
        pool: pool.clone(),
        token: args.pool.token.clone(),
    };
    let mut client = client(&manager)?;
    let gpus = args.gpus.unwrap_or(1).into();
    let granted = wait_for(
        &mut client,
        &claim_of(&args.pool.wish, gpus, None)?,
        !args.pool.wish.no_wait,
    )?;
    let servers = granted.boxes.iter().map(|of| of.url.parse());
    let servers = servers.collect::<Result<Vec<Endpoint>, _>>();
    let grants =
        libraries::private_folder()?.join(format!("grants-{}", hex::encode(&random::<8>()?)));
    let written = write_new_secret(&grants, &lines(&granted)).map_err(anyhow::Error::from);
    // From here on the lease ends with this process.
    let held = written.and_then(|()| hold::start(&manager, &granted, &grants));
    if let Err(error) = held {
        let path = format!("/v1/leases/{}/release", granted.lease);
        let _ = client.post::<serde_json::Value>(&path, &json!({}), Duration::ZERO);
        return Err(error);
    }
    Ok(Some(Leased {
        servers: servers.context("the address of a box")?,
        grants,
    }))
}

pub(super) fn claim(args: &PoolClaimArgs) -> anyhow::Result<ExitCode> {
    let mut client = client(&args.manager)?;
    let claim = claim_of(&args.wish, args.gpus, args.uid.clone())?;
    let granted = wait_for(&mut client, &claim, !args.wish.no_wait)?;
    if let Some(file) = &args.grants {
        write_new_secret(file, &lines(&granted))?;
    }
    show(args.json, &granted, || {
        let mut out = format!("lease {}\n", granted.lease);
        for of in &granted.boxes {
            let gpus = of.grant.gpus.iter().map(|(uuid, _)| uuid.to_string());
            let gpus: Vec<String> = gpus.collect();
            out.push_str(&format!("{} {}\n", of.url, gpus.join(",")));
        }
        out
    })
}

fn claim_of(wish: &WishArgs, gpus: u32, uid: Option<String>) -> anyhow::Result<Claim> {
    let uid = match uid {
        Some(uid) => uid,
        None => hex::encode(&random::<16>()?),
    };
    Ok(Claim {
        uid,
        owner: String::new(),
        host: host_name(),
        gpus,
        model: wish.model.clone(),
        same: wish.same.map(Into::into),
        fit: wish.fit.into(),
        priority: wish.priority,
        term_ms: u64::try_from(wish.term.as_millis()).unwrap_or(u64::MAX),
    })
}

/// Returns the host's name as pools know it.
pub(crate) fn host_name() -> String {
    let name = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    let name: String = name
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || ".-_".contains(*c))
        .take(64)
        .collect();
    match name.is_empty() {
        true => "host".into(),
        false => name,
    }
}

fn wait_for(client: &mut Client, claim: &Claim, may_wait: bool) -> anyhow::Result<Granted> {
    let body = json!({ "claim": claim, "wait": may_wait });
    let mut told = None;
    loop {
        match client.post("/v1/claims", &body, WAIT)? {
            Claimed::Granted(granted) => return Ok(granted),
            Claimed::Waiting { position } => {
                if told.replace(position) != Some(position) {
                    eprintln!(
                        "outboard: waiting for {} GPUs, number {position} in the queue",
                        claim.gpus
                    );
                }
            }
        }
    }
}

fn lines(granted: &Granted) -> String {
    let line = |of: &outboard_pool::api::GrantedBox| {
        // As programs are told the address.
        let url = of
            .url
            .parse::<Endpoint>()
            .map_or(of.url.clone(), |url| url.to_string());
        format!("{url} {}\n", of.signed)
    };
    granted.boxes.iter().map(line).collect()
}

/// Returns the folder of a box's state.
pub(crate) fn state_folder(named: Option<PathBuf>, name: &str) -> anyhow::Result<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let folder = match named {
        Some(folder) => folder,
        None => set("XDG_STATE_HOME")
            .map(PathBuf::from)
            .or_else(|| Some(Path::new(&set("HOME")?).join(".local/state")))
            .context("there is no home folder; name a folder with --pool-state")?
            .join("outboard")
            .join(name),
    };
    Ok(std::path::absolute(folder)?)
}
