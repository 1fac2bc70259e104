//! Results as JSON: printed, or in a file.

use std::{path::Path, process::ExitCode};

use serde::Serialize;

use crate::{args::JsonArgs, require::Outputs, said::print};

impl JsonArgs {
    /// Says a result: as text, or as JSON where that is asked for.
    pub(crate) fn say(
        &self,
        document: &impl Serialize,
        text: impl FnOnce() -> String,
    ) -> anyhow::Result<ExitCode> {
        let Some(path) = &self.json else {
            return print(text().as_bytes());
        };
        let mut outputs = Outputs::default();
        outputs.add(path, serde_json::to_string_pretty(document)? + "\n");
        let text = match self.is_printed() {
            true => String::new(),
            false => text(),
        };
        outputs.finish(&text)?;
        Ok(ExitCode::SUCCESS)
    }

    /// Returns whether the result is printed as JSON.
    pub(crate) fn is_printed(&self) -> bool {
        self.json.as_deref() == Some(Path::new("-"))
    }
}
