//! Source positions of PTX: its `.file` and `.loc` lines.

use std::collections::HashMap;

#[derive(Debug, Default)]
pub(crate) struct Sources {
    files: HashMap<u32, String>,
    /// PTX line, number of the file, and line there, ascending.
    places: Vec<(u32, u32, u32)>,
}

impl Sources {
    pub(crate) fn new(ptx: &str) -> Sources {
        let mut sources = Sources::default();
        if !ptx.contains(".loc") {
            return sources;
        }
        for (line, text) in (1..).zip(ptx.lines()) {
            let mut words = text.split_ascii_whitespace();
            let word = words.next();
            let mut number = || words.next()?.trim_end_matches(',').parse::<u32>().ok();
            match word {
                Some(".loc") => {
                    if let (Some(file), Some(at)) = (number(), number()) {
                        sources.places.push((line, file, at));
                    }
                }
                Some(".file") => {
                    if let (Some(file), Some(name)) = (number(), text.split('"').nth(1)) {
                        sources.files.insert(file, name.to_owned());
                    }
                }
                _ => {}
            }
        }
        sources
    }

    /// Describes a line as `PTX line 12 (kernel.cu:3)`.
    pub(crate) fn describe(&self, line: u32) -> String {
        let before = self.places.partition_point(|(at, ..)| *at <= line);
        let place = before.checked_sub(1).map(|i| self.places[i]);
        match place.and_then(|(_, file, at)| Some((self.files.get(&file)?, at))) {
            Some((file, at)) => format!("PTX line {line} ({file}:{at})"),
            None => format!("PTX line {line}"),
        }
    }
}
