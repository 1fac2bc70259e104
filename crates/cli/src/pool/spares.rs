//! `outboard pool spares`: GPUs that are held back, and how many are enough.

use std::process::ExitCode;

use anyhow::Context as _;
use outboard_manager::Operation;
use outboard_pool::{
    api::SparesView,
    limits::SPARES_MAX,
    record::{Same, SpareRecord},
};
use serde_json::json;

use super::{ask, tell};
use crate::args::{ManagerArgs, PoolAskArgs, PoolSparesArgs};

const YEAR_S: f64 = 365.0 * 86_400.0;

pub(super) fn spares(args: &PoolSparesArgs) -> anyhow::Result<ExitCode> {
    if let (Some(afr), Some(repair_s), Some(gpus)) = (args.afr, args.repair, args.gpus) {
        return enough(args, in_repair(gpus, afr, repair_s));
    }
    let manager = ManagerArgs {
        pool: args
            .pool
            .clone()
            .context("no manager is named: add --pool URL, or set OUTBOARD_POOL")?,
        token: args.token.clone(),
    };
    if let Some(gpus) = args.count {
        let rule = SpareRecord {
            model: args.model.clone(),
            per: args.per.map(Into::into),
            gpus,
        };
        let path = Operation::SetSpares.path(&[]);
        return tell(&manager, &path, &json!(rule), (&args.json, &rule));
    }
    let asked = PoolAskArgs {
        manager,
        json: args.json.clone(),
    };
    let view: SparesView = ask(&asked, Operation::Spares)?;
    args.json.say(&view, || {
        let rule = |rule: &SpareRecord| {
            let model = rule.model.as_ref();
            let model = model.map_or("each model".into(), |word| format!("models of {word:?}"));
            let per = rule.per.map_or("the pool", name);
            format!("{} of {model} for {per}\n", rule.gpus)
        };
        let mut out: String = view.rules.iter().map(rule).collect();
        out.push_str(&format!("{} held back\n", view.held.len()));
        out.extend(view.held.iter().map(|uuid| format!("{uuid}\n")));
        out
    })
}

fn name(same: Same) -> &'static str {
    match same {
        Same::Box => "each box",
        Same::Nvlink => "each NVLink domain",
        Same::Bridge => "each PCIe bridge",
        Same::Proxy => "each proxy",
    }
}

/// Returns the GPUs that are in repair on average.
fn in_repair(gpus: u32, afr: f64, repair_s: u64) -> f64 {
    f64::from(gpus) * afr * repair_s as f64 / YEAR_S
}

/// Returns the parts of the time in which 0, 1, ... spares are enough, until `target` is met: GPUs
/// fail independently, so those in repair follow Poisson's distribution.
fn parts(in_repair: f64, target: f64) -> Vec<f64> {
    let (mut term, mut sum, mut parts) = ((-in_repair).exp(), 0.0, Vec::new());
    for spares in 0..=SPARES_MAX {
        if spares > 0 {
            term *= in_repair / f64::from(spares);
        }
        sum += term;
        parts.push(sum);
        if sum >= target {
            break;
        }
    }
    parts
}

fn enough(args: &PoolSparesArgs, in_repair: f64) -> anyhow::Result<ExitCode> {
    let parts = parts(in_repair, args.target);
    anyhow::ensure!(
        parts.last().is_some_and(|last| *last >= args.target),
        "{in_repair:.1} GPUs are in repair on average: more than {SPARES_MAX} spares are needed"
    );
    let spares = parts.len() - 1;
    let document = json!({ "spares": spares, "in_repair": in_repair, "enough": parts });
    args.json.say(&document, || {
        let mut out = format!("{spares} spares; {in_repair:.2} GPUs are in repair on average\n");
        for (count, part) in parts.iter().enumerate() {
            out.push_str(&format!(
                "{count:3} are enough {:.2} % of the time\n",
                100.0 * part
            ));
        }
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_of_512_needs_three() {
        let three_days_s = 3 * 86_400;
        let average = in_repair(512, 0.091, three_days_s);
        let parts = parts(average, 0.999);
        let percent: Vec<String> = parts
            .iter()
            .map(|part| format!("{:.1}", 100.0 * part))
            .collect();
        assert_eq!(percent, ["68.2", "94.3", "99.3", "99.9"]);
        assert_eq!(
            super::parts(in_repair(512, 0.09, three_days_s), 0.999).len(),
            4
        );
        assert_eq!(super::parts(0.0, 0.999), [1.0]);
        assert_eq!(super::parts(1e6, 0.999).len(), SPARES_MAX as usize + 1);
    }
}
