//! The option for a result as JSON, of every command that has one.

use std::{
    ffi::OsStr,
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use clap::{ArgMatches, CommandFactory as _, error::ErrorKind};

/// The place of a result as JSON.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct JsonArgs {
    /// Print the result as JSON, in place of the text; --json=FILE writes it to a file, beside the
    /// text
    // With the equals sign alone: a word after --json is another argument.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-")]
    pub(crate) json: Option<PathBuf>,
}

/// Refuses `--json=FILE` if another argument of the command names the same file, such as a key: the
/// result would take its place.
pub(crate) fn check_result_file(matches: &ArgMatches) -> Result<(), clap::Error> {
    let mut of_command = matches;
    while let Some((_, inner)) = of_command.subcommand() {
        of_command = inner;
    }
    let Ok(Some(result)) = of_command.try_get_one::<PathBuf>("json") else {
        return Ok(());
    };
    let others = of_command.ids().filter(|id| id.as_str() != "json");
    let given = others.filter_map(|id| of_command.try_get_raw(id.as_str()).ok().flatten());
    match given.flatten().any(|given| is_one_file(given, result)) {
        true => Err(super::Args::command().error(
            ErrorKind::ValueValidation,
            format!(
                "--json={} is a file that the command line names already; name another",
                result.display()
            ),
        )),
        false => Ok(()),
    }
}

/// Returns true if both are names of one file that exists.
fn is_one_file(one: &OsStr, other: &Path) -> bool {
    let place = |path: &Path| fs::metadata(path).map(|file| (file.dev(), file.ino()));
    match (place(Path::new(one)), place(other)) {
        (Ok(one), Ok(other)) => one == other,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use clap::{Command, CommandFactory as _, Parser as _};

    use crate::args::{self, Args};

    /// Commands without a result as JSON, and the reasons.
    const WITHOUT: [(&str, &str); 9] = [
        ("run", "it becomes the program"),
        ("nic run", "it becomes the program"),
        ("pool serve", "it runs until it is ended"),
        ("balance run", "it runs until it is ended"),
        (
            "balance top",
            "it shows what balance status has, again and again",
        ),
        ("trace cut", "it writes a recording"),
        ("trace export", "it writes a time line, of another form"),
        ("completions", "it prints a script of the shell"),
        ("man", "it prints a manual page"),
    ];

    /// Adds whether each command that does something has the option. Hidden ones are started by the
    /// command itself.
    fn walk(command: &Command, path: &str, to: &mut BTreeMap<String, bool>) {
        let named = |sub: &&Command| !sub.is_hide_set() && sub.get_name() != "help";
        let mut is_leaf = true;
        for sub in command.get_subcommands().filter(named) {
            is_leaf = false;
            walk(sub, format!("{path} {}", sub.get_name()).trim(), to);
        }
        if is_leaf
            || command
                .get_arguments()
                .any(|arg| arg.get_long() == Some("json"))
        {
            let has = command
                .get_arguments()
                .any(|arg| arg.get_long() == Some("json"));
            to.insert(path.into(), has);
        }
    }

    #[test]
    fn every_command_says_its_result_as_json() {
        let mut root = Args::command();
        root.build();
        let mut all = BTreeMap::new();
        walk(&root, "", &mut all);
        let without: BTreeSet<&str> = WITHOUT.iter().map(|(name, _)| *name).collect();
        let found = all.iter().filter(|(_, has)| !**has);
        let found: BTreeSet<&str> = found.map(|(name, _)| name.as_str()).collect();
        assert_eq!(found, without, "--json, or an entry with its reason");
        assert!(all.len() > 35, "{all:?}");
    }

    #[test]
    fn a_file_of_the_command_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let (key, other) = (folder.path().join("key"), folder.path().join("other"));
        std::fs::write(&key, "secret").unwrap();
        let again = folder.path().join("again");
        std::os::unix::fs::symlink(&key, &again).unwrap();
        let parse = |result: &std::path::Path| {
            let key = key.display();
            let line = format!("outboard keygen --show {key} --json={}", result.display());
            crate::config::parse(line.split(' ').map(Into::into).collect())
        };
        for same in [&key, &again] {
            let error = parse(same).unwrap_err().to_string();
            assert!(error.contains("names already"), "{error}");
        }
        assert!(parse(&other).is_ok());
    }

    #[test]
    fn a_word_after_it_is_another_argument() {
        let of = |arguments: &[&str]| {
            let line = ["outboard", "keygen"].iter().chain(arguments);
            match Args::try_parse_from(line).unwrap().command {
                args::Command::Keygen(args) => (args.json.json, args.file),
                other => panic!("{other:?}"),
            }
        };
        let path = |text: &str| Some(text.into());
        assert_eq!(of(&["--json", "key"]), (path("-"), path("key")));
        assert_eq!(of(&["key", "--json=a"]), (path("a"), path("key")));
        assert_eq!(of(&["key"]), (None, path("key")));
    }
}
