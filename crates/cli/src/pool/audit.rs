//! The manager's audit: GPUs that were given and taken back.

use std::process::ExitCode;

use outboard_manager::Operation;
use outboard_pool::{AuditFilter, api::AuditView, record::AuditEntry};
use outboard_trust::{date, now_s};

use super::{client, shown};
use crate::args::PoolAuditArgs;

pub(super) fn audit(args: &PoolAuditArgs) -> anyhow::Result<ExitCode> {
    let mut client = client(&args.ask.manager)?;
    let mut filter = AuditFilter {
        after: args.after,
        gpu: args.gpu,
        holder: args.holder.clone(),
        since_s: args.since.map_or(0, |age_s| now_s().saturating_sub(age_s)),
    };
    let mut all: Option<AuditView> = None;
    loop {
        let view: AuditView = client.get(&Operation::audit_path(&filter))?;
        filter.after = view.revision;
        let more = view.more;
        match &mut all {
            None => all = Some(view),
            Some(all) => {
                // Those that were dropped between two answers.
                all.dropped += view.dropped;
                (all.revision, all.more) = (view.revision, view.more);
                all.entries.extend(view.entries);
            }
        }
        if !more {
            break;
        }
    }
    all.map_or(Ok(ExitCode::SUCCESS), |view| {
        args.ask.json.say(&view, || listed(&view))
    })
}

fn listed(view: &AuditView) -> String {
    let mut out = String::new();
    if view.dropped > 0 {
        out.push_str(&format!(
            "{} older entries are no longer known\n",
            view.dropped
        ));
    }
    for entry in &view.entries {
        out.push_str(&format!(
            "{:>8} {} {:9} {}\n",
            entry.number,
            date(entry.at_s),
            entry.what.word(),
            about(entry)
        ));
        for gpu in &entry.gpus {
            let epoch = gpu.epoch;
            let epoch = epoch.map_or(String::new(), |epoch| format!(", epoch {epoch}"));
            let since = gpu.since_s.filter(|since_s| *since_s < entry.at_s);
            let since = since.map_or(String::new(), |at| format!(", since {}", date(at)));
            let of = shown(&gpu.of);
            out.push_str(&format!("{:9}{} of {of}{epoch}{since}\n", "", gpu.uuid));
        }
    }
    out
}

/// Returns what an entry tells beside its GPUs.
fn about(entry: &AuditEntry) -> String {
    let mut parts = Vec::new();
    if let Some(lease) = entry.lease {
        let holder = shown(entry.holder.as_deref().unwrap_or("?"));
        let host = shown(entry.host.as_deref().unwrap_or("?"));
        parts.push(format!("lease {lease} of {holder}, {host}"));
    }
    parts.extend(entry.of.as_ref().map(|of| format!("box {}", shown(of))));
    parts.extend(entry.cause.map(|cause| cause.word().into()));
    parts.extend(entry.by.as_ref().map(|by| format!("by {}", shown(by))));
    parts.extend(entry.reason.as_deref().map(shown));
    parts.join("; ")
}
