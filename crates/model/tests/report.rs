//! Reports: complete in themselves, harmless whatever a program is called, and shown by a real
//! browser.

#![allow(clippy::unwrap_used, clippy::panic)]

mod builder;

use std::{
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use builder::random;
use outboard_api::optimise::Level;
use outboard_model::{
    BANDWIDTHS_BPS, Budget, Constants, Network, PcieRequirements, Question, RTTS_NS, Requirements,
    Timeline, Workload, html, pcie_html,
};
use outboard_trace::Trace;

/// Names that `tools/chromium.sh` also looks for.
const BROWSERS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];
const BROWSER_S_MAX: u64 = 60;

fn page(trace: &Trace) -> String {
    let constants = Constants::published();
    let question = Question {
        budget: Budget::percent(50.0).unwrap(),
        confidence: outboard_model::Confidence::EVEN,
        level: Level::ALL_OF_IT,
        constants: &constants,
        at: Network::new(30_000.0, 25e9).unwrap(),
        iteration: None,
        without_network: None,
    };
    let workload = Workload::new(trace).unwrap();
    let found = Requirements::new(&trace.about, &workload, &question).unwrap();
    html(&found, &Timeline::new(&workload, &question).unwrap())
}

fn pcie_page(trace: &Trace) -> String {
    let workload = Workload::new(trace).unwrap();
    let budget = Budget::percent(10.0).unwrap();
    let program = trace.about.argv.join(" ");
    pcie_html(&PcieRequirements::new(program, &workload, budget, None).unwrap())
}

fn named(argv: &[&str]) -> Trace {
    let mut trace = random(11, 4, 400, 2);
    trace.about.argv = argv.iter().map(|arg| arg.to_string()).collect();
    trace
}

#[test]
fn nothing_is_loaded_and_nothing_runs() {
    let trace = named(&["python", "train.py"]);
    for page in [page(&trace), pcie_page(&trace)] {
        for word in [
            "<script", "http:", "https:", "src=", "url(", "@import", "<link", "<iframe", "onload",
        ] {
            assert!(!page.contains(word), "{word}");
        }
        for balanced in ["section", "table", "svg", "figure", "div", "tr"] {
            let (opened, closed) = (format!("<{balanced}"), format!("</{balanced}>"));
            assert_eq!(
                page.matches(&opened).count(),
                page.matches(&closed).count(),
                "{balanced}"
            );
        }
        assert!(
            !page.contains("NaN") && !page.contains(">inf"),
            "a number is none"
        );
    }
}

#[test]
fn names_of_programs_are_text() {
    let mut trace = named(&["./a", "<script>alert(1)</script>", "\"'&\u{1}"]);
    for name in &mut trace.names {
        if name == "cuMemcpyDtoHAsync_v2" {
            *name = "<img onerror=x>".into();
        }
    }
    for page in [page(&trace), pcie_page(&trace)] {
        assert!(!page.contains("<script") && !page.contains("<img"));
        assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt; &quot;&#39;&amp;"));
    }
}

#[test]
fn a_page_does_not_grow_with_the_recording() {
    let length = |calls: usize| page(&random(1, 1, calls, 2)).len();
    assert!(length(40_000) < 2 * length(2_000));
}

/// Returns the page as a browser builds it, after a script that writes how wide it became.
fn shown(folder: &Path, name: &str, page: &str, width: u32) -> String {
    let browser = BROWSERS
        .into_iter()
        .find(|name| which(name))
        .unwrap_or_else(|| panic!("no browser is installed; run tools/chromium.sh"));
    let measure = "<script>document.body.dataset.overflow = document.documentElement.scrollWidth - innerWidth;</script>";
    let path = folder.join(format!("{name}.html"));
    std::fs::write(&path, page.replace("</body>", &format!("{measure}</body>"))).unwrap();
    let run = |what: &str| {
        let stdout = folder.join("stdout");
        let mut child = Command::new(browser)
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--hide-scrollbars",
            ])
            .arg("--disable-dev-shm-usage")
            .arg(format!(
                "--user-data-dir={}",
                folder.join("profile").display()
            ))
            .arg(format!("--window-size={width},3600"))
            .arg(what)
            .arg(format!("file://{}", path.display()))
            .stdout(std::fs::File::create(&stdout).unwrap())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let deadline = Instant::now() + Duration::from_secs(BROWSER_S_MAX);
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            if Instant::now() > deadline {
                child.kill().unwrap();
                panic!("{browser} {what} did not end");
            }
            thread::sleep(Duration::from_millis(50));
        };
        assert!(status.success(), "{browser} {what}: {status}");
        std::fs::read_to_string(&stdout).unwrap()
    };
    let screenshot = folder.join(format!("{name}.png"));
    run(&format!("--screenshot={}", screenshot.display()));
    run("--dump-dom")
}

fn which(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(name).is_file())
}

#[test]
fn a_browser_shows_all_of_it() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("report");
    std::fs::create_dir_all(&folder).unwrap();
    let trace = named(&["python", "train.py", "--epochs", "3"]);
    for (name, page, width) in [
        ("network", page(&trace), 1280),
        ("narrow", page(&trace), 520),
        ("pcie", pcie_page(&trace), 1280),
    ] {
        let screenshot = folder.join(format!("{name}.png"));
        let _ = std::fs::remove_file(&screenshot);
        let dom = shown(&folder, name, &page, width);
        let overflow = dom
            .split_once("data-overflow=\"")
            .expect("the script ran")
            .1;
        let overflow: i32 = overflow.split('"').next().unwrap().parse().unwrap();
        assert!(overflow <= 0, "{name} is {overflow} pixels too wide");
        let picture = std::fs::read(&screenshot).unwrap();
        assert!(
            picture.starts_with(b"\x89PNG") && picture.len() > 20_000,
            "{name}"
        );
        // The browser found as many elements as were written: nothing was unbalanced.
        for element in ["<td", "<rect", "<path", "<section"] {
            assert_eq!(
                dom.matches(element).count(),
                page.matches(element).count(),
                "{element}"
            );
        }
        if name == "network" {
            let cells = 2 * BANDWIDTHS_BPS.len() * RTTS_NS.len();
            let heat = ["gain", "fits", "over1", "over2", "over3", "over4"];
            let cell = |class: &&str| dom.matches(&format!("<td class=\"{class}\"")).count();
            assert_eq!(heat.iter().map(cell).sum::<usize>(), cells);
        }
    }
}
