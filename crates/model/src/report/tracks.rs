//! Draws one iteration over time: threads, link and GPU, here and over the network.

use outboard_trace::GpuWork;

use super::page::{bandwidth, escaped};
use crate::{
    Error, Mode, Network, Observer, Question, Remote, Replay, Step, Unit, Where, Workload,
    iteration::Iteration, show_ns,
};

/// Columns of a track; finer detail is shown as a lighter column.
const COLUMNS: usize = 800;
const TRACKS_MAX: usize = 8;
const KINDS: usize = 5;

const WIDTH: f64 = 960.0;
const LEFT: f64 = 110.0;
const TRACK_HEIGHT: f64 = 20.0;
const TRACK_STEP: f64 = 25.0;

/// Content of the tracks of both pictures.
#[derive(Debug, Clone)]
pub struct Timeline {
    here: Picture,
    remote: Picture,
}

#[derive(Debug, Clone)]
struct Picture {
    total_ns: f64,
    tracks: Vec<Track>,
    /// Threads and streams that are not shown.
    left_out: usize,
}

#[derive(Debug, Clone)]
struct Track {
    name: String,
    /// For each column, the busy time by kind.
    columns: Vec<[f64; KINDS]>,
}

impl Timeline {
    pub fn new(workload: &Workload, question: &Question) -> Result<Timeline, Error> {
        let iteration = match question.iteration {
            Some(number) => workload.iteration(number)?,
            None => workload.typical(),
        };
        let remote = Where::Remote(Remote {
            network: question.at,
            level: question.level,
            constants: question.constants,
            freed: None,
        });
        let mut replay = Replay::new(iteration);
        let here_ns = replay.run(Where::Here).total_ns;
        let remote_ns = replay.run(remote).total_ns;
        // On one scale, so that a longer picture means more time.
        let scale_ns = here_ns.max(remote_ns).max(1.0);
        let mut picture = |place: Where<'_>, total_ns: f64| {
            let mut painter = Painter::new(iteration, scale_ns, matches!(place, Where::Remote(_)));
            replay.run_observed(place, &mut painter);
            painter.picture(total_ns)
        };
        Ok(Timeline {
            here: picture(Where::Here, here_ns),
            remote: picture(remote, remote_ns),
        })
    }
}

struct Painter {
    column_ns: f64,
    threads: Vec<Track>,
    link: Vec<Track>,
    streams: Vec<Track>,
}

impl Painter {
    fn new(iteration: &Iteration, scale_ns: f64, has_link: bool) -> Painter {
        let track = |name: String| Track {
            name,
            columns: vec![[0.0; KINDS]; COLUMNS],
        };
        let threads = 0..iteration.threads.len();
        let streams = iteration.streams.iter();
        Painter {
            column_ns: scale_ns / COLUMNS as f64,
            threads: threads
                .map(|index| track(format!("thread {index}")))
                .collect(),
            link: match has_link {
                true => vec![track("link, there".into()), track("link, back".into())],
                false => Vec::new(),
            },
            streams: streams
                .map(|stream| match stream.number {
                    0 => track(format!("GPU {}, default", stream.device)),
                    number => track(format!("GPU {}, stream {number}", stream.device)),
                })
                .collect(),
        }
    }

    fn picture(self, total_ns: f64) -> Picture {
        let Painter {
            mut threads,
            link,
            mut streams,
            ..
        } = self;
        let is_used = |track: &Track| track.columns.iter().flatten().any(|busy| *busy > 0.0);
        threads.retain(is_used);
        streams.retain(is_used);
        let left_out =
            threads.len().saturating_sub(TRACKS_MAX) + streams.len().saturating_sub(TRACKS_MAX);
        threads.truncate(TRACKS_MAX);
        streams.truncate(TRACKS_MAX);
        Picture {
            total_ns,
            tracks: threads.into_iter().chain(link).chain(streams).collect(),
            left_out,
        }
    }
}

fn paint(track: &mut Track, column_ns: f64, kind: usize, from_ns: f64, to_ns: f64) {
    let first = (from_ns / column_ns).floor().max(0.0) as usize;
    let last = (to_ns / column_ns).floor().max(0.0) as usize;
    for column in first..=last.min(COLUMNS - 1) {
        let (start, end) = (column as f64 * column_ns, (column + 1) as f64 * column_ns);
        let busy = (to_ns.min(end) - from_ns.max(start)).max(0.0) / column_ns;
        track.columns[column][kind] += busy;
    }
}

impl Observer for Painter {
    fn call(&mut self, thread: usize, _step: &Step, mode: Mode, from_ns: f64, to_ns: f64) {
        let kind = match mode {
            Mode::Local => 0,
            Mode::Async => 2,
            Mode::Sync => 1,
        };
        paint(
            &mut self.threads[thread],
            self.column_ns,
            kind,
            from_ns,
            to_ns,
        );
    }

    fn unit(&mut self, unit: &Unit, from_ns: f64, to_ns: f64) {
        if unit.is_inferred {
            return;
        }
        let kind = match unit.kind {
            GpuWork::Kernel | GpuWork::Graph => 3,
            _ => 4,
        };
        paint(
            &mut self.streams[unit.stream as usize],
            self.column_ns,
            kind,
            from_ns,
            to_ns,
        );
    }

    fn link(&mut self, is_up: bool, _bytes: u64, from_ns: f64, to_ns: f64) {
        paint(
            &mut self.link[usize::from(!is_up)],
            self.column_ns,
            2,
            from_ns,
            to_ns,
        );
    }
}

pub(super) fn pictures(timeline: &Timeline, at: Network) -> String {
    let key = [
        ("f1", "call: here, or answered locally"),
        ("f2", "call that waits for the server"),
        ("f3", "call that is only sent; a busy link"),
        ("f4", "kernel"),
        ("f5", "copy, memset"),
    ];
    let mut html = String::from("<ul class=\"key\">");
    for (class, text) in key {
        html += &format!("<li><i class=\"{class}\"></i>{text}</li>");
    }
    let here = show_ns(timeline.here.total_ns);
    let remote = show_ns(timeline.remote.total_ns);
    html += &format!("</ul>\n<figure><h3>Locally: {here}</h3>\n");
    html += &svg(&timeline.here);
    html += &format!(
        "</figure>\n<figure><h3>At {} and {}: {remote}</h3>\n",
        show_ns(at.rtt_ns),
        bandwidth(at.bits_per_s)
    );
    html += &svg(&timeline.remote);
    let left_out = timeline.here.left_out.max(timeline.remote.left_out);
    let rest = match left_out {
        0 => String::new(),
        count => format!(" {count} more threads and streams are not shown."),
    };
    html + &format!(
        "<figcaption>Both on one scale. A lighter column is busy for a part of its time.{rest}</figcaption></figure>\n"
    )
}

fn svg(picture: &Picture) -> String {
    let height = picture.tracks.len() as f64 * TRACK_STEP + 4.0;
    let column = (WIDTH - LEFT) / COLUMNS as f64;
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"tracks of one iteration\">\n"
    );
    for (index, track) in picture.tracks.iter().enumerate() {
        let y = index as f64 * TRACK_STEP + 2.0;
        svg += &format!(
            "<text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\
             <rect class=\"track\" x=\"{LEFT}\" y=\"{y}\" width=\"{:.1}\" height=\"{TRACK_HEIGHT}\"/>\n",
            LEFT - 8.0,
            y + 14.5,
            escaped(&track.name),
            WIDTH - LEFT
        );
        let mut from = 0;
        while from < COLUMNS {
            let shade = shade(&track.columns[from]);
            let same = track.columns[from..]
                .iter()
                .take_while(|c| self::shade(c) == shade);
            let to = from + same.count();
            if let Some((kind, quarters)) = shade {
                svg += &format!(
                    "<rect class=\"f{}\" x=\"{:.2}\" y=\"{y}\" width=\"{:.2}\" height=\"{TRACK_HEIGHT}\" opacity=\"{}\"/>\n",
                    kind + 1,
                    LEFT + from as f64 * column,
                    (to - from) as f64 * column,
                    f64::from(quarters) / 4.0
                );
            }
            from = to;
        }
    }
    svg + "</svg>\n"
}

/// Returns the kind that takes most of a column, and the busy quarters of its time; `None` if it is
/// idle.
fn shade(column: &[f64; KINDS]) -> Option<(usize, u8)> {
    let busy: f64 = column.iter().sum();
    let most = (0..KINDS).max_by(|a, b| column[*a].total_cmp(&column[*b]))?;
    match busy > 0.0 {
        true => Some((most, (busy * 4.0).ceil().clamp(1.0, 4.0) as u8)),
        false => None,
    }
}
