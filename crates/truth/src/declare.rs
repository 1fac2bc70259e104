//! Reads the declarations in `forms/`: instructions in the manual's notation, each line standing
//! for many forms.
//!
//! ```text
//! ## 9.7.1 Integer arithmetic                   a chapter of the manual
//! # 9.7.1.1 add                                 a section, what it describes
//! $int = u16|s16|u32|s32|u64|s64                a list for later use
//! add.<T:$int> d:T, a:T, b:T                    six forms; <T:...> also names what was chosen
//! add<.sat>.s32 d:s32, a:s32, b:s32             two forms: with .sat and without
//! mul.wide.<T,W:u16,u32|s16,s32> d:W, a:T, b:T  names that change together; the first is written
//! lg2.approx<.ftz>.f32 d:f32, a:f32 => within lg2
//! ```
//!
//! `name:type` is an operand (see [`crate::form`]). The text after `=>` says how results are judged
//! ([`Check`]); without it they must equal the H200's, bit by bit. `=> from sm_90` is for forms
//! later than sm_80 that run here, whose text is for that architecture; a check may follow, as in
//! `=> from sm_90: near`. Declarations that a line needs beyond registers come first, as PTX, and
//! end in `;`.

use thiserror::Error;

use crate::form::{Form, TARGET};

const FILES: [(&str, &str); 5] = [
    ("integer.forms", include_str!("forms/integer.forms")),
    ("float.forms", include_str!("forms/float.forms")),
    ("compare.forms", include_str!("forms/compare.forms")),
    ("data.forms", include_str!("forms/data.forms")),
    ("warp.forms", include_str!("forms/warp.forms")),
];

/// A line that cannot be read.
#[derive(Debug, Error)]
#[error("{file}:{line}: {what}")]
pub struct DeclarationError {
    file: &'static str,
    line: usize,
    what: String,
}

/// How the results of a form are judged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Check {
    /// They must equal the H200's, bit by bit.
    Exact,
    /// They must equal the H200's except for these, which PTX leaves open or the H200 computes
    /// against the manual; with the reason.
    Open(Open, String),
    /// They must be within the manual's bound of this function's exact value.
    Within(String),
    /// They must be near the H200's: the manual leaves the order and precision of additions open.
    Near,
    /// Has no result that another device could confirm. It must load, and programs test it.
    Control,
    /// Not an instruction of sm_80; tells what it needs.
    Beyond(String),
}

/// Results that may differ from the H200's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Open {
    /// NaNs, which may be any NaN.
    Nan,
    /// Results of subnormal inputs.
    Subnormal,
    /// All; the number that differs is counted.
    Results,
}

/// One line of a declaration.
#[derive(Debug)]
pub struct Line {
    /// Such as `9.7.1 Integer arithmetic`.
    pub chapter: String,
    /// Such as `9.7.1.1`.
    pub section: String,
    /// Such as `add`.
    pub title: String,
    /// The line with its lists, without the part from `=>` on.
    pub pattern: String,
    pub check: Check,
    /// The target of the text, such as 80 of `sm_80`.
    pub target: u32,
    pub forms: Vec<Form>,
}

/// Returns everything declared, in the manual's order within each file.
pub fn lines() -> Result<Vec<Line>, DeclarationError> {
    let mut out = Vec::new();
    for (file, text) in FILES {
        read(file, text, &mut out)?;
    }
    Ok(out)
}

fn read(file: &'static str, text: &str, out: &mut Vec<Line>) -> Result<(), DeclarationError> {
    let [mut chapter, mut section, mut title] = [const { String::new() }; 3];
    let mut lists: Vec<(String, String)> = Vec::new();
    for (index, raw) in text.lines().enumerate() {
        let fail = |what: String| DeclarationError {
            file,
            line: index + 1,
            what,
        };
        let line = raw.trim();
        if line.is_empty() || line.starts_with("//") {
            continue;
        }
        if let Some(name) = line.strip_prefix("## ") {
            chapter = name.into();
            continue;
        }
        if let Some(heading) = line.strip_prefix("# ") {
            let (number, name) = heading
                .split_once(' ')
                .ok_or_else(|| fail("a heading is a number and a name".into()))?;
            (section, title) = (number.into(), name.into());
            continue;
        }
        if let Some((name, list)) = line
            .strip_prefix('$')
            .and_then(|rest| rest.split_once(" = "))
        {
            lists.push((format!("${name}"), substitute(list, &lists)));
            continue;
        }
        let (pattern, check) = line.split_once("=>").unwrap_or((line, ""));
        let pattern = substitute(pattern.trim(), &lists);
        let (target, check) = since(check.trim());
        let check = judged(check).ok_or_else(|| fail(format!("no check: `{check}`")))?;
        let forms = expand(&pattern)
            .map_err(&fail)?
            .iter()
            .map(|text| Form::parse(text))
            .map(|form| form.map(|form| Form { target, ..form }))
            .collect::<Result<Vec<_>, _>>()
            .map_err(&fail)?;
        out.push(Line {
            target,
            chapter: chapter.clone(),
            section: section.clone(),
            title: title.clone(),
            pattern,
            check,
            forms,
        });
    }
    Ok(())
}

/// Splits `from sm_90: near` into 90 and `near`.
fn since(check: &str) -> (u32, &str) {
    let split = || {
        let rest = check.strip_prefix("from sm_")?;
        let (target, check) = rest.split_once(": ").unwrap_or((rest, ""));
        Some((target.parse().ok()?, check))
    };
    split().unwrap_or((TARGET, check))
}

fn judged(text: &str) -> Option<Check> {
    Some(match text.split_once(' ').unwrap_or((text, "")) {
        ("", "") => Check::Exact,
        ("open", rest) => {
            let (which, why) = rest.split_once(": ")?;
            let which = match which {
                "NaN" => Open::Nan,
                "subnormal" => Open::Subnormal,
                "results" => Open::Results,
                _ => return None,
            };
            Check::Open(which, why.into())
        }
        ("within", function) if !function.is_empty() => Check::Within(function.into()),
        ("near", "") => Check::Near,
        ("control", "") => Check::Control,
        ("needs", what) if !what.is_empty() => Check::Beyond(what.into()),
        _ => return None,
    })
}

/// Replaces lists by their contents, longest names first, so that `$int` does not match the start
/// of `$integers`.
fn substitute(text: &str, lists: &[(String, String)]) -> String {
    let mut lists: Vec<_> = lists.iter().collect();
    lists.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
    let mut out = text.to_owned();
    for (name, list) in lists {
        out = out.replace(name, list);
    }
    out
}

/// Returns every choice of every `<...>`.
fn expand(text: &str) -> Result<Vec<String>, String> {
    let Some(start) = text.find('<') else {
        return Ok(vec![text.to_owned()]);
    };
    let end = start + text[start..].find('>').ok_or("`<` without `>`")?;
    let (head, group, tail) = (&text[..start], &text[start + 1..end], &text[end + 1..]);
    let (names, alternatives) = match group.split_once(':') {
        Some((names, rest)) if names.chars().all(|c| c.is_ascii_uppercase() || c == ',') => {
            (names.split(',').collect::<Vec<_>>(), rest)
        }
        _ => (Vec::new(), group),
    };
    let mut choices: Vec<&str> = alternatives.split('|').collect();
    if choices.len() == 1 && names.is_empty() {
        choices.insert(0, "");
    }
    let mut out = Vec::new();
    for choice in choices {
        let values: Vec<&str> = if names.len() > 1 {
            choice.split(',').collect()
        } else {
            vec![choice]
        };
        if !names.is_empty() && names.len() != values.len() {
            return Err(format!("`{choice}` for `{}`", names.join(",")));
        }
        let mut rest = tail.to_owned();
        let mut before = head.to_owned();
        for (name, value) in names.iter().zip(&values) {
            rest = replace_word(&rest, name, value);
            before = replace_word(&before, name, value);
        }
        out.extend(expand(&format!("{before}{}{rest}", values[0]))?);
    }
    Ok(out)
}

fn replace_word(text: &str, word: &str, by: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(word) {
        let inside = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let end = at + word.len();
        let whole = !rest[..at].ends_with(inside) && !rest[end..].starts_with(inside);
        out.push_str(&rest[..at]);
        out.push_str(if whole { by } else { word });
        rest = &rest[end..];
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_choose_and_name() {
        let mut one = expand("mul.wide<.x>.<T,W:u16,u32|s16,s32> d:W, a:T").unwrap_or_default();
        one.sort();
        assert_eq!(
            one,
            [
                "mul.wide.s16 d:s32, a:s16",
                "mul.wide.u16 d:u32, a:u16",
                "mul.wide.x.s16 d:s32, a:s16",
                "mul.wide.x.u16 d:u32, a:u16",
            ]
        );
    }

    #[test]
    fn later_architectures_are_named_before_the_check() {
        assert_eq!(since("from sm_90"), (90, ""));
        assert_eq!(since("from sm_89: within tanh"), (89, "within tanh"));
        assert_eq!(since("needs sm_90"), (TARGET, "needs sm_90"));
    }

    #[test]
    fn a_group_that_does_not_fit_is_an_error() {
        assert!(expand("add.<T,W:u16|u32> d:T").is_err());
        assert!(expand("add.<T:u16").is_err());
    }
}
