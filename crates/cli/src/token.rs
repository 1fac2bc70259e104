//! `outboard token`, and the files of tokens.

use std::{
    fs,
    io::Write as _,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context as _;
use outboard_link::{
    CA_VARIABLE, CERTIFICATE_KEY_VARIABLE, CERTIFICATE_VARIABLE, CertificateFiles, Endpoint,
    TOKEN_FILE_VARIABLE, config_folder, use_certificate_files, use_token_file,
};
use outboard_trust::{Entry, Store, Token, date, now_s};
use serde_json::{Value, json};

use crate::args::{JsonArgs, TokenCommand, TokenFileArgs, TokensArgs};

pub(crate) fn token(command: TokenCommand) -> anyhow::Result<ExitCode> {
    match command {
        TokenCommand::Create {
            name,
            expires,
            tokens,
            json,
        } => create(name, expires, &file_of(tokens)?, &json),
        TokenCommand::List { tokens, json } => list(&file_of(tokens)?, &json),
        TokenCommand::Revoke { name, tokens, json } => {
            let file = file_of(tokens)?;
            Store::change(&file, |store| store.remove(&name))?;
            eprintln!(
                "{name} is removed from {}; programs that run with it go on to their end",
                file.display()
            );
            let holds = json!({ "name": name, "file": file, "revoked": true });
            json.say(&holds, String::new)
        }
    }
}

fn create(
    name: String,
    lifetime_s: Option<u64>,
    file: &Path,
    json: &JsonArgs,
) -> anyhow::Result<ExitCode> {
    let token = Token::random().context("drawing a key")?;
    let now_s = now_s();
    let entry = Entry {
        name: name.clone(),
        token: token.clone(),
        created_s: now_s,
        expires_s: lifetime_s.map(|lifetime_s| now_s.saturating_add(lifetime_s)),
    };
    make_private_folder_of(file)?;
    let mut holds = as_json(&entry, now_s);
    holds["file"] = json!(file);
    // Standard output alone has the secret: other users may read a file of results.
    let (secret, in_file) = match json.is_printed() {
        true => {
            holds["token"] = token.to_text().into();
            (serde_json::to_string_pretty(&holds)?, JsonArgs::default())
        }
        false => (token.to_text(), json.clone()),
    };
    // Shown before it is kept: a token that nobody has must not be valid.
    Store::change(file, |store| {
        store.add(entry)?;
        in_file.say(&holds, String::new)?;
        let mut out = std::io::stdout();
        writeln!(out, "{secret}")
            .and_then(|()| out.flush())
            .context("writing to standard output; no token is added")
    })?;
    let until = lifetime_s.map_or("until it is revoked".into(), |lifetime_s| {
        format!("until {}", date(now_s.saturating_add(lifetime_s)))
    });
    eprintln!(
        "{name} is added to {}, valid {until}. The token on standard output is the secret of its owner, to be kept in a file of mode \
         0600: ~/.config/outboard/tokens/HOST:PORT, or the one that OUTBOARD_TOKEN_FILE names",
        file.display()
    );
    Ok(ExitCode::SUCCESS)
}

/// Makes the folder of a secret file, if there is none, for its owner alone.
pub(crate) fn make_private_folder_of(file: &Path) -> anyhow::Result<()> {
    let Some(folder) = file.parent() else {
        return Ok(());
    };
    let mut builder = fs::DirBuilder::new();
    let made = builder.recursive(true).mode(0o700).create(folder);
    made.with_context(|| folder.display().to_string())
}

fn list(file: &Path, json: &JsonArgs) -> anyhow::Result<ExitCode> {
    let store = Store::read(file)?;
    let now_s = now_s();
    let entries: Vec<_> = store.entries().iter().map(|e| as_json(e, now_s)).collect();
    json.say(&entries, || listed(&store, now_s))
}

fn listed(store: &Store, now_s: u64) -> String {
    let mut text = format!("{:24} {:16} {:24} expires\n", "name", "id", "created");
    for entry in store.entries() {
        let expires = match entry.expires_s {
            None => "never".into(),
            Some(at) if entry.is_valid(now_s) => date(at),
            Some(at) => format!("{} (expired)", date(at)),
        };
        let (name, id) = (&entry.name, entry.id_text());
        let created = date(entry.created_s);
        text.push_str(&format!("{name:24} {id:16} {created:24} {expires}\n"));
    }
    text
}

fn as_json(entry: &Entry, now_s: u64) -> Value {
    json!({
        "name": entry.name,
        "id": entry.id_text(),
        "created_s": entry.created_s,
        "expires_s": entry.expires_s,
        "valid": entry.is_valid(now_s),
    })
}

fn file_of(args: TokensArgs) -> anyhow::Result<PathBuf> {
    server_file(args.tokens)
}

/// Returns the server's file of tokens: the one that is named, or that of the user's settings.
pub(crate) fn server_file(named: Option<PathBuf>) -> anyhow::Result<PathBuf> {
    let file = match named {
        Some(file) => file,
        None => config_folder()
            .context("there is no home folder; name a file with --tokens")?
            .join("server-tokens"),
    };
    std::path::absolute(file).context("asking for the current folder")
}

/// Makes this process use the files that the user has named, for these servers. Returns the
/// variables by which the programs that it becomes use them.
pub(crate) fn use_files(
    args: &TokenFileArgs,
    servers: &[Endpoint],
) -> anyhow::Result<Vec<(&'static str, PathBuf)>> {
    if let [first, ..] = servers
        && (args.ca.is_some() || args.certificate.is_some())
    {
        anyhow::ensure!(
            servers.iter().any(Endpoint::is_encrypted),
            "--ca, --certificate and --key are for encrypted connections, and those to {first} are not: its address \
             does not begin with tcps or rdmas"
        );
    }
    // The program may change its folder before its first call.
    let absolute = |file: &Option<PathBuf>| {
        let file = file.as_ref().map(std::path::absolute);
        file.transpose().context("asking for the current folder")
    };
    let token = absolute(&args.token_file)?;
    let (ca, certificate, key) = (
        absolute(&args.ca)?,
        absolute(&args.certificate)?,
        absolute(&args.key)?,
    );
    if let Some(token) = &token {
        use_token_file(token);
    }
    use_certificate_files(CertificateFiles {
        authorities: ca.clone(),
        own: certificate.clone().zip(key.clone()),
    });
    let all = [
        (TOKEN_FILE_VARIABLE, token),
        (CA_VARIABLE, ca),
        (CERTIFICATE_VARIABLE, certificate),
        (CERTIFICATE_KEY_VARIABLE, key),
    ];
    let named = all.into_iter();
    Ok(named
        .filter_map(|(name, file)| Some((name, file?)))
        .collect())
}
