//! The configuration file of `outboard serve`: its options by their names. The declaration of the
//! command line is the only list of them, so the file's settings become arguments.

use std::{
    collections::BTreeMap,
    env,
    ffi::OsString,
    ops::Range,
    path::{Path, PathBuf},
};

use clap::{
    Arg, ArgMatches, Command, CommandFactory as _, FromArgMatches as _, error::ErrorKind,
    parser::ValueSource,
};
use toml::{Spanned, Value};

use crate::args::{self, Args};

const COMMAND: &str = "serve";
/// Options that a file cannot set.
const NOT_IN_A_FILE: [&str; 6] = [
    "config",
    "no-config",
    "check-config",
    "json",
    "help",
    "version",
];
/// Longest file, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

type Settings = BTreeMap<Spanned<String>, Spanned<Value>>;

/// Parses the command line, with the settings of the file for what `outboard serve` does not find
/// there.
pub(crate) fn parse(arguments: Vec<OsString>) -> Result<Args, clap::Error> {
    let asked = match Args::command().try_get_matches_from(&arguments) {
        Err(error) if !error.use_stderr() => return Err(error),
        Ok(matches) => Some(matches),
        // What is missing may be in the file.
        Err(_) => {
            let lenient = Args::command().ignore_errors(true);
            lenient.try_get_matches_from(&arguments).ok()
        }
    };
    let serve = asked
        .as_ref()
        .and_then(|all| all.subcommand_matches(COMMAND));
    let with_settings = match serve.and_then(|serve| file_of(serve).map(|file| (serve, file))) {
        None => arguments,
        Some((serve, file)) => with_settings(arguments, serve, &file)?,
    };
    let matches = Args::command().try_get_matches_from(with_settings)?;
    args::check_result_file(&matches)?;
    let mut args = Args::from_arg_matches(&matches)?;
    if let (args::Command::Serve(args), Some(serve)) =
        (&mut args.command, matches.subcommand_matches(COMMAND))
    {
        args.config.read = file_of(serve);
        args.config.set = set(serve);
    }
    Ok(args)
}

/// Returns the options that the file, the command line or the environment has set, with their
/// values.
fn set(serve: &ArgMatches) -> BTreeMap<String, Vec<String>> {
    let mut root = Args::command();
    root.build();
    let options = root.find_subcommand(COMMAND).into_iter();
    let mut set = BTreeMap::new();
    for option in options.flat_map(Command::get_arguments) {
        let name = option.get_long().unwrap_or_default();
        if option_named(option, name) && is_given(serve, option) {
            let values = serve.get_raw(option.get_id().as_str());
            let values = values.into_iter().flatten();
            let values = values.map(|value| value.to_string_lossy().into_owned());
            set.insert(name.into(), values.collect());
        }
    }
    set
}

/// Returns the file that is asked for, or that of the user, or that of the machine.
fn file_of(serve: &ArgMatches) -> Option<PathBuf> {
    if serve.try_get_one::<bool>("no_config").ok().flatten() == Some(&true) {
        return None;
    }
    if let Ok(Some(file)) = serve.try_get_one::<PathBuf>("config") {
        return Some(file.clone());
    }
    let set = |name| env::var_os(name).filter(|value| !value.is_empty());
    let user = set("XDG_CONFIG_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(set("HOME")?).join(".config")));
    let user = user.map(|folder| folder.join("outboard/serve.toml"));
    let machine = PathBuf::from("/etc/outboard/serve.toml");
    // Whatever is in its place is read, and so a folder or a pipe is an error.
    user.into_iter()
        .chain([machine])
        .find(|file| file.symlink_metadata().is_ok())
}

/// Returns the command line with the file's settings right after the command.
fn with_settings(
    arguments: Vec<OsString>,
    serve: &ArgMatches,
    file: &Path,
) -> Result<Vec<OsString>, clap::Error> {
    let wrong = |what: String| {
        let text = format!("{}{what}\n", file.display());
        clap::Error::raw(ErrorKind::InvalidValue, text)
    };
    let text = read(file).map_err(|why| wrong(format!(": {why}")))?;
    let settings: Settings = toml::from_str(&text).map_err(|error| {
        let start = error.span().map_or(0, |span| span.start);
        let huge = error.span().and_then(|span| huge_number(&text, span));
        let what = huge.unwrap_or_else(|| error.message().into());
        wrong(format!(":{}: {what}", line_of(&text, start)))
    })?;
    let mut root = Args::command();
    root.build();
    let command = root
        .find_subcommand(COMMAND)
        .ok_or_else(|| wrong(": no such command".into()))?;
    let mut added = Vec::new();
    for (key, value) in &settings {
        let at = |what: &str| wrong(format!(":{}: {what}", line_of(&text, key.span().start)));
        let option = option_of(command, key.get_ref()).ok_or_else(|| {
            at(&format!(
                "there is no setting {:?}; {}",
                key.get_ref(),
                meant(command, key.get_ref())
            ))
        })?;
        let tokens = tokens(key.get_ref(), value.get_ref()).map_err(|what| at(&what))?;
        if let Some(what) = fault_of(&tokens) {
            return Err(at(&what));
        }
        if !is_overruled(command, option, serve) {
            added.extend(tokens);
        }
    }
    let mut all = arguments;
    let place = all.iter().skip(1).position(|word| word == COMMAND);
    let place = place.map_or(all.len(), |at| at + 2);
    all.splice(place..place, added.into_iter().map(OsString::from));
    Ok(all)
}

fn read(file: &Path) -> Result<String, String> {
    outboard_files::read_text(file, FILE_BYTES_MAX).map_err(|error| error.to_string())
}

fn line_of(text: &str, at: usize) -> usize {
    1 + text.bytes().take(at).filter(|byte| *byte == b'\n').count()
}

/// Returns what is wrong with a setting whose number TOML cannot hold.
fn huge_number(text: &str, at: Range<usize>) -> Option<String> {
    let number = text.get(at.clone())?.trim();
    let is_number = number.len() > 1 && number.bytes().skip(1).all(|b| b.is_ascii_digit());
    let line = text.get(..at.start)?.rsplit('\n').next()?;
    let name = line.split('=').next()?.trim();
    fault_of(&[format!("--{name}={number}")]).filter(|_| is_number)
}

fn option_of<'a>(command: &'a Command, name: &str) -> Option<&'a Arg> {
    let mut options = command.get_arguments();
    options.find(|option| option_named(option, name))
}

/// Returns whether this is the option of a setting.
fn option_named(option: &Arg, name: &str) -> bool {
    option.get_long() == Some(name) && !NOT_IN_A_FILE.contains(&name)
}

/// Returns what to write in place of a setting that there is not.
fn meant(command: &Command, name: &str) -> String {
    let dashed = name.replace('_', "-");
    match option_of(command, &dashed) {
        Some(_) => format!("{dashed} is one"),
        None => "settings are the options of outboard serve, without the dashes".into(),
    }
}

/// Returns the arguments that a setting stands for.
fn tokens(name: &str, value: &Value) -> Result<Vec<String>, String> {
    let one = |value: &Value| match value {
        Value::String(text) => Ok(format!("--{name}={text}")),
        Value::Integer(number) => Ok(format!("--{name}={number}")),
        // With its point: 8.0 is a capability.
        Value::Float(number) => Ok(format!("--{name}={number:?}")),
        _ => Err(format!(
            "{name} is a text, a number, true, false, or a list of these"
        )),
    };
    match value {
        Value::Boolean(true) => Ok(vec![format!("--{name}")]),
        Value::Boolean(false) => Ok(Vec::new()),
        Value::Array(values) => values.iter().map(one).collect(),
        value => one(value).map(|token| vec![token]),
    }
}

/// Returns what is wrong with arguments by themselves. Others that they need may come elsewhere.
fn fault_of(tokens: &[String]) -> Option<String> {
    let line = ["outboard", COMMAND].into_iter().map(String::from);
    let line = line.chain(tokens.iter().cloned());
    let error = Args::command().try_get_matches_from(line).err()?;
    if error.kind() == ErrorKind::MissingRequiredArgument {
        return None;
    }
    let text = error.to_string();
    let first = text.lines().next().unwrap_or_default();
    Some(first.trim_start_matches("error: ").into())
}

fn is_given(serve: &ArgMatches, option: &Arg) -> bool {
    matches!(
        serve.value_source(option.get_id().as_str()),
        Some(ValueSource::CommandLine | ValueSource::EnvVariable)
    )
}

/// Whether the command line or the environment has this option, or one that excludes it.
fn is_overruled(command: &Command, option: &Arg, serve: &ArgMatches) -> bool {
    let is_given = |option: &Arg| is_given(serve, option);
    let mut rivals = command.get_arguments().filter(|rival| {
        let conflicts = |one, other: &Arg| {
            command
                .get_arg_conflicts_with(one)
                .iter()
                .any(|c| c.get_id() == other.get_id())
        };
        conflicts(option, rival) || conflicts(rival, option)
    });
    is_given(option) || rivals.any(is_given)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;
    use crate::args::{Command as Asked, ServeArgs};

    fn file(text: &str) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file
    }

    fn parsed(text: &str, more: &[&str]) -> Result<ServeArgs, String> {
        let file = file(text);
        let path = file.path().to_str().unwrap();
        let line = ["outboard", "serve", "--config", path];
        let line = line.iter().chain(more);
        match parse(line.map(OsString::from).collect()) {
            Ok(args) => match args.command {
                Asked::Serve(serve) => Ok(*serve),
                other => panic!("{other:?}"),
            },
            Err(error) => Err(error.to_string().replace(path, "FILE")),
        }
    }

    #[test]
    fn settings_are_options_and_the_command_line_wins() {
        let text = "sessions-max = 3\nlisten = ['tcp://127.0.0.1:1', 'shm:///a']\nno-cache = true\nmemory = '1GiB'\n";
        let serve = parsed(text, &[]).unwrap();
        assert_eq!((serve.sessions_max, serve.listen.len()), (3, 2));
        assert_eq!((serve.memory, serve.cache.no_cache), (Some(1 << 30), true));
        let serve = parsed(
            text,
            &[
                "--sessions-max",
                "7",
                "--cache",
                "/tmp",
                "--listen",
                "shm:///b",
            ],
        )
        .unwrap();
        assert_eq!(serve.sessions_max, 7);
        assert_eq!(
            serve.listen.len(),
            1,
            "the command line's address, in place of the file's"
        );
        assert!(!serve.cache.no_cache, "--cache excludes it");
        let config = parsed(text, &["--spare", "0"]).unwrap().config;
        let set = |name: &str| config.set.get(name).map(|values| values.join(" "));
        assert!(config.read.is_some() && config.set.len() == 5);
        assert_eq!(set("listen"), Some("tcp://127.0.0.1:1 shm:///a".into()));
        assert_eq!((set("spare"), set("threads")), (Some("0".into()), None));
        let capability = parsed("capability = 8.0\n", &[]).unwrap().capability;
        assert_eq!(capability, "8.0".parse().ok());
        let alone = parsed("check = 'all'\n", &["--check-fail"]).unwrap();
        assert!(alone.watch.check.is_some() && alone.watch.check_fail);
    }

    #[test]
    fn a_mistake_is_told_with_its_line() {
        for (text, said) in [
            (
                "\nsesions-max = 3\n",
                "FILE:2: there is no setting \"sesions-max\"",
            ),
            ("config = 'x'\n", "FILE:1: there is no setting \"config\""),
            (
                "no_cache = true\n",
                "no setting \"no_cache\"; no-cache is one",
            ),
            (
                "device = 'soft'\nmemory = '1XB'\n",
                "FILE:2: invalid value '1XB' for '--memory",
            ),
            ("sessions-max = 0\n", "FILE:1: invalid value '0'"),
            (
                "spare = 1\nsessions-max = 99999999999999999999\n",
                "FILE:2: invalid value '99999999999999999999' for '--sessions-max <N>': it is a whole number from 1 to 4096",
            ),
            (
                "sessions-max = 1e30\n",
                "for '--sessions-max <N>': it is a whole number from 1 to 4096",
            ),
            (
                "devices = -1\n",
                "for '--devices <N>': it is a whole number from 1 to 64",
            ),
            (
                "threads = 'many'\n",
                "for '--threads <N>': it is a whole number from 1 to 1024",
            ),
            ("no-cache = 'yes'\n", "FILE:1: unexpected value 'yes'"),
            (
                "memory = ['1GiB', '2GiB']\n",
                "FILE:1: the argument '--memory <SIZE>' cannot be used multiple times",
            ),
            ("spare = { a = 1 }\n", "FILE:1: spare is a text"),
            ("a = 1\na = 2\n", "FILE:2: "),
            ("listen = 'tcp://'\n= 3", "FILE:2: "),
        ] {
            let error = parsed(text, &[]).unwrap_err();
            assert!(error.contains(said), "{text:?}: {error}");
        }
        let error = parse(
            ["outboard", "serve", "--config", "/proc/nowhere"]
                .map(OsString::from)
                .into(),
        );
        assert!(
            error
                .unwrap_err()
                .to_string()
                .contains("/proc/nowhere: No such file")
        );
    }

    /// Every option that takes a value or is a flag can stand in the file.
    #[test]
    fn every_option_can_be_set() {
        let mut root = Args::command();
        root.build();
        let command = root.find_subcommand(COMMAND).unwrap();
        let names: Vec<_> = command.get_arguments().filter_map(Arg::get_long).collect();
        assert!(names.len() > 15);
        for name in names
            .into_iter()
            .filter(|name| !NOT_IN_A_FILE.contains(name))
        {
            assert!(option_of(command, name).is_some(), "{name}");
        }
    }
}
