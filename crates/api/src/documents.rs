//! Extracts the documents that a Rust source declares, for the protocol's fingerprint.

use std::fmt::Write;

/// Returns the declarations of a source file, without comments and spacing: serialised structs and
/// enums, with their fields and serde attributes. `constants` adds the constants, which give
/// numbers in documents their meaning.
pub fn declarations(source: &str, constants: bool) -> String {
    let mut out = String::new();
    let mut attributes = String::new();
    let mut lines = source
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with("//"));
    while let Some(line) = lines.next() {
        let is_attribute = line.starts_with("#[");
        let item = line.strip_prefix("pub ").unwrap_or(line);
        let wanted = match item.split(' ').next() {
            Some("struct" | "enum") => attributes.contains("Serialize"),
            Some("const" | "type") => constants,
            _ => false,
        };
        if !wanted && !is_attribute {
            attributes.clear();
            continue;
        }
        let mut text = line.to_string();
        while !is_whole(&text, is_attribute) {
            let Some(more) = lines.next() else { break };
            text.push(' ');
            text.push_str(more);
        }
        if is_attribute {
            attributes.push_str(&text);
            continue;
        }
        let serde = attributes
            .split_inclusive("#[")
            .filter(|a| a.starts_with("serde"));
        let serde: String = serde.collect();
        let words: Vec<&str> = text.split_whitespace().collect();
        let _ = writeln!(out, "{serde}{}", words.join(" "));
        attributes.clear();
    }
    out
}

/// True if all brackets are closed and the item has ended.
fn is_whole(text: &str, is_attribute: bool) -> bool {
    let depth = text.chars().fold(0i32, |depth, c| match c {
        '(' | '[' | '{' => depth + 1,
        ')' | ']' | '}' => depth - 1,
        _ => depth,
    });
    depth == 0 && (is_attribute || text.ends_with([';', '}']))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "
/// A document.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Card {
    /// Its name.
    pub name: String,
    #[serde(default)]
    pub place: (u32, u32),
}

#[derive(Debug)]
struct Local {
    hidden: u32,
}

#[derive(Serialize)]
struct Pair(u8, u8);

pub const KIND: u32 = 3;

fn function() -> u32 {
    7
}
";

    #[test]
    fn documents_are_found_and_nothing_else() {
        assert_eq!(
            declarations(SOURCE, true),
            "serde(deny_unknown_fields)]pub struct Card { pub name: String, #[serde(default)] pub place: (u32, u32), }\n\
             struct Pair(u8, u8);\n\
             pub const KIND: u32 = 3;\n"
        );
        assert!(!declarations(SOURCE, false).contains("KIND"));
    }

    #[test]
    fn what_changes_a_document_changes_its_declaration() {
        let same = |from: &str, to: &str| {
            assert!(SOURCE.contains(from));
            declarations(&SOURCE.replacen(from, to, 1), true) == declarations(SOURCE, true)
        };
        assert!(same("/// Its name.", "/// The name."));
        assert!(same("hidden: u32", "hidden: u64"));
        assert!(same("    7", "    8"));
        assert!(!same("name: String", "name: Vec<u8>"));
        assert!(!same("    #[serde(default)]\n", ""));
        assert!(!same("deny_unknown_fields", "transparent"));
        assert!(!same("Pair(u8, u8)", "Pair(u8)"));
        assert!(!same("KIND: u32 = 3", "KIND: u32 = 4"));
    }
}
