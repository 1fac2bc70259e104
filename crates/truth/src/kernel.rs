//! The kernel of a form: each thread loads its case's values, applies the instruction, and stores
//! the results.

use std::fmt::Write;

use crate::form::{Form, Operand, PtxType, Role, Space};
use crate::values::BLOCK;

/// Returns the lines before a module's kernels.
pub fn header(target: u32) -> String {
    format!(".version 8.8\n.target sm_{target}\n.address_size 64\n")
}

/// Returns the offset of each result in the output, and the output's length, in bytes.
pub fn layout(form: &Form, cases: usize) -> (Vec<usize>, usize) {
    let mut at = 0usize;
    let mut starts = Vec::new();
    for (operand, kind, count) in form.results() {
        at = at.next_multiple_of(16);
        starts.push(at);
        at += cases * result_bytes(operand, kind) * count;
    }
    (starts, at.next_multiple_of(16))
}

/// Returns the bytes of one element: registers are stored whole, cells as in memory.
pub fn result_bytes(operand: &Operand, kind: PtxType) -> usize {
    match operand.role {
        Role::Cell(_) => kind.bytes(),
        _ => kind.register_bytes(),
    }
}

/// Returns the text of kernel `name(out, in)`. Input `i` of case `c` is at `in + (i * cases + c) *
/// 8`.
pub fn text(form: &Form, name: &str, cases: usize) -> String {
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = write(&mut out, form, name, cases);
    out
}

fn write(out: &mut String, form: &Form, name: &str, cases: usize) -> std::fmt::Result {
    writeln!(
        out,
        "{}\n.visible .entry {name}(.param .u64 out, .param .u64 in)\n{{\n\
         .reg .b64 %in, %out, %to, %place; .reg .b32 %thread, %base, %word;",
        form.before.replace("KERNEL", name)
    )?;
    declare(out, form)?;
    writeln!(
        out,
        "ld.param.u64 %in, [in]; ld.param.u64 %out, [out];\n\
         mov.u32 %thread, %tid.x; mov.u32 %base, %ctaid.x; mad.lo.u32 %thread, %base, {BLOCK}, %thread;\n\
         mad.wide.u32 %in, %thread, 8, %in;"
    )?;
    let (starts, _) = layout(form, cases);
    address_cells(out, form, &starts)?;
    let mut input = 0;
    for operand in &form.operands {
        match operand.role {
            Role::Source => {
                for register in operand.registers() {
                    load(out, operand.kind, &register, input * cases * 8)?;
                    input += 1;
                }
            }
            Role::Cell(space) => {
                for element in 0..operand.count {
                    fill(out, operand, space, element, input * cases * 8)?;
                    input += 1;
                }
            }
            Role::Result | Role::Scratch => {}
        }
    }
    writeln!(out, "{};", form.text.replace("KERNEL", name))?;
    let mut result = 0;
    for operand in &form.operands {
        match operand.role {
            Role::Result => {
                for register in operand.registers() {
                    store(out, operand, &register, starts[result])?;
                    result += 1;
                }
            }
            Role::Cell(space) => {
                empty(out, operand, space, starts[result])?;
                result += 1;
            }
            Role::Source | Role::Scratch => {}
        }
    }
    writeln!(out, "ret;\n}}")
}

fn declare(out: &mut String, form: &Form) -> std::fmt::Result {
    for operand in &form.operands {
        if let Role::Cell(space) = operand.role {
            let width = if space == Space::Shared { 32 } else { 64 };
            writeln!(out, ".reg .b{width} %{};", operand.name)?;
            let bytes = operand.count * operand.kind.bytes();
            match space {
                Space::Global => {}
                Space::Shared | Space::Window => {
                    writeln!(out, ".shared .align 128 .b8 cells[{}];", bytes * BLOCK)?;
                }
                Space::Local => writeln!(out, ".local .align 16 .b8 nook[{bytes}];")?,
            }
            continue;
        }
        let class = match operand.kind {
            PtxType::Pred => "pred".to_owned(),
            other => format!("b{}", other.register_bytes() * 8),
        };
        writeln!(out, ".reg .{class} {};", operand.registers().join(", "))?;
    }
    Ok(())
}

fn address_cells(out: &mut String, form: &Form, starts: &[usize]) -> std::fmt::Result {
    let mut result = 0;
    for operand in &form.operands {
        let name = &operand.name;
        let stride = operand.count * operand.kind.bytes();
        match operand.role {
            Role::Cell(Space::Global) => writeln!(
                out,
                "mad.wide.u32 %global, %thread, {stride}, %out; add.u64 %global, %global, {};",
                starts[result]
            )?,
            Role::Cell(Space::Shared) => writeln!(
                out,
                "mov.u32 %shared, %tid.x; mov.u32 %word, cells; mad.lo.u32 %{name}, %shared, {stride}, %word;"
            )?,
            Role::Cell(Space::Window) => writeln!(
                out,
                "mov.u32 %word, %tid.x; mov.u64 %window, cells; mad.wide.u32 %{name}, %word, {stride}, %window; cvta.shared.u64 %window, %window;"
            )?,
            Role::Cell(Space::Local) => writeln!(out, "mov.u64 %{name}, nook;")?,
            _ => {}
        }
        result += match operand.role {
            Role::Result => operand.count,
            Role::Cell(_) => 1,
            Role::Source | Role::Scratch => 0,
        };
    }
    Ok(())
}

fn load(out: &mut String, kind: PtxType, register: &str, offset: usize) -> std::fmt::Result {
    match kind {
        PtxType::Pred => writeln!(
            out,
            "ld.global.b32 %word, [%in+{offset}]; setp.ne.u32 {register}, %word, 0;"
        ),
        other => {
            let bits = other.register_bytes() * 8;
            writeln!(out, "ld.global.b{bits} {register}, [%in+{offset}];")
        }
    }
}

fn space_name(space: Space) -> &'static str {
    match space {
        Space::Global => ".global",
        Space::Shared => ".shared",
        Space::Local => ".local",
        Space::Window => "",
    }
}

fn fill(
    out: &mut String,
    operand: &Operand,
    space: Space,
    element: usize,
    offset: usize,
) -> std::fmt::Result {
    let (bytes, name) = (operand.kind.bytes(), &operand.name);
    writeln!(
        out,
        "ld.global.u64 %place, [%in+{offset}]; st{}.u{} [%{name}+{}], %place;",
        space_name(space),
        bytes * 8,
        element * bytes
    )
}

fn store(out: &mut String, operand: &Operand, register: &str, start: usize) -> std::fmt::Result {
    let bytes = operand.kind.register_bytes();
    writeln!(out, "mad.wide.u32 %place, %thread, {bytes}, %out;")?;
    if operand.kind == PtxType::Pred {
        writeln!(
            out,
            "selp.u32 %word, 1, 0, {register}; st.global.u8 [%place+{start}], %word;"
        )
    } else {
        writeln!(
            out,
            "st.global.b{} [%place+{start}], {register};",
            bytes * 8
        )
    }
}

/// Copies a cell to its result, unless the cell is the result.
fn empty(out: &mut String, operand: &Operand, space: Space, start: usize) -> std::fmt::Result {
    if space == Space::Global {
        return Ok(());
    }
    let (bytes, name) = (operand.kind.bytes(), &operand.name);
    let stride = operand.count * bytes;
    writeln!(out, "mad.wide.u32 %to, %thread, {stride}, %out;")?;
    for element in 0..operand.count {
        let at = element * bytes;
        writeln!(
            out,
            "ld{}.u{bits} %place, [%{name}+{at}]; st.global.u{bits} [%to+{}], %place;",
            space_name(space),
            start + at,
            bits = bytes * 8
        )?;
    }
    Ok(())
}
