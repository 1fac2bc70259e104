//! One launch: an object, an instruction on it, and the points it is tried with.

use std::fmt::Write;

use super::Setup;
use crate::job::Job;
use crate::values::hash;

/// Words of a point: four for coordinates, `%c0` to `%c3`, then eight for other inputs, `%e0` to
/// `%e7`.
pub const POINT_WORDS: usize = 12;
/// Words of a result: `%d0` to `%d3`.
pub const RESULT_WORDS: usize = 4;
/// Threads of a block.
const BLOCK: usize = 128;

pub type Point = [u32; POINT_WORDS];

#[derive(Clone, Debug)]
pub struct Probe {
    pub setup: Setup,
    /// The instruction. It may use `%o`, the object; the words of a point; `%d0` to `%d3`; `%h0` to
    /// `%h3` of 16 bits; `%w0` and `%w1` of 64; and the predicate `%p`. Registers of 16 and 64 bits
    /// start as `%e0` and on, and are results if [`Probe::wide`] says so.
    pub instruction: String,
    pub wide: Wide,
    /// Whether one thread does all the work in order, because results depend on it.
    pub serial: bool,
    pub points: Vec<Point>,
    /// Names the points in the probe's name.
    pub tried: String,
}

/// The registers that hold results before they are stored as words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wide {
    Words,
    Halves,
    Longs,
}

impl Probe {
    pub fn name(&self) -> String {
        format!("{} | {} | {}", self.instruction, self.setup, self.tried)
    }

    pub fn job(&self) -> Job {
        let count = self.points.len();
        let input: Vec<u8> = self
            .points
            .iter()
            .flatten()
            .flat_map(|word| word.to_le_bytes())
            .collect();
        let what = self.name();
        let key = hash(what.as_bytes()) ^ hash(&input).rotate_left(1);
        let (blocks, threads) = match self.serial {
            true => (1, 1),
            false => (count.div_ceil(BLOCK), BLOCK),
        };
        Job {
            key,
            text: self.text(&Job::name(key), blocks * threads),
            what,
            blocks: blocks as u32,
            threads: threads as u32,
            input,
            output_bytes: count * RESULT_WORDS * 4,
            setup: Some(self.setup),
            target: crate::form::TARGET,
            optimised: true,
        }
    }

    /// Returns the kernel's text. Word `w` of point `i` goes to `out + (w * points + i) * 4`.
    fn text(&self, name: &str, threads: usize) -> String {
        let mut out = String::new();
        // Writing to a string does not fail.
        let _ = self.write(&mut out, name, threads);
        out
    }

    fn write(&self, out: &mut String, name: &str, threads: usize) -> std::fmt::Result {
        let count = self.points.len();
        writeln!(
            out,
            ".visible .entry {name}(.param .u64 out, .param .u64 in, .param .u64 object)\n{{\n\
             .reg .b64 %out, %in, %o, %from, %to, %w<2>; .reg .b32 %c<4>, %e<8>, %d<4>, %i, %b, %n;\n\
             .reg .b16 %h<4>; .reg .pred %p, %more;\n\
             ld.param.u64 %out, [out]; ld.param.u64 %in, [in]; ld.param.u64 %o, [object];\n\
             mov.u32 %i, %tid.x; mov.u32 %b, %ctaid.x; mov.u32 %n, %ntid.x; mad.lo.u32 %i, %b, %n, %i;\n\
             setp.ge.u32 %more, %i, {count}; @%more ret;\n\
             again:\n\
             mad.wide.u32 %from, %i, {}, %in;\n\
             ld.global.v4.b32 {{%c0, %c1, %c2, %c3}}, [%from];\n\
             ld.global.v4.b32 {{%e0, %e1, %e2, %e3}}, [%from+16];\n\
             ld.global.v4.b32 {{%e4, %e5, %e6, %e7}}, [%from+32];\n\
             mov.b32 %d0, 0; mov.b32 %d1, 0; mov.b32 %d2, 0; mov.b32 %d3, 0; setp.ne.u32 %p, %i, %i;",
            POINT_WORDS * 4
        )?;
        match self.wide {
            Wide::Words => {}
            Wide::Halves => {
                for i in 0..4 {
                    write!(out, "cvt.u16.u32 %h{i}, %e{i}; ")?;
                }
            }
            Wide::Longs => write!(out, "mov.b64 %w0, {{%e0, %e1}}; mov.b64 %w1, {{%e2, %e3}};")?,
        }
        writeln!(out, "\n{};", self.instruction)?;
        match self.wide {
            Wide::Words => {}
            Wide::Halves => {
                for i in 0..4 {
                    write!(out, "cvt.u32.u16 %d{i}, %h{i}; ")?;
                }
            }
            Wide::Longs => writeln!(out, "mov.b64 {{%d0, %d1}}, %w0; mov.b64 {{%d2, %d3}}, %w1;")?,
        }
        writeln!(out, "mad.wide.u32 %to, %i, 4, %out;")?;
        for word in 0..RESULT_WORDS {
            write!(out, "st.global.b32 [%to+{}], %d{word}; ", word * count * 4)?;
        }
        writeln!(
            out,
            "\nadd.u32 %i, %i, {threads}; setp.lt.u32 %more, %i, {count}; @%more bra again;\nret;\n}}"
        )
    }
}
