//! `outboard top`: shows the sessions and GPUs of a server, and ends sessions.

mod keyboard;
mod screen;

use std::{
    io::{IsTerminal as _, Write as _},
    process::ExitCode,
    time::{Duration, Instant},
};

use outboard_wire::doc::{ServerStatus, StatusAnswer, StatusQuestion};

use crate::{
    args::{SortArg, TopArgs},
    peer::StatusQueries,
    serve::default_endpoint,
    token,
};

use keyboard::{Key, Keyboard};
use screen::Screen;

/// Columns of a terminal that does not say how many it has.
const COLUMNS_DEFAULT: usize = 80;
/// Clears the terminal and begins at its top.
const CLEAR: &str = "\x1b[H\x1b[2J\x1b[3J";

pub(crate) fn top(args: TopArgs) -> anyhow::Result<ExitCode> {
    let endpoint = match args.gpu {
        Some(endpoint) => endpoint,
        None => default_endpoint()?,
    };
    token::use_files(&args.token, std::slice::from_ref(&endpoint))?;
    let mut queries = StatusQueries::open(&endpoint)?;
    if let Some(session) = args.end {
        end(&mut queries, session)?;
        return crate::said::print(format!("session {session} is ended\n").as_bytes());
    }
    let status = now(&mut queries)?;
    let address = endpoint.to_string();
    if args.once || args.json.json.is_some() {
        let screen = Screen::new(&address, args.sort, COLUMNS_DEFAULT);
        return args.json.say(&status, || screen.text(&status));
    }
    let interval = Duration::from_secs(args.interval.into());
    follow(queries, &address, args.sort, interval, status)
}

fn now(queries: &mut StatusQueries) -> anyhow::Result<ServerStatus> {
    match queries.ask(StatusQuestion::Now)? {
        StatusAnswer::Now(status) => Ok(*status),
        StatusAnswer::Refused(why) => anyhow::bail!("the server refused: {why}"),
        StatusAnswer::Ended => anyhow::bail!("the server answered another question"),
    }
}

fn end(queries: &mut StatusQueries, session: u64) -> anyhow::Result<()> {
    match queries.ask(StatusQuestion::End(session))? {
        StatusAnswer::Ended => Ok(()),
        StatusAnswer::Refused(why) => anyhow::bail!("session {session} is not ended: {why}"),
        StatusAnswer::Now(_) => anyhow::bail!("the server answered another question"),
    }
}

/// Shows a screen after another until the user has had enough. A terminal without escape sequences
/// gets them one below the other.
fn follow(
    mut queries: StatusQueries,
    address: &str,
    mut sort: SortArg,
    interval: Duration,
    mut status: ServerStatus,
) -> anyhow::Result<ExitCode> {
    let is_dumb = !std::io::stdout().is_terminal()
        || std::env::var("TERM").is_ok_and(|term| term.is_empty() || term == "dumb");
    let mut keyboard = Keyboard::open()?;
    // The number of a session to end, as far as it is typed.
    let mut typed: Option<String> = None;
    let mut said = String::new();
    loop {
        let columns = keyboard.columns().unwrap_or(COLUMNS_DEFAULT);
        let mut text = Screen::new(address, sort, columns).text(&status);
        match &typed {
            Some(number) => text += &format!("end which session? {number}"),
            None => text += &said,
        }
        show(&text, is_dumb)?;
        let next = Instant::now() + interval;
        match keyboard.key(next)? {
            None => status = now(&mut queries)?,
            Some(Key::Stop) => return Ok(ExitCode::SUCCESS),
            Some(Key::Letter('q')) => return Ok(ExitCode::SUCCESS),
            Some(key) => match (&mut typed, key) {
                (None, Key::Letter('k')) => typed = Some(String::new()),
                (None, Key::Letter(letter)) => sort = sorted_by(letter).unwrap_or(sort),
                (Some(number), Key::Letter(digit @ '0'..='9')) => number.push(digit),
                (Some(number), Key::Back) => drop(number.pop()),
                (Some(number), Key::Enter) => {
                    said = match number.parse() {
                        Ok(session) => match end(&mut queries, session) {
                            Ok(()) => format!("session {session} is ended"),
                            Err(error) => error.to_string(),
                        },
                        Err(_) => String::new(),
                    };
                    typed = None;
                    status = now(&mut queries)?;
                }
                (typed, _) => *typed = None,
            },
        }
    }
}

fn sorted_by(letter: char) -> Option<SortArg> {
    Some(match letter {
        'm' => SortArg::Memory,
        'r' => SortArg::Messages,
        'b' => SortArg::Bytes,
        'w' => SortArg::Wait,
        'a' => SortArg::Age,
        's' => SortArg::Session,
        _ => return None,
    })
}

fn show(text: &str, is_dumb: bool) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    let text = match is_dumb {
        true => format!("{text}\n"),
        // A terminal in raw mode starts no line by itself.
        false => format!("{CLEAR}{}", text.replace('\n', "\r\n")),
    };
    out.write_all(text.as_bytes())?;
    out.flush()
}
