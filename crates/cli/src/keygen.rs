//! `outboard keygen`, and the files of keys.

use std::{path::PathBuf, process::ExitCode};

use anyhow::Context as _;
use outboard_link::default_key_file;
use outboard_trust::Identity;
use serde_json::json;

use crate::{args::KeygenArgs, token::make_private_folder_of};

pub(crate) fn keygen(args: KeygenArgs) -> anyhow::Result<ExitCode> {
    let file = key_file(args.file)?;
    let key = match args.show {
        true => Identity::read(&file)?,
        false => {
            make_private_folder_of(&file)?;
            let key = Identity::random()?;
            key.write(&file).with_context(|| match file.exists() {
                true => "there is a key already; --show prints its fingerprint".to_owned(),
                false => format!("writing {}", file.display()),
            })?;
            eprintln!("the key is in {}, its fingerprint is", file.display());
            key
        }
    };
    let fingerprint = key.fingerprint().to_string();
    let holds = json!({ "file": file, "fingerprint": fingerprint, "made": !args.show });
    args.json.say(&holds, || fingerprint + "\n")
}

/// Returns the file of a key: the one that is named, or the user's own.
pub(crate) fn key_file(named: Option<PathBuf>) -> anyhow::Result<PathBuf> {
    let file = match named {
        Some(file) => file,
        None => default_key_file().context("there is no home folder; name a file")?,
    };
    std::path::absolute(file).context("asking for the current folder")
}
