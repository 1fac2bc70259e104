//! A capture through the engine, by the capture's clock: another capture comes out.
//!
//! Packets are taken without their Ethernet headers, as from a TUN device, and come out with the
//! headers that they had. All backends are up. The same file and capture give the same output.

use crate::config::Config;
use crate::engine::{Engine, Frame, Options, Port, Reason, Verdict};
use outboard_flow::traffic::pcap::{Error as CaptureError, Reader, Record, Writer};
use outboard_flow::{BATCH_MAX, OutOfMemory, Secret};
use std::io::{self, ErrorKind, Read, Write};

const ETHERNET_BYTES: usize = 14;
const PCAPNG: u32 = 0x0a0d_0d0a;
/// Time of the engine's clock at a capture's first frame.
const BEGIN_MS: u64 = 1000;

/// Why a capture is not replayed, or not to its end.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    #[error("a pcapng file, which is not read: editcap -F pcap makes a pcap file of it")]
    PcapNg,
    #[error("the file ends within the capture's header")]
    NoHeader,
    #[error("the capture: {0}")]
    Capture(CaptureError),
    #[error("writing: {0}")]
    Write(#[from] io::Error),
    #[error(transparent)]
    Memory(#[from] OutOfMemory),
}

impl From<CaptureError> for ReplayError {
    fn from(error: CaptureError) -> ReplayError {
        match error {
            CaptureError::Magic(PCAPNG) => ReplayError::PcapNg,
            CaptureError::Io(error) if error.kind() == ErrorKind::UnexpectedEof => {
                ReplayError::NoHeader
            }
            other => ReplayError::Capture(other),
        }
    }
}

/// Numbers of frames. Each that was read was sent, dropped for a reason, or of another kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    pub read: u64,
    pub sent: u64,
    /// Frames of neither IPv4 nor IPv6.
    pub other: u64,
    pub opened: u64,
    pub dropped: Vec<(Reason, u64)>,
}

/// Passes a capture through an engine of a configuration. What came out before an error is in
/// `output`; the numbers up to there are in `replayed`.
pub fn replay(
    config: &Config,
    input: impl Read,
    output: impl Write,
    replayed: &mut Replayed,
) -> Result<(), ReplayError> {
    let mut reader = Reader::new(input)?;
    let mut run = Run {
        engine: new_engine(config)?,
        writer: Writer::new(output)?,
        begin_ns: None,
        headers: Vec::new(),
        times: Vec::new(),
        frames: Vec::new(),
        replayed,
    };
    let read = loop {
        match reader.read() {
            Ok(Some(record)) => run.add(record)?,
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    run.pass()?;
    run.finish()?;
    Ok(read?)
}

fn new_engine(config: &Config) -> Result<Engine, OutOfMemory> {
    let options = Options {
        connections_max: config.limits.connections,
        half_open_max: config.limits.half_open,
        fragments_max: config.limits.fragments,
        hash_seed: config.hash_seed,
        // Nobody is to be kept from guessing here, and the output is to be the same again.
        secrets: [1, 2, 3, 4].map(Secret::from_seed),
    };
    let mut engine = Engine::new(options, vec![Port::default()], BEGIN_MS)?;
    engine.reload(&config.services, config.timeouts.clone());
    Ok(engine)
}

/// A capture under way.
struct Run<'a, W> {
    engine: Engine,
    writer: Writer<W>,
    begin_ns: Option<u64>,
    /// Frames of one millisecond, with their Ethernet headers and times.
    frames: Vec<Frame>,
    headers: Vec<[u8; ETHERNET_BYTES]>,
    times: Vec<u64>,
    replayed: &'a mut Replayed,
}

impl<W: Write> Run<'_, W> {
    fn now_ms(&self, time_ns: u64) -> u64 {
        let begin_ns = self.begin_ns.unwrap_or(time_ns);
        BEGIN_MS + time_ns.saturating_sub(begin_ns) / 1_000_000
    }

    fn add(&mut self, record: Record) -> Result<(), ReplayError> {
        self.begin_ns.get_or_insert(record.time_ns);
        self.replayed.read += 1;
        let Some((header, packet)) = record.bytes.split_first_chunk::<ETHERNET_BYTES>() else {
            self.replayed.other += 1;
            return Ok(());
        };
        if !matches!(header[12..], [8, 0] | [0x86, 0xdd]) {
            self.replayed.other += 1;
            return Ok(());
        }
        let is_later = self
            .times
            .last()
            .is_some_and(|last| self.now_ms(*last) != self.now_ms(record.time_ns));
        if is_later || self.frames.len() == BATCH_MAX {
            self.pass()?;
        }
        self.headers.push(*header);
        self.times.push(record.time_ns);
        self.frames.push(Frame {
            bytes: packet.to_vec(),
            ..Frame::default()
        });
        Ok(())
    }

    /// Passes the frames of a millisecond, and writes those that come out.
    fn pass(&mut self) -> Result<(), ReplayError> {
        let Some(last) = self.times.last().copied() else {
            return Ok(());
        };
        let mut verdicts = Vec::new();
        let now_ms = self.now_ms(last);
        self.engine.process(&mut self.frames, &mut verdicts, now_ms);
        let frames = self.frames.drain(..).zip(verdicts);
        for ((frame, verdict), (header, time_ns)) in
            frames.zip(self.headers.drain(..).zip(self.times.drain(..)))
        {
            if matches!(verdict, Verdict::Send(_)) {
                self.replayed.sent += 1;
                let bytes = [&header[..], &frame.bytes].concat();
                self.writer.write(time_ns, bytes.len() as u32, &bytes)?;
            }
        }
        Ok(())
    }

    fn finish(self) -> io::Result<()> {
        let counts = self.engine.counts();
        let dropped = Reason::ALL.iter().map(|one| (*one, counts.drops.of(*one)));
        self.replayed.dropped = dropped.filter(|one| one.1 > 0).collect();
        self.replayed.opened = counts.opened;
        self.writer.finish().map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tests::build::{Build, ends};

    const TEXT: &str = r#"
        [plane]
        kind = "tun"
        [[service]]
        name = "web"
        address = "192.0.2.10:80"
        forward = "full-nat"
        sources = ["192.0.2.20"]
        backend = [{ address = "203.0.113.1:8080" }]
    "#;
    const CLIENT: &str = "198.51.100.7:40000";
    const VIP: &str = "192.0.2.10:80";

    fn capture(packets: &[(u64, Vec<u8>)]) -> Vec<u8> {
        let mut writer = Writer::new(Vec::new()).expect("memory");
        for (time_ns, packet) in packets {
            let bytes = [&[2; 12][..], &[8, 0], packet].concat();
            writer
                .write(*time_ns, bytes.len() as u32, &bytes)
                .expect("memory");
        }
        writer.finish().expect("memory")
    }

    fn run(input: &[u8]) -> (Result<(), ReplayError>, Vec<u8>, Replayed) {
        let config = Config::parse(TEXT).expect("right");
        let (mut output, mut replayed) = (Vec::new(), Replayed::default());
        let done = replay(&config, input, &mut output, &mut replayed);
        (done, output, replayed)
    }

    fn records(file: &[u8]) -> Vec<Record> {
        let mut reader = Reader::new(file).expect("a capture");
        std::iter::from_fn(|| reader.read().expect("whole")).collect()
    }

    /// A SYN, an answer of nobody's, and later a SYN again, after the first has been forgotten.
    fn packets() -> Vec<(u64, Vec<u8>)> {
        let syn = Build::tcp(CLIENT, VIP).flags("S").bytes();
        let stray = Build::tcp("203.0.113.1:8080", "192.0.2.20:5").bytes();
        let begin = 1_700_000_000_000_000_000;
        vec![
            (begin, syn.clone()),
            (begin + 5000, stray),
            (begin + 200_000_000_000, syn),
        ]
    }

    #[test]
    fn what_comes_out_is_written_and_the_rest_counted() {
        let input = capture(&packets());
        let (done, output, replayed) = run(&input);
        done.expect("replayed");
        let expected = Replayed {
            read: 3,
            sent: 2,
            dropped: vec![(Reason::NoConnection, 1)],
            ..Replayed::default()
        };
        assert_eq!(replayed, expected);
        let records = records(&output);
        let times: Vec<_> = records.iter().map(|one| one.time_ns).collect();
        assert_eq!(times, [packets()[0].0, packets()[2].0]);
        // Two connections: the capture's clock passed the time of a half-open one.
        let sources = [0, 1].map(|at: usize| ends(&records[at].bytes[14..]));
        assert_eq!(sources[0].1, "203.0.113.1:8080");
        assert_ne!(sources[0].0, sources[1].0);
        assert_eq!(run(&input).1, output, "the same again");
    }

    #[test]
    fn a_capture_that_is_cut_is_an_error_after_all_that_is_there() {
        let input = capture(&packets());
        let (first, second) = (24 + 16 + 54, 24 + 2 * (16 + 54));
        for end in 0..input.len() {
            let (done, output, replayed) = run(&input[..end]);
            let whole = [24, first, second].contains(&end);
            assert_eq!(done.is_ok(), whole, "cut at {end}");
            assert_eq!(
                replayed.read,
                [first, second].iter().filter(|at| end >= **at).count() as u64
            );
            let count = if output.is_empty() {
                0
            } else {
                records(&output).len()
            };
            assert_eq!(count, usize::from(end >= first));
            let text = done
                .err()
                .map(|error| error.to_string())
                .unwrap_or_default();
            let expected = match end {
                _ if whole => "",
                0..24 => "the file ends within the capture's header",
                _ => "is cut short",
            };
            assert!(text.contains(expected), "{text}");
        }
    }

    #[test]
    fn other_files_and_frames_are_told_apart() {
        let mut pcapng = 0x0a0d_0d0au32.to_le_bytes().to_vec();
        pcapng.resize(100, 0);
        assert!(matches!(run(&pcapng).0, Err(ReplayError::PcapNg)));
        assert!(matches!(run(&[7; 100]).0, Err(ReplayError::Capture(_))));
        let mut input = capture(&packets()[..1]);
        input[24 + 16 + 13] = 6;
        let (done, _, replayed) = run(&input);
        done.expect("replayed");
        assert_eq!((replayed.read, replayed.other), (1, 1));
    }
}
