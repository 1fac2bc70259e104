//! Small traces whose results follow from counting.

#![allow(clippy::unwrap_used, reason = "tests")]

use outboard_datacenter::{
    Architecture, Arriving, Machine, Outcome, Policy, RUNS, Task, arrivals, machines, mean, play,
    tasks,
};
use outboard_dxpu::random::Random;

const MACHINES: &str = "sn,cpu_milli,memory_mib,gpu,model\n";
const TASKS: &str = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos\n";
const ALL: [Policy; 3] = [Policy::Random, Policy::BestFit, Policy::Fgd];

fn read(machine_lines: &str, task_lines: &str) -> (Vec<Machine>, Vec<Task>) {
    let machines = machines(&format!("{MACHINES}{machine_lines}")).unwrap();
    (machines, tasks(&format!("{TASKS}{task_lines}")).unwrap())
}

fn played(
    machines: &[Machine],
    tasks: &[Task],
    architecture: Architecture,
    policy: Policy,
) -> Outcome {
    play(
        machines,
        tasks,
        tasks,
        (architecture, policy),
        &mut Random::new(1),
    )
}

/// Four GPUs beside four vCPU, and a server of 96 vCPU: tasks of one GPU and 24 vCPU.
#[test]
fn gpus_without_processors_are_stranded_in_servers_and_used_in_a_pool() {
    let (machines, tasks) = read(
        "a,4000,65536,4,T4\nb,96000,65536,0,\n",
        &"t,24000,1024,1,1000,,LS\n".repeat(4),
    );
    for policy in ALL {
        let servers = played(&machines, &tasks, Architecture::Servers, policy);
        assert_eq!((servers.gpus_used, servers.refused), (0.0, 4));
    }
    let pool = played(&machines, &tasks, Architecture::Pool, Policy::BestFit);
    assert_eq!(
        (pool.gpus_used, pool.cpus_used, pool.placed),
        (1.0, 0.96, 4)
    );
}

/// Two boxes with one GPU each, and a task of two.
#[test]
fn groups_keep_a_tasks_gpus_in_one_box() {
    let (machines, tasks) = read(
        "a,8000,1024,1,T4\nb,8000,1024,1,T4\n",
        "t,4000,1,2,1000,,LS\n",
    );
    let placed = |architecture| played(&machines, &tasks, architecture, Policy::BestFit).placed;
    assert_eq!(placed(Architecture::Servers), 0);
    assert_eq!(placed(Architecture::Groups), 0);
    assert_eq!(placed(Architecture::Pool), 1);
}

/// Two halves and a whole GPU fit into two GPUs if the halves share one.
#[test]
fn parts_share_a_gpu_under_best_fit_and_fgd() {
    let (machines, tasks) = read(
        "a,64000,1024,1,T4\nb,64000,1024,1,T4\n",
        "t,1000,1,1,500,,LS\nt,1000,1,1,500,,LS\nt,1000,1,1,1000,,LS\n",
    );
    for policy in [Policy::BestFit, Policy::Fgd] {
        let outcome = played(&machines, &tasks, Architecture::Servers, policy);
        assert_eq!((outcome.gpus_used, outcome.refused), (1.0, 0), "{policy:?}");
    }
}

#[test]
fn a_task_gets_only_models_that_it_names() {
    let (machines, tasks) = read(
        "a,64000,1024,1,T4\nb,64000,1024,1,P100\n",
        "t,1,1,1,1000,V100|P100,LS\nt,1,1,1,1000,V100|P100,LS\n",
    );
    for architecture in [
        Architecture::Servers,
        Architecture::Pool,
        Architecture::Groups,
    ] {
        let outcome = played(&machines, &tasks, architecture, Policy::BestFit);
        assert_eq!(
            (outcome.placed, outcome.gpus_used),
            (1, 0.5),
            "{architecture:?}"
        );
    }
}

#[test]
fn arrivals_ask_for_the_share_that_was_named() {
    let (machines, tasks) = read("a,1,1,8,T4\n", "t,1,1,1,500,,LS\nt,1,1,0,0,,LS\n");
    for share in [0.5, 1.0, 1.3] {
        let chosen = arrivals(&tasks, &machines, share, &mut Random::new(3));
        let asked: u64 = chosen.iter().map(Task::all_gpu_milli).sum();
        assert!(
            asked as f64 <= share * 8_000.0 && asked as f64 > share * 8_000.0 - 1_000.0,
            "{asked}"
        );
    }
}

#[test]
fn bad_lines_are_named() {
    for (line, why) in [
        ("t,1,1,1", "a column is missing"),
        ("t,x,1,1,1000,,LS", "no number"),
        ("t,1,1,2,500,,LS", "not whole"),
        ("t,1,1,65,1000,,LS", "more than 64"),
        ("t,-1,1,1,1000,,LS", "no number"),
        ("t,1,1,1,0,,LS", "nothing of one"),
    ] {
        let error = tasks(&format!("{TASKS}t,1,1,0,0,,LS\n{line}\n")).unwrap_err();
        assert!(
            error.line == 3 && error.why.contains(why),
            "{line}: {error}"
        );
    }
    assert_eq!(machines("a,b\n").unwrap_err().line, 1);
}

/// The trace of docs/design/datacenter.md: servers can use one of six GPUs, a pool all.
#[test]
fn the_small_trace_has_its_known_answer() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/traces/pool");
    let text = |file: &str| std::fs::read_to_string(format!("{folder}/{file}")).unwrap();
    let (machines, tasks) = (
        machines(&text("machines.csv")).unwrap(),
        tasks(&text("tasks.csv")).unwrap(),
    );
    let of = |name: &str| {
        let run = RUNS.iter().find(|run| run.name == name).unwrap();
        mean(*run, &machines, &tasks, Arriving::AsTheyAre)
    };
    let servers = of("servers, best fit");
    assert_eq!((servers.placed, servers.refused), (1, 5));
    let pool = of("pool, best fit");
    assert_eq!((pool.placed, pool.refused, pool.gpus_used), (5, 1, 1.0));
}
