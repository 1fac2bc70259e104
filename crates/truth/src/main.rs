//! `truth`: records a GPU's results for every declared form, and compares the software device with
//! them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Parser;
use outboard_truth::compare::Verdict;
use outboard_truth::declare::{self, Check, Line};
use outboard_truth::form::TARGET;
use outboard_truth::fuzz::hunt;
use outboard_truth::gpu::Gpu;
use outboard_truth::job::Job;
use outboard_truth::recording::Recording;
use outboard_truth::soft::Soft;
use outboard_truth::textures::{self, corpus, probe::Probe};
use outboard_truth::work::{self, Jobs};
use outboard_truth::{kernel, record, table};

#[derive(Parser)]
#[command(about)]
enum Arguments {
    /// Run everything on the GPU behind libcuda.so.1 and write what it gave.
    Record {
        file: PathBuf,
        /// Seconds after which what has been recorded is written.
        #[arg(long, default_value_t = 200)]
        budget_s: u64,
        /// Textures and surfaces, nothing else.
        #[arg(long)]
        textures: bool,
        /// Only forms, or probes of textures, that this recording lacks, written together with it.
        #[arg(long)]
        onto: Option<PathBuf>,
    },
    /// Started by `record`.
    #[command(hide = true)]
    Worker {
        #[arg(long)]
        from: usize,
        #[arg(long)]
        careful: bool,
        #[arg(long)]
        textures: bool,
        #[arg(long)]
        onto: Option<PathBuf>,
    },
    /// Compare the software device with a recording; print every difference.
    Compare {
        recording: PathBuf,
        /// Only forms whose text contains this.
        #[arg(long, default_value = "")]
        only: String,
        /// Results shown of each form.
        #[arg(long, default_value_t = 3)]
        shown: usize,
        /// A recording of textures and surfaces.
        #[arg(long)]
        textures: bool,
    },
    /// Run random programs on the GPU and the software device; print, made small, what they
    /// disagree on.
    Fuzz {
        /// The first seed.
        #[arg(long, default_value_t = 0)]
        from: u64,
        #[arg(long, default_value_t = 20)]
        seconds: u64,
        /// Steps of a program.
        #[arg(long, default_value_t = 40)]
        length: usize,
        /// Differences after which it ends.
        #[arg(long, default_value_t = 10)]
        differences: usize,
    },
    /// Started by `fuzz`.
    #[command(hide = true)]
    Hunter {
        #[arg(long)]
        from: u64,
        #[arg(long)]
        seconds: u64,
        #[arg(long)]
        length: usize,
    },
    /// Run the random programs of a recording again on the GPU and the software device; print every
    /// result that differs.
    Again {
        recording: PathBuf,
        /// Only the program of this seed.
        #[arg(long)]
        program: Option<u64>,
        /// Runs of each on the GPU.
        #[arg(long, default_value_t = 3)]
        times: usize,
    },
    /// Print docs/ptx-instructions.md.
    Table { recording: PathBuf },
    /// Print the PTX of all forms as one module; of the program of a seed.
    Ptx {
        #[arg(long)]
        program: Option<u64>,
        #[arg(long, default_value_t = 40)]
        length: usize,
        /// Of all probes of textures and surfaces.
        #[arg(long)]
        textures: bool,
    },
}

fn main() -> Result<()> {
    match Arguments::parse() {
        Arguments::Record {
            file,
            budget_s,
            textures,
            onto,
        } => record(
            &file,
            Duration::from_secs(budget_s),
            textures,
            onto.as_deref(),
        ),
        Arguments::Worker {
            from,
            careful,
            textures,
            onto,
        } => {
            let jobs = match (onto, textures) {
                (Some(onto), _) => missing_jobs(&Recording::read(&onto)?, textures)?,
                (None, true) => texture_jobs(),
                (None, false) => Jobs::new()?.jobs,
            };
            Ok(record::work(&jobs, from, careful)?)
        }
        Arguments::Compare {
            recording,
            only,
            shown,
            textures,
        } => compare(&Recording::read(&recording)?, &only, shown, textures),
        Arguments::Fuzz {
            from,
            seconds,
            length,
            differences,
        } => fuzz(hunt_of(from, seconds, length, differences)),
        Arguments::Hunter {
            from,
            seconds,
            length,
        } => {
            let what = hunt_of(from, seconds, length, usize::MAX);
            let lines = declare::lines()?;
            Ok(hunt::work(&work::generator(&lines)?, what, &Soft::new()?)?)
        }
        Arguments::Again {
            recording,
            program,
            times,
        } => run_again(&Recording::read(&recording)?, program, times),
        Arguments::Table { recording } => {
            let (lines, recording) = (declare::lines()?, Recording::read(&recording)?);
            print!("{}", table::text(&lines, &recording, &Soft::new()?));
            Ok(())
        }
        Arguments::Ptx {
            program,
            length,
            textures,
        } => print_ptx(program, length, textures),
    }
}

fn record(file: &Path, budget: Duration, textures: bool, onto: Option<&Path>) -> Result<()> {
    match (onto, textures) {
        (Some(onto), _) => record_missing(file, budget, textures, onto),
        (None, true) => record_textures(file, budget),
        (None, false) => record_all(file, budget),
    }
}

fn record_textures(file: &Path, budget: Duration) -> Result<()> {
    let jobs = texture_jobs();
    let recording = record::record(&jobs, &["--textures"], budget)?;
    recording.write(file)?;
    let (done, all) = (recording.entries.len(), jobs.len());
    println!("{}: {done} probes of {all}", recording.device);
    Ok(())
}

fn record_all(file: &Path, budget: Duration) -> Result<()> {
    let work = Jobs::new()?;
    let mut recording = record::record(&work.jobs, &[], budget)?;
    let jobs = work.jobs.len();
    work.sort_out(&mut recording);
    recording.write(file)?;
    let (forms, programs) = (recording.entries.len(), recording.programs.len());
    println!(
        "{}: {forms} forms, {programs} programs of {jobs} of both",
        recording.device
    );
    Ok(())
}

fn compare(recording: &Recording, only: &str, shown: usize, textures: bool) -> Result<()> {
    let soft = Soft::new()?;
    if textures {
        compare_textures(recording, &soft, only, shown);
    } else {
        compare_forms(&declare::lines()?, recording, &soft, only, shown);
        compare_programs(recording, &soft);
    }
    Ok(())
}

fn hunt_of(first_seed: u64, seconds: u64, steps: usize, differences_max: usize) -> hunt::Hunt {
    hunt::Hunt {
        first_seed,
        time: Duration::from_secs(seconds),
        steps,
        differences_max,
    }
}

fn fuzz(what: hunt::Hunt) -> Result<()> {
    let found = hunt::hunt(what)?;
    println!(
        "{} programs: {} differ, {} only where the driver optimises, {} it died of",
        found.tried, found.differ, found.optimiser, found.lost
    );
    if found.differ > 0 {
        bail!("the two differ");
    }
    Ok(())
}

fn run_again(recording: &Recording, program: Option<u64>, times: usize) -> Result<()> {
    let mut gpu = Gpu::open()?;
    println!("{}", gpu.name);
    let asked = |seed| program.is_none_or(|only| only == seed);
    let programs: Vec<_> = recording
        .programs
        .iter()
        .filter(|p| asked(p.seed))
        .collect();
    if hunt::again(&programs, times, &Soft::new()?, &mut gpu) > 0 {
        bail!("the two differ");
    }
    Ok(())
}

fn print_ptx(program: Option<u64>, length: usize, textures: bool) -> Result<()> {
    let lines = declare::lines()?;
    let jobs: Vec<Job> = match program {
        _ if textures => texture_jobs(),
        Some(seed) => vec![work::generator(&lines)?.program(seed, length).job()],
        None => work::forms(&lines).map(Job::of_form).collect(),
    };
    let target = jobs.iter().map(|job| job.target).max();
    print!("{}", kernel::header(target.unwrap_or(TARGET)));
    for job in jobs {
        print!("// {}\n{}", job.what, job.text);
    }
    Ok(())
}

fn compare_forms(lines: &[Line], recording: &Recording, soft: &Soft, only: &str, shown: usize) {
    let (mut agree, mut differ, mut refused, mut load, mut not_recorded) = (0, 0, 0, 0, 0);
    for line in lines {
        let beyond = matches!(line.check, Check::Beyond(_));
        for form in line.forms.iter().filter(|f| f.declared.contains(only)) {
            let name = &form.declared;
            match outboard_truth::compare::form(line, form, recording, soft) {
                Verdict::Agrees { .. } => agree += 1,
                Verdict::Differs(differences) => {
                    differ += 1;
                    println!("DIFFERS {name} ({} results)", differences.len());
                    for d in differences.iter().take(shown) {
                        println!(
                            "    {:x?} -> {}: {:x} here, {:x} there",
                            d.inputs, d.operand, d.here, d.there
                        );
                    }
                }
                Verdict::Fault(why) => {
                    differ += 1;
                    println!("FAULT {name}: {why}");
                }
                Verdict::Refused(_) if beyond => {}
                Verdict::Refused(why) => {
                    refused += 1;
                    println!("REFUSED {name}: {why}");
                }
                Verdict::Loads => load += 1,
                Verdict::NotRecorded => {
                    not_recorded += 1;
                    println!("NOT RECORDED {name}");
                }
            }
        }
    }
    println!(
        "{}: {agree} forms agree, {differ} differ, {refused} are refused, {load} only load, {not_recorded} are not recorded",
        recording.device
    );
}

/// Returns the jobs of forms, or of probes of textures, that a recording lacks.
fn missing_jobs(recording: &Recording, textures: bool) -> Result<Vec<Job>> {
    let mut jobs = match textures {
        true => texture_jobs(),
        false => work::forms(&declare::lines()?).map(Job::of_form).collect(),
    };
    jobs.retain(|job| recording.outcome(job.key).is_none());
    Ok(jobs)
}

fn record_missing(file: &Path, budget: Duration, textures: bool, onto: &Path) -> Result<()> {
    let mut recording = Recording::read(onto)?;
    let jobs = missing_jobs(&recording, textures)?;
    let path = onto.display().to_string();
    let mut which = vec!["--onto", &path];
    which.extend(textures.then_some("--textures"));
    let added = record::record(&jobs, &which, budget)?;
    let (done, all) = (added.entries.len(), jobs.len());
    println!("{}: {done} of {all} added", added.device);
    recording.absorb(added);
    Ok(recording.write(file)?)
}

fn texture_jobs() -> Vec<Job> {
    corpus::probes().iter().map(Probe::job).collect()
}

fn compare_textures(recording: &Recording, soft: &Soft, only: &str, shown: usize) {
    use textures::compare::Verdict;
    let mut counts = [0; 6];
    for probe in corpus::probes() {
        let name = probe.name();
        if !name.contains(only) {
            continue;
        }
        let verdict = textures::compare::probe(&probe, recording, soft);
        let (kind, text) = match &verdict {
            Verdict::Agrees => (0, String::new()),
            Verdict::Excepted(why, words) => {
                (1, format!("EXCEPTED {name} ({words} results): {why}"))
            }
            Verdict::Differs(differences) => {
                let mut text = format!("DIFFERS {name} ({} results)", differences.len());
                for difference in differences.iter().take(shown) {
                    text += &format!("\n    {difference:x?}");
                }
                (2, text)
            }
            Verdict::Refused(why) => (3, format!("REFUSED {name}: {why}")),
            Verdict::Ends(how) => (4, format!("ENDS OTHERWISE {name}: {how}")),
            Verdict::NotRecorded => (5, format!("NOT RECORDED {name}")),
        };
        counts[kind] += 1;
        if kind > 0 {
            println!("{text}");
        }
    }
    let [agree, excepted, differ, refused, end, missing] = counts;
    println!(
        "{}: {agree} probes agree, {excepted} differ as explained, {differ} differ, {refused} are refused here, {end} end otherwise, {missing} are not recorded",
        recording.device
    );
}

fn compare_programs(recording: &Recording, soft: &Soft) {
    let (mut differ, mut optimiser) = (0, 0);
    for program in &recording.programs {
        optimiser += usize::from(program.outcome != program.unoptimised);
        if soft
            .run(&outboard_truth::fuzz::job(program.seed, &program.body))
            .digest()
            != program.unoptimised
        {
            differ += 1;
            println!("DIFFERS program {}", program.seed);
        }
    }
    println!(
        "{differ} of {} programs differ; of {optimiser} the driver's optimiser makes something else",
        recording.programs.len()
    );
}
