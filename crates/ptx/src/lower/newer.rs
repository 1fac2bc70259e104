//! Forms of known instructions that came with later architectures than others of the same name (each section's "Target ISA
//! Notes"): executed where the text is for one of those, and refused where it is not.

use super::modifiers::Modifiers;

/// The architecture that an instruction needs, where that is more than what its name says.
pub(super) fn needs(name: &str, mods: &Modifiers<'_>) -> Option<u32> {
    let has = |wanted: &str| mods.all().contains(&wanted);
    if name == "cvt" && super::float8::NAMES.iter().any(|format| has(format)) {
        return Some(89);
    }
    let brain = has("bf16") || has("bf16x2");
    let newer = match name {
        "add" | "sub" | "mul" | "tanh" | "ex2" | "set" | "setp" => brain,
        // sm_80 converts between bf16 and f32 alone.
        "cvt" => {
            let types: Vec<&str> = mods.all().iter().copied().filter(|p| is_type(p)).collect();
            has("bf16") && types != ["bf16", "f32"] && types != ["f32", "bf16"]
        }
        "atom" | "red" => brain && has("add"),
        "griddepcontrol" => true,
        _ => false,
    };
    newer.then_some(90)
}

fn is_type(part: &str) -> bool {
    crate::parse::ast::Type::from_name(part).is_some()
}
