//! Plays openb's tasks: `openb MACHINES.csv TASKS.csv SEEDS`. Prints CSV, one line for each
//! architecture and policy, means over the seeds, in percent.

use outboard_datacenter::{Architecture, Outcome, Policy, arrivals, machines, play, tasks};
use outboard_dxpu::random::Random;

const RUNS: [(&str, Architecture, Policy); 5] = [
    ("servers, random", Architecture::Servers, Policy::Random),
    ("servers, best fit", Architecture::Servers, Policy::BestFit),
    ("servers, FGD", Architecture::Servers, Policy::Fgd),
    ("pool, best fit", Architecture::Pool, Policy::BestFit),
    (
        "pool with groups, best fit",
        Architecture::Groups,
        Policy::BestFit,
    ),
];
/// Share of all GPUs that tasks ask for.
const ASKED: f64 = 1.3;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [machine_file, task_file, seeds] = &arguments[..] else {
        return Err("openb MACHINES.csv TASKS.csv SEEDS".into());
    };
    let (machines, seeds) = (
        machines(&std::fs::read_to_string(machine_file)?)?,
        seeds.parse::<u64>()?,
    );
    let trace = tasks(&std::fs::read_to_string(task_file)?)?;
    println!("run,GPUs at 100 % asked,GPUs at 130 %,CPUs at 130 %,refused tasks");
    for (name, architecture, policy) in RUNS {
        let mut sum = Outcome::default();
        for seed in 0..seeds.max(1) {
            let mut random = Random::new(seed);
            let arriving = arrivals(&trace, &machines, ASKED, &mut random);
            let one = play(
                &machines,
                &trace,
                &arriving,
                (architecture, policy),
                &mut random,
            );
            sum.at_all_asked += one.at_all_asked;
            sum.gpus_used += one.gpus_used;
            sum.cpus_used += one.cpus_used;
            sum.refused += one.refused;
        }
        let percent = |sum: f64| 100.0 * sum / seeds.max(1) as f64;
        println!(
            "\"{name}\",{:.2},{:.2},{:.2},{}",
            percent(sum.at_all_asked),
            percent(sum.gpus_used),
            percent(sum.cpus_used),
            sum.refused as u64 / seeds.max(1)
        );
    }
    Ok(())
}
